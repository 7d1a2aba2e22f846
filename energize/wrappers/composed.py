"""Device batches of global batches that are composed of several streams."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import cached_property, partial
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from energize.arrays import Int64Array
from energize.errors import ConfigError
from energize.numbers import checked_batch_size
from energize.order.epochs.arranging import EpochOrder
from energize.order.epochs.composition import Composition
from energize.reading import MAX_ATTEMPTS, Failed, Reading
from energize.refs import Refs
from energize.sample_weights import carried, zeroed
from energize.wrappers.batch import BatchDataset
from energize.wrappers.calling import Call, Seeding, keyed_calls, seeding_of
from energize.wrappers.checks import checked_flag, raised_as
from energize.wrappers.mix_batch import same
from energize.wrappers.quota import QuotaDataset, QuotaPair
from energize.wrappers.routed import indexed_inputs

T_co = TypeVar("T_co", covariant=True)
T_batch_co = TypeVar("T_batch_co", covariant=True)

_NAMED = 8
"""How many streams a message lists."""

_log = logging.getLogger("energize")


class ComposedSamples(QuotaDataset[T_co]):
    """The samples of `ComposedDataset`, one by one, in the order of its batches.

    Raises what `QuotaDataset` and `ComposedDataset` raise.

    >>> from energize import ListSource
    >>> samples = ComposedSamples(
    ...     ListSource("aaaa"), ListSource("bbbb"), batch_size=2, batching_method="per_stream"
    ... )
    >>> sorted(samples[0] + samples[1]) in (["a", "a"], ["b", "b"])
    True
    """

    batching_method: str
    batch_size: int
    global_batch_size: int
    drop_last: bool

    def __init__(
        self,
        *streams: QuotaPair | Iterable[QuotaPair],
        batch_size: int,
        global_batch_size: int | None = None,
        batching_method: str = "random",
        epoch_size: int | str | None = None,
        sampling_method: str = "balanced",
        shuffle: bool = False,
        drop_last: bool = False,
    ) -> None:
        owner = type(self).__name__
        whole = batch_size if global_batch_size is None else global_batch_size
        self._set_up(
            streams,
            epoch_size,
            sampling_method,
            shuffle,
            batching_method=batching_method,
            batch_size=checked_batch_size(batch_size, f"{owner}: batch_size"),
            global_batch_size=checked_batch_size(whole, f"{owner}: global_batch_size"),
            drop_last=checked_flag(drop_last, "drop_last", owner),
        )

    @cached_property
    def composition(self) -> Composition:
        """How an epoch is cut into global batches and device batches."""
        return Composition(
            self._asked,
            self.batching_method,
            self.batch_size,
            self.global_batch_size,
            key=self.key,
            drop_last=self.drop_last,
            label=self._stream_label,
        )

    @cached_property
    def _counts(self) -> Int64Array:
        return self.composition.totals

    @cached_property
    def _arrangement(self) -> EpochOrder:
        return self.composition

    def settings(self) -> dict[str, Any]:
        """Only what decides which samples come: not how a batch is divided among devices."""
        settings = super().settings() | {"samples": self.size}
        if self.batching_method != "device_per_stream":
            del settings["batch_size"]
        return settings

    def _report(self, asked: Int64Array) -> None:
        super()._report(asked)
        left = asked - self._counts
        streams = np.flatnonzero(left).tolist()
        if streams:
            named = [
                f"{left[each]} of {asked[each]} of {self._stream_label(each)}"
                for each in streams[:_NAMED]
            ]
            more = [f"{left.sum()} in all"] if len(streams) > _NAMED else []
            _log.warning(
                "%r batches of %d leave samples out of every epoch, %s: %s",
                self.batching_method,
                self.global_batch_size,
                "the same ones" if self.sampling_method == "fixed" else "others in each",
                ", ".join(named + more),
            )
        self._report_rare(asked)

    def _report_rare(self, asked: Int64Array) -> None:
        rare = self.composition.rare
        if rare:
            total, least = int(asked.sum()), min(int(asked[each]) for each in rare)
            named = [f"{self._stream_label(each)} ({asked[each]})" for each in rare[:_NAMED]]
            more = [f"{len(rare)} streams in all"] if len(rare) > _NAMED else []
            _log.warning(
                "'stratified' batches of %d hold less than half a sample of the %d in an epoch of "
                "these streams, which come in some batches only: %s. Batches of %d would hold all",
                self.global_batch_size,
                total,
                ", ".join(named + more),
                -(-total // (2 * least)),
            )


class ComposedDataset(BatchDataset[T_batch_co]):
    """Device batches whose global batches are composed of several datasets as
    `batching_method` says.

    A global batch of `global_batch_size` samples, by default `batch_size`, is that many divided by
    `batch_size` consecutive items, one for each rank. With `batcher`, items are
    `batcher(samples)`; by default the list of samples. Datasets, quotas, `epoch_size`,
    `sampling_method` and `shuffle` are those of `QuotaDataset`; where the datasets are mixed, it is
    at random even without `shuffle`.

    - "random": each sample is of a random stream; shares hold over some tens of batches.
    - "in_turn": one dataset after the other.
    - "stratified": every global batch holds the shares. What does not go into whole samples is
      carried on: after k batches each stream is within 1.68 samples of its share. One with less
      than half a sample in a batch is logged, as it is in some batches only.
    - "per_stream": a global batch is of one stream.
    - "device_per_stream": a device batch is of one stream, and global batches hold the shares in
      device batches.

    An epoch is a whole number of global batches, so all ranks make the same number of steps. With
    "random", "in_turn" and "stratified" the last one takes what is left, in device batches that
    differ by one sample at most, unless `drop_last`. Samples that are left out, because they fill
    no batch, are logged; `counts()` are those that come. With sampling_method "balanced" they are
    others in every epoch. Epochs and global batches are the same however these are divided among
    devices, but those of "device_per_stream".

    `pad` is for a last global batch of fewer samples than devices. It makes a copy of a sample that
    counts nothing, with loss weight 0, and leaves the sample itself as it is. Device d of one that
    would get none of r samples gets a batch of one such copy, of sample d mod r. Padding is no
    sample: `counts`, `consumed` and `refs` leave it out.

    Raises what `QuotaDataset` raises, and `ConfigError` for an unknown method, for sizes that do
    not divide, when a batch cannot hold the streams (the message has the size that can), and when
    the last batch needs `pad` and there is none.

    >>> from energize import ListSource
    >>> batches = ComposedDataset(
    ...     ListSource("aaaaaa"), ListSource("bb"), batch_size=4, batching_method="stratified"
    ... )
    >>> ["".join(sorted(batch)) for batch in batches]
    ['aaab', 'aaab']
    """

    changes_no_sample = ("pad",)

    pad: Callable[[Any], Any] | None

    def __init__(
        self,
        *streams: QuotaPair | Iterable[QuotaPair],
        batch_size: int,
        global_batch_size: int | None = None,
        batching_method: str = "random",
        batcher: Callable[[list[Any]], T_batch_co] | None = None,
        epoch_size: int | str | None = None,
        sampling_method: str = "balanced",
        shuffle: bool = False,
        drop_last: bool = False,
        pad: Callable[[Any], Any] | None = None,
    ) -> None:
        owner = type(self).__name__
        if pad is not None and not callable(pad):
            raise ConfigError(f"{owner}: pad is a function of a sample, or None; got {pad!r}")
        with raised_as(owner, "ComposedSamples"):
            samples: ComposedSamples[Any] = ComposedSamples(
                *streams,
                batch_size=batch_size,
                global_batch_size=global_batch_size,
                batching_method=batching_method,
                epoch_size=epoch_size,
                sampling_method=sampling_method,
                shuffle=shuffle,
                drop_last=drop_last,
            )
        make: Callable[[list[Any]], Any] = same if batcher is None else batcher
        if samples.composition.idle and pad is None:
            raise ConfigError(_unshared(owner, samples.composition))
        self._set_up(samples, batch_size, make, samples.drop_last, pad=pad)

    def counts(self) -> list[int]:
        """The samples that each dataset gives to an epoch."""
        return self.samples.counts()

    @property
    def global_batch_size(self) -> int:
        """Samples of a global batch."""
        return self.samples.global_batch_size

    @property
    def samples(self) -> ComposedSamples[Any]:
        """The samples, one by one, in the order of the batches; padding is none of them."""
        return cast("ComposedSamples[Any]", indexed_inputs(self)[0])

    @cached_property
    def size(self) -> int:
        return self.samples.composition.batches

    def _members(self, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        epoch, at = np.divmod(positions, self.size)
        first, end = self.samples.composition.bounds(at)
        empty = first == end
        if empty.any():
            first = np.where(empty, self.samples.composition.lent(at), first)
            end = np.where(empty, first + 1, end)
        batch = np.repeat(np.arange(len(positions)), end - first)
        before = np.cumsum(end - first) - (end - first)
        offset = np.arange(len(batch)) - before[batch]
        return epoch[batch] * self.samples.size + first[batch] + offset, batch

    def padding(self, positions: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """For each of any positions whether its batch is padding."""
        at = np.asarray(positions, dtype=np.int64) % self.size
        first, end = self.samples.composition.bounds(at)
        return np.equal(first, end)

    def refs(self, positions: Int64Array, attempt: int = 0) -> Refs:
        members, batch = self._members(positions)
        drawn = ~self.padding(positions)[batch]
        refs = self.samples.refs(members[drawn], attempt * MAX_ATTEMPTS)
        return refs.grouped(batch[drawn])

    def _made(
        self, call: Call, samples: list[Any], word: int, position: int, reading: Reading
    ) -> T_batch_co | Failed:
        if self.pad is not None and self.padding([position])[0]:
            with keyed_calls(self.pad, reading, self.pad_seeding, carried) as pad:
                made = pad(samples[0], word, partial(self._lender, position, reading.attempt))
            if type(made) is Failed:
                return made
            batch = super()._made(call, [made], word, position, reading)
            return batch if type(batch) is Failed else zeroed(batch)
        return super()._made(call, samples, word, position, reading)

    @cached_property
    def pad_seeding(self) -> Seeding:
        """Where `pad` draws its random numbers from."""
        return Seeding.NONE if self.pad is None else seeding_of(self.pad)

    def _lender(self, position: int, attempt: int) -> str:
        """Where the sample lies that padding is a copy of, for messages."""
        members, _ = self._members(np.array([position], dtype=np.int64))
        where = self.samples.where(int(members[0]), attempt * MAX_ATTEMPTS)
        return f"padding, a copy of {where}"

    def taken(self, n: int) -> None:
        """Not for others to take: batches and their samples are one order."""

    def consumed(self, n: int) -> Int64Array:
        epoch, batch = divmod(n, self.size)
        first, _ = self.samples.composition.bounds(np.array([batch], dtype=np.int64))
        return self.samples.consumed(epoch * self.samples.size + int(first[0]))


def _unshared(owner: str, mixed: Composition) -> str:
    return (
        f"{owner}: an epoch of {mixed.size} samples leaves {mixed.remainder} for its last global "
        f"batch, too few for {mixed.devices} devices. Use drop_last=True to leave samples out, the "
        "same however batches are divided; pad=... to give the other devices copies that count "
        "nothing; or batches of another size"
    )
