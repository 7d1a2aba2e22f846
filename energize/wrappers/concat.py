"""One dataset after another: what validation reads."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from energize.arrays import Int64Array
from energize.cursor import State, check_agrees, counter_field
from energize.dataset import INFINITE, Dataset
from energize.errors import ConfigError
from energize.parts import PartReader
from energize.reading import Reading
from energize.streaming import EndlessStream, Stream
from energize.topology import Lane, WorkerConfig
from energize.wrappers.routed import RoutedDataset
from energize.wrappers.streams import states_of

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class ConcatDataset(RoutedDataset[T_co]):
    """All items of the first dataset, then all of the second, ...: the same in every run.

    It resumes at any item, and delivers in the same order on any number of ranks and workers. With
    a stream of unknown length among the datasets, each lane reads its part of the first, then its
    part of the second, and so on. Only the last dataset may be endless. Raises `ConfigError`
    without datasets, or when one that never ends has others after it.

    >>> from energize import ListSource
    >>> list(ConcatDataset(ListSource("ab"), ListSource("c")))
    ['a', 'b', 'c']
    """

    def __init__(self, *datasets: Dataset[T_co], worker_config: WorkerConfig | None = None) -> None:
        if not datasets:
            raise ConfigError("ConcatDataset: there are no datasets to concatenate")
        self._freeze(inputs=datasets, worker_config=worker_config)
        for number, (each, _) in enumerate(pairwise(self.inputs)):
            if each.sized and each.size == INFINITE:
                raise ConfigError(
                    f"ConcatDataset: dataset {number} ({type(each).__name__}) never ends, so "
                    "the ones after it are never reached; pass repeat=False, or cut it with "
                    "LimitDataset"
                )

    @cached_property
    def _ends(self) -> Int64Array:
        sizes = [each.size for each in self.inputs]
        ends = [min(sum(sizes[: i + 1]), INFINITE) for i in range(len(sizes))]
        return np.array(ends, dtype=np.int64)

    @cached_property
    def sized(self) -> bool:
        return all(each.sized for each in self.inputs)

    @cached_property
    def size(self) -> int:
        return int(self._ends[-1])

    def route(self, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        epoch, at = np.divmod(positions, self.size)
        which = np.searchsorted(self._ends, at, side="right")
        starts = np.concatenate([[0], self._ends[:-1]])[which]
        return which, epoch * (self._ends[which] - starts) + at - starts

    def taken(self, n: int) -> Sequence[int]:
        epochs, rest = divmod(n, max(self.size, 1))
        lengths = np.diff(self._ends, prepend=0)
        begun = np.clip(rest - (self._ends - lengths), 0, lengths)
        return [int(count) for count in epochs * lengths + begun]

    def _stream(
        self, lane: Lane, state: State | None, reading: Reading, endless: bool
    ) -> Stream[T_co]:
        if self.sized:
            return super()._stream(lane, state, reading, endless)

        def open_pass(at: State | None) -> Stream[T_co]:
            return _ConcatStream(self.inputs, lane, at, reading)

        if not endless:
            return open_pass(state)
        return EndlessStream(open_pass, state, lane, type(self).__name__)


class _ConcatStream(Stream[T]):
    """Reads a lane's part of each dataset; those read already are left at their next pass."""

    def __init__(
        self,
        inputs: Sequence[Dataset[Any]],
        lane: Lane,
        state: State | None,
        reading: Reading,
    ) -> None:
        self._current = counter_field(state, "current")
        self._inputs = [
            PartReader(each, lane, at, reading, endless=False)
            for each, at in zip(inputs, states_of(state, len(inputs)), strict=True)
        ]
        self._check()
        self._parts_before = np.cumsum([0, *(len(each.parts) for each in inputs)]).tolist()

    def _check(self) -> None:
        """Those before the one that is read are at the beginning of their next pass."""
        places = [each.part.place for each in self._inputs]
        check_agrees(
            self._current < len(places)
            and all(
                number == self._current or place == (places[-1][0] + (number < self._current), 0)
                for number, place in enumerate(places)
            )
            and places[self._current][0] == places[-1][0],
            f"{self._current} of {len(places)} datasets in a row are over, and their passes and "
            f"rounds are {str(places)[:80]}",
        )

    def at(self, position: int, attempt: int = 0) -> T:
        while self._current < len(self._inputs):
            reader: PartReader[T] = self._inputs[self._current]
            try:
                item = reader.read()
            except StopIteration:
                self._current += 1
            else:
                before = self._parts_before[self._current]
                self.origin = tuple(
                    each._replace(part=each.part + before) for each in reader.origin
                )
                return item
        self._current = 0
        raise StopIteration

    def state(self) -> State:
        return {"current": self._current, "inputs": [each.state() for each in self._inputs]}

    def close(self) -> None:
        for each in self._inputs:
            each.close()
