"""Exact quotients of integers whose products do not fit in 64 bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from energize.arrays import Int64Array

__all__ = ["EXACT_BITS", "ceil_quotient"]

FloatArray = npt.NDArray[np.floating[Any]]

EXACT_BITS = 48
"""Quotients up to this length are exact, with room to spare."""


def ceil_quotient(above: Int64Array, about: FloatArray, below: Int64Array | int) -> Int64Array:
    """`above / below` rounded up, exactly, for quotients below 2**50 and `below` up to 2**61.

    `above` is computed in int64 arithmetic that may have wrapped around, `about` is its value in
    floats. The float quotient is at most one off, and the remainder, which is small, tells in
    which direction.
    """
    quotient = np.ceil(about / below).astype(np.int64)
    missing = above - quotient * below
    quotient += missing > 0
    quotient -= missing <= -below
    return quotient
