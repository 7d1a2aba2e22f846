"""What became of a dataset since the run began, as a state keeps it: other weights, moved parts."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from energize.core.blends import Move, blend_called, moved, replaced
from energize.core.dataset import Dataset
from energize.core.stream import MOST_COUNTED, State
from energize.errors import ConfigError, StateError

_Count = Annotated[int, Field(ge=0, lt=MOST_COUNTED)]
_Weight = Annotated[int | float, Field(ge=0, le=1e300)]

_CHANGES = TypeAdapter(list[tuple[str, _Count, dict[str, _Weight], bool]])
_MOVES = TypeAdapter(list[tuple[str, _Count, _Count]])


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
        changes = _loaded(cursor, "changes", _CHANGES, "change of weights")
        moves = _loaded(cursor, "moves", _MOVES, "place of a source")
        return cls(
            tuple(Change(blend, at, tuple(to.items()), waits) for blend, at, to, waits in changes),
            tuple(Move(*each) for each in moves),
        )


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


def _loaded(cursor: State, name: str, form: TypeAdapter[Any], what: str) -> Any:
    try:
        return form.validate_json(json.dumps(cursor.get(name, [])), strict=True)
    except (ValidationError, RecursionError) as reason:
        raise StateError(
            f"the saved state's {name!r} hold no {what}: {str(cursor[name])[:100]}"
        ) from reason
