"""Where a run is: in an indexed dataset, or in the lanes of a stream."""

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
"""Fields of a place that are saved only where they are not 0."""

MOST_LANES = 2**16
"""Ranks times workers of no run come near it, but a damaged state may."""


@dataclass(frozen=True, slots=True)
class LaneState:
    """The state of a lane before an item."""

    lane: int
    state: State | None


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """Where all lanes of a stream stand.

    `position`: how many items of the epoch have had their turn, those of all ranks.
    `cursors`: the state of each lane, of those that this rank hosts at least; a lane
    without one is before its first item. `step`: of the loop, where loops count steps.
    `offset`: where in an epoch loops begin and end, which is not at its ends after a
    loop that was left early. `begun`: how many items of all ranks were given of a
    global batch that is not full yet.
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
        """Where it is, without the states of lanes."""
        fields = {name: getattr(self, name) for name in _PLACE}
        return {name: n for name, n in fields.items() if n or name not in _MOSTLY_ZERO}

    def saved(self) -> State:
        """As plain data."""
        cursors = [
            self.cursors.get(lane) for lane in range(self.lanes if self.cursors else 0)
        ]
        return {**self.place, "cursors": packed({"cursors": cursors})}

    def lanes_over(self) -> set[int]:
        """Return the lanes whose epoch has ended."""
        return {
            lane
            for lane, state in self.cursors.items()
            if counter_field(state, "epoch") > self.epoch
        }

    def lacks(self, lanes: Sequence[int]) -> list[int]:
        """Return which of these lanes have no known state, sorted."""
        return sorted(set(lanes) - self.cursors.keys()) if self.cursors else []

    def gathered(self, agreement: Agreement) -> StreamPosition:
        """Return the same with the states of all lanes, which the ranks tell each
        other.
        """
        mine = {str(lane): state for lane, state in self.cursors.items()}
        said = agreement.trees([self.place, mine], "the state of a stream")
        if any(other != self.place for other, _ in said):
            raise LoaderError(
                "the state of a stream is asked for at different steps; those of the "
                "ranks are "
                f"{[other for other, _ in said]}"
            )
        cursors = {int(lane): state for _, part in said for lane, state in part.items()}
        return replace(self, cursors=cursors)

    @classmethod
    def loaded(cls, state: State) -> StreamPosition:
        """From plain data; `StateError` for what cannot have been saved."""
        lanes = counter_field(state, "lanes")
        if not 1 <= lanes <= MOST_LANES:
            raise StateError(
                f"the saved state has {lanes} lanes; there are 1 to {MOST_LANES}"
            )
        held = unpacked(state_field(state, "cursors", str), "cursors")
        cursors = held.get("cursors")
        whole = (
            isinstance(cursors, list) and len(cursors) in (0, lanes) and len(held) == 1
        )
        if not whole or not all(
            each is None or isinstance(each, dict) for each in cursors or []
        ):
            raise StateError(
                f"the saved state does not have the states of its {lanes} lanes"
            )
        whole_state = {**dict.fromkeys(_MOSTLY_ZERO, 0), **state}
        place = {name: counter_field(whole_state, name) for name in _PLACE}
        return cls(**place, cursors=dict(enumerate(cursors or [])))


RunPosition = State | StreamPosition
"""The position of an indexed run, or those of the lanes of a stream."""


def items_of(dataset: Dataset[Any], place: State | StreamPosition) -> int | None:
    """Return how many items all ranks were given up to a place; None of a stream whose
    epochs have ended somewhere.
    """
    if not isinstance(place, StreamPosition):
        return counter_field(place, "position")
    if not place.epoch:
        return place.position
    if dataset.sized and dataset.size != INFINITE:
        return place.epoch * dataset.size + place.position
    return None
