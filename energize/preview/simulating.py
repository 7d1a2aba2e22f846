"""What a run of many steps takes of each source, and when sources repeat."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from energize.dataset import Dataset, IndexedDataset, Int64Array
from energize.preview.arguments import check_steps, indexed
from energize.preview.naming import source_labels
from energize.preview.repeats import samples_before_repeat
from energize.wrappers.checks import checked_count

__all__ = ["Simulation", "SourceForecast", "simulate"]


@dataclass(frozen=True, slots=True)
class SourceForecast:
    """What a run takes of one source.

    `name`: see `source_labels`. `count`: the samples it has. `drawn`: the samples that are read of
    it. `share`: of all samples that are read, 0 to 1. `repeats_at`: the first step (0-based) of
    whose batch a sample came before; None when there is none, or when `repeats_known` is False,
    because samples are left out above the source.
    """

    name: str
    count: int
    drawn: int
    share: float
    repeats_at: int | None
    repeats_known: bool

    @property
    def epochs(self) -> float:
        """How many times it is passed through."""
        return self.drawn / self.count if self.count else 0.0


@dataclass(frozen=True, slots=True)
class Simulation:
    """What `steps` batches are made of.

    `points`: numbers of steps from 0 to `steps`, int64. `drawn`: the samples of each source
    (columns) that are read in the first so many steps (rows), int64.
    """

    steps: int
    sources: tuple[SourceForecast, ...]
    points: Int64Array
    drawn: Int64Array

    @property
    def samples(self) -> int:
        """How many samples are read."""
        return sum(each.drawn for each in self.sources)

    def shares(self) -> npt.NDArray[np.float64]:
        """The share of each source (columns) between two points (rows), 0 to 1."""
        drawn = np.diff(self.drawn, axis=0).astype(np.float64)
        shares: npt.NDArray[np.float64] = drawn / np.maximum(drawn.sum(axis=1, keepdims=True), 1)
        return shares


def simulate(dataset: Dataset[Any], steps: int, *, intervals: int = 1) -> Simulation:
    """What the first `steps` batches of a dataset of batches are made of, without reading.

    Steps count the batches of all ranks together. They are cut into `intervals` (or `steps`, if
    that is less) for shares over time. The cost does not depend on the number of steps. Samples
    that will be skipped or found damaged count, their substitutes do not.

    Raises `ConfigError` for steps that cannot be counted, and `NotIndexedError` for a stream.

    >>> from energize import BatchDataset, BlendDataset, ListSource
    >>> blend = BlendDataset((ListSource(range(900)), 9), (ListSource(range(50)), 1))
    >>> run = simulate(BatchDataset(blend, 10, list), steps=100)
    >>> [(each.drawn, each.epochs) for each in run.sources]
    [(900, 1.0), (100, 2.0)]
    """
    positions = indexed(dataset, "simulate")
    check_steps(positions, 0, steps)
    cuts = min(checked_count(intervals, "intervals", "simulate"), steps)
    points = np.array([steps * i // cuts for i in range(cuts + 1)], dtype=np.int64)
    drawn = np.stack([positions.consumed(point) for point in points.tolist()])
    last: list[int] = drawn[-1].tolist()
    limits = samples_before_repeat(positions)
    repeats = _repeats(positions, steps, last, limits)
    labels = source_labels(positions.sources)
    columns = zip(positions.sources, labels, last, repeats, limits, strict=True)
    forecasts = tuple(
        SourceForecast(name, source.count, n, n / max(1, sum(last)), step, limit is not None)
        for source, name, n, step, limit in columns
    )
    return Simulation(steps, forecasts, points, drawn)


def _repeats(
    dataset: IndexedDataset[Any], steps: int, last: list[int], limits: list[int | None]
) -> list[int | None]:
    """For each source the first step that takes it above its limit; `last` is drawn by `steps`."""
    guesses: dict[int, int] = {}
    for number, (drawn, limit) in enumerate(zip(last, limits, strict=True)):
        if limit is not None and drawn > limit:
            guesses[number] = steps * (limit + 1) // drawn
    found: list[int | None] = [None] * len(last)
    # In the order of steps, as schemes keep what they worked out around the last ones asked for.
    for number in sorted(guesses, key=guesses.__getitem__):
        counted = partial(_drawn, dataset, number)
        found[number] = _step_above(counted, steps, guesses[number], limits[number] or 0)
    return found


def _drawn(dataset: IndexedDataset[Any], number: int, n: int) -> int:
    """The samples of one source in the first `n` items."""
    return int(dataset.consumed(n)[number])


def _step_above(drawn: Callable[[int], int], steps: int, guess: int, limit: int) -> int:
    """The first step that takes `drawn` above `limit`; all `steps` do.

    Sources are drawn evenly as a rule, so it is looked for around `guess`, where an even source
    would have it, at twice the distance each time.
    """
    low = high = guess
    reach = 1
    if drawn(guess) > limit:
        while low > 0 and drawn(low := max(guess - reach, 0)) > limit:
            high, reach = low, 2 * reach
    else:
        while drawn(high := min(guess + reach, steps)) <= limit:
            low, reach = high, 2 * reach
    return low + bisect_right(range(low + 1, high), limit, key=drawn)
