"""When samples of a source come again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from energize.arrays import Int64Array
from energize.dataset import INFINITE, IndexedDataset
from energize.preview.finding import items_with
from energize.preview.runs import Passage, Run, runs_of_sources
from energize.wrappers.shuffle import ShuffleDataset

__all__ = ["first_repeats", "samples_before_repeat"]

_AT_ONCE = 2**14
_MOST_LOOKED_AT = 2**20


def first_repeats(dataset: IndexedDataset[Any], steps: int) -> list[int | None]:
    """For each of `dataset.sources`, the first of `steps` items with a sample of it that came
    before, in an earlier item or in the same: `steps` when there is none, None when it is unknown.

    It is worked out for what is read in runs of an order that is known (see `runs_of_sources`), far
    away too; else it is looked up in the first 2**20 samples.

    >>> from energize import BatchDataset, ListSource, ShuffleDataset
    >>> first_repeats(BatchDataset(ShuffleDataset(ListSource(range(100))), 8, list), 50)
    [13]
    """
    limits = samples_before_repeat(dataset, steps)
    drawn = dataset.consumed(steps).tolist()
    wanted = {
        number: limit
        for number, (limit, n) in enumerate(zip(limits, drawn, strict=True))
        if limit is not None and limit < n
    }
    found = items_with(dataset, wanted, steps) if wanted else {}
    repeats = [
        None if limit is None and drawn[number] else found.get(number, steps)
        for number, limit in enumerate(limits)
    ]
    unknown = [number for number, each in enumerate(repeats) if each is None]
    looked_up = _looked_up(dataset, steps, unknown) if unknown else {}
    return [looked_up.get(number, step) for number, step in enumerate(repeats)]


def samples_before_repeat(dataset: IndexedDataset[Any], n: int) -> list[int | None]:
    """For each of `dataset.sources`, how many samples of it come before the first that came
    already, when `n` items are read: `INFINITE` when none does. None where it is not known.

    >>> from energize import BlendDataset, LimitDataset, ListSource, ShuffleDataset
    >>> once = ShuffleDataset(ListSource(range(100)))
    >>> some = LimitDataset(ListSource("abcdef"), 4)
    >>> samples_before_repeat(BlendDataset((once, 1), (some, 1)), 1000)
    [100, 4]
    """
    return [_before_repeat(each) for each in runs_of_sources(dataset, [(0, n)])]


def _before_repeat(passage: Passage) -> int | None:
    if passage.before is not None:
        return passage.before
    read = 0
    earlier: list[_Piece] = []
    for run in passage.runs:
        for piece in _pieces(run):
            if piece is None:
                return _of_repeating_order(passage) if run is passage.runs[0] else None
            at = piece.first_of(earlier, read)
            if at is None:
                return None
            if at < piece.stop:
                return read + at - piece.start
            read += piece.stop - piece.start
            earlier.append(piece)
    return INFINITE if passage.complete else None


@dataclass(frozen=True, slots=True)
class _Piece:
    """Positions `start` to before `stop` of an order, which lie in one epoch of it."""

    order: IndexedDataset[Any]
    epoch: int
    start: int
    stop: int

    def samples(self, start: int, stop: int) -> Int64Array:
        return self.order.refs(np.arange(start, stop, dtype=np.int64)).index

    def places(self, samples: Int64Array) -> Int64Array:
        """The positions of samples in the order of this epoch."""
        if isinstance(self.order, ShuffleDataset):
            return self.order.places(samples, self.epoch)
        return samples

    def first_of(self, earlier: Sequence[_Piece], read: int) -> int | None:
        """The first position here of one of the `read` samples of earlier pieces, which differ;
        `stop` when there is none, None when it would take too long to look for it.
        """
        count = self.order.size
        if read >= count:
            return self.start
        stop, others = self.stop, []
        for each in earlier:
            if each.order == self.order and each.epoch == self.epoch:
                if max(self.start, each.start) < min(stop, each.stop):
                    stop = max(self.start, each.start)
            else:
                others.append(each)
        if not others:
            return stop
        # Of the samples of a piece read / count have been read, unless orders are local: either
        # one of the first will do, or those that have been read are few.
        return self._look_back(others, stop) if read * read < count else self._look_on(others, stop)

    def _look_back(self, others: Sequence[_Piece], stop: int) -> int:
        for each in others:
            for start in range(each.start, each.stop, _AT_ONCE):
                samples = each.samples(start, min(start + _AT_ONCE, each.stop))
                places = self.places(samples)
                places = places[(places >= self.start) & (places < stop)]
                stop = int(places.min(initial=stop))
        return stop

    def _look_on(self, others: Sequence[_Piece], stop: int) -> int | None:
        for start in range(self.start, min(stop, self.start + _MOST_LOOKED_AT), _AT_ONCE):
            samples = self.samples(start, min(start + _AT_ONCE, stop))
            came = np.zeros(len(samples), dtype=np.bool_)
            for each in others:
                places = each.places(samples)
                came |= (places >= each.start) & (places < each.stop)
            if came.any():
                return start + int(came.argmax())
        return stop if stop - self.start <= _MOST_LOOKED_AT else None


def _pieces(run: Run) -> Iterator[_Piece | None]:
    """A run epoch by epoch; None for an order in which samples come again within an epoch."""
    order, size = run.order, run.order.size
    shuffled = isinstance(order, ShuffleDataset)
    if isinstance(order, ShuffleDataset) and order.over_epochs != 1:
        yield None
        return
    start = run.start
    while start < run.stop:
        epoch = start // size
        stop = min(run.stop, (epoch + 1) * size)
        if shuffled:
            yield _Piece(order, epoch, start, stop)
        else:  # all epochs are alike
            yield _Piece(order, 0, start - epoch * size, stop - epoch * size)
        start = stop


def _of_repeating_order(passage: Passage) -> int | None:
    """Of a shuffle of several epochs, or with replacement: long before a pass is over."""
    run = passage.runs[0]
    looked_at = 2**12
    while not run.start:
        looked_at = min(looked_at, run.stop)
        repeat = _repeated(run.order.refs(np.arange(looked_at, dtype=np.int64)).index)
        if repeat.size:
            return int(repeat.min())
        if looked_at == run.stop:
            return INFINITE if passage.complete and len(passage.runs) == 1 else None
        looked_at *= 4
    return None


def _looked_up(dataset: IndexedDataset[Any], steps: int, numbers: Sequence[int]) -> dict[int, int]:
    """The first repeats of some sources, where they are among the first samples of all."""
    per_step = max(1, int(dataset.consumed(min(steps, 64)).sum()) // min(steps, 64))
    most = min(steps, max(1, _MOST_LOOKED_AT // per_step))
    found: dict[int, int] = {}
    looked_at = min(most, 2**10)
    while len(found) < len(numbers):
        refs = dataset.refs(np.arange(looked_at, dtype=np.int64))
        for number in numbers:
            rows = np.flatnonzero(refs.source == number)
            repeat = _repeated(refs.index[rows])
            if repeat.size:
                found.setdefault(number, int(refs.item[rows[repeat.min()]]))
            elif looked_at == steps:
                found[number] = steps
        if looked_at == most:
            break
        looked_at = min(4 * looked_at, most)
    return found


def _repeated(values: Int64Array) -> Int64Array:
    """Where a value stands that stood before."""
    order = np.argsort(values, kind="stable")
    again: Int64Array = order[1:][values[order][1:] == values[order][:-1]]
    return again
