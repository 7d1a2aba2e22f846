"""Items that pad an epoch: copies that count for nothing, and say so."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

from energize.core.lazy import torch
from energize.core.loss_weights import zeroed

T = TypeVar("T")

PADDING = "__padding__"
"""The attribute, or in a dict the key, that marks an item as padding."""


STORED_KEY = "__stored_key__"
"""Where a delivered item has the `__restore_key__` that it was made with."""


class Markable:
    """Base of classes with slots, whose items have a place for what a loader says of them."""

    __slots__ = (PADDING, STORED_KEY)


def is_padding(item: Any) -> bool:
    """Whether an item is a copy that pads an epoch, to be left out of losses and metrics.

    Dicts say it under the key `__padding__`, tensors, dataclasses and other objects in an attribute
    of that name. Lists, tuples, numbers and texts have no place for it: of any last item
    `Loader.padding` says the same.

    >>> is_padding({"loss": 1.0}), is_padding({"loss": 1.0, "__padding__": True})
    (False, True)
    """
    found = item.get(PADDING) if isinstance(item, dict) else getattr(item, PADDING, False)
    return found is True


def marked(item: T) -> T:
    """A shallow copy of an item that says that it is padding, where its type can say it.

    Its samples have the weight 0, where it has a place for weights.
    """
    item = zeroed(item)
    if isinstance(item, dict):
        other: Any = copy.copy(item)
        other[PADDING] = True
        return other  # type: ignore[no-any-return]  # of the type of `item`
    other = item.view_as(item) if isinstance(item, torch.Tensor) else copy.copy(item)
    try:
        object.__setattr__(other, PADDING, True)
    except (AttributeError, TypeError):  # it has neither a __dict__ nor a slot of that name
        return item
    return other  # type: ignore[no-any-return]
