"""How far the lanes of a stream have come in a blend whose slots only reading tells."""

from __future__ import annotations

from contextlib import closing, suppress
from typing import Any, TypeVar

from energize.core.arrays import Int64Array
from energize.core.blends import FoundBlend, replaced
from energize.core.dataset import Dataset, PassingDataset
from energize.core.lanes import Lane
from energize.core.reading import Reading
from energize.core.restoring import is_endless, without_loops
from energize.core.stream import Opening, State, Stream
from energize.errors import EmptyDatasetError
from energize.loader.streams import StreamState

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
        cursor = stream._open_lane(Lane(lane, place.lanes), state, reading, endless=endless)
        with closing(cursor), suppress(StopIteration, EmptyDatasetError):
            next(cursor)
    return -(-blend.slots[0] // place.lanes) * place.lanes


class _Probed(PassingDataset[T_co]):
    """A blend that notes, as its only number of `slots`, the one after the last one read."""

    slots: list[int]

    def __init__(self, blend: Dataset[T_co]) -> None:
        self._freeze(inputs=[blend], slots=[0])

    @property
    def _divisible(self) -> bool:
        return self.inputs[0]._divisible

    def _addressed(self, opening: Opening) -> Stream[T_co]:
        return _ProbedStream(self.inputs[0]._addressed(opening), self.slots)


class _ProbedStream(Stream[T]):
    def __init__(self, stream: Stream[T], slots: list[int]) -> None:
        self._input, self._slots = stream, slots

    def at(self, position: int, attempt: int = 0) -> T:
        self._slots[0] = max(self._slots[0], position + 1)  # also where nothing comes
        item: T = self._input.at(position, attempt)
        self.origin = self._input.origin
        return item

    def ahead(self, positions: Int64Array) -> None:
        self._input.ahead(positions)

    def state(self) -> State:
        state: State = self._input.state()
        return state
