"""Packs that fit and cost the same."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import numpy as np

from energize.core.arrays import FloatArray, Int64Array
from energize.core.checks import checked_whole
from energize.errors import ConfigError
from energize.packing.fitting import best_fit
from energize.packing.sizes import (
    Capacity,
    Lengths,
    checked_costs,
    checked_lengths,
    in_order_of_arrival,
)

HIDDEN_SIZE = 4096


def attention_cost(tokens: int, hidden_size: int = HIDDEN_SIZE) -> int:
    """What a transformer computes for a sequence, in units of 4 * hidden_size operations a layer.

    The matrices of a layer take 24 * hidden_size**2 operations for each token, and attention within
    the sequence 4 * hidden_size * tokens: together tokens * (tokens + 6 * hidden_size) units. So
    two packs of the same length cost different amounts when one is of a few long samples and the
    other of many short ones.

    >>> attention_cost(2048) / (2 * attention_cost(1024))
    1.04
    """
    return tokens * (tokens + 6 * hidden_size)


def balanced(
    lengths: Lengths,
    capacity: Capacity,
    *,
    packs: int | None = None,
    costs: Sequence[float] | FloatArray | None = None,
) -> list[list[int]]:
    """Packs of samples by their numbers, that cost about the same: the dearest samples first,
    each into the cheapest pack that has room for it.

    What packs hold is what `first_fit` says; several capacities, as of tokens and of image tiles,
    hold together. `costs` are what samples cost, by default `attention_cost` of their first
    lengths. Without `packs`, there are as few as can be found, and never more than `best_fit`
    makes; where packs are so full that samples do not fit in this way, those of `best_fit` are
    evened out by moving samples from dear packs to cheap ones. With `packs`, there are exactly so
    many, one for each rank for example, some of them empty when there are fewer samples.

    Without a capacity in the way, the dearest pack costs at most 4/3 of what it would in the best
    of all divisions. Packs come in the order of their first samples. n samples take O(n packs)
    steps.

    Raises `ConfigError` for lengths or costs that are negative or above the capacity, and when no
    division into `packs` packs is found.

    >>> balanced([7, 5, 3, 4, 1], capacity=20, packs=2)
    [[0, 2], [1, 3, 4]]
    >>> balanced([[900, 1], [500, 6], [400, 6], [100, 1]], capacity=[2048, 7])  # tokens and tiles
    [[0, 2], [1, 3]]
    """
    sizes, capacities = checked_lengths(lengths, capacity, "balanced")
    if costs is None:
        tokens = sizes[:, 0].astype(np.float64)
        costs = tokens * (tokens + 6 * HIDDEN_SIZE)
    prices = checked_costs(costs, len(sizes), "balanced")
    given = _Given(sizes, capacities, prices)
    if packs is None:
        return in_order_of_arrival(_fewest(given))
    wanted = checked_whole(packs, "balanced: packs", 1)
    divided = _cheapest_first(given, wanted)
    if divided is None:
        divided = best_fit(sizes, capacities.tolist())
        if len(divided) > wanted:
            raise ConfigError(
                f"balanced: {len(sizes)} samples of together {sizes.sum(axis=0).tolist()} do not "
                f"fit into {wanted} packs of {capacities.tolist()}; the fewest found are "
                f"{len(divided)}. Ask for as many, raise the capacity, or give fewer samples"
            )
        divided += [[] for _ in range(wanted - len(divided))]
        _even_out(divided, given)
    return in_order_of_arrival(divided)


class _Given(NamedTuple):
    """Samples, a row of lengths and a cost for each, and what a pack can hold."""

    sizes: Int64Array
    capacities: Int64Array
    costs: FloatArray


def _fewest(given: _Given) -> list[list[int]]:
    """A level division into no more packs than `best_fit` makes.

    Numbers of packs are tried from the fewest possible on, in steps that double, and then between
    the last that failed and the first that did not.
    """
    sizes, capacities, _ = given
    fitted = best_fit(sizes, capacities.tolist())
    if not fitted:
        return []
    halves = int((2 * sizes > capacities).sum(axis=0).max())
    failed = max(halves, int((-(-sizes.sum(axis=0) // capacities)).max()), 1) - 1
    step, tried, found = 1, 0, None
    while found is None and tried < len(fitted):
        tried = min(failed + step, len(fitted))
        found = _cheapest_first(given, tried)
        if found is None:
            failed, step = tried, 2 * step
    while found is not None and tried - failed > 1:
        between = (failed + tried) // 2
        fewer = _cheapest_first(given, between)
        if fewer is None:
            failed = between
        else:
            tried, found = between, fewer
    if found is None:
        _even_out(fitted, given)
        return fitted
    return found


def _cheapest_first(given: _Given, count: int) -> list[list[int]] | None:
    """Each sample in the cheapest of `count` packs that has room, the dearest samples first; or, if
    one then finds no room, those first that take the largest part of a capacity; else None.
    """
    dearest = np.argsort(-given.costs, kind="stable")
    largest = np.argsort(-(given.sizes / given.capacities).max(axis=1, initial=0), kind="stable")
    packs = _in_turn(given, count, dearest)
    if packs is None and not np.array_equal(dearest, largest):
        packs = _in_turn(given, count, largest)
    return packs


def _in_turn(given: _Given, count: int, order: Int64Array) -> list[list[int]] | None:
    """Each sample, in this order, in the cheapest pack that has room; None when there is none."""
    rooms = np.repeat(given.capacities[:, None], count, axis=1)
    totals = np.zeros(count)
    packs: list[list[int]] = [[] for _ in range(count)]
    steps = zip(order.tolist(), given.costs[order].tolist(), given.sizes[order], strict=True)
    for sample, cost, needs in steps:
        without = (rooms < needs[:, None]).any(axis=0)
        pack = int(np.where(without, np.inf, totals).argmin())
        if without[pack]:
            return None
        packs[pack].append(sample)
        totals[pack] += cost
        rooms[:, pack] -= needs
    return packs


def _even_out(packs: list[list[int]], given: _Given) -> None:
    """Move samples from the dearest packs to the cheapest, in place, while that brings two closer.

    A pack that can give nothing to the cheapest gives nothing later: the cheapest only gets dearer.
    """
    sizes, costs = given.sizes.tolist(), given.costs.tolist()
    totals = [sum(costs[sample] for sample in pack) for pack in packs]
    held = [given.sizes[pack].sum(axis=0) for pack in packs]
    rooms = [(given.capacities - each).tolist() for each in held]
    cheap = [(total, pack) for pack, total in enumerate(totals)]
    dear = [(-total, pack) for pack, total in enumerate(totals)]
    heapify(cheap)
    heapify(dear)
    for _ in range(4 * len(sizes)):  # each of few samples would be moved a few times
        while totals[cheap[0][1]] != cheap[0][0]:
            heappop(cheap)
        while dear and totals[dear[0][1]] != -dear[0][0]:
            heappop(dear)
        if not dear or dear[0][1] == cheap[0][1]:
            return
        giver, taker = dear[0][1], cheap[0][1]
        gap = totals[giver] - totals[taker]
        free = [sample for sample in packs[giver] if 0 < costs[sample] < gap]
        free = [sample for sample in free if _fits(sizes[sample], rooms[taker])]
        if not free:
            heappop(dear)
            continue
        sample = min(free, key=lambda sample: abs(2 * costs[sample] - gap))
        packs[giver].remove(sample)
        packs[taker].append(sample)
        for pack, sign in ((giver, -1), (taker, 1)):
            totals[pack] += sign * costs[sample]
            rooms[pack] = [
                room - sign * need for room, need in zip(rooms[pack], sizes[sample], strict=True)
            ]
            heappush(cheap, (totals[pack], pack))
            heappush(dear, (-totals[pack], pack))


def _fits(needs: list[int], rooms: list[int]) -> bool:
    return all(need <= room for need, room in zip(needs, rooms, strict=True))
