"""Numbers of any kind: Python's, numpy's, tensors of one number."""

from __future__ import annotations

import functools
import inspect
import math
import operator
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from fractions import Fraction
from numbers import Real
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np
from pydantic import ValidationError, validate_call

from energize.core import limits
from energize.errors import ConfigError, EmptyDatasetError, nearest

_ALLOCATED = re.compile(r"(?i)(?:tried|unable) to allocate ([\d.]+) ?(\w+)")
"""Messages of torch, CUDA and numpy with the size of a failed allocation."""

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


def whole_number(value: object, least: int | None = None) -> int | None:
    """Return an integer of any type as an int; None for others, bools, and below
    `least`.

    Example:
        >>> (
        ...     whole_number(np.int32(3)),
        ...     whole_number(3.0),
        ...     whole_number(True),
        ...     whole_number(3, 4),
        ... )
        (3, None, None, None)
    """
    if isinstance(value, bool | np.bool_):
        return None
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # that is the question
    except TypeError:
        return None
    return number if least is None or number >= least else None


def failed_allocation(error: BaseException | None) -> str | None:
    """Return the size of a failed allocation as text; None for other errors.

    Example:
        >>> failed_allocation(
        ...     RuntimeError("can't allocate memory: you tried to allocate 2048 bytes.")
        ... )
        '2,048 bytes'
        >>> (
        ...     failed_allocation(MemoryError()),
        ...     failed_allocation(RuntimeError("no such key")),
        ... )
        ('an unknown number of bytes', None)
    """
    match = _ALLOCATED.search(str(error))
    if not isinstance(error, MemoryError) and (
        match is None or not isinstance(error, RuntimeError)
    ):
        return None
    shape = getattr(error, "shape", None)
    dtype = getattr(error, "dtype", None)
    if shape is not None and dtype is not None:
        return f"{math.prod(shape) * dtype.itemsize:,} bytes"
    if match is None:
        return "an unknown number of bytes"
    number, unit = match.groups()
    return f"{int(number):,} {unit}" if number.isdigit() else f"{number} {unit}"


def checked_whole(value: object, label: str, least: int | None = None) -> int:
    """`value` as a whole number, `least` or more; `ConfigError` beginning with `where`.

    >>> checked_whole(0, "Dice: eyes", 1)
    Traceback (most recent call last):
        ...
    energize.errors.ConfigError: Dice: eyes must be a whole number >= 1, got 0
    """
    number = whole_number(value, least)
    if number is None:
        bound = "" if least is None else f" >= {least}"
        raise ConfigError(f"{label} must be a whole number{bound}, got {value!r}")
    return number


def check_processes(count: int, label: str) -> None:
    """Raise `ConfigError` for more processes than `limits.PROCESSES` for each core."""
    cores = os.cpu_count() or 1
    if count > limits.PROCESSES * cores:
        text = limits.over("PROCESSES", -(-count // cores))
        raise ConfigError(f"{label}={count} on a machine of {cores} cores: {text}")


def checked_function(value: F, label: str) -> F:
    """Return a function of the user; `ConfigError` beginning with `where` for what
    cannot be called.

    >>> checked_function("len", "Dice: roll")
    Traceback (most recent call last):
        ...
    energize.errors.ConfigError: Dice: roll must be a function, got 'len'
    """
    if not callable(value):
        raise ConfigError(f"{label} must be a function, got {repr(value)[:80]}")
    return value


def checked_batch_size(value: object, label: str) -> int:
    """Return the size of a batch, which is held in memory as a whole.

    Raises:
        ConfigError: If it is not an integer above 0, or above the limit BATCH_ITEMS.
            The message begins with `label`.
    """
    size = checked_whole(value, label, 1)
    if size > limits.BATCH_ITEMS:
        raise ConfigError(f"{label}: {limits.over('BATCH_ITEMS', size)}")
    return size


def real_number(value: object) -> float | Fraction | Decimal | None:
    """Return a number of any type; None for other values and bools.

    Example:
        >>> real_number(np.float32(0.1)), real_number(np.array(3)), real_number("3")
        (np.float32(0.1), 3, None)
    """
    if not isinstance(value, np.generic) and getattr(value, "ndim", None) == 0:
        value = value.item()  # type: ignore[attr-defined]
    if isinstance(value, Decimal):
        return math.nan if value.is_nan() else value
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    return cast("float", value)


# Checks of parameters that several wrappers share.


def checked_flag(value: object, name: str, owner: str) -> bool:
    """`value` as True or False; `ConfigError` naming the parameter and its owner."""
    if not isinstance(value, bool | np.bool_):
        raise ConfigError(f"{owner}: {name} must be True or False, got {value!r}")
    return bool(value)


def checked_choice(
    value: object, name: str, choices: Collection[str], owner: str = ""
) -> str:
    """Return `value` if it is one of the choices, or raise `ConfigError`.

    >>> checked_choice("cosin", "way", ["cosine"], "Mix")
    Traceback (most recent call last):
        ...
    energize.errors.ConfigError: Mix: way='cosin' is not one of cosine; did you mean \
'cosine'?
    """
    if isinstance(value, str) and value in choices:
        return value
    raise ConfigError(
        f"{owner and owner + ': '}{name}={value!r} is not one of "
        f"{', '.join(choices) or 'none'}"
        f"{nearest(str(value), list(choices))}"
    )


def check_names(names: Iterable[str], options: Iterable[str], *makers: type) -> None:
    """Check the names of arguments.

    Raises:
        ConfigError: For a name that is neither one of `options` nor a parameter of the
            classes `makers`.
    """
    parameters = [
        name
        for maker in makers
        for name, parameter in inspect.signature(maker).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    ]
    allowed = list(dict.fromkeys([*parameters, *options]))
    for name in names:
        if name not in allowed:
            raise ConfigError(
                f"unknown parameter {name!r}{nearest(name, allowed) or '.'} Known: "
                f"{', '.join(allowed)}"
            )


def checked_arguments(function: F) -> F:
    """Check the arguments of a function by its annotations, with pydantic.

    The wrapped function raises `ConfigError` for the first invalid argument, with the
    parameter, the expected type and the value.

    Example:
        >>> @checked_arguments
        ... def half(x: float) -> float:
        ...     return x / 2
        >>> half(None)
        Traceback (most recent call last):
            ...
        energize.errors.ConfigError: half: x: Input should be a valid number, got None
    """
    checked = validate_call(function)
    signature = inspect.signature(function)
    owner = function.__qualname__.removesuffix(".__init__")

    @functools.wraps(function)
    def called(*arguments: Any, **named: Any) -> Any:
        try:
            return checked(*arguments, **named)
        except ValidationError as error:
            first = error.errors()[0]
            name, *inside = first["loc"]
            if isinstance(name, int):
                name = list(signature.parameters)[name]
            location = ".".join(map(str, (name, *inside)))
            value = repr(first["input"])[:80]
            raise ConfigError(
                f"{owner}: {location}: {first['msg']}, got {value}"
            ) from None

    return cast("F", called)


@contextmanager
def raised_as(owner: str, *parts: str) -> Iterator[None]:
    """Errors about parameters begin with the name of the class that the user made,
    `owner`, instead of one of the classes that it is put together from, or none.
    """
    try:
        yield
    except (ConfigError, EmptyDatasetError) as error:
        text = str(error)
        for name in (owner, *parts):
            text = text.removeprefix(f"{name}: ")
        error.args = (f"{owner}: {text}",)
        raise
