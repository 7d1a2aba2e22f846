"""What the outline in a state tells of its mix, as far as it keeps it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from energize.outline import Outline


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
    if not isinstance(inputs, list):
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
        if isinstance(size, int):
            return size
        inputs = tree.get("inputs")
        tree = inputs[0] if isinstance(inputs, list) and inputs else None
    return None
