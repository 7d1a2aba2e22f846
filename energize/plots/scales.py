"""Round numbers along an axis, and how they are written."""

from __future__ import annotations

import math


def ticks(last: float, about: int = 6) -> list[float]:
    """Round numbers from 0 to `last`, about so many.

    >>> ticks(1_500_000)
    [0.0, 250000.0, 500000.0, 750000.0, 1000000.0, 1250000.0, 1500000.0]
    >>> ticks(0.03, 3)
    [0.0, 0.01, 0.02, 0.03]
    """
    if last <= 0:
        return [0.0]
    rough = last / about
    size = 10.0 ** math.floor(math.log10(rough))
    step = min((f * size for f in (1, 2, 2.5, 5, 10)), key=lambda each: abs(each - rough))
    return [round(i * step, 12) for i in range(int(last / step + 1e-9) + 1)]


def number_text(number: float) -> str:
    """A number as short as can be.

    >>> [number_text(each) for each in (0, 0.25, 800, 2500, 1_250_000, 3e12)]
    ['0', '0.25', '800', '2,500', '1.25M', '3T']
    """
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6)):
        if number >= size:
            return f"{number / size:.4g}{unit}"
    return f"{number:,.4g}" if number < 1000 else f"{number:,.0f}"


def share_text(share: float | None) -> str:
    """A share in per cent, a dash where there is none.

    >>> share_text(0.125), share_text(None)
    ('12.50 %', '-')
    """
    return "-" if share is None else f"{100 * share:.2f} %"
