"""Records (dataclasses, named tuples, dicts) as fields by name, and back."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from energize.errors import ConfigError

T = TypeVar("T")


def is_record(value: object) -> bool:
    """Whether `value` has fields by name: a dataclass instance, a named tuple or a dict."""
    return not isinstance(value, type) and is_record_type(type(value))


def is_record_type(kind: type[Any]) -> bool:
    """Whether the instances of `kind` are records."""
    named_tuple = issubclass(kind, tuple) and hasattr(kind, "_fields")
    return issubclass(kind, dict) or named_tuple or dataclasses.is_dataclass(kind)


def fields_of(record: Any) -> dict[str, Any]:
    """The fields of a record in their order; for a dict, a shallow copy of it."""
    if isinstance(record, dict):
        return dict(record)
    if isinstance(record, tuple):
        return dict(zip(record._fields, record, strict=True))  # type: ignore[attr-defined]
    return {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}


def rebuilt(like: T, values: dict[str, Any]) -> T:
    """A record of the type of `like`, with `values` for all its fields.

    `__init__` and `__post_init__` do not run again: what they check of one sample need not hold for
    a batch.
    """
    if isinstance(like, dict):
        copied = copy.copy(like)
        copied.update(values)
        return copied
    if isinstance(like, tuple):
        return cast("T", like._make(values.values()))  # type: ignore[attr-defined]
    made = object.__new__(type(like))
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made


def type_fields(kind: type[Any]) -> tuple[str, ...]:
    """The fields that a dataclass or a named tuple is made from, in their order."""
    if issubclass(kind, tuple):
        return tuple(kind._fields)  # type: ignore[attr-defined]
    return tuple(field.name for field in dataclasses.fields(kind) if field.init)


def required_fields(kind: type[Any]) -> tuple[str, ...]:
    """Those of `type_fields` that have no default."""
    if issubclass(kind, tuple):
        defaults = kind._field_defaults  # type: ignore[attr-defined]
        return tuple(name for name in type_fields(kind) if name not in defaults)
    return tuple(
        field.name
        for field in dataclasses.fields(kind)
        if field.init
        and field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
    )


def build(kind: type[T], values: Mapping[str, Any], what: str) -> T:
    """A record of type `kind` from those of `values` that it has fields for; a dict takes all.

    Raises `ConfigError` naming `what` the values are and the fields that they lack.
    """
    if issubclass(kind, dict):
        return kind(values)
    missing = [name for name in required_fields(kind) if name not in values]
    if missing:
        raise ConfigError(
            f"{kind.__name__} needs the fields {_listed(missing)}, which {what} lacks; it has "
            f"{_listed(values)}. Give them a default, or fill them in the hook before"
        )
    return kind(**{name: values[name] for name in type_fields(kind) if name in values})


def map_leaves(value: Any, fn: Callable[[Any], Any]) -> Any:
    """`fn` of everything that is no record, list or tuple, at any depth, in a copy of `value`."""
    if is_record(value):
        fields = fields_of(value).items()
        return rebuilt(value, {name: map_leaves(each, fn) for name, each in fields})
    if isinstance(value, list | tuple):
        return type(value)(map_leaves(each, fn) for each in value)
    return fn(value)


def _listed(names: Any) -> str:
    return ", ".join(repr(name) for name in names) or "none"
