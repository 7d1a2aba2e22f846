"""Samples without a type."""

from __future__ import annotations

from typing import Any


class CrudeSample(dict[str, Any]):
    """All parts of a sample by their names, with the metadata fields of `Sample` beside them.

    These are `__key__`, `__restore_key__`, `__subflavors__` and `__sources__`; beyond them,
    `__shard__` and `__index__` say where it lies. `Sample.derive_from(crude, ...)` makes a typed
    sample with the same metadata.
    """
