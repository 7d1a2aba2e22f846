"""Streams as one dataset for torch's DataLoader."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from pydantic import InstanceOf, SkipValidation, StrictBool
from torch.utils.data import IterableDataset

from energize.compat.checks import Count, Whole, checked
from energize.compat.shared_place import Pass, Place, SharedPlace
from energize.compat.streaming.stream import Stream, streams_registry
from energize.cursor import State, counter_field
from energize.errors import ConfigError, StateError
from energize.loader.state import packed_state, unpacked_state
from energize.topology import WorkerConfig
from energize.wrappers.checks import raised_as
from energize.wrappers.composed import ComposedDataset, ComposedSamples

T = TypeVar("T")

_READ_AHEAD = 64

_log = logging.getLogger("energize")


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
