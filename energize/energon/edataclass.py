"""The decorator of Megatron-Energon's sample types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(kw_only_default=True)
def edataclass(cls: type[T]) -> type[T]:
    """Make a class a dataclass with slots and keyword-only fields.

    It is `@dataclass(slots=True, kw_only=True)`, as all sample types are made. A
    subclass may add fields without a default after fields that have one, and assigning
    to a misspelled field is an error. For other options use `dataclass` itself.

    Args:
        cls: The class with annotated fields.

    Returns:
        The dataclass.

    Example:
        >>> from energize import Sample
        >>> @edataclass
        ... class Tokens(Sample):
        ...     ids: list[int]
        >>> Tokens(__key__="a", __restore_key__=(), ids=[1, 2]).ids
        [1, 2]
    """
    return dataclass(slots=True, kw_only=True)(cls)
