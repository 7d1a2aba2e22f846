"""The order of items in which every few in a row cost about the same."""

from __future__ import annotations

from heapq import heappop, heapreplace

import numpy as np

from energize.core.arrays import FloatArray, Int64Array

_DEAREST = 2**32
"""The dearest item is counted as so much, and others in proportion."""

_LEVEL = 1.01
"""A group that costs no more than this part of the mean is level."""

_ROUNDS = 8
"""How often items of dear and cheap groups are swapped; more were not seen to help."""

_COMPARED = 2**20
"""Pairs of items that are compared at a time."""


def levelled(costs: FloatArray, group: int) -> Int64Array:
    """Return the order of items in which each `group` of them in a row costs about the same.

    The dearest items come first, each into the cheapest group that has room; then the dearest
    groups swap an item each with the cheapest ones, as long as that brings two closer. Groups come
    in the order of their first items, the items of a group in their own order, so that nobody can
    say where the dearest group is. What fills no group stays where it is, at the end.

    No group can cost less than the dearest item with the `group` - 1 cheapest ones. n items take
    n log n steps, all on whole numbers, so equal costs give one order on every machine.

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
    members.sort(axis=1)
    order = members[np.argsort(members[:, 0])]
    return np.concatenate([order.ravel(), np.arange(full, len(costs), dtype=np.int64)])


def _dealt(prices: Int64Array, groups: int) -> Int64Array:
    """Return a row of items for each group: the dearest go first to the cheapest; of equal groups
    in the first one.
    """
    order = np.argsort(-prices, kind="stable")
    room = [len(prices) // groups] * groups
    cheapest = list(range(groups))  # of each group its total, and the group: in one number
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

    Of a dear and a cheap group those two items change places after which the groups differ least.
    """
    groups, group = members.shape
    held = prices[members]
    level = int(_LEVEL * prices.sum() / groups)
    for _ in range(_ROUNDS):
        totals = held.sum(axis=1)
        order = np.argsort(totals, kind="stable")
        dear = min(int((totals > level).sum()), groups // 2, _COMPARED // group**2)
        low, high = order[:dear], order[::-1][:dear]
        gap = totals[high] - totals[low]
        moved = held[high][:, :, None] - held[low][:, None, :]
        left = np.abs(2 * moved - gap[:, None, None]).reshape(dear, group**2)
        best = left.argmin(axis=1)
        rows = np.flatnonzero(left[np.arange(dear), best] < gap)
        if not len(rows):
            return
        one = high[rows], best[rows] // group
        other = low[rows], best[rows] % group
        for each in (members, held):
            each[one], each[other] = each[other], each[one]
