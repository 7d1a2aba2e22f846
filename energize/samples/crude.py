"""Samples without a type."""

from __future__ import annotations

from typing import Any


class CrudeSample(dict[str, Any]):
    """All parts of a sample by their names, with the metadata fields of `Sample` beside them.

    Beyond those, `__shard__` and `__index__` say where it lies.
    """
