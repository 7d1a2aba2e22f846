"""Streams: datasets with items that are found by reading, in lanes.

Every stream is read by position, and positions only increase. Lane i of L reads the
positions i, i + L, ... of each epoch. Mixes and batches map them to positions of their
inputs, as if all were indexed. A stream that finds items by reading, such as a filter,
ignores the position and returns the next item of its share of the input (`LaneShare`).
A stream that cannot be divided is read from the front in every lane, which discards the
items of the other lanes (`WholeStream`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar, cast

import numpy as np

from energize.core import tree
from energize.core.arrays import Int64Array, rows_by_value
from energize.core.description import functions_of, label_of
from energize.core.failures import Failed
from energize.core.lanes import SINGLE_LANE, Lane
from energize.core.loss_weights import field_of
from energize.core.node import INFINITE, LAST_START, IndexedNode, Node, Origin, Routes
from energize.core.padding import Padded, unpadded
from energize.core.randomness import defer
from energize.core.rng import derive, hash_positions
from energize.core.trace import (
    MAX_ATTEMPTS,
    ReadContext,
    Request,
    Trace,
    expect,
    make_padded,
    stop_raised,
)
from energize.core.validation import short
from energize.errors import (
    EmptyDatasetError,
    NotIndexedError,
    NotRepeatableError,
    StateError,
    SubstitutionError,
)

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

State = dict[str, Any]
"""A JSON-able dict that a cursor resumes from."""

MOST_COUNTED = 2**45
"""Upper limit of counters in states (35 trillion). Products with batch sizes or numbers
of lanes still fit in int64."""

AnyPosition = TypeVar("AnyPosition", int, Int64Array)

WINDOW = 256
"""Number of positions that are announced together."""

_PASSES_PER_LANE = 100
"""Number of empty passes for each lane that raise an error. Fewer may be chance if
there are many lanes and few items."""

_END = object()

_SCATTER = derive("scatter")

_SAMPLES_OF_A_LANE = 1000
_MOST_LANES = 64

_MOST_BUFFERED = 2**14
"""Maximum number of samples in the buffers of all lanes, for the default number of
lanes."""

_FEWEST = 10_000
_MOST = 1_000_000
"""Limits of the number of items that may be read in a row without a result."""


def state_field(state: State, name: str, kind: type[T]) -> T:
    """Return a field of a state.

    Raises:
        StateError: If the field is missing or has another type.
    """
    value = state.get(name) if isinstance(state, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        raise StateError(
            f"the saved state has no usable {name!r}: expected {kind.__name__}, got "
            f"{short(value)}"
        )
    return value


def counter_field(state: State | None, name: str) -> int:
    """Return a counter of a saved state, such as a number of items; 0 without a state.

    Raises:
        StateError: If the field is not a valid counter.
    """
    if state is None:
        return 0
    value = state_field(state, name, int)
    if not 0 <= value < MOST_COUNTED:
        raise StateError(
            f"the saved state has {name} {short(value)}: expected 0 to 2**45 - 1"
        )
    return value


def numbers_field(
    state: State | None, name: str, count: int, *, kind: type = int, least: float = 0
) -> list[Any]:
    """Return a list of finite numbers of a saved state; zeros without a state.

    Args:
        state: The state.
        name: The field.
        count: Number of entries.
        kind: Type of the entries. With float, ints are valid, too.
        least: Lower limit of the entries.

    Raises:
        StateError: If the field is not such a list.
    """
    if state is None:
        return [0] * count
    numbers = state_field(state, name, list)
    if len(numbers) != count:
        raise StateError(
            f"the saved state has {len(numbers)} datasets in {name!r}, but this mix "
            f"has {count}"
        )
    kinds = int | kind
    if not all(
        isinstance(n, kinds) and math.isfinite(n) and n >= least for n in numbers
    ):
        raise StateError(
            f"the saved state has invalid numbers in {name!r}: {short(numbers)}"
        )
    return list(numbers)


def epoch_end(position: int, size: int) -> int:
    """Return the end of the epoch of `size` items that contains a position."""
    return min((position // size + 1) * size, INFINITE)


class EpochPlan(NamedTuple):
    """The items of an indexed dataset that the ranks deliver in an epoch.

    Step s of a rank delivers item start + rank + s * world_size. Positions from `end`
    on are padding: position p of an epoch of n items is a copy of item p mod n.

    Attributes:
        start: The first position to deliver.
        first: The first position of the epoch.
        end: The position after the last item of the epoch.
        steps: Number of steps of the rank; `INFINITE` in an endless epoch.
    """

    start: int
    first: int
    end: int
    steps: int = INFINITE

    def read_at(self, at: AnyPosition) -> AnyPosition:
        """Return the position that is read for a position, which may be a copy."""
        return self.first + (at - self.first) % (self.end - self.first)


class Opening(NamedTuple):
    """The arguments with which a stream is opened.

    Attributes:
        lane: The lane.
        state: The state to resume from; None for the beginning.
        reading: How samples are read.
        endless: Whether the stream continues from pass to pass.
    """

    lane: Lane
    state: State | None
    reading: ReadContext
    endless: bool = False

    @property
    def inner(self) -> Opening:
        """The opening of the only input."""
        state = None if self.state is None else state_field(self.state, "input", dict)
        return self._replace(state=state)

    def of_inputs(self, inputs: int) -> list[Opening]:
        """Return the opening of each of several inputs.

        Raises:
            StateError: If the state has another number of inputs.
        """
        if self.state is None:
            return [self] * inputs
        states = state_field(self.state, "inputs", list)
        if len(states) != inputs or not all(
            isinstance(state, dict | None) for state in states
        ):
            raise StateError(
                f"the saved state has {len(states)} inputs, but this mix has {inputs}: "
                f"{short(states)}"
            )
        return [self._replace(state=state) for state in states]

    def counter(self, name: str) -> int:
        """Return a counter of the saved state; 0 without a state."""
        return counter_field(self.state, name)


class LaneStream(ABC, Generic[T_co]):
    """A dataset as it is read in one lane, at increasing positions.

    An endless stream continues from pass to pass. Other streams raise `StopIteration`
    at the end of a pass of unknown length; their state is then that of the next pass.
    """

    origin: tuple[Origin, ...] = ()
    """The origins of the last item."""

    _input: Any = None
    _inputs: Sequence[Any] = ()
    """The streams that it reads, one or several. They are closed with it."""

    @abstractmethod
    def at(self, position: int, attempt: int = 0) -> T_co:
        """Return the next item of the lane.

        Args:
            position: The position of the item.
            attempt: Above 0, return a substitute for the last item, which was left out.
        """

    @abstractmethod
    def state(self) -> State:
        """Return the state to resume from: JSON-able, of constant shape."""

    def ahead(self, positions: Int64Array) -> None:
        """Announce the next positions, so that they can be read together."""

    def first_unread(
        self, branches: Iterator[int], reached: int | None = None
    ) -> int | None:
        """Return the first position of a dataset further down that no lane of this
        round has read.

        The loader marks that dataset by a stream of its own, which returns `reached`.
        Rounds of a saved state that are not over are read again on the way; nothing
        else is read.

        Args:
            branches: The input to descend to, for each stream with several inputs on
                the way.
            reached: The position after the last round of the `LaneReader` directly
                above, if this is read by one.

        Returns:
            The position; None if no `LaneReader` is directly above the marked dataset.
        """
        below = self._input
        if self._inputs:
            below = self._inputs[next(branches) if len(self._inputs) > 1 else 0]
        return (
            None if below is None else cast("int | None", below.first_unread(branches))
        )

    def close(self) -> None:
        """Close the inputs."""
        for stream in (self._input, *self._inputs):
            if stream is not None:
                stream.close()


class IndexedStream(LaneStream[T]):
    """An indexed dataset among streams. It has no state."""

    def __init__(self, dataset: IndexedNode[T], reading: ReadContext) -> None:
        self._dataset = dataset
        self._reading = reading
        self._coming: deque[int] = deque()
        self._read: deque[tuple[int, T]] = deque()
        self._far = any(source.remote for source in dataset.sources)
        self._worth_reading = tree.read_ahead(dataset)

    def ahead(self, positions: Int64Array) -> None:
        if self._far:
            expect(self._dataset, positions)
        self._coming.extend(positions.tolist())

    def at(self, position: int, attempt: int = 0) -> T:
        attempt *= MAX_ATTEMPTS
        self.origin = (Origin(0, position, attempt=attempt),)
        if self._reading.taken is not None:
            defer(partial(self._reading.taken, self._dataset))
        if not attempt:
            while self._read or self._coming:
                if not self._read:
                    self._fetch()
                read_position, item = self._read.popleft()
                if read_position == position:
                    return item
        at = np.array([position], dtype=np.int64)
        item = Trace(self._dataset, at).items(self._reading.again(attempt))[0]
        return cast("T", item)

    def _fetch(self) -> None:
        count = min(len(self._coming), self._worth_reading)
        some = [self._coming.popleft() for _ in range(count)]
        items = Trace(self._dataset, np.array(some, dtype=np.int64)).items(
            self._reading
        )
        self._read.extend(zip(some, items, strict=True))

    def state(self) -> State:
        return {}


_CHECKED = 256
"""Positions of a mix of streams that are checked when it is opened."""


class MixStream(LaneStream[T]):
    """Maps positions to positions of several endless inputs.

    An input that is a stream returns its next item, so `route` has to take the items of
    such an input in order.

    Raises:
        NotIndexedError: If `route` skips one of the first items of a stream; while
            reading, if it returns to one.
    """

    def __init__(
        self,
        route: Callable[[Int64Array], Routes],
        inputs: Sequence[Node[Any]],
        opening: Opening,
        *,
        addressed: bool = False,
    ) -> None:
        self._route = route
        if not addressed:
            self._check_skips(inputs)
        openings = opening._replace(endless=True).of_inputs(len(inputs))
        self._inputs = [
            (open_stream if addressed else open_input)(node, at)
            for node, at in zip(inputs, openings, strict=True)
        ]
        self._states: list[State | None] = [None] * len(inputs)
        self._streams = [None if node.indexed else node for node in inputs]
        self._last_inner = [-1] * len(inputs)
        self._parts_before = parts_before(inputs)
        self._coming: deque[tuple[int, int, int]] = deque()
        self._last = (0, 0)

    def _check_skips(self, inputs: Sequence[Node[Any]]) -> None:
        """Raise `NotIndexedError` if the first positions skip items of a stream.

        Lanes read few of the positions, so later skips are not seen.
        """
        inner, child = self._located(np.arange(_CHECKED, dtype=np.int64))
        for number, rows in rows_by_value(child):
            skipped = np.flatnonzero(inner[rows] > np.arange(len(rows)))
            if not inputs[number].indexed and len(skipped):
                item = int(skipped[0])
                raise NotIndexedError(
                    f"item {item} of {type(inputs[number]).__name__} is skipped, and "
                    f"item {int(inner[rows[item]])} taken in its place, but it can "
                    "only be read in order. Let route() take all items of a stream "
                    "once and in order, or override open_pass()"
                )

    def ahead(self, positions: Int64Array) -> None:
        inner, child = self._located(positions)
        self._coming.extend(
            zip(positions.tolist(), child.tolist(), inner.tolist(), strict=True)
        )
        for number, rows in rows_by_value(child):
            self._inputs[number].ahead(inner[rows])

    def at(self, position: int, attempt: int = 0) -> T:
        if not attempt:
            self._last = self._route_to(position)
            self._check_order(*self._last)
        number, inner = self._last
        self._states[number] = None
        item: T = self._inputs[number].at(inner, attempt)
        self.origin = shifted(self._inputs[number].origin, self._parts_before[number])
        return item

    def _check_order(self, number: int, inner: int) -> None:
        """Raise `NotIndexedError` if a stream would be read at a position again."""
        previous = self._last_inner[number]
        if inner <= previous and (stream := self._streams[number]) is not None:
            raise NotIndexedError(
                f"item {inner} of {type(stream).__name__} is needed after item "
                f"{previous}, but it can only be read in order. Let route() take the "
                "items of a stream once and in order, or override open_pass()"
            )
        self._last_inner[number] = inner

    def _route_to(self, position: int) -> tuple[int, int]:
        while self._coming:
            planned, number, inner = self._coming.popleft()
            if planned == position:
                return number, inner
        inner_positions, child = self._located(np.array([position], dtype=np.int64))
        return int(child[0]), int(inner_positions[0])

    def _located(self, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        routes = self._route(positions)
        child = np.zeros_like(positions) if routes.child is None else routes.child
        return routes.position, child

    def state(self) -> State:
        # Mixes of many inputs are asked for a state after every item, which moves one
        # of them.
        for number, state in enumerate(self._states):
            if state is None:
                self._states[number] = self._inputs[number].state()
        return {"inputs": list(self._states)}


def parts_before(inputs: Sequence[Node[Any]]) -> list[int]:
    """Return the number of indexed datasets before those of each input."""
    return cast(
        "list[int]", np.cumsum([0, *(len(node.read_parts) for node in inputs)]).tolist()
    )


def shifted(origin: tuple[Origin, ...], count: int) -> tuple[Origin, ...]:
    """Return the origins of an item of an input, numbered as in the mix."""
    return tuple(part._replace(part=part.part + count) for part in origin)


_CALLS = "calls"
"""Number of calls of each function in a chain, the innermost first."""


class ContentStream(LaneStream[T]):
    """Applies a node to each item of a stream, and skips items that are left out.

    Draws of the node are keyed by its number of calls.
    """

    def __init__(
        self,
        node: Any,
        open_input: Callable[[Opening], LaneStream[Any]],
        opening: Opening,
        *,
        draws: bool = True,
    ) -> None:
        self._node = node
        self._draws = draws
        self._lane, state, self._reading, _ = opening
        self._most = most_in_vain(node.inputs[0], self._lane)
        # Beside the state of the input, not around it: a run may go on with maps added,
        # or without.
        held = None if state is None else state_field({"input": state}, "input", dict)
        calls = [] if held is None else state_field({_CALLS: [], **held}, _CALLS, list)
        node_calls, below = (calls[-1:], calls[:-1]) if draws else ([], calls)
        self._called = (
            counter_field({_CALLS: node_calls[0]}, _CALLS) if node_calls else 0
        )
        below_it = None if held is None else {**held, _CALLS: below}
        self._input = open_input(opening._replace(state=below_it))

    def ahead(self, positions: Int64Array) -> None:
        self._input.ahead(positions)

    def at(self, position: int, attempt: int = 0) -> T:
        in_vain = 0
        while in_vain < self._most:
            item = self._read_input(position, attempt)
            attempt = attempt + 1
            in_vain = in_vain + self._weight()
            number = position
            if self._draws:
                number = self._lane.index + self._lane.count * self._called
                self._called += 1
            at = np.array([number], dtype=np.int64)
            request = Request(at, self._reading, by_keys(unpadded(item)))
            try:
                [result] = make_padded(self._node, [item], request)
            except StopIteration as stopped:
                raise stop_raised(self._node) from stopped
            if type(result) is not Failed:
                return cast("T", result)
            self._reading.leave_out(result, self._node, self.origin)
        raise SubstitutionError(
            f"{label_of(self._node)}: {functions_of(self._node)} left out {in_vain} "
            f"{self._counted} in a row. Check its condition"
        )

    _counted = "samples"

    def _weight(self) -> int:
        """Return the number of samples that the last item counts as, if left out."""
        return max(1, len(self.origin))

    def _read_input(self, position: int, attempt: int) -> Any:
        """Read the next item of the input."""
        item = self._input.at(position, attempt)
        self.origin = self._input.origin
        return item

    def state(self) -> State:
        state = self._input.state()
        calls = [self._called] if self._draws else []
        return {**state, _CALLS: [*state.get(_CALLS, []), *calls]}


def sample_keys_of(source_items: Any) -> str:
    """Return the sample keys of an item or a few, for messages about streams."""
    items = source_items[:3] if isinstance(source_items, list) else [source_items]
    keys = [
        str(key) for item in items if (key := field_of(item, "__key__")) is not None
    ]
    return ", ".join(keys) if keys else "a sample without a __key__"


def by_keys(source_items: Any) -> Callable[[int], str]:
    """Return a function that names any row by the keys of its source items."""
    return lambda _: sample_keys_of(source_items)


def open_input(node: Node[T], opening: Opening) -> LaneStream[T]:
    """Open an input of a stream, of which items are read in order.

    Args:
        node: The input.
        opening: The lane, the state and how samples are read. An endless opening
            continues from pass to pass. Otherwise a stream of unknown length ends with
            its pass.
    """
    if node.indexed or node.traits.stream.divisible or opening.lane.count == 1:
        return open_stream(node, opening)
    return LaneReader(node, opening)


def open_stream(node: Node[T], opening: Opening) -> LaneStream[T]:
    """Open a node as a stream, which is read at the positions of its lane.

    Args:
        node: The node.
        opening: As for `open_input`.
    """
    if node.indexed:
        return IndexedStream(cast("IndexedNode[T]", node), opening.reading)
    if node.traits.stream.divisible or opening.lane.count == 1:
        return _open_passes(node, opening)
    return WholeStream(partial(_open_passes, node), opening)


def _open_passes(node: Node[T], opening: Opening) -> LaneStream[T]:
    if node.sized or not opening.endless or node.traits.content_only:
        return cast("LaneStream[T]", node.open_pass(opening))
    return PassesStream(node.open_pass, opening, node)


class PassesStream(LaneStream[T]):
    """Reads pass after pass of a stream with finite passes.

    Raises `EmptyDatasetError` if passes have no items.
    """

    def __init__(
        self,
        open_pass: Callable[[Opening], LaneStream[T]],
        opening: Opening,
        dataset: Node[T],
    ) -> None:
        self._open = open_pass
        self._opening = opening
        self._dataset = dataset
        self._input = open_pass(opening)

    def ahead(self, positions: Int64Array) -> None:
        self._input.ahead(positions)

    def at(self, position: int, attempt: int = 0) -> T:
        lane = self._opening.lane
        for _ in range(empty_passes(lane)):
            try:
                item: T = self._input.at(position, attempt)
            except StopIteration:
                state = self._input.state()
                self._input.close()
                self._input = self._open(self._opening._replace(state=state))
            else:
                self.origin = self._input.origin
                return item
        raise nothing_comes(self._dataset, lane)

    def state(self) -> State:
        return cast("State", self._input.state())


def empty_passes(lane: Lane) -> int:
    """Return the number of passes without an item of a lane that is an error."""
    return 2 if lane.count == 1 else _PASSES_PER_LANE * lane.count


def nothing_comes(dataset: Node[Any], lane: Lane) -> EmptyDatasetError:
    """Return the error for passes of a dataset that had no item for a lane."""
    if lane.count == 1:
        return EmptyDatasetError(
            f"{label_of(dataset)} returned no item in a whole epoch. Check its data "
            "and the conditions of its filters, or remove it from the mix"
        )
    return EmptyDatasetError(
        f"{label_of(dataset)} returned no item to lane {lane.index} of {lane.count} in "
        f"{empty_passes(lane)} epochs: it has too few for so many lanes. Pass "
        "fewer lanes= to get_loader, or leave it out"
    )


def ended_early(dataset: Node[Any]) -> NotRepeatableError:
    """Return the error for a dataset with fewer items at a second reading."""
    return NotRepeatableError(
        f"{label_of(dataset)} gave fewer items at a second reading: it ended before "
        "the item that the run had reached. Make every reading give the same items in "
        "the same order. After removing data, start a new run"
    )


def skip_items(items: Iterator[T], count: int, dataset: Node[Any]) -> Iterator[T]:
    """Return an iterator after its first `count` items, which were read before.

    Raises:
        NotRepeatableError: If there are fewer items.
    """
    for _ in range(count):
        if next(items, _END) is _END:
            raise ended_early(dataset)
    return items


def most_in_vain(dataset: Node[Any], lane: Lane) -> int:
    """Return how many items in a row may be read for a lane without a result.

    For a single source this is the size of several passes, with a lower limit. For a
    mix it is a constant, since a source may be rare.
    """
    source = dataset
    while len(source.inputs) == 1:
        source = source.inputs[0]
    if source.inputs or not source.sized or source.size == INFINITE:
        return _MOST
    share = -(-source.size // lane.count)
    return min(_MOST, max(_FEWEST, share * empty_passes(lane)))


def lanes_of(dataset: Node[Any]) -> int:
    """Return the default number of lanes of a stream.

    It depends on the dataset only, so it is equal on any topology. A stream that cannot
    be divided has one lane. Otherwise each lane has samples for ten of the largest
    batches or buffers, and the buffers of all lanes together have a maximum size.
    """
    nodes = [dataset]
    least = _SAMPLES_OF_A_LANE
    held = 1
    for node in nodes:
        if not (node.indexed or node.traits.stream.divisible):
            return 1
        if not node.indexed:
            held = max(held, getattr(node, "buffer_size", None) or 0)
            least = max(least, 10 * held, 10 * (getattr(node, "batch_size", None) or 0))
            nodes += node.inputs
    samples = sum(source.size for source in dataset.sources)
    most = min(_MOST_LANES, samples // least, _MOST_BUFFERED // held)
    return 1 << max(most, 1).bit_length() - 1


class WholeStream(LaneStream[T]):
    """Reads a whole stream in every lane, and returns the items at the requested
    positions.

    The input is opened in a single lane. Its items are counted from 0 in every pass.
    """

    def __init__(
        self, open_whole: Callable[[Opening], LaneStream[T]], opening: Opening
    ) -> None:
        self._input = open_whole(opening.inner._replace(lane=SINGLE_LANE))
        self._next = opening.counter("next")

    def at(self, position: int, attempt: int = 0) -> T:
        try:
            while self._next < position:
                self._input.at(self._next)
                self._next += 1
            item: T = self._input.at(position)
        except StopIteration:
            self._next = 0
            raise
        self._next += 1
        self.origin = self._input.origin
        return item

    def state(self) -> State:
        return {"next": self._next, "input": self._input.state()}


class LaneShare:
    """A lane's share of the positions of an input, pass after pass: one of every L in a
    row.

    The offset within each row is random, so no condition on items coincides with lanes.
    It differs from pass to pass, so lanes share inputs with fewer items than lanes.

    Args:
        size: Number of positions in a pass; `INFINITE`, or None if it is unknown. If
            unknown, positions increase until `end_pass`, and then restart at 0.
        opening: The lane and the saved state.
    """

    def __init__(self, size: int | None, opening: Opening) -> None:
        lane = self.lane = opening.lane
        self._size = None if size == INFINITE else size
        self._pass, self._round = opening.counter("pass"), opening.counter("round")
        if (self._pass * (self._size or 0) + self._round * lane.count) >= LAST_START:
            raise StateError(f"the saved position (pass {self._pass}) is out of range")
        self._coming: deque[tuple[int, int]] = deque()

    def next(self, announce: Callable[[Int64Array], None]) -> int:
        """Return the next position.

        Args:
            announce: Called with the positions that follow, several at once.

        Raises:
            StopIteration: At the end of a pass of known size.
        """
        if not self._coming:
            places = self._look_ahead()
            if not len(places):
                raise StopIteration
            announce(places)
        self._round, position = self._coming.popleft()
        return position

    def _look_ahead(self) -> Int64Array:
        """Draw the positions of the next rounds; a round has one for each lane."""
        count = self.lane.count
        rounds = np.arange(self._round, self._round + WINDOW)
        turns = (hash_positions(_SCATTER, rounds) % np.uint64(count)).astype(np.int64)
        places = (self.lane.index + self._pass + turns) % count + rounds * count
        if self._size is not None:
            within = places < self._size
            places = places[within] + self._pass * self._size
            rounds = rounds[within]
        self._coming.extend(zip((rounds + 1).tolist(), places.tolist(), strict=True))
        return places

    @property
    def reached(self) -> int:
        """The end of the last round in which the lane has read a position."""
        within = self._round * self.lane.count
        if self._size is None:
            return within
        return self._pass * self._size + min(within, self._size)

    def end_pass(self) -> None:
        """Begin the next pass."""
        self._pass = self._pass + 1
        self._round = 0
        self._coming.clear()

    def state(self) -> State:
        """Return the state to resume from."""
        return {"pass": self._pass, "round": self._round}


class LaneReader(LaneStream[T]):
    """Reads a lane's share of an input in order, whatever positions are requested.

    For streams that read until they find an item. An endless reader continues from pass
    to pass, others raise `StopIteration` at the end of a pass.
    """

    def __init__(self, dataset: Node[T], opening: Opening) -> None:
        self._dataset = dataset
        self._endless = opening.endless
        self._share = LaneShare(dataset.size if dataset.sized else None, opening)
        self._opening = opening._replace(endless=dataset.sized)
        self._input = open_stream(dataset, self._opening.inner)
        self._empty_passes = 0

    def at(self, position: int, attempt: int = 0) -> T:
        return self.read()

    def read(self) -> T:
        """Return the next item of the share.

        Items that are padding as a whole are skipped, since no slot needs them.

        Raises:
            StopIteration: At the end of the pass, if the reader is not endless.
        """
        while True:
            try:
                item: T = self._input.at(self._share.next(self._input.ahead))
            except StopIteration:
                self._end_pass()
                if not self._endless:
                    raise
            else:
                self._empty_passes = 0
                self.origin = self._input.origin
                if not isinstance(item, Padded) or not item.is_whole:
                    return item

    def first_unread(
        self, branches: Iterator[int], reached: int | None = None
    ) -> int | None:
        return cast(
            "int | None", self._input.first_unread(branches, self._share.reached)
        )

    def _end_pass(self) -> None:
        self._share.end_pass()
        if not self._dataset.sized:
            state = self._input.state()
            self._input.close()
            self._input = open_stream(
                self._dataset, self._opening._replace(state=state)
            )
        self._empty_passes += 1
        lane = self._share.lane
        if self._endless and self._empty_passes > empty_passes(lane):
            raise nothing_comes(self._dataset, lane)

    def state(self) -> State:
        return {**self._share.state(), "input": self._input.state()}


class ChainStream(LaneStream[T]):
    """Reads a lane's share of one input after another, each in `passes` passes.

    After its passes, an input is at the beginning of its next pass.
    """

    def __init__(
        self, inputs: Sequence[Node[Any]], opening: Opening, passes: int = 1
    ) -> None:
        self._current, self._passed = (
            opening.counter("current"),
            opening.counter("passed"),
        )
        self._passes = passes
        openings = opening._replace(endless=False).of_inputs(len(inputs))
        self._inputs: list[LaneReader[T]] = [
            LaneReader(node, at) for node, at in zip(inputs, openings, strict=True)
        ]
        self._parts_before = parts_before(inputs)

    def at(self, position: int, attempt: int = 0) -> T:
        while self._current < len(self._inputs):
            reader = self._inputs[self._current]
            try:
                item = reader.read()
            except StopIteration:
                self._passed += 1
                if self._passed >= self._passes:
                    self._current = self._current + 1
                    self._passed = 0
            else:
                self.origin = shifted(reader.origin, self._parts_before[self._current])
                return item
        self._current = 0
        raise StopIteration

    def state(self) -> State:
        inputs = [reader.state() for reader in self._inputs]
        return {"current": self._current, "passed": self._passed, "inputs": inputs}


class LimitStream(LaneStream[T]):
    """Reads the first `length` items of a stream, in every epoch from the beginning.

    If the stream is not sized, it ends after one pass and is read as a whole.
    """

    def __init__(self, dataset: Node[T], length: int, opening: Opening) -> None:
        self._dataset = dataset
        self._length = length
        self._sized = dataset.sized
        self._epoch, self._taken = opening.counter("epoch"), opening.counter("taken")
        self._opening = opening._replace(endless=dataset.sized)
        self._input = open_input(dataset, self._opening.inner)

    def _begin(self, epoch: int) -> None:
        self._input.close()
        self._epoch = epoch
        self._taken = 0
        self._input = open_input(self._dataset, self._opening._replace(state=None))

    def at(self, position: int, attempt: int = 0) -> T:
        epoch, place = (
            divmod(position, self._length) if self._sized else (0, self._taken)
        )
        if epoch != self._epoch:
            self._begin(epoch)
        try:
            if place == self._length:
                raise StopIteration
            item: T = self._input.at(place, attempt)
        except StopIteration:
            self._begin(0)
            raise
        self._taken += not self._sized
        self.origin = self._input.origin
        return item

    def ahead(self, positions: Int64Array) -> None:
        if self._sized:
            places = positions - self._epoch * self._length
            self._input.ahead(places[places < self._length])

    def state(self) -> State:
        return {
            "epoch": self._epoch,
            "taken": self._taken,
            "input": self._input.state(),
        }
