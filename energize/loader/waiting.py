"""Whether a training waits for its data, said in the log while it does."""

from __future__ import annotations

_WINDOW = 30.0
"""Seconds of a training over which its waiting is looked at."""

_WORTH_A_LINE = 0.1
"""The part of its time from which on waiting is worth a line."""

_AGAIN = 600.0
"""Seconds after which it is said again."""


class Waiting:
    """How long items were waited for, of the time in which they were trained on.

    `add` is told of each item but the first of a loop, for which workers start, and
    returns what to say: None for most, for next to nothing.
    """

    def __init__(self) -> None:
        self._waited = self._passed = 0.0
        self._items = 0
        self._silent = 0.0

    def add(self, waited: float, passed: float, workers: int) -> str | None:
        """An item was waited for; so many seconds passed since the one before was
        given.
        """
        self._waited += waited
        self._passed += passed
        self._items += 1
        return None if self._passed < _WINDOW else self._summary(workers)

    def _summary(self, workers: int) -> str | None:
        items = self._items
        waited = self._waited
        passed = self._passed
        self._silent -= passed
        self._items = 0
        self._waited = 0.0
        self._passed = 0.0
        if waited <= _WORTH_A_LINE * passed or self._silent > 0:
            return None
        self._silent = _AGAIN
        cause = (
            "they are read in the training's own process, and num_workers=2 reads "
            "beside it"
        )
        if workers:
            cause = (
                f"{workers} workers did not keep up"
                if workers > 1
                else "1 worker is too few"
            )
        return (
            f"waited for data for {100 * waited / passed:.0f} % of the last "
            f"{passed:.0f} s, in which {items / passed:,.3g} items came each second: "
            f"{cause}. `energize profile MIX` measures which stage limits it, and how "
            "many workers to use"
        )
