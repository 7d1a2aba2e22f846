"""Sequences in which every prefix holds the exact shares, computed era by era.

An era is a run of slots. The j-th slot of a source has a window: the positions where it may stand
so that the source is never more than the tolerance away from its exact share. Within an era, each
slot goes to the source whose window closes first among those whose window is open, which meets
every window if any order does. What makes eras independent is the choice of the counts at their
ends: each source gets the floor of its exact share or one more, and who gets one more is chosen so
that both the era before and the era behind can meet their windows.

The slots that are shared out are all, or a balanced set of density W, the sum of the shares: among
the first t slots are W t of the set, rounded to a whole number, halves always up or always down. So
any x slots in a row have at least floor(W x) of the set.

Why windows can be met, for sources of shares w that sum to W. For unit slots with interval windows
it suffices that no interval holds more windows than slots of the set. Inside x slots lie at most
w x windows of a source, together at most floor(W x). At a boundary T let f be the fractional part
of a source's w T, F of a set of sources the sum of theirs, a a source's extra slot (0 or 1), s = f
/ w how long its window has been open, d = (1 - f) / w until it closes, and W t + 1/2 - h(t) the
slots of the set before t, so that h is from 0 to 1 and one of the two is never reached. Then it
suffices that the a of all sources sum to F + 1/2 - h(T), and for every x those with d <= x to at
least floor(F + h(T + x) - h(T)), and those with s > x to at least floor(F + 1/2 - h(T - x)), which
is at most floor(F + 1/2 - h) with the lowest h. Both families of sets are chains, so their
incidence matrix is totally unimodular, and a choice exists if both demands together leave room for
each pair of sets: they do, as h differs by less than 1. Among the choices that meet the second
family, the one that always prefers the smallest d has the largest sums of the first at once,
because they are the bases of a matroid. So |count - share| < 1 at every slot.

When the set is all slots and eras are whole periods of the weights, all f are 0 and the narrower
windows of the chairman assignment can be used: |count - share| <= 1 - 1 / (2 n - 2).

Sources: Tijdeman, "The chairman assignment problem", Discrete Mathematics 32, 1980; Baruah, Cohen,
Plaxton, Varvel, "Proportionate progress", Algorithmica 15, 1996; Hoffman, Kruskal, "Integral
boundary points of convex polyhedra", 1956.
"""

from __future__ import annotations

from heapq import heappop, heappush, heappushpop

import numpy as np

from energize.arrays import Int32Array, Int64Array
from energize.order.pieces import Piece, locate_in_pieces, ranks_within
from energize.order.quotients import ceil_quotient
from energize.order.remembered import Remembered
from energize.order.schemes.balanced import BalancedSlots

__all__ = ["Eras", "slots_per_era"]


_SHORTEST_ERA = 2**12
_LONGEST_PERIOD = 2**17


class Eras:
    """Balanced slots, shared out among sources with shares `weights / slots.total`, each within
    `bound` of its exact share in every prefix of all slots.

    The positive `weights` sum to `slots.weight`. The slots that are shared out are numbered from 0.
    One era is computed at a time, `slots_per_era` of them, and kept; nothing is computed from the
    start.
    """

    def __init__(self, weights: Int64Array, slots: BalancedSlots) -> None:
        self._weights, self._slots, self._total = weights, slots, slots.total
        count, total = len(weights), slots.total
        self.periodic = slots.weight == total <= _LONGEST_PERIOD
        if self.periodic:
            self.bound = 1 - 1 / (2 * count - 2) if count > 1 else 0.0
            self._length = -(-_SHORTEST_ERA // total) * total
            margin = max(1, 2 * count - 2)
            self._scaled, self._one = weights * margin, total * margin
            self._margin = total if count > 1 else 1
        else:
            self.bound = 1.0
            self._length = slots_per_era(weights, slots)
            self._scaled, self._one, self._margin = weights, total, 1
        self._layout = Remembered(self._laid_out, 2)
        self._start = Remembered(self._boundary, 4)

    def counts(self, n: int) -> Int64Array:
        """Slots of each source among the first `n` of the set."""
        era, rest = divmod(n, self._length)
        counts = self._counts_before(era)
        if rest:
            sources, _ = self._layout(self._kind(era))
            counts += np.bincount(sources[:rest], minlength=len(counts))
        return counts

    def locate(self, ks: Int64Array) -> tuple[Int64Array, Int64Array]:
        """The source of each slot of the set, and that source's slots before it."""
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
        _, whole, _, extra = self._start(era)
        return whole + extra

    def _boundary(self, era: int) -> tuple[int, Int64Array, Int64Array, Int64Array]:
        """Where an era starts among all slots, and for each source the whole part of its exact
        share there, the rest (in units of one over `total`), and its extra slot, 0 or 1.
        """
        position = self._slots.position(era * self._length)
        due = [weight * position for weight in self._weights.tolist()]
        whole = np.array([each // self._total for each in due], dtype=np.int64)
        rest = np.array([each % self._total for each in due], dtype=np.int64)
        opened = ceil_quotient(rest, rest.astype(np.float64), self._weights)
        left = self._total - rest
        closes = ceil_quotient(left, left.astype(np.float64), self._weights)
        extra = np.zeros_like(whole)
        candidates: list[tuple[int, int]] = []
        accumulated = self._total - (not self._slots.halves_up)
        rests, closings = rest.tolist(), closes.tolist()
        for source in np.argsort(-opened, kind="stable").tolist():
            if not rests[source]:
                continue
            heappush(candidates, (closings[source], source))
            accumulated += 2 * rests[source]
            if accumulated >= 2 * self._total:
                accumulated -= 2 * self._total
                extra[heappop(candidates)[1]] = 1
        return position, whole, rest, extra

    def _laid_out(self, era: int) -> tuple[Int32Array, Int32Array]:
        """For each slot of an era its source, and that source's slots before it in the era."""
        count = len(self._weights)
        if self.periodic:
            start, first = 0, np.zeros(count, dtype=np.int64)
            rest = first
        else:
            start, _, rest, first = self._start(era)
        slots = self._counts_before(era + 1) - self._counts_before(era)
        source = np.repeat(np.arange(count), slots)
        rank = np.arange(self._length) - np.repeat(np.cumsum(slots) - slots, slots)
        opens, closes = self._windows(source, rank + first[source], rest)
        if self._slots.weight < self._total:
            before = era * self._length
            opens = self._slots.before(start + opens) - before
            closes = self._slots.before(start + closes + 1) - before - 1
        opens = np.clip(opens, 0, self._length - 1)
        order = np.argsort(opens, kind="stable")
        keys = (closes * count + source)[order]
        chosen = _earliest_closing(keys.tolist(), np.bincount(opens, minlength=self._length))
        sources = (np.array(chosen, dtype=np.int64) % count).astype(np.int32)
        return sources, ranks_within(sources, slots)

    def _windows(
        self, source: Int64Array, nth: Int64Array, rest: Int64Array
    ) -> tuple[Int64Array, Int64Array]:
        """The first and last slot, from the start of the era, that may be a source's `nth`."""
        weight, before = self._scaled[source], rest[source]
        due, about = nth * self._one - before, nth * float(self._one) - before
        since, until = self._margin, self._one - self._margin + 1
        opens = ceil_quotient(due + since, about + since, weight) - 1
        closes = ceil_quotient(due + until, about + until, weight) - 1
        return opens, closes


def slots_per_era(weights: Int64Array, slots: BalancedSlots) -> int:
    """A power of two: so long that each source is due a slot in an era, and an era has no less than
    4096 slots of all.
    """
    due = -(-slots.weight // int(weights.min())) + (slots.weight < slots.total)
    least = max(due, 4 * len(weights), _SHORTEST_ERA * slots.weight // slots.total)
    return 1 << (least - 1).bit_length()


def _earliest_closing(keys: list[int], opening: Int64Array) -> list[int]:
    """The key taken at each position: the smallest of those that have opened and are not taken.

    `keys` are in the order in which they open, `opening[t]` of them at position t.
    """
    heap: list[int] = []
    taken = [0] * len(keys)
    push, pop, push_and_pop = heappush, heappop, heappushpop  # found faster
    at = 0
    for position, number in enumerate(opening.tolist()):
        if number == 1:
            taken[position] = push_and_pop(heap, keys[at])
            at += 1
        elif number:
            last = at + number - 1
            for key in keys[at:last]:
                push(heap, key)
            taken[position] = push_and_pop(heap, keys[last])
            at = last + 1
        else:
            taken[position] = pop(heap)
    return taken
