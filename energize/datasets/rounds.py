"""Datasets that read some items of their input and make any number of items of these:
streams.

One mechanism serves filters, generators, packing and whatever else reads on until it
has something to give. A lane reads its share of the input in *rounds*: each takes some
items and makes *steps* of them, and each step gives any number of items. The state is
where the round began in the input, after how many items, how many of its steps are
done, and how many items the next one has given. So it is small, whatever is buffered;
resuming reads the round's items again, skips the steps that are done without doing
them, and goes on in the middle of the next.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from energize.core import tree
from energize.core.dataset import Dataset
from energize.core.description import functions_of, label_of
from energize.core.node import INFINITE, NodeTraits, Origin, StreamTraits
from energize.core.padding import with_marks
from energize.core.rng import derive
from energize.core.stream import (
    LaneReader,
    LaneStream,
    Opening,
    State,
    most_in_vain,
    skip_items,
)
from energize.core.trace import (
    ReadContext,
)
from energize.errors import EmptyDatasetError

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Made = TypeVar("Made")

Origins = tuple[Origin, ...]
Step = Callable[[], Iterator[tuple[T, Origins]]]
"""Makes items, each with what it is made of."""


class Taken(NamedTuple):
    """An item of the input, what it is made of, and a number that no other item of a
    run has.

    `passed` is what comes of the item if it is passed on: the same, or `Padded`.
    """

    item: Any
    origin: Origins
    number: int
    passed: Any


class FoundDataset(Dataset[T_co]):
    """A dataset whose items are found by reading its input: a stream.

    It has no length and no random access, but that of an input which never ends.
    """

    order_name = "FoundDataset"

    indexed = False

    @cached_property
    def traits(self) -> NodeTraits:
        return NodeTraits(stream=StreamTraits(by_reading=True))

    @cached_property
    def sized(self) -> bool:
        return self.inputs[0].sized and self.inputs[0].size == INFINITE

    @cached_property
    def size(self) -> int:
        if self.sized:
            return self.inputs[0].size
        raise tree.length_unknown(self)

    def taken(self, n: int) -> None:
        """Not known before it is read, whatever a class beside this one says of indexed
        inputs.
        """


class RoundsDataset(FoundDataset[T_co]):
    """A dataset that reads in rounds."""

    order_name = "RoundsDataset"

    @abstractmethod
    def round(
        self, items: Iterator[Taken], reading: ReadContext
    ) -> Iterator[Step[T_co]]:
        """Return the steps of a round, which takes what it needs of the rest of the
        lane's pass.

        A pure function of what it takes: a resumed round has to make the same steps.
        """

    def open_pass(self, opening: Opening) -> LaneStream[T_co]:
        return RoundStream(self, opening)


def origins_of(members: Iterable[Any]) -> Origins:
    """Return what several items are made of."""
    return tuple(origin for each in members for origin in each.origin)


def alone(taken: Taken) -> Iterator[tuple[Any, Origins]]:
    """Yield one item as it is, the only one of its step."""
    yield taken.passed, taken.origin


def keyed_by(dataset: Dataset[Any], kind: str, *origins: Origin) -> int:
    """Return a 64-bit word for random draws about what is made of these: the same in
    any lane.
    """
    numbers = (number for origin in origins for number in origin)
    return derive(kind, dataset.key, *numbers) % 2**64


def nothing_made(dataset: Dataset[Any], items: int) -> EmptyDatasetError:
    """Return what to raise if so many items in a row brought nothing."""
    return EmptyDatasetError(
        f"{label_of(dataset)}: nothing was made of {items} items in a row. Check what "
        f"its functions leave out ({functions_of(dataset)})"
    )


class RoundStream(LaneStream[T]):
    """What a dataset makes in rounds of a lane's share of its input, in one pass over
    it.
    """

    def __init__(self, dataset: RoundsDataset[T], opening: Opening) -> None:
        self._dataset = dataset
        self._lane, _, self._reading, _ = opening
        self._before, self._done = opening.counter("before"), opening.counter("done")
        self._given = opening.counter("given")
        inside = opening.inner._replace(endless=False)
        self._input: LaneReader[Any] = LaneReader(dataset.inputs[0], inside)
        self._start = self._input.state()
        self._steps: Iterator[Step[T]] | None = None
        self._items: Iterator[tuple[T, Origins]] | None = None
        self._read = self._in_vain = 0
        self._over = False

    def at(self, position: int, attempt: int = 0) -> T:
        while True:
            if self._items is None:
                self._items = self._next_step()
            for item, origin in self._items:
                self.origin = origin
                self._given += 1
                self._in_vain = -self._read  # its own round adds them at its end
                return item
            self._items = None
            self._done = self._done + 1
            self._given = 0

    def _next_step(self) -> Iterator[tuple[T, Origins]]:
        """Return the items of the next step that are still to be given; `StopIteration`
        at the end of the pass.
        """
        while True:
            if self._steps is None:
                self._read = 0
                self._over = False
                steps = self._dataset.round(self._taken(), self._reading)
                self._steps = self._after(steps, self._done)
            step = next(self._steps, None)
            if step is not None:
                return self._after(step(), self._given)
            self._end_round()

    def _after(self, made: Iterator[Made], count: int) -> Iterator[Made]:
        """Return what comes after the first `count`, which were made before a
        resume.
        """
        if not count:
            return made
        if (
            self._reading.listed is not None
        ):  # what it leaves out may have been made before
            return islice(made, count, None)
        return skip_items(made, count, self._dataset)

    def first_unread(
        self, branches: Iterator[int], reached: int | None = None
    ) -> int | None:
        if self._given and self._items is None:
            given = self._given
            self._given = 0
            self._items = self._next_step()
            self._given = sum(1 for _ in islice(self._items, given))
        return super().first_unread(branches)

    def _taken(self) -> Iterator[Taken]:
        """Yield the rest of the lane's pass."""
        while True:
            try:
                passed = self._input.read()
            except StopIteration:
                self._over = True
                return
            number = self._lane.index + self._lane.count * (self._before + self._read)
            self._read += 1
            item, _ = with_marks(passed)
            yield Taken(item, self._input.origin, number, passed)

    def _end_round(self) -> None:
        self._steps = None
        self._done = 0
        self._given = 0
        self._start = self._input.state()
        self._before += self._read
        if self._over:
            raise StopIteration
        self._in_vain += self._read
        if self._in_vain >= most_in_vain(self._dataset.inputs[0], self._lane):
            raise nothing_made(self._dataset, self._in_vain)

    def state(self) -> State:
        start = self._start
        before = self._before
        done = self._done
        given = self._given
        if given and self._dataset.traits.stream.filters:
            start = self._input.state()
            before = before + self._read
            done = 0
            given = 0
        return {"input": start, "before": before, "done": done, "given": given}

    def close(self) -> None:
        self._steps = self._items = None
        super().close()
