"""What became of a dataset since the run began, as a state keeps it: other weights, moved parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from energize.core.blends import blend_called, replaced
from energize.core.continued import Move, moved
from energize.core.dataset import Dataset
from energize.core.stream import State, counter_field, state_field
from energize.errors import ConfigError, StateError

_LARGEST = 1e300
"""No weight is more."""


@dataclass(frozen=True, slots=True)
class Change:
    """Other weights of the blend called `blend`, from one of its slots on.

    While `waits`, the slot is not known: it is then the first one that no lane has come to at the
    first step that begins at item `at` of the run or after it.
    """

    blend: str
    at: int
    weights: tuple[tuple[str, float], ...]
    waits: bool = False

    @property
    def by_name(self) -> dict[str, float]:
        """The weights."""
        return dict(self.weights)


@dataclass(frozen=True, slots=True)
class Edits:
    """Changes, in the order of their slots, and moves; those that wait apart from the others."""

    changes: tuple[Change, ...] = ()
    moves: tuple[Move, ...] = ()

    def with_change(self, change: Change) -> Edits:
        """With another change; it takes the place of one at the same slot."""
        kept = [
            each
            for each in self.changes
            if (each.blend, each.at, each.waits) != (change.blend, change.at, change.waits)
        ]
        changes = sorted([*kept, change], key=lambda each: (each.waits, each.at))
        return replace(self, changes=tuple(changes))

    def without(self, change: Change) -> Edits:
        """Without a change."""
        return replace(self, changes=tuple(each for each in self.changes if each != change))

    @property
    def waiting(self) -> tuple[Change, ...]:
        """The changes whose slots are not known."""
        return tuple(each for each in self.changes if each.waits)

    def applied(self, dataset: Dataset[Any]) -> Any:
        """The dataset with all of them that act at a known slot.

        Raises `ConfigError` for a blend that it does not have, and for what no change can be.
        """
        edited = moved(dataset, {each.part: each for each in self.moves}) if self.moves else dataset
        for change in self.changes:
            if not change.waits:
                edited = with_change(edited, change)
        return edited

    def saved(self) -> State:
        """As plain data; nothing where there are none."""
        told: State = {}
        if self.changes:
            told["changes"] = [
                [each.blend, each.at, each.by_name, each.waits] for each in self.changes
            ]
        if self.moves:
            told["moves"] = [list(each) for each in self.moves]
        return told

    @classmethod
    def loaded(cls, cursor: State) -> Edits:
        """From a saved cursor; `StateError` for what cannot have been saved."""
        changes = [_change(each) for each in _listed(cursor, "changes")]
        moves = [_move(each) for each in _listed(cursor, "moves")]
        return cls(tuple(changes), tuple(moves))


NOT_EDITED = Edits()


def with_change(dataset: Dataset[Any], change: Change) -> Any:
    """The dataset with one change, whose slot is known."""
    found = blend_called(dataset, change.blend)
    if found is None:
        raise ConfigError(
            f"the weights of the blend {change.blend!r} were changed while the run went on, and "
            "this dataset has no such blend"
        )
    blend = found.blend.with_weights_from(change.at, change.by_name)
    return replaced(dataset, found.way, blend)


def _listed(cursor: State, name: str) -> Sequence[Any]:
    return state_field(cursor, name, list) if name in cursor else []


def _change(saved: Any) -> Change:
    try:
        blend, at, weights, waits = saved
        counter_field({"at": at}, "at")
        numbers = isinstance(weights, Mapping) and all(
            isinstance(each, int | float) and not isinstance(each, bool) and 0 <= each <= _LARGEST
            for each in weights.values()
        )
        if not (isinstance(blend, str) and numbers and isinstance(waits, bool)):
            raise TypeError
    except (TypeError, ValueError) as reason:
        raise StateError(
            f"the saved state's 'changes' hold no change of weights: {str(saved)[:100]}"
        ) from reason
    return Change(blend, at, tuple(weights.items()), waits)


def _move(saved: Any) -> Move:
    try:
        part, since, read = saved
        counter_field({"since": since}, "since")
        counter_field({"read": read}, "read")
        if not isinstance(part, str):
            raise TypeError
    except (TypeError, ValueError) as reason:
        raise StateError(
            f"the saved state's 'moves' hold no place of a source: {str(saved)[:100]}"
        ) from reason
    return Move(part, since, read)
