"""The node of every mix: items of several datasets, in the order of a scheme."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple, TypeVar, cast

import numpy as np

from energize.core.arrays import FloatArray, Int64Array
from energize.core.dataset import IndexedDataset
from energize.core.node import Routes, Span
from energize.core.tree import has_single_samples
from energize.order.scheme import Scheme

T_co = TypeVar("T_co", covariant=True)


class MixOrder(NamedTuple):
    """The order of the items of a mix.

    Attributes:
        scheme: Locates the input of an item, and which of its items it is, for the
            positions of all epochs.
        size: Items of an epoch, or `INFINITE`.
        in_sequence: Whether the items of every input come in their order, without gaps.
        starts: The first item of each input that comes; None if it is item 0.
    """

    scheme: Scheme
    size: int
    in_sequence: bool = True
    starts: Int64Array | None = None


class MixDataset(IndexedDataset[T_co]):
    """Items of several datasets, in the order of a scheme.

    All mixes are this node. A subclass sets its parameters in `__init__`, and states
    the order that they describe as `mix_order`.

    Example:
        >>> from energize import ListSource
        >>> from energize.order import make_scheme
        >>> class Alternating(MixDataset):
        ...     def __init__(self, *datasets):
        ...         self.freeze(datasets)
        ...
        ...     @cached_property
        ...     def mix_order(self):
        ...         scheme = make_scheme("round_robin", [1] * len(self.inputs))
        ...         return MixOrder(scheme, sum(data.size for data in self.inputs))
        >>> "".join(Alternating(ListSource("abc"), ListSource("123")))
        'a1b2c3'
    """

    order_name = "MixDataset"

    @cached_property
    def mix_order(self) -> MixOrder:
        """The order of the items. Only used if `sized`."""
        raise NotImplementedError

    @cached_property
    def size(self) -> int:
        return self.mix_order.size

    def route(self, positions: Int64Array) -> Routes:
        child, item = self.mix_order.scheme.locate(positions)
        return Routes(item, child)

    def taken(self, n: int) -> Sequence[int] | None:
        order = self.mix_order
        if not order.in_sequence or order.starts is not None:
            return None
        return cast("list[int]", order.scheme.counts(n).tolist())

    def reached(self, n: int) -> Sequence[int] | None:
        can_locate = self.indexed or self.sized
        if not can_locate or not self.mix_order.in_sequence:
            return None
        spans, _ = self.spans(n)
        return [span.stop for span in spans]

    def spans(self, n: int) -> tuple[Sequence[Span], int]:
        order = self.mix_order
        if not order.in_sequence and not all(map(has_single_samples, self.children)):
            return (), 0
        counts = order.scheme.counts(n)
        starts = np.zeros_like(counts) if order.starts is None else order.starts
        ends = starts + counts
        rows = zip(range(len(ends)), starts.tolist(), ends.tolist(), strict=True)
        return [Span(*row) for row in rows], n

    def due(self, items: int | None) -> FloatArray | None:
        """Return how many of the first items are due to each of `inputs`.

        Args:
            items: Number of items, counted from the start of the run; None for shares.

        Returns:
            The number for each input, which sums to `items`, as float64; None if it is
            unknown, or if shares change over time.
        """
        return None
