"""A lane's own part of what a stream reads on in until it finds something."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Generic, Protocol, TypeVar

import numpy as np

from energize.arrays import Int64Array
from energize.cursor import (
    INFINITE,
    LAST_START,
    Origin,
    State,
    check_agrees,
    counter_field,
    state_field,
)
from energize.errors import EmptyDatasetError
from energize.reading import Reading
from energize.rng import derive, hash_positions
from energize.streaming import Stream, empty_passes, nothing_comes
from energize.topology import Lane

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_WINDOW = 256
"""Rounds that are looked at together."""

_SCATTER = derive("scatter")


class Opens(Protocol[T_co]):
    """What is opened as an input: a dataset."""

    @property
    def sized(self) -> bool: ...

    @property
    def size(self) -> int: ...

    def addressed(
        self, lane: Lane, state: State | None, reading: Reading, *, endless: bool
    ) -> Stream[T_co]: ...


class Part:
    """A lane's own part of the positions of an input, pass after pass: one of every L in a row.

    It is the lane's own place in them, with `rotating` the next one in every pass, so that lanes
    share inputs of fewer items than lanes; and with `scattered` a random place each time, so that
    no condition on items goes by lanes. `size` is the number of positions in a pass, `INFINITE`, or
    None where only the input knows: positions then go on until `end_pass` is called, and are
    counted anew in the next.
    """

    def __init__(
        self,
        size: int | None,
        lane: Lane,
        state: State | None,
        *,
        rotating: bool,
        scattered: bool = False,
    ) -> None:
        self.lane = lane
        self._size = size
        self._rotating = rotating
        self._scattered = scattered and lane.count > 1
        self._pass = counter_field(state, "pass")
        self._round = counter_field(state, "round")
        self._coming: deque[tuple[int, int]] = deque()
        self._check()

    def _check(self) -> None:
        """Raise `StateError` for a place that no lane comes to."""
        size, count = self._size, self.lane.count
        endless = size is None or size == INFINITE
        rounds = INFINITE if endless else -(-int(size or 0) // count)
        far = self._pass * (0 if endless else int(size or 0)) + self._round * count
        check_agrees(
            self._round <= rounds and far < LAST_START and not (self._pass and size == INFINITE),
            f"lane {self.lane.index} of {count} is in round {self._round} of pass {self._pass} of "
            f"{'what has no end' if endless else f'{size} items'}",
        )

    @property
    def place(self) -> tuple[int, int]:
        """The pass, and the round that comes next in it."""
        return self._pass, self._round

    @property
    def last(self) -> int | None:
        """The position that came last in the pass; None at its beginning."""
        if not self._round:
            return None
        position = int(self._places(np.array([self._round - 1]))[0])
        endless = self._size is None or self._size == INFINITE
        return position if endless else position + self._pass * int(self._size or 0)

    def next(self, announce: Callable[[Int64Array], None]) -> int:
        """The next position; `StopIteration` at the end of a pass whose size is known.

        `announce` is told of several that come next.
        """
        if not self._coming:
            places = self._look_ahead()
            if not len(places):
                raise StopIteration
            announce(places)
        self._round, position = self._coming.popleft()
        return position

    def _look_ahead(self) -> Int64Array:
        """Rounds of a pass, each of as many positions as there are lanes, one for each lane."""
        rounds = np.arange(self._round, self._round + _WINDOW)
        places = self._places(rounds)
        if self._size is not None and self._size != INFINITE:
            kept = places < self._size
            places, rounds = places[kept] + self._pass * self._size, rounds[kept]
        self._coming.extend(zip((rounds + 1).tolist(), places.tolist(), strict=True))
        return places

    def _places(self, rounds: Int64Array) -> Int64Array:
        """The lane's place in rounds of this pass."""
        count = self.lane.count
        turns = np.full(1, self._pass if self._rotating else 0)
        if self._scattered:
            turns = turns + (hash_positions(_SCATTER, rounds) % np.uint64(count)).astype(np.int64)
        return (self.lane.index + turns) % count + rounds * count

    def end_pass(self) -> None:
        """Go on with the next pass."""
        self._pass, self._round = self._pass + 1, 0
        self._coming.clear()

    def state(self) -> State:
        """What it goes on from."""
        return {"pass": self._pass, "round": self._round}


class PartReader(Generic[T]):
    """A lane's own part of an input, for a stream that reads on until it finds something.

    `endless` readers go on from pass to pass, others raise `StopIteration` at the end of one. With
    `rotating`, or where they are endless or scattered, the lane has another place in every pass.
    """

    def __init__(
        self,
        dataset: Opens[T],
        lane: Lane,
        state: State | None,
        reading: Reading,
        *,
        endless: bool,
        rotating: bool = False,
        scattered: bool = False,
    ) -> None:
        self._sized = dataset.sized
        size = dataset.size if self._sized else None
        rotating = rotating or endless or scattered
        self.part = Part(size, lane, state, rotating=rotating, scattered=scattered)
        self._open = partial(dataset.addressed, lane, reading=reading, endless=self._sized)
        self._input = self._open(None if state is None else state_field(state, "input", dict))
        if state is not None and (self.part.last is not None or not self._sized):
            self._input.check_after(self.part.last, exact=True)
        self._endless = endless
        self._owner = type(dataset).__name__
        self._empty_passes = 0

    def read(self) -> T:
        """The next item of the part; `StopIteration` at the end of the pass."""
        while True:
            try:
                item = self._input.at(self.part.next(self._input.ahead))
            except StopIteration:
                self._end_pass()
                if not self._endless:
                    raise
            else:
                self._empty_passes = 0
                return item

    @property
    def origin(self) -> tuple[Origin, ...]:
        """What the last item is made of."""
        return self._input.origin

    def _end_pass(self) -> None:
        self.part.end_pass()
        if not self._sized:
            state = self._input.state()
            self._input.close()
            self._input = self._open(state)
        self._empty_passes += 1
        if self._endless and self._empty_passes > empty_passes(self.part.lane):
            raise EmptyDatasetError(nothing_comes(self._owner, self.part.lane))

    def state(self) -> State:
        """What it goes on from."""
        return {**self.part.state(), "input": self._input.state()}

    def close(self) -> None:
        """Let go of the input."""
        self._input.close()


class PartStream(Stream[T]):
    """What a part reader reads, whatever positions are asked for."""

    def __init__(self, reader: PartReader[T]) -> None:
        self._reader = reader

    def at(self, position: int, attempt: int = 0) -> T:
        item = self._reader.read()
        self.origin = self._reader.origin
        return item

    def state(self) -> State:
        return self._reader.state()

    def close(self) -> None:
        self._reader.close()
