"""What stages read, as planned, for logs and reports."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from energize.core.description import digest
from energize.data.selection import source_labels
from energize.data.source import Source
from energize.datasets.stage_plan import Stage

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
