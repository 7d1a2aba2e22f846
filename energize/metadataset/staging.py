"""What stages make of the options of training."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from energize.errors import ConfigError
from energize.metadataset.located_yaml import KeyPath, LocatedYaml
from energize.metadataset.problems import Problem
from energize.order.stages.faults import stage_label
from energize.order.stages.plan import Stage

__all__ = ["batch_size_of", "check_one_epoch", "plan_problems"]

_BATCH_SIZE = "batch_size"


def batch_size_of(stage: Stage[Any], otherwise: int | None) -> int | None:
    """The `batch_size` in the stage's `batch`, else the one for all stages.

    Raises `ConfigError` for one that is not a whole number above 0.

    >>> batch_size_of(Stage("long", dataset=None, batch={"batch_size": 2}), 8)
    2
    """
    if _BATCH_SIZE not in stage.batch:
        return otherwise
    size = stage.batch[_BATCH_SIZE]
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise ConfigError(
            f"{stage_label(stage)}: batch_size in its batch is a whole number, 1 or more; "
            f"got {size!r}"
        )
    return size


def check_one_epoch(where: object, *, repeat: bool = True, virtual_epoch_length: int = 0) -> None:
    """Raise `ConfigError` for options that cut epochs: stages make one, the run."""
    if not repeat:
        raise ConfigError(
            f"{where}: repeat=False reads once what is there, and stages say in which steps it is "
            "read; leave repeat out"
        )
    if virtual_epoch_length:
        raise ConfigError(
            f"{where}: virtual_epoch_length={virtual_epoch_length} cuts epochs, and stages are one "
            "epoch, the whole run; leave it out, and count batches in the training loop"
        )


def plan_problems(
    text: LocatedYaml, path: KeyPath, stages: Iterable[Stage[Any]], error: ConfigError
) -> list[Problem]:
    """What is wrong with a plan, line by line: at the stage that it is about, else at `path`."""
    places = {f"{stage.place}: ": stage.place for stage in stages}
    problems = []
    for fault in str(error).splitlines():
        start = next((each for each in places if fault.startswith(each)), "")
        place = places[start] if start else text.place(path)
        problems.append(Problem(place, fault.removeprefix(start)))
    return problems
