"""Schemes put end to end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from energize.arrays import Int64Array
from energize.order.protocol import Scheme

__all__ = ["EpochScheme", "Segment", "SegmentedScheme"]


@dataclass(frozen=True)
class Segment:
    """The slots from `start` on belong to the sources `members`, by a scheme of their own."""

    start: int
    scheme: Scheme
    members: Int64Array
    before: Int64Array
    """The slots of every source before `start`."""

    def counts(self, n: int) -> Int64Array:
        """The slots of every source among the first `n`, which reach into this segment."""
        counts = self.before.copy()
        counts[self.members] += self.scheme.counts(n - self.start)
        return counts

    def locate(self, ks: Int64Array) -> tuple[Int64Array, Int64Array]:
        """As `Scheme.locate`, for slots of this segment."""
        member, nth = self.scheme.locate(ks - self.start)
        source = self.members[member]
        return source, nth + self.before[source]


class SegmentedScheme:
    """Each segment's scheme rules from its start to that of the next one."""

    def __init__(self, segments: Sequence[Segment], description: dict[str, Any]) -> None:
        self._segments = tuple(segments)
        self._description = description

    def describe(self) -> dict[str, Any]:
        return self._description

    @property
    def settled(self) -> int:
        """The first slot of the last segment that is known."""
        return self._segments[-1].start

    def counts(self, n: int) -> Int64Array:
        segments = self._segments_to(n)
        number = int(np.searchsorted(_starts(segments), n, side="right")) - 1
        return segments[max(number, 0)].counts(n)

    def locate(self, ks: Int64Array) -> tuple[Int64Array, Int64Array]:
        source = np.empty(len(ks), dtype=np.int64)
        nth = np.empty(len(ks), dtype=np.int64)
        if not len(ks):
            return source, nth
        segments = self._segments_to(int(ks.max()))
        which = np.searchsorted(_starts(segments), ks, side="right") - 1
        for number in np.unique(which).tolist():
            rows = np.flatnonzero(which == number)
            source[rows], nth[rows] = segments[number].locate(ks[rows])
        return source, nth

    def _segments_to(self, n: int) -> tuple[Segment, ...]:
        """The segments that begin at slot `n` or before it; there may be more."""
        return self._segments


class EpochScheme:
    """The first slots of a scheme over and over, `each` of every source; sources go on where they
    were.
    """

    def __init__(self, scheme: Scheme, each: Int64Array) -> None:
        self._scheme = scheme
        self._size = int(each.sum())
        self._each = each

    def describe(self) -> dict[str, Any]:
        return {**self._scheme.describe(), "size": self._size}

    def counts(self, n: int) -> Int64Array:
        epochs, rest = divmod(n, self._size)
        return self._each * epochs + self._scheme.counts(rest)

    def locate(self, ks: Int64Array) -> tuple[Int64Array, Int64Array]:
        epochs, at = np.divmod(ks, self._size)
        source, nth = self._scheme.locate(at)
        before: Int64Array = epochs * self._each[source]
        return source, nth + before


def _starts(segments: Sequence[Segment]) -> Int64Array:
    return np.array([segment.start for segment in segments], dtype=np.int64)
