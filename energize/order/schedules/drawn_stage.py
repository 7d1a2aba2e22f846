"""Independent draws with probabilities that change: a stretch of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from energize.arrays import Int64Array
from energize.order.pieces import Piece, locate_in_pieces
from energize.order.remembered import Remembered
from energize.order.schedules.integral import Dues
from energize.order.schemes.portions import multinomial
from energize.order.schemes.random_order import RandomOrder, leaf_bits
from energize.rng import derive

__all__ = ["DrawnStage", "run_starts"]


_MOST_RUNS, _FEWEST_RUNS, _LEAST_RUNS = 1024, 64, 16
_SLOTS_PER_RUN = 1024
_LARGEST_TABLE = 2**19
_LONGEST_RUN = 2**40
_PROBABILITY_BITS = 50
_DRAWN_AT_ONCE = 2**20


class DrawnStage:
    """Slots in runs, each slot drawn on its own. All slots of a run have the same probabilities:
    the shares that are due to the sources over the run.

    Slot 0 is the first of `starts`, the slots at which runs begin; `end` is behind the last. The
    totals of all runs are drawn at once, when they are first needed; then any slot is known
    without those before it. Probabilities are in parts of 2**-20 of the slots of a run, at least.
    """

    def __init__(self, dues: Dues, starts: Sequence[int], end: int, key: int) -> None:
        self.start, self.end = starts[0], end
        self._dues, self._key = dues, key
        self._begins = np.array([*starts, end], dtype=np.int64) - self.start
        self._totals = Remembered(self._drawn, 1)
        self._run = Remembered(self._ordered, 4)
        self._layout = Remembered(self._laid_out, 4)

    def describe(self) -> dict[str, Any]:
        return {"scheme": "random"}

    def counts(self, n: int) -> Int64Array:
        totals, before, leaf_size = self._totals()
        if n >= self._begins[-1]:
            ended: Int64Array = before[-1] + totals[-1]
            return ended
        run = int(np.searchsorted(self._begins, n, side="right")) - 1
        leaf, rest = divmod(n - int(self._begins[run]), 1 << leaf_size)
        counts: Int64Array = before[run] + self._run(run).before(leaf)
        if rest:
            counts += np.bincount(self._layout(run, leaf).source[:rest], minlength=len(counts))
        return counts

    def locate(self, ks: Int64Array) -> tuple[Int64Array, Int64Array]:
        source, nth = np.empty_like(ks), np.empty_like(ks)
        runs = np.searchsorted(self._begins, ks, side="right") - 1
        _, _, leaf_size = self._totals()
        for run in np.unique(runs).tolist():
            rows = np.flatnonzero(runs == run)
            source[rows], nth[rows] = locate_in_pieces(
                ks[rows] - self._begins[run],
                1 << leaf_size,
                lambda leaf, run=run: self._layout(run, leaf),  # type: ignore[misc]
            )
        return source, nth

    def _laid_out(self, run: int, leaf: int) -> Piece:
        _, before, _ = self._totals()
        order = self._run(run)
        source, rank = order.laid_out(leaf)
        return Piece(source, rank, before[run] + order.before(leaf))

    def _ordered(self, run: int) -> RandomOrder:
        totals, _, leaf_size = self._totals()
        return RandomOrder(totals[run], derive(self._key, "run", run), leaf_size)

    def _drawn(self) -> tuple[Int64Array, Int64Array, int]:
        """The slots of each source (columns) in each run (rows), those in the runs before it, and
        the size of leaves as a power of two.
        """
        lengths = np.diff(self._begins)
        due = np.maximum(np.diff(self._dues.units(self._begins + self.start), axis=0), 0)
        excess = max(int(due.sum(axis=1).max()).bit_length() - _PROBABILITY_BITS, 0)
        totals = np.empty_like(due)
        some = max(1, _DRAWN_AT_ONCE // due.shape[1])
        for first in range(0, len(due), some):
            rows = slice(first, first + some)
            key = derive(self._key, "totals", first)
            totals[rows] = multinomial(key, lengths[rows], due[rows] >> excess)
        before = np.cumsum(totals, axis=0) - totals
        return totals, before, leaf_bits(due.shape[1])


def run_starts(start: int, end: int, sources: int, *, glides: bool) -> list[int]:
    """Where the runs of a piece begin: one is enough unless shares glide, but for its length.

    Where they glide, there are up to 1024 runs of 1024 slots or more; 64 at least, shorter ones,
    and fewer for very many sources. So a probability is off by half of what it rises by in a run.
    """
    length = end - start
    runs = -(-length // _LONGEST_RUN)
    if glides:
        wanted = min(max(length // _SLOTS_PER_RUN, _FEWEST_RUNS), _MOST_RUNS)
        allowed = max(_LARGEST_TABLE // sources, _LEAST_RUNS)
        runs = max(runs, min(wanted, allowed, length))
    return [start + number * length // runs for number in range(runs)]
