"""The decorator of sample and batch types: a dataclass with slots and named fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(kw_only_default=True)
def edataclass(cls: type[T]) -> type[T]:
    """`@dataclass(slots=True, kw_only=True)`, as every sample type is made.

    With named fields a subclass may add some without a default after those that have one, and with
    slots a field that is written wrong is an error. For other options use `dataclass` itself.

    >>> from energize import Sample
    >>> @edataclass
    ... class Tokens(Sample):
    ...     ids: list[int]
    >>> Tokens(__key__="a", __restore_key__=(), ids=[1, 2]).ids
    [1, 2]
    """
    return dataclass(slots=True, kw_only=True)(cls)
