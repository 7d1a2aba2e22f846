"""Saved states with one value changed in what decides the stream, and the check value
made anew."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

from energize.core.config import packed, unpacked
from tests.support.states import resealed

VALUES = (
    -1, 0, 1, 2, 7, 100, 10**6, 2**45 - 1, 2**45, 2**61, 2**63, 10**30, 0.5, 1e308, float("nan"),
    float("inf"), True, None, "", "7", "\ud800\x00", [], {}, [[]], [None], {"a": 1},
)  # fmt: skip


def opened_up(state: dict[str, Any]) -> Any:
    """What a state says of where it stands, as one tree."""
    cursor = unpacked(state["cursor"], "cursor")
    if "cursors" in cursor:
        cursor["cursors"] = unpacked(cursor["cursors"], "cursors")
    return cursor


def closed(state: dict[str, Any], cursor: Any) -> dict[str, Any]:
    """The state that says this."""
    if isinstance(cursor, dict) and isinstance(cursor.get("cursors"), dict):
        cursor = cursor | {"cursors": packed(cursor["cursors"])}
    return resealed(state, cursor=packed(cursor))


def ways(tree: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to each value of a tree."""
    yield way
    if isinstance(tree, dict | list):
        items = tree.items() if isinstance(tree, dict) else enumerate(tree)
        for name, value in items:
            yield from ways(value, (*way, name))


def mutated(tree: Any, draw: random.Random) -> Any:
    """A tree with one change."""
    tree = json.loads(json.dumps(tree))
    *above, last = draw.choice([way for way in ways(tree) if way])
    node = tree
    for name in above:
        node = node[name]
    old, how = node[last], draw.randrange(6)
    if how == 0:
        del node[last]
    elif how == 1 and isinstance(node, dict):
        last, node["more"] = "more", draw.choice(VALUES)
    elif how == 2 and isinstance(old, int) and not isinstance(old, bool):
        node[last] = old + draw.choice([-3, -2, -1, 1, 2, 3])
    elif how == 3 and isinstance(node, list) and len(node) > 1:
        other = draw.randrange(len(node))
        node[last], node[other] = node[other], node[last]
    elif how == 4:
        node[last] = [old]
    else:
        node[last] = draw.choice(VALUES)
    return tree
