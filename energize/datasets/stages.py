"""Stages of a training run, one dataset after another by the step: what can be a plan
of them, and what is read by it.
"""

from __future__ import annotations

import logging
import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import Any, Generic, NamedTuple, TypeVar, cast

import numpy as np

from energize.core import tree
from energize.core.arrays import Int64Array
from energize.core.blends import ContinuedDataset
from energize.core.checks import checked_whole, whole_number
from energize.core.dataset import Dataset, IndexedDataset
from energize.core.description import described, digest
from energize.core.lanes import Lane, WorkerConfig
from energize.core.node import INFINITE, NodeTraits
from energize.core.stream import (
    MixStream,
    Opening,
    State,
    Stream,
    counter_field,
    state_field,
)
from energize.core.trace import Routes, Span, consumed
from energize.data.selection import source_labels
from energize.data.source import Source
from energize.datasets.transform import counted_alike
from energize.errors import (
    ConfigError,
    EmptyDatasetError,
    NotIndexedError,
    StateMismatchError,
)

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
D = TypeVar("D")
E = TypeVar("E")

_log = logging.getLogger("energize")

_MOST_ITEMS = 2**62
"""Positions below it fit in int64 with all that is computed from them."""

_LEAST = {"start_step": 0, "end_step": 1, "seq_len": 1, "seed": 0, "items_per_step": 1}
"""The whole numbers of a stage, and the least of each."""


@dataclass(frozen=True, slots=True)
class Stage(Generic[D]):
    """What is trained on in the steps [start_step, end_step), counted from 0.

    `end_step`: None for the start of the next stage, or the end of training. `dataset`:
    a dataset, or whatever one will be made from. `seq_len`: tokens per sequence, and
    `batch`: settings of any kind; both for the trainer, and for who builds the dataset.
    `batch["global_batch_size"]` (sequences per step) is known to reports. `seed`: names
    the order of this stage's sources; None leaves them as they are. `items_per_step`:
    items of the dataset that one optimizer step takes, over all ranks: micro batches,
    when the dataset gives those. `place`: where the stage was written, for messages.
    """

    name: str
    start_step: int = 0
    end_step: int | None = None
    dataset: D = field(kw_only=True)
    seq_len: int | None = field(default=None, kw_only=True)
    seed: int | None = field(default=None, kw_only=True)
    items_per_step: int = field(default=1, kw_only=True)
    batch: Mapping[str, Any] = field(default_factory=dict, kw_only=True, hash=False)
    place: str = field(default="", kw_only=True, compare=False)

    def __post_init__(self) -> None:
        for name in _LEAST:
            number = whole_number(getattr(self, name))
            if (
                number is not None
            ):  # else it stays as it is, and the plan says what is wrong
                object.__setattr__(self, name, number)

    @property
    def steps(self) -> int | None:
        """How many steps are trained; None for a last stage without end."""
        return None if self.end_step is None else self.end_step - self.start_step

    def describe(self) -> dict[str, Any]:
        """Return the settings as JSON, without the dataset."""
        numbers = {name: getattr(self, name) for name in _LEAST}
        return {"name": self.name, **numbers, "batch": described(self.batch)}


def stage_label(stage: Stage[Any]) -> str:
    """Return what messages call a stage: its place, if it was written somewhere, and
    its name.
    """
    return (
        f"{stage.place}: stage {stage.name!r}"
        if stage.place
        else f"stage {stage.name!r}"
    )


@dataclass(init=False)
class StagePlan(Generic[D]):
    """Stages that follow one another from step 0 to the end of training, checked as a
    whole.

    They may be given in any order, and are sorted by their start. Each trains exactly
    `end_step - start_step` steps. Steps before the first one belong to `default`,
    whatever its start and end are; without stages it is the only one. Training ends
    after `total_steps`, or at the end of the last stage, or never; a last stage that
    would go on after `total_steps` is cut there.

    Raises `ConfigError` naming the stages and every fault: names that are missing or
    taken, numbers out of range, two stages with one start, gaps, overlaps, steps at the
    end that no stage covers, stages that would never run, and a `default` with nothing
    to fill.

    >>> plan = StagePlan(
    ...     [Stage("web", 0, dataset="a"), Stage("maths", 100, dataset="b")], 150
    ... )
    >>> plan.at(99).name, plan.at(100).name, [stage.steps for stage in plan.stages]
    ('web', 'maths', [100, 50])
    """

    stages: tuple[Stage[D], ...]
    total_steps: int | None

    def __init__(
        self,
        stages: Iterable[Stage[D]] = (),
        total_steps: int | None = None,
        default: Stage[D] | None = None,
    ) -> None:
        single = isinstance(stages, Stage | Mapping) or not isinstance(stages, Iterable)
        given: list[Stage[D]] = [cast("Stage[D]", stages)] if single else list(stages)
        for each in [*given, *([] if default is None else [default])]:
            if single or not isinstance(each, Stage):
                raise ConfigError(
                    f"StagePlan: stages are a list of Stage(...); got {each!r}"
                )
        if total_steps is not None:
            total_steps = checked_whole(total_steps, "total_steps", 1)
        faults = list(_faults_of_each(given, default))
        if not faults:
            given = sorted(given, key=lambda stage: stage.start_step)
            if default is not None and not (given and given[0].start_step == 0):
                first = given[0].start_step if given else None
                given.insert(0, replace(default, start_step=0, end_step=first))
                default = None
            faults = list(_faults_of_order(given, total_steps, default))
        if faults:
            raise ConfigError("\n".join(faults))
        self.total_steps = given[-1].end_step if total_steps is None else total_steps
        ends = [*(stage.start_step for stage in given[1:]), self.total_steps]
        self.stages = tuple(map(_ended, given, ends))
        items = max(self.first_items[-1], self.total_items or 0)
        if items > _MOST_ITEMS:
            raise ConfigError(
                f"the stages take {items:,} items, more than 2**62; give fewer steps"
            )

    def at(self, step: int) -> Stage[D]:
        """Return the stage that `step` belongs to; after the end of training, the last
        one.
        """
        starts = [stage.start_step for stage in self.stages]
        return self.stages[bisect_right(starts, checked_whole(step, "a step", 0)) - 1]

    @cached_property
    def first_items(self) -> list[int]:
        """The first item of each stage, when items are counted through all stages from
        0.
        """
        items = [
            (stage.steps or 0) * stage.items_per_step for stage in self.stages[:-1]
        ]
        return list(accumulate(items, initial=0))

    @property
    def total_items(self) -> int | None:
        """Items up to the end of training; None when there is none."""
        steps = self.stages[-1].steps
        each = self.stages[-1].items_per_step
        return None if steps is None else self.first_items[-1] + steps * each

    def index_of_item(self, item: int) -> int:
        """Return the index in `stages` of the stage that an item belongs to."""
        return bisect_right(self.first_items, item) - 1

    def step_of_item(self, item: int) -> int:
        """Return the step that takes an item."""
        index = self.index_of_item(item)
        stage = self.stages[index]
        return (
            stage.start_step + (item - self.first_items[index]) // stage.items_per_step
        )

    def with_datasets(self, build: Callable[[Stage[D]], E]) -> StagePlan[E]:
        """Return the same plan with the dataset that `build` makes of each stage."""
        built = [replace(cast("Stage[Any]", s), dataset=build(s)) for s in self.stages]
        return StagePlan(built, self.total_steps)

    def describe(self) -> dict[str, Any]:
        """Return the plan as JSON, without the datasets."""
        return {
            "total_steps": self.total_steps,
            "stages": [s.describe() for s in self.stages],
        }


def _ended(stage: Stage[D], end: int | None) -> Stage[D]:
    if stage.end_step is not None and end is not None and stage.end_step > end:
        _log.warning(
            "%s ends at step %d, but training ends after %d steps; it is cut there",
            *(stage_label(stage), stage.end_step, end),
        )
    return replace(stage, end_step=end)


# What is wrong with stages: one line for each fault, naming the stage and its place.


def _faults_of_each(
    stages: Sequence[Stage[Any]], default: Stage[Any] | None
) -> Iterator[str]:
    """Yield what is wrong with stages one by one, and with their names."""
    named: dict[str, str] = {}
    if default is not None:
        named[str(default.name)] = (
            default.place or "the one that fills the steps before the first"
        )
    for stage in [*([] if default is None else [default]), *stages]:
        label = stage_label(stage)
        if not isinstance(stage.name, str) or not stage.name.strip():
            yield f"{label}: a stage has a name that is not empty; got {stage.name!r}"
        start = whole_number(stage.start_step, 0) or 0
        for name, least in (_LEAST | {"end_step": start + 1}).items():
            value = getattr(stage, name)
            optional = value is None and name not in {"start_step", "items_per_step"}
            if not optional and whole_number(value, least) is None:
                yield (
                    f"{label}: {name} is a whole number, {least} or more; got {value!r}"
                )
        if not isinstance(stage.batch, Mapping):
            yield f"{label}: batch is a mapping of settings; got {stage.batch!r}"
        own = stage.place or f"the stage that starts at step {stage.start_step}"
        if stage is not default and named.setdefault(str(stage.name), own) != own:
            yield f"{label}: the name is taken by {named[stage.name]}; rename yours"


def _faults_of_order(
    stages: Sequence[Stage[Any]], total_steps: int | None, unused: Stage[Any] | None
) -> Iterator[str]:
    """Yield what is wrong with sorted stages as a whole; `unused` is a default with
    nothing to fill.
    """
    if not stages:
        yield (
            "there are no stages, and no default to train on instead; give one of them"
        )
        return
    labels = [stage_label(stage) for stage in stages]
    if unused is not None:
        yield (
            f"{stage_label(unused)} would never run: {labels[0]} starts at step 0; "
            "leave it out"
        )
    starts = [*(stage.start_step for stage in stages), total_steps]
    ends = [0, *(stage.end_step for stage in stages)]
    for number, (end, start) in enumerate(zip(ends, starts, strict=True)):
        before = [f"{labels[number - 1]} ends at {end}"] if number else []
        after = [f"{label} starts at {start}" for label in labels[number : number + 1]]
        if (
            after
            and total_steps is not None
            and start is not None
            and start >= total_steps
        ):
            yield (
                f"{labels[number]} would never run: it starts at step {start}, and "
                "training has "
                f"{total_steps} steps, 0 to {total_steps - 1}"
            )
        if before and after and start == starts[number - 1]:
            yield (
                f"{labels[number - 1]} and {labels[number]} both start at step {start}"
            )
        elif start is not None and end is not None and end < start:
            yield (
                f"steps {end} to {start} belong to no stage: "
                f"{', and '.join(before + after)}. "
                "Leave end_step out, or give a default for the steps before the first "
                "stage"
            )
        elif start is not None and end is not None and end > start and after:
            yield (
                f"steps {start} to {end} belong to two stages: {before[0]}, and "
                f"{after[0]}"
            )


# What is read, and said of it.

_SHARES_OVER = 10_000
"""Items over which the shares of a stage without end are counted for reports."""

_INDEX = "stage_idx"
_NAME = "stage_name"

_BATCH = "global_batch_size"
_SOURCES_SHOWN = 20


@dataclass(frozen=True, slots=True)
class SourceShare:
    """What a stage takes of one source.

    `name`: see `source_names`. `share`: of all samples of the stage, 0 to 1. `samples`:
    how many; None when the stage does not end. `before`: how many samples of the source
    earlier stages took. `count`: how many it has.
    """

    name: str
    share: float
    samples: int | None
    before: int
    count: int


@dataclass(frozen=True, slots=True)
class StageReport:
    """A stage and the share of each of its sources, as planned; none for stages that
    are streams.

    `tokens`: steps * global batch size * seq_len, when all three are known. Trainers
    write a global batch size below 1 for one that they work out themselves.
    """

    stage: Stage[Any]
    sources: tuple[SourceShare, ...]

    @property
    def tokens(self) -> int | None:
        factors = (self.stage.steps, self.stage.batch.get(_BATCH), self.stage.seq_len)
        known = [each for each in factors if isinstance(each, int) and each > 0]
        return math.prod(known) if len(known) == len(factors) else None


def source_names(sources: Sequence[Source[Any]]) -> list[str]:
    """Return a name for each source, as `source_labels` gives them; one for those that
    differ in their seed alone, which are one thing to people who read what changes.

    >>> from energize import ListSource
    >>> web, other = ListSource("ab", name="web"), ListSource("abc", name="web")
    >>> source_names([web, other, web.reseeded(7)])
    ['web #1', 'web #2', 'web #1']
    """
    keys = [digest(each.reseeded(0).describe()) for each in sources]
    distinct = dict(zip(keys, sources, strict=True))
    names = dict(zip(distinct, source_labels(list(distinct.values())), strict=True))
    return [names[key] for key in keys]


def plan_lines(reports: Sequence[StageReport]) -> list[str]:
    """Return the plan as lines of text."""
    last = reports[-1].stage.end_step
    until = "without end" if last is None else f"{last:,} steps"
    lines = [f"data stages: {len(reports)}, {until}"]
    for number, report in enumerate(reports, 1):
        stage = report.stage
        tokens = report.tokens
        end = (
            "the end"
            if stage.steps is None
            else f"{stage.end_step:,} ({stage.steps:,} steps)"
        )
        facts = [f"{stage.name}: steps {stage.start_step:,} -> {end}"]
        facts += [] if tokens is None else [f"{tokens:,} tokens"]
        facts += [
            f"{name} {each}"
            for name, each in _settings(stage).items()
            if each != "None"
        ]
        lines.append(f"  {number}. {', '.join(facts)}")
        lines += [
            f"       {_source_line(each)}" for each in report.sources[:_SOURCES_SHOWN]
        ]
        if len(report.sources) > _SOURCES_SHOWN:
            lines.append(
                f"       and {len(report.sources) - _SOURCES_SHOWN} more sources"
            )
    return lines


def _source_line(source: SourceShare) -> str:
    after = f" after the first {source.before:,}" if source.before else ""
    line = f"{source.share:.3f} {source.name}"
    if source.samples is None:
        return f"{line}{after}"
    passes = (source.before + source.samples) / max(source.count, 1)
    return f"{line}: {source.samples:,} samples{after}, {passes:.2f} passes by the end"


def _settings(stage: Stage[Any]) -> dict[str, str]:
    own = {
        "seq_len": stage.seq_len,
        "seed": stage.seed,
        "items_per_step": stage.items_per_step,
    }
    return {name: str(each) for name, each in (own | dict(stage.batch)).items()}


def changes(old: StageReport, new: StageReport) -> list[str]:
    """Return what is different in `new`: shares of sources, and settings."""
    lines = []
    for told, none in (
        (_shares, "0.000"),
        (lambda report: _settings(report.stage), "None"),
    ):
        before = told(old)
        after = told(new)
        for name in before | after:
            one = before.get(name, none)
            other = after.get(name, none)
            if one != other:
                lines.append(f"{name} {one} -> {other}")
    return lines


def _shares(report: StageReport) -> dict[str, str]:
    shares: defaultdict[str, float] = defaultdict(float)
    for each in report.sources:
        shares[each.name] += each.share
    return {name: f"{share:.3f}" for name, share in shares.items()}


class _StageLog:
    """What the first lane logs: with its first item the plan and where it starts in it,
    and then every transition, when the first item of the new stage is read.
    """

    def __init__(self, dataset: StagedDataset[Any]) -> None:
        self._dataset = dataset
        self._stage = -1

    def note(self, position: int) -> None:
        """Log what is new with the item at `position`."""
        plan = self._dataset.plan
        stage = plan.index_of_item(position)
        if stage == self._stage or not _log.isEnabledFor(logging.INFO):
            return
        reports = self._dataset.report
        step = f"{plan.step_of_item(position):,}"
        name = plan.stages[stage].name
        if self._stage < 0:
            _log.info("%s", "\n".join(plan_lines(reports)))
            _log.info("data stages: reading begins at step %s, in stage %r", step, name)
        else:
            old = reports[self._stage]
            new = reports[stage]
            changed = "; ".join(changes(old, new)) or "nothing changes but the name"
            _log.info(
                "data stages: step %s: %r -> %r: %s",
                step,
                old.stage.name,
                name,
                changed,
            )
        self._stage = stage


class StagedDataset(IndexedDataset[T_co]):
    """The items of the stages of a plan: those of a step come from the stage it belongs
    to.

    A step takes `items_per_step` items, counted over all ranks. The epoch is the whole
    plan; where it has an end, reading on gives more of the last stage. A stage whose
    dataset is exhausted before its steps are starts it again, in a new order.

    With `carry_over`, a source that occurs in several stages goes on after what earlier
    ones took of it, so that no sample comes again before its pass has ended, whatever
    batches, maps or weights change around it; other seeds or shuffle settings name
    another order, which starts at its beginning. Without it, each stage starts at the
    beginning of its dataset.

    The plan is logged when reading begins (logger `energize`, INFO), and every
    transition with what changes. A state names its stage, and is refused when the plan
    up to its position is another one; stages after it may be changed, added or removed.
    Use it as the outermost dataset.

    `StagePlan` checks the stages. Raises, naming the stage, `ConfigError` for one that
    reads from something else than a dataset, `EmptyDatasetError` for one without items,
    and `NotIndexedError` when a stream should be carried over.

    >>> from energize import ListSource, Stage, StagePlan
    >>> web, maths = ListSource("abcd"), ListSource("12")
    >>> plan = StagePlan(
    ...     [
    ...         Stage("web", 0, 3, dataset=web),
    ...         Stage("maths", 3, 4, dataset=maths),
    ...         Stage("rest", 4, 7, dataset=web),
    ...     ]
    ... )
    >>> "".join(StagedDataset(plan))
    'abc1dab'
    """

    order_name = "StagedDataset"

    sized = True

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
            raise ConfigError(
                f"StagedDataset reads a StagePlan; got {type(plan).__name__}"
            )
        for stage in plan.stages:
            if not isinstance(stage.dataset, Dataset):
                raise ConfigError(
                    f"StagedDataset: {stage_label(stage)} reads from a dataset; got "
                    f"{type(stage.dataset).__name__} {str(stage.dataset)[:80]!r}; wrap "
                    "an object "
                    "that has __len__ and __getitem__ in SequenceSource"
                )
        self.freeze(
            inputs=counted_alike(stage.dataset for stage in plan.stages),
            worker_config=worker_config,
            plan=plan.with_datasets(lambda _: None),
            carry_over=carry_over,
        )
        for name, each in zip(self.names, self.inputs, strict=True):
            if each.indexed and cast("IndexedDataset[Any]", each).size == 0:
                raise EmptyDatasetError(
                    f"StagedDataset: stage {name!r} has no items to read"
                )
            if self.carry_over and not each.indexed:
                raise NotIndexedError(
                    f"StagedDataset: stage {name!r} is a stream, and what a stream "
                    "takes of "
                    "its sources is not known before it is read; pass carry_over=False "
                    "to start "
                    "every stage at the beginning of its dataset"
                )

    @cached_property
    def size(self) -> int:
        return INFINITE if self.plan.total_items is None else self.plan.total_items

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the stages."""
        return tuple(stage.name for stage in self.plan.stages)

    @cached_property
    def _firsts(self) -> Int64Array:
        """The item that each stage begins with."""
        return np.array(self.plan.first_items, dtype=np.int64)

    def phase_of(self, positions: Int64Array) -> Int64Array:
        """Return the number of the stage of each position: int64."""
        return np.searchsorted(self._firsts, positions, side="right") - 1

    def route(self, positions: Int64Array) -> Routes:
        stage = self.phase_of(positions)
        return Routes(positions - self._firsts[stage] + self._starts[stage], stage)

    def reached(self, n: int) -> Sequence[int]:
        """In a stage that is over, its end; in one to come, where it will begin."""
        return [span.stop for span in self.spans(n)[0]]

    def spans(self, n: int) -> tuple[Sequence[Span], int]:
        lengths = np.diff(self._firsts, append=INFINITE)
        made = np.clip(n - self._firsts, 0, lengths)
        starts = self._starts.tolist()
        stops = (self._starts + made).tolist()
        return [
            Span(*each) for each in zip(range(len(made)), starts, stops, strict=True)
        ], n

    @cached_property
    def traits(self) -> NodeTraits:
        return NodeTraits(shares_sources=True, phases=_Stages(self))

    @cached_property
    def sources(self) -> tuple[Source[Any], ...]:
        """Those of all stages; one that occurs in several with one seed stands there
        once.
        """
        return tree.distinct_sources(self._seeded)

    @cached_property
    def _seeded(self) -> tuple[Dataset[T_co], ...]:
        """The dataset of each stage, in the order that its own seed names, if it has
        one.
        """
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
        return _carried_over(datasets, [*np.diff(self._firsts).tolist(), 0])

    @cached_property
    def children(self) -> tuple[IndexedDataset[Any], ...]:
        return tuple(dataset for dataset, _ in self._carried)

    @cached_property
    def _starts(self) -> Int64Array:
        return np.array([start for _, start in self._carried], dtype=np.int64)

    def open_pass(self, opening: Opening) -> Stream[T_co]:
        if opening.state is not None:
            _check_stage(self.plan, opening.state)
        return _StagedStream(self, opening)

    def settled(
        self, saved: dict[str, Any], now: dict[str, Any], n: int
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Stages after the one of the last item may be others, and that one may end
        elsewhere.
        """
        kept = _last_stage(self.plan, n) + 1
        return _first_stages(saved, kept), _first_stages(now, kept)

    @cached_property
    def report(self) -> tuple[StageReport, ...]:
        """For each stage its planned samples and shares by source; nothing is read."""
        names = source_names(self.sources)
        reports = []
        for number, stage in enumerate(self.plan.stages):
            if not self.indexed:
                reports.append(StageReport(stage, ()))
                continue
            items = (
                _SHARES_OVER
                if stage.steps is None
                else stage.steps * stage.items_per_step
            )
            dataset, start = self._carried[number]
            samples = consumed(dataset, start + items) - consumed(dataset, start)
            before = consumed(self, self.plan.first_items[number]) * self.carry_over
            numbers = np.asarray(self.source_numbers[number])
            shares = [
                SourceShare(
                    names[row],
                    count / max(int(samples.sum()), 1),
                    None if stage.steps is None else count,
                    int(before[row]),
                    self.sources[row].count,
                )
                for row, count in zip(
                    numbers,
                    samples.tolist(),
                    strict=True,
                )
            ]
            reports.append(StageReport(stage, tuple(shares)))
        return tuple(reports)


class _Stages(NamedTuple):
    """The phases of a staged dataset."""

    dataset: StagedDataset[Any]

    def state_fields(self, position: int) -> State:
        return _stage_fields(self.dataset.plan, position)

    def check_state(self, state: State) -> None:
        _check_stage(self.dataset.plan, state)

    def watcher(self, lane: Lane) -> Callable[[int], None] | None:
        return None if lane.index else _StageLog(self.dataset).note


class _StagedStream(MixStream[T]):
    """Reads a staged dataset: which stage it is in is said in the log and in the
    state.
    """

    def __init__(self, dataset: StagedDataset[T], opening: Opening) -> None:
        self._watch = tree.watcher(dataset, opening.lane)
        self._plan = dataset.plan
        self._position = opening.counter("position")
        state = opening.state
        if state is not None:  # stages of which nothing was read may be others
            inputs = state_field(state, "inputs", list)[
                : _last_stage(self._plan, self._position) + 1
            ]
            missing = [None] * (len(dataset.inputs) - len(inputs))
            state = state | {"inputs": [*inputs, *missing]}
        super().__init__(dataset.route, dataset._seeded, opening._replace(state=state))

    def at(self, position: int, attempt: int = 0) -> T:
        item = super().at(position, attempt)
        if self._watch is not None:
            self._watch(position)
        self._position = position + 1
        return item

    def state(self) -> State:
        fields = _stage_fields(self._plan, self._position)
        return {"position": self._position, **fields, **super().state()}


def _last_stage(plan: StagePlan[Any], position: int) -> int:
    """Return the stage that the last of `position` items came from.

    At the first item of a new stage it is still the old one: nothing of the new one was
    read, and a plan with another stage there may go on.
    """
    return plan.index_of_item(max(position - 1, 0))


def _stage_fields(plan: StagePlan[Any], position: int) -> State:
    """Return the number, from 0, and the name of the stage that the last of `position`
    items came from.
    """
    index = _last_stage(plan, position)
    return {_INDEX: index, _NAME: plan.stages[index].name}


def _check_stage(plan: StagePlan[Any], state: State) -> None:
    """Raise `StateMismatchError` unless the stage that the state names is where its
    position is.
    """
    if isinstance(state, dict) and _NAME not in state:
        return
    position = counter_field(state, "position")
    index = state_field(state, _INDEX, int)
    name = state_field(state, _NAME, str)
    here = _last_stage(plan, position)
    if (here, plan.stages[here].name) != (index, name):
        raise StateMismatchError(
            f"the saved state was in stage {name!r}, number {index} of its plan "
            "counted from 0, "
            f"when {position} items were read; in this plan the item before belongs to "
            "stage "
            f"{plan.stages[here].name!r}, number {here}. Stages may be changed only "
            "after the "
            "position of a state"
        )


def _first_stages(tree: dict[str, Any], count: int) -> dict[str, Any]:
    """Return a described dataset with its first stages only, the last of which ends
    anywhere.
    """
    plan = tree.get("plan")
    stages = plan.get("stages") if isinstance(plan, dict) else None
    if not isinstance(stages, list) or not all(
        isinstance(each, dict) for each in stages
    ):
        return tree
    kept = [dict(each) for each in stages[:count]]
    for each in kept[-1:]:
        each["end_step"] = None
    inputs = tree.get("inputs")
    shown = inputs[:count] if isinstance(inputs, list) else inputs
    return {**tree, "plan": {"stages": kept}, "inputs": shown}


def _carried_over(
    datasets: Sequence[IndexedDataset[Any]], items: Sequence[int]
) -> list[tuple[IndexedDataset[Any], int]]:
    """For each of several datasets read one after another, `items` of each, what to
    read instead, and from which item on, so that each of their parts goes on where
    those before it left it.

    A part is a source with what orders it: a shuffle, a limit, a number of repeats. It
    is found again by its description, below whatever batches, mixes or maps it. A
    dataset that follows one of the same description, up to here, goes on as a whole, so
    that cutting one in two changes nothing.
    """
    read: Counter[str] = Counter()
    carried: list[tuple[IndexedDataset[Any], int]] = []
    read_before = Counter(read)
    before = None
    first = 0
    for dataset, count in zip(datasets, items, strict=True):
        if before is None or _up_to(dataset, first) != _up_to(before, first):
            read_before = Counter(read)
            first = 0
        before = dataset
        tree = _continued(dataset, read_before)
        carried.append((tree, first))
        read.subtract(_positions(tree, first))
        first += count
        read.update(_positions(tree, first))
    return carried


def _up_to(dataset: Any, n: int) -> str:
    """Return what a dataset is until weights change that only items after the first `n`
    know.
    """
    return _identity(_unchanged(dataset, n))


def _unchanged(dataset: Any, n: int) -> Any:
    """Return the dataset without the changes of weights after its first `n` items."""
    reached = dataset.reached(n) if dataset.inputs else None
    if reached is None:
        return dataset
    inputs = [
        _unchanged(each, k) for each, k in zip(dataset.inputs, reached, strict=True)
    ]
    changes = tuple(each for each in getattr(dataset, "changes", ()) if each[0] < n)
    other = {"changes": changes} if hasattr(dataset, "changes") else {}
    return dataset.replace(inputs=tuple(inputs), **other)


def _continued(
    dataset: IndexedDataset[Any], read: Mapping[str, int]
) -> IndexedDataset[Any]:
    """Return the same description with each part after what was `read` of it."""
    if dataset.inputs and dataset.reached(0) is not None:
        return dataset.with_inputs(
            [_continued(each, read) for each in dataset.children]
        )
    offset = read.get(_identity(dataset), 0)
    return ContinuedDataset(dataset, 0, offset, afresh=True) if offset else dataset


def _positions(dataset: IndexedDataset[Any], n: int) -> Counter[str]:
    """Return how many items of each part the first `n` items take."""
    reached = dataset.reached(n) if dataset.inputs else None
    if reached is None:
        part = dataset.inputs[0] if type(dataset) is ContinuedDataset else dataset
        return Counter({_identity(part): n})
    total: Counter[str] = Counter()
    for each, count in zip(dataset.children, reached, strict=True):
        total.update(_positions(each, count))
    return total


def _identity(part: Any) -> str:
    return digest(part.describe())
