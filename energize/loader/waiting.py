"""A warning for trainings that wait for their data."""

from __future__ import annotations

_WINDOW = 30.0
"""Seconds over which the fraction is measured."""

_WORTH_A_LINE = 0.1
"""Minimum fraction of time spent waiting that is logged."""

_AGAIN = 600.0
"""Seconds between two warnings."""


class Waiting:
    """Measures the fraction of the time that a training waits for items.

    Call `add` for each item but the first of a loop, for which workers start. It costs
    next to nothing.
    """

    def __init__(self) -> None:
        self._waited = self._passed = 0.0
        self._items = 0
        self._silent = 0.0

    def add(self, waited: float, passed: float, workers: int) -> str | None:
        """Record an item.

        Args:
            waited: Seconds that the item was waited for.
            passed: Seconds since the previous item was delivered.
            workers: Number of workers.

        Returns:
            A warning to log, or None.
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
