"""Plan packs and batches of a window of samples from their lengths alone.

A `Plan` divides the samples of a window into groups. It is a function of the lengths
and of a random number for each sample, so all processes compute the same plan.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from energize.core.arrays import FloatArray, Int64Array, UInt64Array, rows_by_value

_UNITS = 2**16
"""Capacities above this are measured in larger units, rounded up for each sample."""

_SCALE = 1.0 / 2**64


@dataclass(frozen=True, slots=True)
class Plan:
    """Groups of the samples of a window.

    Attributes:
        order: Numbers of samples, group after group, int64, shape (num_samples,).
        bounds: Starts of the groups in `order`, and its length, int64, shape
            (num_groups + 1,).
        dropped: Numbers of the samples in no group, int64.
    """

    order: Int64Array
    bounds: Int64Array
    dropped: Int64Array

    @property
    def count(self) -> int:
        """Number of groups."""
        return len(self.bounds) - 1

    def members(self, group: int) -> Int64Array:
        """Return the numbers of the samples of a group."""
        return self.order[self.bounds[group] : self.bounds[group + 1]]

    def sums(self, values: Int64Array) -> Int64Array:
        """Return the sum of the values of the samples of each group.

        Args:
            values: A value for each sample of the window, shape (num_samples,) or
                (num_samples, num_values).
        """
        if not self.count:
            return values[:0]
        sums: Int64Array = np.add.reduceat(values[self.order], self.bounds[:-1])
        return sums

    def rearranged(self, groups: Int64Array) -> Plan:
        """Return the plan with its groups in another order.

        Args:
            groups: Numbers of the groups in the new order, int64, shape (num_groups,).
        """
        sizes = np.diff(self.bounds)[groups]
        bounds = np.concatenate([[0], np.cumsum(sizes)])
        shift = np.repeat(self.bounds[:-1][groups] - bounds[:-1], sizes)
        order = self.order[shift + np.arange(len(shift))]
        return Plan(order, bounds, self.dropped)


def merged(plans: list[tuple[Int64Array, Plan]]) -> Plan:
    """Return several plans of parts of a window as one.

    Args:
        plans: For each part the numbers of its samples in the window, and its plan.
    """
    none = np.zeros(0, dtype=np.int64)
    orders = [none, *(rows[plan.order] for rows, plan in plans)]
    dropped = [none, *(rows[plan.dropped] for rows, plan in plans)]
    sizes = [none, *(np.diff(plan.bounds) for _, plan in plans)]
    bounds = np.concatenate([[0], np.cumsum(np.concatenate(sizes))])
    return Plan(np.concatenate(orders), bounds, np.concatenate(dropped))


def planned_packs(
    lengths: Int64Array, capacities: Int64Array, draws: UInt64Array
) -> Plan:
    """Plan packs, best fit decreasing.

    Samples of equal length are interchangeable: draws decide in which packs they are.
    With one capacity, packs are formed over a histogram of the lengths, in about one
    microsecond per sample. With several, packs are filled one after another, with the
    sample that uses the largest part of the capacities and still fits.

    Args:
        lengths: Lengths of at most the capacities, int64, shape (num_samples,
            num_capacities).
        capacities: Capacities of a pack, int64, shape (num_capacities,).
        draws: A random number for each sample, shape (num_samples,).

    Returns:
        The plan, packs in no particular order.

    Example:
        >>> lengths = np.array([[7], [5], [3], [4], [1]])
        >>> plan = planned_packs(lengths, np.array([10]), np.arange(5))
        >>> [plan.members(pack).tolist() for pack in range(plan.count)]
        [[0, 2], [1, 3, 4]]
    """
    units = -(-capacities // _UNITS)
    sizes = -(-lengths // units)
    room = capacities // units
    # Rounding up to units may make the longest samples too long by a part of a unit.
    sizes = np.minimum(sizes, room)
    if len(capacities) == 1:
        by_length = np.lexsort((draws, sizes[:, 0]))
        return _by_histogram(sizes[:, 0], int(room[0]), by_length)
    return _by_filling(sizes, room, np.lexsort((draws, sizes[:, 0])))


class _Shelves:
    """Packs by the room that they have left, with equal packs counted together."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._packs: list[list[tuple[int, object]]] = [[] for _ in range(capacity + 1)]
        self._rooms = 0  # bit r: some pack has room r

    def add(self, room: int, count: int, content: object) -> None:
        """Add `count` packs of the same lengths."""
        self._packs[room].append((count, content))
        self._rooms |= 1 << room

    def tightest(self, length: int) -> int | None:
        """Return the least room that a length fits in; None without one."""
        fitting = self._rooms >> length
        if not fitting:
            return None
        return length + (fitting & -fitting).bit_length() - 1

    def take(self, room: int, at_most: int) -> tuple[int, object]:
        """Remove up to `at_most` equal packs with a room."""
        shelf = self._packs[room]
        count, content = shelf.pop()
        taken = min(at_most, count)
        if count > taken:
            shelf.append((count - taken, content))
        if not shelf:
            self._rooms &= ~(1 << room)
        return taken, content

    def all(self) -> list[tuple[int, object]]:
        """Return all packs: how many are equal, and their lengths as nested pairs."""
        return [pack for shelf in self._packs for pack in shelf]


def _by_histogram(lengths: Int64Array, capacity: int, by_length: Int64Array) -> Plan:
    """Return best-fit packs for one capacity.

    Args:
        lengths: Lengths, int64, shape (num_samples,).
        capacity: The capacity.
        by_length: Numbers of the samples by ascending length.
    """
    counts = np.bincount(lengths, minlength=capacity + 1)
    shelves = _Shelves(capacity)
    for length in np.flatnonzero(counts)[::-1].tolist():
        left = int(counts[length])
        while left:
            room = shelves.tightest(length)
            if room is None:
                _add_full(shelves, length, left)
                left = 0
            else:
                used, content = shelves.take(room, left)
                shelves.add(room - length, used, (content, length))
                left -= used
    return _assigned(shelves, counts, by_length)


def _add_full(shelves: _Shelves, length: int, count: int) -> None:
    """Add packs of samples of one length only."""
    per_pack = shelves.capacity // length if length else count
    full, rest = divmod(count, per_pack)
    for members, packs in ((per_pack, full), (rest, 1)):
        if members and packs:
            content: object = None
            for _ in range(members):
                content = (content, length)
            shelves.add(shelves.capacity - members * length, packs, content)


def _assigned(shelves: _Shelves, counts: Int64Array, by_length: Int64Array) -> Plan:
    """Return the plan of packs of lengths, by giving each length to its samples."""
    first = (np.cumsum(counts) - counts).tolist()
    rows: list[int] = []
    bounds = [0]
    for count, content in shelves.all():
        lengths = _unnested(content)
        for _ in range(count):
            for length in lengths:
                rows.append(first[length])
                first[length] += 1
            bounds.append(len(rows))
    order = by_length[np.array(rows, dtype=np.int64)]
    none = np.zeros(0, dtype=np.int64)
    return Plan(order, np.array(bounds, dtype=np.int64), none)


def _unnested(content: object) -> list[int]:
    lengths = []
    while isinstance(content, tuple):
        content, length = content
        lengths.append(length)
    return lengths


def _by_filling(
    sizes: Int64Array, capacities: Int64Array, by_length: Int64Array
) -> Plan:
    """Return packs for several capacities, filled one after another.

    The next sample of a pack is the one with the largest sum of parts of the
    capacities. Candidates are the longest fitting samples for every combination of the
    other lengths.

    Args:
        sizes: Lengths, int64, shape (num_samples, num_capacities).
        capacities: Capacities, int64, shape (num_capacities,).
        by_length: Numbers of the samples by ascending first length.
    """
    stacks: dict[tuple[int, ...], list[int]] = defaultdict(list)
    present: dict[tuple[int, ...], int] = defaultdict(int)
    for number in by_length.tolist():
        first, *others = sizes[number].tolist()
        stacks[first, *others].append(number)
        present[tuple(others)] |= 1 << first
    room = capacities.tolist()
    parts = [1.0 / capacity for capacity in room]
    order: list[int] = []
    bounds = [0]
    while present:
        left = list(room)
        while (best := _largest_fitting(present, left, parts)) is not None:
            stack = stacks[best]
            order.append(stack.pop())
            if not stack:
                _remove(present, best)
            left = [space - size for space, size in zip(left, best, strict=True)]
        bounds.append(len(order))
    none = np.zeros(0, dtype=np.int64)
    return Plan(np.array(order, dtype=np.int64), np.array(bounds, dtype=np.int64), none)


def _remove(present: dict[tuple[int, ...], int], lengths: tuple[int, ...]) -> None:
    """Remove lengths of which no sample is left."""
    others = lengths[1:]
    present[others] ^= 1 << lengths[0]
    if not present[others]:
        del present[others]


def _largest_fitting(
    present: dict[tuple[int, ...], int], left: list[int], parts: list[float]
) -> tuple[int, ...] | None:
    """Return the lengths of the largest sample that fits; None if none fits."""
    if left[0] < 0:
        return None
    below = (1 << (left[0] + 1)) - 1
    best = None
    largest = -1.0
    for others, firsts in present.items():
        fitting = firsts & below
        if not fitting or any(
            size > space for size, space in zip(others, left[1:], strict=True)
        ):
            continue
        first = fitting.bit_length() - 1
        part = first * parts[0] + sum(
            size * part for size, part in zip(others, parts[1:], strict=True)
        )
        if part > largest:
            largest = part
            best = (first, *others)
    return best


def planned_batches(lengths: Int64Array, budget: int, draws: UInt64Array) -> Plan:
    """Plan batches of samples of similar length with a padded size within a budget.

    The padded size of a batch is its number of samples times its longest length.

    Args:
        lengths: Lengths of at most the budget, int64, shape (num_samples,).
        budget: The maximum padded size.
        draws: A random number for each sample, shape (num_samples,).

    Returns:
        The plan, batches by descending length.

    Example:
        >>> plan = planned_batches(np.array([7, 2, 3, 6, 1]), 14, np.arange(5))
        >>> [plan.members(batch).tolist() for batch in range(plan.count)]
        [[0, 3], [2, 1, 4]]
    """
    order = np.lexsort((draws, -lengths))
    ordered = lengths[order].tolist()
    bounds = [0]
    while bounds[-1] < len(ordered):
        start = bounds[-1]
        bounds.append(min(start + budget // ordered[start], len(ordered)))
    none = np.zeros(0, dtype=np.int64)
    return Plan(order, np.array(bounds, dtype=np.int64), none)


def consecutive_batches(lengths: Int64Array, budget: int) -> Plan:
    """Plan batches of consecutive samples with a padded size within a budget.

    Args:
        lengths: Lengths of at most the budget, int64, shape (num_samples,).
        budget: The maximum number of samples times the longest length.

    Example:
        >>> plan = consecutive_batches(np.array([3, 3, 3, 5, 1]), 9)
        >>> plan.bounds.tolist()
        [0, 3, 4, 5]
    """
    bounds = [0]
    longest = 0
    for number, length in enumerate(lengths.tolist()):
        longest = max(longest, length)
        if longest * (number + 1 - bounds[-1]) > budget:
            bounds.append(number)
            longest = length
    if len(lengths):
        bounds.append(len(lengths))
    none = np.zeros(0, dtype=np.int64)
    order = np.arange(len(lengths), dtype=np.int64)
    return Plan(order, np.array(bounds, dtype=np.int64), none)


def interleaved(amounts: FloatArray, draws: UInt64Array) -> Int64Array:
    """Order groups so that every run of groups has nearly the same composition.

    Groups are divided by the source that they have most of, beyond the mean. The groups
    of a source are spaced evenly over the window, with large and small excesses in the
    order of the van der Corput sequence.

    Args:
        amounts: Length of the samples of each source in each group, float64, shape
            (num_groups, num_sources).
        draws: A random number for each group, shape (num_groups,).

    Returns:
        The numbers of the groups in their new order, int64, shape (num_groups,).
    """
    count = len(amounts)
    if amounts.shape[1] < 2:
        return np.argsort(draws, kind="stable")
    excess = amounts - amounts.mean(axis=0)
    kind = excess.argmax(axis=1)
    turns = np.zeros(count)
    for source, rows in rows_by_value(kind):
        by_excess = rows[np.lexsort((draws[rows], excess[rows, source]))]
        ranks = np.argsort(np.argsort(_van_der_corput(len(rows)), kind="stable"))
        shift = float(draws[rows[0]]) * _SCALE
        turns[by_excess[ranks]] = (np.arange(len(rows)) + shift % 1.0) / len(rows)
    return np.lexsort((draws, turns))


def _van_der_corput(count: int) -> FloatArray:
    """Return the first numbers of the van der Corput sequence in base 2."""
    values = np.zeros(count)
    numbers = np.arange(count)
    step = 0.5
    while numbers.any():
        values += step * (numbers & 1)
        numbers >>= 1
        step /= 2
    return values
