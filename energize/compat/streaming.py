"""MosaicML Streaming's words for mixing: folders with quotas, epochs of composed
batches.
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
from energize.core.ignored import said_once
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

_WITHOUT_USE = (
    "cache_limit download_retry download_timeout keep_zip num_canonical_nodes "
    "partition_algo predownload sampling_granularity shuffle_algo shuffle_block_size"
)
"""Arguments of MosaicML Streaming without effect; docs/coming-from-streaming.md
explains why."""

_STREAM_HOOKS = (
    "get_shards",
    "prepare_shard",
    "set_up_local",
    "get_index_size",
    "_download_file",
)
_DATASET_HOOKS = ("resample_streams", "prepare_shard", "evict_shard", "_get_work")
"""What a subclass may override there and nothing here calls."""

_log = logging.getLogger("energize")


@dataclass(kw_only=True, eq=False)
class Stream:
    """A folder of samples and how much of it an epoch takes.

    The folder is `local` when there are data, else `remote`, which is a path or a
    file:// URL: nothing is downloaded. It holds MDS shards (in the subfolder `split`),
    or is a folder prepared by `energize prepare` (of which `split` names the part, by
    default "train"). Samples are dicts of decoded columns or parts; images are Pillow
    images.

    `proportion`, `repeat` and `choose` are those of `Quota`; a `StreamingDataset` sets
    all three to what they come to in an epoch. `validate_hash` is that of `MdsSource`.
    The other arguments of MosaicML Streaming change nothing, of which a word in the log
    tells. To change what a stream reads, override `samples` in a subclass.

    Raises `ConfigError`, a ValueError, when neither path is given, `WeightError` for
    quotas that cannot be used.
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
    _asked: Quota | None = field(default=None, init=False, repr=False)
    allow_unsafe_types = False
    """Whether columns of pickles are read, as `StreamingDataset` says."""

    def __post_init__(self) -> None:
        if not self.remote and not self.local:
            raise ConfigError("Stream: give local, the folder of the data, or remote")
        _ = self.quota  # which is checked when it is made
        for name in ("download_retry", "download_timeout", "keep_zip"):
            _note("Stream", name, getattr(self, name))
        _warn_of_hooks(self, Stream, _STREAM_HOOKS)

    @property
    def quota(self) -> Quota:
        """How much of it an epoch takes, as it was asked for before a dataset set what
        it is.
        """
        if self._asked is not None:
            return self._asked
        with raised_as(f"Stream {str(self.local or self.remote)!r}", "a quota"):
            return Quota(
                proportion=self.proportion, repeat=self.repeat, choose=self.choose
            )

    def samples(self, *, split: str = "", seed: int = 0) -> IndexedDataset[Any]:
        """Return the samples, in the order in which they are stored.

        `split` is the one to take when the stream names none. Raise
        `DatasetNotFoundError` when there are no data at the paths, and what the sources
        of the folders raise.
        """
        split = self.split or split
        url = urlsplit(self.remote or "")
        given = [self.local, unquote(url.path) if url.scheme == "file" else self.remote]
        folders = [path_of(each) for each in given if each]
        for folder in folders:
            with os_errors_as(DatasetError, folder):
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
        raise DatasetNotFoundError(
            f"no data at {' or '.join(map(str, folders)) or 'local'}, split {split!r}: "
            f"a folder of MDS shards has an {INDEX}, one of tar shards a "
            f"{META_FOLDER}, of `energize prepare`"
        )


def _note(owner: str, name: str, value: object) -> None:
    if value is not None:
        said_once(
            owner,
            name,
            f"{name}={value!r} has no effect: docs/coming-from-streaming.md says why",
        )


def _warn_of_hooks(made: object, base: type, hooks: Sequence[str]) -> None:
    for kind in type(made).__mro__[: type(made).__mro__.index(base)]:
        for name in hooks:
            if name in vars(kind):
                text = (
                    f"{kind.__name__}.{name} is called by nothing here; "
                    "docs/coming-from-streaming.md says what"
                )
                said_once(
                    kind.__name__, name, f"{text} to override", level=logging.WARNING
                )


class StreamsRegistry(dict[str, Callable[..., Stream]]):
    """Kinds of streams, or functions that make one, by name: those that were
    registered, and those of installed packages that have an entry point in the group
    "streaming_streams_registry".

    >>> kinds = StreamsRegistry()
    >>> @kinds.register("mine")
    ... class Mine(Stream):
    ...     pass
    >>> kinds["mine"].__name__
    'Mine'
    """

    def register(self, name: str, *, func: Callable[..., Stream] | None = None) -> Any:
        """Know `func`, or what it decorates, by `name`."""
        if func is None:
            return lambda found: self.register(name, func=found)
        self[name] = func
        return func

    def get(self, name: str) -> Callable[..., Stream]:  # type: ignore[override]
        """Return what is known by `name`; raise `ConfigError` for nothing, as there."""
        return self[name]

    def __missing__(self, name: str) -> Callable[..., Stream]:
        packages = entry_points(group=_ENTRY_POINTS)
        checked_choice(name, "stream_name", [*self, *packages.names])
        self[name] = packages[name].load()
        return self[name]


# Programs register their streams in it, once, by the name that configurations use for
# them.
streams_registry = StreamsRegistry(stream=Stream)


class _Numbered(PassingDataset[tuple[int, Any]]):
    """Each sample of a stream with its number among those of all streams; a substitute
    has its own number where one source has all the samples.
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
        if attempt and [each.count for each in below.sources] == [below.size]:
            numbers = below.refs(request.positions, attempt).index
        pairs = zip((self.first + numbers).tolist(), items, strict=True)
        return [
            each if type(each) is Failed else (number, each) for number, each in pairs
        ]


class Shard(NamedTuple):
    """A shard of a stream: its file, and its samples."""

    name: str
    samples: int


def _note_unused(arguments: Mapping[str, Any]) -> None:
    """Log arguments that change nothing; raise TypeError for unknown ones."""
    for name, value in arguments.items():
        if name not in _WITHOUT_USE.split():
            raise TypeError(
                f"StreamingDataset() got an unexpected keyword argument {name!r}"
            )
        _note("StreamingDataset", name, value)


def _check_batching(method: str, batch_size: int | None) -> None:
    """Raise `ConfigError` for a method that needs a batch size."""
    if batch_size is None and method != "random":
        raise ConfigError(
            f"StreamingDataset: batching_method={method!r} puts batches together; say "
            "with batch_size of how many samples on each rank"
        )


def _set_checks(
    streams: Iterable[Stream], validate_hash: str | None, *, allow_unsafe_types: bool
) -> None:
    """Let streams check and trust their shards as the dataset says."""
    for stream in streams:
        stream.allow_unsafe_types = allow_unsafe_types
        stream.validate_hash = stream.validate_hash or validate_hash


def _warn_of_turns(count: int) -> None:
    """Warn if several streams follow one another."""
    if count > 1:
        _log.warning(
            "StreamingDataset: without shuffle the %d streams come one after the "
            "other; shuffle=True or batching_method='stratified' mixes them",
            count,
        )


def _set_quotas(
    streams: Sequence[Stream], counts: Sequence[int], repeats: Sequence[float]
) -> None:
    """Write the samples of an epoch into the streams, as MosaicML Streaming does."""
    for stream, count, repeat in zip(streams, counts, repeats, strict=True):
        stream._asked = stream.quota
        stream.proportion = count / sum(counts)
        stream.repeat = repeat
        stream.choose = count


class StreamingDataset(IterableDataset[Any]):
    """The samples of several streams in the proportions of their quotas, epoch after
    epoch.

    Either `streams`, or `remote` and `local` of a single one of the kind `stream_name`,
    which gets `stream_config` too. Quotas, `epoch_size` and `sampling_method` are those
    of `QuotaDataset`, `batching_method` those of `ComposedDataset`, over global batches
    of `batch_size` samples on each rank. Without `shuffle`, the method "random" takes
    one stream after the other, each in its order, and every epoch is the same, but for
    the samples that quotas choose.

    Every iteration yields this rank's samples of one epoch, and the next one those of
    the next, also in the workers of a DataLoader, each of which gives whole device
    batches in turn: give DataLoader the same `batch_size`. The samples of a global
    batch are the same for every number of ranks and workers when its size is. With
    `replication`, so many ranks in a row get the same.

    `dataset[i]` is sample i of all streams, in stored order. A subclass may override
    `__getitem__`: every sample that is delivered is then what that returns.

    `drop_last` is that of `ComposedDataset`: every rank has the same number of batches,
    and one that gets no sample of an epoch's last batch gets one of that batch again.
    Without `batch_size` it is True by default: ranks leave out what they cannot share
    evenly.

    Damaged samples are left out, and others take their places. More of them in a
    process than `FailurePolicy.budget` of `failures` allows raise
    `FailureBudgetError`, as in `get_loader`.

    `validate_hash` compares files with their hashes; `allow_unsafe_types` reads columns
    of pickles, which can run any program: of folders that you trust. The other
    arguments of MosaicML Streaming change nothing, of which a word in the log tells;
    docs/coming-from-streaming.md says why.

    `samples` is the dataset that is read, of the samples of all ranks; `batches()`
    makes the one of device batches, for `get_loader`.

    Raises what these datasets raise, and `ConfigError`, a ValueError, for streams
    beside paths, or neither.
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
        if bool(streams) == bool(remote or local) or (streams and stream_config):
            raise ConfigError(
                "StreamingDataset: give either streams=[Stream(...), ...] or the paths "
                "of a single one, local and remote, and its stream_config"
            )
        if not streams:
            paths = {"remote": remote, "local": local, "split": split}
            streams = [
                streams_registry[stream_name](**{**(stream_config or {}), **paths})
            ]
        self.streams = tuple(streams)
        _set_checks(self.streams, validate_hash, allow_unsafe_types=allow_unsafe_types)
        _check_batching(batching_method, batch_size)
        seed = checked_whole(shuffle_seed, "StreamingDataset: shuffle_seed", 0)
        self._ranks = _replicated(
            WorkerConfig().ranks(), 1 if replication is None else replication
        )
        self.batch_size = batch_size
        self._device = 1 if batch_size is None else batch_size
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
            (e.samples(split=split or "", seed=seed), e.quota) for e in self.streams
        ]
        self._settings: dict[str, Any] = {
            "batch_size": self._device,
            "global_batch_size": self._device * self._ranks.world_size,
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
            [each.size for each, _ in self._pairs], dtype=np.int64
        )
        parts = self.samples.children
        firsts = np.cumsum([0, *self.samples_per_stream[:-1]]).tolist()
        self._stored: ConcatDataset[Any] = ConcatDataset(*parts)
        self._numbered = self._batches.with_inputs(
            [self.samples.with_inputs(list(map(_Numbered, parts, firsts)))]
        )
        counts = self.samples.requested_counts.tolist()
        repeats = (counts / np.maximum(self.samples_per_stream, 1)).tolist()
        _set_quotas(self.streams, counts, repeats)
        whole = all(map(float.is_integer, repeats))
        self._alike = not shuffle and (whole or sampling_method == "fixed")
        self._place = SharedPlace()
        self._delivered = 0
        self._context = ReadContext(failures=failures)
        self._failures = FailureLog(failures.budget)
        self._read_for: tuple[int, Any] | None = None

    def batches(
        self, batcher: Callable[[list[Any]], T] | None = None
    ) -> ComposedDataset[T]:
        """Return the device batches of all ranks in turn, each `batcher(samples)` or a
        list, of samples as they are stored.
        """
        kind = type(self)
        changed = kind.__getitem__, kind.get_item
        if changed != (StreamingDataset.__getitem__, StreamingDataset.get_item):
            text = (
                "batches() has samples as they are stored; __getitem__ is for the "
                "batcher to do"
            )
            said_once(kind.__name__, "batches", text, logging.WARNING)
        return ComposedDataset(self._pairs, batcher=batcher, **self._settings)

    @property
    def size(self) -> int:
        """Samples of all streams: those that `dataset[i]` has."""
        return self._stored.size

    num_samples = size

    @property
    def shards(self) -> list[Shard]:
        """The shards of all streams."""
        sources = self.samples.sources
        pairs = ((getattr(e, "shards", ()), getattr(e, "counts", ())) for e in sources)
        return [
            Shard(*each)
            for names, counts in pairs
            for each in zip(names, counts, strict=True)
        ]

    @property
    def num_shards(self) -> int:
        """The shards of all streams."""
        return len(self.shards)

    @property
    def next_epoch(self) -> int:
        """The number of the epoch that the next iteration begins, or goes on in; it can
        be set.
        """
        return self._place.start[0] // self.epoch_size + (not self._place.waiting)

    @next_epoch.setter
    def next_epoch(self, epoch: int) -> None:
        self._place.set((checked_whole(epoch, "next_epoch", 0) * self.epoch_size, 0))

    def __len__(self) -> int:
        """Samples of an epoch on this rank, padding among them."""
        mixed = self.samples.composition
        ranks = self._ranks.world_size
        before = mixed.batches // ranks - 1
        first, end = mixed.bounds(np.array([before * ranks + self._ranks.rank]))
        return before * mixed.batch_size + max(1, int(end[0] - first[0]))

    def __getitem__(self, at: Any) -> Any:
        """Return a sample of all streams, or a list of those of a slice or a list of
        numbers.
        """
        if isinstance(at, slice):
            return [self[each] for each in range(*at.indices(self.size))]
        if isinstance(at, list | np.ndarray):
            return [self[int(each)] for each in at]
        number = int(at) + self.size if at < 0 else int(at)
        if not 0 <= number < self.size:
            raise IndexError(f"sample {at} of {self.size}")
        return self.get_item(number)

    def get_item(self, sample_id: int, retry: int = 7) -> Any:
        """Return the sample of a number from 0 on, as it is stored, or a substitute for
        a damaged one; `retry` has no use.
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
        """Yield the samples of this rank from `start` to the end of its epoch, as
        `__getitem__` of a subclass makes them; in a worker of a DataLoader, those of
        every so many-th device batch.
        """
        world = self._ranks.world_size
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        epoch, taken = divmod(start, self.epoch_size)
        batch, given = divmod(taken // world, self._device)
        first = (
            batch * world
            if self._alike
            else batch * world + epoch * self._numbered.size
        )
        lane = Lane(self._ranks.rank + world * worker, world * workers)
        reading = self._reading()
        for pairs in self._numbered.open(lane, {"position": first}, reading):
            for pair in pairs if worker else pairs[given:]:
                self._delivered += 1
                self._read_for = pair
                item = self[pair[0]]
                self._read_for = None
                yield item
            given = 0
        self._failures.conclude()

    def state_dict(
        self, num_samples: int | None = None, from_beginning: bool = True
    ) -> State:
        """Return where the current epoch stands: a small dict, JSON-able, the same on
        all ranks.

        `num_samples`: how many samples all ranks together have taken of it, counted
        from its beginning, or else from where this iteration started; more than the
        epoch has, as where padding is counted too, is its end. By default as many as
        were iterated over in this process; it has to be said when DataLoader's workers
        read.
        """
        size = self.epoch_size
        ranks = self._ranks.world_size
        epoch, taken = divmod(self._place.start[0], size)
        if num_samples is not None:
            taken = num_samples if from_beginning else taken + num_samples
        elif self._place.in_workers:
            raise StateError(
                "how many samples were taken from DataLoader's workers is only known "
                "outside: state_dict(num_samples=batches * batch_size * ranks), or a "
                "StreamingDataLoader"
            )
        else:
            taken += self._delivered * ranks
        taken = (
            size if taken // ranks >= len(self) else taken
        )  # of a last batch, ranks differ
        return packed_state(self.samples, {"position": epoch * size + min(taken, size)})

    def load_state_dict(self, state: State) -> None:
        """Start the next iteration at a saved state; one of an epoch's end starts the
        next epoch.

        Raise `StateMismatchError` naming what differs when it was saved over other
        streams or settings, `StateError` when it cannot be used.
        """
        position = counter_field(unpacked_state(self.samples, state), "position")
        self._place.set((position, 0))
        self._delivered = 0


def _replicated(ranks: Ranks, alike: int) -> Ranks:
    """Return the rank of this process, where so many in a row count as one."""
    if ranks.world_size % checked_whole(alike, "replication", 1):
        raise ConfigError(
            f"StreamingDataset: replication={alike} does not divide the "
            f"{ranks.world_size} ranks"
        )
    return Ranks(ranks.rank // alike, ranks.world_size // alike)


class StreamingDataLoader(DataLoader[Any]):
    """A DataLoader of torch over a `StreamingDataset` that counts what it has
    delivered, so that it has a state, with worker processes, too.

    A state goes on with any number of ranks and workers. Raises `ConfigError` for the
    state of another dataset.

    >>> import tempfile
    >>> from energize import prepare, write_shards
    >>> folder = tempfile.mkdtemp()
    >>> _ = write_shards([{"__key__": str(n), "txt": str(n)} for n in range(6)], folder)
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
    """How many samples this rank was given since the iteration began."""

    def __iter__(self) -> Any:
        self.num_samples_yielded = 0
        for batch in super().__iter__():
            self.num_samples_yielded += _batch_size(batch)
            yield batch

    def state_dict(self) -> State:
        """Return the state after the last batch, the same on all ranks."""
        dataset = self._streaming()
        if self.num_workers > 1 and self.batch_size != dataset._device:
            raise StateError(
                f"workers take turns in batches of {dataset._device}, this loader's "
                "hold "
                f"{self.batch_size}; give dataset and loader the same batch_size"
            )
        ranks = dataset._ranks.world_size
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
                "StreamingDataLoader has the state of a StreamingDataset; the dataset "
                "is a "
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
