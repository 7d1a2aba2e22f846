"""Batches of a stream, as they are read in one lane."""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np

from energize.arrays import Int64Array
from energize.cursor import INFINITE, Origin, State, counter_field, state_field
from energize.dataset import Dataset
from energize.errors import SubstitutionError
from energize.parts import Part
from energize.reading import MAX_ATTEMPTS, Failed, Reading
from energize.rng import hash_positions
from energize.sample_weights import Keep
from energize.streaming import Stream
from energize.topology import Lane
from energize.wrappers.calling import (
    Seeding,
    function_name,
    index_of_call,
    keyed_calls,
    sample_keys_of,
)

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Batches(Protocol[T_co]):
    """What `BatchStream` makes batches as: a `BatchDataset`."""

    inputs: tuple[Dataset[Any], ...]
    batch_size: int
    drop_last: bool

    @property
    def batcher(self) -> Any: ...

    @property
    def keep(self) -> Keep: ...

    @property
    def seeding(self) -> Seeding: ...

    @property
    def key(self) -> int: ...

    @property
    def sized(self) -> bool: ...

    @property
    def size(self) -> int: ...


class BatchStream(Stream[T]):
    """Batch k is made of the items of the stream that it would be made of if that were indexed.

    Where the length of the stream is not known, a lane takes whole batches as its part of them,
    and a pass ends with the first batch that is not full.
    """

    def __init__(
        self,
        dataset: Batches[T],
        lane: Lane,
        state: State | None,
        reading: Reading,
        *,
        rotating: bool,
    ) -> None:
        self._dataset = dataset
        self._lane = lane
        self._reading = reading
        self._called = counter_field(state, "called")
        self._over = bool(counter_field(state, "over")) if not dataset.sized else False
        inner = None if state is None else state_field(state, "input", dict)
        self._part = None
        if dataset.sized:
            self._input = dataset.inputs[0].stream(lane, inner, reading, endless=True)
        else:
            part = None if state is None else state_field(state, "part", dict)
            self._part = Part(None, lane, part, rotating=rotating)
            self._input = dataset.inputs[0].addressed(lane, inner, reading, endless=False)
            if part is not None and not self._over:
                last = self._part.last
                end = None if last is None else (last + 1) * dataset.batch_size - 1
                self._input.check_after(end, exact=True)

    def ahead(self, positions: Int64Array) -> None:
        if self._part is None and len(positions):
            members = [np.arange(*self._bounds(position)) for position in positions.tolist()]
            self._input.ahead(np.concatenate(members))

    def at(self, position: int, attempt: int = 0) -> T:
        for tries in range(attempt, attempt + MAX_ATTEMPTS):
            samples = self._samples(position, tries)
            called = self._lane.index + self._lane.count * self._called
            word = int(hash_positions(self._dataset.key, np.array([called]))[0])
            self._called += 1
            index_of_call.set(called)
            batcher, seeding = self._dataset.batcher, self._dataset.seeding
            with keyed_calls(batcher, self._reading, seeding, self._dataset.keep) as call:
                made: T | Failed = call(samples, word, partial(sample_keys_of, samples))
            if type(made) is not Failed:
                return made  # type: ignore[return-value]  # mypy does not follow `type(made) is not`
            self._reading.leave_out(made, self._dataset, self.origin)
        raise SubstitutionError(
            f"{type(self._dataset).__name__}: {function_name(self._dataset.batcher)} left out "
            f"{MAX_ATTEMPTS} batches in a row; check its condition"
        )

    def _samples(self, position: int, attempt: int) -> list[Any]:
        """The samples of the batch at a position; fewer at the end of a pass."""
        if self._over:
            self._end_pass()
            raise StopIteration
        samples: list[Any] = []
        origin: list[Origin] = []
        if self._part is not None:
            position, attempt = self._part.next(_unannounced), 0
        try:
            for member in range(*self._bounds(position)):
                samples.append(self._input.at(member, attempt))
                origin += self._input.origin
        except StopIteration:
            self._over = True
            if not samples or self._dataset.drop_last:
                self._end_pass()
                raise
        self.origin = tuple(origin)
        return samples

    def check_after(self, last: int | None, *, exact: bool) -> None:
        if self._part is None and last is not None:
            self._input.check_after(self._bounds(last)[1] - 1, exact=False)

    def _bounds(self, position: int) -> tuple[int, int]:
        """The first member of a batch, and the end of its members."""
        length = self._dataset.batch_size
        if self._part is not None or self._dataset.size == INFINITE:
            return position * length, (position + 1) * length
        size = self._dataset.inputs[0].size
        epoch, at = divmod(position, self._dataset.size)
        return epoch * size + at * length, epoch * size + min((at + 1) * length, size)

    def _end_pass(self) -> None:
        self._over = False
        if self._part is not None:
            self._part.end_pass()

    def state(self) -> State:
        state: State = {"called": self._called, "input": self._input.state()}
        if self._part is not None:
            state |= {"over": int(self._over), "part": self._part.state()}
        return state

    def close(self) -> None:
        self._input.close()


def _unannounced(_: Int64Array) -> None:
    """What comes next is not worth telling an input that is read one by one."""
