"""What the outline in a state tells of its mix, as far as it keeps it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from energize.core.config import Outline, saved_outline, unpacked
from energize.core.stream import State, counter_field, state_field
from energize.loader.streams import StreamState


def tree_of(state: State) -> Outline:
    """The outline in a saved state; `StateError` for what is none."""
    return saved_outline(state_field(state, "dataset", str))[1]


def cursor_of(state: State) -> State:
    """Where a saved state stands, without the dataset that would say whether it can; `StateError`
    for what are no numbers of items.
    """
    cursor = unpacked(state_field(state, "cursor", str), "cursor")
    for name in ("lanes", "epoch", "position", "step", "slot"):
        if name in cursor:
            counter_field(cursor, name)
    if "lanes" in cursor:
        StreamState.loaded(cursor)
    places = state_field(cursor, "places", dict) if "places" in cursor else {}
    for name in places:
        counter_field(places, name)
    return cursor


def leaves(tree: Any) -> Iterator[Outline]:
    """The sources of an outline; of a wide mix, their names or no more than their number."""
    inputs = tree.get("inputs") if isinstance(tree, dict) else None
    if isinstance(inputs, dict):
        names = inputs.get("names") or [f"{inputs.get('count')} datasets"]
        yield from ({"name": str(name).split(" of ", 1)[-1].strip("'")} for name in names)
    elif inputs:
        for each in inputs:
            yield from leaves(each)
    elif isinstance(tree, dict):
        yield tree


def leaf_names(tree: Any) -> list[str]:
    """The names of the sources of an outline."""
    return [str(leaf.get("name", leaf.get("kind"))) for leaf in leaves(tree)]


def weights_of(tree: Any) -> dict[str, float]:
    """The weights of the outermost mix of an outline that are numbers, by the sources they are of;
    none where it does not keep them.
    """
    while isinstance(tree, dict) and "weights" not in tree:
        inputs = tree.get("inputs")
        tree = inputs[0] if isinstance(inputs, list) and len(inputs) == 1 else None
    inputs = tree.get("inputs") if isinstance(tree, dict) else None
    if not isinstance(inputs, list) or not isinstance(tree["weights"], list):
        return {}
    names = [", ".join(leaf_names(each)) for each in inputs]
    pairs = zip(names, tree["weights"], strict=False)
    return {name: weight for name, weight in pairs if isinstance(weight, int | float)}


def shares_of(weights: Mapping[str, float]) -> dict[str, float]:
    """The part that each weight is of all."""
    total = sum(weights.values())
    return {name: weight / total for name, weight in weights.items()}


def batch_size_of(tree: Any) -> int | None:
    """Samples per batch, where an outline says it."""
    while isinstance(tree, dict):
        size = tree.get("batch_size")
        if isinstance(size, int) and not isinstance(size, bool):
            return size
        inputs = tree.get("inputs")
        tree = inputs[0] if isinstance(inputs, list) and inputs else None
    return None
