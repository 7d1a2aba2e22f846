"""How far the lanes of a stream have come in a blend whose slots only reading tells."""

from __future__ import annotations

from contextlib import closing, suppress
from functools import cached_property
from typing import Any, TypeVar

from energize.arrays import Int64Array
from energize.blends import FoundBlend, replaced
from energize.cursor import State
from energize.dataset import Dataset
from energize.errors import EmptyDatasetError
from energize.loader.streams import StreamState
from energize.reading import Reading
from energize.restoring import is_endless, without_loops
from energize.streaming import Stream
from energize.topology import Lane

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


def first_unread_slot(
    dataset: Dataset[Any], place: StreamState, found: FoundBlend, reading: Reading
) -> int:
    """The first slot of a blend in `dataset` that none of the lanes known here has come to.

    Each lane is opened where it stands and reads one item more, so it reads again whatever of a
    round it had read, and perhaps a little more. So no slot that was read lies after it. The slot
    is the first of a round of as many as there are lanes.
    """
    blend: _Probed[Any] = _Probed(found.blend)
    stream = without_loops(replaced(dataset, found.way, blend))
    endless = is_endless(dataset)
    for lane, state in place.cursors.items():
        if state is None:
            continue
        cursor = stream.open_lane(Lane(lane, place.lanes), state, reading, endless=endless)
        with closing(cursor), suppress(StopIteration, EmptyDatasetError):
            next(cursor)
    return -(-blend.slots[0] // place.lanes) * place.lanes


class _Probed(Dataset[T_co]):
    """A blend that notes, as its only number of `slots`, the one after the last one read."""

    slots: list[int]

    def __init__(self, blend: Dataset[T_co]) -> None:
        self._freeze(inputs=[blend], slots=[0])

    @cached_property
    def key(self) -> int:
        """That of the blend: nothing is drawn in another way."""
        return self.inputs[0].key

    @cached_property
    def sized(self) -> bool:
        return self.inputs[0].sized

    @cached_property
    def size(self) -> int:
        return self.inputs[0].size

    @property
    def divisible(self) -> bool:
        return self.inputs[0].divisible

    def addressed(
        self, lane: Lane, state: State | None, reading: Reading, *, endless: bool
    ) -> Stream[T_co]:
        inner = self.inputs[0].addressed(lane, state, reading, endless=endless)
        return _ProbedStream(inner, self.slots)


class _ProbedStream(Stream[T]):
    def __init__(self, stream: Stream[T], slots: list[int]) -> None:
        self._stream, self._slots = stream, slots

    def ahead(self, positions: Int64Array) -> None:
        self._stream.ahead(positions)

    def at(self, position: int, attempt: int = 0) -> T:
        self._slots[0] = max(self._slots[0], position + 1)
        item = self._stream.at(position, attempt)
        self.origin = self._stream.origin
        return item

    def state(self) -> State:
        return self._stream.state()

    def close(self) -> None:
        self._stream.close()
