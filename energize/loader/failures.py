"""Samples that failed during delivery: reported, counted, and at some number too many."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from energize.errors import FailureBudgetError

_log = logging.getLogger("energize")

_KEPT = 10


@dataclass(frozen=True, slots=True)
class FailureSummary:
    """How many samples failed, and the last few of them: where, and why."""

    count: int
    last: tuple[str, ...]


class FailureLog:
    """Warns of each failed sample and raises `FailureBudgetError` at the first above `budget`.

    Without a budget (None) any number may fail.
    """

    def __init__(self, budget: int | None) -> None:
        self._budget = budget
        self._count = 0
        self._last: deque[str] = deque(maxlen=_KEPT)

    def add(self, failed: object) -> None:
        """One more failed sample, whose text says where it is and why it failed."""
        self._count += 1
        self._last.append(str(failed))
        _log.warning("%s; it is left out (failure %d)", failed, self._count)
        if self._budget is not None and self._count > self._budget:
            shown = "\n".join(f"  {each}" for each in self._last)
            raise FailureBudgetError(
                f"{self._count} samples failed and failure_budget allows {self._budget}; the last "
                f"{len(self._last)}:\n{shown}\n"
                "Repair the data, or give get_loader a larger failure_budget (None: no limit)"
            )

    def add_all(self, failed: Iterable[object]) -> None:
        """Several failed samples."""
        for each in failed:
            self.add(each)

    def summary(self) -> FailureSummary:
        """What has been added so far."""
        return FailureSummary(self._count, tuple(self._last))
