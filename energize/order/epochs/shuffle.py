"""The order in which a finite source is visited, epoch after epoch."""

from __future__ import annotations

import numpy as np

from energize.arrays import Int64Array
from energize.order.epochs.permutation import Permutation, WindowedPermutation
from energize.rng import derive, hash_positions


class ShuffleOrder:
    """Which sample is visited at a position: every epoch a new permutation of `range(size)`.

    `over_epochs` epochs may be shuffled together, each sample coming that many times in them; -1
    draws every sample independently, with replacement.

    Without `run_length` and `window` it is a full permutation. With them it trades randomness for
    locality, like a loader that opens shards at random and keeps a shuffle buffer: runs of
    `run_length` neighbouring samples are put in random order, then samples are shuffled within
    windows of `window` positions. Any position costs the same, and nothing is buffered.

    >>> import numpy as np
    >>> order = ShuffleOrder(6, key=7)
    >>> sorted(order.locate(np.arange(6)).tolist()) == list(range(6))
    True
    """

    def __init__(
        self,
        size: int,
        key: int,
        run_length: int | None = None,
        window: int | None = None,
        over_epochs: int = 1,
    ) -> None:
        self._samples = size
        self._key = key
        self._with_replacement = over_epochs == -1
        self.size = size = size * max(over_epochs, 1)
        self._run = size if run_length is None else min(run_length, size)
        self._window = 1 if window is None else min(max(window, 1), size)
        self._full = run_length is None and window is None
        runs = -(-size // self._run) if size else 0
        self._last_run = size - (runs - 1) * self._run
        keys = derive(key, "window"), derive(key, "tail window")
        self._in_windows = WindowedPermutation(size, self._window, *keys)
        self._runs = Permutation(runs, derive(key, "runs"))
        self._all = Permutation(size, derive(key, "all"))

    def locate(self, positions: Int64Array) -> Int64Array:
        """The sample, 0 <= sample < size, visited at each position; epochs follow one another."""
        if self._with_replacement:
            drawn = hash_positions(derive(self._key, "with replacement"), positions)
            return (drawn % np.uint64(self._samples)).astype(np.int64)
        return self._permuted(positions) % self._samples

    def _permuted(self, positions: Int64Array) -> Int64Array:
        epoch, at = np.divmod(positions, self.size)
        if self._full:
            return self._all(at, epoch)
        if self._window > 1:
            at = self._in_windows(at, epoch)
        return self._in_runs(at, epoch)

    def _in_runs(self, at: Int64Array, epoch: Int64Array) -> Int64Array:
        """Runs in random order. The last one may be short: after its place all slots move up."""
        last = np.full_like(at, self._runs.size - 1)
        short_at = self._runs.inverse(last, epoch) * self._run
        after = at >= short_at + self._last_run
        slot, offset = np.divmod(at + after * (self._run - self._last_run), self._run)
        return self._runs(slot, epoch) * self._run + offset
