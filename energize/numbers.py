"""Numbers of any kind: Python's, numpy's, tensors of one number."""

from __future__ import annotations

import math
import operator
from decimal import Decimal
from fractions import Fraction
from numbers import Real
from typing import cast

import numpy as np

from energize.errors import ConfigError
from energize.limits import limit, over_limit


def whole_number(value: object, least: int | None = None) -> int | None:
    """`value` as an int when its type is one of whole numbers, else None; True is no number.

    A number below `least` is None too.

    >>> whole_number(np.int32(3)), whole_number(3.0), whole_number(True), whole_number(3, 4)
    (3, None, None, None)
    """
    if isinstance(value, bool | np.bool_):
        return None
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # that is the question
    except TypeError:
        return None
    return number if least is None or number >= least else None


def checked_whole(value: object, where: str, least: int | None = None) -> int:
    """`value` as a whole number, `least` or more; `ConfigError` beginning with `where`.

    >>> checked_whole(0, "Dice: eyes", 1)
    Traceback (most recent call last):
        ...
    energize.errors.ConfigError: Dice: eyes is a whole number, 1 or more; got 0
    """
    number = whole_number(value, least)
    if number is None:
        bound = "" if least is None else f", {least} or more"
        raise ConfigError(f"{where} is a whole number{bound}; got {value!r}")
    return number


def checked_batch_size(value: object, where: str) -> int:
    """The size of a batch; `ConfigError` beginning with `where` for what is none, or for more than
    the limit BATCH_ITEMS: all that a batch holds lies in memory.
    """
    size = checked_whole(value, where, 1)
    if size > limit("BATCH_ITEMS"):
        raise ConfigError(f"{where}: {over_limit('BATCH_ITEMS', size)}")
    return size


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
