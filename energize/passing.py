"""What passes items of one input on, each at its place: datasets, and how they are read."""

from __future__ import annotations

from functools import cached_property
from typing import TypeVar

from energize.arrays import Int64Array
from energize.cursor import State
from energize.dataset import Dataset
from energize.streaming import Stream

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class PassingDataset(Dataset[T_co]):
    """As many items as its only input has, at the same places, in the same order of a mix."""

    @cached_property
    def key(self) -> int:
        """That of the input: what is done with items must not change the order of a mix of them."""
        return self.inputs[0].key

    @cached_property
    def sized(self) -> bool:
        return self.inputs[0].sized

    @cached_property
    def size(self) -> int:
        return self.inputs[0].size

    @property
    def steps_per_epoch(self) -> int | None:
        return self.inputs[0].steps_per_epoch


class PassingStream(Stream[T]):
    """A stream as it is, each item of which `passed` is told of."""

    def __init__(self, stream: Stream[T]) -> None:
        self._stream = stream

    def passed(self, item: T, position: int) -> T:
        """What comes of an item."""
        return item

    def ahead(self, positions: Int64Array) -> None:
        self._stream.ahead(positions)

    def at(self, position: int, attempt: int = 0) -> T:
        item = self._stream.at(position, attempt)
        self.origin = self._stream.origin
        return self.passed(item, position)

    def state(self) -> State:
        return self._stream.state()

    def check_after(self, last: int | None, *, exact: bool) -> None:
        self._stream.check_after(last, exact=exact)

    def close(self) -> None:
        self._stream.close()
