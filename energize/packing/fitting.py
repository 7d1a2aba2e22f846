"""Packs of samples that fit: each sample into the first pack, or the fullest, that has room."""

from __future__ import annotations

from bisect import bisect_left, insort

import numpy as np

from energize.core.arrays import Int64Array
from energize.packing.rooms import RoomTree
from energize.packing.sizes import Capacity, Lengths, checked_lengths, in_order_of_arrival


def first_fit(lengths: Lengths, capacity: Capacity) -> list[list[int]]:
    """Packs of samples by their numbers: each sample, in turn, goes into the first pack with room.

    Every sample is in one pack, no pack holds more than `capacity`, and the numbers in a pack
    ascend. With several capacities, `lengths` has a row of as many for each sample. There are at
    most 1.7 times as many packs as the fewest that could hold one length of each sample. n samples
    take O(n log n) steps.

    Raises `ConfigError` for lengths that are negative, no whole numbers or above the capacity.

    >>> first_fit([7, 5, 3, 4, 1], capacity=10)
    [[0, 2], [1, 3, 4]]
    """
    sizes, capacities = checked_lengths(lengths, capacity, "first_fit")
    if not len(sizes):
        return []
    most = int(2 * (sizes.sum(axis=0) / capacities).sum()) + 2  # two packs in turn fill one
    trees = [RoomTree(min(most, len(sizes)), room) for room in capacities.tolist()]
    packs: list[list[int]] = []
    for sample, needs in enumerate(sizes.tolist()):
        pack, before = 0, -1
        while pack != before:  # until all agree; the first of a single one is at once
            before = pack
            for tree, need in zip(trees, needs, strict=True):
                pack = tree.first(need, pack)
        for tree, need in zip(trees, needs, strict=True):
            tree.put(pack, tree.room(pack) - need)
        if pack == len(packs):
            packs.append([])
        packs[pack].append(sample)
    return packs


def best_fit(lengths: Lengths, capacity: Capacity) -> list[list[int]]:
    """Packs of samples by their numbers: the longest sample first, each into the fullest pack that
    has room for it.

    What packs hold is what `first_fit` says. With one capacity there are at most 11/9 times as many
    packs as the fewest possible, and one, and n samples take O(n log n) steps; with several, the
    sample with the largest part of any capacity comes first, and steps are O(n packs). Packs come
    in the order of their first samples, so the long samples are not all at the beginning.

    Raises `ConfigError` for lengths that are negative, no whole numbers or above the capacity.

    >>> best_fit([7, 5, 3, 4, 1], capacity=10)
    [[0, 2], [1, 3, 4]]
    >>> best_fit([[7, 1], [3, 2], [3, 1]], capacity=[10, 2])  # tokens and images
    [[0, 2], [1]]
    """
    sizes, capacities = checked_lengths(lengths, capacity, "best_fit")
    packs = (
        _best_by_length(sizes[:, 0], int(capacities[0]))
        if len(capacities) == 1
        else _best_by_parts(sizes, capacities)
    )
    return in_order_of_arrival(packs)


def _best_by_length(sizes: Int64Array, capacity: int) -> list[list[int]]:
    """`open_packs` are those with room for the shortest sample, as room * n + pack, ascending."""
    packs: list[list[int]] = []
    open_packs: list[int] = []
    count, least = len(sizes), int(sizes.min(initial=capacity))
    longest_first = np.argsort(-sizes, kind="stable")
    for sample, need in zip(longest_first.tolist(), sizes[longest_first].tolist(), strict=True):
        found = bisect_left(open_packs, need * count)
        if found == len(open_packs):
            room, pack = capacity, len(packs)
            packs.append([])
        else:
            room, pack = divmod(open_packs.pop(found), count)
        packs[pack].append(sample)
        if room - need >= least:
            insort(open_packs, (room - need) * count + pack)
    return packs


def _best_by_parts(sizes: Int64Array, capacities: Int64Array) -> list[list[int]]:
    """The fullest pack is the one with the smallest parts of its capacities left, together."""
    parts = sizes / capacities
    rooms = np.repeat(capacities[None], len(sizes), axis=0)
    left = np.full(len(sizes), float(len(capacities)))
    packs: list[list[int]] = []
    for sample in np.argsort(-parts.max(axis=1, initial=0), kind="stable").tolist():
        fits = (rooms[: len(packs)] >= sizes[sample]).all(axis=1)
        fitting = np.flatnonzero(fits)
        if len(fitting):
            pack = int(fitting[left[fitting].argmin()])
        else:
            pack = len(packs)
            packs.append([])
        packs[pack].append(sample)
        rooms[pack] -= sizes[sample]
        left[pack] -= parts[sample].sum()
    return packs
