"""Datasets of several streams, with a state."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from torch.utils.data import IterableDataset, get_worker_info

from energize.compat.streaming.base.spanner import Spanner, shards_of
from energize.compat.streaming.base.stream import (
    Stream,
    absent,
    note_unused,
    streams_registry,
    warn_of_hooks,
)
from energize.compat.streaming.base.world import World
from energize.core.arrays import Int64Array
from energize.core.checks import checked_whole, raised_as
from energize.core.dataset import IndexedDataset, PassingDataset
from energize.core.failures import Failed, FailurePolicy
from energize.core.ignored import log_once
from energize.core.lanes import Lane, Ranks
from energize.core.node import NodeTraits
from energize.core.stream import State, counter_field
from energize.core.trace import ReadContext, Request
from energize.datasets.order import ConcatDataset
from energize.datasets.quota import ComposedDataset, ComposedSamples
from energize.errors import ConfigError, StateError, StateMismatchError
from energize.integrations.torch_data import Place, SharedPlace
from energize.loader.failures import FailureLog
from energize.loader.state import packed_state, unpacked_state

__all__ = ["StreamingDataset"]

T = TypeVar("T")

_UNUSED: Mapping[str, Any] = {
    "cache_limit": None,
    "num_canonical_nodes": None,
    "partition_algo": "relaxed",
    "predownload": None,
    "sampling_granularity": 1,
    "shuffle_algo": "py1e",
    "shuffle_block_size": None,
}
"""Attributes that only programs read, and their defaults in MosaicML Streaming."""

_OF_STREAMS: Mapping[str, Any] = {
    "download_retry": 2,
    "download_timeout": 60,
    "keep_zip": False,
}
"""Arguments without effect that streams take from their dataset, and their defaults."""

_OF_ALGORITHM = {"py1s": 64, "py2s": 64}
"""Canonical nodes per node, if not 1, by the algorithm of the shuffle."""

_NUMBERS = (
    "epoch",
    "sample_in_epoch",
    "num_canonical_nodes",
    "shuffle_seed",
    "initial_physical_nodes",
)
"""Fields of a state in MosaicML Streaming. They decide the position, as there."""

_REFUSED = (-1, 0)
"""The place after a state of another dataset was loaded."""

_DATASET_HOOKS = ("resample_streams", "prepare_shard", "evict_shard", "_get_work")
"""Methods that a subclass may override in MosaicML Streaming; never called here."""

_log = logging.getLogger("energize")


class _Numbered(PassingDataset[tuple[int, Any]]):
    """Pairs of (number among the samples of all streams, sample).

    A substitute for a damaged sample has its own number if there is a single source.
    """

    order_name = "_Numbered"

    traits = NodeTraits(makes=True, content_only=True)

    first: int

    def __init__(self, dataset: IndexedDataset[Any], first: int) -> None:
        self.freeze([dataset], first=first)

    def make(
        self, items: list[Any], request: Request
    ) -> list[tuple[int, Any] | Failed]:
        below = self.children[0]
        attempt = request.reading.attempt
        numbers = request.positions % below.size
        if attempt and [source.count for source in below.sources] == [below.size]:
            numbers = below.refs(request.positions, attempt).index
        pairs = zip((self.first + numbers).tolist(), items, strict=True)
        return [
            item if type(item) is Failed else (number, item) for number, item in pairs
        ]


def _note_all(arguments: Mapping[str, Any]) -> None:
    """Log arguments without effect; raise TypeError for unknown ones."""
    for name, value in arguments.items():
        if name not in {**_UNUSED, **_OF_STREAMS}:
            raise TypeError(
                f"StreamingDataset() got an unexpected keyword argument {name!r}"
            )
        note_unused("StreamingDataset", name, value)


def _check_batching(method: str, batch_size: int | None) -> None:
    """Raise `ConfigError` for a method that needs a batch size."""
    if batch_size is None and method != "random":
        raise ConfigError(
            f"StreamingDataset: batching_method={method!r} needs batch_size, the "
            "number of samples per rank and batch"
        )


def _streams_of(
    streams: Sequence[Stream] | None,
    paths: dict[str, str | None],
    stream_name: str,
    stream_config: Mapping[str, Any] | None,
) -> tuple[Stream, ...]:
    """Return the streams, or the single stream at `paths`."""
    has_paths = bool(paths["remote"] or paths["local"])
    if bool(streams) == has_paths or (streams and stream_config):
        raise ConfigError(
            "StreamingDataset: pass either streams=[Stream(...), ...] or the paths "
            "of a single stream (local, remote) with its stream_config"
        )
    if streams:
        return tuple(streams)
    return (streams_registry[stream_name](**{**(stream_config or {}), **paths}),)


def _warn_of_turns(count: int) -> None:
    """Warn if several streams are read one after the other."""
    if count > 1:
        _log.warning(
            "StreamingDataset: without shuffle the %d streams are read one after the "
            "other. Pass shuffle=True or batching_method='stratified' to mix them",
            count,
        )


class StreamingDataset(IterableDataset[Any]):
    """Samples of several streams by their quotas, epoch after epoch.

    Every iteration yields the samples of one epoch on this rank, also in the workers of
    a DataLoader, which yield whole device batches in turn: pass the same `batch_size`
    to the DataLoader. A global batch holds the same samples for any number of ranks and
    workers if its size is the same. Without `shuffle`, the method "random" reads the
    streams one after the other in stored order.

    `dataset[i]` is sample i of all streams in stored order. Iteration applies an
    overridden `__getitem__` of a subclass to every sample. Damaged samples are
    replaced; `samples` is the dataset of the samples of all ranks.

    Args:
        streams: The streams; or use `remote` and `local` for a single one.
        remote: Path or file:// URL of a single stream.
        local: Path of a single stream.
        split: Split of the streams that have none.
        epoch_size: Samples per epoch; see `QuotaDataset`.
        batching_method: See `ComposedDataset`.
        batch_size: Samples per rank and batch. None only with the method "random".
        sampling_method: See `QuotaDataset`.
        shuffle: Whether samples are shuffled, differently in every epoch.
        shuffle_seed: Seed of the order and of the choice of samples.
        drop_last: See `ComposedDataset`. All ranks have the same number of batches; a
            rank without a sample in the last batch repeats one of that batch. None is
            True without `batch_size`, else False.
        replication: Number of consecutive ranks that read the same samples.
        validate_hash: Hash that files are compared with; see `MdsSource`.
        allow_unsafe_types: Whether columns of pickles are read. They can run any code:
            enable it only for folders that you trust.
        failures: Budget of damaged samples, as in `get_loader`.
        stream_name: Registered class of a single stream.
        stream_config: Further arguments of a single stream.
        **without_use: Arguments of MosaicML Streaming without effect; they are logged.

    Raises:
        ConfigError: For both or neither of streams and paths, or invalid arguments.
        FailureBudgetError: In iteration, if too many samples are damaged.
    """

    order_name = "StreamingDataset"

    num_canonical_nodes: int | None
    predownload: int | None
    shuffle_algo: str
    shuffle_block_size: int | None

    def __init__(  # noqa: PLR0913
        self,
        *,
        streams: Sequence[Stream] | None = None,
        remote: str | None = None,
        local: str | None = None,
        split: str | None = None,
        epoch_size: int | str | None = None,
        batching_method: str = "random",
        batch_size: int | None = None,
        sampling_method: str = "balanced",
        shuffle: bool = False,
        shuffle_seed: int = 9176,
        drop_last: bool | None = None,
        replication: int | None = None,
        validate_hash: str | None = None,
        allow_unsafe_types: bool = False,
        failures: FailurePolicy = FailurePolicy(),  # noqa: B008 - frozen
        stream_name: str = "stream",
        stream_config: Mapping[str, Any] | None = None,
        **without_use: Any,
    ) -> None:
        _note_all(without_use)
        warn_of_hooks(self, StreamingDataset, _DATASET_HOOKS)
        paths = {"remote": remote, "local": local, "split": split}
        self.streams = _streams_of(streams, paths, stream_name, stream_config)
        self.num_streams = len(self.streams)
        default = {"split": split or "", "validate_hash": validate_hash}
        for stream in self.streams:
            stream.apply_default({**_OF_STREAMS, **without_use, **default})
            stream.allow_unsafe_types = allow_unsafe_types
        _check_batching(batching_method, batch_size)
        seed = checked_whole(shuffle_seed, "StreamingDataset: shuffle_seed", 0)
        world = World.detect().replicate(1 if replication is None else replication)
        self.ranks = Ranks(world.rank, world.num_ranks)
        """Rank and world size, with replicated ranks counted once."""
        self.batch_size = batch_size
        self.device_batch_size = 1 if batch_size is None else batch_size
        """Samples per rank and batch; 1 without `batch_size`."""
        self.shuffle = shuffle
        self.shuffle_seed = seed
        self.replication = replication
        self.sampling_method = sampling_method
        self.batching_method = batching_method
        self.allow_unsafe_types = allow_unsafe_types
        self.epoch_seed_change = shuffle and sampling_method == "balanced"
        self._keep_unused(without_use, world.num_nodes)
        in_turn = batching_method == "random" and not shuffle
        if in_turn:
            _warn_of_turns(len(self.streams))
        drop_last = batch_size is None if drop_last is None else drop_last
        self._pairs = [
            (stream.samples(split=split or "", seed=seed), stream.quota)
            for stream in self.streams
        ]
        self._settings: dict[str, Any] = {
            "batch_size": self.device_batch_size,
            "global_batch_size": self.device_batch_size * self.ranks.world_size,
            "batching_method": "in_turn" if in_turn else batching_method,
            "epoch_size": epoch_size,
            "sampling_method": sampling_method,
            "shuffle": shuffle,
            "drop_last": drop_last,
        }
        with raised_as("StreamingDataset", "ComposedDataset"):
            self._batches: ComposedDataset[list[Any]] = ComposedDataset(
                self._pairs, **self._settings
            )
        self.samples: ComposedSamples[Any] = self._batches.samples
        self.epoch_size = self.samples.size
        self._count_shards()
        parts = self.samples.children
        firsts = self.sample_offset_per_stream.tolist()
        self._stored: ConcatDataset[Any] = ConcatDataset(*parts)
        self._numbered = self._batches.with_inputs(
            [self.samples.with_inputs(list(map(_Numbered, parts, firsts)))]
        )
        is_fixed = self._set_quotas() or sampling_method == "fixed"
        self._has_equal_epochs = not shuffle and is_fixed
        self._place = SharedPlace()
        self._delivered = 0
        self._context = ReadContext(failures=failures)
        self._failures = FailureLog(failures.budget)
        self._read_for: tuple[int, Any] | None = None
        self._mismatch = "the loaded state is of another dataset"

    def __getattr__(self, name: str) -> Any:
        raise absent(self, name)

    def _keep_unused(self, arguments: Mapping[str, Any], nodes: int) -> None:
        """Set the attributes that only programs read."""
        vars(self).update({**_UNUSED, **arguments})
        if self.predownload is None:
            self.predownload = 64 if self.batch_size is None else 8 * self.batch_size
        if self.num_canonical_nodes is None:
            self.num_canonical_nodes = nodes * _OF_ALGORITHM.get(self.shuffle_algo, 1)
        if self.shuffle_block_size is None:
            self.shuffle_block_size = max(
                4_000_000 // self.num_canonical_nodes, 1 << 18
            )
        self.initial_physical_nodes: int | None = None
        self._nodes = nodes

    def _count_shards(self) -> None:
        """Set the shards of the streams and the counts of shards and samples."""
        shards = [shards_of(samples) for samples, _ in self._pairs]
        self.shards = [shard for part in shards for shard in part]
        self.num_shards = len(self.shards)
        self.samples_per_stream = _counts(samples.size for samples, _ in self._pairs)
        self.sample_offset_per_stream = _firsts(self.samples_per_stream)
        self.shards_per_stream = _counts(map(len, shards))
        self.shard_offset_per_stream = _firsts(self.shards_per_stream)
        self.stream_per_shard = np.arange(self.num_streams).repeat(
            self.shards_per_stream
        )
        self.samples_per_shard = _counts(shard.samples for shard in self.shards)
        self.sample_offset_per_shard = _firsts(self.samples_per_shard)
        self.spanner = Spanner(self.samples_per_shard)

    def prepare_shard(self, shard_id: int, blocking: bool = True) -> None:
        """Do nothing: shards are read where they are."""

    def resample_streams(
        self, epoch: int, stream_id: int | None = None
    ) -> tuple[Int64Array, Int64Array]:
        """Return the samples of an epoch in stored order.

        Args:
            epoch: The epoch.
            stream_id: A single stream; None for all.

        Returns:
            The lengths of runs of different samples of one shard, and the samples.
        """
        start = epoch * self.epoch_size
        routes = self.samples.route(np.arange(start, start + self.epoch_size))
        child = routes.child
        streams = np.zeros_like(routes.position) if child is None else child
        samples = routes.position % self.samples_per_stream[streams]
        samples += self.sample_offset_per_stream[streams]
        if stream_id is not None:
            samples = samples[streams == stream_id]
        samples.sort()
        repeats = np.arange(len(samples)) - samples.searchsorted(samples)
        shards = self.sample_offset_per_shard.searchsorted(samples, side="right")
        order = np.lexsort((samples, repeats, shards))
        runs = np.unique(np.stack([shards, repeats]), axis=1, return_counts=True)[1]
        return runs, samples[order]

    def _set_quotas(self) -> bool:
        """Set the quotas of an epoch on the streams, as MosaicML Streaming does.

        Returns:
            Whether every epoch takes the same samples: all repeats are whole numbers.
        """
        counts = self.samples.requested_counts.tolist()
        repeats = (counts / np.maximum(self.samples_per_stream, 1)).tolist()
        shares = [
            stream.quota.proportion or count
            for stream, count in zip(self.streams, counts, strict=True)
        ]
        for stream, share, count, repeat in zip(
            self.streams, shares, counts, repeats, strict=True
        ):
            stream.requested = stream.quota
            stream.proportion = share / sum(shares)
            stream.repeat = repeat
            stream.choose = count
        return all(map(float.is_integer, repeats))

    def batches(
        self, batcher: Callable[[list[Any]], T] | None = None
    ) -> ComposedDataset[T]:
        """Return the dataset of the device batches of all ranks, for `get_loader`.

        Args:
            batcher: Converts the list of stored samples of a batch; None keeps the
                list.
        """
        subclass = type(self)
        methods = (subclass.__getitem__, subclass.get_item)
        if methods != (StreamingDataset.__getitem__, StreamingDataset.get_item):
            text = (
                "batches() reads samples as they are stored and does not call the "
                "overridden __getitem__; convert them in the batcher"
            )
            log_once(subclass.__name__, "batches", text, logging.WARNING)
        return ComposedDataset(self._pairs, batcher=batcher, **self._settings)

    @property
    def size(self) -> int:
        """Number of samples of all streams."""
        return self._stored.size

    num_samples = size

    @property
    def length(self) -> int:
        """Samples of an epoch on this rank, as `len` returns it."""
        return len(self)

    @property
    def next_epoch(self) -> int:
        """The epoch that the next iteration starts or resumes; it can be set."""
        position, ended = self._place.start
        return position // self.epoch_size - ended + (not self._place.waiting)

    @next_epoch.setter
    def next_epoch(self, epoch: int) -> None:
        self._place.set((checked_whole(epoch, "next_epoch", 0) * self.epoch_size, 0))

    def __len__(self) -> int:
        """Return the samples of an epoch on this rank, padding included."""
        mixed = self.samples.composition
        ranks = self.ranks.world_size
        full = mixed.batches // ranks - 1
        first, end = mixed.bounds(np.array([full * ranks + self.ranks.rank]))
        return full * mixed.batch_size + max(1, int(end[0] - first[0]))

    def __getitem__(self, at: Any) -> Any:
        """Return the sample at an index, or a list for a slice or list of indices."""
        if isinstance(at, slice):
            return [self[index] for index in range(*at.indices(self.size))]
        if isinstance(at, list | np.ndarray):
            return [self[int(index)] for index in at]
        number = int(at) + self.size if at < 0 else int(at)
        if not 0 <= number < self.size:
            raise IndexError(
                f"sample {at} is out of range: the dataset has {self.size} samples"
            )
        return self.get_item(number)

    def get_item(self, sample_id: int, retry: int = 7) -> Any:
        """Return a stored sample, or a substitute for a damaged one.

        Args:
            sample_id: Index among the samples of all streams, from 0.
            retry: Has no effect.
        """
        if self._read_for is not None and self._read_for[0] == sample_id:
            return self._read_for[1]
        return self._stored.at([sample_id], self._reading())[0]

    def _reading(self) -> ReadContext:
        return self._context.counted_by(
            self._failures.add, memory=self._failures.memory
        )

    def __iter__(self) -> Iterator[Any]:
        place = self._place.begin(self._next_epoch)
        self._delivered = 0
        if place == _REFUSED:
            raise StateMismatchError(self._mismatch)
        return iter(()) if place is None or place[1] else self._read(place[0])

    def _next_epoch(self, place: Place) -> Place:
        return (place[0] // self.epoch_size + 1 - place[1]) * self.epoch_size, 0

    def _read(self, start: int) -> Iterator[Any]:
        """Yield the samples of this rank from `start` to the end of the epoch.

        A DataLoader worker yields the device batches of its turn. Every sample passes
        through `__getitem__`, which a subclass may override.
        """
        world = self.ranks.world_size
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        epoch, consumed = divmod(start, self.epoch_size)
        batch, skipped = divmod(consumed // world, self.device_batch_size)
        first = (
            batch * world
            if self._has_equal_epochs
            else batch * world + epoch * self._numbered.size
        )
        lane = Lane(self.ranks.rank + world * worker, world * workers)
        reading = self._reading()
        for pairs in self._numbered.open(lane, {"position": first}, reading):
            for pair in pairs if worker else pairs[skipped:]:
                self._delivered += 1
                self._read_for = pair
                item = self[pair[0]]
                self._read_for = None
                yield item
            skipped = 0
        self._failures.conclude()

    def state_dict(
        self, num_samples: int | None = None, from_beginning: bool = True
    ) -> State:
        """Return the position in the current epoch, the same on all ranks.

        Args:
            num_samples: Samples that all ranks together consumed; values beyond the
                epoch are its end. None counts the samples that this process iterated
                over; it is required if DataLoader workers read.
            from_beginning: Whether `num_samples` counts from the start of the epoch,
                or from the start of this iteration.

        Returns:
            A small, JSON-able dict. It has the fields of MosaicML Streaming (epoch,
            sample_in_epoch, num_canonical_nodes, shuffle_seed, initial_physical_nodes)
            and those of energize, which identify the dataset.

        Raises:
            StateError: If `num_samples` is None and DataLoader workers read.
            StateMismatchError: If the loaded state is of another dataset.
        """
        size = self.epoch_size
        ranks = self.ranks.world_size
        start = self._place.start
        if start == _REFUSED:
            raise StateMismatchError(self._mismatch)
        epoch = start[0] // size - start[1]
        consumed = start[0] - epoch * size
        if num_samples is not None:
            consumed = num_samples if from_beginning else consumed + num_samples
        elif self._place.in_workers:
            raise StateError(
                "state_dict: DataLoader workers read this dataset, so the number of "
                "consumed samples is unknown. Call "
                "state_dict(num_samples=batches * batch_size * ranks), "
                "or use a StreamingDataLoader"
            )
        else:
            consumed += self._delivered * ranks
        if consumed // ranks >= len(self):  # ranks differ in the last batch
            consumed = size
        consumed = min(consumed, size)
        nodes = self.initial_physical_nodes
        values = (
            epoch,
            consumed,
            self.num_canonical_nodes,
            self.shuffle_seed,
            self._nodes if nodes is None else nodes,
        )
        state = packed_state(self.samples, {"position": epoch * size + consumed})
        return {**dict(zip(_NUMBERS, values, strict=True)), **state}

    def load_state_dict(self, state: State) -> None:
        """Start the next iteration at a saved state.

        `epoch` and `sample_in_epoch` decide the position, also if a program changed
        them. A state of these fields alone is not compared with the dataset.

        Args:
            state: A result of `state_dict`. At the end of an epoch, the next iteration
                is empty and the one after it reads the next epoch. If it was saved with
                other streams or settings, the next iteration raises
                `StateMismatchError`, unless another state is loaded before it.

        Raises:
            StateError: If the state cannot be used.
        """
        self._delivered = 0
        try:
            place = self._place_of(state)
        except StateMismatchError as error:
            self._mismatch = str(error)
            _log.warning("StreamingDataset: %s", error)
            place = _REFUSED
        self._place.set(place)

    def _place_of(self, state: State) -> Place:
        """Return the place in a state, and take over its numbers of nodes.

        The step is 1 at the end of an epoch.
        """
        numbers = {name: state[name] for name in _NUMBERS if name in state}
        rest = {name: state[name] for name in state if name not in numbers}
        if rest or not numbers:
            position = counter_field(unpacked_state(self.samples, rest), "position")
        else:
            _log.warning(
                "StreamingDataset: the state has no fields of energize to compare with "
                "the dataset. A state of MosaicML Streaming resumes in another order"
            )
        if not numbers:
            return position, 0
        seed = numbers.get("shuffle_seed", self.shuffle_seed)
        if seed != self.shuffle_seed:
            raise StateMismatchError(
                f"shuffle_seed was {seed} in the saved state, is {self.shuffle_seed}. "
                "Pass the shuffle_seed of the state"
            )
        nodes = "num_canonical_nodes", "initial_physical_nodes"
        vars(self).update({name: numbers[name] for name in nodes if name in numbers})
        consumed = min(counter_field(numbers, "sample_in_epoch"), self.epoch_size)
        position = counter_field(numbers, "epoch") * self.epoch_size + consumed
        return position, int(consumed == self.epoch_size)


def _counts(numbers: Iterable[int]) -> Int64Array:
    return np.fromiter(numbers, dtype=np.int64)


def _firsts(counts: Int64Array) -> Int64Array:
    """Return the sum of the counts before each count."""
    return counts.cumsum() - counts
