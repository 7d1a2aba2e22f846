"""Streams that give fixed numbers of samples to every epoch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from energize.core.arrays import FloatArray, Int64Array
from energize.core.checks import (
    checked_batch_size,
    checked_choice,
    checked_flag,
    raised_as,
)
from energize.core.node import LoopTraits, NodeTraits, Routes, Span
from energize.core.rng import derive
from energize.core.tree import padding
from energize.data.selection import source_labels
from energize.datasets.batch import BatchDataset, members_between, same
from energize.datasets.mix import MixDataset, MixOrder
from energize.datasets.mix_args import QuotaPair, checked_streams
from energize.datasets.transform import with_equal_weighing
from energize.order.composition import BatchComposition, EpochOrder, EpochScheme
from energize.order.quota import EpochDraws, Quota, epoch_counts, epoch_size_in_samples

T_co = TypeVar("T_co", covariant=True)

SAMPLING_METHODS = ("balanced", "fixed")

_WINDOW = 4096
_NAMED = 3
"""Sources of a stream in a message."""

_log = logging.getLogger("energize")


class QuotaDataset(MixDataset[T_co]):
    """Build epochs that contain a set number of samples of each dataset.

    An epoch contains each sample of a dataset with n samples and count c either
    floor(c / n) or ceil(c / n) times. All samples are read before one is repeated.
    `counts()` returns the samples of each dataset in an epoch.

    The datasets must be unshuffled: which samples are read depends on their positions.

    Args:
        *streams: Pairs (dataset, `Quota`) or datasets without a quota, or one iterable
            of them.
        epoch_size: Samples of an epoch, such as 10_000 or "10k", which proportions
            divide. None for the number of all samples.
        sampling_method: How repeated samples are chosen. "balanced": others in
            every epoch, all equally often in the long run. "fixed": the same samples.
        shuffle: Whether every pass has a random order, and datasets are interleaved.
            Otherwise the datasets follow one another, in stored order.

    Raises:
        WeightError: If quotas cannot be combined.
        ConfigError: If `epoch_size` cannot be combined with the quotas.
        EmptyDatasetError: If a quota requires samples of an empty dataset.
        NotIndexedError: If a dataset is a stream or never ends.

    Example:
        >>> from energize import ListSource
        >>> epoch = QuotaDataset(
        ...     (ListSource("ab"), Quota(repeat=1.5)), (ListSource("xyz"), Quota())
        ... )
        >>> epoch.counts(), "".join(epoch)[:2], "".join(epoch)[3:]
        ([3, 3], 'ab', 'xyz')
    """

    order_name = "QuotaDataset"

    quotas: tuple[Quota, ...]
    epoch_size: int | None
    sampling_method: str
    shuffle: bool

    def __init__(
        self,
        *streams: QuotaPair | Iterable[QuotaPair],
        epoch_size: int | str | None = None,
        sampling_method: str = "balanced",
        shuffle: bool = False,
    ) -> None:
        self._set_up(streams, epoch_size, sampling_method, shuffle)

    def _set_up(
        self,
        streams: Sequence[QuotaPair | Iterable[QuotaPair]],
        epoch_size: int | str | None,
        sampling_method: str,
        shuffle: bool,
        **parameters: Any,
    ) -> None:
        """Check and set the parameters, including those of a subclass."""
        with raised_as(type(self).__name__):
            checked_choice(sampling_method, "sampling_method", SAMPLING_METHODS)
            pairs = checked_streams(streams)
            self.freeze(
                inputs=with_equal_weighing(dataset for dataset, _ in pairs),
                quotas=tuple(quota for _, quota in pairs),
                epoch_size=None
                if epoch_size is None
                else epoch_size_in_samples(epoch_size),
                sampling_method=sampling_method,
                shuffle=checked_flag(shuffle, "shuffle", type(self).__name__),
                **parameters,
            )
            self._report(self.requested_counts)

    def counts(self) -> list[int]:
        """Return the number of samples of each input in an epoch."""
        return [int(count) for count in self._counts]

    def due(self, items: int | None) -> FloatArray:
        """Return the requested number of items of each input among the first items.

        Args:
            items: Number of items. None for the shares.

        Returns:
            Items of each input, float64, shape (num_inputs,).
        """
        whole = 1 if items is None else items
        return self.requested_counts.astype(np.float64) * (
            whole / max(int(self.requested_counts.sum()), 1)
        )

    @cached_property
    def requested_counts(self) -> Int64Array:
        """Requested samples of each input in an epoch, int64, shape (num_inputs,)."""
        sizes = [dataset.size for dataset in self.inputs]
        return epoch_counts(
            sizes, self.quotas, self.epoch_size, label=self._stream_label
        )

    @cached_property
    def _counts(self) -> Int64Array:
        return self.requested_counts

    @cached_property
    def _arrangement(self) -> EpochOrder | BatchComposition:
        arrangement = "interleaved" if self.shuffle else "in_turn"
        return EpochOrder(arrangement, self._counts, _WINDOW, self.key)

    @cached_property
    def mix_order(self) -> MixOrder:
        draws = [
            EpochDraws(
                dataset.size,
                count,
                derive(self.key, "stream", stream),
                shuffle=self.shuffle,
                fixed=self.sampling_method == "fixed",
            )
            for stream, (dataset, count) in enumerate(
                zip(self.inputs, self.counts(), strict=True)
            )
        ]
        scheme = EpochScheme(self._arrangement, self._counts, draws)
        return MixOrder(scheme, int(self._counts.sum()), in_sequence=False)

    def _stream_label(self, stream: int) -> str:
        """Return the number of a stream and its first sources, for messages."""
        first = self.source_numbers[stream]
        end = first + len(self.inputs[stream].sources)
        names = source_labels(self.sources)[first:end]
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        return f"stream {stream} ({', '.join(names[:_NAMED])}{more})"

    def _report(self, counts: Int64Array) -> None:
        """Warn about quotas without samples, and samples that are left out."""
        for stream, quota in enumerate(self.quotas):
            if not counts[stream] and (
                quota.kind is None or getattr(quota, quota.kind)
            ):
                text = "%s: %s of %s comes to no sample in an epoch of %d"
                name = type(self).__name__
                label = self._stream_label(stream)
                _log.warning(text, name, quota, label, int(counts.sum()))


# Device batches of global batches that are composed of several streams.
T_batch_co = TypeVar("T_batch_co", covariant=True)

_COMPOSED_NAMED = 8
"""Streams in a message."""


class ComposedSamples(QuotaDataset[T_co]):
    """The samples of `ComposedDataset`, one by one, in the order of its batches.

    Args:
        *streams: As for `QuotaDataset`.
        batch_size: As for `ComposedDataset`.
        global_batch_size: As for `ComposedDataset`.
        batching_method: As for `ComposedDataset`.
        epoch_size: As for `QuotaDataset`.
        sampling_method: As for `QuotaDataset`.
        shuffle: As for `QuotaDataset`.
        drop_last: As for `ComposedDataset`.

    Example:
        >>> from energize import ListSource
        >>> samples = ComposedSamples(
        ...     ListSource("aaaa"),
        ...     ListSource("bbbb"),
        ...     batch_size=2,
        ...     batching_method="per_stream",
        ... )
        >>> sorted(samples[0] + samples[1]) in (["a", "a"], ["b", "b"])
        True
    """

    order_name = "ComposedSamples"

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
    def composition(self) -> BatchComposition:
        """The division of an epoch into global batches and device batches."""
        return BatchComposition(
            self.requested_counts,
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
    def _arrangement(self) -> EpochOrder | BatchComposition:
        return self.composition

    def settings(self) -> dict[str, Any]:
        """Return the parameters that decide which samples are read.

        The division of a global batch among devices is not included.
        """
        settings = super().settings() | {"samples": self.size}
        if self.batching_method != "device_per_stream":
            del settings["batch_size"]
        return settings

    def _report(self, counts: Int64Array) -> None:
        super()._report(counts)
        left = counts - self._counts
        streams = np.flatnonzero(left).tolist()
        if streams:
            named = [
                f"{left[stream]} of {counts[stream]} of {self._stream_label(stream)}"
                for stream in streams[:_COMPOSED_NAMED]
            ]
            samples = (
                "the same ones" if self.sampling_method == "fixed" else "others in each"
            )
            text = "%r batches of %d leave %d samples out of every epoch, %s: %s"
            method = self.batching_method
            size = self.global_batch_size
            _log.warning(text, method, size, left.sum(), samples, ", ".join(named))
        rare = self.composition.rare[:_COMPOSED_NAMED]
        if rare:
            shown = ", ".join(
                f"{self._stream_label(stream)} ({counts[stream]})" for stream in rare
            )
            text = (
                "'stratified' batches of %d hold less than half a sample of some "
                "streams, which "
            )
            text += "are only in some batches: %s. Use larger batches"
            _log.warning(text, self.global_batch_size, shown)


class ComposedDataset(BatchDataset[T_batch_co]):
    """Compose global batches of several datasets by quotas.

    A global batch is `global_batch_size / batch_size` consecutive items, one for each
    rank. An epoch is a whole number of global batches, so all ranks make the same
    number of steps.

    `batching_method` decides which samples share a batch:

    - "random": each sample is of a random stream; shares hold over some tens of
      batches.
    - "in_turn": one dataset after the other.
    - "stratified": every global batch holds the shares. After k batches, each stream is
      within 1.68 samples of its share. Streams with less than half a sample in a batch
      are logged, as only some batches contain them.
    - "per_stream": a global batch is of one stream.
    - "device_per_stream": a device batch is of one stream, and global batches hold the
      shares in device batches.

    With "random", "in_turn" and "stratified", the last global batch contains the
    remaining samples, in device batches with sizes that differ by at most one. If it
    has fewer samples than devices, the other devices get a copy of a sample as padding,
    which counts in no loss and not in `counts`, `consumed` and `refs`. Samples that
    fill no batch are left out and logged; with sampling method "balanced" they differ
    in every epoch. Epochs and global batches do not depend on `batch_size`, except for
    "device_per_stream".

    Args:
        *streams: Pairs (dataset, `Quota`) or datasets without a quota, or one iterable
            of them.
        batch_size: Samples of a batch of one device.
        global_batch_size: Samples of a global batch. None for `batch_size`.
        batching_method: The rule for samples of a batch, see above.
        batcher: Makes a batch of a list of samples. None returns the list.
        epoch_size: As for `QuotaDataset`.
        sampling_method: As for `QuotaDataset`.
        shuffle: As for `QuotaDataset`; methods that mix datasets draw at random in any
            case.
        drop_last: Whether a last global batch that is not full is dropped.

    Raises:
        ConfigError: For an unknown method, sizes that do not divide, or batches that
            are too small for the streams; and as for `QuotaDataset`.
        WeightError: If quotas cannot be combined.
        EmptyDatasetError: If a quota requires samples of an empty dataset.
        NotIndexedError: If a dataset is a stream or never ends.

    Example:
        >>> from energize import ListSource
        >>> batches = ComposedDataset(
        ...     ListSource("aaaaaa"),
        ...     ListSource("bb"),
        ...     batch_size=4,
        ...     batching_method="stratified",
        ... )
        >>> ["".join(sorted(batch)) for batch in batches]
        ['aaab', 'aaab']
    """

    order_name = "ComposedDataset"

    @cached_property
    def traits(self) -> NodeTraits:
        # The last global batch of an epoch may have padding.
        return replace(super().traits, loop=LoopTraits(pads=True))

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
    ) -> None:
        with raised_as(type(self).__name__, "ComposedSamples"):
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
        self._set_up(samples, batch_size, make, drop_last=samples.drop_last)

    def counts(self) -> list[int]:
        """Return the number of samples of each dataset in an epoch."""
        return self.samples.counts()

    @property
    def global_batch_size(self) -> int:
        """Samples of a global batch."""
        return self.samples.global_batch_size

    @property
    def samples(self) -> ComposedSamples[Any]:
        """The samples in the order of the batches, without padding."""
        return cast("ComposedSamples[Any]", self.inputs[0])

    @cached_property
    def size(self) -> int:
        return self.samples.composition.batches

    def route(self, positions: Int64Array) -> Routes:
        epoch, at = np.divmod(positions, self.size)
        mixed = self.samples.composition
        first, end = mixed.bounds(at)
        empty = first == end
        first = np.where(empty, mixed.padding_samples(at), first)
        start = epoch * self.samples.size
        routes = members_between(start + first, start + np.maximum(end, first + 1))
        return routes._replace(padding=empty[routes.owner]) if empty.any() else routes

    def padding(self, positions: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Return whether batches are padding.

        Args:
            positions: Positions of batches, shape (n,).

        Returns:
            Whether the batch at each position is padding, bool, shape (n,).
        """
        return padding(self, np.asarray(positions, dtype=np.int64))

    def taken(self, n: int) -> None:
        """Return None: batches and their samples are one order."""

    def spans(self, n: int) -> tuple[Sequence[Span], int]:
        epoch, batch = divmod(n, self.size)
        first, _ = self.samples.composition.bounds(np.array([batch], dtype=np.int64))
        return [Span(0, 0, epoch * self.samples.size + int(first[0]))], n
