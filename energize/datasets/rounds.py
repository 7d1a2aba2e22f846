"""Streams that read some items of their input and make any number of items of them.

Filters, generators and packers share this mechanism. A lane reads its share of the
input in *rounds*: a round takes some items and makes *steps*, and a step yields any
number of items. The state has a constant size: the position of the input at the start
of the round, the steps that are done, and the items that the current step has yielded.
A resumed round reads its items again, skips the steps that are done, and continues.
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
Result = TypeVar("Result")

Origins = tuple[Origin, ...]
Step = Callable[[], Iterator[tuple[T, Origins]]]
"""Makes items, each with its origin."""


class RoundItem(NamedTuple):
    """An item of the input of a round.

    Attributes:
        item: The item.
        origin: The positions that the item is made of.
        number: A number that is unique in the run.
        passed: The item to pass on unchanged: `item`, or a `Padded` item.
    """

    item: Any
    origin: Origins
    number: int
    passed: Any


class StreamDataset(Dataset[T_co]):
    """A stream: the number of items is unknown until its input is read.

    It has no random access, and a length only if its input never ends.
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
        """Return None: counts are unknown before the input is read."""


class RoundsDataset(StreamDataset[T_co]):
    """A dataset that reads in rounds."""

    order_name = "RoundsDataset"

    @abstractmethod
    def round(
        self, items: Iterator[RoundItem], reading: ReadContext
    ) -> Iterator[Step[T_co]]:
        """Return the steps of a round.

        A pure function of the items that it takes: a resumed round must make the same
        steps.

        Args:
            items: The rest of the lane's pass over the input, of which the round takes
                the items that it needs.
            reading: The context of the read.
        """

    def open_pass(self, opening: Opening) -> LaneStream[T_co]:
        return RoundStream(self, opening)


def origins_of(members: Iterable[Any]) -> Origins:
    """Return the joined origins of several items."""
    return tuple(origin for member in members for origin in member.origin)


def alone(entry: RoundItem) -> Iterator[tuple[Any, Origins]]:
    """Yield one item unchanged, as the only item of its step."""
    yield entry.passed, entry.origin


def keyed_by(dataset: Dataset[Any], purpose: str, *origins: Origin) -> int:
    """Return a 64-bit key for random draws, which is the same in any lane.

    Args:
        dataset: The dataset that draws.
        purpose: A name for the draw.
        *origins: The positions that the item is made of.
    """
    numbers = (number for origin in origins for number in origin)
    return derive(purpose, dataset.key, *numbers) % 2**64


def no_result_error(dataset: Dataset[Any], items: int) -> EmptyDatasetError:
    """Return the error for a number of items in a row without a result."""
    return EmptyDatasetError(
        f"{label_of(dataset)}: {items} consecutive items were left out. Check its "
        f"functions ({functions_of(dataset)})"
    )


class RoundStream(LaneStream[T]):
    """Reads the rounds of one pass over a lane's share of the input."""

    def __init__(self, dataset: RoundsDataset[T], opening: Opening) -> None:
        self._dataset = dataset
        self._lane, _, self._reading, _ = opening
        self._before, self._done = opening.counter("before"), opening.counter("done")
        self._delivered = opening.counter("given")
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
                self._delivered += 1
                self._in_vain = -self._read  # its own round adds them at its end
                return item
            self._items = None
            self._done = self._done + 1
            self._delivered = 0

    def _next_step(self) -> Iterator[tuple[T, Origins]]:
        """Return the remaining items of the next step, or raise `StopIteration`."""
        while True:
            if self._steps is None:
                self._read = 0
                self._over = False
                steps = self._dataset.round(self._remaining(), self._reading)
                self._steps = self._after(steps, self._done)
            step = next(self._steps, None)
            if step is not None:
                return self._after(step(), self._delivered)
            self._end_round()

    def _after(self, results: Iterator[Result], count: int) -> Iterator[Result]:
        """Return an iterator after the first `count` results."""
        if not count:
            return results
        if (
            self._reading.listed is not None
        ):  # what it leaves out may have been made before
            return islice(results, count, None)
        return skip_items(results, count, self._dataset)

    def first_unread(
        self, branches: Iterator[int], reached: int | None = None
    ) -> int | None:
        if self._delivered and self._items is None:
            delivered = self._delivered
            self._delivered = 0
            self._items = self._next_step()
            self._delivered = sum(1 for _ in islice(self._items, delivered))
        return super().first_unread(branches)

    def _remaining(self) -> Iterator[RoundItem]:
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
            yield RoundItem(item, self._input.origin, number, passed)

    def _end_round(self) -> None:
        self._steps = None
        self._done = 0
        self._delivered = 0
        self._start = self._input.state()
        self._before += self._read
        if self._over:
            raise StopIteration
        self._in_vain += self._read
        if self._in_vain >= most_in_vain(self._dataset.inputs[0], self._lane):
            raise no_result_error(self._dataset, self._in_vain)

    def state(self) -> State:
        start = self._start
        earlier = self._before
        done = self._done
        delivered = self._delivered
        if delivered and self._dataset.traits.stream.filters:
            start = self._input.state()
            earlier = earlier + self._read
            done = 0
            delivered = 0
        return {"input": start, "before": earlier, "done": done, "given": delivered}

    def close(self) -> None:
        self._steps = self._items = None
        super().close()
