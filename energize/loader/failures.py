"""Samples that failed during delivery: reported, counted, and at some number too many."""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from energize.core.reading import Failed, SamplePlace
from energize.errors import FailureBudgetError
from energize.ledger.left_out import LeftOut

_log = logging.getLogger("energize")

_KEPT = 10

_KINDS = 1000
"""How many kinds of failures are told apart."""

_PLACES = re.compile(r"""'[^']*'|"[^"]*"|\S*/\S*|\w*\d\w*""")
"""What differs between messages of failures of one kind: names in quotes, paths, numbers of any
base."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A sample that failed, as it travels: what is said of it, which it is, and what is common to
    those that fail alike.
    """

    text: str
    reason: str
    kind: str
    place: SamplePlace | None = None

    @classmethod
    def of(cls, failed: Failed) -> Failure:
        """What there is to say of a failed sample."""
        name, message = type(failed.reason).__name__, str(failed.reason)
        first = message.split("\n", 1)[0].removeprefix(failed.where)
        kind = f"{name}: {_PLACES.sub('*', first)}"
        return cls(str(failed), f"{name}: {message}", kind, failed.place)


@dataclass(frozen=True, slots=True)
class FailureSummary:
    """How many samples failed, the last few of them (where, and why), and how many failed alike:
    `kinds` has the number of each kind, by the text of its first.
    """

    count: int
    last: tuple[str, ...]
    kinds: dict[str, int]


@dataclass(slots=True)
class _Kind:
    """Failures that are alike: the first, how many there are, and how many have been told of."""

    first: str
    count: int = 0
    told: int = 0


class FailureLog:
    """Counts failed samples and raises `FailureBudgetError` at the first above `budget`.

    Of samples that fail alike the first is warned of; then how many they are, seldom, and at the
    end. Without a budget (None) any number may fail. `keep`
    is given each failure first.
    """

    def __init__(self, budget: int | None, keep: Callable[[Failure], None] | None = None) -> None:
        self._budget = budget
        self._count = 0
        self._last: deque[str] = deque(maxlen=_KEPT)
        self._kinds: dict[str, _Kind] = {}
        self.keep = keep
        self.left_out = LeftOut()

    def add(self, failed: Failed | Failure) -> None:
        """One more failed sample."""
        failure = failed if isinstance(failed, Failure) else Failure.of(failed)
        if self.keep is not None:
            self.keep(failure)
        self._count += 1
        self._last.append(failure.text)
        known = len(self._kinds) < _KINDS or failure.kind in self._kinds
        kind = self._kinds.setdefault(failure.kind if known else "others", _Kind(failure.text))
        kind.count += 1
        self._tell(kind, failure)
        if self._budget is not None and self._count > self._budget:
            raise self._too_many(self._budget)

    def _tell(self, kind: _Kind, failure: Failure) -> None:
        if kind.count == 1:
            _log.warning("%s; it is left out (failure %d)", failure.text, self._count)
        elif kind.count >= 10 * kind.told:
            _log.warning(
                "%d samples failed alike so far, the last: %s",
                kind.count,
                _first_line(failure.text),
            )
        else:
            return
        kind.told = kind.count

    def _too_many(self, budget: int) -> FailureBudgetError:
        most = sorted(self._kinds.values(), key=lambda each: -each.count)[:_KEPT]
        alike = "\n".join(f"  {each.count} like {_first_line(each.first)}" for each in most)
        return FailureBudgetError(
            f"{self._count} samples failed and failure_budget allows {budget}:\n{alike}\n"
            f"  the last: {self._last[-1]}\n"
            "Repair the data, or give get_loader a larger failure_budget (None: no limit)"
        )

    def add_all(self, failed: Iterable[Failure], left_out: LeftOut | None = None) -> None:
        """Several failed samples, and counts of all that were left out."""
        self.left_out.take_over(left_out)
        for each in failed:
            self.add(each)

    def conclude(self, *, for_good: bool = False) -> None:
        """Tell how many there were of each kind; before the end, if they are twice as many as told
        before.
        """
        for kind in self._kinds.values():
            if kind.count >= 2 * kind.told or (for_good and kind.count > kind.told):
                text = "%d samples failed alike, the first: %s"
                _log.warning(text, kind.count, _first_line(kind.first))
                kind.told = kind.count

    def summary(self) -> FailureSummary:
        """What has been added so far."""
        kinds = {each.first: each.count for each in self._kinds.values()}
        return FailureSummary(self._count, tuple(self._last), kinds)


def _first_line(text: str) -> str:
    return text.split("\n", 1)[0]
