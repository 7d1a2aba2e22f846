"""What can be wrong with stages: one line for each fault, naming the stage and its place."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from energize.numbers import whole_number

if TYPE_CHECKING:
    from energize.order.stages.plan import Stage

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
