"""MosaicML Streaming's words for mixing: folders with quotas, epochs of composed batches."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import numpy as np
from torch.utils.data import IterableDataset, get_worker_info

from energize.compat.torch_data import Place, SharedPlace
from energize.core.checks import checked_choice, checked_whole, raised_as
from energize.core.dataset import IndexedDataset
from energize.core.lanes import WorkerConfig
from energize.core.stream import State, counter_field
from energize.core.validation import short
from energize.data.mds import INDEX, MdsSource
from energize.data.nv_meta import META_FOLDER
from energize.data.webdataset import WebdatasetSource
from energize.datasets.quota import ComposedDataset, ComposedSamples
from energize.datasets.transform import MapDataset
from energize.errors import ConfigError, DatasetNotFoundError, StateError
from energize.loader.state import packed_state, unpacked_state
from energize.order.quota import Quota
from energize.task.load import SampleDecoder

__all__ = ["Stream", "StreamingDataset", "StreamsRegistry", "streams_registry"]

T = TypeVar("T")

_DEFAULT_SPLIT = "train"

_READ_AHEAD = 64
"""Samples that are read at a time, where batches are smaller."""

_log = logging.getLogger("energize")


@dataclass(kw_only=True, eq=False)
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

    remote: str | None = None
    local: str | None = None
    split: str | None = None
    proportion: float | None = None
    repeat: float | None = None
    choose: int | None = None

    def __post_init__(self) -> None:
        if not self.remote and not self.local:
            raise ConfigError("Stream: give local, the folder of the data, or remote")
        _ = self.quota  # which is checked when it is made

    @property
    def quota(self) -> Quota:
        """How much of it an epoch takes."""
        with raised_as(f"Stream {str(self.local or self.remote)!r}", "a quota"):
            return Quota(proportion=self.proportion, repeat=self.repeat, choose=self.choose)

    def samples(self, *, split: str = "", seed: int = 0) -> IndexedDataset[Any]:
        """Return the samples, in the order in which they are stored.

        `split` is the one to take when the stream names none. Raise `DatasetNotFoundError` when
        there are no data at the paths, and what the sources of the folders raise.
        """
        split = self.split or split
        url = urlsplit(self.remote or "")
        given = [self.local, unquote(url.path) if url.scheme == "file" else self.remote]
        folders = [Path(each) for each in given if each and "://" not in each]
        for folder in folders:
            if (folder / split / INDEX).exists():
                return MdsSource(folder, split=split, seed=seed)
            if (folder / META_FOLDER).exists():
                source = WebdatasetSource(folder, split_part=split or _DEFAULT_SPLIT, seed=seed)
                return MapDataset(source, SampleDecoder(image_decode="pil"), seeded=False)
        raise DatasetNotFoundError(
            f"no data at {' or '.join(map(str, folders)) or 'local'}, split {split!r}: a folder of "
            f"MDS shards has an {INDEX}, one of tar shards a {META_FOLDER}, which `energize "
            f"prepare` makes; nothing is downloaded, so copy {self.remote or 'the data'} there"
        )


class StreamsRegistry(dict[str, Callable[..., Stream]]):
    """Kinds of streams, or functions that make one, by name.

    >>> kinds = StreamsRegistry()
    >>> kinds.register("mine", func=Stream)
    >>> kinds["mine"].__name__
    'Stream'
    """

    def register(self, name: str, *, func: Callable[..., Stream]) -> None:
        """Know `func` by `name`."""
        self[name] = func


# Programs register their streams in it, once, by the name that configurations use for them.
streams_registry = StreamsRegistry(stream=Stream)


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

    def __init__(
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
        pad: Callable[[Any], Any] | None = None,
        stream_name: str = "stream",
        stream_config: Mapping[str, Any] | None = None,
    ) -> None:
        if bool(streams) == bool(remote or local) or (streams and stream_config):
            raise ConfigError(
                "StreamingDataset: give either streams=[Stream(...), ...] or the paths of a single "
                "one, local and remote, and its stream_config"
            )
        if not streams:
            kind = streams_registry[checked_choice(stream_name, "stream_name", streams_registry)]
            paths = {"remote": remote, "local": local, "split": split}
            streams = [kind(**{**(stream_config or {}), **paths})]
        if not all(isinstance(each, Stream) for each in streams):
            raise ConfigError(
                f"StreamingDataset: streams is a list of Stream; got {short(streams)}"
            )
        self.streams = tuple(streams)
        if batch_size is None and batching_method != "random":
            raise ConfigError(
                f"StreamingDataset: batching_method={batching_method!r} puts batches together; say "
                "with batch_size of how many samples on each rank"
            )
        seed = checked_whole(shuffle_seed, "StreamingDataset: shuffle_seed", 0)
        self._ranks = WorkerConfig().ranks()
        self.batch_size = 1 if batch_size is None else batch_size
        in_turn = batching_method == "random" and not shuffle
        if in_turn and len(self.streams) > 1:
            _log.warning(
                "StreamingDataset: without shuffle the %d streams come one after the other; "
                "shuffle=True or batching_method='stratified' mixes them",
                len(self.streams),
            )
        if drop_last is None:
            drop_last = batch_size is None and pad is None
        self._pairs = [(e.samples(split=split or "", seed=seed), e.quota) for e in self.streams]
        self._settings: dict[str, Any] = {
            "batch_size": self.batch_size,
            "global_batch_size": self.batch_size * self._ranks.world_size,
            "batching_method": "in_turn" if in_turn else batching_method,
            "epoch_size": epoch_size,
            "sampling_method": sampling_method,
            "shuffle": shuffle,
            "drop_last": drop_last,
            "pad": pad,
        }
        with raised_as("StreamingDataset", "ComposedDataset"):
            self._batches: ComposedDataset[list[Any]] = self.batches()
        self.samples: ComposedSamples[Any] = self._batches.samples
        self._place = SharedPlace()
        self._delivered = 0

    def batches(self, batcher: Callable[[list[Any]], T] | None = None) -> ComposedDataset[T]:
        """Return the device batches of all ranks in turn, each `batcher(samples)` or a list."""
        return ComposedDataset(self._pairs, batcher=batcher, **self._settings)

    @property
    def size(self) -> int:
        """Samples of an epoch, on all ranks together, without padding."""
        return self.samples.size

    def __len__(self) -> int:
        """Samples of an epoch on this rank, padding among them."""
        mixed, ranks = self.samples.composition, self._ranks.world_size
        before = mixed.batches // ranks - 1
        first, end = mixed.bounds(np.array([before * ranks + self._ranks.rank]))
        return before * mixed.batch_size + max(1, int(end[0] - first[0]))

    def __iter__(self) -> Iterator[Any]:
        place = self._place.begin(self._next_epoch)
        self._delivered = 0
        return iter(()) if place is None else self._read(place[0])

    def _next_epoch(self, place: Place) -> Place:
        return (place[0] // self.size + 1) * self.size, 0

    def _read(self, start: int) -> Iterator[Any]:
        """Yield the samples of this rank from `start` to the end of its epoch; in a worker of a
        DataLoader, those of every so many-th device batch.
        """
        mixed, ranks, info = self.samples.composition, self._ranks, get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        epoch, taken = divmod(start, self.size)
        batch, given = divmod(taken // ranks.world_size, self.batch_size)
        mine = range(ranks.rank + batch * ranks.world_size, mixed.batches, ranks.world_size)
        mine, some = mine[worker::workers], max(1, _READ_AHEAD // self.batch_size)
        for at in range(0, len(mine), some):
            first, end = mixed.bounds(np.array(mine[at : at + some]))
            if at == 0 and worker == 0:
                first[0] += given
            numbers = np.concatenate([np.arange(*ends) for ends in zip(first, end, strict=True)])
            for sample in self.samples.at(epoch * self.size + numbers):
                self._delivered += 1
                yield sample
        if mine and self._batches.padding(mine[-1:])[0]:
            self._delivered += 1
            yield from self._batches.at([epoch * mixed.batches + mine[-1]])[0]

    def state_dict(self, num_samples: int | None = None, from_beginning: bool = True) -> State:
        """Return where the current epoch stands: a small dict, JSON-able, the same on all ranks.

        `num_samples`: how many samples all ranks together have taken of it, counted from its
        beginning, or else from where this iteration started; more than the epoch has, as where
        padding is counted too, is its end. By default as many as were iterated over in this
        process; it has to be said when DataLoader's workers read.
        """
        size, ranks = self.size, self._ranks.world_size
        epoch, taken = divmod(self._place.start[0], size)
        if num_samples is not None:
            taken = num_samples if from_beginning else taken + num_samples
        elif self._place.in_workers:
            raise StateError(
                "how many samples were taken from DataLoader's workers is only known outside: "
                "state_dict(num_samples=batches * batch_size * ranks)"
            )
        elif taken // ranks + self._delivered >= len(self):
            taken = size
        else:
            taken += self._delivered * ranks
        return packed_state(self.samples, {"position": epoch * size + min(taken, size)})

    def load_state_dict(self, state: State) -> None:
        """Start the next iteration at a saved state; one of an epoch's end starts the next epoch.

        Raise `StateMismatchError` naming what differs when it was saved over other streams or
        settings, `StateError` when it cannot be used.
        """
        position = counter_field(unpacked_state(self.samples, state), "position")
        self._place.set((position, 0))
        self._delivered = 0
