"""Where a run stands in each part of a mix, and an edited mix whose parts go on from there.

A part is what a mix takes from front to back: a shuffled source mostly, below whatever batches,
maps and mixes there are; in a mix of streams, each input of the outermost mix. It is known again by
a digest of what decides its order, so it may stand anywhere in the edited mix.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from energize.core.arrays import Int64Array
from energize.core.blends import Way, replaced, slot_after
from energize.core.dataset import Dataset, IndexedDataset, PassingDataset
from energize.core.lanes import Lane
from energize.core.reading import Failed, Reading
from energize.core.refs import Refs
from energize.core.stream import State, Stream
from energize.errors import StateError

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

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
        return part if move is None else MovedDataset(part, move.since, move.read)

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
        part = node.inputs[0] if type(node) is MovedDataset else node
        yield part, items + (node.read - node.since if type(node) is MovedDataset else 0)
        return
    ends = not node.indexed and len(node.inputs) > 1
    for each, count in zip(node.inputs, taken, strict=True):
        if ends:  # a mix of streams
            inner = each.inputs[0] if type(each) is MovedDataset else each
            yield inner, count + (each.read - each.since if type(each) is MovedDataset else 0)
        else:
            yield from _parts(each, count)


def _taken(node: Any, items: int) -> Sequence[int] | None:
    """How many items of each input the first `items` of a node take, where it takes them in turn,
    and that is known without reading.
    """
    if not (isinstance(node, IndexedDataset) and (node.indexed or node.sized) and node.inputs):
        return None
    return node.reached(items) if len(node.inputs) == 1 else node.taken(items)


def _with_parts(node: Any, lead: Callable[[Any], Any]) -> Any:
    if _taken(node, 0) is None:
        return lead(node)
    ends = not node.indexed and len(node.inputs) > 1
    return node.with_inputs([lead(e) if ends else _with_parts(e, lead) for e in node.inputs])


def _told_apart(part: Any, seen: Counter[str]) -> str:
    """A digest of what decides the order of a part; the second of one order has a number."""
    digest = str(part.survey.digest)[:_DIGITS]
    seen[digest] += 1
    return digest if seen[digest] == 1 else f"{digest}.{seen[digest]}"


def _name(part: Any) -> str:
    return ", ".join(source.name for source in part.sources)


class MovedDataset(PassingDataset[T_co], IndexedDataset[T_co]):
    """Another dataset whose item `since` is its item `read`, and so on; there are none before.

    Its random draws and its order are those of the other one.
    """

    since: int
    read: int

    def __init__(self, dataset: Dataset[T_co], since: int, read: int) -> None:
        self._freeze(inputs=[dataset], since=since, read=read)

    @property
    def divisible(self) -> bool:
        return self.inputs[0].divisible

    @property
    def _indexed_input(self) -> IndexedDataset[T_co]:
        return cast("IndexedDataset[T_co]", self.inputs[0])

    @property
    def one_each(self) -> bool:
        return self._indexed_input.one_each

    def lead(self, positions: Int64Array) -> Int64Array:
        """The positions of the input; those before `since` are as they were without the move, as
        what they cost decides which slots of a mix came before.
        """
        return np.where(positions < self.since, positions, positions + (self.read - self.since))

    def fetch(self, positions: Int64Array, reading: Reading) -> list[T_co | Failed]:
        if len(positions) and int(positions.min()) < self.since:
            raise StateError(
                f"item {int(positions.min())} of {_name(self)!r} was read before the mix was "
                "edited, and is found in the mix as it was then"
            )
        return self._indexed_input.fetch(self.lead(positions), reading)

    def refs(self, positions: Int64Array, attempt: int = 0) -> Refs:
        return self._indexed_input.refs(self.lead(positions), attempt)

    def consumed(self, n: int) -> Int64Array:
        if self.one_each:
            return np.array([max(n - self.since, 0)], dtype=np.int64)
        inner, led = self._indexed_input, max(n - self.since, 0) + self.read
        return inner.consumed(led) - inner.consumed(self.read)

    def padding(self, positions: Int64Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
        return self._indexed_input.padding(self.lead(positions))

    def _stream(
        self, lane: Lane, state: State | None, reading: Reading, endless: bool
    ) -> Stream[T_co]:
        inner = self.inputs[0].addressed(lane, state, reading, endless=endless)
        return _MovedStream(inner, self.lead)


class _MovedStream(Stream[T]):
    def __init__(self, stream: Stream[T], lead: Callable[[Int64Array], Int64Array]) -> None:
        self._stream, self._lead = stream, lead

    def ahead(self, positions: Int64Array) -> None:
        self._stream.ahead(self._lead(positions))

    def at(self, position: int, attempt: int = 0) -> T:
        led = int(self._lead(np.array([position], dtype=np.int64))[0])
        item = self._stream.at(led, attempt)
        self.origin = self._stream.origin
        return item

    def state(self) -> State:
        return self._stream.state()

    def close(self) -> None:
        self._stream.close()
