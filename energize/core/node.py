"""Traits, routes and references of nodes, and the protocols that readers use.

The base classes are in `energize.core.dataset`, with an example of a node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from energize.core.arrays import BoolArray, Int64Array
from energize.core.columns import Column

INFINITE = 2**63 - 1
"""The `size` of a dataset with an endless first epoch."""

LAST_START = 2**62
"""Positions of an epoch below it, and values computed from them, fit in int64."""

T_co = TypeVar("T_co", covariant=True)


# What nodes answer with.


class Routes(NamedTuple):
    """The items of the inputs that items are made of; arrays of one length.

    Attributes:
        position: A position in an input.
        child: The number of that input; None if there is only one.
        owner: The row of the requested position that it belongs to, ascending; None if
            an item is made of a single item of an input.
        padding: Whether it only fills a padding row, which does not count. An item is
            padding as a whole if all its rows are.
    """

    position: Int64Array
    child: Int64Array | None = None
    owner: Int64Array | None = None
    padding: BoolArray | None = None

    @classmethod
    def of_members(
        cls, members: Sequence[Int64Array], fillers: Sequence[int] = ()
    ) -> Routes:
        """Return the routes of items that are made of several items of the only input.

        Args:
            members: Positions in the input, for each item.
            fillers: How many of the last members of each item are padding; empty if
                none are.
        """
        sizes = np.array([len(positions) for positions in members], dtype=np.int64)
        position = np.concatenate([np.zeros(0, dtype=np.int64), *members])
        owner = np.repeat(np.arange(len(sizes)), sizes)
        if not any(fillers):
            return cls(position, owner=owner)
        counted = np.cumsum(sizes) - np.array(fillers)
        is_padding = np.arange(len(owner)) >= counted[owner]
        return cls(position, owner=owner, padding=is_padding)


class Span(NamedTuple):
    """Items `start` to before `stop` of input `child`, taken `times` times."""

    child: int
    start: int
    stop: int
    times: int = 1


class Origin(NamedTuple):
    """The origin of an item of a stream, or of a part of it.

    Attributes:
        part: The number of the indexed dataset, or of the source without random access,
            that the stream reads.
        position: The position in the part, counted over all its epochs; without random
            access, in the pass `epoch`.
        epoch: The pass over a source without random access.
        attempt: The number of the substitute; 0 for the item itself.
    """

    part: int
    position: int
    epoch: int = 0
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class Refs:
    """The samples that items are made of: a row per sample, ordered by item.

    Attributes:
        item: The index of the requested position, from 0.
        source: The number of the source in `dataset.sources`.
        index: The number of the sample in that source.
        epoch: Number of earlier passes over the source.
    """

    item: Int64Array
    source: Int64Array
    index: Int64Array
    epoch: Int64Array

    def __len__(self) -> int:
        return len(self.item)

    @classmethod
    def merged(cls, several: Sequence[Refs]) -> Refs:
        """Return several refs as one, ordered by item."""
        if len(several) == 1:
            return several[0]
        none = np.zeros((4, 0), dtype=np.int64)
        rows = [[refs.item, refs.source, refs.index, refs.epoch] for refs in several]
        columns = np.concatenate([none, *rows], axis=1)
        return cls(*columns[:, np.argsort(columns[0], kind="stable")])


# What nodes state.


class Phases(Protocol):
    """Consecutive phases of an order, such as the stages of a plan."""

    def state_fields(self, position: int) -> dict[str, Any]:
        """Return the JSON-able fields of a state about the phase of a position."""

    def check_state(self, state: dict[str, Any]) -> None:
        """Raise `StateError` if a state was saved in another phase than it has here."""

    def watcher(self, lane: int) -> Callable[[int], None] | None:
        """Return a callback for the position of every item that a lane delivers.

        Args:
            lane: The number of the lane, from 0.
        """


@dataclass(frozen=True, slots=True)
class StreamTraits:
    """The properties of a node that affect how its lanes are read.

    Attributes:
        by_reading: Items are discovered by reading the input. The node is a stream, and
            its length is unknown unless the input never ends.
        filters: A round reads one item and delivers either that item or nothing. Only
            used by `RoundsDataset`.
        pass_length: Maps the number of items in one pass over the input to the number
            of items delivered in it; None if unknown. Only used if `by_reading`.
        buffered: Number of items of the input that a lane may hold before it delivers
            the first item made of them.
        divisible: A lane of this stream is read without reading the items of other
            lanes.
    """

    by_reading: bool = False
    filters: bool = False
    pass_length: Callable[[int], int] | None = None
    buffered: int = 0
    divisible: bool = True


class Anchor(Protocol):
    """A fact about an item that locates the items after it at once.

    A state contains the fact, so that a resumed run need not count from the start.
    """

    def at(self, n: int) -> list[int]:
        """Return the fact about item `n` as plain numbers."""

    def start(self, fact: list[int]) -> int:
        """Return the position in the input that a fact is about.

        Raises:
            StateError: If the fact is damaged.
        """

    def learn(self, fact: list[int]) -> None:
        """Use a fact of an equal node in another process."""

    def resumed(self, fact: list[int], n: int, dataset: Any) -> Any:
        """Return the node with a fact of a state about item `n`, over another input.

        Raises:
            StateError: If the fact is damaged.
        """


@dataclass(frozen=True, slots=True)
class Substitutes:
    """The replacements of failed items of a node that are made of several members.

    Attributes:
        items: Yields the positions of other items, in place of the failed one at a
            position.
        members: Yields positions of the input, in place of the failed member at a
            position. None leaves failed members out: `make` gets them as `Failed`.
    """

    items: Callable[[int], Iterator[int]]
    members: Callable[[int], Iterator[int]] | None = None

    def at(self, positions: Int64Array, attempt: int) -> Int64Array:
        """Return the positions of the items that an attempt reads, from 1."""
        others = [
            next(islice(self.items(position), attempt - 1, None), position)
            for position in positions.tolist()
        ]
        return np.array(others, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class LoopTraits:
    """The properties of a node that affect loops of a loader and their ends.

    Attributes:
        cuts: The node decides where an epoch ends, not which items come.
        steps: Number of steps each rank makes in a loop of a loader, if this is the
            outermost node; None if that follows from the length of an epoch.
        pads: Some items are padding, made of samples that are counted elsewhere (see
            `Routes.padding`).
        anchor: Locates far items at once, see `Anchor`; None if no fact is needed.
        step_items: The number of consecutive items, from a multiple of it, among which
            each step of all ranks has to stay; None for any number.
        substitutes: Replaces failed items and members; None if other samples of
            the same source replace members.
    """

    cuts: bool = False
    steps: int | None = None
    pads: bool = False
    anchor: Anchor | None = None
    step_items: int | None = None
    substitutes: Substitutes | None = None


@dataclass(frozen=True, slots=True)
class MixTraits:
    """The properties of a node that reads several inputs.

    Attributes:
        shares_sources: Several inputs may read the same source. `sources` then lists it
            once.
        unread_inputs: Numbers of the inputs that no item comes from.
        neutral: Names of parameters, besides functions, that do not affect which
            samples come. A saved state may be loaded after they change.
        phases: The consecutive phases of the order; None if it has no phases.
        unit: The unit of the shares, such as the name of a column; None for items.
        ends_by_weights: Whether the weights decide where an epoch ends.
    """

    shares_sources: bool = False
    unread_inputs: tuple[int, ...] = ()
    neutral: tuple[str, ...] = ()
    phases: Phases | None = None
    unit: Any = None
    ends_by_weights: bool = False


@dataclass(frozen=True, slots=True)
class NodeTraits:
    """The properties of a node that do not depend on a position.

    A class states its traits once, `traits = NodeTraits(makes=True)`. If they depend on
    the parameters, `traits` is a cached property. The defaults describe a node that
    only decides order.

    Attributes:
        makes: `make` returns other items than it gets. `make` of a node without this
            trait is never called.
        content_only: Item k is made of item k of the only input, and which items come
            does not depend on this node. Implies no `route` of its own.
        draws: `make` may draw random numbers. Only used if `content_only`.
        members: Number of items of the input that one item is made of; None if the
            number depends on the data.
        gives_batches: Whether items are batches; None if that depends on the inputs.
        stream: How the node is read in lanes.
        loop: How the node affects the loops of a loader.
        mix: How the node combines several inputs.
    """

    makes: bool = False
    content_only: bool = False
    draws: bool = False
    members: int | None = 1
    gives_batches: bool | None = None
    stream: StreamTraits = StreamTraits()
    loop: LoopTraits = LoopTraits()
    mix: MixTraits = MixTraits()

    @property
    def keeps_order(self) -> bool:
        """Whether the input alone decides which items come."""
        return self.content_only or self.loop.cuts

    @property
    def keeps_positions(self) -> bool:
        """Whether item k is made of item k of the only input in a run of a loader."""
        return self.content_only or self.loop.steps is not None

    @property
    def gathers(self) -> bool:
        """Whether an item is made of several items of the input, or of none."""
        return self.members != 1


ORDER_ONLY = NodeTraits()
"""The traits of a node that only decides order."""


# Nodes, as readers and functions of trees see them.


class Node(Protocol[T_co]):
    """A node of a tree of datasets; `Dataset` is the base class of all of them."""

    @property
    def inputs(self) -> tuple[Any, ...]: ...
    @property
    def indexed(self) -> bool: ...
    @property
    def sized(self) -> bool: ...
    @property
    def size(self) -> int: ...
    @property
    def key(self) -> int: ...
    @property
    def traits(self) -> NodeTraits: ...
    @property
    def sources(self) -> tuple[SourceNode[Any], ...]: ...
    @property
    def source_numbers(self) -> list[int | Int64Array]: ...
    @property
    def read_parts(self) -> tuple[ReadPart, ...]: ...
    @property
    def parameter_names(self) -> tuple[str, ...]: ...
    def __iter__(self) -> Iterator[T_co]: ...
    def refs_of(self, origins: Sequence[Origin]) -> Refs: ...
    def open_pass(self, opening: Any) -> Any: ...


class IndexedNode(Node[T_co], Protocol[T_co]):
    """A node with positions; `IndexedDataset` is the base class of all of them."""

    @property
    def children(self) -> Sequence[Any]: ...
    @property
    def anchored(self) -> bool: ...
    def route(self, positions: Int64Array) -> Routes: ...
    def make(self, items: list[Any], request: Any) -> list[Any]: ...
    def taken(self, n: int) -> Sequence[int] | None: ...
    def spans(self, n: int) -> tuple[Sequence[Span], int]: ...
    def reached(self, n: int) -> Sequence[int] | None: ...
    def anchor_items(self, n: int) -> Sequence[int | None] | None: ...
    def refs(self, positions: npt.ArrayLike, attempt: int = 0) -> Refs: ...
    def consumed(self, n: int) -> Int64Array: ...


class SourceNode(IndexedNode[T_co], Protocol[T_co]):
    """A node without inputs: `count` stored samples. `Source` is the base class."""

    @property
    def name(self) -> str: ...
    @property
    def label(self) -> str | None: ...
    @property
    def unnamed_label(self) -> str | None: ...
    @property
    def count(self) -> int: ...
    @property
    def identity(self) -> str: ...
    @property
    def location(self) -> str: ...
    @property
    def record(self) -> str | None: ...
    @property
    def run_length(self) -> int | None: ...
    @property
    def remote(self) -> bool: ...
    @property
    def read_ahead(self) -> int: ...
    @property
    def column_names(self) -> tuple[str, ...]: ...
    def column(self, name: str) -> Column: ...
    def __getitem__(self, position: int) -> T_co: ...
    def read(self, indices: Int64Array) -> list[Any]: ...
    def byte_ranges(self, index: int) -> Iterator[tuple[str, int, int]]: ...
    def fetch(self, positions: Int64Array, reading: Any) -> list[Any]: ...
    def samples_at(self, positions: Int64Array, attempt: int) -> Int64Array: ...
    def expect(self, indices: Int64Array) -> int: ...
    def where(self, index: int) -> str: ...
    def place(self, index: int) -> Any: ...
    def find(self, shard: str | None, index: int) -> int | None: ...
    def describe(self) -> dict[str, Any]: ...


class ReadPart(NamedTuple):
    """A largest indexed dataset below a stream, or a source without random access."""

    dataset: Any
    source_numbers: Int64Array
    """The numbers of its sources in `sources` of the whole tree."""
