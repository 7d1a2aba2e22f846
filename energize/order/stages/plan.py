"""Stages of a training run: which of them a step belongs to."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import Any, Generic, TypeVar, cast

from energize.describing import described
from energize.errors import ConfigError
from energize.numbers import whole_number
from energize.order.stages.faults import faults_of_each, faults_of_order

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
