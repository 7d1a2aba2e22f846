"""Progress of long work, on terminals and in logs."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

Progress = Callable[[int, int], None]
"""Called with the numbers of finished and of all parts; 0 if unknown."""

_SHORT = 2.0
"""Seconds of work before progress is shown on a terminal."""
_ON_TERMINAL = 0.5
_IN_LOG = 30.0
"""Seconds between two lines of progress, on a terminal and in a log."""

_log = logging.getLogger("energize")


def progress(label: str) -> Progress:
    """Return a function that shows the progress of work.

    On a terminal, a line is overwritten, after the first 2 s. Otherwise a line is
    logged every 30 s.

    Example:
        >>> report = progress("Counting")
        >>> report(1, 2)
    """
    begun = time.monotonic()
    shown = sys.stderr is not None and sys.stderr.isatty()
    due = begun + (_SHORT if shown else _IN_LOG)
    reported = False

    def report(done: int, total: int) -> None:
        nonlocal due, reported
        moment = time.monotonic()
        ended = reported and shown and done == total
        if moment < due and not ended:
            return
        due = moment + (_ON_TERMINAL if shown else _IN_LOG)
        reported = True
        if done == total:
            due = math.inf
            reported = False
        left = (moment - begun) * (total - done) / max(done, 1)
        text = f"{label}: {done:,}" + (
            f" of {total:,}, about {left:,.0f} s left" if total else ""
        )
        if shown:
            print(
                f"{text:<78}", end="\n" if ended else "\r", file=sys.stderr, flush=True
            )
        else:
            _log.warning("%s", text)

    return report


def counting(items: Iterable[T], label: str, total: int = 0) -> Iterator[T]:
    """Yield items, saying how many there were.

    >>> list(counting("ab", "Letters"))
    ['a', 'b']
    """
    report = progress(label)
    done = 0
    for done, item in enumerate(items, 1):
        report(done, total)
        yield item
    report(done, done)


def counted(number: int, noun: str) -> str:
    """Return a number of things, for people.

    >>> counted(1, "step"), counted(2000, "step")
    ('1 step', '2,000 steps')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
