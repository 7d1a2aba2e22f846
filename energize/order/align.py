"""Micro batches in which all ranks have the same modalities.

Samples are described by masks: bit c is set if a sample has modality c.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from energize.core.arrays import Int64Array

MOST_MODALITIES = 16
"""The maximum number of modalities."""


@dataclass(frozen=True)
class AlignedBatches:
    """The samples of a global batch, distributed over its micro batches.

    Attributes:
        order: The numbers of the samples by micro batch, int64, shape (samples,).
        bounds: The first sample of each micro batch in `order`, and the end of the last
            one, int64, shape (micro batches + 1,).
        present: The modalities of the micro step of each micro batch, as a mask, int64,
            shape (micro batches,).
        missing: The modalities of its micro step that no sample of a micro batch has,
            as a mask, int64, shape (micro batches,).
    """

    order: Int64Array
    bounds: Int64Array
    present: Int64Array
    missing: Int64Array


def modalities_of(mask: int) -> Iterator[int]:
    """Yield the numbers of the modalities of a mask.

    >>> list(modalities_of(5))
    [0, 2]
    """
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask -= lowest


def micro_batch_sizes(samples: int, batches: int) -> Int64Array:
    """Return the sizes of micro batches, which differ by at most one.

    >>> micro_batch_sizes(7, 3).tolist()
    [3, 2, 2]
    """
    size, rest = divmod(samples, batches)
    return size + (np.arange(batches) < rest).astype(np.int64)


def aligned(
    masks: Int64Array, sizes: Int64Array, ranks: int, always: int = 0
) -> AlignedBatches:
    """Distribute samples so that few micro batches lack a modality of their step.

    A micro step is `ranks` consecutive micro batches. If no micro batch lacks a
    modality, samples keep their order. Otherwise each modality gets the largest number
    of steps in which it has a sample for each micro batch. If all samples together have
    at most one modality, fewer than `ranks` micro batches lack it; none if it has at
    least `ranks` samples and micro batches have at least two. Depends on the arguments
    alone.

    Args:
        masks: The masks of the samples, int64, shape (samples,).
        sizes: The sizes of the micro batches, descending, their sum the number of
            samples.
        ranks: Micro batches of a micro step; divides their number.
        always: The mask of the modalities that every micro batch needs.

    Example:
        >>> batches = aligned(np.array([1, 1, 0, 0]), np.array([2, 2]), 2)
        >>> batches.order.tolist(), batches.missing.tolist()
        ([0, 2, 1, 3], [0, 0])
    """
    bounds = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    order = np.arange(len(masks), dtype=np.int64)
    unchanged = _checked(masks, order, bounds, ranks, always)
    if not unchanged.missing.any():
        return unchanged
    rooms = sizes.reshape(-1, ranks).sum(axis=1).tolist()
    plan = _Plan(masks, ranks, always)
    steps = [plan.next_step(rooms[step:]) for step in range(len(rooms))]
    order = _dealt(masks, steps, ranks)
    return _checked(masks, order, bounds, ranks, always)


def _checked(
    masks: Int64Array, order: Int64Array, bounds: Int64Array, ranks: int, always: int
) -> AlignedBatches:
    """Return an order with the modalities that its micro batches lack."""
    padded = np.append(masks[order], 0)
    parts = np.bitwise_or.reduceat(padded, bounds[:-1])
    parts[np.diff(bounds) == 0] = 0
    by_step = np.bitwise_or.reduce(parts.reshape(-1, ranks), axis=1) | always
    present = np.repeat(by_step, ranks).astype(np.int64)
    return AlignedBatches(order, bounds, present, present & ~parts)


class _Plan:
    """Counts of samples by mask for one micro step after the other."""

    def __init__(self, masks: Int64Array, ranks: int, always: int) -> None:
        values, counts = np.unique(masks, return_counts=True)
        self._left = dict(zip(values.tolist(), counts.tolist(), strict=True))
        self._ranks = ranks
        self._always = always

    def next_step(self, rooms: Sequence[int]) -> dict[int, int]:
        """Return how many samples of each mask the next step takes.

        Args:
            rooms: Samples of this step and of each later one.
        """
        if len(rooms) == 1:
            step = self._left
            self._left = {}
            return step
        allowed, least = self._modalities(rooms[0])
        step = dict.fromkeys(self._left, 0)
        for goals in (least, self._goals(allowed, len(rooms))):
            for modality, goal in goals.items():
                having = [mask for mask in allowed if mask >> modality & 1]
                having.sort(key=lambda mask: (-mask.bit_count(), mask))
                count = goal - sum(step[mask] for mask in having)
                self._take(step, having, min(count, rooms[0] - sum(step.values())))
        others = sorted(self._left, key=lambda mask: (-self._left[mask], mask))
        for masks in ([0], allowed, others):
            self._take(step, masks, rooms[0] - sum(step.values()))
        self._left = {m: n for m, n in self._left.items() if n}
        return {m: n for m, n in step.items() if n}

    def _take(self, step: dict[int, int], masks: Iterable[int], count: int) -> None:
        for mask in masks:
            taken = max(min(count, self._left.get(mask, 0)), 0)
            if taken:
                step[mask] += taken
                self._left[mask] -= taken
                count -= taken

    def _modalities(self, room: int) -> tuple[list[int], dict[int, int]]:
        """Return the masks that the next step may take, and the least number of samples
        of each of their modalities.
        """
        totals = self._totals(self._left)
        chosen = [c for c in totals if totals[c] >= self._ranks]
        chosen.sort(key=lambda modality: (-totals[modality], modality))
        while chosen:
            union = sum(1 << modality for modality in chosen)
            allowed = [mask for mask in self._left if mask and not mask & ~union]
            available = self._totals(allowed)
            short = [c for c in chosen if available.get(c, 0) < self._ranks]
            if short:
                chosen.remove(short[-1])
            elif len(chosen) > 1 and self._needed(allowed, chosen) > room:
                chosen.pop()
            else:
                return allowed, dict.fromkeys(chosen, self._ranks)
        return [], {}

    def _totals(self, masks: Iterable[int]) -> dict[int, int]:
        """Return the number of samples of masks that are left, by modality."""
        totals: dict[int, int] = {}
        for mask in masks:
            for modality in modalities_of(mask):
                totals[modality] = totals.get(modality, 0) + self._left[mask]
        return totals

    def _needed(self, allowed: Sequence[int], chosen: Sequence[int]) -> int:
        """Return the samples with which each modality has one for each micro batch."""
        step = dict.fromkeys(self._left, 0)
        for modality in chosen:
            count = self._ranks
            having = [mask for mask in allowed if mask >> modality & 1]
            count -= sum(step[mask] for mask in having)
            for mask in sorted(having, key=lambda mask: (-mask.bit_count(), mask)):
                taken = max(min(count, self._left[mask] - step[mask]), 0)
                step[mask] += taken
                count -= taken
        return sum(step.values())

    def _goals(self, allowed: Sequence[int], steps: int) -> dict[int, int]:
        """Return how many samples of each modality the next step should take."""
        goals = {}
        for modality, total in self._totals(allowed).items():
            together = min(steps, max(total // self._ranks, 1))
            if self._always >> modality & 1:
                together = steps
            goals[modality] = max(-(-total // together), self._ranks)
        return goals


def _dealt(
    masks: Int64Array, steps: Sequence[Mapping[int, int]], ranks: int
) -> Int64Array:
    """Return the order in which steps take samples, and deal them to micro batches."""
    waiting = {mask: np.flatnonzero(masks == mask) for mask in {*masks.tolist()}}
    parts = []
    for step in steps:
        taken = []
        for mask in sorted(step, key=_gray_rank, reverse=True):
            samples, waiting[mask] = np.split(waiting[mask], [step[mask]])
            taken.append(samples)
        rows = np.concatenate([*taken, np.zeros(0, dtype=np.int64)])
        owner = np.arange(len(rows)) % ranks
        parts.append(rows[np.lexsort((rows, owner))])
    return np.concatenate(parts).astype(np.int64)


def _gray_rank(mask: int) -> int:
    """Return the place of a mask in the Gray code.

    Neighbours differ in one modality, so samples with a modality mostly follow one
    another.
    """
    rank = 0
    while mask:
        rank ^= mask
        mask >>= 1
    return rank
