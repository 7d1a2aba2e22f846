"""Which samples a stream gives to an epoch when its quota is not a whole number of passes."""

from __future__ import annotations

import numpy as np

from energize.arrays import Int64Array
from energize.order.epochs.permutation import Permutation, WindowedPermutation
from energize.rng import derive

_BLOCK = 1024
"""Samples among which a partial pass chooses at random; from each block it takes its part."""

_NARROW = 2**31
"""Products of two numbers up to this one fit in int64."""


class EpochDraws:
    """`count` draws per epoch from a stream of `size` samples: whole passes, then a part of one.

    Every epoch draws each sample floor(count / size) or ceil(count / size) times. The part takes
    the same samples in every epoch when it is `fixed`; otherwise others, so that after any number
    of epochs a sample has been drawn within 1 of e * count / size times.

    Each pass is in the stream's order, or with `shuffle` in a random one of its own; no sample
    comes again before its pass has ended. Any draw of any epoch costs the same.

    >>> import numpy as np
    >>> draws = EpochDraws(4, 6, key=1)
    >>> (draws.locate(np.zeros(6, dtype=np.int64), np.arange(6))[:4] % 4).tolist()
    [0, 1, 2, 3]
    """

    def __init__(
        self, size: int, count: int, key: int, *, shuffle: bool = False, fixed: bool = False
    ) -> None:
        self._samples = size
        self._shuffle = shuffle
        self._fixed = fixed
        self._whole, self._part = divmod(count, size)
        self._passes = self._whole + (self._part > 0)
        self._in_pass = Permutation(size, derive(key, "whole pass"))
        self._in_part = Permutation(self._part, derive(key, "part of a pass"))
        keys = derive(key, "block"), derive(key, "last block")
        self._scattered = WindowedPermutation(size, _BLOCK, *keys)

    def locate(self, epoch: Int64Array, nth: Int64Array) -> Int64Array:
        """For draw `nth`, 0 <= nth < count, of an epoch: the pass it belongs to, counted from the
        first epoch on, times `size`, plus the sample.
        """
        number, within = np.divmod(nth, self._samples)
        passes = epoch * self._passes + number
        sample = within.copy()
        partial = number == self._whole
        if self._shuffle:
            sample[~partial] = self._in_pass(within[~partial], passes[~partial])
        if partial.any():
            sample[partial] = self._chosen(epoch[partial], within[partial])
        located: Int64Array = passes * self._samples + sample
        return located

    def _chosen(self, epoch: Int64Array, nth: Int64Array) -> Int64Array:
        """The sample of each draw of partial passes."""
        turn = np.zeros_like(epoch) if self._fixed else epoch % self._samples
        if not self._shuffle:
            return self._in_order(turn, nth)
        return self._scattered(self._place(turn, self._in_part(nth, epoch)))

    # A partial pass of turn t takes place x when t + x + 1 reaches a new multiple of size / part.
    # So places are evenly spread, and so are the turns that take one place. What lies at a place is
    # random within its block: data may have a rhythm of their own.

    def _place(self, turn: Int64Array, nth: Int64Array) -> Int64Array:
        """The place that is taken as number `nth`."""
        size, part = self._samples, self._part
        turn, nth = self._wide(turn), self._wide(nth)
        reached = nth + 1 + turn * part // size
        place: Int64Array = (-(-reached * size // part) - 1 - turn).astype(np.int64)
        return place

    def _taken_before(self, turn: Int64Array, place: Int64Array) -> Int64Array:
        """How many places before `place` are taken."""
        size, part = self._samples, self._part
        turn, place = self._wide(turn), self._wide(place)
        taken: Int64Array = ((turn + place) * part // size - turn * part // size).astype(np.int64)
        return taken

    def _wide(self, values: Int64Array) -> Int64Array:
        """Values whose products cannot overflow: Python's integers for huge streams."""
        return values if self._samples < _NARROW else values.astype(object)

    def _in_order(self, turn: Int64Array, nth: Int64Array) -> Int64Array:
        """The samples that `_scattered` gives, ascending within their pass."""
        out = np.empty_like(nth)
        blocks = np.stack([turn, self._place(turn, nth) // _BLOCK])
        touched, which = np.unique(blocks, axis=1, return_inverse=True)
        for number, (at, block) in enumerate(touched.T.tolist()):
            rows = np.flatnonzero(which.reshape(-1) == number)
            ends = np.array([block * _BLOCK, min((block + 1) * _BLOCK, self._samples)])
            first, last = self._taken_before(np.array([at, at]), ends).tolist()
            numbers = np.arange(first, last, dtype=np.int64)
            taken = np.sort(self._scattered(self._place(np.full_like(numbers, at), numbers)))
            out[rows] = taken[nth[rows] - first]
        return out
