"""Plan packs and batches of a window of samples from their lengths alone.

A `Plan` divides the samples of a window into groups. It is a function of the lengths
and of a random number for each sample, so all processes compute the same plan.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import chain, takewhile
from operator import or_, sub, truediv
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from energize.core.arrays import BoolArray, FloatArray, Int64Array, UInt64Array
from energize.order.align import MOST_MODALITIES, modalities_of
from energize.order.level import levelled_by_several

_STEPS = 2
"""Levels of lengths for each doubling, by which samples have a shape."""

_TRIES = 4
"""Samples of a shape that are tried for a pack."""

_CANDIDATES = 256
"""Groups that the next one is chosen from."""

_SOURCES = 32
"""Columns for sources in the order of groups."""

_SCALE = 2**16
"""Largest difference of a group from the mean, in whole numbers."""

_LEVELLED = 16
"""Batches are levelled together if their sizes differ by one of so many samples."""

_TAKEN = 2**62
"""Distance of a group that is in the order."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Groups of the samples of a window.

    Attributes:
        order: Numbers of samples, group after group, int64, shape (num_samples,).
        bounds: Starts of the groups in `order`, and its length, int64, shape
            (num_groups + 1,).
        dropped: Numbers of the samples in no group, int64.
        fillers: How many of the last samples of each group only fill it, int64, shape
            (num_groups,); None if none do.
    """

    order: Int64Array
    bounds: Int64Array
    dropped: Int64Array = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    fillers: Int64Array | None = None

    @property
    def count(self) -> int:
        """Number of groups."""
        return len(self.bounds) - 1

    def members(self, group: int) -> Int64Array:
        """Return the numbers of the samples of a group."""
        return self.order[self.bounds[group] : self.bounds[group + 1]]

    def counted(self, group: int) -> Int64Array:
        """Return the numbers of the samples of a group, without fillers."""
        members = self.members(group)
        return members[: len(members) - self.filler_count(group)]

    def filler_count(self, group: int) -> int:
        """Return how many of the last samples of a group only fill it."""
        return 0 if self.fillers is None else int(self.fillers[group])

    def is_filler(self, number: Int64Array) -> BoolArray:
        """Return whether samples in `order`, of groups `number`, only fill them."""
        fillers = 0 if self.fillers is None else self.fillers
        counted = self.bounds[1:] - fillers
        is_filler: BoolArray = np.arange(len(number)) >= counted[number]
        return is_filler

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
        fillers = None if self.fillers is None else self.fillers[groups]
        return Plan(order, bounds, self.dropped, fillers)


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
    """Plan packs, one after another, of the largest samples that fit.

    With one capacity this is first fit decreasing. With several, the next sample is the
    largest one by the capacity that has the most room left, so that a pack uses all
    capacities alike. Samples of equal lengths are interchangeable: draws decide in
    which packs they are.

    Args:
        lengths: Lengths of at most the capacities, int64, shape (num_samples,
            num_capacities).
        capacities: Capacities of a pack, int64, shape (num_capacities,).
        draws: A random number for each sample, shape (num_samples,).

    Returns:
        The plan, packs in no particular order.

    Example:
        >>> lengths = np.array([[7], [5], [3], [4], [1]])
        >>> draws = np.arange(5, dtype=np.uint64)
        >>> plan = planned_packs(lengths, np.array([10]), draws)
        >>> sorted(sorted(plan.members(n).tolist()) for n in range(plan.count))
        [[0, 2], [1, 3, 4]]
    """
    if len(capacities) == 1 or not len(lengths):
        order, bounds = _by_length(lengths[:, 0], int(capacities[0]), draws)
    else:
        order, bounds = _by_room(lengths, capacities, draws)
    return Plan(np.array(order, dtype=np.int64), np.array(bounds, dtype=np.int64))


def _by_length(
    lengths: Int64Array, capacity: int, draws: UInt64Array
) -> tuple[list[int], list[int]]:
    """Return the order and the bounds of packs for one capacity."""
    by_length = np.lexsort((draws, lengths))
    numbers = by_length.tolist()
    ascending = lengths[by_length].tolist()
    order: list[int] = []
    bounds = [0]
    while numbers:
        room = capacity
        while end := bisect_right(ascending, room):
            room -= ascending.pop(end - 1)
            order.append(numbers.pop(end - 1))
        bounds.append(len(order))
    return order, bounds


@dataclass(frozen=True, slots=True)
class _Shape:
    """Samples of similar other lengths, by ascending first length.

    Attributes:
        least: The least of each length, joined.
        most: A bound of each length; of the first one the largest.
        firsts: First lengths, ascending.
        numbers: Numbers of the samples.
    """

    least: int
    most: list[int]
    firsts: list[int]
    numbers: list[int]

    def pop(self, at: int) -> int:
        """Remove the sample at a place, and return its number."""
        self.firsts.pop(at)
        if at == len(self.firsts) > 0:
            self.most[0] = self.firsts[-1]
        return self.numbers.pop(at)


@dataclass(frozen=True, slots=True)
class _Sizes:
    """The lengths of samples, compared by one subtraction for all capacities.

    Lengths are joined to one number, with a free bit above each. A room has these bits
    set; they stay set for the lengths that fit when a sample is subtracted.

    Attributes:
        lengths: Lengths of each sample.
        joined: The same, joined.
        free: The free bits.
    """

    lengths: list[tuple[int, ...]]
    joined: list[int]
    free: int

    def largest(
        self, shapes: list[_Shape], first: int, room: int, capacity: int
    ) -> tuple[_Shape, int] | None:
        """Return the shape and the place in it of the largest sample that fits.

        Of each shape, the longest samples by the first length are tried.

        Args:
            shapes: Samples by shape.
            first: Room for first lengths.
            room: Room for all lengths, joined, with the free bits.
            capacity: The capacity by which the largest sample is chosen.
        """
        free = self.free
        match = None
        largest = -1
        for shape in shapes:
            if shape.most[capacity] <= largest or (room - shape.least) & free != free:
                continue
            end = bisect_right(shape.firsts, first)
            for at in range(end - 1, max(end - _TRIES, 0) - 1, -1):
                number = shape.numbers[at]
                if (room - self.joined[number]) & free == free:
                    length = self.lengths[number][capacity]
                    if length > largest:
                        largest = length
                        match = shape, at
                    break
        return match


def _joined(lengths: Int64Array, width: int) -> Any:
    """Return the last axis as one number of any size, `width` bits for each value."""
    shifts = np.arange(lengths.shape[-1]) * width
    return (lengths.astype(object) << shifts.astype(object)).sum(axis=-1)


def _shapes(lengths: Int64Array, draws: UInt64Array, width: int) -> list[_Shape]:
    """Return samples by shape, with large ones first."""
    parts, exponents = np.frexp(lengths[:, 1:])
    levels = exponents * _STEPS + np.floor((parts - 0.5) * 2 * _STEPS).astype(np.int64)
    by_level = np.lexsort((draws, lengths[:, 0], *levels.T))
    is_new = (np.diff(levels[by_level], axis=0) != 0).any(axis=1)
    shapes = []
    for numbers in np.split(by_level, np.flatnonzero(is_new) + 1):
        members = lengths[numbers]
        shape = _Shape(
            _joined(members.min(axis=0), width),
            members.max(axis=0).tolist(),
            members[:, 0].tolist(),
            numbers.tolist(),
        )
        shapes.append(shape)
    return shapes[::-1]


def _by_room(
    lengths: Int64Array, capacities: Int64Array, draws: UInt64Array
) -> tuple[list[int], list[int]]:
    """Return the order and the bounds of packs for several capacities."""
    full = capacities.tolist()
    width = max(full).bit_length() + 1
    rows = list(zip(*lengths.T.tolist(), strict=True))
    free = sum(1 << width * end - 1 for end in range(1, len(full) + 1))
    sizes = _Sizes(rows, _joined(lengths, width).tolist(), free)
    whole = _joined(capacities, width) + free
    shapes = _shapes(lengths, draws, width)
    order: list[int] = []
    bounds = [0]
    while len(order) < len(rows):
        left = full
        room = whole
        capacity = 0
        while match := sizes.largest(shapes, left[0], room, capacity):
            shape, at = match
            number = shape.pop(at)
            if not shape.numbers:
                shapes.remove(shape)
            order.append(number)
            room -= sizes.joined[number]
            left = list(map(sub, left, rows[number]))
            shares = list(map(truediv, left, full))
            capacity = shares.index(max(shares))
        bounds.append(len(order))
    return order, bounds


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
    return Plan(order, np.array(bounds, dtype=np.int64))


def aligned_batches(
    lengths: Int64Array,
    masks: Int64Array,
    budget: int,
    ranks: int,
    always: int,
    draws: UInt64Array,
    level: LevelCosts | None = None,
) -> Plan:
    """Plan batches so that all `ranks` batches of a step have the same modalities.

    A batch has samples of one combination of modalities and of similar length, so most
    batches need no fillers. Each combination has a multiple of `ranks` batches, with a
    smaller padded size if need be. A batch that lacks a modality of `always` gets a
    filler, which is not longer than its longest sample if there is such a filler. A
    combination with fewer samples than batches has batches of fillers alone.

    Args:
        lengths: Lengths of at most the budget, int64, shape (num_samples,). Samples
            without a draw are fillers only.
        masks: The masks of modalities, see `energize.order.align`, int64. A sample has
            each modality of `always`.
        budget: The maximum padded size.
        ranks: Batches of a step.
        always: The mask of the modalities that every batch has.
        draws: A random number for each sample of the window, shape (num_planned,).
        level: Costs by which the samples of each step are distributed over its batches;
            None distributes them by length.

    Returns:
        The plan, steps by combination and descending length.

    Example:
        >>> lengths = np.array([7, 2, 3, 6, 1, 2])
        >>> masks = np.array([1, 0, 0, 1, 0, 1])
        >>> plan = aligned_batches(lengths, masks, 14, 2, 0, np.arange(6))
        >>> [plan.members(batch).tolist() for batch in range(plan.count)]
        [[2, 1], [4], [0, 3], [5]]
    """
    every = 1 << MOST_MODALITIES  # which only a batch without samples lacks
    samples = _WindowSamples(lengths.tolist(), (masks | every).tolist(), budget, level)
    needed = samples.needed(always | every)
    by_needed: dict[int, list[int]] = {}
    for number in np.lexsort((draws, -lengths[: len(draws)])).tolist():
        by_needed.setdefault(needed[samples.masks[number]], []).append(number)
    groups: list[list[int]] = []
    counts: list[int] = []
    for mask, rows in sorted(by_needed.items()):
        pools = samples.pools(mask)
        for members in samples.batches(rows, pools, ranks):
            draw = int(draws[(members or rows)[0]])
            fillers = samples.fillers(members, pools, draw)
            groups.append(members + fillers)
            counts.append(len(fillers))
    order = np.array([*chain.from_iterable(groups)], dtype=np.int64)
    bounds = np.cumsum([0, *map(len, groups)])
    return Plan(order, bounds, fillers=np.array(counts))


_Pools: TypeAlias = Mapping[int, list[int]]
"""Possible fillers by modality, by ascending length."""


class LevelCosts(NamedTuple):
    """The costs of samples, by which batches are levelled.

    Attributes:
        values: The costs, 0 or more, float64, shape (num_costs, num_samples).
        importance: The importance of each cost, above 0, float64, shape (num_costs,).
    """

    values: FloatArray
    importance: FloatArray

    def levelled(self, rows: list[int], size: int, batches: int) -> list[list[int]]:
        """Return batches of at most `size` samples that cost about the same.

        Missing samples count as samples without a cost.

        Args:
            rows: Numbers of the samples.
            size: The maximum number of samples of a batch.
            batches: Number of the batches.
        """
        costs = np.zeros((len(self.values), size * batches))
        costs[:, : len(rows)] = self.values[:, rows]
        order = levelled_by_several(costs, size, self.importance)
        return [
            [rows[number] for number in group if number < len(rows)]
            for group in order.reshape(batches, size).tolist()
        ]


class _WindowSamples(NamedTuple):
    """The samples of a window.

    Attributes:
        lengths: Their lengths.
        masks: The masks of their modalities.
        budget: The maximum padded size of a batch.
        level: The costs by which batches of a step are levelled; None if they are not.
    """

    lengths: list[int]
    masks: list[int]
    budget: int
    level: LevelCosts | None

    def needed(self, always: int) -> dict[int, int]:
        """Return the modalities of the batches that the samples of each mask are in.

        All of the window, if a modality of `always` has no fillers otherwise.
        """
        masks = {*self.masks}
        needed = {mask: mask | always for mask in masks}
        for whole in needed.values():
            if reduce(or_, [mask for mask in masks if not mask & ~whole]) != whole:
                return dict.fromkeys(masks, reduce(or_, masks))
        return needed

    def pools(self, needed: int) -> _Pools:
        """Return the fillers of batches that need modalities, and may have no other."""
        fitting = [n for n, mask in enumerate(self.masks) if not mask & ~needed]
        fitting.sort(key=self.lengths.__getitem__)
        return {
            modality: [n for n in fitting if self.masks[n] >> modality & 1]
            for modality in modalities_of(needed)
        }

    def batches(
        self, rows: list[int], pools: _Pools, ranks: int
    ) -> Iterator[list[int]]:
        """Yield the batches of whole steps; the last step is divided evenly.

        Args:
            rows: Numbers of the samples, by descending length.
            pools: Their fillers.
            ranks: Batches of a step.
        """
        start = 0
        while start < len(rows):
            parts: Sequence[int] = [1] * ranks
            step = self._step(rows[start:], pools, parts)
            is_last = start + sum(map(len, step)) == len(rows)
            if is_last:
                parts = range(ranks, 0, -1)
                step = self._step(rows[start:], pools, parts)
            while step:
                if self.level is not None:
                    step = self._levelled(step, pools, self.level, is_last=is_last)
                yield from step
                start += sum(map(len, step))
                parts = parts[len(step) :]
                step = self._step(rows[start:], pools, parts)

    def _levelled(
        self,
        step: list[list[int]],
        pools: _Pools,
        level: LevelCosts,
        *,
        is_last: bool,
    ) -> list[list[int]]:
        """Return the first batches of a step, of similar sizes, levelled by costs.

        As any of them may get the longest sample, they have at most the size of the
        first batch. The remaining samples are left to the following batches, except in
        the last step.
        """
        size = len(step[0])
        most = size + size // _LEVELLED
        first = [*takewhile(lambda members: len(members) <= most, step)]
        rows = [*chain.from_iterable(first)]
        if is_last:
            size = max(map(len, first))
        batches = level.levelled(rows[: size * len(first)], size, len(first))
        return batches if all(self._fits(batch, pools) for batch in batches) else first

    def _fits(self, members: list[int], pools: _Pools) -> bool:
        """Return whether a batch has samples, and a padded size within the budget."""
        if not members:
            return False
        lacking = self._lacking(members, pools)
        longest = self._longest(members, lacking)
        return (len(members) + len(lacking)) * longest <= self.budget

    def _step(
        self, rows: list[int], pools: _Pools, parts: Sequence[int]
    ) -> list[list[int]]:
        """Return a batch for each part: at most this part of the samples left."""
        step: list[list[int]] = []
        start = 0
        for part in parts:
            members = rows[start : start - (start - len(rows)) // part]
            members = members[: self.budget // self._longest(members, [])]
            while lacking := self._lacking(members, pools) if members else []:
                room = self.budget // self._longest(members, lacking) - len(lacking)
                if max(room, 1) >= len(members):
                    break
                members = members[: max(room, 1)]
            step.append(members)
            start += len(members)
        return step

    def _lacking(self, members: list[int], pools: _Pools) -> list[list[int]]:
        """Return the fillers with the modalities that a batch lacks."""
        return [
            pool
            for modality, pool in pools.items()
            if not any(self.masks[number] >> modality & 1 for number in members)
        ]

    def _longest(self, members: list[int], lacking: list[list[int]]) -> int:
        """Return the longest sample of a batch with the shortest fillers."""
        numbers = [*members[:1], *(pool[0] for pool in lacking)]
        return max([self.lengths[number] for number in numbers], default=1)

    def fillers(self, members: list[int], pools: _Pools, draw: int) -> list[int]:
        """Return the fillers of a batch, chosen by a random number."""
        longest = self._longest(members, self._lacking(members, pools))
        numbers: list[int] = []
        while lacking := self._lacking(members + numbers, pools):
            pool = lacking[0]
            fitting = bisect_right(pool, longest, key=self.lengths.__getitem__)
            numbers.append(pool[draw % fitting])
        return numbers


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
    order = np.arange(len(lengths), dtype=np.int64)
    return Plan(order, np.array(bounds, dtype=np.int64))


def interleaved(
    plan: Plan, source: Int64Array, lengths: Int64Array, draws: UInt64Array
) -> Plan:
    """Return the plan with its groups ordered so that all runs have similar shares.

    The next group is the one, of the `_CANDIDATES` next ones in random order, that
    brings the lengths of the sources so far nearest to their shares of the window.
    Every run of groups has these shares to within about one group, or two with very
    many sources.

    Args:
        plan: The plan of a window.
        source: Number of the source of each sample of the window, int64.
        lengths: Length of each sample of the window, int64.
        draws: A random number for each group, shape (num_groups,).
    """
    order = np.argsort(draws, kind="stable")
    excess = _excess(plan, source, lengths)[order]
    if excess.shape[1] < 2:
        return plan.rearranged(order)
    squares = (excess * excess).sum(axis=1)
    candidates = np.arange(min(_CANDIDATES, plan.count))
    distances = squares[candidates]
    vectors = excess[candidates]
    total = np.zeros(excess.shape[1], dtype=np.int64)
    turns = []
    for following in range(len(candidates), plan.count + len(candidates)):
        nearest = int((distances + 2 * (vectors @ total)).argmin())
        turns.append(candidates[nearest])
        total += vectors[nearest]
        if following < plan.count:
            candidates[nearest] = following
            distances[nearest] = squares[following]
            vectors[nearest] = excess[following]
        else:
            distances[nearest] = _TAKEN
    return plan.rearranged(order[np.array(turns, dtype=np.int64)])


def _excess(plan: Plan, source: Int64Array, lengths: Int64Array) -> Int64Array:
    """Return by how much each group has more of each source than the mean group.

    The largest sources have a column, the others one together. Values are scaled to
    whole numbers, so that sums are the same in all processes.
    """
    by_source = np.argsort(-np.bincount(source, lengths), kind="stable")
    column_of = np.minimum(np.argsort(by_source), _SOURCES - 1)
    columns = min(len(by_source), _SOURCES)
    group_of = np.repeat(np.arange(plan.count), np.diff(plan.bounds))
    amounts = np.bincount(
        group_of * columns + column_of[source[plan.order]],
        lengths[plan.order],
        minlength=plan.count * columns,
    ).reshape(plan.count, columns)
    excess = amounts - amounts.sum(axis=0) / max(plan.count, 1)
    largest = max(float(np.abs(excess).max(initial=0)), 1.0)
    scaled: Int64Array = np.rint(excess * (_SCALE / largest)).astype(np.int64)
    return scaled
