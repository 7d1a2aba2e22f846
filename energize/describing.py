"""Values of descriptions as JSON."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

ATOMS = frozenset({type(None), bool, int, float, str})
"""Types of values that are their own description."""


def described(value: Any) -> Any:
    """A parameter as JSON: numbers and text as they are, functions and objects by their names."""
    if type(value) in ATOMS:
        return value
    if getattr(value, "ndim", None) == 0:  # a number of numpy, or a tensor of one
        value = value.item()
    if isinstance(value, int | float | str):
        return value
    if isinstance(value, Fraction):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): described(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [described(each) for each in value]
    return _object_described(value)


def _object_described(value: Any) -> Any:
    if hasattr(value, "describe"):
        return value.describe()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: described(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return str(value) if isinstance(value, Path) else _name_of(value)


def _name_of(value: Any) -> str:
    """A function, method or class by its qualified name, another object by that of its class."""
    while isinstance(value, functools.partial):
        value = value.func
    owner = getattr(value, "__self__", None)
    if owner is not None and hasattr(value, "__name__"):
        return f"{_named(type(owner))}.{value.__name__}"
    return _named(value if hasattr(value, "__qualname__") else type(value))


def _named(thing: Any) -> str:
    module = getattr(thing, "__module__", None) or "builtins"  # str.upper has none
    return f"{module}.{thing.__qualname__}"


def digest(tree: Any) -> str:
    """A short fingerprint of a tree."""
    return hashlib.blake2b(json.dumps(tree, sort_keys=True).encode(), digest_size=16).hexdigest()
