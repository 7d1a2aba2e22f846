"""Datasets: frozen descriptions of the samples of a run and their order.

An `IndexedDataset` is an endless sequence, divided into epochs of `size` items: item k
is a pure function of k, and each epoch has an order of its own. A node of a tree states
two members: `route` maps positions to positions of its inputs, and `make` makes items
of the input items. `Trace` walks down `route`, for reading as for `refs`. A dataset
that is not indexed is a stream: its items are discovered one after another
(`energize.core.stream`).
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from itertools import starmap
from operator import attrgetter
from typing import Any, Generic, Self, TypeVar, cast

import numpy as np
import numpy.typing as npt

from energize.core import tree
from energize.core.arrays import Int64Array
from energize.core.config import Config, config_of, fingerprint_of
from energize.core.description import Description, label_of
from energize.core.failures import Failed
from energize.core.lanes import SINGLE_LANE, Lane, log_whole_reading
from energize.core.node import (
    INFINITE,
    LAST_START,
    NodeTraits,
    Origin,
    ReadPart,
    Refs,
    Routes,
    SourceNode,
    Span,
)
from energize.core.padding import with_marks
from energize.core.reader import DatasetReader, PositionReader, open_lane
from energize.core.stream import (
    ContentStream,
    EpochPlan,
    LaneStream,
    MixStream,
    Opening,
    State,
    counter_field,
    epoch_end,
    open_input,
)
from energize.core.trace import (
    ReadContext,
    Request,
    Trace,
    consumed,
    read_items,
    refs_of,
)
from energize.errors import ConfigError, EmptyDatasetError, NotIndexedError

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_READING = ReadContext()
"""Every sample is read, failures are logged, exceptions raised."""


class Dataset(Description, ABC, Generic[T_co]):
    """A description of samples and their order: immutable, picklable, comparable.

    A dataset holds no open files. Two datasets are equal if their classes, parameters
    and inputs are equal. Subclasses set their parameters once, with `freeze` in
    `__init__`.
    """

    order_name = "Dataset"

    inputs: tuple[Dataset[Any], ...]

    def open(
        self,
        lane: Lane = SINGLE_LANE,
        state: State | None = None,
        reading: ReadContext = _READING,
    ) -> DatasetReader[T_co]:
        """Return a cursor that reads a lane.

        Args:
            lane: The lane.
            state: The saved state to resume from; None to start at the beginning.
            reading: How samples are read, and the effect of failures.
        """
        return open_lane(self, lane, state, reading)

    @cached_property
    def indexed(self) -> bool:
        """Whether item k is a function of k alone, for all inputs."""
        return all(map(attrgetter("indexed"), self.inputs))

    @cached_property
    def sized(self) -> bool:
        """Whether `size` is known without reading."""
        return (
            all(map(attrgetter("sized"), self.inputs)) if self.inputs else self.indexed
        )

    @cached_property
    def size(self) -> int:
        """Items per epoch, or `INFINITE`; `NotIndexedError` if unknown."""
        raise tree.length_unknown(self)

    @cached_property
    def sources(self) -> tuple[SourceNode[Any], ...]:
        """The sources of the dataset, in the order in which refs number them."""
        sources: list[SourceNode[Any]] = []
        for dataset in self.inputs:
            sources.extend(dataset.sources)
        return tuple(sources)

    @cached_property
    def anchored(self) -> bool:
        """Whether a state needs facts about nodes of the tree, see `Anchor`."""
        has_anchor = self.traits.loop.anchor is not None
        return has_anchor or any(dataset.anchored for dataset in self.inputs)

    @cached_property
    def has_loss_weights(self) -> bool:
        """Whether a dataset in the tree gives its items loss weights."""
        return any(dataset.has_loss_weights for dataset in self.inputs)

    @cached_property
    def source_numbers(self) -> list[int | Int64Array]:
        """The numbers in `sources` of the sources of every input."""
        return tree.source_numbers(self)

    @cached_property
    def read_parts(self) -> tuple[ReadPart, ...]:
        """The parts that origins count; see `tree.read_parts`."""
        return tree.read_parts(self)

    @cached_property
    def order_config(self) -> Config:
        """The config of all that decides which samples come."""
        return config_of(self)

    @cached_property
    def fingerprint(self) -> str:
        """The digest of all that decides which samples come."""
        return fingerprint_of(self)

    def to_html(self) -> str:
        """Return a table of what the dataset reads, as notebooks show it."""
        from energize.core.html import dataset_html

        return dataset_html(self)

    _repr_html_ = to_html

    def __len__(self) -> int:
        """Return the items per epoch; for an endless dataset, those of a pass.

        For progress bars.

        Raises:
            NotIndexedError: If the number is unknown; it is also a TypeError.
        """
        return tree.pass_length(self)

    def __iter__(self) -> Iterator[T_co]:
        log_whole_reading(type(self).__name__)
        return self.open()

    def __getattr__(self, name: str) -> Any:
        text = f"{type(self).__name__!r} object has no attribute {name!r}"
        if name in ("state_dict", "load_state_dict"):
            text += (
                ": a dataset has no position; its loader has one, get_loader(dataset)"
            )
        raise AttributeError(text)

    def __getitem__(self, position: int) -> T_co:
        raise tree.not_indexed(self, "random access")

    def refs_of(self, origins: Sequence[Origin]) -> Refs:
        """Return the samples that an item of a cursor is made of, from `cursor.origin`:
        of item 0.

        >>> from energize import ListSource
        >>> from energize.datasets.transform import FilterDataset
        >>> evens = FilterDataset(ListSource(range(9)), lambda x: x % 2 == 0)
        >>> cursor = evens.open()
        >>> [
        ...     (next(cursor), evens.refs_of(cursor.origin).index.tolist())
        ...     for _ in range(3)
        ... ]
        [(0, [0]), (2, [2]), (4, [4])]
        """
        return refs_of(self, origins)

    def open_pass(self, opening: Opening) -> LaneStream[T_co]:
        """Open this node as a stream, in one lane; only called if it is not indexed.

        The default serves nodes of known size whose `route` takes the items of every
        input once and in order: a stream returns its next item at any position. Other
        nodes override it.

        Args:
            opening: The lane, the state to resume from and how samples are read. If
                `opening.endless`, the stream is followed by further passes.

        Returns:
            A stream of one pass. It is endless if `size` is known, or if the node only
            changes content and its input is endless.
        """
        raise NotIndexedError(
            f"{type(self).__name__} needs random access to its input, but "
            f"{tree.first_stream(self)} can only be read as a stream"
        )

    def settled(
        self, saved: dict[str, Any], current: dict[str, Any], n: int
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Remove from two configs what concerns only later items.

        A state is loaded by another dataset if the results are equal.

        Args:
            saved: The config of this node in a state.
            current: The config of this node today.
            n: Number of items of this node that the state has delivered.

        Returns:
            Both configs.
        """
        return saved, current

    def reached(self, n: int) -> Sequence[int] | None:
        """Return the position in every input after `n` items; None if unknown."""
        return None


class IndexedDataset(Dataset[T_co]):
    """A dataset with item k a pure function of k: the base class of new nodes.

    The items are an endless sequence, cut into epochs of `size` items: position `size`
    is the first item of the second epoch. `dataset[10**9]` costs as much as
    `dataset[0]`.

    A node sets its inputs and parameters in `__init__`, with `freeze`, and overrides
    members with other values than the defaults:

    | member | states | default |
    |---|---|---|
    | `size` | items in an epoch, or `INFINITE` | as the only input |
    | `route(positions)` | the input and position of the items of an item | the same |
    | `make(items, request)` | the items made of these items | the items themselves |
    | `traits` | properties that readers depend on, see `NodeTraits` | order only |
    | `taken(n)` | how many items of every input the first `n` items use up | None |
    | `spans(n)` | the runs of input items the first `n` items are made of | `taken` |
    | `reached(n)` | the position in every input after `n` items | `taken` |
    | `children` | the datasets that `route` leads to | `inputs` |
    | `settings()` | the parameters as JSON, for configs and states | all of them |
    | `settled(saved, current, n)` | configs without settings of later items | both |
    | `open_pass(opening)` | a stream, for inputs that are streams | by `route` |

    `taken`, `spans` and `reached` only make counting fast, and resuming possible in
    more cases; without them, items are located one by one.

    Everything else follows from these members: reading, failures, batches, mixes,
    loaders, states and reports. `indexed`, `sized`, `sources` and `key` follow from the
    inputs. Over a stream, `indexed` is False, and members that need positions raise
    `NotIndexedError`. Random draws depend on `order_name`, which a class keeps if it is
    renamed.

    Example:
        >>> from energize import ListSource
        >>> from energize.core.node import INFINITE, Routes, Span
        >>> class TwiceDataset(IndexedDataset):
        ...     def __init__(self, dataset):
        ...         self.freeze(inputs=[dataset])
        ...
        ...     @property
        ...     def size(self):
        ...         inner = self.inputs[0].size
        ...         return INFINITE if inner == INFINITE else 2 * inner
        ...
        ...     def route(self, positions):
        ...         return Routes(positions // 2)
        ...
        ...     def spans(self, n):
        ...         pairs, rest = divmod(n, 2)
        ...         return [Span(0, 0, pairs, 2), Span(0, pairs, pairs + rest)], n
        >>> twice = TwiceDataset(ListSource("abc"))
        >>> "".join(twice), twice.consumed(5).tolist()
        ('aabbcc', [5])
    """

    order_name = "IndexedDataset"

    @cached_property
    def size(self) -> int:
        """Items per epoch, or `INFINITE`; by default that of the input."""
        return self.inputs[0].size

    def route(self, positions: Int64Array) -> Routes:
        """Return which items of the inputs the items at `positions` are made of.

        A pure function of the positions (int64, of any order and epoch) that reads
        nothing. By default item k is item k of the only input.
        """
        return Routes(positions)

    def make(self, items: list[Any], request: Request) -> list[T_co | Failed]:
        """Return the items at the positions of a request.

        Args:
            items: For each position an item of an input, or `Failed`; if `route`
                returns owners, the list of its members, none of which has failed.
            request: Positions, reading and locations.

        Returns:
            The items; by default `items` unchanged.
        """
        return items

    def taken(self, n: int) -> Sequence[int] | None:
        """Count the items of every input that the first `n` items are made of.

        Args:
            n: Number of items, counted from position 0.

        Returns:
            Items per input, if every input gives its first items, each once. None
            otherwise.
        """
        return None

    def __init_subclass__(cls, **options: Any) -> None:
        """Check that a class with its own `make` states the trait `makes`."""
        super().__init_subclass__(**options)
        stating = next(base for base in cls.__mro__ if "traits" in vars(base))
        stated = vars(stating)["traits"]
        if isinstance(stated, NodeTraits):
            called = stated.makes
        else:
            called = getattr(stating, "make", IndexedDataset.make) is not (
                IndexedDataset.make
            )
        if "make" in vars(cls) and not called:
            raise ConfigError(
                f"{cls.__name__} has its own make, which would not be called. Add "
                "traits = NodeTraits(makes=True) to the class"
            )

    @cached_property
    def children(self) -> Sequence[IndexedDataset[Any]]:
        """The datasets that positions of `route` belong to, one for each input.

        They differ from `inputs` if a node resumes them where another one has stopped.
        """
        return cast("tuple[IndexedDataset[Any], ...]", self.inputs)

    def with_children(self, change: Callable[[int, Any], Any]) -> Self:
        """Return the same dataset over equal children, which know more anchors.

        Args:
            change: Returns the new child of a number and a child.
        """
        return self.with_inputs(list(starmap(change, enumerate(self.children))))

    def anchor_items(self, n: int) -> Sequence[int | None] | None:
        """Return the item of every child that is next after the first `n` items.

        States contain facts about them, see `Anchor`.

        Returns:
            An item per child, by default `reached(n)`; None for a child that no item
            has come from. None if they are unknown.
        """
        return self.reached(n)

    def spans(self, n: int) -> tuple[Sequence[Span], int]:
        """Return the runs of input items that the first `n` items are made of.

        Args:
            n: Number of items, counted from position 0.

        Returns:
            The runs, and how many of the first `n` items are made of them. The
            remaining items are located one by one.
        """
        counts = self.taken(n)
        if counts is None:
            return (), 0
        return [Span(child, 0, count) for child, count in enumerate(counts)], n

    def reached(self, n: int) -> Sequence[int] | None:
        """Return the position in every input after the first `n` items.

        Returns:
            A position per input, by default `taken(n)`. None if an input is not read
            in order, or if only reading shows how far it is read.
        """
        return self.taken(n) if self.indexed or self.sized else None

    def open_pass(self, opening: Opening) -> LaneStream[T_co]:
        if not self.sized:
            return super().open_pass(opening)
        return MixStream(self.route, self.inputs, opening)

    def refs(self, positions: npt.ArrayLike, attempt: int = 0) -> Refs:
        """Return the samples that the items at `positions` are made of, without
        reading.

        Args:
            positions: Positions of any integer type.
            attempt: The number of the substitute; 0 for the samples themselves.
        """
        return Trace(self, np.asarray(positions, dtype=np.int64)).refs(attempt)

    def consumed(self, n: int) -> Int64Array:
        """Count the samples each source contributes to the first `n` items.

        Reads no data. Failed samples count, their substitutes do not. Nodes without a
        closed form take time proportional to `n`, or to the epochs of their inputs.

        Args:
            n: Number of items, from the start.

        Returns:
            Samples per source, int64 of shape (num_sources,), in the order of
            `self.sources`.
        """
        return cast("Int64Array", consumed(self, n))

    def __getitem__(self, position: int) -> T_co:
        """Return item `position` of the first epoch, a negative one counted from its
        end.

        Raise IndexError for positions outside of it.
        """
        if not self.indexed:
            raise tree.not_indexed(self, "random access")
        if isinstance(position, bool) or not isinstance(position, int | np.integer):
            raise ConfigError(
                f"{type(self).__name__}[{position!r}]: an index must be one whole "
                "number. Use at([0, 1, 2]) for several items, or LimitDataset for the "
                "first ones"
            )
        if position < 0 and self.size != INFINITE:
            position += self.size
        if not 0 <= position < self.size:
            raise IndexError(
                f"position {position} is outside of a dataset of {self.size} items "
                "per epoch"
            )
        at = np.array([position], dtype=np.int64)
        item: T_co = with_marks(read_items(self, at, _READING)[0])[0]
        return item

    def at(
        self, positions: npt.ArrayLike, reading: ReadContext = _READING
    ) -> list[T_co]:
        """Return the items at any positions, of any epochs, with failed samples
        substituted.
        """
        if not self.indexed:
            raise tree.not_indexed(self, "random access")
        values = np.asarray(positions)
        whole = values.dtype.kind in "iu" or not values.size
        if values.ndim != 1 or not (
            whole and ((values >= 0) & (values < LAST_START)).all()
        ):
            raise ConfigError(
                f"{type(self).__name__}.at: positions must be whole numbers >= 0 and "
                f"below 2**62 in one row, got {str(positions)[:80]}"
            )
        items = read_items(self, values.astype(np.int64), reading)
        return [with_marks(item)[0] for item in items]

    def open(
        self,
        lane: Lane = SINGLE_LANE,
        state: State | None = None,
        reading: ReadContext = _READING,
    ) -> DatasetReader[T_co]:
        if not self.indexed:
            return super().open(lane, state, reading)
        tree.check_state(self, state or {"position": 0})
        if self.size == 0:
            raise EmptyDatasetError(f"{label_of(self)} has no items to read")
        start = counter_field(state, "position")
        end = epoch_end(start, self.size)
        dataset = self
        if state is not None and "anchors" in state:
            dataset = tree.anchored_at(self, tree.anchors_in(self, state))
        return PositionReader(
            dataset,
            EpochPlan(start, 0, end),
            lane,
            reading,
            turns=len(range(start + lane.index, end, lane.count)),
            watch=tree.watcher(self, lane),
        )


class PassingDataset(IndexedDataset[T_co]):
    """As many items as its only input has, each at its place; they draw nothing of
    their own.
    """

    order_name = "PassingDataset"

    @cached_property
    def traits(self) -> NodeTraits:
        return NodeTraits(content_only=True)

    def open_pass(self, opening: Opening) -> LaneStream[T_co]:
        open_content = partial(open_input, self.inputs[0])
        return ContentStream(self, open_content, opening, draws=self.traits.draws)

    @cached_property
    def key(self) -> int:
        """That of the input: what is done with items does not change the order of a mix
        of them.
        """
        return self.inputs[0].key

    def taken(self, n: int) -> Sequence[int] | None:
        return [n]
