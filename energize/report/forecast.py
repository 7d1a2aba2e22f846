"""What a run of many steps takes of each source, what was asked for, and when sources
repeat.
"""

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
from energize.data.selection import PropertySource
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
    """What a run takes of one source.

    `name`: see `source_names`. `count`: the samples it has. `drawn`: the samples that
    are read of it. `share`: of all samples that are read, or of what they cost, 0 to 1.
    `asked`: the share that the weights ask for over these steps, None where none is
    asked for. `repeats_at`: the first step (0-based) with a sample that came before, or
    None when there is none. Where `repeats_exact` is False, that is the latest that it
    can be, and None when a sample may have come before or not.
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


@dataclass(frozen=True, slots=True, repr=False)
class Simulation:
    """What `steps` batches are made of.

    `points`: numbers of steps from 0 to `steps`, int64. `drawn`: the samples of each
    source (columns) that are read in the first so many steps (rows), int64. `spent`:
    what they cost, float64, where weights count that, see `measure_of`; else None.
    `asked`: the share of each source (columns) that weights ask for from each point to
    the next (rows), float64; NaN where nothing asks. `stages`: those that these steps
    belong to, none where there are no stages. `unit`: what weights count, see
    `weighed_in`. `read`: how many batches were read to estimate all this, of what packs
    or filters; None where it is exact.
    """

    sources: tuple[SourceForecast, ...]
    points: Int64Array
    drawn: Int64Array
    spent: FloatArray | None
    asked: FloatArray
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
        """Return the share of each source (columns) between two points (rows), 0 to 1:
        of samples, or of what they cost where weights count that.
        """
        amounts = np.diff(self.drawn if self.spent is None else self.spent, axis=0)
        totals = amounts.sum(axis=1, keepdims=True)
        return np.asarray(amounts / np.where(totals > 0, totals, 1))


def simulate(
    dataset: Dataset[Any], steps: int, *, intervals: int = 1, read: int | None = None
) -> Simulation:
    """Return what the first `steps` batches of a dataset of batches are made of,
    without reading.

    Steps count the batches of all ranks together. They are cut into `intervals` (or
    `steps`, if that is less) for shares over time, and where stages begin; an interval
    near a change of weights begins at it. The cost does not depend on the number of
    steps. Samples that will be skipped or found damaged count, their substitutes do
    not.

    With `read`, of what packs or filters (a stream) so many batches are read, and more
    until what a packer holds is packed. What they took of each part of the mix below
    it, one batch with another, is what all steps are estimated by.

    Raises `ConfigError` for steps that cannot be counted, and `NotIndexedError` for a
    stream without `read`.

    >>> from energize import BatchDataset, BlendDataset, ListSource
    >>> blend = BlendDataset((ListSource(range(900)), 9), (ListSource(range(50)), 1))
    >>> run = simulate(BatchDataset(blend, 10, list), steps=100)
    >>> [(each.drawn, each.epochs, each.asked) for each in run.sources]
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
    """Return the first steps at which weights of a mix were changed, or reach a
    point.
    """
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
    """Return what a stream takes if all batches are made of as many items as those that
    are read; what its only indexed part asks for, too.
    """
    parts = [indexed(child, "simulate", None) for child, _ in dataset.read_parts]
    many, items = _taken_by(dataset, checked_whole(read, "simulate: read", 1))
    pace = [
        Fraction(items[id(part)], many * sum(e is part for e in parts))
        for part in parts
    ]
    cuts = min(checked_whole(intervals, "simulate: intervals", 1), steps)
    points = [steps * i // cuts for i in range(cuts + 1)]
    return _simulation(dataset, points, list(zip(parts, pace, strict=True)), (), many)


def _taken_by(dataset: Dataset[Any], read: int) -> tuple[int, Counter[int]]:
    """Read so many batches of a stream, and more until others need more to be read;
    return how many these are, and how many items they took of each indexed part, by its
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
            f"simulate: {label_of(dataset)} gave no batch to estimate by"
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
        amounts: What has been drawn or spent at each step, shape (steps, sources).
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
    """Return how many items of a part the dataset takes up to each step."""
    return np.array([round(n * pace) for n in steps], dtype=np.int64)


def _simulation(
    dataset: Dataset[Any],
    steps: Sequence[int],
    parts: Sequence[tuple[IndexedDataset[Any], Fraction]],
    stages: tuple[StageSpan, ...],
    read: int | None = None,
) -> Simulation:
    """Return what a dataset takes of its indexed parts up to some steps, each of which
    takes so many items of a part.
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
    """Return what the weights of the outermost blends of a dataset count: "samples";
    "whole batches" where each entry has batches of its own, as with one task encoder
    for each type of samples; or what samples cost, the name of a column. Joined by
    "and" where stages differ in that.

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
    """Return what samples cost in the unit of the outermost blends; None where these
    count samples or batches, or differ in what they count.

    >>> from energize import BlendDataset, ListSource
    >>> words = ListSource(["a b", "c"], columns={"words": [2, 1]})
    >>> measure_of(BlendDataset((words, 1), unit="words"))
    ColumnCost(cost='words')
    """
    units = [getattr(blend, "unit", None) for blend in _outermost(dataset)]
    are_equal = bool(units) and all(blend == units[0] for blend in units)
    return units[0] if are_equal and isinstance(units[0], ColumnCost) else None


def _outermost(dataset: Dataset[Any]) -> list[BlendDataset[Any]]:
    """Return the blends that no other blend is above."""
    if isinstance(dataset, BlendDataset):
        return [dataset]
    return [blend for child in dataset.inputs for blend in _outermost(child)]


def _unit_name(blend: BlendDataset[Any]) -> str:
    unit = getattr(blend, "unit", None)
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
"""Positions of samples below it fit in int64 with all that is computed from them."""


def indexed(
    dataset: Dataset[Any], purpose: str, reads: str | None = None
) -> IndexedDataset[Any]:
    """`dataset`, if it has positions; `NotIndexedError` for a stream: call what `reads`
    it.
    """
    if not isinstance(dataset, IndexedDataset) or not dataset.indexed:
        instead = f"; or have it read, by {reads}" if reads else ""
        raise NotIndexedError(
            f"{purpose}: which samples a stream reads is known by reading it only, and "
            f"{type(dataset).__name__} is one, or reads from one; leave out what "
            f"filters or packs, or filter when the data are prepared{instead}"
        )
    return dataset


def checked_steps(
    dataset: IndexedDataset[Any], at: object, steps: object
) -> tuple[int, int]:
    """`at` and `steps` as whole numbers of Python; numpy's will do.

    Raises `ConfigError` for steps from `at` on that are none, or too far away to be
    counted.

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
            f"step {first + count:,} of {samples:,} samples each is too far away; "
            f"samples are counted up to {_FARTHEST:,}"
        )
    return first, count


def requested_between(dataset: IndexedDataset[Any], points: Int64Array) -> FloatArray:
    """Return the shares that are asked for from each of `points` to the next (rows),
    for each source (columns): float64, 0 to 1, in the unit that the mix is measured in.

    NaN stands for a source that nothing asks a share of, such as one that is read after
    another, or one whose share counts something else. Weights of whole batches are
    shares of their samples here. Stop rules are not looked at.

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
    """Return the share that is asked for of each row of a level, of the whole level."""
    if level.source is not None:
        return np.ones(1)
    shares = None
    if isinstance(level.mix, StagedDataset):
        shares = shares_of(
            items_between(level, begun.get(level.path), ended.get(level.path))
        )
    elif getattr(level.mix, "unit", None) == measure:
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
    """Return what the items up to each of `points` (rows) cost by `measure`, of each
    source (columns): float64.

    It is exact where each dataset of a blend in that unit reads one source. Several
    below one of them share what that one costs by the mean cost of their samples;
    elsewhere the mean is all that is looked at.
    """
    levels = levels_of(dataset)
    places = Places(dataset, levels)
    means = np.array(
        [_mean(measure, dataset.sources[number]) for number in places.numbers]
    )
    begun = spans(levels, 0)
    costs = []

    def counts(mix: Any) -> bool:
        return getattr(mix, "unit", None) == measure

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

    `source`: the name of its source, see `source_names`. `index`: its number in
    `shard`, or in the source where that has no shards. `epoch`: how many times the
    source has been passed through before. `key`: None when it was not asked for, or
    cannot be read.
    """

    source: str
    shard: str | None
    index: int
    epoch: int
    key: str | None = None


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """The samples of the batch of a step, in their order; none where the batch is
    padding.

    `rank` is None for an unknown number of ranks.
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
    """Batches `at` to `at + steps` of a dataset of batches, as they will be read.

    Steps count the batches of all ranks together, as the position of a saved state
    does; ranks take turns, beginning anew with each epoch of the dataset. The plan is
    what is read as long as no sample is skipped or damaged: substitutes of such samples
    are not foreseen. No shard is opened, unless `keys` are asked for.

    With `read`, what packs or filters (a stream) is read up to these batches, which
    come as far as its epoch goes, of a run that has the usual `lanes`.

    Raises `ConfigError` for numbers that cannot be used, and `NotIndexedError` for a
    stream without `read`, at once; `ShardError` for a shard whose keys cannot be read.

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
    """Yield the batches of an epoch of a stream and what they are made of, each when it
    has been read.
    """
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
    """Return the samples that are referred to, in their order."""
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
    """Return the shard of each sample, its number there, and its key; of a joined one,
    those of its first part.
    """
    if isinstance(source, PropertySource):
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
    """For each of `dataset.sources` the first of `steps` items with which more samples
    of it are drawn than it has, and whether none comes again earlier. None when there
    is none; or, if that is not exact, when it cannot be told.

    >>> from energize import BatchDataset, ListSource, ShuffleDataset
    >>> first_repeats(BatchDataset(ShuffleDataset(ListSource(range(100))), 8, list), 50)
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
    for stage, child in enumerate(dataset.children):
        rows = np.asarray(dataset.source_numbers[stage]).tolist()
        for row, in_passes in zip(rows, _pass_by_pass(child), strict=True):
            passes[row] &= in_passes
    return passes


def _pass_by_pass(dataset: IndexedDataset[Any]) -> list[bool]:
    """For each source whether all its samples are drawn before one comes again."""
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
