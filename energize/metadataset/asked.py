"""Settings of datasets that a program gives beside the path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from energize.errors import ConfigError
from energize.metadataset.keys import Spec
from energize.metadataset.nodes import Blend, Leaf, Staged
from energize.metadataset.resolving import resolve
from energize.metadataset.table import keys_of

T = TypeVar("T")

_SETTINGS = ("dataset_config", "split_config", "subflavors", "subset", "sample_weight")


def asked_for(path: T, split_part: str, arguments: dict[str, Any]) -> T | Leaf | Blend | Staged:
    """What `path` stands for, with those settings among the `arguments`, which are taken out.

    They are the settings of an entry of a metadataset that names the path, and win over those of
    files. Without any, and for what was resolved already, the path itself. Raises `ConfigError` for
    values that a file could not have, and what `resolve` raises.

    >>> asked_for("cats", "train", {"handler": None})
    'cats'
    """
    if isinstance(path, Leaf | Blend | Staged):
        return path
    given = {name: _read(name, arguments.pop(name)) for name in _SETTINGS if name in arguments}
    asked: Any = path
    said = any(given.values()) or given.get("sample_weight") is not None
    return resolve(asked, split_part, Spec(path="", **given)) if said else path


def _read(name: str, value: Any) -> Any:
    if value is None:
        return None
    row = next(row for row in keys_of(Spec) if row.name == name)
    try:
        return row.read(dict(value) if isinstance(value, Mapping) else value)
    except ConfigError as fault:
        raise ConfigError(f"{name}: {fault}") from None
