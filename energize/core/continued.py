"""Where a run stands in each part of a mix, and an edited mix whose parts go on from there.

A part is what a mix takes from front to back: a shuffled source mostly, below whatever batches,
maps and mixes there are; in a mix of streams, each input of the outermost mix. It is known again by
a digest of what decides its order, so it may stand anywhere in the edited mix.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np

from energize.core.arrays import Int64Array
from energize.core.blends import Way, replaced, slot_after
from energize.core.config import config_of
from energize.core.dataset import Dataset, IndexedDataset
from energize.core.reading import Failed, Request
from energize.core.rng import derive
from energize.core.stream import MixStream, Opening, State, Stream
from energize.core.trace import Routes, Span
from energize.errors import StateError

T_co = TypeVar("T_co", covariant=True)


class ContinuedDataset(IndexedDataset[T_co]):
    """Another dataset, of which item `since` here is item `read`, and so on.

    It goes on where a run, or an earlier stage of one, has left it. Those before `since` are as
    they were, and count for nothing. A stage, `afresh`, draws anew what functions draw.
    """

    since: int
    read: int
    afresh: bool

    def __init__(
        self, dataset: Dataset[T_co], since: int, read: int, *, afresh: bool = False
    ) -> None:
        self._freeze(inputs=[dataset], since=since, read=read, afresh=afresh)

    @cached_property
    def key(self) -> int:
        inner = self.inputs[0].key
        return derive("AdvancedDataset", inner, self.read) if self.afresh else inner

    @property
    def _divisible(self) -> bool:
        return self.inputs[0]._divisible

    def route(self, positions: Int64Array) -> Routes:
        later = positions + (self.read - self.since)
        return Routes(np.where(positions < self.since, positions, later) if self.since else later)

    def _spans(self, n: int) -> tuple[Sequence[Span], int]:
        return [Span(0, self.read, self.read + max(n - self.since, 0))], n

    def make(self, items: list[Any], request: Request) -> list[T_co | Failed]:
        first = int(request.positions.min(initial=self.since))
        if first < self.since:
            raise StateError(
                f"item {first} of {self.sources[0].name!r} was read before the mix "
                "was edited, and is found in the mix as it was then"
            )
        return items

    def _open_stream(self, opening: Opening) -> Stream[T_co]:
        inputs = None if opening.state is None else {"inputs": [opening.state]}
        inside = opening._replace(state=inputs)
        return _ContinuedStream(self.route, self.inputs, inside, addressed=True)


class _ContinuedStream(MixStream[Any]):
    """States are those of the input, which another mix goes on with."""

    def state(self) -> State:
        state: State = self._inputs[0].state()
        return state


_DIGITS = 8

MOST_PARTS = 256
"""Of a mix of more, a state does not keep where each stands."""


class Place(NamedTuple):
    """How many `items` of a part have been taken, of the one with this `digest`, called `name`,
    which reads these `sources`.
    """

    digest: str
    name: str
    items: int
    sources: tuple[Any, ...] = ()


class Move(NamedTuple):
    """A part that had given `since` items by the arithmetic of the mix when `read` had been taken
    of it: what would be its item `since` is item `read`.
    """

    part: str
    since: int
    read: int


def places(dataset: Any, items: int) -> list[Place]:
    """How many items of each part the first `items` items of an endless dataset take.

    >>> from energize import BatchDataset, BlendDataset, ListSource
    >>> web, code = ListSource("ab", name="web"), ListSource("cd", name="code")
    >>> mix = BatchDataset(BlendDataset((web, 3), (code, 1)), 4, list)
    >>> [(place.name, place.items) for place in places(mix, 25)]
    [('web', 75), ('code', 25)]
    """
    seen: Counter[str] = Counter()
    return [
        Place(_told_apart(part, seen), _name(part), taken, part.sources)
        for part, taken in _parts(dataset, items)
    ]


def moved(dataset: Any, moves: Mapping[str, Move]) -> Any:
    """The same tree with parts that go on where they were left."""
    seen: Counter[str] = Counter()

    def lead(part: Any) -> Any:
        move = moves.get(_told_apart(part, seen))
        return part if move is None else ContinuedDataset(part, move.since, move.read)

    mix = read_mix(dataset)
    if mix is None:
        return _with_parts(dataset, lead)
    return replaced(dataset, mix.way, _with_parts(mix.node, lead))


class ReadMix(NamedTuple):
    """The outermost mix of a stream, `node`, and the `way` to it."""

    node: Any
    way: Way


def read_mix(dataset: Any) -> ReadMix | None:
    """The mix below packing, a filter or the like, of which only reading tells how far it was read;
    None where positions tell it, or where nothing is mixed.
    """
    node: Any = dataset
    way: Way = ()
    while len(node.inputs) == 1:
        node, way = node.inputs[0], (*way, 0)
    if dataset.indexed or not node.inputs or slot_after(dataset, way, 0) is not None:
        return None
    return ReadMix(node, way)


def few_parts(dataset: Any) -> bool:
    """Whether there are few enough parts to keep a place for each."""
    return len(dataset.sources) <= MOST_PARTS


def _parts(node: Any, items: int) -> Iterator[tuple[Any, int]]:
    """The parts, each with how many of its items the first `items` of `node` take."""
    taken = _taken(node, items)
    if taken is None:
        yield _led(node, items)
        return
    ends = not node.indexed and len(node.inputs) > 1
    for each, count in zip(node.inputs, taken, strict=True):
        if ends:  # a mix of streams
            yield _led(each, count)
        else:
            yield from _parts(each, count)


def _led(part: Any, items: int) -> tuple[Any, int]:
    """A part and how far it has come, of one that goes on too."""
    continued = type(part) is ContinuedDataset
    return (part.inputs[0], items + part.read - part.since) if continued else (part, items)


def _taken(node: Any, items: int) -> Sequence[int] | None:
    """How many items of each input the first `items` of a node take, where it takes them in turn,
    and that is known without reading.
    """
    if not node.inputs:
        return None
    if len(node.inputs) == 1:
        return node._reached(items)  # type: ignore[no-any-return]
    return node.taken(items) if node._reached(0) is not None else None


def _with_parts(node: Any, lead: Callable[[Any], Any]) -> Any:
    if _taken(node, 0) is None:
        return lead(node)
    ends = not node.indexed and len(node.inputs) > 1
    return node.with_inputs([lead(e) if ends else _with_parts(e, lead) for e in node.inputs])


def _told_apart(part: Any, seen: Counter[str]) -> str:
    """A digest of what decides the order of a part; the second of one order has a number."""
    digest = config_of(part).fingerprint[:_DIGITS]
    seen[digest] += 1
    return digest if seen[digest] == 1 else f"{digest}.{seen[digest]}"


def _name(part: Any) -> str:
    return ", ".join(source.name for source in part.sources)
