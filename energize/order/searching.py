"""Numbers found by bisection, from where they are expected."""

from __future__ import annotations

from collections.abc import Callable


def first_where(
    holds: Callable[[int], bool], *, above: int, upto: int, guess: float | None = None
) -> int:
    """The least number above `above` for which `holds`, which is true of `upto` and of all numbers
    after the first. It takes few questions when `guess` is near it; without one, the middle is
    asked first.

    >>> first_where(lambda number: number * number >= 90, above=0, upto=1000, guess=9)
    10
    """
    low, high = above, upto
    if guess is not None and high - low > 1:
        low, high = _around(holds, int(min(max(guess, low + 1), high - 1)), low, high)
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle
    return high


def _around(holds: Callable[[int], bool], at: int, low: int, high: int) -> tuple[int, int]:
    """Numbers nearer to `at`, from `low` to `high`: the first is false, the second true."""
    step = 1
    if holds(at):
        high = at
        while (at := high - step) > low and holds(at):
            high, step = at, 2 * step
        return max(low, at), high
    low = at
    while (at := low + step) < high and not holds(at):
        low, step = at, 2 * step
    return low, min(high, at)
