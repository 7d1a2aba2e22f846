"""Checks of parameters that several wrappers take."""

from __future__ import annotations

from energize.errors import ConfigError

__all__ = ["checked_count"]


def checked_count(value: object, name: str, owner: str) -> int:
    """`value` as a whole number, 1 or more; `ConfigError` naming the parameter and its owner."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{owner}: {name} is a whole number, 1 or more; got {value!r}")
    return value
