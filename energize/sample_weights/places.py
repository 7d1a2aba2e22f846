"""Where items of any type have their weights, and copies that have others."""

from __future__ import annotations

import copy
import dataclasses
from collections import UserDict
from functools import lru_cache
from typing import Any

from energize.errors import WeightError
from energize.late import torch
from energize.sample_utils import default_get_batch_keys

WEIGHT = "__sample_weight__"
"""Where a sample has the product of what its sources say."""

OWN = "sample_weight"
"""Where a sample has what its encoder says."""

WEIGHTS = "sample_weights"
"""Where a batch has the weights of its samples, and a pack those of its pieces."""

_ROOM = {
    WEIGHT: f"{WEIGHT}: float | None = None",
    WEIGHTS: f"{WEIGHTS}: torch.Tensor | None = None",
}


def field_of(item: Any, name: str) -> Any:
    """A value of a dict, or an attribute; None where there is none."""
    kind: Any = type(item)
    if kind is dict or has_keys(kind):
        return item.get(name)
    return getattr(item, name, None)


def tells(item: Any) -> bool:
    """Whether an item may say how much it counts, or how much those of a list do."""
    kind = type(item)
    if kind is dict:
        return WEIGHT in item or OWN in item or WEIGHTS in item
    return (
        getattr(item, WEIGHT, None) is not None
        or getattr(item, OWN, None) is not None
        or getattr(item, WEIGHTS, None) is not None
        or kind is list
        or hasattr(item, "keys")  # much like a dict
    )


@lru_cache(maxsize=256)
def has_keys(kind: type[Any]) -> bool:
    """Whether instances of a type have their values by key: dicts, and what is used as one."""
    return issubclass(kind, dict | UserDict)


def placed(item: Any, name: str, value: Any) -> Any | None:
    """A shallow copy with `value` in its place; None where there is none.

    Batches that are dataclasses have to have a field, as what is no field is lost where tensors are
    moved to another device.
    """
    kind: Any = type(item)
    if has_keys(kind):
        other: Any = copy.copy(item)
        other[name] = value
        return other
    if isinstance(item, tuple) and name in getattr(item, "_fields", ()):
        return item._replace(**{name: value})  # type: ignore[attr-defined]  # a named tuple
    if _is_plain(item) or (name == WEIGHTS and not _has_field(item, name)):
        return None
    other = copy.copy(item)
    try:
        object.__setattr__(other, name, value)
    except (AttributeError, TypeError):  # it has neither a __dict__ nor a slot of that name
        return None
    return other


def _is_plain(item: Any) -> bool:
    """Whether it is a value, to which nothing should be tied."""
    return isinstance(item, torch.Tensor | tuple | type) or callable(item)


def _has_field(item: Any, name: str) -> bool:
    if not dataclasses.is_dataclass(item):
        return True
    return name in {each.name for each in dataclasses.fields(item)}


def described(item: Any) -> str:
    """What an item is, for messages."""
    key = field_of(item, "__key__")
    return f"a {type(item).__name__}" + ("" if key is None else f" (key {str(key)[:80]!r})")


def remedy(item: Any, name: str) -> str:
    """What to do about an item without a place for its weight, or its weights."""
    kind = type(item).__name__
    base = "Batch" if name == WEIGHTS else "Sample"
    what = "the weights of its samples" if name == WEIGHTS else "the weight that its source gives"
    if dataclasses.is_dataclass(item):
        return (
            f"it has no place for {what}. Add the field `{_ROOM[name]}` to {kind}, or let it "
            f"extend energize.{base}"
        )
    return f"it has no place for {what}. Use a dict, or a dataclass with the field `{_ROOM[name]}`"


def listed_keys(item: Any) -> list[str] | None:
    """The keys of the samples of a batch; None where it lists none, and for a sample."""
    return None if isinstance(item, list) else default_get_batch_keys(item)


def keys_of(item: Any) -> list[str]:
    """The keys of a batch, or that of a sample; nothing where there is none."""
    keys = listed_keys(item)
    if keys is not None:
        return keys
    key = field_of(item, "__key__")
    return [key] if isinstance(key, str) else []


def counted(batch: Any) -> int:
    """How many samples a batch has, by its keys, or its tensors and lists if they agree.

    Raises `WeightError` where neither tells.
    """
    keys = listed_keys(batch)
    if keys is not None:
        return len(keys)
    found = sorted({len(each) for each in _columns(batch)})
    if len(found) != 1:
        raise WeightError(
            f"{described(batch)} does not tell how many samples it has: its tensors and lists have "
            f"the lengths {', '.join(map(str, found)) or 'none'}. Give it a list of their keys as "
            "'__key__', or weigh the samples before they are batched"
        )
    return found[0]


def _columns(batch: Any) -> list[Any]:
    """The tensors and lists of a batch."""
    kind: Any = type(batch)
    if has_keys(kind):
        values = list(batch.values())
    elif dataclasses.is_dataclass(batch):
        values = [getattr(batch, each.name) for each in dataclasses.fields(batch)]
    else:
        values = [batch, *getattr(batch, "__dict__", {}).values()]
    return [
        each
        for each in values
        if isinstance(each, list) or (isinstance(each, torch.Tensor) and each.ndim)
    ]
