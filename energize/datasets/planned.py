"""Packs and batches that are planned from columns, so that they have positions.

The input is cut into windows of consecutive items. A `Plan` divides a window into
groups by the lengths of its samples; each group is an item. A window is planned by
itself, so it is a function of its number, and the only fact that a far position needs
is the number of items before its window: its *anchor*, which states contain.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from operator import itemgetter, sub
from threading import Lock
from typing import Any, Literal, Self, TypeVar

import numpy as np

from energize.core import tree
from energize.core.arrays import Int64Array, UInt64Array, rows_by_value
from energize.core.call import Call
from energize.core.checks import (
    checked_choice,
    checked_flag,
    checked_function,
    checked_whole,
)
from energize.core.costs import ColumnCost, Cost, named
from energize.core.dataset import Dataset, IndexedDataset
from energize.core.description import function_name, generates
from energize.core.failures import Failed
from energize.core.ignored import log_once
from energize.core.lanes import WorkerConfig
from energize.core.loss_weights import carried
from energize.core.node import (
    INFINITE,
    LAST_START,
    LoopTraits,
    NodeTraits,
    Origin,
    Routes,
    SourceNode,
    Span,
    Substitutes,
)
from energize.core.progress import progress
from energize.core.rng import derive, hash_positions
from energize.core.trace import Request, location_of
from energize.errors import (
    ColumnError,
    ConfigError,
    EmptyDatasetError,
    NotIndexedError,
    SkipSample,
    StateError,
)
from energize.packing.packer import Capacity, checked_capacity, length_of
from energize.packing.plan import (
    Plan,
    consecutive_batches,
    interleaved,
    merged,
    planned_batches,
    planned_packs,
)

T_in = TypeVar("T_in")
T_co = TypeVar("T_co", covariant=True)

WINDOW = 16_384
"""Samples of a window, by default."""

_PLANS = 4
"""Cached plans; items are mostly read in order."""

_ANCHORS = 64
"""Anchors that are copied to other processes."""

_MOST_WINDOWS = 2**62

_FIRST = ((0, 0),)
"""The anchors of a start: no items are before window 0."""

_LONGEST = 2**60
"""As which longer lengths count, above all capacities."""

_OFF = 0.01
"""Difference between planned and real lengths that is reported."""

TOO_LONG = ("error", "drop", "cut")

Length = Cost | ColumnCost
"""The length of a sample: the name of a column, or a function of columns."""


@dataclass(frozen=True, slots=True)
class WindowSamples:
    """The lengths and sources of the items of a window, from columns.

    Attributes:
        positions: Positions in the input, int64, shape (num_items,).
        lengths: Lengths, int64, shape (num_items, num_lengths).
        source: Number of the source of the first sample of each item, int64.
        index: Number of that sample in its source, int64.
    """

    positions: Int64Array
    lengths: Int64Array
    source: Int64Array
    index: Int64Array


def cost_of(length: Length) -> ColumnCost:
    """Return the cost of a length."""
    return length if isinstance(length, ColumnCost) else ColumnCost(length)


def _wrong_anchor(window: int, items: int, n: int) -> StateError:
    """Return the error for a window that does not contain item `n`."""
    return StateError(
        f"the saved state's 'anchors' have window {window} with {items} items before "
        f"it, which does not contain item {n}. Load the state as it was saved, with "
        "the mix that saved it"
    )


class Anchors:
    """The number of items before windows, as far as it is known.

    Args:
        count: Returns the number of items of a window.
        known: Windows, and the number of items before each: ascending pairs (items,
            window).
        most_empty: How many windows in a row may have no items.
        resumed: An item of the first known window, if a state has it. It is verified
            when the window is planned.
    """

    def __init__(
        self,
        count: Callable[[int], int],
        known: Sequence[tuple[int, int]] = _FIRST,
        most_empty: int = 0,
        resumed: int | None = None,
    ) -> None:
        self._count = count
        self._resumed = resumed
        self._known = list(known)
        self._most_empty = most_empty
        self._empty = 0
        self._lock = Lock()

    def window_of(self, item: int) -> tuple[int, int]:
        """Return the window of an item, and the number of items before the window."""
        if item < self._known[0][0]:
            return self._earlier.window_of(item)
        report = None
        while True:
            row = bisect_right(self._known, (item, _MOST_WINDOWS)) - 1
            (items, window), *following = self._known[row : row + 2]
            if following and following[0][1] == window + 1:
                if report is not None:
                    report(item, item)
                return window, items
            report = report or progress("Counting planned items")
            report(items, item)
            self._extend(items, window)

    def started(self, item: int) -> tuple[int, int]:
        """Return a window that begins with an item or has begun before it.

        Args:
            item: The item; nothing is planned for item 0 and that of a state.

        Returns:
            The window, and the number of items before it.
        """
        items, window = self._known[0]
        if item in (items, self._resumed):
            return window, items
        return self.window_of(item) if item else (0, 0)

    def before(self, window: int) -> int:
        """Return the number of items before a window."""
        if window < self._known[0][1]:
            return self._earlier.before(window)
        report = None
        while True:
            row = bisect_right(self._known, window, key=itemgetter(1)) - 1
            items, nearest = self._known[row]
            if nearest == window:
                return items
            report = report or progress("Planning windows")
            report(nearest, window)
            self._extend(items, nearest)

    @cached_property
    def _earlier(self) -> Anchors:
        """The windows before the first one, counted from the start."""
        return Anchors(self._count, most_empty=self._most_empty)

    def has_items(self, window: int) -> bool:
        """Return whether a window has items, or is before those that are known."""
        if window < self._known[0][1]:
            return True
        return self.before(window) < self.before(window + 1)

    def _extend(self, items: int, window: int) -> None:
        """Count the items of a window."""
        count = self._count(window)
        resumed = items if self._resumed is None else self._resumed
        is_first = window == self._known[0][1]
        if is_first and items != resumed >= items + count:
            raise _wrong_anchor(window, items, resumed)
        self._empty = 0 if count else self._empty + 1
        if self._empty > self._most_empty:
            raise EmptyDatasetError(
                f"the {self._empty} windows up to window {window} have no items, "
                "because all their samples are longer than the capacity. Raise it"
            )
        self.learn(window + 1, items + count)

    def learn(self, window: int, items: int) -> None:
        """Take note of the number of items before a window."""
        if window <= self._known[0][1]:
            if window < self._known[0][1]:
                self._earlier.learn(window, items)
            return
        with self._lock:  # another thread may have come farther
            row = bisect_left(self._known, window, key=itemgetter(1))
            if row == len(self._known) or self._known[row][1] != window:
                self._known.insert(row, (items, window))

    def known(self, most: int | None) -> tuple[tuple[int, int], ...]:
        """Return what is known, the last `most` windows of it."""
        return tuple(self._known[-most:] if most else self._known)


class PlannedDataset(IndexedDataset[T_co]):
    """Items that are made of groups of samples of a window; the base of such nodes.

    A subclass states `plan`. The items of a window are the groups of its plan.

    A dataset that ends has the same groups in every epoch, so that all epochs have as
    many steps. Put `RepeatDataset` below to plan every pass anew, as
    `get_train_dataset` does.

    Live changes of weights, edits of the mix and limits act on whole windows: they
    change the samples of the next window. A stage that ends inside a window leaves its
    remaining samples out.

    Samples that fail or are skipped are left out of their group. A group without other
    samples is replaced by another one of the window.
    """

    order_name = "PlannedDataset"

    window: int
    maker: Callable[[list[Any]], Any]

    def _set_up(
        self,
        dataset: Dataset[Any],
        lengths: Sequence[ColumnCost],
        maker: Callable[[list[Any]], Any],
        window: int,
        worker_config: WorkerConfig | None,
        **parameters: Any,
    ) -> None:
        """Check and set the parameters, those of the subclass too."""
        owner = type(self).__name__
        checked_function(maker, f"{owner}: maker")
        if generates(maker):
            raise ConfigError(
                f"{owner}: {function_name(maker)} must not be a generator function, as "
                "each planned item has a fixed position. Return one item"
            )
        self.freeze(
            [dataset],
            worker_config,
            lengths=tuple(lengths),
            maker=maker,
            window=checked_whole(window, f"{owner}: window", 1),
            **parameters,
        )
        names = [name for length in lengths for name in length.columns]
        if not dataset.indexed:
            raise NotIndexedError(
                f"{owner}: {tree.first_stream(self)} is a stream, so the lengths of "
                "its samples are known only by reading. Give its data the columns "
                f"{', '.join(names)} and filter by a column, or pack the stream with a "
                "buffer (packing_buffer_size)"
            )
        for source in self.sources:
            for length in self.lengths:
                length.check(source)

    lengths: tuple[ColumnCost, ...]

    @abstractmethod
    def plan(self, samples: WindowSamples) -> Plan:
        """Return the plan of a window, a pure function of its samples."""

    # Windows.

    @property
    def _per_epoch(self) -> int:
        """Items of the input in an epoch; `INFINITE` without end."""
        inner: int = self.inputs[0].size
        return inner

    def _window_bounds(self, window: int) -> tuple[int, int]:
        """Return the first position of a window, and the end of it."""
        start = window * self.window
        return start, min(start + self.window, self._per_epoch)

    @cached_property
    def _windows(self) -> int:
        """Windows of an epoch."""
        return -(-self._per_epoch // self.window)

    @cached_property
    def _plan_of(self) -> Callable[[int], Plan]:
        """Return the plan of a window, of the first epoch if the input ends."""
        return lru_cache(_PLANS)(self._planned)

    def _planned(self, window: int) -> Plan:
        start, end = self._window_bounds(window)
        return self.plan(self.samples_at(np.arange(start, end, dtype=np.int64)))

    def samples_at(self, positions: Int64Array) -> WindowSamples:
        """Return what the columns have of the items at positions of the input.

        Raises:
            ColumnError: If a length is no whole number, or not above 0. Lengths but the
                first one may be 0.
        """
        child = self.children[0]
        refs = child.refs(positions)
        lengths = np.zeros((len(positions), len(self.lengths)), dtype=np.int64)
        for number, rows in rows_by_value(refs.source):
            values = self.lengths_of(child.sources[number], refs.index[rows])
            np.add.at(lengths, refs.item[rows], values)
        first = np.searchsorted(refs.item, np.arange(len(positions)))
        return WindowSamples(positions, lengths, refs.source[first], refs.index[first])

    def lengths_of(self, source: SourceNode[Any], index: Int64Array) -> Int64Array:
        """Return the lengths of samples of a source: a row for each sample.

        Raises:
            ColumnError: As `samples_at`.
        """
        lengths = np.zeros((len(index), len(self.lengths)), dtype=np.int64)
        for column, length in enumerate(self.lengths):
            values = length.of_samples(
                source, index, allow_zero=column > 0, called="length"
            )
            for row in np.flatnonzero(values != np.rint(values))[:1].tolist():
                raise ColumnError(
                    f"{source.where(int(index[row]))}: its length must be a whole "
                    f"number, got {values[row]:g} by {', '.join(length.columns)}. "
                    "Measure the column again, or pass a function of columns that "
                    "returns whole numbers"
                )
            lengths[:, column] = np.minimum(values, _LONGEST)
        return lengths

    def draws(self, positions: Int64Array, *words: str) -> UInt64Array:
        """Return a random number for each position, uint64 of the same shape."""
        drawn: UInt64Array = hash_positions(derive(self.key, *words), positions)
        return drawn

    @cached_property
    def anchors(self) -> Anchors:
        """The numbers of items before windows, as far as they are known."""
        known = self.__dict__.get("known_windows", _FIRST)
        windows = -(-tree.pass_length(self.inputs[0]) // self.window)
        resumed = self.__dict__.get("resumed_item")
        return Anchors(lambda n: self._plan_of(n).count, known, windows, resumed)

    @property
    def _is_endless(self) -> bool:
        return self._per_epoch == INFINITE

    def __getstate__(self) -> dict[str, Any]:
        """Include anchors, so that other processes need no earlier windows."""
        known = self.anchors.known(_ANCHORS if self._is_endless else None)
        return super().__getstate__() | {"known_windows": known}

    def replace(self, **changed: Any) -> Self:
        """Return a copy with other values, which counts from the first window."""
        return super().replace(**{"known_windows": _FIRST, **changed})

    def window_of(self, n: int) -> tuple[int, int]:
        """Return the window of item `n`, and the number of items before the window."""
        return self.anchors.started(self._epoch_of(n)[1])

    def counting_from(self, window: int, items: int, n: int, dataset: Any) -> Self:
        """Return the node with a known window, so that `n` needs no earlier ones.

        Args:
            window: The window of item `n`.
            items: Number of items before the window.
            n: The item, which verifies the numbers when the window is planned.
            dataset: The input.

        Raises:
            StateError: If item `n` is before the window.
        """
        if n < items:
            raise _wrong_anchor(window, items, n)
        known = {"known_windows": ((items, window),), "resumed_item": n}
        return self.replace(inputs=(dataset,), **known)

    def window_end(self, window: int, items: int) -> int:
        """Return the number of items up to the end of a window, `items` before it."""
        return items + self._plan_of(window).count

    # The node.

    @cached_property
    def traits(self) -> NodeTraits:
        return NodeTraits(
            makes=True,
            members=None,
            gives_batches=False,
            loop=LoopTraits(
                anchor=WindowAnchor(self) if self._is_endless else None,
                substitutes=Substitutes(self._window_items),
            ),
        )

    @cached_property
    def size(self) -> int:
        if self._is_endless:
            return INFINITE
        return self.anchors.before(self._windows)

    def _epoch_of(self, n: int) -> tuple[int, int]:
        """Return the epoch of an item, and its number in the epoch."""
        return (0, n) if self._is_endless else divmod(n, max(self.size, 1))

    def group_at(self, position: int) -> tuple[int, Plan, int, int]:
        """Return the window of an item, its plan, the group, and the epoch."""
        epoch, at = self._epoch_of(position)
        window, before = self.anchors.window_of(at)
        return window, self._plan_of(window), at - before, epoch

    def route(self, positions: Int64Array) -> Routes:
        rows = np.arange(len(positions), dtype=np.int64)
        members = [rows[:0]]
        owners = [rows[:0]]
        fillers = [rows[:0] > 0]
        while len(rows):
            first = int(positions[rows[0]])
            window, plan, group, epoch = self.group_at(first)
            groups = positions[rows] - (first - group)
            is_inside = (groups >= 0) & (groups < plan.count)
            chosen = plan.rearranged(groups[is_inside])
            number = np.repeat(np.arange(chosen.count), np.diff(chosen.bounds))
            members.append(chosen.order + window * self.window + self.shift_of(epoch))
            owners.append(rows[is_inside][number])
            fillers.append(chosen.is_filler(number))
            rows = rows[~is_inside]
        owner = np.concatenate(owners)
        by_owner = np.argsort(owner, kind="stable")
        is_filler = np.concatenate(fillers)[by_owner]
        return Routes(
            np.concatenate(members)[by_owner],
            owner=owner[by_owner],
            padding=is_filler if is_filler.any() else None,
        )

    def batch_of(self, member: int) -> int:
        """Return the position of the item that contains an item of the input.

        Args:
            member: Position of the item in the input.
        """
        epoch, at = (0, member) if self._is_endless else divmod(member, self._per_epoch)
        window, row = divmod(at, self.window)
        plan = self._plan_of(window)
        places = np.flatnonzero(plan.order == row)
        groups = np.searchsorted(plan.bounds, places, side="right") - 1
        first = self.anchors.before(window) + (epoch * self.size if epoch else 0)
        group: int = next(
            group for group in groups.tolist() if row in plan.counted(group)
        )
        return first + group

    def _window_items(self, position: int) -> Iterator[int]:
        """Yield the other items of the window of an item, then later items."""
        _, plan, group, _ = self.group_at(position)
        first = position - group
        yield from range(position + 1, first + plan.count)
        yield from range(first, position)
        yield from range(position + plan.count, LAST_START)

    def shift_of(self, epoch: int) -> int:
        """Return how far an epoch begins after the first one in the input."""
        return epoch * self._per_epoch if epoch and self._is_same_each_epoch else 0

    @cached_property
    def _is_same_each_epoch(self) -> bool:
        """Whether every epoch of the input has the same samples in the same order."""
        child = self.children[0]
        for window in range(self._windows):
            positions = np.arange(*self._window_bounds(window), dtype=np.int64)
            first = child.refs(positions)
            second = child.refs(positions + self._per_epoch)
            if not (
                np.array_equal(first.index, second.index)
                and np.array_equal(first.source, second.source)
            ):
                log_once(
                    type(self).__name__,
                    "epochs",
                    "every epoch has the groups of the first one, because the dataset "
                    "ends. Put RepeatDataset below it to plan every pass anew",
                )
                return False
        return True

    def reached(self, n: int) -> list[int]:
        """Return the end of the started window: its content is fixed."""
        epoch, at = self._epoch_of(n)
        start = epoch * self._per_epoch if epoch else 0
        window, before = self.anchors.started(at)
        begin, end = self._window_bounds(window)
        return [start + (begin if at == before else end)]

    def spans(self, n: int) -> tuple[Sequence[Span], int]:
        epoch, at = self._epoch_of(n)
        window, before = self.anchors.started(at)
        spans = [Span(0, 0, window * self.window)]
        if epoch:
            spans.append(Span(0, 0, self._per_epoch, epoch))
        return spans, n - at + before

    def settings(self) -> dict[str, Any]:
        settings = super().settings()
        settings["lengths"] = [length.identify() for length in self.lengths]
        return settings

    @cached_property
    def _call(self) -> Call:
        return Call(self.maker, self.key, carried, tolerance=self.failure_tolerance())

    def make(self, items: list[Any], request: Request) -> list[T_co | Failed]:
        groups: list[Any] = [_remaining(item) for item in items]

        def of_group(row: int) -> str:
            return (
                f"{len(groups[row])} samples, the first of which is "
                f"{request.where(row)}"
            )

        return self._call.map(groups, request._replace(where=of_group))


def _remaining(members: Any) -> Any:
    """Return the members of a group that did not fail; `Failed` if all of them did."""
    if type(members) is Failed:
        return members
    kept = [member for member in members if type(member) is not Failed]
    if kept or not members:
        return kept
    return replace(members[0], remembered=True)  # each of them is counted


class WindowAnchor:
    """The anchor of a planned dataset: a window, and the number of items before it."""

    def __init__(self, node: PlannedDataset[Any]) -> None:
        self._node = node

    def at(self, n: int) -> list[int]:
        """Return the window of item `n`, and the number of items before it."""
        return list(self._node.window_of(n))

    def start(self, fact: list[int]) -> int:
        """Return the first position of the window of a fact."""
        window, items = fact
        if window >= LAST_START // self._node.window:
            raise StateError(
                f"the saved state's 'anchors' have window {window} with {items} items "
                "before it, which no run reaches. Load the state as it was saved"
            )
        return window * self._node.window

    def learn(self, fact: list[int]) -> None:
        """Use a fact of an equal node in another process."""
        self._node.anchors.learn(*fact)

    def resumed(self, fact: list[int], n: int, dataset: Any) -> PlannedDataset[Any]:
        """Return the node counting from the window of a state, that of item `n`."""
        window, items = fact
        return self._node.counting_from(window, items, n, dataset)


class PackDataset(PlannedDataset[T_co]):
    """Packs of samples with lengths in columns: item k is the pack k.

    Each window of `window` samples is packed by itself, largest samples first, so packs
    need no buffer and no lanes: they are the same on any ranks and workers, every rank
    makes the same number of steps, and a run resumes from a state at once. All samples
    of a window are in its packs, so shares hold in every window. Within a window, packs
    are ordered so that every run of packs has the shares of the window to within about
    one pack.

    Args:
        dataset: The dataset of samples to read. Only its index is used to plan.
        length: Length of a sample: the name of a column, such as "tokens", or a
            function of columns. A tuple for several capacities.
        capacity: The sum of lengths that a pack holds, or a tuple of such sums.
        packer: Makes a pack of a list of samples, such as `pack_selected_samples` of an
            encoder.
        window: Samples that are packed together.
        homogeneous: "source" keeps the samples of a pack in one source. The name of a
            column keeps samples of one value in a pack. None mixes them.
        too_long: For a sample that is longer than a capacity: "error" raises, "drop"
            leaves it out, "cut" counts it as the capacity, to which the encoder cuts
            it.
        measure: Length of an encoded sample: the name of a field, or a function; a
            tuple for several capacities. Samples that no longer fit are left out of the
            pack. None trusts the columns.

    Raises:
        ConfigError: For arguments that do not fit each other.
        ColumnError: If a source lacks a column. While reading, if a length is no whole
            number above 0, or above the capacity.
        NotIndexedError: If the dataset is a stream.

    Example:
        >>> from energize import ListSource
        >>> texts = ListSource(
        ...     ["aaaaaaa", "bbbbb", "ccc", "dddd", "e"],
        ...     columns={"size": [7, 5, 3, 4, 1]},
        ... )
        >>> packs = PackDataset(texts, "size", 10, "".join)
        >>> sorted("".join(sorted(pack)) for pack in packs)
        ['aaaaaaaccc', 'bbbbbdddde']
    """

    order_name = "PackDataset"

    capacities: tuple[int, ...]
    homogeneous: str | None
    too_long: str
    measure: tuple[Callable[[Any], int] | str, ...] | None

    def __init__(
        self,
        dataset: Dataset[T_in],
        length: Length | tuple[Length, ...],
        capacity: Capacity,
        packer: Callable[[list[T_in]], T_co],
        *,
        window: int = WINDOW,
        homogeneous: str | None = None,
        too_long: Literal["error", "drop", "cut"] = "error",
        measure: Any = None,
    ) -> None:
        lengths = length if isinstance(length, tuple) else (length,)
        capacities = checked_capacity(capacity, "PackDataset")
        measures = (
            measure if isinstance(measure, tuple) or measure is None else (measure,)
        )
        if len(lengths) != len(capacities) or len(measures or lengths) != len(lengths):
            raise ConfigError(
                f"PackDataset: length has {len(lengths)} values, capacity "
                f"{len(capacities)} and measure {len(measures or lengths)}. Pass one "
                "length, and one measure if any, for each capacity"
            )
        checked_choice(too_long, "too_long", TOO_LONG, "PackDataset")
        self._set_up(
            dataset,
            [cost_of(value) for value in lengths],
            packer,
            window,
            None,
            capacities=capacities,
            homogeneous=homogeneous,
            too_long=too_long,
            measure=measures,
        )
        if homogeneous not in (None, "source"):
            for source in self.sources:
                source.column(str(homogeneous))

    def plan(self, samples: WindowSamples) -> Plan:
        capacities = np.array(self.capacities, dtype=np.int64)
        is_long = (samples.lengths > capacities).any(axis=1)
        if is_long.any() and self.too_long == "error":
            raise self._too_long(samples, int(np.flatnonzero(is_long)[0]))
        lengths = np.minimum(samples.lengths, capacities)
        dropped = np.flatnonzero(is_long & (self.too_long == "drop"))
        packed = np.flatnonzero(~is_long | (self.too_long == "cut"))
        draws = self.draws(samples.positions, "member")
        plan = merged(
            [
                (rows, planned_packs(lengths[rows], capacities, draws[rows]))
                for rows in self._groups(samples, packed)
            ]
        )
        turns = self.draws(samples.positions[: plan.count], "turn")
        ordered = interleaved(plan, samples.source, lengths[:, 0], turns)
        return replace(ordered, dropped=dropped)

    def _groups(self, samples: WindowSamples, rows: Int64Array) -> list[Int64Array]:
        """Return the rows of the samples that may share a pack, for each group."""
        if self.homogeneous is None:
            return [rows]
        sources = samples.source[rows]
        if self.homogeneous == "source":
            return [rows[part] for _, part in rows_by_value(sources)]
        numbers: dict[Any, int] = {}
        values = np.zeros(len(rows), dtype=np.int64)
        for source, part in rows_by_value(sources):
            column = self.children[0].sources[source].column(self.homogeneous)
            words = (*column.categories, None) if column.categories else None
            of_part = column.values[samples.index[rows[part]]].tolist()
            for row, value in zip(part.tolist(), of_part, strict=True):
                word = value if words is None else words[value]
                values[row] = numbers.setdefault(word, len(numbers))
        return [rows[part] for _, part in rows_by_value(values)]

    def _too_long(self, samples: WindowSamples, row: int) -> ColumnError:
        """Return the error of the first sample that is longer than a capacity."""
        source = self.children[0].sources[int(samples.source[row])]
        lengths = samples.lengths[row].tolist()
        by_source = [
            f"{data.name}: {count} of {total}" for data, count, total in self._longer()
        ]
        return ColumnError(
            f"{source.where(int(samples.index[row]))}: its length is "
            f"{', '.join(map(str, lengths))}, but a pack holds "
            f"{', '.join(map(str, self.capacities))} (longer samples by source: "
            f"{', '.join(by_source)}). Raise the capacity, or set too_long='drop', or "
            "'cut' if the encoder cuts samples to the capacity"
        )

    def _longer(self) -> Iterator[tuple[SourceNode[Any], int, int]]:
        """Yield the sources with samples longer than a capacity: how many, of all."""
        for source in self.sources:
            index = np.arange(source.count, dtype=np.int64)
            is_long = (self.lengths_of(source, index) > self.capacities).any(axis=1)
            if is_long.any():
                yield source, int(is_long.sum()), source.count

    def make(self, items: list[Any], request: Request) -> list[T_co | Failed]:
        for position in request.positions.tolist():
            self._count_dropped(position, request)
        if self.measure is not None:
            items = [
                self._that_fit(position, members, request)
                for position, members in zip(
                    request.positions.tolist(), items, strict=True
                )
            ]
        return super().make(items, request)

    def _count_dropped(self, position: int, request: Request) -> None:
        """Count the dropped samples of a window, with its first pack.

        Windows before it that have no packs are counted with it.
        """
        window, plan, group, epoch = self.group_at(position)
        if group or self.too_long != "drop":
            return
        is_counted = False
        while not is_counted:
            for row in plan.dropped.tolist():
                at = row + window * self.window + self.shift_of(epoch)
                reason = SkipSample(f"longer than the capacity of {self.capacities[0]}")
                failed = Failed(reason, location_of(self.inputs[0], at))
                self._leave_out(failed, at, request)
            window -= 1
            is_counted = self.anchors.has_items(window)
            plan = plan if is_counted else self._plan_of(window)

    @cached_property
    def _measuring(self) -> Call:
        return Call(self.measured, self.key, tolerance=self.failure_tolerance())

    def measured(self, sample: Any) -> list[int]:
        """Return the lengths of an encoded sample."""
        called = named(sample, "a sample")
        return [
            length_of(sample, measure, called, "PackDataset: measure")
            for measure in self.measure or ()
        ]

    def _that_fit(
        self, position: int, members: list[Any] | Failed, request: Request
    ) -> list[Any] | Failed:
        """Return the samples of a pack, those that do not fit as `Failed`."""
        if isinstance(members, Failed):
            return members
        window, plan, group, epoch = self.group_at(position)
        rows = plan.members(group) + window * self.window
        starts = rows + self.shift_of(epoch)

        def where(row: int) -> str:
            return location_of(self.inputs[0], int(starts[row]))

        measuring = Request(starts, request.reading, where)
        real = self._measuring.map(members, measuring)
        self._warn_of_lengths(rows, real)
        fitting: list[Any] = []
        room = self.capacities
        for row, (member, lengths) in enumerate(zip(members, real, strict=True)):
            failed = lengths
            if type(lengths) is not Failed:
                left = tuple(map(sub, room, lengths))
                if min(left) >= 0:
                    fitting.append(member)
                    room = left
                    continue
                reason = SkipSample("encoded longer than its column, the pack is full")
                failed = Failed(reason, where(row))
            if type(member) is not Failed:
                self._leave_out(failed, int(starts[row]), request)
            fitting.append(failed)
        return fitting

    def _leave_out(self, failed: Failed, at: int, request: Request) -> None:
        """Count the sample at a position of the input as left out."""
        request.reading.leave_out(failed, self.inputs[0], [Origin(0, at)])

    def _measure_name(self, column: int) -> str:
        measure = (self.measure or ())[column]
        return repr(measure) if isinstance(measure, str) else function_name(measure)

    def _warn_of_lengths(self, rows: Int64Array, measured: list[Any]) -> None:
        """Warn once if the lengths of a column differ from those of encoded samples."""
        is_known = [type(lengths) is not Failed for lengths in measured]
        if not any(is_known):
            return
        planned = np.minimum(self.samples_at(rows[is_known]).lengths, self.capacities)
        real = [lengths for lengths in measured if type(lengths) is not Failed]
        for column, length in enumerate(self.lengths):
            total = int(planned[:, column].sum())
            measured_total = sum(lengths[column] for lengths in real)
            if abs(measured_total - total) > _OFF * total:
                log_once(
                    "PackDataset",
                    ",".join(length.columns),
                    f"the samples of a pack have {measured_total} by "
                    f"{self._measure_name(column)}, but {total} by the column "
                    f"{', '.join(length.columns)} (logged once). Measure the column "
                    "again with `energize prepare --column`",
                    logging.WARNING,
                )


class BudgetBatchDataset(PlannedDataset[T_co]):
    """Batches of as many samples as fit a budget of padded length.

    The padded size of a batch is its number of samples times its longest length. Each
    window of samples is divided into batches of samples of similar length, in random
    order. All ranks make the same number of steps.

    Args:
        dataset: The dataset of samples to read. Only its index is used to plan.
        budget: The maximum padded size by the length: `{"tokens": 32768}`, or a pair of
            a function of columns and the size.
        batcher: Makes a batch of a list of samples.
        window: Samples that are batched together.
        keep_order: Whether batches have consecutive samples, in order, as for
            validation.
        worker_config: Seeds the order by its `seed_offset`; passed to `get_loader`.

    Raises:
        ConfigError: For a budget that is not one length and a whole number above 0.
        ColumnError: If a source lacks the column. While reading, if a length is no
            whole number above 0, or above the budget.
        NotIndexedError: If the dataset is a stream.

    Example:
        >>> from energize import ListSource
        >>> texts = ListSource(
        ...     ["aa", "b", "cccc", "ddd"], columns={"size": [2, 1, 4, 3]}
        ... )
        >>> batches = BudgetBatchDataset(texts, {"size": 8}, list)
        >>> sorted(map(sorted, batches))
        [['aa', 'b'], ['cccc', 'ddd']]
    """

    order_name = "BudgetBatchDataset"

    budget: int
    keep_order: bool

    def __init__(
        self,
        dataset: Dataset[T_in],
        budget: Mapping[str, int] | tuple[Length, int],
        batcher: Callable[[list[T_in]], T_co],
        *,
        window: int = WINDOW,
        keep_order: bool = False,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        length, size = checked_budget(budget)
        self._set_up(
            dataset,
            [cost_of(length)],
            batcher,
            window,
            worker_config,
            budget=size,
            keep_order=checked_flag(keep_order, "keep_order", "BudgetBatchDataset"),
        )

    @cached_property
    def traits(self) -> NodeTraits:
        return replace(super().traits, gives_batches=True)

    def check_longest(self, samples: WindowSamples) -> None:
        """Raise `ColumnError` if a sample is longer than the budget."""
        lengths = samples.lengths[:, 0]
        longest = int(lengths.argmax())
        if lengths[longest] > self.budget:
            source = self.children[0].sources[int(samples.source[longest])]
            raise ColumnError(
                f"{source.where(int(samples.index[longest]))}: its length is "
                f"{lengths[longest]}, but a batch holds {self.budget}. Raise the "
                "budget, or leave long samples out by a column"
            )

    def plan(self, samples: WindowSamples) -> Plan:
        self.check_longest(samples)
        lengths = samples.lengths[:, 0]
        if self.keep_order:
            return consecutive_batches(lengths, self.budget)
        draws = self.draws(samples.positions, "member")
        plan = planned_batches(lengths, self.budget, draws)
        turns = self.draws(samples.positions[: plan.count], "turn")
        return plan.rearranged(np.argsort(turns, kind="stable"))


def checked_budget(budget: Any) -> tuple[Length, int]:
    """Return the length and the size of a budget.

    Raises:
        ConfigError: If it is not one length and a whole number above 0.
    """
    pairs = list(budget.items()) if isinstance(budget, Mapping) else [budget]
    if len(pairs) != 1 or not isinstance(pairs[0], tuple) or len(pairs[0]) != 2:
        raise ConfigError(
            "batch_budget must be one column and its maximum, such as "
            f"{{'tokens': 32768}}, got {budget!r}"
        )
    [(length, size)] = pairs
    return length, checked_whole(size, "batch_budget", 1)
