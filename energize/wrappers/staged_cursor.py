"""The cursor of a staged dataset: it says which stage it is in, in the log and in its state."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from energize.cursor import INFINITE, Cursor, State, state_field
from energize.order.stages.plan import StagePlan
from energize.topology import Lane
from energize.wrappers.stage_report import StageReport, changes, plan_lines
from energize.wrappers.stage_state import stage_fields

__all__ = ["StagedCursor"]

T = TypeVar("T")

_log = logging.getLogger("energize")


class StagedCursor(Cursor[T]):
    """Passes on the items of `cursor`, whose state has the `position`, and ends at item `end`.

    With the first item the first lane logs the plan and where it starts in it, and from then on
    every transition, when the first item of the new stage is delivered.
    """

    def __init__(
        self,
        cursor: Cursor[T],
        plan: StagePlan[Any],
        report: Callable[[], Sequence[StageReport]],
        lane: Lane,
        end: int = INFINITE,
    ) -> None:
        self._cursor = cursor
        self._plan = plan
        self._report = report
        self._lane = lane
        self._end = end
        self._stage = -1

    def __next__(self) -> T:
        position = self._position()
        if position >= self._end:
            raise StopIteration
        item = next(self._cursor)
        if self._lane.index == 0:
            self._note(position)
        return item

    def _position(self) -> int:
        """Of the next item."""
        return state_field(self._cursor.state(), "position", int) + self._lane.index

    def _note(self, position: int) -> None:
        """Log what is new with the item at `position`."""
        stage = self._plan.index_of_item(position)
        if stage == self._stage or not _log.isEnabledFor(logging.INFO):
            return
        reports = self._report()
        step, name = self._plan.step_of_item(position), self._plan.stages[stage].name
        if self._stage < 0:
            _log.info("%s", "\n".join(plan_lines(reports)))
            _log.info("data stages: reading begins at step %s, in stage %r", f"{step:,}", name)
        else:
            old, new = reports[self._stage], reports[stage]
            changed = "; ".join(changes(old, new)) or "nothing changes but the name"
            text = "data stages: step %s: %r -> %r: %s"
            _log.info(text, f"{step:,}", old.stage.name, name, changed)
        self._stage = stage

    @property
    def ended(self) -> bool:
        return self._cursor.ended or self._position() >= self._end

    def state(self) -> State:
        inner = self._cursor.state()
        return inner | stage_fields(self._plan, state_field(inner, "position", int))

    def close(self) -> None:
        self._cursor.close()
