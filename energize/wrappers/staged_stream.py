"""Reading a staged dataset: which stage it is in is said in the log and in the state."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from energize.cursor import State, counter_field
from energize.order.stages.plan import StagePlan
from energize.passing import PassingStream
from energize.streaming import Stream, check_count
from energize.wrappers.stage_report import StageReport, changes, plan_lines
from energize.wrappers.stage_state import stage_fields

T = TypeVar("T")

_log = logging.getLogger("energize")


class StageLog:
    """What the first lane logs of a plan: with its first item the plan and where it starts in it,
    and then every transition, when the first item of the new stage is read.
    """

    def __init__(self, plan: StagePlan[Any], report: Callable[[], Sequence[StageReport]]) -> None:
        self.plan = plan
        self._report = report
        self._stage = -1

    def note(self, position: int) -> None:
        """Log what is new with the item at `position`."""
        stage = self.plan.index_of_item(position)
        if stage == self._stage or not _log.isEnabledFor(logging.INFO):
            return
        reports = self._report()
        step, name = self.plan.step_of_item(position), self.plan.stages[stage].name
        if self._stage < 0:
            _log.info("%s", "\n".join(plan_lines(reports)))
            _log.info("data stages: reading begins at step %s, in stage %r", f"{step:,}", name)
        else:
            old, new = reports[self._stage], reports[stage]
            changed = "; ".join(changes(old, new)) or "nothing changes but the name"
            text = "data stages: step %s: %r -> %r: %s"
            _log.info(text, f"{step:,}", old.stage.name, name, changed)
        self._stage = stage


class StagedStream(PassingStream[T]):
    """Passes on the items of a stream."""

    def __init__(
        self,
        stream: Stream[T],
        plan: StagePlan[Any],
        watch: Callable[[int], None] | None,
        state: State | None,
    ) -> None:
        super().__init__(stream)
        self._plan = plan
        self._watch = watch
        self._position = counter_field(state, "position")

    def passed(self, item: T, position: int) -> T:
        if self._watch is not None:
            self._watch(position)
        self._position = position + 1
        return item

    def check_after(self, last: int | None, *, exact: bool) -> None:
        check_count(self._position, last, exact=exact, what="items of stages were read")
        super().check_after(last, exact=exact)

    def state(self) -> State:
        fields = stage_fields(self._plan, self._position)
        return {"position": self._position, **fields, **super().state()}
