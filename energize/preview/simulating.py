"""What a run of many steps takes of each source, and when sources repeat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from energize.arrays import Int64Array
from energize.dataset import Dataset
from energize.numbers import checked_whole
from energize.preview.arguments import checked_steps, indexed
from energize.preview.repeats import first_repeats
from energize.sources.naming import source_labels


@dataclass(frozen=True, slots=True)
class SourceForecast:
    """What a run takes of one source.

    `name`: see `source_labels`. `count`: the samples it has. `drawn`: the samples that are read of
    it. `share`: of all samples that are read, 0 to 1. `repeats_at`: the first step (0-based) with a
    sample that came before, or None when there is none. Where `repeats_exact` is False, that is the
    latest that it can be, and None when a sample may have come before or not.
    """

    name: str
    count: int
    drawn: int
    share: float
    repeats_at: int | None
    repeats_exact: bool

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
    _, steps = checked_steps(positions, 0, steps)
    cuts = min(checked_whole(intervals, "simulate: intervals", 1), steps)
    points = np.array([steps * i // cuts for i in range(cuts + 1)], dtype=np.int64)
    drawn = np.stack([positions.consumed(point) for point in points.tolist()])
    last: list[int] = drawn[-1].tolist()
    labels = source_labels(positions.sources)
    columns = zip(labels, positions.sources, last, first_repeats(positions, steps), strict=True)
    forecasts = tuple(
        SourceForecast(name, source.count, n, n / max(1, sum(last)), *repeat)
        for name, source, n, repeat in columns
    )
    return Simulation(steps, forecasts, points, drawn)
