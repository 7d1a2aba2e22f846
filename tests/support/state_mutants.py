"""Saved states with one value changed in what decides the stream, and the check value made anew."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import islice
from typing import Any

from energize import EnergizeError, StateError
from energize.core.description import packed, unpacked
from energize.core.lanes import Lane
from energize.core.restoring import is_endless, without_loops
from energize.core.trace import Reading
from tests.support.loading import loader_of, prints, take
from tests.support.states import resealed

READ, COMPARED = 150, 8
"""Items of a lane, and of what goes on from a state, that are compared."""

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


def mutated(tree: Any, draw: random.Random) -> tuple[Any, list[Any], str]:
    """A tree with one change, the way to it, and what it is."""
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
    now = node[last] if how != 0 else "deleted"
    return tree, [*above, last], f"{str(old)[:40]} -> {str(now)[:40]}"


class Subject:
    """A dataset in some lanes, with its states after some steps and what its lanes give."""

    def __init__(self, dataset: Any, lanes: int) -> None:
        self.dataset, self.lanes = dataset, lanes
        self.states = []
        for steps in (0, 5, 14):
            loader = loader_of(dataset, lanes=lanes)
            take(loader, steps)
            self.states.append(json.loads(json.dumps(loader.state_dict())))
        self._read: list[list[str]] | None = None

    def read(self) -> list[list[str]]:
        """What each lane gives from its beginning."""
        if self._read is None:
            self._read = [self._lane(lane, None, READ) for lane in range(self.lanes)]
        return self._read

    def _lane(self, number: int, state: Any, count: int) -> list[str]:
        """The next items of a lane, over the ends of epochs."""
        stream, lane = without_loops(self.dataset), Lane(number, self.lanes)
        items: list[Any] = []
        for _ in range(READ):
            cursor = stream._open_lane(lane, state, Reading(), endless=is_endless(self.dataset))
            items += islice(cursor, count - len(items))
            state = cursor.state()
            cursor.close()
            if len(items) == count:
                break
        return prints(items)

    def outcome(self, state: dict[str, Any], like: dict[str, Any]) -> str:
        """What comes of a state: "refused", the name of an error of ours while it is read, "same"
        as of the state `like` that it was made of, "elsewhere" where each lane goes on at some
        place of its own, of the first ones that are compared, or "other".
        """
        loader = loader_of(self.dataset)
        before = loader.state_dict()
        try:
            loader.load_state_dict(state)
        except StateError:
            assert loader.state_dict() == before
            return "refused"
        try:
            got, kept = self._next(loader.state_dict()), self._next(like)
        except EnergizeError as error:
            return type(error).__name__
        if got == kept:
            return "same"
        if self.dataset.indexed:
            return "elsewhere"
        pairs = zip(got, self.read(), strict=True)
        if all(_within(part, whole) for part, whole in pairs):
            return "elsewhere"
        return "other"

    def _next(self, state: dict[str, Any]) -> list[list[str]]:
        """What each lane gives after a state."""
        if self.dataset.indexed:
            loader = loader_of(self.dataset)
            loader.load_state_dict(state)
            return [prints(take(loader, COMPARED))]
        lanes = unpacked(unpacked(state["cursor"], "cursor")["cursors"], "cursors")["cursors"]
        lanes = lanes or [None] * self.lanes
        return [self._lane(lane, each, COMPARED) for lane, each in enumerate(lanes)]


def _within(part: list[str], whole: list[str]) -> bool:
    return any(whole[at : at + len(part)] == part for at in range(len(whole)))
