"""The plan of the stages of a training run, its faults, and its reports."""

from __future__ import annotations

import logging
import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import Any, Generic, TypeVar, cast

from energize.core.checks import checked_whole, whole_number
from energize.core.description import described, digest
from energize.data.selection import source_labels
from energize.data.source import Source
from energize.errors import (
    ConfigError,
)

D = TypeVar("D")

E = TypeVar("E")

_log = logging.getLogger("energize")

_MOST_ITEMS = 2**62
"""Bound of positions, so that sums and products fit in int64."""

_LEAST = {"start_step": 0, "end_step": 1, "seq_len": 1, "seed": 0, "items_per_step": 1}
"""The integer fields of a stage, and their minimum."""


@dataclass(frozen=True, slots=True)
class WrittenSettings:
    """Base of settings that a file may contain.

    Attributes:
        location: Where the settings are written, as `file:line (path)`, for messages;
            empty for settings from Python. Ignored by `==`.
    """

    location: str = field(default="", kw_only=True, compare=False)


@dataclass(frozen=True, slots=True)
class Stage(WrittenSettings, Generic[D]):
    """A stage of training: a dataset, read in the steps [start_step, end_step).

    Steps are counted from 0.

    Args:
        name: The name of the stage, for logs and states.
        start_step: The first step.
        end_step: The step after the last one. None for the start of the next stage, or
            the end of training.
        dataset: A dataset, or an object from which a dataset is built.
        seq_len: Tokens of a sequence, for the trainer. None if unknown.
        seed: Seeds the order of the stage's sources. None keeps their order.
        items_per_step: Items of the dataset that one optimizer step takes, over all
            ranks; micro batches if the dataset contains batches.
        batch: Settings for the trainer. Reports use `global_batch_size` (sequences of a
            step).
        location: Where the stage is written, as `file:line (path)`, for messages.

    Example:
        >>> from energize import ListSource
        >>> Stage("web", 0, 100, dataset=ListSource("ab")).steps
        100
    """

    name: str
    start_step: int = 0
    end_step: int | None = None
    dataset: D = field(kw_only=True)
    seq_len: int | None = field(default=None, kw_only=True)
    seed: int | None = field(default=None, kw_only=True)
    items_per_step: int = field(default=1, kw_only=True)
    batch: Mapping[str, Any] = field(default_factory=dict, kw_only=True, hash=False)

    def __post_init__(self) -> None:
        for name in _LEAST:
            number = whole_number(getattr(self, name))
            if number is not None:  # other values are faults of the plan
                object.__setattr__(self, name, number)

    @property
    def steps(self) -> int | None:
        """Number of steps; None for a last stage without end."""
        return None if self.end_step is None else self.end_step - self.start_step

    def describe(self) -> dict[str, Any]:
        """Return the settings as JSON, without the dataset."""
        numbers = {name: getattr(self, name) for name in _LEAST}
        return {"name": self.name, **numbers, "batch": described(self.batch)}


def stage_label(stage: Stage[Any]) -> str:
    """Return the location and the name of a stage, for messages."""
    label = f"stage {stage.name!r}"
    return f"{stage.location}: {label}" if stage.location else label


@dataclass(init=False)
class StagePlan(Generic[D]):
    """Stages that cover a training run from step 0 to its end without gaps.

    Stages can be listed in any order; they are sorted by their start. A last stage that
    ends after `total_steps` is cut there, with a warning.

    Args:
        stages: The stages.
        total_steps: The number of steps of training. None for the end of the last
            stage.
        default: The stage of all steps before the first stage; its start and end are
            ignored. None if the first stage starts at step 0.

    Raises:
        ConfigError: For missing or repeated names, numbers out of range, gaps,
            overlaps, uncovered steps, and stages that are never read. The message lists
            all faults.

    Example:
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
        listed = _listed(stages, default)
        if total_steps is not None:
            total_steps = checked_whole(total_steps, "total_steps", 1)
        faults = list(_faults_of_stages(listed, default))
        if not faults:
            listed, unused = _with_default(listed, default)
            faults = list(_faults_of_order(listed, total_steps, unused))
        if faults:
            raise ConfigError("\n".join(faults))
        self.total_steps = listed[-1].end_step if total_steps is None else total_steps
        ends = [*(stage.start_step for stage in listed[1:]), self.total_steps]
        self.stages = tuple(map(_ended, listed, ends))
        items = max(self.first_items[-1], self.total_items or 0)
        if items > _MOST_ITEMS:
            raise ConfigError(
                f"the stages take {items:,} items, more than 2**62. Set fewer steps"
            )

    def at(self, step: int) -> Stage[D]:
        """Return the stage of a step; the last stage after the end of training.

        Args:
            step: Step of training, from 0.
        """
        starts = [stage.start_step for stage in self.stages]
        return self.stages[bisect_right(starts, checked_whole(step, "a step", 0)) - 1]

    @cached_property
    def first_items(self) -> list[int]:
        """The first item of each stage, counted through all stages from 0."""
        items = [
            (stage.steps or 0) * stage.items_per_step for stage in self.stages[:-1]
        ]
        return list(accumulate(items, initial=0))

    @property
    def total_items(self) -> int | None:
        """Items up to the end of training; None without end."""
        steps = self.stages[-1].steps
        items_per_step = self.stages[-1].items_per_step
        return None if steps is None else self.first_items[-1] + steps * items_per_step

    def index_of_item(self, item: int) -> int:
        """Return the index in `stages` of the stage of an item."""
        return bisect_right(self.first_items, item) - 1

    def step_of_item(self, item: int) -> int:
        """Return the step that takes an item."""
        index = self.index_of_item(item)
        stage = self.stages[index]
        return (
            stage.start_step + (item - self.first_items[index]) // stage.items_per_step
        )

    def with_datasets(self, build: Callable[[Stage[D]], E]) -> StagePlan[E]:
        """Return the plan with `build(stage)` as the dataset of each stage."""
        built = [replace(cast("Stage[Any]", s), dataset=build(s)) for s in self.stages]
        return StagePlan(built, self.total_steps)

    def describe(self) -> dict[str, Any]:
        """Return the plan as JSON, without the datasets."""
        return {
            "total_steps": self.total_steps,
            "stages": [s.describe() for s in self.stages],
        }


def _with_default(
    stages: Iterable[Stage[D]], default: Stage[D] | None
) -> tuple[list[Stage[D]], Stage[D] | None]:
    """Return the stages in order of their steps, and the default if it is unused.

    The default covers the steps before the first stage.
    """
    ordered = sorted(stages, key=lambda stage: stage.start_step)
    if default is None or (ordered and ordered[0].start_step <= 0):
        return ordered, default
    first = ordered[0].start_step if ordered else None
    return [replace(default, start_step=0, end_step=first), *ordered], None


def _listed(stages: Iterable[Stage[D]], default: Stage[D] | None) -> list[Stage[D]]:
    """Return the stages as a list; raise `ConfigError` for anything else."""
    if isinstance(stages, Stage | Mapping) or not isinstance(stages, Iterable):
        raise ConfigError(
            f"StagePlan: stages must be a list of Stage(...), got {stages!r}"
        )
    listed = list(stages)
    for stage in listed if default is None else [*listed, default]:
        if not isinstance(stage, Stage):
            raise ConfigError(
                f"StagePlan: stages must be a list of Stage(...), got {stage!r}"
            )
    return listed


def _ended(stage: Stage[D], end: int | None) -> Stage[D]:
    if stage.end_step is not None and end is not None and stage.end_step > end:
        _log.warning(
            "%s ends at step %d, but training ends after %d steps, so the stage is "
            "cut there",
            *(stage_label(stage), stage.end_step, end),
        )
    return replace(stage, end_step=end)


# Faults of stages, one line for each, with the name of the stage and its location.


def _faults_of_stages(
    stages: Sequence[Stage[Any]], default: Stage[Any] | None
) -> Iterator[str]:
    """Yield the faults of single stages, and of their names."""
    owners: dict[str, str] = {}
    if default is not None:
        owners[str(default.name)] = (
            default.location or "the one that fills the steps before the first"
        )
        yield from _faults_of_stage(default)
    for stage in stages:
        yield from _faults_of_stage(stage)
        owner = stage.location or f"the stage that starts at step {stage.start_step}"
        if owners.setdefault(str(stage.name), owner) != owner:
            yield (
                f"{stage_label(stage)}: the name is taken by {owners[stage.name]}. "
                "Rename one of them"
            )


def _faults_of_stage(stage: Stage[Any]) -> Iterator[str]:
    label = stage_label(stage)
    if not isinstance(stage.name, str) or not stage.name.strip():
        yield f"{label}: name must be a non-empty text, got {stage.name!r}"
    start = whole_number(stage.start_step, 0) or 0
    for name, least in (_LEAST | {"end_step": start + 1}).items():
        value = getattr(stage, name)
        optional = value is None and name not in {"start_step", "items_per_step"}
        if not optional and whole_number(value, least) is None:
            yield f"{label}: {name} must be a whole number >= {least}, got {value!r}"
    if not isinstance(stage.batch, Mapping):
        yield f"{label}: batch must be a mapping of settings, got {stage.batch!r}"


def _faults_of_order(
    stages: Sequence[Stage[Any]], total_steps: int | None, unused: Stage[Any] | None
) -> Iterator[str]:
    """Yield the faults of sorted stages as a whole, and of an unused default."""
    if not stages:
        yield "stages and default are missing. Set one of them"
        return
    if unused is not None:
        yield (
            f"{stage_label(unused)} would never run: {stage_label(stages[0])} starts "
            "at step 0. Remove it"
        )
    previous = None
    for stage in stages:
        if total_steps is not None and stage.start_step >= total_steps:
            yield (
                f"{stage_label(stage)} would never run: it starts at step "
                f"{stage.start_step}, and training has {total_steps} steps, 0 to "
                f"{total_steps - 1}"
            )
        yield from _faults_between(previous, stage, stage.start_step)
        previous = stage
    if total_steps is not None:
        yield from _faults_between(stages[-1], None, total_steps)


def _faults_between(
    previous: Stage[Any] | None, stage: Stage[Any] | None, start: int
) -> Iterator[str]:
    """Yield the faults at the border of two stages; None for the ends of training."""
    if previous is not None and stage is not None and previous.start_step == start:
        yield (
            f"{stage_label(previous)} and {stage_label(stage)} both start at step "
            f"{start}"
        )
        return
    end = 0 if previous is None else previous.end_step
    if end is None:
        return
    if end < start:
        yield (
            f"steps {end} to {start} belong to no stage: "
            f"{_border(previous, stage, start)}. Remove end_step, or set a default "
            "for the steps before the first stage"
        )
    elif end > start and stage is not None:
        yield (
            f"steps {start} to {end} belong to two stages: "
            f"{_border(previous, stage, start)}"
        )


def _border(previous: Stage[Any] | None, stage: Stage[Any] | None, start: int) -> str:
    """Return where two stages end and start, for messages."""
    parts = []
    if previous is not None:
        parts.append(f"{stage_label(previous)} ends at {previous.end_step}")
    if stage is not None:
        parts.append(f"{stage_label(stage)} starts at {start}")
    return ", and ".join(parts)


_BATCH = "global_batch_size"

_SOURCES_SHOWN = 20


@dataclass(frozen=True, slots=True)
class SourceShare:
    """The planned samples of a source in a stage.

    Attributes:
        name: The name of the source, see `source_names`.
        share: Its part of all samples of the stage, 0 to 1.
        samples: Number of samples; None if the stage does not end.
        before: Samples of the source in earlier stages.
        count: All samples of the source.
    """

    name: str
    share: float
    samples: int | None
    before: int
    count: int


@dataclass(frozen=True, slots=True)
class StageReport:
    """A stage and the planned shares of its sources; without shares for streams."""

    stage: Stage[Any]
    sources: tuple[SourceShare, ...]

    @property
    def tokens(self) -> int | None:
        """Tokens of the stage: steps * global batch size * seq_len; None if unknown.

        Trainers set a global batch size below 1 if they compute it themselves.
        """
        batch = self.stage.batch.get(_BATCH)
        factors: list[Any] = [self.stage.steps, batch, self.stage.seq_len]
        if all(isinstance(factor, int) and factor > 0 for factor in factors):
            return int(math.prod(factors))
        return None


def source_names(sources: Sequence[Source[Any]]) -> list[str]:
    """Return a name for each source, equal for sources that differ only in their seed.

    Args:
        sources: The sources, named by `source_labels`.

    Example:
        >>> from energize import ListSource
        >>> web, other = ListSource("ab", name="web"), ListSource("abc", name="web")
        >>> source_names([web, other, web.reseeded(7)])
        ['web #1', 'web #2', 'web #1']
    """
    keys = [digest(source.reseeded(0).describe()) for source in sources]
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
            f"{name} {value}"
            for name, value in _settings(stage).items()
            if value != "None"
        ]
        lines.append(f"  {number}. {', '.join(facts)}")
        lines += [
            f"       {_source_line(source)}"
            for source in report.sources[:_SOURCES_SHOWN]
        ]
        if len(report.sources) > _SOURCES_SHOWN:
            lines.append(
                f"       and {len(report.sources) - _SOURCES_SHOWN} more sources"
            )
    return lines


def _source_line(source: SourceShare) -> str:
    suffix = f" after the first {source.before:,}" if source.before else ""
    line = f"{source.share:.3f} {source.name}"
    if source.samples is None:
        return f"{line}{suffix}"
    passes = (source.before + source.samples) / max(source.count, 1)
    return f"{line}: {source.samples:,} samples{suffix}, {passes:.2f} passes by the end"


def _settings(stage: Stage[Any]) -> dict[str, str]:
    settings = {
        "seq_len": stage.seq_len,
        "seed": stage.seed,
        "items_per_step": stage.items_per_step,
    }
    return {name: str(value) for name, value in (settings | dict(stage.batch)).items()}


def changes(old: StageReport, new: StageReport) -> list[str]:
    """Return the differences of two stages: shares of sources, and settings."""
    lines = []
    for values_of, missing in (
        (_shares, "0.000"),
        (lambda report: _settings(report.stage), "None"),
    ):
        old_values = values_of(old)
        new_values = values_of(new)
        for name in old_values | new_values:
            old_value = old_values.get(name, missing)
            new_value = new_values.get(name, missing)
            if old_value != new_value:
                lines.append(f"{name} {old_value} -> {new_value}")
    return lines


def _shares(report: StageReport) -> dict[str, str]:
    shares: defaultdict[str, float] = defaultdict(float)
    for source in report.sources:
        shares[source.name] += source.share
    return {name: f"{share:.3f}" for name, share in shares.items()}
