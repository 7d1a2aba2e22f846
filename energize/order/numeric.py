"""Numbers of any kind: Python's, numpy's, tensors of one number."""

from __future__ import annotations

import math
import operator
from decimal import Decimal
from fractions import Fraction
from numbers import Real
from typing import cast

import numpy as np

__all__ = ["real_number", "whole_number"]


def whole_number(value: object) -> int | None:
    """`value` as an int when its type is one of whole numbers, else None; True is no number.

    >>> whole_number(np.int32(3)), whole_number(3.0), whole_number(True)
    (3, None, None)
    """
    if isinstance(value, bool | np.bool_):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]  # that is the question
    except TypeError:
        return None


def real_number(value: object) -> float | Fraction | Decimal | None:
    """`value` as a number, one of numpy as it is; None when it is none. True is no number.

    >>> real_number(np.float32(0.1)), real_number(np.array(3)), real_number("3")
    (np.float32(0.1), 3, None)
    """
    if not isinstance(value, np.generic) and getattr(value, "ndim", None) == 0:
        value = value.item()  # type: ignore[attr-defined]  # a tensor, or an array of numpy
    if isinstance(value, Decimal):
        return math.nan if value.is_nan() else value
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    return cast("float", value)
