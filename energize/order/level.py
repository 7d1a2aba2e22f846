"""Divide items into groups of a fixed size that cost about the same."""

from __future__ import annotations

from heapq import heappop, heapreplace
from itertools import combinations
from math import comb
from operator import itemgetter
from typing import Any

import numpy as np

from energize.core.arrays import BoolArray, FloatArray, Int64Array

_DEAREST = 2**32
"""The integer cost of the costliest item; other costs are in proportion."""

_LEVEL = 1.01
"""A group with at most this part of the mean cost is level."""

_ROUNDS = 8
"""Rounds of swaps between groups; more rounds did not help in measurements."""

_COMPARED = 2**20
"""Pairs of items that are compared in one operation."""


def levelled(costs: FloatArray, group: int) -> Int64Array:
    """Return an order of items in which consecutive groups cost about the same.

    Items are assigned in descending order of cost, each to the cheapest group with
    room. Then the costliest and the cheapest groups swap items while that helps. Groups
    are in the order of their first items, and items in their original order within a
    group. Items that fill no group stay at the end. Takes O(n log n) steps in integers,
    so the order is the same on every machine.

    Args:
        costs: The costs of the items, float64, shape (n,).
        group: Items of a group.

    Returns:
        Numbers of items in their new order, int64, shape (n,).

    Example:
        >>> levelled(np.array([9.0, 8.0, 1.0, 2.0, 5.0]), 2).tolist()
        [0, 2, 1, 3, 4]
    """
    groups = len(costs) // group
    full = groups * group
    if groups < 2:
        return np.arange(len(costs), dtype=np.int64)
    prices = np.rint(costs[:full] * (_DEAREST / costs[:full].max())).astype(np.int64)
    members = _dealt(prices, groups)
    _swap(members, prices)
    return _in_order(members, len(costs))


def _dealt(prices: Int64Array, groups: int) -> Int64Array:
    """Return a row of items for each group; each item goes to the cheapest group."""
    order = np.argsort(-prices, kind="stable")
    room = [len(prices) // groups] * groups
    cheapest = list(
        range(groups)
    )  # of each group its total, and the group: in one number
    chosen = []
    for price in (prices[order] * groups).tolist():
        cheap = cheapest[0]
        group = cheap % groups
        chosen.append(group)
        room[group] -= 1
        if room[group]:
            heapreplace(cheapest, cheap + price)
        else:
            heappop(cheapest)
    return order[np.argsort(chosen, kind="stable")].reshape(groups, -1)


def _swap(members: Int64Array, prices: Int64Array) -> None:
    """Bring groups that cost more than the others closer to these, in place.

    Of a dear and a cheap group those two items change places after which the groups
    differ least.
    """
    groups, group = members.shape
    held = prices[members]
    level = int(_LEVEL * prices.sum() / groups)
    for _ in range(_ROUNDS):
        totals = held.sum(axis=1)
        order = np.argsort(totals, kind="stable")
        dear = min(int((totals > level).sum()), groups // 2, _COMPARED // group**2)
        low = order[:dear]
        high = order[::-1][:dear]
        gap = totals[high] - totals[low]
        moved = held[high][:, :, None] - held[low][:, None, :]
        left = np.abs(2 * moved - gap[:, None, None]).reshape(dear, group**2)
        best = left.argmin(axis=1)
        rows = np.flatnonzero(left[np.arange(dear), best] < gap)
        if not len(rows):
            return
        first = high[rows], best[rows] // group
        second = low[rows], best[rows] % group
        for items in (members, held):
            items[first], items[second] = items[second], items[first]


_MEAN = 2**16
"""The price of a group with the mean cost, by the most important cost."""

_HUGE = 4
"""The maximum price of an item, in units of `_MEAN`."""

_TOLERANCE = _MEAN // 200
"""A group is level if no price is above the mean by more than this amount."""

_EXCHANGES = ((1, 32), (2, 64), (3, 32))
"""Items that two groups exchange at a time, and the maximum number of rounds."""

_SETS = 70
"""Maximum number of sets of items of a group that are candidates for an exchange."""

_AT_ONCE = 2**15
"""Exchanges that are compared in one operation; they fit the CPU cache."""

_REFINED = 64
"""Maximum number of exchanges of the worst group."""

_PARTNERS = 8
"""Groups with which the worst group exchanges items at least."""

_IDLE = 8
"""Consecutive rounds without an exchange, after which no better order is expected."""


def levelled_by_several(
    costs: FloatArray, group: int, importance: FloatArray
) -> Int64Array:
    """Return an order of items in which consecutive groups are level by several costs.

    Costs are compared as parts of their mean over the groups. Items are dealt in
    descending order of their largest part. Then pairs of groups exchange items while
    that decreases the sum of squared deviations from the means. At last the worst group
    does, while that makes it better. A cost of half the importance may deviate twice as
    far. Costs that are 0 for all items are ignored,
    and a single cost gives the order of `levelled`. The number of rounds is bounded.
    All sums are of whole numbers below 2**53, which floats represent exactly, so the
    order is the same on every machine.

    Args:
        costs: The costs of the items, 0 or more, float64, shape (num_costs, n).
        group: Items of a group.
        importance: The importance of each cost, above 0, float64, shape (num_costs,).
            At most 8 costs, for exact sums.

    Returns:
        Numbers of items in their new order, int64, shape (n,).

    Example:
        >>> costs = np.array([[9.0, 8.0, 1.0, 2.0], [0.0, 3.0, 4.0, 1.0]])
        >>> levelled_by_several(costs, 2, np.ones(2)).tolist()
        [0, 2, 1, 3]
    """
    count = costs.shape[1]
    groups = count // group
    full = groups * group
    used = np.flatnonzero(costs[:, :full].any(axis=1))
    if groups < 2 or group < 2 or not len(used):
        return np.arange(count, dtype=np.int64)
    if len(used) == 1:
        return levelled(costs[used[0]], group)
    means = _MEAN * (importance[used] / importance[used].max())
    prices = _priced(costs[used, :full], groups, means)
    members = _dealt_in_layers(prices, groups)
    limits = means + _TOLERANCE
    for size, rounds in _EXCHANGES:
        sets = _sets(group, size)
        if len(sets):
            _exchange(members, prices, limits, sets, rounds)
    _refine(members, prices, limits)
    return _in_order(members, count)


def levelled_by_class(
    costs: FloatArray, classes: Int64Array, bounds: Int64Array, importance: FloatArray
) -> Int64Array:
    """Return an order in which items of one class change groups to level their costs.

    Each group keeps its number of items of each class. Items are assigned in descending
    order of cost, each to the group with room for its class that then costs least. The
    original order is kept if its costliest group costs less. Sums are exact, as in
    `levelled_by_several`.

    Args:
        costs: The costs of the items, 0 or more, float64, shape (num_costs, n).
        classes: The class of each item, int64, shape (n,).
        bounds: The first item of each group, and the end of the last one, int64, shape
            (groups + 1,).
        importance: The importance of each cost, above 0, float64, shape (num_costs,).

    Returns:
        Numbers of items by group, int64, shape (n,).

    Example:
        >>> costs = np.array([[9.0, 8.0, 1.0, 2.0]])
        >>> same = np.zeros(4, dtype=np.int64)
        >>> levelled_by_class(costs, same, np.array([0, 2, 4]), np.ones(1)).tolist()
        [0, 2, 1, 3]
    """
    count = costs.shape[1]
    groups = len(bounds) - 1
    original = np.arange(count, dtype=np.int64)
    used = np.flatnonzero(costs.any(axis=1))
    if not len(used):
        return original
    means = _MEAN * (importance[used] / importance[used].max())
    prices = _priced(costs[used], groups, means)
    group_of = np.repeat(np.arange(groups, dtype=np.int64), np.diff(bounds))
    room = {
        value: np.bincount(group_of[classes == value], minlength=groups)
        for value in np.unique(classes).tolist()
    }
    held = np.zeros((len(used), groups))
    chosen = np.empty_like(group_of)
    for item in np.argsort(-prices.max(axis=0), kind="stable").tolist():
        of_class = room[int(classes[item])]
        possible = np.flatnonzero(of_class)
        price = prices[:, item]
        group = int(possible[(price @ held[:, possible]).argmin()])
        of_class[group] -= 1
        held[:, group] += price
        chosen[item] = group
    previous = np.array([np.bincount(group_of, row, groups) for row in prices])
    if (held**2).sum() >= (previous**2).sum():
        return original
    return np.argsort(chosen, kind="stable")


def _in_order(members: Int64Array, count: int) -> Int64Array:
    """Return groups in the order of their first items, then the items without one."""
    members.sort(axis=1)
    order = members[np.argsort(members[:, 0])].ravel()
    return np.concatenate([order, np.arange(len(order), count, dtype=np.int64)])


def _priced(costs: FloatArray, groups: int, means: FloatArray) -> FloatArray:
    """Return costs as whole numbers, of which a group has `means` on average."""
    prices = np.rint(costs / costs.max(axis=1, keepdims=True) * _DEAREST)
    totals = prices.astype(np.int64).sum(axis=1)  # exact, unlike a sum of floats
    scaled = np.rint(prices * (means * groups / totals)[:, None])
    highest = np.rint(_HUGE * means)[:, None]
    limited: FloatArray = np.minimum(scaled, highest)
    return limited


def _dealt_in_layers(prices: FloatArray, groups: int) -> Int64Array:
    """Return a row of items for each group, one of each layer of similar items."""
    order = np.argsort(-prices.max(axis=0), kind="stable")
    layers = order.reshape(-1, groups)
    layers[1::2] = layers[1::2, ::-1]
    return np.ascontiguousarray(layers.T)


def _sets(group: int, size: int) -> Int64Array:
    """Return the sets of places in a group that may be exchanged; none if too many."""
    if size == 1:
        return np.arange(0, group, -(-group // _SETS), dtype=np.int64)[:, None]
    if size >= group or comb(group, size) > _SETS:
        return np.zeros((0, size), dtype=np.int64)
    return np.array(list(combinations(range(group), size)), dtype=np.int64)


def _exchange(
    members: Int64Array,
    prices: FloatArray,
    limits: FloatArray,
    sets: Int64Array,
    rounds: int,
) -> None:
    """Exchange sets of items between pairs of groups until all are level, in place."""
    held = prices[:, members]
    at_once = max(_AT_ONCE // len(sets) ** 2, 1)
    idle = 0
    for number in range(rounds):
        totals = held.sum(axis=2)
        above = (totals > limits[:, None]).any(axis=0)
        if idle == _IDLE or not above.any():
            return
        dear, cheap = _pairs(totals, above, number)
        exchanges = 0
        for start in range(0, len(dear), at_once):
            pairs = slice(start, start + at_once)
            first, second = _best(held, totals, (dear[pairs], cheap[pairs]), sets)
            exchanges += len(first[0])
            for items in (members, *held):
                items[first], items[second] = items[second], items[first]
        idle = 0 if exchanges else idle + 1


def _pairs(
    totals: FloatArray, above: BoolArray, number: int
) -> tuple[Int64Array, Int64Array]:
    """Return disjoint pairs of a dear and a cheap group that are not both level.

    Rounds take turns with the cost by which groups are dear, and with the partners.
    """
    costs, groups = totals.shape
    half = groups // 2
    turn, cost = divmod(number, costs)
    order = np.argsort(totals[cost], kind="stable")
    cheap = order[:half]
    dear = np.roll(order[::-1][:half], turn)
    rows = above[cheap] | above[dear]
    return dear[rows], cheap[rows]


def _best(
    held: FloatArray,
    totals: FloatArray,
    pairs: tuple[Int64Array, Int64Array],
    sets: Int64Array,
) -> tuple[tuple[Int64Array, Int64Array], tuple[Int64Array, Int64Array]]:
    """Return the items that pairs of groups exchange: (groups, places) of both sides.

    Each pair has the exchange that decreases its squared deviations most.
    """
    dear, cheap = pairs
    gaps = (totals[:, cheap] - totals[:, dear])[:, :, None]
    leaving = held[:, dear][:, :, sets].sum(axis=3)
    arriving = held[:, cheap][:, :, sets].sum(axis=3)
    # The sum over costs of moved * (gap + moved), where moved = leaving - arriving.
    left = (leaving * (leaving + gaps)).sum(axis=0)
    right = (arriving * (arriving - gaps)).sum(axis=0)
    ones = np.ones_like(left)
    change = np.stack([*leaving, left, ones], axis=2) @ np.stack(
        [*(-2 * arriving), ones, right], axis=1
    )
    flat = change.reshape(len(dear), -1)
    best = flat.argmin(axis=1)
    rows = np.flatnonzero(flat[np.arange(len(dear)), best] < 0)
    leaves, arrives = np.divmod(best[rows], len(sets))
    return (dear[rows, None], sets[leaves]), (cheap[rows, None], sets[arrives])


def _refine(members: Int64Array, prices: FloatArray, limits: FloatArray) -> None:
    """Exchange items of the worst group until it is level or worst of all, in place."""
    several = [_sets(members.shape[1], size) for size in (1, 2, 3, 4)]
    for _ in range(_REFINED):
        held = prices[:, members]
        worst = (held.sum(axis=2) / limits[:, None]).max(axis=0)
        order = np.argsort(worst, kind="stable")
        if worst[order[-1]] <= 1:
            return
        best = min(
            (_of_worst(held, limits, order, sets) for sets in several if len(sets)),
            key=itemgetter(0),
        )
        if best[0] >= worst[order[-1]]:
            return
        first, second = best[1:]
        members[first], members[second] = members[second], members[first]


def _of_worst(
    held: FloatArray, limits: FloatArray, order: Int64Array, sets: Int64Array
) -> tuple[float, tuple[Any, Any], tuple[Any, Any]]:
    """Return the exchange of the last group after which the worse of two is the best.

    Returns:
        How far the worse group is from its limit, and the items of both sides.
    """
    other = order[:-1][: max(_AT_ONCE // len(sets) ** 2, _PARTNERS)]
    leaving = held[:, order[-1:]][:, :, sets].sum(axis=3)
    arriving = held[:, other][:, :, sets].sum(axis=3)
    moved = leaving[:, :, :, None] - arriving[:, :, None]
    totals = held.sum(axis=2)[:, :, None, None]
    after = np.maximum(totals[:, order[-1:]] - moved, totals[:, other] + moved)
    worse = (after / limits[:, None, None, None]).max(axis=0)
    group, leaves, arrives = np.unravel_index(worse.argmin(), worse.shape)
    first = order[-1], sets[leaves]
    return float(worse.min()), first, (other[group], sets[arrives])
