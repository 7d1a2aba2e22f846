"""What can be wrong with stages: one line for each fault, naming the stage and its place."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, Generic, TypeVar, cast

from energize.core.checks import whole_number
from energize.core.description import described
from energize.errors import ConfigError

_log = logging.getLogger("energize")


def stage_label(stage: Stage[Any]) -> str:
    """A stage as messages call it: its place, if it was written somewhere, and its name."""
    return f"{stage.place}: stage {stage.name!r}" if stage.place else f"stage {stage.name!r}"


def faults_of_each(
    stages: Sequence[Stage[Any]], default: Stage[Any] | None, total_steps: int | None
) -> Iterator[str]:
    """What is wrong with stages one by one, and with their names."""
    if total_steps is not None and whole_number(total_steps, 1) is None:
        yield f"total_steps is a whole number, 1 or more; got {total_steps!r}"
    for stage in [*stages, *([] if default is None else [default])]:
        for fault in _faults(stage):
            yield f"{stage_label(stage)}: {fault}"
    by_name = {} if default is None else {default.name: default}
    for stage in stages:
        other = by_name.setdefault(stage.name, stage)
        if other is not stage:
            start = f"the stage that starts at step {other.start_step}"
            first = "the one that fills the steps before the first" if other is default else start
            yield (
                f"{stage_label(stage)}: the name is taken by {other.place or first}; states and "
                "reports tell stages apart by name, so rename yours"
            )


def _faults(stage: Stage[Any]) -> Iterator[str]:
    if not isinstance(stage.name, str) or not stage.name.strip():
        yield f"a stage has a name that is not empty; got {stage.name!r}"
    if whole_number(stage.start_step, 0) is None:
        yield f"start_step is a whole number, 0 or more; got {stage.start_step!r}"
    elif stage.end_step is not None and whole_number(stage.end_step, stage.start_step + 1) is None:
        yield (
            f"end_step is the step after the last one, so above start_step {stage.start_step}; "
            f"got {stage.end_step!r}"
        )
    if stage.seq_len is not None and whole_number(stage.seq_len, 1) is None:
        yield f"seq_len counts tokens, 1 or more; got {stage.seq_len!r}"
    if stage.seed is not None and whole_number(stage.seed, 0) is None:
        yield f"a seed is a whole number, 0 or more; got {stage.seed!r}"
    if whole_number(stage.items_per_step, 1) is None:
        yield f"items_per_step is a whole number, 1 or more; got {stage.items_per_step!r}"
    if not isinstance(stage.batch, Mapping):
        yield f"batch is a mapping of settings; got {stage.batch!r}"


def faults_of_order(
    stages: Sequence[Stage[Any]], total_steps: int | None, unused: Stage[Any] | None
) -> Iterator[str]:
    """What is wrong with sorted stages as a whole; `unused` is a default with nothing to fill."""
    if not stages:
        yield "there are no stages, and no default to train on instead; give one of them"
        return
    if unused is not None:
        yield (
            f"{stage_label(unused)} would never run: {stage_label(stages[0])} starts at step 0. "
            "Start the first stage later, or leave the default out"
        )
    if stages[0].start_step:
        yield (
            f"steps 0 to {stages[0].start_step} belong to no stage: the first, "
            f"{stage_label(stages[0])}, starts at step {stages[0].start_step}. Start it at 0, or "
            "give a default to fill them"
        )
    for one, two in pairwise(stages):
        yield from _faults_between(one, two)
    if total_steps is not None:
        yield from _faults_at_end(stages, total_steps)


def _faults_between(one: Stage[Any], two: Stage[Any]) -> Iterator[str]:
    if one.start_step == two.start_step:
        yield (
            f"{stage_label(one)} and {stage_label(two)} both start at step {two.start_step}, so "
            "one of them would never run"
        )
    elif one.end_step is not None and one.end_step < two.start_step:
        yield (
            f"steps {one.end_step} to {two.start_step} belong to no stage: {stage_label(one)} ends "
            f"at {one.end_step}, and {stage_label(two)} starts at {two.start_step}. Leave end_step "
            "out to go on up to the next stage"
        )
    elif one.end_step is not None and one.end_step > two.start_step:
        yield (
            f"steps {two.start_step} to {one.end_step} belong to two stages: {stage_label(one)} "
            f"ends at {one.end_step}, and {stage_label(two)} starts at {two.start_step}"
        )


def _faults_at_end(stages: Sequence[Stage[Any]], total_steps: int) -> Iterator[str]:
    last = stages[-1]
    for stage in stages:
        if stage.start_step >= total_steps:
            yield (
                f"{stage_label(stage)} would never run: it starts at step {stage.start_step}, and "
                f"training has {total_steps} steps, 0 to {total_steps - 1}"
            )
    if last.end_step is not None and last.end_step < total_steps:
        yield (
            f"steps {last.end_step} to {total_steps} belong to no stage: the last, "
            f"{stage_label(last)}, ends at {last.end_step}. Leave end_step out to go on to the end"
        )
    if last.end_step is not None and last.end_step > total_steps > last.start_step:
        _log.warning(
            "%s ends at step %d, but training ends after %d steps; it is cut there",
            *(stage_label(last), last.end_step, total_steps),
        )


# Stages of a training run: which of them a step belongs to.

D = TypeVar("D")
E = TypeVar("E")

_MOST_ITEMS = 2**62
"""Positions below it fit in int64 with all that is computed from them."""


@dataclass(frozen=True, slots=True)
class Stage(Generic[D]):
    """What is trained on in the steps [start_step, end_step), counted from 0.

    `end_step`: None for the start of the next stage, or the end of training.
    `dataset`: a dataset, or whatever one will be made from.
    `seq_len`: tokens per sequence, and `batch`: settings of any kind; both for the trainer, and for
    who builds the dataset. `batch["global_batch_size"]` (sequences per step) is known to reports.
    `seed`: names the order of this stage's sources; None leaves them as they are.
    `items_per_step`: items of the dataset that one optimizer step takes, over all ranks: micro
    batches, when the dataset gives those.
    `place`: where the stage was written, for messages.
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
        for name in ("start_step", "end_step", "seq_len", "seed", "items_per_step"):
            number = whole_number(getattr(self, name))
            if number is not None:  # else it stays as it is, and the plan says what is wrong
                object.__setattr__(self, name, number)

    @property
    def steps(self) -> int | None:
        """How many steps are trained; None for a last stage without end."""
        return None if self.end_step is None else self.end_step - self.start_step

    def describe(self) -> dict[str, Any]:
        """The settings as JSON, without the dataset."""
        names = ("name", "start_step", "end_step", "seq_len", "seed", "items_per_step")
        return {name: getattr(self, name) for name in names} | {"batch": described(self.batch)}


class StagePlan(Generic[D]):
    """Stages that follow one another from step 0 to the end of training, checked as a whole.

    They may be given in any order, and are sorted by their start. Each trains exactly `end_step -
    start_step` steps. Steps before the first one belong to `default`, whatever its start and end
    are; without stages it is the only one.
    Training ends after `total_steps`, or at the end of the last stage, or never; a last stage that
    would go on after `total_steps` is cut there.

    Raises `ConfigError` naming the stages and every fault: names that are missing or taken, numbers
    out of range, two stages with one start, gaps, overlaps, steps at the end that no stage covers,
    stages that would never run, and a `default` with nothing to fill.

    >>> plan = StagePlan([Stage("web", 0, dataset="a"), Stage("maths", 100, dataset="b")], 150)
    >>> plan.at(99).name, plan.at(100).name, [stage.steps for stage in plan.stages]
    ('web', 'maths', [100, 50])
    """

    def __init__(
        self,
        stages: Iterable[Stage[D]] = (),
        total_steps: int | None = None,
        default: Stage[D] | None = None,
    ) -> None:
        given = _listed(stages, default)
        if whole_number(total_steps) is not None:
            total_steps = whole_number(total_steps)
        faults = [*faults_of_each(given, default, total_steps)]
        if not faults:
            ordered = sorted(given, key=lambda stage: stage.start_step)
            given = _filled(ordered, default)
            unused = default if given is ordered else None
            faults = [*faults_of_order(given, total_steps, unused)]
        if faults:
            raise ConfigError("\n".join(faults))
        self.stages = _with_ends(given, total_steps)
        self.total_steps = self.stages[-1].end_step
        items = max(self.first_items[-1], self.total_items or 0)
        if items > _MOST_ITEMS:
            raise ConfigError(
                f"the stages take {items:,} items (steps * items_per_step), and no more than 2**62 "
                "can be counted; give fewer steps"
            )

    def at(self, step: int) -> Stage[D]:
        """The stage that `step` belongs to; after the end of training, the last one."""
        return self.stages[self.index_at(step)]

    def index_at(self, step: int) -> int:
        """The index in `stages` of the stage that `step` belongs to."""
        step = _checked_step(step)
        return bisect_right(self.stages, step, key=lambda stage: stage.start_step) - 1

    def remaining(self, step: int) -> list[int | None]:
        """Steps of each stage that are left to train from `step` on; None where there is no end."""
        step = _checked_step(step)
        return [
            None if stage.end_step is None else max(0, stage.end_step - max(step, stage.start_step))
            for stage in self.stages
        ]

    @cached_property
    def first_items(self) -> list[int]:
        """The first item of each stage, when items are counted through all stages from 0."""
        items = [(stage.steps or 0) * stage.items_per_step for stage in self.stages[:-1]]
        return list(accumulate(items, initial=0))

    @property
    def total_items(self) -> int | None:
        """Items up to the end of training; None when there is none."""
        last = self.stages[-1]
        return (
            None if last.steps is None else self.first_items[-1] + last.steps * last.items_per_step
        )

    def index_of_item(self, item: int) -> int:
        """The index in `stages` of the stage that an item belongs to."""
        return bisect_right(self.first_items, item) - 1

    def step_of_item(self, item: int) -> int:
        """The step that takes an item."""
        index = self.index_of_item(item)
        stage = self.stages[index]
        return stage.start_step + (item - self.first_items[index]) // stage.items_per_step

    def with_datasets(self, build: Callable[[Stage[D]], E]) -> StagePlan[E]:
        """The same plan with the dataset that `build` makes of each stage."""
        built = [replace(cast("Stage[Any]", s), dataset=build(s)) for s in self.stages]
        return StagePlan(built, self.total_steps)

    def describe(self) -> dict[str, Any]:
        """The plan as JSON, without the datasets."""
        return {
            "total_steps": self.total_steps,
            "stages": [stage.describe() for stage in self.stages],
        }

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StagePlan):
            return NotImplemented
        return self.stages == other.stages

    def __hash__(self) -> int:
        return hash(tuple(stage.name for stage in self.stages))

    def __repr__(self) -> str:
        return f"StagePlan({list(self.stages)!r}, total_steps={self.total_steps!r})"


def _checked_step(step: int) -> int:
    number = whole_number(step)
    if number is None or number < 0:
        raise ConfigError(f"a step is a whole number, counted from 0; got {step!r}")
    return number


def _listed(stages: Iterable[Stage[D]], default: Stage[D] | None) -> list[Stage[D]]:
    """The stages, when they and the default are some; `ConfigError` for anything else."""
    if isinstance(stages, Stage | Mapping) or not isinstance(stages, Iterable):
        raise ConfigError(f"StagePlan: stages come as a list of Stage; got {stages!r}")
    given = list(stages)
    for each in [*given, *([] if default is None else [default])]:
        if not isinstance(each, Stage):
            raise ConfigError(
                f"StagePlan: a stage is a Stage(name, start_step, dataset=...); got {each!r}"
            )
    return given


def _filled(stages: list[Stage[D]], default: Stage[D] | None) -> list[Stage[D]]:
    """The stages with the default in front where there is a leading gap to fill."""
    first = stages[0].start_step if stages else None
    if default is None or first == 0:
        return stages
    return [replace(default, start_step=0, end_step=first), *stages]


def _with_ends(stages: list[Stage[D]], total_steps: int | None) -> tuple[Stage[D], ...]:
    last = stages[-1]
    end = last.end_step if total_steps is None else total_steps
    ends = [*(stage.start_step for stage in stages[1:]), end]
    return tuple(replace(s, end_step=e) for s, e in zip(stages, ends, strict=True))
