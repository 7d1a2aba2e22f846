"""Checks of arguments that are lists of objects of one kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from energize.errors import ConfigError

__all__ = ["checked_list"]

T = TypeVar("T")


def checked_list(values: object, kind: type[T], what: str) -> tuple[T, ...]:
    """`values` as a tuple of objects of `kind`; `ConfigError` saying `what` they are, and showing
    the first one that is something else.

    >>> checked_list([1, "2"], int, "Dice: eyes")
    Traceback (most recent call last):
        ...
    energize.errors.ConfigError: Dice: eyes is a list of int objects; got '2' in it
    """
    if not isinstance(values, Sequence) or isinstance(values, str | bytes):
        raise ConfigError(f"{what} is a list of {kind.__name__} objects; got {values!r}")
    for each in values:
        if not isinstance(each, kind):
            raise ConfigError(f"{what} is a list of {kind.__name__} objects; got {each!r} in it")
    return tuple(values)
