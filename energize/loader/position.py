"""Positions of runs: in an indexed dataset, or in the lanes of a stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from energize.core.config import packed, unpacked
from energize.core.dataset import Dataset
from energize.core.node import INFINITE
from energize.core.stream import (
    State,
    counter_field,
    state_field,
)
from energize.errors import LoaderError, StateError
from energize.loader.agreement import Agreement

_PLACE = ("lanes", "epoch", "position", "step", "offset", "begun")

_MOSTLY_ZERO = ("offset", "begun")
"""Fields that are saved only if they are not 0."""

MOST_LANES = 2**16
"""Upper limit of the number of lanes. A damaged state may have more."""


@dataclass(frozen=True, slots=True)
class LaneState:
    """The state of a lane before an item.

    Attributes:
        lane: The number of the lane.
        state: Its state, None before its first item.
    """

    lane: int
    state: State | None


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """The position of a run over a stream.

    Attributes:
        lanes: Number of lanes of the stream.
        epoch: Number of completed epochs.
        position: Number of items of the epoch before the position, of all ranks.
        step: The step in the loop, if loops count steps.
        cursors: The states of lanes, at least of those that this rank reads. A lane
            without a state is before its first item.
        offset: The position in an epoch where loops begin and end. It is not 0 after a
            loop that was left early.
        begun: Number of items of all ranks in an incomplete global batch.
    """

    lanes: int
    epoch: int = 0
    position: int = 0
    step: int = 0
    cursors: Mapping[int, State | None] = field(default_factory=dict)
    offset: int = 0
    begun: int = 0

    @property
    def place(self) -> dict[str, int]:
        """The position as plain data, without the states of lanes."""
        fields = {name: getattr(self, name) for name in _PLACE}
        return {name: n for name, n in fields.items() if n or name not in _MOSTLY_ZERO}

    def saved(self) -> State:
        """Return the position as plain data."""
        cursors = [
            self.cursors.get(lane) for lane in range(self.lanes if self.cursors else 0)
        ]
        return {**self.place, "cursors": packed({"cursors": cursors})}

    def lanes_over(self) -> set[int]:
        """Return the lanes that have completed the epoch."""
        return {
            lane
            for lane, state in self.cursors.items()
            if counter_field(state, "epoch") > self.epoch
        }

    def lacks(self, lanes: Sequence[int]) -> list[int]:
        """Return which of these lanes have no known state, sorted."""
        return sorted(set(lanes) - self.cursors.keys()) if self.cursors else []

    def gathered(self, agreement: Agreement) -> StreamPosition:
        """Return the position with the states of all lanes, exchanged by the ranks."""
        mine = {str(lane): state for lane, state in self.cursors.items()}
        rows = agreement.trees([self.place, mine], "the state of a stream")
        places = [place for place, _ in rows]
        if any(place != self.place for place in places):
            raise LoaderError(
                f"the ranks read the state of a stream at different steps: {places}"
            )
        cursors = {}
        for _, states in rows:
            cursors.update({int(lane): state for lane, state in states.items()})
        return replace(self, cursors=cursors)

    @classmethod
    def loaded(cls, state: State) -> StreamPosition:
        """Return the position in a cursor; raise `StateError` for a damaged cursor."""
        lanes = counter_field(state, "lanes")
        if not 1 <= lanes <= MOST_LANES:
            raise StateError(
                f"the saved state must have 1 to {MOST_LANES} lanes, got {lanes}"
            )
        content = unpacked(state_field(state, "cursors", str), "cursors")
        cursors = content.get("cursors")
        if len(content) != 1 or not _are_lane_states(cursors, lanes):
            raise StateError(f"the saved state lacks states of its {lanes} lanes")
        complete = {**dict.fromkeys(_MOSTLY_ZERO, 0), **state}
        fields = {name: counter_field(complete, name) for name in _PLACE}
        return cls(**fields, cursors=dict(enumerate(cursors or [])))


def _are_lane_states(value: Any, lanes: int) -> bool:
    """Return whether a value is a list with the states of all lanes, or of none."""
    if not isinstance(value, list) or len(value) not in (0, lanes):
        return False
    return all(state is None or isinstance(state, dict) for state in value)


RunPosition = State | StreamPosition
"""The position of an indexed run, or those of the lanes of a stream."""


def items_of(dataset: Dataset[Any], position: State | StreamPosition) -> int | None:
    """Return the number of items of all ranks before a position.

    None for a stream of unknown length after its first epoch.
    """
    if not isinstance(position, StreamPosition):
        return counter_field(position, "position")
    if not position.epoch:
        return position.position
    if dataset.sized and dataset.size != INFINITE:
        return position.epoch * dataset.size + position.position
    return None
