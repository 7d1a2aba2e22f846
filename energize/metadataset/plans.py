"""Stages that are written in a file, whatever its vocabulary, as the plan of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from energize.errors import ConfigError
from energize.metadataset.keys import Spec
from energize.metadataset.located import KeyPath, Located
from energize.metadataset.problems import MOST_PROBLEMS, Problem
from energize.order.stages import Stage, StagePlan

DEFAULT = "default"
"""The name of the stage that fills the steps before the first one."""

D = TypeVar("D")


class FaultyError(Exception):
    """Nothing can be made of a part of a file; the parts beside it are still looked at."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__(*problems)
        self.problems = problems


def plan_of(
    text: Located,
    path: KeyPath,
    around: Spec,
    stages: Sequence[tuple[Spec, KeyPath]],
    *,
    default: tuple[Spec, KeyPath] | None,
    read: Callable[[Spec, KeyPath], D],
) -> StagePlan[D]:
    """The plan of the stages at `path`, each with where it is written; `read` makes its dataset.

    What `around` them has of settings is that of stages without their own. Raises `FaultyError`
    with all that is wrong with the plan, each at the stage that it is about.
    """
    first = None
    if default is not None:
        place = text.place(default[1])
        first = Stage(DEFAULT, dataset=read(*default), place=place, **_settings(around, around))
    listed = [
        Stage(
            each.name,
            each.start_step,
            each.end_step,
            dataset=read(each, at),
            place=text.place(at),
            **_settings(each, around),
        )
        for each, at in stages
    ]
    try:
        return StagePlan(listed, around.steps, first)
    except ConfigError as error:
        places = [stage.place for stage in [*listed, *([first] if first else [])]]
        raise FaultyError(*_problems(str(error), places, text.place(path))) from None


def _settings(own: Spec, around: Spec) -> dict[str, Any]:
    return {
        "seq_len": own.seq_len or around.seq_len,
        "seed": around.seed if own.seed is None else own.seed,
        "items_per_step": own.items_per_step or around.items_per_step or 1,
        "batch": (around.batch or {}) | (own.batch or {}),
    }


def _problems(faults: str, places: Sequence[str], otherwise: str) -> list[Problem]:
    """One problem for each line of `faults`, at the place that it begins with."""
    problems = []
    for fault in faults.splitlines()[:MOST_PROBLEMS]:
        place = next((each for each in places if fault.startswith(f"{each}: ")), None)
        message = fault if place is None else fault.removeprefix(f"{place}: ")
        problems.append(Problem(place or otherwise, message))
    return problems
