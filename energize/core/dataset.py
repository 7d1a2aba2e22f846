"""The protocol: datasets describe, cursors move.

A `Dataset` is a frozen description of what to read and in which order. Opening it gives a `Cursor`,
the only thing that moves. An `IndexedDataset` is an endless sequence cut into epochs of `size`
items: item k is a pure function of k, and positions after the first epoch are the next ones, each
in an order of its own. Everything about order is therefore arithmetic on positions, and everything
about content is a function of what lies at a position. A dataset that is not indexed is a stream:
the same arithmetic, but its items are found one after another (`energize.core.stream`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import numpy as np
import numpy.typing as npt

from energize.core.arrays import Int64Array, rows_by_value
from energize.core.config import (
    Outline,
    Survey,
    differences_until,
    packed_outline,
    survey,
    tree_differences,
)
from energize.core.description import Description
from energize.core.lanes import SINGLE_LANE, Lane
from energize.core.reading import Failed, Reading, read_items
from energize.core.refs import Refs
from energize.core.stream import (
    INFINITE,
    LAST_START,
    CountingCursor,
    Cursor,
    IndexedStream,
    LaneCursor,
    Origin,
    PartReader,
    PartStream,
    RoutedStream,
    State,
    Stream,
    TakenStream,
    counter_field,
    state_field,
)
from energize.errors import ConfigError, NotIndexedError

if TYPE_CHECKING:
    from energize.data.source import Source


T_co = TypeVar("T_co", covariant=True)

_COUNTED_AT_ONCE = 2**16

_READING = Reading()
"""What is read by default: every sample, failures are logged, exceptions raised."""


class Dataset(Description, ABC, Generic[T_co]):
    """What to read and in which order: immutable, picklable, comparable, holding nothing open.

    Two datasets are equal when they are of one class, with equal parameters and equal inputs.
    Subclasses set their parameters once, with `_freeze` in `__init__`.
    """

    inputs: tuple[Dataset[Any], ...]

    def open(
        self,
        lane: Lane = SINGLE_LANE,
        state: State | None = None,
        reading: Reading = _READING,
    ) -> Cursor[T_co]:
        """Start reading, or go on from `state`; the only way to get something that moves.

        `reading` says what becomes of samples that fail.
        """
        return self.open_lane(lane, state, reading, endless=False)

    def open_lane(
        self, lane: Lane, state: State | None, reading: Reading, *, endless: bool
    ) -> LaneCursor[T_co]:
        """A cursor over this dataset as a stream; if `endless`, its epoch never ends."""
        size = INFINITE if endless else self.size if self.sized else None
        open_stream = partial(self.addressed, lane, reading=reading, endless=size is not None)
        return LaneCursor(open_stream, size, lane, state)

    @cached_property
    def indexed(self) -> bool:
        """Whether item k is a function of k alone: so for all inputs, down to the sources."""
        return all(each.indexed for each in self.inputs)

    @cached_property
    def sized(self) -> bool:
        """Whether `size` is known without reading."""
        return self.indexed

    @cached_property
    def size(self) -> int:
        """Items per epoch, or `INFINITE`; `NotIndexedError` where only reading tells."""
        raise self._length_unknown()

    def mismatches(
        self, saved: Outline, current: Outline, state: State, later: list[str]
    ) -> Iterator[str]:
        """What forbids to go on here from `state` of a dataset with another outline, a line each.

        Every difference does, but those that matter only after the state's position: they are told
        in `later`.
        """
        node: Dataset[Any] = self
        while node.ends_loops:
            node = node.inputs[0]
        position = state.get("position")
        if not node.indexed or not isinstance(position, int):
            return tree_differences(saved, current)
        return differences_until(node, position, saved, current, later)

    def settings_until(
        self, items: int, saved: Outline, later: list[str]
    ) -> tuple[Outline, list[str]]:
        """The saved outline with today's values of settings that differ, but not in what they make
        of the first `items` items; and what more there is to say of the others.
        """
        return saved, []

    @cached_property
    def survey(self) -> Survey:
        """What tells whether a state fits: a digest, and the functions called on items."""
        return survey(self)

    @cached_property
    def packed_outline(self) -> str:
        """What decides which samples come, as a state keeps it."""
        return packed_outline(self)

    @cached_property
    def pass_length(self) -> int:
        """Items in one pass over what is read: those of an epoch, or of one that never ends, as
        many as its inputs have together. `NotIndexedError` where only reading tells.
        """
        if (self.sized and self.size != INFINITE) or not self.inputs:
            return self.size
        return sum(each.pass_length for each in self.inputs)

    def __len__(self) -> int:
        """Items per epoch; of an endless dataset `pass_length`, for progress bars.

        `NotIndexedError` (a TypeError) when there is no such number.
        """
        return self.pass_length

    @property
    def steps_per_epoch(self) -> int | None:
        """How many steps each rank of a loader makes in a loop over this dataset, where that is not
        for the size of its epochs to say.
        """
        return None

    @property
    def divisible(self) -> bool:
        """Whether a lane of this stream is read without reading the other lanes' part."""
        return True

    def stream(
        self, lane: Lane, state: State | None, reading: Reading, *, endless: bool
    ) -> Stream[T_co]:
        """The dataset as an input of something that is read in `lane`.

        `endless` goes on from epoch to epoch, else a stream of unknown length ends with its epoch.
        """
        if self.indexed or self.divisible or lane.count == 1:
            return self.addressed(lane, state, reading, endless=endless)
        return PartStream(PartReader(self, lane, state, reading, endless=endless))

    def addressed(
        self, lane: Lane, state: State | None, reading: Reading, *, endless: bool
    ) -> Stream[T_co]:
        """As `stream`, for one who knows which positions are the lane's; none are asked in vain."""
        if self.indexed:
            return IndexedStream(cast("IndexedDataset[T_co]", self), reading)
        if self.divisible or lane.count == 1:
            return self._stream(lane, state, reading, endless)
        inner = None if state is None else state_field(state, "input", dict)
        whole = self._stream(SINGLE_LANE, inner, reading, endless)
        return TakenStream(whole, counter_field(state, "next"))

    def _stream(
        self, lane: Lane, state: State | None, reading: Reading, endless: bool
    ) -> Stream[T_co]:
        """As `addressed`, where it is not indexed; asked in a single lane if not `divisible`."""
        raise NotIndexedError(
            f"{type(self).__name__} needs random access to its input, and "
            f"{self._streaming_input()} can only be read as a stream"
        )

    def __getitem__(self, position: int) -> T_co:
        """`NotIndexedError`: a stream has no positions, see `IndexedDataset`."""
        raise self._not_indexed("random access")

    def _length_unknown(self) -> NotIndexedError:
        return NotIndexedError(
            f"how many items {type(self).__name__} gives is only known when they have been read; "
            "cut it with EpochizeDataset and count steps"
        )

    def _not_indexed(self, wanted: str) -> NotIndexedError:
        own, stream = type(self).__name__, self._streaming_input()
        read = "is" if own == stream else f"reads from {stream},"
        return NotIndexedError(
            f"{own} {read} a stream, so it has no {wanted}; iterate over it instead"
        )

    def _streaming_input(self) -> str:
        node: Dataset[Any] = self
        while True:
            streaming = [each for each in node.inputs if not each.indexed]
            if not streaming:
                return type(node).__name__
            node = streaming[0]

    @cached_property
    def parts(self) -> tuple[Dataset[Any], ...]:
        """What a stream reads: the largest indexed datasets below it, and sources without random
        access. An indexed dataset is its own only part.
        """
        if self.indexed or not self.inputs:
            return (self,)
        return tuple(part for each in self.inputs for part in each.parts)

    def refs_of(self, origins: Sequence[Origin]) -> Refs:
        """The samples that an item with these origins is made of, as refs of item 0."""
        found = []
        for part, position, epoch, attempt in origins:
            before = sum(len(each.sources) for each in self.parts[:part])
            each = self.parts[part]
            if each.indexed:
                at = np.array([position], dtype=np.int64)
                refs = cast("IndexedDataset[Any]", each).refs(at, attempt)
            else:
                refs = Refs.of_source(np.array([position]), np.array([epoch]))
            found.append((refs, np.zeros(1, dtype=np.int64), before))
        return Refs.merged(found)

    @cached_property
    def sources(self) -> tuple[Source[Any], ...]:
        """The sources that are read, in the order of the description; refs count in it."""
        return tuple(leaf for each in self.inputs for leaf in each.sources)

    def __iter__(self) -> Iterator[T_co]:
        return self.open()


class IndexedDataset(Dataset[T_co]):
    """A dataset whose item k is a pure function of k: `dataset[10**9]` costs what `dataset[0]`
    does.

    A wrapper is as indexed as its inputs: over a streaming input, `indexed` is False, and what
    needs positions raises `NotIndexedError`.
    """

    @cached_property
    @abstractmethod
    def size(self) -> int:
        """Items per epoch, or `INFINITE`; asked only where `sized`."""

    @property
    def read_ahead(self) -> int:
        """How many items are worth asking for at once."""
        inputs = cast("tuple[IndexedDataset[Any], ...]", self.inputs)
        return inputs[0].read_ahead if len(inputs) == 1 else self._least_read_ahead

    @cached_property
    def _least_read_ahead(self) -> int:
        """That of all inputs, which are looked at once: it is asked for again and again."""
        inputs = cast("tuple[IndexedDataset[Any], ...]", self.inputs)
        return min((each.read_ahead for each in inputs), default=1)

    @abstractmethod
    def fetch(self, positions: Int64Array, reading: Reading) -> list[T_co | Failed]:
        """The items at `positions` (int64, any order, any epoch), failed ones as `Failed`.

        What comes at a position depends on the position and `reading.attempt` alone. `__getitem__`
        and cursors ask again for failed positions with higher attempts, which sources answer with
        substitutes.
        """

    @abstractmethod
    def refs(self, positions: Int64Array, attempt: int = 0) -> Refs:
        """Which samples of which sources the items at `positions` are made of; reads nothing."""

    def passes(self, positions: Int64Array) -> Refs:
        """As `refs`, without saying which samples they are: `index` is -1 where that is cheaper."""
        return self.refs(positions)

    def taken(self, n: int) -> Sequence[int] | None:
        """How many items of each of `inputs` the first `n` items are made of, where these are each
        input's first ones; None where others are taken.
        """
        return None

    def reached(self, n: int) -> Sequence[int] | None:
        """How far in each of `inputs` the first `n` items lead, where they lead on without gaps."""
        return self.taken(n)

    def consumed(self, n: int) -> Int64Array:
        """How many samples of each of `sources` the first `n` items are made of: int64.

        Reads nothing. Failed samples count, their substitutes do not. What takes no prefix of a mix
        costs in proportion to its epochs among the `n` items, or where not even these are known, to
        `n`.
        """
        taken = self.taken(n)
        if taken is None:
            return np.array([n], dtype=np.int64) if self.one_each else self._counted(0, n)
        pairs = zip(self.inputs, taken, strict=True)
        return np.concatenate([cast("IndexedDataset[Any]", each).consumed(k) for each, k in pairs])

    @property
    def one_each(self) -> bool:
        """Whether every item is known to be one sample, all of one source."""
        return False

    def _counted(self, start: int, stop: int) -> Int64Array:
        """What the items from `start` to before `stop` consume, counted one by one."""
        counts = np.zeros(len(self.sources), dtype=np.int64)
        for first in range(start, stop, _COUNTED_AT_ONCE):
            positions = np.arange(first, min(first + _COUNTED_AT_ONCE, stop), dtype=np.int64)
            counts += np.bincount(self.refs(positions).source, minlength=len(counts))
        return counts

    def where(self, position: int, attempt: int = 0) -> str:
        """Where the first sample of the item at `position` lies, for messages."""
        refs = self.refs(np.array([position], dtype=np.int64), attempt)
        if not len(refs):
            return f"item {position}, which is padding"
        return self.sources[int(refs.source[0])].where(int(refs.index[0]))

    def __getitem__(self, position: int) -> T_co:
        """Item `position` of the first epoch; IndexError after it, negative ones from its end."""
        self._check_indexed("random access")
        if isinstance(position, bool) or not isinstance(position, int | np.integer):
            raise ConfigError(
                f"{type(self).__name__}[{position!r}]: an index is one whole number; for several "
                "items at once use at([0, 1, 2]), for the first ones LimitDataset"
            )
        if position < 0 and self.size != INFINITE:
            position += self.size
        if not 0 <= position < self.size:
            raise IndexError(f"position {position} of a dataset of {self.size} items per epoch")
        return self.at(np.array([position], dtype=np.int64))[0]

    def at(self, positions: npt.ArrayLike, reading: Reading = _READING) -> list[T_co]:
        """The items at any positions, of any epochs, with failed samples substituted."""
        self._check_indexed("random access")
        asked = np.asarray(positions)
        whole = asked.dtype.kind in "iu" or not asked.size
        if asked.ndim != 1 or not (whole and ((asked >= 0) & (asked < LAST_START)).all()):
            raise ConfigError(
                f"{type(self).__name__}.at: positions are whole numbers, 0 or more and below 2**62,"
                f" in one row; got {str(positions)[:80]}"
            )
        return read_items(self, asked.astype(np.int64), reading)

    def open(
        self,
        lane: Lane = SINGLE_LANE,
        state: State | None = None,
        reading: Reading = _READING,
    ) -> Cursor[T_co]:
        if not self.indexed:
            return super().open(lane, state, reading)
        self.check_state(state or {"position": 0})
        return CountingCursor(self, lane, counter_field(state, "position"), reading)

    def state_at(self, position: int) -> State:
        """The state in which `position` items have been delivered."""
        return {"position": position}

    def check_state(self, state: State) -> None:
        """Raises `StateError` for a state that this dataset cannot go on from."""

    def padding(self, positions: Int64Array) -> npt.NDArray[np.bool_]:
        """For each of `positions` whether its item is padding, which counts for nothing."""
        return np.zeros(len(positions), dtype=np.bool_)

    def watcher(self, lane: Lane) -> Callable[[int], None] | None:
        """What is told the position of each item that a lane delivers, if anything is."""
        return None

    def _check_indexed(self, wanted: str) -> None:
        if not self.indexed:
            raise self._not_indexed(wanted)


# What passes items of one input on, each at its place: datasets, and how they are read.

T = TypeVar("T")


class PassingDataset(Dataset[T_co]):
    """As many items as its only input has, at the same places, in the same order of a mix."""

    @cached_property
    def key(self) -> int:
        """That of the input: what is done with items must not change the order of a mix of them."""
        return self.inputs[0].key

    @cached_property
    def sized(self) -> bool:
        return self.inputs[0].sized

    @cached_property
    def size(self) -> int:
        return self.inputs[0].size

    @property
    def steps_per_epoch(self) -> int | None:
        return self.inputs[0].steps_per_epoch


class PassingStream(Stream[T]):
    """A stream as it is, each item of which `passed` is told of."""

    def __init__(self, stream: Stream[T]) -> None:
        self._stream = stream

    def passed(self, item: T, position: int) -> T:
        """What comes of an item."""
        return item

    def ahead(self, positions: Int64Array) -> None:
        self._stream.ahead(positions)

    def at(self, position: int, attempt: int = 0) -> T:
        item = self._stream.at(position, attempt)
        self.origin = self._stream.origin
        return self.passed(item, position)

    def state(self) -> State:
        return self._stream.state()

    def check_after(self, last: int | None, *, exact: bool) -> None:
        self._stream.check_after(last, exact=exact)

    def close(self) -> None:
        self._stream.close()


# The datasets that decide order: each is a route from positions to positions of its inputs.


def indexed_inputs(dataset: IndexedDataset[Any]) -> tuple[IndexedDataset[Any], ...]:
    """The inputs of an indexed dataset, which are indexed too."""
    return cast("tuple[IndexedDataset[Any], ...]", dataset.inputs)


def consumed_in_epochs(dataset: IndexedDataset[Any], n: int, size: int, stride: int) -> Int64Array:
    """What the first `n` items of epochs consume that are the first `size` of every `stride` items
    of a dataset; with a stride of 0, all of them its first.
    """
    if dataset.one_each:
        return np.array([n], dtype=np.int64)

    def read(epoch: int, items: int) -> Int64Array:
        start = epoch * stride
        return dataset.consumed(start + items) - dataset.consumed(start)

    epochs, rest = divmod(n, max(size, 1))
    if not stride:
        return epochs * read(0, size) + read(0, rest)
    return sum((read(epoch, size) for epoch in range(epochs)), start=read(epochs, rest))


class RoutedDataset(IndexedDataset[T_co]):
    """Items pass through unchanged; `route` says which item of which input comes at a position."""

    @abstractmethod
    def route(self, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        """For each position the number of an input and a position in it; a pure function."""

    @property
    def routed_to(self) -> tuple[IndexedDataset[Any], ...]:
        """What `route` leads to, one for each of `inputs`."""
        return indexed_inputs(self)

    @cached_property
    def one_each(self) -> bool:
        return len(self.inputs) == 1 and indexed_inputs(self)[0].one_each

    def fetch(self, positions: Int64Array, reading: Reading) -> list[T_co | Failed]:
        inputs = self.routed_to
        which, inner = self.route(positions)
        if len(inputs) == 1:
            return inputs[0].fetch(inner, reading)
        items: list[Any] = [None] * len(positions)
        for number, rows in rows_by_value(which):
            fetched = inputs[number].fetch(inner[rows], reading)
            for row, item in zip(rows.tolist(), fetched, strict=True):
                items[row] = item
        return items

    def refs(self, positions: Int64Array, attempt: int = 0) -> Refs:
        inputs = self.routed_to
        which, inner = self.route(positions)
        if len(inputs) == 1:
            return inputs[0].refs(inner, attempt)
        return Refs.merged(
            [
                (inputs[number].refs(inner[rows], attempt), rows, self._sources_before[number])
                for number, rows in rows_by_value(which)
            ]
        )

    def passes(self, positions: Int64Array) -> Refs:
        inputs = self.routed_to
        if type(self).refs is not RoutedDataset.refs:
            return super().passes(positions)
        which, inner = self.route(positions)
        if len(inputs) == 1:
            return inputs[0].passes(inner)
        parts = [
            (inputs[number].passes(inner[rows]), rows, self._sources_before[number])
            for number, rows in rows_by_value(which)
        ]
        if any(len(refs) != len(rows) for refs, rows, _ in parts):
            return Refs.merged(parts)
        source, epoch = np.empty_like(which), np.empty_like(positions)
        for refs, rows, before in parts:  # one sample each
            at = rows[refs.item]
            source[at], epoch[at] = refs.source + before, refs.epoch
        nobody = np.full(len(positions), -1, dtype=np.int64)
        return Refs(np.arange(len(positions)), source, nobody, epoch)

    def _stream(
        self, lane: Lane, state: State | None, reading: Reading, endless: bool
    ) -> Stream[T_co]:
        if not self.sized:
            return super()._stream(lane, state, reading, endless)
        return RoutedStream(self.route, self.inputs, lane, state, reading)

    @cached_property
    def _sources_before(self) -> list[int]:
        """How many sources stand before those of each input."""
        counts = [len(each.sources) for each in self.inputs]
        return list(accumulate(counts, initial=0))
