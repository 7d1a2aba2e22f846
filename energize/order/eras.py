"""Sequences in which every prefix holds the exact shares, computed era by era.

An era is a run of slots. The j-th slot of a source has a window: the positions where it may stand
so that the source is never more than the tolerance away from its exact share. Within an era, each
slot goes to the source whose window closes first among those whose window is open, which meets
every window if any order does. What makes eras independent is the choice of the counts at their
ends: each source gets the floor of its exact share or one more, and who gets one more is chosen so
that both the era before and the era behind can meet their windows.

Why they can. At a boundary let f be the fractional part of a source's share w, a its extra slot (0
or 1), s = f / w how long its window has been open, d = (1 - f) / w until it closes. For unit slots
with interval windows it suffices that no interval holds more windows than positions. Behind the
boundary that is so when, for every x, the a of all sources with d <= x sum to at least the floor of
the sum of their f; before it, when the a of all sources with s <= x sum to at most the ceiling of
the sum of their f. The f themselves meet both; the two families of sets are chains, so their
incidence matrix is totally unimodular and an integral choice exists; among those that meet the
second, the one that always prefers the smallest d has the largest sums of the first kind at once,
because they are the bases of a matroid. So |count - share| < 1 at every slot. When eras are whole
periods of the weights, all f are 0 and the narrower windows of the chairman assignment can be used:
|count - share| <= 1 - 1 / (2 n - 2).

Sources: Tijdeman, "The chairman assignment problem", Discrete Mathematics 32, 1980; Baruah, Cohen,
Plaxton, Varvel, "Proportionate progress", Algorithmica 15, 1996; Hoffman, Kruskal, "Integral
boundary points of convex polyhedra", 1956.
"""

from __future__ import annotations

from heapq import heappop, heappush, heappushpop

import numpy as np
import numpy.typing as npt

from energize.order.pieces import Piece, locate_in_pieces, ranks_within
from energize.order.quotients import ceil_quotient
from energize.order.remembered import Remembered

__all__ = ["LONGEST_ERA", "Eras"]

Int64Array = npt.NDArray[np.int64]
Int32Array = npt.NDArray[np.int32]

LONGEST_ERA = 2**20
"""Every source must be due a slot in an era of this length."""

_SHORTEST_ERA = 2**12
_LONGEST_PERIOD = 2**17


class Eras:
    """Slots shared out in the ratio of positive integer `weights`, each source within `bound` of
    its exact share in every prefix.

    The sum of the weights is below 2**61, and at most `LONGEST_ERA` times the smallest. One era is
    computed at a time, at most `LONGEST_ERA` slots, and kept; nothing is computed from the start.
    """

    def __init__(self, weights: Int64Array) -> None:
        self._weights, self._total = weights, int(weights.sum())
        count = len(weights)
        self.periodic = self._total <= _LONGEST_PERIOD
        if self.periodic:
            self.bound = 1 - 1 / (2 * count - 2) if count > 1 else 0.0
            self._length = -(-_SHORTEST_ERA // self._total) * self._total
            margin = max(1, 2 * count - 2)
            self._scaled, self._one = weights * margin, self._total * margin
            self._margin = self._total if count > 1 else 1
        else:
            self.bound = 1.0
            least = max(-(-self._total // int(weights.min())), 4 * count, _SHORTEST_ERA)
            self._length = 1 << (least - 1).bit_length()
            self._scaled, self._one, self._margin = weights, self._total, 1
        self._layout = Remembered(self._laid_out, 2)
        self._start = Remembered(self._boundary, 4)

    def counts(self, n: int) -> Int64Array:
        """Slots of each source among the first `n`."""
        era, rest = divmod(n, self._length)
        counts = self._counts_before(era)
        if rest:
            sources, _ = self._layout(self._kind(era))
            counts += np.bincount(sources[:rest], minlength=len(counts))
        return counts

    def locate(self, ks: Int64Array) -> tuple[Int64Array, Int64Array]:
        """The source of each slot, and that source's slots before it."""
        return locate_in_pieces(ks, self._length, self._piece)

    def _piece(self, era: int) -> Piece:
        source, rank = self._layout(self._kind(era))
        return Piece(source, rank, self._counts_before(era))

    def _kind(self, era: int) -> int:
        return 0 if self.periodic else era

    def _counts_before(self, era: int) -> Int64Array:
        if self.periodic:
            per_era: Int64Array = self._weights * (self._length // self._total * era)
            return per_era
        whole, _, extra = self._start(era)
        return whole + extra

    def _boundary(self, era: int) -> tuple[Int64Array, Int64Array, Int64Array]:
        """At the start of an era, for each source: the whole part of its exact share, the rest
        (in units of one over the sum of the weights), and its extra slot, 0 or 1.
        """
        due = [weight * era * self._length for weight in self._weights.tolist()]
        whole = np.array([each // self._total for each in due], dtype=np.int64)
        rest = np.array([each % self._total for each in due], dtype=np.int64)
        opened = ceil_quotient(rest, rest.astype(np.float64), self._weights)
        left = self._total - rest
        closes = ceil_quotient(left, left.astype(np.float64), self._weights)
        extra = np.zeros_like(whole)
        candidates: list[tuple[int, int]] = []
        accumulated = 0
        rests, closings = rest.tolist(), closes.tolist()
        for source in np.argsort(-opened, kind="stable").tolist():
            if not rests[source]:
                continue
            heappush(candidates, (closings[source], source))
            accumulated += rests[source]
            if accumulated >= self._total:
                accumulated -= self._total
                extra[heappop(candidates)[1]] = 1
        return whole, rest, extra

    def _laid_out(self, era: int) -> tuple[Int32Array, Int32Array]:
        """For each slot of an era its source, and that source's slots before it in the era."""
        count = len(self._weights)
        if self.periodic:
            first = rest = np.zeros(count, dtype=np.int64)
        else:
            _, rest, first = self._start(era)
        slots = self._counts_before(era + 1) - self._counts_before(era)
        source = np.repeat(np.arange(count), slots)
        rank = np.arange(self._length) - np.repeat(np.cumsum(slots) - slots, slots)
        opens, closes = self._windows(source, rank + first[source], rest)
        order = np.argsort(opens, kind="stable")
        keys = (closes * count + source)[order]
        chosen = _earliest_closing(keys.tolist(), np.bincount(opens, minlength=self._length))
        sources = (np.array(chosen, dtype=np.int64) % count).astype(np.int32)
        return sources, ranks_within(sources, slots)

    def _windows(
        self, source: Int64Array, nth: Int64Array, rest: Int64Array
    ) -> tuple[Int64Array, Int64Array]:
        """The first and last position of the era at which a source's `nth` slot may stand."""
        weight, before = self._scaled[source], rest[source]
        due, about = nth * self._one - before, nth * float(self._one) - before
        since, until = self._margin, self._one - self._margin + 1
        opens = ceil_quotient(due + since, about + since, weight) - 1
        closes = ceil_quotient(due + until, about + until, weight) - 1
        return np.clip(opens, 0, self._length - 1), closes


def _earliest_closing(keys: list[int], opening: Int64Array) -> list[int]:
    """The key taken at each position: the smallest of those that have opened and are not taken.

    `keys` are in the order in which they open, `opening[t]` of them at position t.
    """
    heap: list[int] = []
    taken: list[int] = []
    at = 0
    for number in opening.tolist():
        if number == 1:
            taken.append(heappushpop(heap, keys[at]))
            at += 1
            continue
        for key in keys[at : at + number]:
            heappush(heap, key)
        at += number
        taken.append(heappop(heap))
    return taken
