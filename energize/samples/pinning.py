"""Page-locked memory, from which copies to a GPU can run beside computation."""

from __future__ import annotations

from typing import Any, TypeVar

from energize.late import torch
from energize.samples.structure import map_leaves

T = TypeVar("T")


def pin_memory(value: T) -> T:
    """A copy of `value` with all tensors in page-locked memory; `value` itself without a GPU.

    Tensors are found at any depth in dataclasses, named tuples, dicts, lists and tuples. Another
    object is asked to pin itself when it has a `pin_memory` method, and else passed on as it is.
    """
    if not torch.cuda.is_available():
        return value
    return map_leaves(value, _pinned)  # type: ignore[no-any-return]  # of the type of `value`


def _pinned(leaf: Any) -> Any:
    method = getattr(leaf, "pin_memory", None)
    return method() if callable(method) and not isinstance(leaf, type) else leaf
