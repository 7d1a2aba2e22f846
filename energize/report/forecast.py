"""Forecast of the samples of a run: shares, repeats and the plan of single batches."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import count, islice, pairwise
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from energize.core.arrays import FloatArray, Int64Array, rows_by_value
from energize.core.blends import ContinuedDataset
from energize.core.checks import checked_whole
from energize.core.costs import ColumnCost
from energize.core.dataset import Dataset, IndexedDataset
from energize.core.description import label_of
from energize.core.lanes import Lane
from energize.core.node import Refs, SourceNode
from energize.core.restoring import without_loops
from energize.core.stream import lanes_of
from energize.core.trace import (
    ReadContext,
)
from energize.data.join import JoinedSource
from energize.data.selection import RowsSource
from energize.data.source import Source
from energize.data.webdataset import WebdatasetSource
from energize.datasets.batch import BatchDataset
from energize.datasets.blend import BlendDataset
from energize.datasets.order import ShuffleDataset
from energize.datasets.stages import StagedDataset
from energize.errors import ConfigError, EmptyDatasetError, NotIndexedError
from energize.order import Schedule
from energize.report.levels import (
    MixLevel,
    Places,
    Spans,
    items_between,
    levels_of,
    requested_shares,
    samples_per_item,
    shares_of,
    source_names,
    spans,
    spend,
)


@dataclass(frozen=True, slots=True)
class SourceForecast:
    """The samples that a run reads of one source.

    Args:
        name: Name of the source, see `source_names`.
        count: Number of samples of the source.
        drawn: Number of samples that are read.
        share: Fraction of all samples that are read, or of their cost, 0 to 1.
        requested: Fraction by the weights over these steps. None without weights.
        repeats_at: First step, from 0, with a repeated sample. None without repeats.
        repeats_exact: If False, `repeats_at` is only an upper bound, and None means
            that samples may or may not repeat.
    """

    name: str
    count: int
    drawn: int
    share: float
    requested: float | None
    repeats_at: int | None
    repeats_exact: bool

    @property
    def epochs(self) -> float:
        """The number of passes through the source."""
        return self.drawn / self.count if self.count else 0.0

    def as_json(self) -> dict[str, Any]:
        """Return all fields and `epochs` in one flat dict."""
        return {
            "name": self.name,
            "count": self.count,
            "drawn": self.drawn,
            "share": self.share,
            "asked": self.requested,
            "repeats_at": self.repeats_at,
            "repeats_exact": self.repeats_exact,
            "epochs": self.epochs,
        }


@dataclass(frozen=True, slots=True)
class StageSpan:
    """The batches of one stage: from `start` to `stop`, exclusive."""

    name: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True, repr=False)
class Simulation:
    """The simulated batches of a run.

    Args:
        sources: Forecast of each source.
        points: Numbers of steps at which counts are given, from 0 to the last; int64.
        drawn: Samples of each source (columns) in the steps up to each point (rows);
            int64.
        spent: Cost of these samples, float64. None if weights count samples, see
            `measure_of`.
        requested: Requested share of each source (columns) between two points (rows),
            float64; NaN without weights.
        stages: Stages of these steps; empty without stages.
        unit: Unit of the weights, see `weighed_in`.
        read: Number of batches that were read for the estimate. None if the result is
            exact.
    """

    sources: tuple[SourceForecast, ...]
    points: Int64Array
    drawn: Int64Array
    spent: FloatArray | None
    requested: FloatArray
    stages: tuple[StageSpan, ...]
    unit: str
    read: int | None = None

    def __repr__(self) -> str:
        return f"Simulation(steps={self.steps}, {len(self.sources)} sources)"

    @property
    def steps(self) -> int:
        """The number of simulated batches."""
        return int(self.points[-1])

    @property
    def samples(self) -> int:
        """The number of samples that are read."""
        return sum(source.drawn for source in self.sources)

    def shares(self) -> npt.NDArray[np.float64]:
        """Return the share of each source (columns) between two points (rows).

        Returns:
            Fractions of the samples, or of their cost if weights count a cost; float64,
            0 to 1.
        """
        amounts = np.diff(self.drawn if self.spent is None else self.spent, axis=0)
        totals = amounts.sum(axis=1, keepdims=True)
        return np.asarray(amounts / np.where(totals > 0, totals, 1))


def simulate(
    dataset: Dataset[Any], steps: int, *, intervals: int = 1, read: int | None = None
) -> Simulation:
    """Return the samples of the first `steps` batches, without reading data.

    The cost does not depend on the number of steps. Samples that will be skipped or
    damaged count; their substitutes do not.

    Args:
        dataset: Dataset of batches.
        steps: Number of batches, over all ranks.
        intervals: Number of intervals for shares over time, at most `steps`. More are
            added where stages begin; an interval near a change of weights begins at the
            change.
        read: For packers and filters (streams), the number of batches to read for an
            estimate. More are read until the content of a packer is packed. All steps
            are estimated by the mean of these batches.

    Returns:
        The counts of each source, and its first repeat.

    Raises:
        ConfigError: If the steps cannot be counted.
        NotIndexedError: If the dataset is a stream and `read` is None.

    Example:
        >>> from energize import BatchDataset, BlendDataset, ListSource
        >>> blend = BlendDataset(
        ...     (ListSource(range(900)), 9), (ListSource(range(50)), 1)
        ... )
        >>> run = simulate(BatchDataset(blend, 10, list), steps=100)
        >>> [(each.drawn, each.epochs, each.requested) for each in run.sources]
        [(900, 1.0, 0.9), (100, 2.0, 0.1)]
    """
    if read is not None and not dataset.indexed:
        return _estimated(dataset, checked_whole(steps, "steps", 1), intervals, read)
    positions = indexed(dataset, "simulate", "simulate(read=100), or --read 100")
    _, steps = checked_steps(positions, 0, steps)
    cuts = min(checked_whole(intervals, "simulate: intervals", 1), steps)
    stages = _stages(positions, steps)
    cut_at = {steps * i // cuts for i in range(cuts + 1)}
    changes = _changes(positions, steps) if cuts > 1 else set()
    near = {min((abs(i - at), i) for i in cut_at)[1] for at in changes}
    cut_at = (cut_at - near) | changes | {0, steps} | {stage.start for stage in stages}
    return _simulation(positions, sorted(cut_at), [(positions, Fraction(1))], stages)


def _changes(dataset: IndexedDataset[Any], steps: int) -> set[int]:
    """Return the first steps at which weights of a mix change or reach a point."""
    levels = levels_of(dataset)
    steps_of_changes = set()
    for level in levels.walk():
        mix = level.mix
        if isinstance(mix, BlendDataset):
            slots = {slot for slot, _ in mix.changes}
            slots.update(
                *(
                    weight.slots
                    for weight in mix.weights
                    if isinstance(weight, Schedule)
                )
            )
            reached = partial(_reached, levels, level.path)
            steps_of_changes |= {
                bisect_left(range(steps), slot, key=reached)
                for slot in sorted(slots)[:64]
            }
    return steps_of_changes


def _reached(levels: MixLevel, path: tuple[str, ...], step: int) -> int:
    return spans(levels, step).get(path, step)


def _estimated(
    dataset: Dataset[Any], steps: int, intervals: int, read: int
) -> Simulation:
    """Return the simulation of a stream, by the mean of the batches that are read.

    Requested shares are known only if the stream has a single indexed part.
    """
    parts = [indexed(child, "simulate", None) for child, _ in dataset.read_parts]
    many, items = _read_items(dataset, checked_whole(read, "simulate: read", 1))
    pace = [
        Fraction(items[id(part)], many * sum(e is part for e in parts))
        for part in parts
    ]
    cuts = min(checked_whole(intervals, "simulate: intervals", 1), steps)
    points = [steps * i // cuts for i in range(cuts + 1)]
    return _simulation(dataset, points, list(zip(parts, pace, strict=True)), (), many)


def _read_items(dataset: Dataset[Any], read: int) -> tuple[int, Counter[int]]:
    """Read at least `read` batches of a stream, until the next one needs more input.

    Returns:
        The number of batches, and the items that they took of each indexed part, by its
        `id`.
    """
    items: Counter[int] = Counter()
    reading = ReadContext(taken=lambda part: items.update([id(part)]))
    with closing(without_loops(dataset).open(reading=reading)) as cursor:
        for many in count():
            counted_items = items.copy()
            if next(cursor, _OVER) is _OVER or (
                many >= read and items != counted_items
            ):
                break
    if not many:
        raise EmptyDatasetError(
            f"simulate: {label_of(dataset)} returned no batch for an estimate"
        )
    return many, counted_items


def _forecasts(
    dataset: Dataset[Any],
    drawn: npt.NDArray[Any],
    amounts: npt.NDArray[Any],
    requested: npt.NDArray[Any],
    repeats: Sequence[tuple[int | None, bool]],
) -> tuple[SourceForecast, ...]:
    """Return the forecast of each source, at the last of the simulated steps.

    Args:
        dataset: The simulated dataset.
        drawn: Samples drawn of each source at the last step.
        amounts: Samples or cost of each source up to each step, shape (steps, sources).
        requested: Requested share of each source between two steps; NaN if unknown.
        repeats: For each source the first repeat, and whether it is exact.
    """
    total = max(float(amounts[-1].sum()), 1e-300)
    requested_shares = np.diff(amounts.sum(axis=1)) @ requested / total
    columns = zip(
        source_names(dataset),
        dataset.sources,
        drawn.tolist(),
        (amounts[-1] / total).tolist(),
        (
            None if np.isnan(share) else round(share, 9)
            for share in requested_shares.tolist()
        ),
        repeats,
        strict=True,
    )
    return tuple(
        SourceForecast(name, source.count, n, share, requested_share, *repeat)
        for name, source, n, share, requested_share, repeat in columns
    )


def _items_at(steps: Sequence[int], pace: Fraction) -> Int64Array:
    """Return the number of items of a part up to each step."""
    return np.array([round(n * pace) for n in steps], dtype=np.int64)


def _simulation(
    dataset: Dataset[Any],
    steps: Sequence[int],
    parts: Sequence[tuple[IndexedDataset[Any], Fraction]],
    stages: tuple[StageSpan, ...],
    read: int | None = None,
) -> Simulation:
    """Return the simulation of a dataset up to some steps.

    Args:
        dataset: The simulated dataset.
        steps: Numbers of steps, ascending.
        parts: The indexed parts, with the number of items of each in one step.
        stages: Stages of these steps.
        read: Number of batches that were read.
    """
    of_parts = [(part, _items_at(steps, pace), pace) for part, pace in parts]
    read_of = [
        np.stack([part.consumed(n) for n in at.tolist()]) for part, at, _ in of_parts
    ]
    drawn = np.concatenate(read_of, axis=1)
    spent: npt.NDArray[Any] | None = None
    requested = np.full((len(steps) - 1, drawn.shape[1]), np.nan)
    if len(parts) == 1:
        part, at, _ = of_parts[0]
        measure = measure_of(part)
        spent = None if measure is None else spent_until(part, at, measure)
        requested = requested_between(part, at)
    repeats = [
        (None if item is None else int(item / pace), exact)
        for part, at, pace in of_parts
        for item, exact in first_repeats(part, int(at[-1]))
    ]
    amounts = drawn if spent is None else spent
    forecasts = _forecasts(dataset, drawn[-1], amounts, requested, repeats)
    points = np.array(steps, dtype=np.int64)
    unit = weighed_in(dataset)
    return Simulation(forecasts, points, drawn, spent, requested, stages, unit, read)


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


SAMPLES = "samples"
BATCHES = "whole batches"


def weighed_in(dataset: Dataset[Any]) -> str:
    """Return the unit of the weights of the outermost blends of a dataset.

    Args:
        dataset: Any dataset.

    Returns:
        "samples"; "whole batches" if each entry has batches of its own, as with one
        task encoder for each sample type; or the name of a cost column. Different units
        of stages are joined by "and".

    Example:
        >>> from energize import BatchDataset, BlendDataset, ListSource
        >>> web, code = ListSource("ab"), ListSource("12")
        >>> weighed_in(BatchDataset(BlendDataset((web, 1), (code, 1)), 2, list))
        'samples'
        >>> weighed_in(
        ...     BlendDataset(
        ...         (BatchDataset(web, 2, list), 1), (BatchDataset(code, 2, list), 1)
        ...     )
        ... )
        'whole batches'
    """
    return (
        " and ".join(dict.fromkeys(_unit_name(blend) for blend in _outermost(dataset)))
        or SAMPLES
    )


def measure_of(dataset: Dataset[Any]) -> ColumnCost | None:
    """Return the cost that the weights of the outermost blends count.

    Args:
        dataset: Any dataset.

    Returns:
        The cost. None if the weights count samples or batches, or have different units.

    Example:
        >>> from energize import BlendDataset, ListSource
        >>> words = ListSource(["a b", "c"], columns={"words": [2, 1]})
        >>> measure_of(BlendDataset((words, 1), unit="words"))
        ColumnCost(cost='words')
    """
    units = [blend.traits.mix.unit for blend in _outermost(dataset)]
    are_equal = bool(units) and all(blend == units[0] for blend in units)
    return units[0] if are_equal and isinstance(units[0], ColumnCost) else None


def _outermost(dataset: Dataset[Any]) -> list[BlendDataset[Any]]:
    """Return the blends that are not inside another blend."""
    if isinstance(dataset, BlendDataset):
        return [dataset]
    return [blend for child in dataset.inputs for blend in _outermost(child)]


def _unit_name(blend: BlendDataset[Any]) -> str:
    unit = blend.traits.mix.unit
    if unit is None:
        return BATCHES if any(map(_batched, blend.inputs)) else SAMPLES
    cost = getattr(unit, "cost", unit)
    if isinstance(cost, str):
        return cost
    return (
        f"a cost of {', '.join(unit.columns)}"
        if isinstance(unit, ColumnCost)
        else "a cost"
    )


def _batched(dataset: Dataset[Any]) -> bool:
    return isinstance(dataset, BatchDataset) or any(map(_batched, dataset.inputs))


_FARTHEST = 2**62
"""Largest sample position; all numbers that are derived from it fit in int64."""


def indexed(
    dataset: Dataset[Any], purpose: str, reads: str | None = None
) -> IndexedDataset[Any]:
    """Return `dataset` if it has positions; raise `NotIndexedError` for a stream.

    Args:
        dataset: Any dataset.
        purpose: Caller, for the message.
        reads: Call that reads streams, for the message.
    """
    if not isinstance(dataset, IndexedDataset) or not dataset.indexed:
        instead = f", or read it: {reads}" if reads else ""
        raise NotIndexedError(
            f"{purpose}: {type(dataset).__name__} is a stream or reads from one, so "
            "its samples are known only by reading. Remove filters and packers, or "
            f"filter when the data are prepared{instead}"
        )
    return dataset


def checked_steps(
    dataset: IndexedDataset[Any], at: object, steps: object
) -> tuple[int, int]:
    """Return `at` and `steps` as Python integers.

    Args:
        dataset: Dataset of batches.
        at: First step; any integer type.
        steps: Number of steps; any integer type.

    Raises:
        ConfigError: If the numbers are out of range, or the samples too far to be
            counted.

    Example:
        >>> import numpy as np
        >>> from energize import ListSource
        >>> checked_steps(ListSource("ab"), np.int64(7), 2)
        (7, 2)
    """
    first = checked_whole(at, "at", 0)
    count = checked_whole(steps, "steps", 1)
    samples = int(dataset.consumed(1).sum())
    if (first + count) * samples > _FARTHEST:
        raise ConfigError(
            f"step {first + count:,} of {samples:,} samples each is too far away. "
            f"Samples are counted up to {_FARTHEST:,}"
        )
    return first, count


def requested_between(dataset: IndexedDataset[Any], points: Int64Array) -> FloatArray:
    """Return the requested share of each source between neighbouring points.

    Weights of whole batches are converted to shares of samples. Stop rules are ignored.

    Args:
        dataset: Dataset of batches.
        points: Numbers of steps, ascending; int64.

    Returns:
        Shares of each source (columns) between two points (rows), float64, 0 to 1, in
        the unit of the mix. NaN for sources without a requested share, such as those of
        a concatenation, or those weighed in another unit.

    Example:
        >>> from energize import BatchDataset, BlendDataset, ListSource, Schedule
        >>> glide = Schedule([(0, 3), (8, 1)], "linear")
        >>> blend = BlendDataset((ListSource("a"), glide), (ListSource("b"), 1))
        >>> requested_between(BatchDataset(blend, 2, list), np.array([0, 4, 8])).round(
        ...     2
        ... ).tolist()
        [[0.65, 0.35], [0.5, 0.5]]
    """
    levels = levels_of(dataset)
    measure = measure_of(dataset)
    reached = [spans(levels, point) for point in points.tolist()]
    places = Places(dataset, levels)
    rows = (
        _requested_rows(levels, begun, ended, measure)
        for begun, ended in pairwise(reached)
    )
    return np.array([places.by_source(values) for values in rows])


def _requested_rows(
    level: MixLevel, begun: Spans, ended: Spans, measure: ColumnCost | None
) -> FloatArray:
    """Return the requested share of each row of a level, as a fraction of the level."""
    if level.source is not None:
        return np.ones(1)
    shares = None
    if isinstance(level.mix, StagedDataset):
        shares = shares_of(
            items_between(level, begun.get(level.path), ended.get(level.path))
        )
    elif level.traits.unit == measure:
        shares = requested_shares(level, begun.get(level.path), ended.get(level.path))
        if shares is not None and measure is None:
            starts = [part.rows.start - level.rows.start for part in level.parts]
            shares = shares_of(shares * samples_per_item(level)[starts])
    if shares is None:
        return np.full(len(level.rows), np.nan)
    rows = [
        share * _requested_rows(part, begun, ended, measure)
        if share
        else np.zeros(len(part.rows))
        for part, share in zip(level.parts, shares.tolist(), strict=True)
    ]
    return np.concatenate(rows)


_AT_ONCE = 2**20


def spent_until(
    dataset: IndexedDataset[Any], points: Int64Array, measure: ColumnCost
) -> FloatArray:
    """Return the cost of each source (columns) up to each point (rows), float64.

    The result is exact if each input of a blend in that unit reads one source.
    Otherwise, the sources of an input share its cost by the mean cost of their samples;
    outside of such blends, only mean costs are used.

    Args:
        dataset: Dataset of batches.
        points: Numbers of items.
        measure: The cost to count.
    """
    levels = levels_of(dataset)
    places = Places(dataset, levels)
    means = np.array(
        [_mean(measure, dataset.sources[number]) for number in places.numbers]
    )
    begun = spans(levels, 0)
    costs = []

    def counts(level: MixLevel) -> bool:
        return bool(level.traits.unit == measure)

    for point in points.tolist():
        spent = cast("Int64Array", places.planned(point)) * means
        spend(levels, spent, begun, spans(levels, point), counts, costs=True)
        costs.append(places.by_source(spent))
    return np.stack(costs)


def _mean(measure: ColumnCost, source: SourceNode[Any]) -> float:
    total = 0.0
    for start in range(0, source.count, _AT_ONCE):
        index = np.arange(start, min(start + _AT_ONCE, source.count), dtype=np.int64)
        total += float(measure.of_samples(source, index).sum())
    return total / max(source.count, 1)


_SAMPLES_AT_ONCE = 2**14

_OVER = object()


@dataclass(frozen=True, slots=True)
class PlannedSample:
    """A sample that will be read.

    Args:
        source: Name of its source, see `source_names`.
        shard: Its shard. None if the source has no shards.
        index: Number in the shard, or in a source without shards.
        epoch: Earlier passes through the source.
        key: Key of the sample. None if it was not requested or cannot be read.
    """

    source: str
    shard: str | None
    index: int
    epoch: int
    key: str | None = None


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """The samples of the batch of a step, in order.

    Args:
        step: Step of the run, over all ranks.
        rank: Rank of the batch. None if the number of ranks is unknown.
        samples: The samples; empty if the batch is padding.
    """

    step: int
    rank: int | None
    samples: tuple[PlannedSample, ...]


def plan(
    dataset: Dataset[Any],
    at: int,
    steps: int,
    *,
    world_size: int | None = None,
    keys: bool = False,
    read: bool = False,
) -> Iterator[PlannedBatch]:
    """Return the batches `at` to `at + steps` of a dataset of batches, as planned.

    Steps count the batches of all ranks, like the position of a saved state. Ranks take
    turns, and start each epoch with rank 0. The plan is correct as long as no sample is
    skipped or damaged; substitutes are not planned. Shards are opened only for `keys`.

    Args:
        dataset: Dataset of batches.
        at: First step.
        steps: Number of steps.
        world_size: Number of ranks. None if unknown.
        keys: Whether to read the keys of samples.
        read: Whether to read packers and filters (streams) up to these batches, in the
            default lanes, at most to the end of the epoch.

    Returns:
        An iterator over the batches.

    Raises:
        ConfigError: If a number is out of range.
        NotIndexedError: If the dataset is a stream and `read` is False.
        ShardError: If the keys of a shard cannot be read.

    Example:
        >>> from energize import BatchDataset, BlendDataset, ListSource
        >>> blend = BlendDataset(
        ...     (ListSource("ab", name="a"), 1), (ListSource("xyz", name="x"), 1)
        ... )
        >>> for batch in plan(
        ...     BatchDataset(blend, 2, list), at=10**9, steps=2, world_size=2
        ... ):
        ...     print(batch.step, batch.rank, len(batch.samples))
        1000000000 0 2
        1000000001 1 2
    """
    if world_size is not None:
        world_size = checked_whole(world_size, "plan: world_size", 1)
    if read and not dataset.indexed:
        at = checked_whole(at, "at", 0)
        steps = checked_whole(steps, "steps", 1)
        return islice(_read_batches(dataset, world_size, keys=keys), at, at + steps)
    positions = indexed(dataset, "plan", "plan(read=True), or --read")
    at, steps = checked_steps(positions, at, steps)
    return _batches(positions, at, at + steps, world_size, keys=keys)


def _batches(
    dataset: IndexedDataset[Any],
    start: int,
    stop: int,
    world_size: int | None,
    *,
    keys: bool,
) -> Iterator[PlannedBatch]:
    labels = source_names(dataset)
    at_once = max(1, _SAMPLES_AT_ONCE // max(1, int(dataset.consumed(1).sum())))
    for first in range(start, stop, at_once):
        steps = np.arange(first, min(first + at_once, stop), dtype=np.int64)
        refs = dataset.refs(steps)
        samples = planned_samples(dataset.sources, labels, refs, keys=keys)
        ends = np.searchsorted(refs.item, np.arange(len(steps)), side="right").tolist()
        begin = 0
        for step, end in zip(steps.tolist(), ends, strict=True):
            rank = None if world_size is None else step % dataset.size % world_size
            yield PlannedBatch(step, rank, tuple(samples[begin:end]))
            begin = end


def _read_batches(
    dataset: Dataset[Any], world_size: int | None, *, keys: bool
) -> Iterator[PlannedBatch]:
    labels = source_names(dataset)
    for step, (_, refs) in enumerate(batches_read(dataset)):
        rank = None if world_size is None else step % world_size
        samples = planned_samples(dataset.sources, labels, refs, keys=keys)
        yield PlannedBatch(step, rank, tuple(samples))


def batches_read(
    dataset: Dataset[Any], reading: ReadContext | None = None
) -> Iterator[tuple[Any, Refs]]:
    """Yield each batch of an epoch of a stream with the refs of its samples."""
    stream = without_loops(dataset)
    lanes = lanes_of(dataset)
    with ExitStack() as opened:
        turns = deque(
            opened.enter_context(
                closing(stream.open(Lane(lane, lanes), None, reading or ReadContext()))
            )
            for lane in range(lanes)
        )
        while True:
            while turns and (item := next(turns[0], _OVER)) is _OVER:
                turns.popleft()
            if not turns:
                return
            yield item, stream.refs_of(turns[0].origin)
            turns.rotate(-1)


def planned_samples(
    sources: tuple[SourceNode[Any], ...], labels: list[str], refs: Refs, *, keys: bool
) -> list[PlannedSample]:
    """Return the samples of refs, in order."""
    samples: dict[int, PlannedSample] = {}
    for number, rows in rows_by_value(refs.source):
        located = _located(sources[number], refs.index[rows], keys=keys)
        epochs = refs.epoch[rows].tolist()
        for row, epoch, (shard, at, key) in zip(
            rows.tolist(), epochs, located, strict=True
        ):
            samples[row] = PlannedSample(labels[number], shard, at, epoch, key)
    return [samples[row] for row in range(len(refs))]


def _located(
    source: SourceNode[Any], index: Int64Array, *, keys: bool
) -> Iterator[tuple[str | None, int, str | None]]:
    """Yield the shard, the number in it and the key of each sample.

    Samples of a joined source are located by their first part.
    """
    if isinstance(source, RowsSource):
        return _located(source.source, source.rows[index], keys=keys)
    if isinstance(source, JoinedSource):
        return _located(source.parts[0], source.matches[index, 0], keys=keys)
    if not isinstance(source, WebdatasetSource):
        return ((None, number, None) for number in index.tolist())
    shards, numbers = source.locate(index)
    names = (source.shards[shard] for shard in shards.tolist())
    keys_of_samples: Sequence[str | None] = (
        source.keys(index) if keys else [None] * len(index)
    )
    return zip(names, numbers.tolist(), keys_of_samples, strict=True)


# When samples of a source come again.


def first_repeats(
    dataset: IndexedDataset[Any], steps: int
) -> list[tuple[int | None, bool]]:
    """Return the first item at which each source repeats, and whether it is exact.

    Args:
        dataset: Any indexed dataset.
        steps: Number of items to search.

    Returns:
        For each of `dataset.sources`, the first item with which more samples are drawn
        than the source has, and whether no sample repeats earlier. None without
        repeats, or, if inexact, if unknown.

    Example:
        >>> from energize import BatchDataset, ListSource, ShuffleDataset
        >>> first_repeats(
        ...     BatchDataset(ShuffleDataset(ListSource(range(100))), 8, list), 50
        ... )
        [(13, True)]
    """
    repeats: list[tuple[int | None, bool]] = []
    read = dataset.consumed(steps).tolist()
    for number, exact in enumerate(_pass_by_pass(dataset)):
        count = dataset.sources[number].count
        if read[number] > count:
            drawn = partial(_drawn, dataset, number)
            repeats.append((bisect_right(range(steps), count, key=drawn), exact))
        else:
            repeats.append((None, exact or read[number] <= 1))
    return repeats


def _drawn(dataset: IndexedDataset[Any], number: int, step: int) -> int:
    return int(dataset.consumed(step + 1)[number])


def _staged_passes(dataset: StagedDataset[Any]) -> list[bool]:
    """Return `_pass_by_pass` of stages: it must hold in every stage of a source."""
    passes = [dataset.carry_over] * len(dataset.sources)
    for stage, child in enumerate(dataset.stage_datasets):
        rows = np.asarray(dataset.source_numbers[stage]).tolist()
        for row, in_passes in zip(rows, _pass_by_pass(cast("Any", child)), strict=True):
            passes[row] &= in_passes
    return passes


def _pass_by_pass(dataset: IndexedDataset[Any]) -> list[bool]:
    """Return for each source whether all its samples are drawn before one repeats."""
    if isinstance(dataset, Source):
        return [True]
    if isinstance(dataset, StagedDataset):
        return _staged_passes(dataset)
    below = [
        in_passes for child in dataset.children for in_passes in _pass_by_pass(child)
    ]
    if isinstance(dataset, ShuffleDataset) and dataset.over_epochs == 1:
        epoch = dataset.consumed(dataset.size)
        counts = [source.count for source in dataset.sources]
        return list(np.logical_and(below, epoch <= np.array(counts)).tolist())
    if isinstance(dataset, ContinuedDataset) or dataset.taken(0) is not None:
        return below
    return [False] * len(below)
