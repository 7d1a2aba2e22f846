"""What a run of many steps takes of each source, what was asked for, and when sources repeat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from energize.core.arrays import FloatArray, Int64Array
from energize.core.checks import checked_whole
from energize.core.dataset import Dataset, IndexedDataset
from energize.data.naming import source_labels
from energize.datasets.stages import StagedDataset
from energize.preview.arguments import checked_steps, indexed
from energize.preview.asked_shares import asked_between
from energize.preview.costs import Spending
from energize.preview.repeats import first_repeats
from energize.preview.units import measure_of, weighed_in


@dataclass(frozen=True, slots=True)
class SourceForecast:
    """What a run takes of one source.

    `name`: see `source_labels`. `count`: the samples it has. `drawn`: the samples that are read of
    it. `share`: of all samples that are read, or of what they cost, 0 to 1. `asked`: the share that
    the weights ask for over these steps, None where none is asked for. `repeats_at`: the first step
    (0-based) with a sample that came before, or None when there is none. Where `repeats_exact` is
    False, that is the latest that it can be, and None when a sample may have come before or not.
    """

    name: str
    count: int
    drawn: int
    share: float
    asked: float | None
    repeats_at: int | None
    repeats_exact: bool

    @property
    def epochs(self) -> float:
        """How many times it is passed through."""
        return self.drawn / self.count if self.count else 0.0


@dataclass(frozen=True, slots=True)
class StageSpan:
    """The batches from `start` to before `stop` belong to the stage `name`."""

    name: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Simulation:
    """What `steps` batches are made of.

    `points`: numbers of steps from 0 to `steps`, int64. `drawn`: the samples of each source
    (columns) that are read in the first so many steps (rows), int64. `spent`: what they cost,
    float64, where weights count that, see `measure_of`; else None. `asked`: the share of each
    source (columns) that weights ask for from each point to the next (rows), float64; NaN where
    nothing asks. `stages`: those that these steps belong to, none where there are no stages.
    `unit`: what weights count, see `weighed_in`.
    """

    steps: int
    sources: tuple[SourceForecast, ...]
    points: Int64Array
    drawn: Int64Array
    spent: FloatArray | None
    asked: FloatArray
    stages: tuple[StageSpan, ...]
    unit: str

    @property
    def samples(self) -> int:
        """How many samples are read."""
        return sum(each.drawn for each in self.sources)

    def shares(self) -> npt.NDArray[np.float64]:
        """The share of each source (columns) between two points (rows), 0 to 1: of samples, or of
        what they cost where weights count that.
        """
        amounts = np.diff(self.drawn if self.spent is None else self.spent, axis=0)
        totals = amounts.sum(axis=1, keepdims=True)
        shares: npt.NDArray[np.float64] = amounts / np.where(totals > 0, totals, 1)
        return shares


def simulate(dataset: Dataset[Any], steps: int, *, intervals: int = 1) -> Simulation:
    """What the first `steps` batches of a dataset of batches are made of, without reading.

    Steps count the batches of all ranks together. They are cut into `intervals` (or `steps`, if
    that is less) for shares over time, and where stages begin. The cost does not
    depend on the number of steps. Samples that will be skipped or found damaged count, their
    substitutes do not.

    Raises `ConfigError` for steps that cannot be counted, and `NotIndexedError` for a stream.

    >>> from energize import BatchDataset, BlendDataset, ListSource
    >>> blend = BlendDataset((ListSource(range(900)), 9), (ListSource(range(50)), 1))
    >>> run = simulate(BatchDataset(blend, 10, list), steps=100)
    >>> [(each.drawn, each.epochs, each.asked) for each in run.sources]
    [(900, 1.0, 0.9), (100, 2.0, 0.1)]
    """
    positions = indexed(dataset, "simulate")
    _, steps = checked_steps(positions, 0, steps)
    cuts = min(checked_whole(intervals, "simulate: intervals", 1), steps)
    stages = _stages(positions, steps)
    cut_at = {steps * i // cuts for i in range(cuts + 1)} | {each.start for each in stages}
    points = np.array(sorted(cut_at), dtype=np.int64)
    drawn = np.stack([positions.consumed(point) for point in points.tolist()])
    measure = measure_of(positions)
    spent = None
    if measure is not None:
        spending = Spending(positions, measure)
        spent = np.stack([spending.until(point) for point in points.tolist()])
    asked = asked_between(positions, points)
    forecasts = _forecasts(positions, steps, drawn, drawn if spent is None else spent, asked)
    unit = weighed_in(positions)
    return Simulation(steps, forecasts, points, drawn, spent, asked, stages, unit)


def _forecasts(
    dataset: IndexedDataset[Any],
    steps: int,
    drawn: Int64Array,
    amounts: npt.NDArray[Any],
    asked: FloatArray,
) -> tuple[SourceForecast, ...]:
    """`amounts` are what shares are of: `drawn`, or what it costs."""
    total = max(float(amounts[-1].sum()), 1e-300)
    asked_shares = np.diff(amounts.sum(axis=1)) @ asked / total
    columns = zip(
        source_labels(dataset.sources),
        dataset.sources,
        drawn[-1].tolist(),
        (amounts[-1] / total).tolist(),
        (None if np.isnan(share) else round(share, 9) for share in asked_shares.tolist()),
        first_repeats(dataset, steps),
        strict=True,
    )
    return tuple(
        SourceForecast(name, source.count, n, share, asked_share, *repeat)
        for name, source, n, share, asked_share, repeat in columns
    )


def _stages(dataset: IndexedDataset[Any], steps: int) -> tuple[StageSpan, ...]:
    if not isinstance(dataset, StagedDataset):
        return ()
    plan = dataset.plan
    stops = [*plan.first_items[1:], steps]
    spans = zip(plan.stages, plan.first_items, stops, strict=True)
    return tuple(
        StageSpan(stage.name, start, min(max(stop, start), steps))
        for stage, start, stop in spans
        if start < steps
    )
