"""What a state says of the stage it was saved in, and whether it may be resumed in a plan."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

from energize.cursor import State, counter_field, state_field
from energize.errors import StateError, StateMismatchError
from energize.order.stages.plan import StagePlan
from energize.outline import tree_differences

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
