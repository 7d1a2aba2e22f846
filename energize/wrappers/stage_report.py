"""What a stage plan says to people: the plan, and what changes from one stage to the next."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from energize.describing import digest
from energize.order.stages.plan import Stage
from energize.sources.base import Source
from energize.sources.naming import source_labels

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
