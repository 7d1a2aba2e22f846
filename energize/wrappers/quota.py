"""Streams that give fixed numbers of samples to every epoch."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from energize.arrays import FloatArray, Int64Array, rows_by_value
from energize.dataset import INFINITE, Dataset, IndexedDataset
from energize.errors import ConfigError, NotIndexedError, nearest
from energize.order.epochs.arranging import EpochOrder, Interleaved, InTurn
from energize.order.epochs.quotas import Quota, epoch_counts, epoch_size_in_samples
from energize.order.epochs.sampling import EpochDraws
from energize.rng import derive
from energize.sources.naming import source_labels
from energize.wrappers.checks import checked_flag, raised_as
from energize.wrappers.routed import RoutedDataset, indexed_inputs

T_co = TypeVar("T_co", covariant=True)

QuotaPair = Dataset[Any] | tuple[Dataset[Any], Quota | None]

SAMPLING_METHODS = ("balanced", "fixed")

_WINDOW = 4096
_NAMED = 3
"""How many sources of a stream a message names."""

_log = logging.getLogger("energize")


class QuotaDataset(RoutedDataset[T_co]):
    """Epochs to which each dataset gives the number of samples that its quota says.

    Given as (dataset, `Quota`) pairs, or as one iterable of pairs; a dataset alone has no quota.
    `epoch_size` (10_000 or "10k") is what proportions share out, by default the number of all
    samples. `counts()` are the samples per epoch.

    An epoch visits each sample of a dataset with n samples and the count c floor(c / n) or ceil(c /
    n) times, passes being completed before a sample comes again. `sampling_method` says which
    samples come once more: "balanced" takes others in every epoch, each as often as the others in
    the long run, "fixed" the same ones. With `shuffle`, every pass is in a random order of its own
    and the datasets' samples are mixed; without, one dataset comes after the other, each in its
    order. The datasets themselves are given unshuffled: which samples come is a matter of their
    positions.

    Raises `WeightError` and `ConfigError` for quotas and sizes that cannot be used together,
    `EmptyDatasetError` for samples asked of an empty dataset, `NotIndexedError` for a stream or a
    dataset without end.

    >>> from energize import ListSource
    >>> epoch = QuotaDataset((ListSource("ab"), Quota(repeat=1.5)), (ListSource("xyz"), Quota()))
    >>> epoch.counts(), "".join(epoch)[:2], "".join(epoch)[3:]
    ([3, 3], 'ab', 'xyz')
    """

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
        """Check and set the parameters, those of a subclass too."""
        with raised_as(type(self).__name__):
            if sampling_method not in SAMPLING_METHODS:
                raise ConfigError(
                    f"sampling_method={sampling_method!r} is not one of "
                    f"{', '.join(SAMPLING_METHODS)}"
                    f"{nearest(str(sampling_method), SAMPLING_METHODS)}"
                )
            pairs = _checked_streams(streams)
            self._freeze(
                inputs=[dataset for dataset, _ in pairs],
                quotas=tuple(quota for _, quota in pairs),
                epoch_size=None if epoch_size is None else epoch_size_in_samples(epoch_size),
                sampling_method=sampling_method,
                shuffle=checked_flag(shuffle, "shuffle", type(self).__name__),
                **parameters,
            )
            _check_finite(self.inputs)
            self._report(self._asked)

    def counts(self) -> list[int]:
        """The samples that each of `inputs` gives to an epoch."""
        return [int(count) for count in self._counts]

    def asked(self, items: int | None) -> FloatArray:
        """How many of the first `items` quotas ask for of each of `inputs`: float64, sums to
        `items`; for None their shares.
        """
        whole = 1 if items is None else items
        return self._asked.astype(np.float64) * (whole / max(int(self._asked.sum()), 1))

    @cached_property
    def size(self) -> int:
        return int(self._counts.sum())

    @cached_property
    def _asked(self) -> Int64Array:
        sizes = [each.size for each in indexed_inputs(self)]
        return epoch_counts(sizes, self.quotas, self.epoch_size, label=self._stream_label)

    @cached_property
    def _counts(self) -> Int64Array:
        return self._asked

    @cached_property
    def _arrangement(self) -> EpochOrder:
        if self.shuffle:
            return Interleaved(self._counts, _WINDOW, self.key)
        return InTurn(self._counts)

    @cached_property
    def _draws(self) -> list[EpochDraws]:
        return [
            EpochDraws(
                each.size,
                count,
                derive(self.key, "stream", stream),
                shuffle=self.shuffle,
                fixed=self.sampling_method == "fixed",
            )
            for stream, (each, count) in enumerate(
                zip(indexed_inputs(self), self.counts(), strict=True)
            )
        ]

    def route(self, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        epoch, at = np.divmod(positions, self.size)
        stream, nth = self._arrangement.locate(epoch, at)
        inner = np.empty_like(positions)
        for each, rows in rows_by_value(stream):
            inner[rows] = self._draws[each].locate(epoch[rows], nth[rows])
        return stream, inner

    def consumed(self, n: int) -> Int64Array:
        if not all(each.one_each for each in indexed_inputs(self)):
            return super().consumed(n)
        epoch, rest = divmod(n, self.size)
        return epoch * self._counts + self._arrangement.counts(epoch, rest)

    def _stream_label(self, stream: int) -> str:
        """A stream in messages: its number, and the sources that it reads; of many the first."""
        first, end = self._sources_before[stream : stream + 2]
        names = source_labels(self.sources)[first:end]
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        return f"stream {stream} ({', '.join(names[:_NAMED])}{more})"

    def _report(self, asked: Int64Array) -> None:
        """Say what nobody would expect: quotas that come to nothing, samples that are left out."""
        for stream, quota in enumerate(self.quotas):
            if not asked[stream] and (quota.kind is None or getattr(quota, quota.kind)):
                _log.warning(
                    "%s: %s of %s comes to no sample in an epoch of %d",
                    type(self).__name__,
                    quota,
                    self._stream_label(stream),
                    int(asked.sum()),
                )


def _checked_streams(given: Sequence[Any]) -> list[tuple[Dataset[Any], Quota]]:
    """Streams given as arguments, or as one iterable of them."""
    first = given[0] if len(given) == 1 else None
    # A dict would lose the quotas that are its values.
    one = isinstance(first, Dataset | Mapping) or _is_pair(first)
    if isinstance(first, Iterable) and not one:
        given = list(first)
    if not given:
        raise ConfigError("there are no streams to read")
    pairs: list[tuple[Dataset[Any], Quota]] = []
    for number, stream in enumerate(given):
        pair = stream if _is_pair(stream) else (stream, None)
        if not isinstance(pair[0], Dataset):
            raise ConfigError(
                f"stream {number} is a dataset, or a pair (dataset, Quota(...)); got "
                f"{str(stream)[:80]!r}"
            )
        pairs.append((pair[0], pair[1] or Quota()))
    return pairs


def _is_pair(value: object) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], Quota | None)


def _check_finite(inputs: Sequence[Dataset[Any]]) -> None:
    for number, each in enumerate(inputs):
        if not (isinstance(each, IndexedDataset) and each.indexed):
            raise NotIndexedError(
                f"stream {number} ({type(each).__name__}) can only be read as a stream, "
                "and a quota needs random access"
            )
        if each.size == INFINITE:
            raise NotIndexedError(
                f"stream {number} ({type(each).__name__}) never ends, so a quota of it "
                "means nothing; cut it with EpochizeDataset, or blend it by weight"
            )
