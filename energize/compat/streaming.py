"""The interface of MosaicML Streaming over datasets of energize.

A `Stream` is a folder with a quota. A `StreamingDataset` composes the epochs and global
batches of several streams; a `StreamingDataLoader` adds a state to torch's DataLoader.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from energize.core.checks import checked_choice, checked_whole, raised_as
from energize.core.dataset import IndexedDataset, PassingDataset
from energize.core.failures import Failed, FailurePolicy
from energize.core.ignored import log_once
from energize.core.lanes import Lane, Ranks, WorkerConfig
from energize.core.lazy import optional_module
from energize.core.node import NodeTraits
from energize.core.os_errors import os_errors_as
from energize.core.stream import State, counter_field
from energize.core.trace import ReadContext, Request
from energize.data.files import path_of
from energize.data.mds import INDEX, MdsSource
from energize.data.nv_meta import META_FOLDER
from energize.data.webdataset import WebdatasetSource
from energize.datasets.order import ConcatDataset
from energize.datasets.quota import ComposedDataset, ComposedSamples
from energize.datasets.transform import MapDataset
from energize.errors import ConfigError, DatasetError, DatasetNotFoundError, StateError
from energize.integrations.torch_data import Place, SharedPlace
from energize.loader.failures import FailureLog
from energize.loader.state import packed_state, unpacked_state
from energize.order.quota import Quota
from energize.task.decode import SampleDecoder

__all__ = [
    "Stream",
    "StreamingDataLoader",
    "StreamingDataset",
    "StreamsRegistry",
    "register_with_mosaicml",
    "streams_registry",
]

T = TypeVar("T")

_DEFAULT_SPLIT = "train"

_ENTRY_POINTS = "streaming_streams_registry"

_IGNORED_ARGUMENTS = (
    "cache_limit download_retry download_timeout keep_zip num_canonical_nodes "
    "partition_algo predownload sampling_granularity shuffle_algo shuffle_block_size"
)
"""Arguments of MosaicML Streaming that are accepted and have no effect."""

_STREAM_HOOKS = (
    "get_shards",
    "prepare_shard",
    "set_up_local",
    "get_index_size",
    "_download_file",
)
_DATASET_HOOKS = ("resample_streams", "prepare_shard", "evict_shard", "_get_work")
"""Methods that a subclass may override in MosaicML Streaming; never called here."""

_log = logging.getLogger("energize")


@dataclass(kw_only=True, eq=False)
class Stream:
    """A folder of samples and its quota per epoch.

    The folder is `local` if it holds data, else `remote`; nothing is downloaded. It
    holds MDS shards, or is a folder prepared by `energize prepare`. Samples are dicts
    of decoded columns or parts; images are Pillow images. To change what a stream
    reads, override `samples` in a subclass.

    Args:
        remote: Path or file:// URL of the folder.
        local: Path of the folder; preferred over `remote` if it holds data.
        split: Subfolder of MDS shards, or split part of a prepared folder ("train" if
            empty). None takes the split of the dataset.
        proportion: As in `Quota`, like `repeat` and `choose`. A `StreamingDataset`
            sets all three to their values in an epoch.
        repeat: See `Quota`.
        choose: See `Quota`.
        download_retry: Has no effect, like `download_timeout` and `keep_zip`.
        download_timeout: Has no effect.
        validate_hash: As in `MdsSource`.
        keep_zip: Has no effect.

    Raises:
        ConfigError: If neither path is set.
        WeightError: For a quota that cannot be used.
    """

    remote: str | None = None
    local: str | None = None
    split: str | None = None
    proportion: float | None = None
    repeat: float | None = None
    choose: int | None = None
    download_retry: int | None = None
    download_timeout: float | None = None
    validate_hash: str | None = None
    keep_zip: bool | None = None
    requested: Quota | None = field(default=None, init=False, repr=False)
    """The quota before a dataset replaced it by the values of an epoch."""
    allow_unsafe_types = False
    """Whether columns of pickles are read; set by `StreamingDataset`."""

    def __post_init__(self) -> None:
        if not self.remote and not self.local:
            raise ConfigError(
                "Stream: neither local nor remote is set. Set one to the data folder"
            )
        _ = self.quota  # raises for an invalid quota
        for name in ("download_retry", "download_timeout", "keep_zip"):
            _note("Stream", name, getattr(self, name))
        _warn_of_hooks(self, Stream, _STREAM_HOOKS)

    @property
    def quota(self) -> Quota:
        """The requested quota of an epoch."""
        if self.requested is not None:
            return self.requested
        with raised_as(f"Stream {str(self.local or self.remote)!r}", "a quota"):
            return Quota(
                proportion=self.proportion, repeat=self.repeat, choose=self.choose
            )

    def samples(self, *, split: str = "", seed: int = 0) -> IndexedDataset[Any]:
        """Return the samples in stored order.

        Args:
            split: The split if the stream has none.
            seed: Seed of the order.

        Raises:
            DatasetNotFoundError: If neither path holds data.
        """
        split = self.split or split
        folders = self._folders()
        for folder in folders:
            with os_errors_as(DatasetError, folder):
                samples = self._samples_in(folder, split, seed)
            if samples is not None:
                return samples
        raise DatasetNotFoundError(
            f"no data at {' or '.join(map(str, folders)) or 'local'}, split {split!r}: "
            f"expected an {INDEX} (MDS shards) or a {META_FOLDER} (tar shards). Run "
            "`energize prepare` for tar shards"
        )

    def _folders(self) -> list[Any]:
        url = urlsplit(self.remote or "")
        remote = unquote(url.path) if url.scheme == "file" else self.remote
        return [path_of(path) for path in (self.local, remote) if path]

    def _samples_in(
        self, folder: Any, split: str, seed: int
    ) -> IndexedDataset[Any] | None:
        """Return the samples of a folder; None if it holds no data."""
        if (folder / split / INDEX).exists():
            return MdsSource(
                folder,
                split=split,
                validate_hash=self.validate_hash,
                allow_pickles=self.allow_unsafe_types,
                seed=seed,
            )
        if (folder / META_FOLDER).exists():
            source = WebdatasetSource(
                folder, split_part=split or _DEFAULT_SPLIT, seed=seed
            )
            return MapDataset(source, SampleDecoder(image_decode="pil"))
        return None


def _note(owner: str, name: str, value: object) -> None:
    if value is not None:
        text = f"{name}={value!r} has no effect; see docs/coming-from-streaming.md"
        log_once(owner, name, text)


def _warn_of_hooks(instance: object, base: type, hooks: Sequence[str]) -> None:
    """Warn about overridden methods that are never called."""
    bases = type(instance).__mro__
    for subclass in bases[: bases.index(base)]:
        for name in hooks:
            if name in vars(subclass):
                text = (
                    f"{subclass.__name__}.{name} is never called; "
                    "docs/coming-from-streaming.md lists the methods to override"
                )
                log_once(subclass.__name__, name, text, level=logging.WARNING)


class StreamsRegistry(dict[str, Callable[..., Stream]]):
    """Stream classes or factories by name.

    Holds registered streams and those of installed packages with an entry point in the
    group "streaming_streams_registry".

    Example:
        >>> registry = StreamsRegistry()
        >>> @registry.register("mine")
        ... class Mine(Stream):
        ...     pass
        >>> registry["mine"].__name__
        'Mine'
    """

    def register(self, name: str, *, func: Callable[..., Stream] | None = None) -> Any:
        """Register `func`, or the decorated class, under `name`."""
        if func is None:
            return lambda decorated: self.register(name, func=decorated)
        self[name] = func
        return func

    def get(self, name: str) -> Callable[..., Stream]:  # type: ignore[override]
        """Return the stream registered as `name`; raise `ConfigError` if missing."""
        return self[name]

    def __missing__(self, name: str) -> Callable[..., Stream]:
        packages = entry_points(group=_ENTRY_POINTS)
        checked_choice(name, "stream_name", [*self, *packages.names])
        self[name] = packages[name].load()
        return self[name]


# Programs register their streams here, by the name that configurations use.
streams_registry = StreamsRegistry(stream=Stream)


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


class Shard(NamedTuple):
    """File name and number of samples of a shard."""

    name: str
    samples: int


def _note_unused(arguments: Mapping[str, Any]) -> None:
    """Log arguments without effect; raise TypeError for unknown ones."""
    for name, value in arguments.items():
        if name not in _IGNORED_ARGUMENTS.split():
            raise TypeError(
                f"StreamingDataset() got an unexpected keyword argument {name!r}"
            )
        _note("StreamingDataset", name, value)


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


def _set_checks(
    streams: Iterable[Stream], validate_hash: str | None, *, allow_unsafe_types: bool
) -> None:
    """Set the hash checks and the trust of shards on all streams."""
    for stream in streams:
        stream.allow_unsafe_types = allow_unsafe_types
        stream.validate_hash = stream.validate_hash or validate_hash


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
        _note_unused(without_use)
        for name, value in without_use.items():
            setattr(self, name, value)
        _warn_of_hooks(self, StreamingDataset, _DATASET_HOOKS)
        paths = {"remote": remote, "local": local, "split": split}
        self.streams = _streams_of(streams, paths, stream_name, stream_config)
        _set_checks(self.streams, validate_hash, allow_unsafe_types=allow_unsafe_types)
        _check_batching(batching_method, batch_size)
        seed = checked_whole(shuffle_seed, "StreamingDataset: shuffle_seed", 0)
        self.ranks = _replicated(
            WorkerConfig().ranks(), 1 if replication is None else replication
        )
        """Rank and world size, with replicated ranks counted once."""
        self.batch_size = batch_size
        self.device_batch_size = 1 if batch_size is None else batch_size
        """Samples per rank and batch; 1 without `batch_size`."""
        self.shuffle = shuffle
        self.shuffle_seed = seed
        self.replication = replication
        self.sampling_method = sampling_method
        self.batching_method = batching_method
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
        self.samples_per_stream = np.array(
            [samples.size for samples, _ in self._pairs], dtype=np.int64
        )
        parts = self.samples.children
        firsts = np.cumsum([0, *self.samples_per_stream[:-1]]).tolist()
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

    def _set_quotas(self) -> bool:
        """Set the quotas of an epoch on the streams, as MosaicML Streaming does.

        Returns:
            Whether every epoch takes the same samples: all repeats are whole numbers.
        """
        counts = self.samples.requested_counts.tolist()
        repeats = (counts / np.maximum(self.samples_per_stream, 1)).tolist()
        for stream, count, repeat in zip(self.streams, counts, repeats, strict=True):
            stream.requested = stream.quota
            stream.proportion = count / sum(counts)
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
    def shards(self) -> list[Shard]:
        """The shards of all streams."""
        sources = self.samples.sources
        shards: list[Shard] = []
        for source in sources:
            names = getattr(source, "shards", ())
            counts = getattr(source, "counts", ())
            shards += map(Shard, names, counts)
        return shards

    @property
    def num_shards(self) -> int:
        """Number of shards of all streams."""
        return len(self.shards)

    @property
    def next_epoch(self) -> int:
        """The epoch that the next iteration starts or resumes; it can be set."""
        return self._place.start[0] // self.epoch_size + (not self._place.waiting)

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
        return iter(()) if place is None else self._read(place[0])

    def _next_epoch(self, place: Place) -> Place:
        return (place[0] // self.epoch_size + 1) * self.epoch_size, 0

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
            A small, JSON-able dict.

        Raises:
            StateError: If `num_samples` is None and DataLoader workers read.
        """
        size = self.epoch_size
        ranks = self.ranks.world_size
        epoch, consumed = divmod(self._place.start[0], size)
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
        position = epoch * size + min(consumed, size)
        return packed_state(self.samples, {"position": position})

    def load_state_dict(self, state: State) -> None:
        """Start the next iteration at a saved state.

        Args:
            state: A result of `state_dict`. The end of an epoch starts the next one.

        Raises:
            StateMismatchError: If it was saved with other streams or settings; the
                message names the difference.
            StateError: If the state cannot be used.
        """
        position = counter_field(unpacked_state(self.samples, state), "position")
        self._place.set((position, 0))
        self._delivered = 0


def _replicated(ranks: Ranks, replication: int) -> Ranks:
    """Return the rank of this process, with replicated ranks counted once."""
    if ranks.world_size % checked_whole(replication, "replication", 1):
        raise ConfigError(
            f"StreamingDataset: replication={replication} does not divide the "
            f"{ranks.world_size} ranks"
        )
    return Ranks(ranks.rank // replication, ranks.world_size // replication)


class StreamingDataLoader(DataLoader[Any]):
    """torch's DataLoader over a `StreamingDataset`, with a state.

    The state resumes with any number of ranks and workers.

    Raises:
        ConfigError: For a state of another dataset.

    Example:
        >>> import tempfile
        >>> from energize import prepare, write_shards
        >>> folder = tempfile.mkdtemp()
        >>> _ = write_shards(
        ...     [{"__key__": str(n), "txt": str(n)} for n in range(6)], folder
        ... )
        >>> _ = prepare(folder, split_ratios={"train": 1}, sample_type="TextSample")
        >>> loader = StreamingDataLoader(
        ...     StreamingDataset(local=folder, batch_size=2), batch_size=2
        ... )
        >>> batches = iter(loader)
        >>> next(batches)["txt"]
        ['0', '1']
        >>> state = loader.state_dict()
        >>> loader.load_state_dict(state)
        >>> [batch["txt"] for batch in loader]
        [['2', '3'], ['4', '5']]
    """

    num_samples_yielded = 0
    """Samples delivered to this rank since the iteration began."""

    def __iter__(self) -> Any:
        self.num_samples_yielded = 0
        for batch in super().__iter__():
            self.num_samples_yielded += _batch_size(batch)
            yield batch

    def state_dict(self) -> State:
        """Return the state after the last batch, the same on all ranks."""
        dataset = self._streaming()
        if self.num_workers > 1 and self.batch_size != dataset.device_batch_size:
            raise StateError(
                f"batch_size is {self.batch_size} in the loader and "
                f"{dataset.device_batch_size} in the dataset, whose workers yield "
                "whole batches. Pass the same batch_size to both"
            )
        ranks = dataset.ranks.world_size
        return dataset.state_dict(
            self.num_samples_yielded * ranks, from_beginning=False
        )

    def load_state_dict(self, state_dict: State) -> None:
        """Start the next iteration at a state, see
        `StreamingDataset.load_state_dict`.
        """
        self._streaming().load_state_dict(state_dict)
        self.num_samples_yielded = 0

    def _streaming(self) -> StreamingDataset:
        if not isinstance(self.dataset, StreamingDataset):
            raise ConfigError(
                "StreamingDataLoader needs a StreamingDataset to have a state, got a "
                f"{type(self.dataset).__name__}"
            )
        return self.dataset


def _batch_size(batch: Any) -> int:
    if isinstance(batch, Mapping):
        batch = next(iter(batch.values()))
    elif not isinstance(batch, torch.Tensor):
        batch = batch[0]
    return len(batch)


def register_with_mosaicml() -> None:
    """Make the `StreamingDataLoader` of MosaicML Streaming save states of our datasets.

    Their loader returns a state only for instances of their `StreamingDataset`. This
    function registers the class of this module as a virtual subclass of it. The
    `StreamingDataLoader` of this module does not need it.

    Raises:
        ConfigError: If `streaming` cannot be imported.

    Example:
        Once, before the loader is made:

            from streaming import StreamingDataLoader
            from energize.compat.streaming import register_with_mosaicml

            register_with_mosaicml()
    """
    module = optional_module(
        "streaming.base.dataset", "mosaicml-streaming", "register_with_mosaicml"
    )
    module.StreamingDataset.register(StreamingDataset)
