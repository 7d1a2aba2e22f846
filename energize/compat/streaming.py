"""Streams: folders of samples with a quota, and the kinds of them by name."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import numpy as np
from pydantic import InstanceOf, SkipValidation, StrictBool
from torch.utils.data import IterableDataset

from energize.compat.checks import Count, Whole, checked, checked_fields
from energize.compat.torch_data import Pass, Place, SharedPlace
from energize.core.checks import raised_as
from energize.core.dataset import IndexedDataset
from energize.core.lanes import WorkerConfig
from energize.core.stream import State, counter_field
from energize.data.mds import INDEX, MdsSource
from energize.data.webdataset import WebdatasetSource
from energize.datasets.quota import ComposedDataset, ComposedSamples
from energize.datasets.transform import MapDataset
from energize.errors import ConfigError, DatasetNotFoundError, StateError, nearest
from energize.loader.state import packed_state, unpacked_state
from energize.order.quota import Quota
from energize.task.decode import SampleDecoder

__all__ = ["Stream", "StreamingDataset", "StreamsRegistry", "streams_registry"]


_META = ".nv-meta"
_DEFAULT_SPLIT = "train"

_log = logging.getLogger("energize")


@checked_fields
@dataclass(kw_only=True, eq=False, repr=False)
class Stream:
    """A folder of samples and how much of it an epoch takes.

    The folder is `local` when there are data, else `remote`, which is a path or a file:// URL:
    nothing is downloaded. It holds MDS shards (in the subfolder `split`), or is a folder prepared
    by `energize prepare` (of which `split` names the part, by default "train"). Samples are dicts
    of decoded columns or parts; images are Pillow images.

    `proportion`, `repeat` and `choose` are those of `Quota`. To change what a stream reads,
    override `samples` in a subclass.

    Raises `ConfigError` when neither path is given, `WeightError` for quotas that cannot be used.
    """

    remote: SkipValidation[str | None] = None
    local: SkipValidation[str | None] = None
    split: str | None = None
    proportion: SkipValidation[float | None] = None
    repeat: SkipValidation[float | None] = None
    choose: SkipValidation[int | None] = None

    def __post_init__(self) -> None:
        if not self.remote and not self.local:
            raise ConfigError("Stream: give local, the folder of the data, or remote")
        self.split = self.split or ""
        _ = self.quota  # which is checked when it is made

    @property
    def quota(self) -> Quota:
        """How much of it an epoch takes."""
        with raised_as(f"Stream {str(self.local or self.remote)!r}", "a quota"):
            return Quota(proportion=self.proportion, repeat=self.repeat, choose=self.choose)

    def __repr__(self) -> str:
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        shown = [f"{name}={value!r}" for name, value in given.items() if value not in {None, ""}]
        return f"{type(self).__name__}({', '.join(shown)})"

    def samples(self, *, split: str = "", seed: int = 0) -> IndexedDataset[Any]:
        """The samples, in the order in which they are stored.

        `split` is the one to take when the stream names none. Raises `DatasetNotFoundError` when
        there are no data at the paths, and what the sources of the folders raise.
        """
        split = self.split or split
        folder = self._folder(split)
        if (folder / split / INDEX).exists():
            return MdsSource(folder, split=split, seed=seed)
        source = WebdatasetSource(folder, split_part=split or _DEFAULT_SPLIT, seed=seed)
        return MapDataset(source, SampleDecoder(image_decode="pil"), seeded=False)

    def _folder(self, split: str) -> Path:
        """The first of the two folders that has data."""
        places = [Path(self.local)] if self.local else []
        distant = _is_distant(self.remote)
        if self.remote and not distant:
            places.append(_path_of(self.remote))
        for place in places:
            if (place / split / INDEX).exists() or (place / _META).exists():
                if distant:
                    _log.info("%s is read from %s; nothing is downloaded", self.remote, place)
                return place
        if distant:
            raise DatasetNotFoundError(
                f"{self.remote} is remote storage, which energize.compat.streaming does not read "
                f"yet, and local={self.local!r} has no data: copy the folder there"
            )
        raise DatasetNotFoundError(
            f"no data at {' or '.join(map(str, places))}"
            f"{f', split {split!r}' if split else ''}: a folder of MDS shards has an {INDEX}, one "
            f"of tar shards a {_META}, which `energize prepare` makes"
        )


def _is_distant(remote: str | None) -> bool:
    return bool(remote) and "://" in str(remote) and urlsplit(str(remote)).scheme != "file"


def _path_of(remote: str) -> Path:
    return Path(unquote(urlsplit(remote).path) if remote.startswith("file://") else remote)


class StreamsRegistry(dict[str, Callable[..., Stream]]):
    """Kinds of streams, or functions that make one, by name.

    >>> kinds = StreamsRegistry({"stream": Stream})
    >>> @kinds.register("mine")
    ... class MyStream(Stream): ...
    >>> kinds.get("mine").__name__
    'MyStream'
    """

    def register(self, name: str, *, func: Callable[..., Stream] | None = None) -> Any:
        """Know `func` by `name`; without it, a decorator that does."""
        if func is None:
            return lambda given: self.register(name, func=given)
        if not callable(func):
            raise ConfigError(
                f"stream {name!r} is a subclass of Stream or a function; got {func!r}"
            )
        self[name] = func
        return func

    def get(self, name: str) -> Callable[..., Stream]:  # type: ignore[override]  # no default
        """What is known by `name`; `ConfigError` when nothing is."""
        if name not in self:
            raise ConfigError(
                f"no stream is registered as {name!r}{nearest(name, list(self)) or '.'} "
                f"Known: {', '.join(self)}"
            )
        return self[name]

    def get_all(self) -> dict[str, Callable[..., Stream]]:
        """All that are known, by their names."""
        return dict(self)


# Programs register their streams in it, once, by the name that configurations use for them.
streams_registry = StreamsRegistry({"stream": Stream})


# Streams as one dataset for torch's DataLoader.

T = TypeVar("T")

_READ_AHEAD = 64


class StreamingDataset(IterableDataset[Any]):
    """The samples of several streams in the proportions of their quotas, epoch after epoch.

    Either `streams`, or `remote` and `local` of a single one of the kind `stream_name`, which gets
    `stream_config` too. Quotas, `epoch_size` and `sampling_method` are those of `QuotaDataset`,
    `batching_method` those of `ComposedDataset`, over global batches of `batch_size` samples on
    each rank. Without `shuffle`, the method "random" takes one stream after the other, each in its
    order.

    Every iteration yields this rank's samples of one epoch, and the next one those of the next,
    also in the workers of a DataLoader, each of which gives whole device batches in turn: give
    DataLoader the same `batch_size`. The samples of a global batch are the same for every number of
    ranks and workers when its size is.

    `drop_last` and `pad` are those of `ComposedDataset`: every rank has the same number of batches,
    and one that gets no sample of an epoch's last batch gets one that `pad` makes. Given neither
    `batch_size` nor `pad`, `drop_last` is True by default: ranks leave out what they cannot share
    evenly.

    `samples` is the dataset that is read, of the samples of all ranks; `batches()` makes the one of
    device batches, for `get_loader`.

    Raises what these datasets raise, and `ConfigError` for streams beside paths, or neither.
    """

    @checked
    def __init__(
        self,
        *,
        streams: Sequence[InstanceOf[Stream]] | None = None,
        remote: SkipValidation[str | None] = None,
        local: SkipValidation[str | None] = None,
        split: str | None = None,
        epoch_size: SkipValidation[int | str | None] = None,
        batching_method: str = "random",
        batch_size: Count | None = None,
        sampling_method: str = "balanced",
        shuffle: StrictBool = False,
        shuffle_seed: Whole = 9176,
        drop_last: StrictBool | None = None,
        pad: Callable[[Any], Any] | None = None,
        stream_name: str = "stream",
        stream_config: Mapping[str, Any] | None = None,
    ) -> None:
        paths = {"remote": remote, "local": local, "split": split}
        self.streams = _streams(streams, paths, stream_name, stream_config or {})
        if batch_size is None and batching_method != "random":
            raise ConfigError(
                f"StreamingDataset: batching_method={batching_method!r} puts batches together; say "
                "with batch_size of how many samples on each rank"
            )
        self.world = WorkerConfig().ranks()
        self.batch_size = 1 if batch_size is None else batch_size
        self._pairs = [
            (each.samples(split=split or "", seed=shuffle_seed), each.quota)
            for each in self.streams
        ]
        in_turn = batching_method == "random" and not shuffle
        if in_turn and len(self.streams) > 1:
            _log.warning(
                "StreamingDataset: without shuffle the %d streams come one after the other; "
                "shuffle=True or batching_method='stratified' mixes them",
                len(self.streams),
            )
        if drop_last is None:
            drop_last = batch_size is None and pad is None
        self._settings: dict[str, Any] = {
            "batch_size": self.batch_size,
            "global_batch_size": self.batch_size * self.world.world_size,
            "batching_method": "in_turn" if in_turn else batching_method,
            "epoch_size": epoch_size,
            "sampling_method": sampling_method,
            "shuffle": shuffle,
            "drop_last": drop_last,
            "pad": pad,
        }
        with raised_as("StreamingDataset", "ComposedDataset"):
            self._all: ComposedDataset[list[Any]] = self.batches()
        self.samples: ComposedSamples[Any] = self._all.samples
        self._position = SharedPlace((0,))
        self._delivered = 0

    def __repr__(self) -> str:
        return f"StreamingDataset(streams={list(self.streams)!r})"

    def batches(self, batcher: Callable[[list[Any]], T] | None = None) -> ComposedDataset[T]:
        """The device batches of all ranks in turn, each `batcher(samples)` or a list."""
        return ComposedDataset(self._pairs, batcher=batcher, **self._settings)

    @property
    def size(self) -> int:
        """Samples of an epoch, on all ranks together, without padding."""
        return self.samples.size

    def __len__(self) -> int:
        """Samples of an epoch on this rank, padding among them."""
        mixed, ranks = self.samples.composition, self.world.world_size
        before = mixed.batches // ranks - 1
        first, end = mixed.bounds(np.array([before * ranks + self.world.rank]))
        return before * mixed.batch_size + max(1, int(end[0] - first[0]))

    def __iter__(self) -> Iterator[Any]:
        self._delivered = 0
        for sample in self._read(self._position.begin(self._next_epoch)):
            self._delivered += 1
            yield sample

    def _next_epoch(self, place: Place) -> Place:
        return ((place[0] // self.size + 1) * self.size,)

    def _read(self, run: Pass) -> Iterator[Any]:
        """The samples of this rank from the start of a pass to the end of its epoch, of every
        `run.workers`-th device batch; some batches are read at a time.
        """
        mixed, ranks = self.samples.composition, self.world.world_size
        epoch, taken = divmod(run.start[0], mixed.size)
        batch, begun = divmod(taken // ranks, mixed.batch_size)
        mine = range(self.world.rank + batch * ranks, mixed.batches, ranks)
        numbers = mine[run.worker :: run.workers]
        some = max(1, _READ_AHEAD // mixed.batch_size)
        for at in range(0, len(numbers), some):
            first, end = mixed.bounds(np.array(numbers[at : at + some], dtype=np.int64))
            if at == 0 and run.worker == 0:
                first[0] += begun
            samples = [np.arange(*ends) for ends in zip(first, end, strict=True)]
            yield from self.samples.at(epoch * mixed.size + np.concatenate(samples))
        if len(numbers) and self._all.padding(numbers[-1:])[0]:
            yield from self._all.at([epoch * mixed.batches + numbers[-1]])[0]

    def state_dict(self, num_samples: int | None = None, from_beginning: bool = True) -> State:
        """Where the current epoch stands: a small dict, JSON-able, the same on all ranks.

        `num_samples`: how many samples all ranks together have taken of it, counted from its
        beginning, or else from where this iteration started; more than the epoch has, as where
        padding is counted too, is its end. By default as many as were iterated over in this
        process; it has to be said when DataLoader's workers read.
        """
        start, size, ranks = self._position.start[0], self.size, self.world.world_size
        if num_samples is None:
            if self._position.in_workers:
                raise StateError(
                    "how many samples were taken from DataLoader's workers is only known outside: "
                    "state_dict(num_samples=batches * batch_size * ranks)"
                )
            over = start % size // ranks + self._delivered >= len(self)
            position = self._position.following[0] if over else start + self._delivered * ranks
        else:
            taken = (start // size * size if from_beginning else start) + num_samples
            position = min(taken, (start // size + 1) * size)
        return packed_state(self.samples, {"position": position})

    def load_state_dict(self, state: State) -> None:
        """Start the next iteration at a saved state; one of an epoch's end starts the next epoch.

        Raises `StateMismatchError` naming what differs when it was saved over other streams or
        settings, `StateError` when it cannot be used.
        """
        position = counter_field(unpacked_state(self.samples, state), "position")
        self._position.set((position,))
        self._delivered = 0


def _streams(
    given: Sequence[Stream] | None, paths: Mapping[str, Any], name: str, config: Mapping[str, Any]
) -> tuple[Stream, ...]:
    """The streams that are given, or the one of the kind `name` that `paths` describe."""
    if bool(given) == bool(paths["remote"] or paths["local"]):
        raise ConfigError(
            "StreamingDataset: give either streams=[Stream(...), ...] or the paths of a single "
            "one, local and remote"
        )
    if given and (name != "stream" or config):
        raise ConfigError(
            "StreamingDataset: stream_name and stream_config are for the single stream that "
            "local and remote describe; the streams given are made already"
        )
    if given:
        return tuple(given)
    kind = streams_registry.get(name)
    try:
        return (kind(**{**config, **paths}),)
    except TypeError as error:
        raise ConfigError(
            f"StreamingDataset: stream_config does not fit the stream {name!r}: {error}"
        ) from error
