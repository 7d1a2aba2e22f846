"""Descriptions as JSON-able trees, and the differences between two of them by name."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

__all__ = ["described", "differences", "digest", "jsonable"]


def described(value: Any) -> Any:
    """A parameter as JSON: numbers and text as they are, functions and objects by their names."""
    if getattr(value, "ndim", None) == 0:  # a number of numpy, or a tensor of one
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): described(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [described(each) for each in value]
    if hasattr(value, "describe"):
        return value.describe()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: described(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return str(value) if isinstance(value, Path) else _name_of(value)


def _name_of(value: Any) -> str:
    """A function, method or class by its qualified name, another object by that of its class."""
    owner = getattr(value, "__self__", None)
    if owner is not None and hasattr(value, "__name__"):
        return f"{_named(type(owner))}.{value.__name__}"
    return _named(value if hasattr(value, "__qualname__") else type(value))


def _named(thing: Any) -> str:
    return f"{thing.__module__}.{thing.__qualname__}"


def jsonable(tree: Any) -> Any:
    """The tree as it comes back when it was saved as JSON."""
    return json.loads(json.dumps(tree))


def digest(tree: Any) -> str:
    """A short fingerprint of a tree."""
    return hashlib.blake2b(json.dumps(tree, sort_keys=True).encode(), digest_size=16).hexdigest()


def differences(saved: Any, current: Any, path: str = "dataset") -> Iterator[str]:
    """A line for each place in which two trees differ, with its path and both values."""
    if isinstance(saved, dict) and isinstance(current, dict):
        if saved.get("kind") != current.get("kind"):
            yield f"{path}: was a {saved.get('kind')}, is a {current.get('kind')}"
            return
        for name in {**saved, **current}:
            inner = f"{path}.{name}"
            if name not in current:
                yield f"{inner}: was {_short(saved[name])}, is gone"
            elif name not in saved:
                yield f"{inner}: is new, {_short(current[name])}"
            else:
                yield from differences(saved[name], current[name], inner)
    elif isinstance(saved, list) and isinstance(current, list):
        for i, (one, other) in enumerate(zip(saved, current, strict=False)):
            yield from differences(one, other, f"{path}[{i}]")
        if len(saved) != len(current):
            yield f"{path}: had {len(saved)} entries, has {len(current)}"
    elif saved != current:
        yield f"{path}: was {_short(saved)}, is {_short(current)}"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 100 else f"{text[:97]}..."
