"""Which samples a stream gives to an epoch when its quota is not a whole number of passes."""

from __future__ import annotations

import numpy as np

from energize.arrays import Int64Array
from energize.order.epochs.permutation import Permutation
from energize.rng import derive

__all__ = ["EpochDraws"]


_BLOCK = 1024
"""Samples among which a partial pass chooses at random; from each block it takes its part."""

_AT_ONCE = 2**14

_NARROW = 2**31
"""Products of two numbers up to this one fit in int64."""


class EpochDraws:
    """`count` draws per epoch from a stream of `size` samples: whole passes, then a part of one.

    Every epoch draws each sample floor(count / size) or ceil(count / size) times. The part takes
    the same samples in every epoch when it is `fixed`; otherwise others, so that after any number
    of epochs a sample has been drawn within 1 of e * count / size times.

    Each pass is in the stream's order, or with `shuffle` in a random one of its own; no sample
    comes again before its pass is over. Any draw of any epoch costs the same.

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
        self._in_block = Permutation(_BLOCK, derive(key, "block"))
        self._in_tail = Permutation(size % _BLOCK, derive(key, "last block"))

    def locate(self, epoch: Int64Array, nth: Int64Array) -> Int64Array:
        """For draw `nth`, 0 <= nth < count, of an epoch: the pass it belongs to, counted from the
        first epoch on, times `size`, plus the sample.
        """
        number, rank = np.divmod(nth, self._samples)
        passes = epoch * self._passes + number
        sample = rank.copy()
        partial = number == self._whole
        if self._shuffle:
            sample[~partial] = self._in_pass(rank[~partial], passes[~partial])
        if partial.any():
            sample[partial] = self._chosen(epoch[partial], rank[partial])
        located: Int64Array = passes * self._samples + sample
        return located

    @property
    def before_repeat(self) -> int:
        """How many draws, of all epochs together, come before the first of a sample that was drawn
        before.

        >>> EpochDraws(10, 3, key=1).before_repeat in (9, 10, 11)
        True
        """
        if self._whole:
            return self._samples
        if self._fixed or self._samples % self._part == 0:
            return self._part if self._fixed else self._samples
        epoch = self._samples // self._part
        return epoch * self._part + self._first_drawn_before(epoch)

    def first_again(self, epoch: int, nth: Int64Array, start: int) -> int:
        """Of some draws of an epoch, in the order in which they come, the number of the first of a
        sample that came before: among them, or in an earlier draw than draw `start`. They are
        those from `start` on, and the first repeat in the order of all draws is among them.
        """
        at = np.full_like(nth, epoch)
        sample = self.locate(at, nth) % self._samples
        if self._whole:
            place = self._in_pass.inverse(sample, np.zeros_like(at)) if self._shuffle else sample
            came = (nth >= self._samples) & (place < start)
        else:
            place = self._scattered(sample, inverse=True)
            turn = np.zeros_like(at) if self._fixed else at
            came = self._rank(np.zeros_like(at), place + turn) > self._rank(
                np.zeros_like(at), place
            )
            came |= self._fixed
        _, first = np.unique(sample, return_index=True)
        came[np.setdiff1d(np.arange(len(nth)), first)] = True
        return int(came.argmax())

    # The places of turn t are x = m - t, where m are the multiples of size / part, rounded up,
    # less one. In the first epoch with too few new samples, t is the smaller of the two gaps there
    # are between them, and earlier turns have taken those x whose m has that gap before it. The
    # r-th gap is small when (r + 1) * short // part is more than r * short // part.

    def _first_drawn_before(self, epoch: int) -> int:
        """The first draw of an epoch of a sample that the epochs before it have drawn; they have
        drawn all samples but some, less than `part`.
        """
        short = self._part - self._samples % self._part
        if not self._shuffle:
            return self._first_in_order(epoch, short)
        if short * short < self._part:
            rank = self._small_gap(np.arange(short), short)
            places: Int64Array = self._in_part.inverse(rank, np.full_like(rank, epoch))
            return int(places.min())
        for start in range(0, self._part, _AT_ONCE):
            tried = np.arange(start, min(start + _AT_ONCE, self._part))
            at = np.full_like(tried, epoch)
            rank = self._wide(self._in_part(tried, at))
            small = (rank + 1) * short // self._part > rank * short // self._part
            if small.any():
                return start + int(small.argmax())
        return self._part

    def _first_in_order(self, epoch: int, short: int) -> int:
        first = self._small_gap(np.arange(min(short, _BLOCK)), short)
        samples = self._scattered(self._place(np.full_like(first, epoch), first))
        block = int(samples.min()) // _BLOCK
        ends = np.array([block * _BLOCK, min((block + 1) * _BLOCK, self._samples)])
        start, stop = self._rank(np.full_like(ends, epoch), ends).tolist()
        nth = np.arange(start, stop)
        drawn = self._in_order(np.full_like(nth, epoch), nth)
        return int(nth[(drawn == samples.min()).argmax()])

    def _small_gap(self, number: Int64Array, short: int) -> Int64Array:
        """The rank of the place with the `number`-th small gap before it."""
        rank: Int64Array = (-(-(self._wide(number) + 1) * self._part // short) - 1).astype(np.int64)
        return rank

    def _chosen(self, epoch: Int64Array, rank: Int64Array) -> Int64Array:
        """The sample of each draw of partial passes."""
        turn = np.zeros_like(epoch) if self._fixed else epoch % self._samples
        if not self._shuffle:
            return self._in_order(turn, rank)
        return self._scattered(self._place(turn, self._in_part(rank, epoch)))

    # A partial pass of turn t takes place x when t + x + 1 reaches a new multiple of size / part.
    # So places are evenly spread, and so are the turns that take one place. What lies at a place is
    # random within its block: data may have a rhythm of their own.

    def _place(self, turn: Int64Array, rank: Int64Array) -> Int64Array:
        """The place that is taken as number `rank`."""
        size, part = self._samples, self._part
        turn, rank = self._wide(turn), self._wide(rank)
        reached = rank + 1 + turn * part // size
        place: Int64Array = (-(-reached * size // part) - 1 - turn).astype(np.int64)
        return place

    def _rank(self, turn: Int64Array, place: Int64Array) -> Int64Array:
        """How many places before `place` are taken."""
        size, part = self._samples, self._part
        turn, place = self._wide(turn), self._wide(place)
        taken: Int64Array = ((turn + place) * part // size - turn * part // size).astype(np.int64)
        return taken

    def _wide(self, values: Int64Array) -> Int64Array:
        """Values whose products cannot overflow: Python's integers for huge streams."""
        return values if self._samples < _NARROW else values.astype(object)

    def _scattered(self, place: Int64Array, *, inverse: bool = False) -> Int64Array:
        """What lies at a place, or the place where it lies: a fixed permutation in each block."""
        block, offset = np.divmod(place, _BLOCK)
        whole = block < self._samples // _BLOCK
        out = np.empty_like(place)
        for rows, within in ((whole, self._in_block), (~whole, self._in_tail)):
            permuted = within.inverse if inverse else within
            out[rows] = permuted(offset[rows], block[rows])
        scattered: Int64Array = block * _BLOCK + out
        return scattered

    def _in_order(self, turn: Int64Array, rank: Int64Array) -> Int64Array:
        """The samples that `_scattered` gives, ascending within their pass."""
        out = np.empty_like(rank)
        blocks = np.stack([turn, self._place(turn, rank) // _BLOCK])
        touched, which = np.unique(blocks, axis=1, return_inverse=True)
        for number, (at, block) in enumerate(touched.T.tolist()):
            rows = np.flatnonzero(which.reshape(-1) == number)
            ends = np.array([block * _BLOCK, min((block + 1) * _BLOCK, self._samples)])
            first, last = self._rank(np.array([at, at]), ends).tolist()
            ranks = np.arange(first, last, dtype=np.int64)
            taken = np.sort(self._scattered(self._place(np.full_like(ranks, at), ranks)))
            out[rows] = taken[rank[rows] - first]
        return out
