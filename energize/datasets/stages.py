"""What a stage plan says to people: the plan, and what changes from one stage to the next."""

from __future__ import annotations

import logging
import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from typing import Any, TypeVar, cast

import numpy as np

from energize.core.arrays import Int64Array
from energize.core.config import Outline, tree_differences
from energize.core.dataset import Dataset, IndexedDataset, PassingStream, RoutedDataset
from energize.core.description import digest
from energize.core.lanes import Lane, WorkerConfig
from energize.core.reading import Reading
from energize.core.refs import Refs
from energize.core.stream import (
    INFINITE,
    RoutedStream,
    State,
    Stream,
    check_count,
    counter_field,
    state_field,
)
from energize.data.naming import source_labels
from energize.data.source import Source
from energize.datasets.advanced import carried_over
from energize.errors import (
    ConfigError,
    EmptyDatasetError,
    NotIndexedError,
    StateError,
    StateMismatchError,
)
from energize.order.stages import Stage, StagePlan, stage_label

_BATCH = "global_batch_size"
_SOURCES_SHOWN = 20
_SHARE_STEP = 5e-4
"""Shares are shown with three digits; a smaller change is what rounding made."""


@dataclass(frozen=True, slots=True)
class SourceShare:
    """What a stage takes of one source.

    `name`: see `source_names`. `share`: of all samples of the stage, 0 to 1. `samples`: how many;
    None when the stage does not end. `before`: how many samples of the source earlier stages took.
    `count`: how many it has.
    """

    name: str
    share: float
    samples: int | None
    before: int
    count: int


@dataclass(frozen=True, slots=True)
class StageReport:
    """A stage and the share of each of its sources, as planned; none for stages that are streams.

    `tokens`: steps * global batch size * seq_len, when all three are known. Trainers write a global
    batch size below 1 for one that they work out themselves.
    """

    stage: Stage[Any]
    sources: tuple[SourceShare, ...]

    @property
    def tokens(self) -> int | None:
        factors = (self.stage.steps, self.stage.batch.get(_BATCH), self.stage.seq_len)
        known = [each for each in factors if isinstance(each, int) and each > 0]
        return math.prod(known) if len(known) == len(factors) else None


def source_names(sources: Sequence[Source[Any]]) -> list[str]:
    """A name for each source, as `source_labels` gives them; one for those that differ in their
    seed alone, which are one thing to people who read what changes.

    >>> from energize import ListSource
    >>> web, other = ListSource("ab", name="web"), ListSource("abc", name="web")
    >>> source_names([web, other, web.reseeded(7)])
    ['web #1', 'web #2', 'web #1']
    """
    keys = [digest(each.reseeded(0).describe()) for each in sources]
    distinct = dict(zip(keys, sources, strict=True))
    names = dict(zip(distinct, source_labels(list(distinct.values())), strict=True))
    return [names[key] for key in keys]


def source_shares(
    stage: Stage[Any], read: Sequence[tuple[str, Source[Any], int]], samples: Sequence[int]
) -> tuple[SourceShare, ...]:
    """The share of each source of a stage, given with its name and what was `read` of it before,
    when `samples` come of them; a number over some items when the stage does not end.
    """
    total = max(sum(samples), 1)
    return tuple(
        SourceShare(name, each / total, None if stage.steps is None else each, before, source.count)
        for (name, source, before), each in zip(read, samples, strict=True)
    )


def plan_lines(reports: Sequence[StageReport]) -> list[str]:
    """The plan as lines of text."""
    end = reports[-1].stage.end_step
    until = "without end" if end is None else f"{end:,} steps"
    lines = [f"data stages: {len(reports)}, {until}"]
    for number, report in enumerate(reports, 1):
        lines.append(f"  {number}. {_stage_line(report)}")
        lines += [f"       {_source_line(each)}" for each in report.sources[:_SOURCES_SHOWN]]
        if len(report.sources) > _SOURCES_SHOWN:
            lines.append(f"       and {len(report.sources) - _SOURCES_SHOWN} more sources")
    return lines


def _stage_line(report: StageReport) -> str:
    stage = report.stage
    steps = f"steps {stage.start_step:,} -> "
    steps += "the end" if stage.end_step is None else f"{stage.end_step:,} ({stage.steps:,} steps)"
    parts = [f"{stage.name}: {steps}"]
    if report.tokens is not None:
        parts.append(f"{_in_units(report.tokens)} tokens")
    parts += [f"{name} {value}" for name, value in _settings(stage).items() if value is not None]
    return ", ".join(parts)


def _source_line(source: SourceShare) -> str:
    line = f"{source.share:.3f} {source.name}"
    if source.samples is None:
        return f"{line}: from sample {source.before:,} on" if source.before else line
    passes = (source.before + source.samples) / source.count if source.count else 0.0
    after = f" after the first {source.before:,}" if source.before else ""
    return f"{line}: {source.samples:,} samples{after}, {passes:.2f} passes by the end"


def _settings(stage: Stage[Any]) -> dict[str, Any]:
    own = {"seq_len": stage.seq_len, "seed": stage.seed, "items_per_step": stage.items_per_step}
    return own | dict(stage.batch)


def _in_units(tokens: int) -> str:
    for unit, size in (("T", 10**12), ("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if tokens >= size:
            return f"{tokens / size:.2f}{unit}"
    return str(tokens)


def changes(old: StageReport, new: StageReport) -> list[str]:
    """What is different in `new`: sources, shares and settings."""
    return [*_changed_sources(old, new), *_changed_settings(old.stage, new.stage)]


def _changed_sources(old: StageReport, new: StageReport) -> Iterator[str]:
    before, after = _shares(old), _shares(new)
    for name in {**before, **after}:
        one, other = before.get(name, 0.0), after.get(name, 0.0)
        if name not in before:
            yield f"{name} is new with {other:.3f}"
        elif name not in after:
            yield f"{name} is gone, was {one:.3f}"
        elif abs(one - other) >= _SHARE_STEP:
            yield f"{name} {one:.3f} -> {other:.3f}"


def _shares(report: StageReport) -> dict[str, float]:
    """The shares that are not 0, by name."""
    shares: dict[str, float] = {}
    for each in report.sources:
        if each.share:
            shares[each.name] = shares.get(each.name, 0.0) + each.share
    return shares


def _changed_settings(old: Stage[Any], new: Stage[Any]) -> Iterator[str]:
    before, after = _settings(old), _settings(new)
    for name in {**before, **after}:
        if before.get(name) != after.get(name):
            yield f"{name} {before.get(name)} -> {after.get(name)}"


# What a state says of the stage it was saved in, and whether it may be resumed in a plan.

_INDEX, _NAME = "stage_idx", "stage_name"


def stage_fields(plan: StagePlan[Any], position: int) -> State:
    """The index (from 0) and the name of the stage that the last of `position` items came from.

    At the first item of a new stage it is still the old one: nothing of the new one was read, and a
    plan with another stage there may go on from this state.
    """
    index = _reached(plan, position)
    return {_INDEX: index, _NAME: plan.stages[index].name}


def _reached(plan: StagePlan[Any], position: int) -> int:
    return plan.index_of_item(max(position - 1, 0))


def check_stage(plan: StagePlan[Any], state: State) -> None:
    """Raises `StateMismatchError` unless the stage that the state names is where its position is.

    A state that names none is taken by its position.
    """
    if _NAME not in state:
        return
    position = counter_field(state, "position")
    index, name = state_field(state, _INDEX, int), state_field(state, _NAME, str)
    here = _reached(plan, position)
    if (here, plan.stages[here].name) != (index, name):
        raise StateMismatchError(
            f"the saved state was in stage {name!r}, number {index} of its plan counted from 0, "
            f"when {position} items were read; in this plan the item before belongs to stage "
            f"{plan.stages[here].name!r}, number {here}. Stages may be changed only after the "
            "position of a state"
        )


def with_later_stages_anew(plan: StagePlan[Any], state: State) -> State:
    """The state of a stream in this plan: stages after its position, of which nothing was read,
    may be others than it was saved with.
    """
    inputs = state_field(state, "inputs", list)
    read = inputs[: _reached(plan, counter_field(state, "position")) + 1]
    return state | {"inputs": [*read, *[None] * (len(plan.stages) - len(read))]}


def stage_differences(
    saved: dict[str, Any], current: dict[str, Any], plan: StagePlan[Any], state: State
) -> Iterator[str]:
    """The differences between two outlines of staged datasets, but for what comes only after the
    position of `state`: later stages, and the end of the one it was saved in.
    """
    state = state or {"position": 0, **stage_fields(plan, 0)}  # that of a stream nobody has read
    stages, reached = _stages(saved), state.get(_INDEX)
    if not isinstance(reached, int) or not 0 <= reached < len(stages):
        yield from tree_differences(saved, current)
        return
    yield from tree_differences(_without_stages(saved), _without_stages(current))
    pairs = zip_longest(stages[: reached + 1], _stages(current)[: reached + 1])
    for number, (old, new) in enumerate(pairs):
        name = f"stage {number} {old.get('name')!r}"
        if new is None:
            yield f"{name}: is gone"
            continue
        ends = {"end_step": None} if number == reached else {}
        for line in tree_differences(old | ends, new | ends, name):
            yield line if line.startswith(name) else f"{name}: {line}"
    position = counter_field(state, "position")
    here = _reached(plan, position)
    if here != reached:
        yield (
            f"item {max(position - 1, 0)} was read in stage {stages[reached].get('name')!r}; here "
            f"it is in stage {plan.stages[here].name!r}"
        )


def _stages(tree: dict[str, Any]) -> list[dict[str, Any]]:
    """Each stage as a node: its settings, and its dataset as input, or that one's digest."""
    try:
        stages, inputs = tree["plan"]["stages"], tree["inputs"]
        if isinstance(inputs, dict):
            width = len(inputs["digests"]) // max(len(stages), 1)
            starts = range(0, len(inputs["digests"]), width)
            inputs = [{"kind": inputs["digests"][at : at + width]} for at in starts]
        pairs = zip(stages, inputs, strict=True)
        return [{**settings, "inputs": [dataset]} for settings, dataset in pairs]
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(
            f"the saved state does not describe its stages: {type(error).__name__}: {error}"
        ) from error


def _without_stages(tree: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in tree.items() if key not in ("plan", "inputs")}


# Reading a staged dataset: which stage it is in is said in the log and in the state.

T = TypeVar("T")

_log = logging.getLogger("energize")


class StageLog:
    """What the first lane logs of a plan: with its first item the plan and where it starts in it,
    and then every transition, when the first item of the new stage is read.
    """

    def __init__(self, plan: StagePlan[Any], report: Callable[[], Sequence[StageReport]]) -> None:
        self.plan = plan
        self._report = report
        self._stage = -1

    def note(self, position: int) -> None:
        """Log what is new with the item at `position`."""
        stage = self.plan.index_of_item(position)
        if stage == self._stage or not _log.isEnabledFor(logging.INFO):
            return
        reports = self._report()
        step, name = self.plan.step_of_item(position), self.plan.stages[stage].name
        if self._stage < 0:
            _log.info("%s", "\n".join(plan_lines(reports)))
            _log.info("data stages: reading begins at step %s, in stage %r", f"{step:,}", name)
        else:
            old, new = reports[self._stage], reports[stage]
            changed = "; ".join(changes(old, new)) or "nothing changes but the name"
            text = "data stages: step %s: %r -> %r: %s"
            _log.info(text, f"{step:,}", old.stage.name, name, changed)
        self._stage = stage


class StagedStream(PassingStream[T]):
    """Passes on the items of a stream."""

    def __init__(
        self,
        stream: Stream[T],
        plan: StagePlan[Any],
        watch: Callable[[int], None] | None,
        state: State | None,
    ) -> None:
        super().__init__(stream)
        self._plan = plan
        self._watch = watch
        self._position = counter_field(state, "position")

    def passed(self, item: T, position: int) -> T:
        if self._watch is not None:
            self._watch(position)
        self._position = position + 1
        return item

    def check_after(self, last: int | None, *, exact: bool) -> None:
        check_count(self._position, last, exact=exact, what="items of stages were read")
        super().check_after(last, exact=exact)

    def state(self) -> State:
        fields = stage_fields(self._plan, self._position)
        return {"position": self._position, **fields, **super().state()}


# One dataset after another, by the step of training.

T_co = TypeVar("T_co", covariant=True)

_SHARES_OVER = 10_000
"""Items over which the shares of a stage without end are counted for reports."""


class StagedDataset(RoutedDataset[T_co]):
    """The items of the stages of a plan: those of a step come from the stage it belongs to.

    A step takes `items_per_step` items, counted over all ranks. The epoch is the whole plan; where
    it has an end, reading on gives more of the last stage. A stage whose dataset is exhausted
    before its steps are starts it again, in a new order.

    With `carry_over`, a source that occurs in several stages goes on after what earlier ones took
    of it, so that no sample comes again before its pass has ended, whatever batches, maps or
    weights change around it; other seeds or shuffle settings name another order, which starts at
    its beginning. Without it, each stage starts at the beginning of its dataset.

    The plan is logged when reading begins (logger `energize`, INFO), and every transition with what
    changes. A state names its stage, and is refused when the plan up to its position is another
    one; stages after it may be changed, added or removed. Use it as the outermost dataset.

    `StagePlan` checks the stages. Raises, naming the stage, `ConfigError` for one that reads from
    something else than a dataset, `EmptyDatasetError` for one without items, and `NotIndexedError`
    when a stream should be carried over.

    >>> from energize import ListSource, Stage, StagePlan
    >>> web, maths = ListSource("abcd"), ListSource("12")
    >>> plan = StagePlan([Stage("web", 0, 3, dataset=web), Stage("maths", 3, 4, dataset=maths),
    ...                   Stage("rest", 4, 7, dataset=web)])
    >>> "".join(StagedDataset(plan))
    'abc1dab'
    """

    plan: StagePlan[None]
    carry_over: bool

    def __init__(
        self,
        plan: StagePlan[Dataset[T_co]],
        *,
        carry_over: bool = True,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        if not isinstance(plan, StagePlan):
            raise ConfigError(f"StagedDataset reads a StagePlan; got {type(plan).__name__}")
        for stage in plan.stages:
            if not isinstance(stage.dataset, Dataset):
                raise ConfigError(
                    f"StagedDataset: {stage_label(stage)} reads from a dataset; got "
                    f"{type(stage.dataset).__name__} {str(stage.dataset)[:80]!r}; wrap an object "
                    "that has __len__ and __getitem__ in SequenceSource"
                )
        self._freeze(
            inputs=[stage.dataset for stage in plan.stages],
            worker_config=worker_config,
            plan=plan.with_datasets(_nothing),
            carry_over=carry_over,
        )
        self._check_inputs()

    def _check_inputs(self) -> None:
        for stage, each in zip(self.plan.stages, self.inputs, strict=True):
            if each.indexed and cast("IndexedDataset[Any]", each).size == 0:
                raise EmptyDatasetError(f"StagedDataset: stage {stage.name!r} has no items to read")
            if self.carry_over and not each.indexed:
                raise NotIndexedError(
                    f"StagedDataset: stage {stage.name!r} is a stream, and what a stream takes of "
                    "its sources is not known before it is read; pass carry_over=False to start "
                    "every stage at the beginning of its dataset"
                )

    @cached_property
    def sized(self) -> bool:
        return True

    @cached_property
    def size(self) -> int:
        return INFINITE if self.plan.total_items is None else self.plan.total_items

    def route(self, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        firsts = np.array(self.plan.first_items, dtype=np.int64)
        stage = self.phase_of(positions)
        return stage, positions - firsts[stage] + self._starts[stage]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the stages."""
        return tuple(stage.name for stage in self.plan.stages)

    @property
    def phase_starts(self) -> Sequence[int]:
        """The item that each stage begins with."""
        return self.plan.first_items

    def phase_of(self, positions: Int64Array) -> Int64Array:
        """The number of the stage of each position: int64."""
        firsts = np.array(self.plan.first_items, dtype=np.int64)
        return np.searchsorted(firsts, positions, side="right") - 1

    def reached(self, n: int) -> Sequence[int]:
        """In a stage that is over, its end; in one to come, where it will begin."""
        firsts = np.array([*self.plan.first_items, INFINITE], dtype=np.int64)
        made = np.clip(n - firsts[:-1], 0, np.diff(firsts))
        return [int(each) for each in self._starts + made]

    def consumed(self, n: int) -> Int64Array:
        stage = bisect_right(self.plan.first_items, n) - 1
        counts = self._consumed_before[stage].copy()
        samples = self._consumed_by(stage, n - self.plan.first_items[stage])
        np.add.at(counts, self.numbers_of(stage), samples)
        return counts

    @cached_property
    def _consumed_before(self) -> list[Int64Array]:
        """What the stages before each stage consume."""
        before = [np.zeros(len(self.sources), dtype=np.int64)]
        for stage, items in enumerate(np.diff(self.plan.first_items).tolist()):
            before.append(before[-1].copy())
            np.add.at(before[-1], self.numbers_of(stage), self._consumed_by(stage, items))
        return before

    def refs(self, positions: Int64Array, attempt: int = 0) -> Refs:
        refs = super().refs(positions, attempt)
        return replace(refs, source=self._numbers[refs.source])

    def passes(self, positions: Int64Array) -> Refs:
        return self.refs(positions)

    @cached_property
    def sources(self) -> tuple[Source[Any], ...]:
        """Those of all stages; one that occurs in several with one seed stands there once."""
        by_description = {digest(s.describe()): s for each in self._seeded for s in each.sources}
        return tuple(by_description.values())

    @cached_property
    def _numbers(self) -> Int64Array:
        """The position in `sources` of each source of each stage."""
        known = {digest(source.describe()): i for i, source in enumerate(self.sources)}
        all_sources = (source for each in self._seeded for source in each.sources)
        return np.array([known[digest(s.describe())] for s in all_sources], dtype=np.int64)

    def numbers_of(self, stage: int) -> Int64Array:
        """The position in `sources` of each source that a stage reads."""
        before = self._sources_before
        return self._numbers[before[stage] : before[stage + 1]]

    @cached_property
    def _seeded(self) -> tuple[Dataset[T_co], ...]:
        """The dataset of each stage, in the order that its own seed names, if it has one."""
        return tuple(
            each if stage.seed is None else each.reseeded(stage.seed)
            for each, stage in zip(self.inputs, self.plan.stages, strict=True)
        )

    @cached_property
    def _carried(self) -> list[tuple[IndexedDataset[Any], int]]:
        """What is read for each stage, and from which item on."""
        datasets = cast("tuple[IndexedDataset[Any], ...]", self._seeded)
        if not self.carry_over:
            return [(each, 0) for each in datasets]
        firsts = self.plan.first_items
        return carried_over(datasets, [*np.diff(firsts).tolist(), 0])

    @property
    def routed_to(self) -> tuple[IndexedDataset[Any], ...]:
        return tuple(dataset for dataset, _ in self._carried)

    @cached_property
    def _starts(self) -> Int64Array:
        return np.array([start for _, start in self._carried], dtype=np.int64)

    def _consumed_by(self, stage: int, items: int) -> Int64Array:
        dataset, start = self._carried[stage]
        return dataset.consumed(start + items) - dataset.consumed(start)

    @cached_property
    def report(self) -> tuple[StageReport, ...]:
        """For each stage its planned samples and shares by source; nothing is read."""
        names = source_names(self.sources)
        reports = []
        for number, stage in enumerate(self.plan.stages):
            if not self.indexed:
                reports.append(StageReport(stage, ()))
                continue
            items = _SHARES_OVER if stage.steps is None else stage.steps * stage.items_per_step
            samples, rows = self._consumed_by(number, items), self.numbers_of(number).tolist()
            before = self._consumed_before[number] * self.carry_over
            read = [(names[row], self.sources[row], int(before[row])) for row in rows]
            reports.append(StageReport(stage, source_shares(stage, read, samples.tolist())))
        return tuple(reports)

    def state_at(self, position: int) -> State:
        return super().state_at(position) | stage_fields(self.plan, position)

    def check_state(self, state: State) -> None:
        check_stage(self.plan, state)

    def watcher(self, lane: Lane) -> Callable[[int], None] | None:
        return None if lane.index else StageLog(self.plan, lambda: self.report).note

    def _stream(
        self, lane: Lane, state: State | None, reading: Reading, endless: bool
    ) -> Stream[T_co]:
        if state is not None:
            check_stage(self.plan, state)
            state = with_later_stages_anew(self.plan, state)
        routed: Stream[T_co] = RoutedStream(self.route, self._seeded, lane, state, reading)
        return StagedStream(routed, self.plan, self.watcher(lane), state)

    def mismatches(
        self, saved: Outline, current: Outline, state: State, later: list[str]
    ) -> Iterator[str]:
        if saved.get("kind") != current["kind"]:
            return super().mismatches(saved, current, state, later)
        later.append("those of stages that are others, or begin at another step")
        return stage_differences(saved, current, self.plan, state)


def _nothing(_: object) -> None:
    """No dataset: those of a staged dataset are its inputs."""
