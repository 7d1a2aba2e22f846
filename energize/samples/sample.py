"""What all samples have in common."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Self

from energize.errors import ConfigError
from energize.padding import Markable
from energize.samples.pinning import pin_memory
from energize.samples.source_info import SourceInfo
from energize.samples.structure import type_fields

RestoreKey = tuple[Any, ...]
"""Strings, integers and tuples of them: what finds a sample again in its dataset."""


@dataclass(kw_only=True, slots=True)
class Sample(Markable):
    """Base of all sample types: a dataclass whose fields are what the task needs.

    `__key__` names the sample in its dataset. `__subflavors__` are labels that the dataset gives to
    all its samples. `__sources__` says which files it was read from. All three, and
    `__restore_key__`, are passed on by `derive_from`.

    >>> @dataclass
    ... class Tokens(Sample):
    ...     ids: list[int]
    >>> text = Sample(__key__="000", __subflavors__={"lang": "en"})
    >>> tokens = Tokens.derive_from(text, ids=[1, 2])
    >>> tokens.__key__, tokens.__subflavors__, tokens.ids
    ('000', {'lang': 'en'}, [1, 2])
    """

    __key__: str
    __restore_key__: RestoreKey = ()
    __subflavors__: dict[str, Any] | None = None
    __sources__: tuple[SourceInfo, ...] | None = None

    @classmethod
    def derive_from(cls, base_sample: Sample, **values: Any) -> Self:
        """A sample of this type with the metadata of `base_sample` and `values` as its fields."""
        kept = {name: getattr(base_sample, name) for name in METADATA}
        return cls(**kept | values)

    @classmethod
    def extend(cls, src: Sample, **values: Any) -> Self:
        """A sample of this type with all fields of `src`, and `values` added or put in their place.

        Raises `ConfigError` when this type is not that of `src` or a subclass of it.
        """
        if not issubclass(cls, type(src)):
            raise ConfigError(
                f"{cls.__name__}.extend takes a sample of a type that {cls.__name__} extends, got "
                f"a {type(src).__name__}; to keep only its metadata use derive_from"
            )
        kept = {name: getattr(src, name) for name in type_fields(type(src))}
        return cls(**kept | values)

    def pin_memory(self) -> Self:
        """A copy with all tensors in page-locked memory; the sample itself without a GPU."""
        return pin_memory(self)


METADATA = frozenset(field.name for field in fields(Sample))
"""The fields that say what a sample is and where it comes from."""
