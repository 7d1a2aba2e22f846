"""Records, and how they are shown.

A record is a dataclass instance, a named tuple or a dict: fields by name.
"""

from __future__ import annotations

import copy
import dataclasses
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import lru_cache
from itertools import chain
from typing import Any, TypeVar, cast

import numpy as np

from energize.errors import (
    ConfigError,
)

T = TypeVar("T")

STORED_KEY = "__stored_key__"
"""Where a delivered item has the `__restore_key__` that it was made with."""

MAKE_ALIKE = "Make them alike in encode_sample, or join them in your own function"


def is_record(value: object) -> bool:
    """Return whether `value` has fields by name: a dataclass instance, a named tuple or
    a dict.
    """
    return not isinstance(value, type) and is_record_type(cast("Any", type(value)))


@lru_cache(maxsize=256)
def is_record_type(cls: type[Any]) -> bool:
    """Return whether the instances of `kind` are records."""
    named_tuple = issubclass(cls, tuple) and hasattr(cls, "_fields")
    return issubclass(cls, dict) or named_tuple or dataclasses.is_dataclass(cls)


def fields_of(record: Any) -> dict[str, Any]:
    """Return the fields of a record in their order; of a dict, a shallow copy."""
    if isinstance(record, dict):
        return dict(record)
    if isinstance(record, tuple):
        names = record._fields  # type: ignore[attr-defined]
        return dict(zip(names, record, strict=True))
    return {field.name: getattr(record, field.name) for field in fields(type(record))}


def rebuilt(like: T, values: Mapping[str, Any], *, marks: bool = False) -> T:
    """Return a record of the type of another one, with new values.

    `__init__` and `__post_init__` do not run again: checks for one sample need not hold
    for a batch.

    Args:
        like: The other record.
        values: The values of all fields.
        marks: Copy the marks of a loader, too.
    """
    if isinstance(like, dict):
        copied = copy.copy(like)
        copied.update(values)
        return copied
    if isinstance(like, tuple):
        return cast("T", like._make(values.values()))  # type: ignore[attr-defined]
    record = copy.copy(like) if marks else object.__new__(type(like))
    for name, value in values.items():
        object.__setattr__(record, name, value)
    return record


def type_fields(cls: type[Any]) -> tuple[str, ...]:
    """Return the fields that a dataclass or a named tuple is made from, in their
    order.
    """
    return declared_fields(cast("Any", cls))[0]


def required_fields(cls: type[Any]) -> tuple[str, ...]:
    """Return the `type_fields` without a default."""
    return declared_fields(cast("Any", cls))[1]


@lru_cache(maxsize=256)
def declared_fields(cls: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the fields of a dataclass or named tuple, and those without a default."""
    if issubclass(cls, tuple):
        names = tuple(cls._fields)
        return names, tuple(name for name in names if name not in cls._field_defaults)
    declared = [field for field in fields(cls) if field.init]
    required = [field.name for field in declared if not _has_default(field)]
    return tuple(field.name for field in declared), tuple(required)


def _has_default(field: dataclasses.Field[Any]) -> bool:
    missing = dataclasses.MISSING
    return field.default is not missing or field.default_factory is not missing


def build(cls: type[T], values: Mapping[str, Any], origin: str) -> T:
    """Create a record of the values that its type has fields for; a dict gets all.

    Raises:
        ConfigError: If a required field is missing. The message has `origin`, the name
            of the values.
    """
    if issubclass(cls, dict):
        return cls(values)
    missing = [name for name in required_fields(cls) if name not in values]
    if missing:
        raise ConfigError(
            f"{cls.__name__} needs the fields {quoted_names(missing)}, but {origin} "
            f"has {quoted_names(values)}. Give them a default, or fill them "
            "in the hook before"
        )
    return cls(**{name: values[name] for name in type_fields(cls) if name in values})


def columns_of(
    rows: Sequence[dict[str, Any]], label: str, optional: Collection[str] = ()
) -> dict[str, list[Any]]:
    """Return for each name the values of all rows; None if an optional one is missing.

    Raises:
        ConfigError: If other names differ between rows. The message has `label`.
    """
    names = dict.fromkeys(chain.from_iterable(rows))
    if set(map(len, rows)) != {len(names)}:
        some = [name for name in names if not all(name in row for row in rows)]
        if odd := sorted(repr(name) for name in some if name not in optional):
            raise ConfigError(
                f"{label}: only some have the keys {', '.join(odd)}. {MAKE_ALIKE}"
            )
    return {name: [row.get(name) for row in rows] for name in names}


def map_leaves(value: Any, fn: Callable[[Any], Any]) -> Any:
    """Return a copy of `value` with `fn` of all, at any depth, that is no record, list
    or tuple.
    """
    if is_record(value):
        mapped = {name: map_leaves(part, fn) for name, part in fields_of(value).items()}
        return rebuilt(value, mapped, marks=True)
    if isinstance(value, list | tuple):
        return type(value)(map_leaves(part, fn) for part in value)
    return fn(value)


def quoted_names(names: Iterable[str]) -> str:
    """Return names in quotes with commas, or "none"."""
    return ", ".join(map(repr, names)) or "none"


_MOST_ITEMS = 25
_MOST_CHARACTERS = 1000
_MOST_OTHER = 200
_ENDS = 3
"""How many values of a tensor are shown from its start, and from its end."""


def format_sample_detailed(sample: Any, indent: str = "") -> str:
    """Format a sample in the syntax of Python, on several lines.

    Tensors and arrays are shown by shape, type, range and first values. Long values are
    shortened.

    Args:
        sample: Any item.
        indent: Prefix of each line.

    Example:
        >>> print(
        ...     format_sample_detailed(
        ...         {"label": 5, "ids": np.array([30, 40]), "of": ["a"]}
        ...     )
        ... )
        {
            'label': 5,
            'ids': np.ndarray(shape=(2,), dtype=int64, min=30, max=40, values=[30, 40]),
            'of': ['a']
        }
    """
    shown = map_leaves(sample, lambda leaf: _leaf(leaf, _MOST_OTHER, values=True))
    from rich.pretty import pretty_repr

    text = pretty_repr(shown, max_length=_MOST_ITEMS, max_string=_MOST_CHARACTERS)
    return "\n".join(indent + line for line in text.split("\n"))


def format_sample_compact(
    sample: Any, depth: int = 3, max_items: int = 10, max_str_len: int = 50
) -> str:
    """Return the sample in one line: `depth` levels, `max_items` of each, texts up to
    `max_str_len`.

    >>> format_sample_compact(
    ...     {"text": "a" * 9, "image": np.zeros((3, 2, 2))}, max_str_len=5
    ... )
    "{'text': 'aaaaa'+4, 'image': np.ndarray(shape=(3, 2, 2), dtype=float64)}"
    """
    from rich.pretty import pretty_repr

    return pretty_repr(
        map_leaves(sample, lambda leaf: _leaf(leaf, max_str_len, values=False)),
        max_width=sys.maxsize,
        max_depth=depth,
        max_length=max_items,
        max_string=max_str_len,
    )


class _Text:
    """Stands for a value that is shown as `text`."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _leaf(value: Any, most: int, *, values: bool) -> Any:
    """Return what is shown in place of a value: of arrays what they are, with `values`
    what is in them.
    """
    torch = sys.modules.get("torch")
    tensor = torch is not None and isinstance(value, torch.Tensor)
    if tensor or isinstance(value, np.ndarray):
        facts = [f"shape={value.shape}", f"dtype={value.dtype}"]
        facts += [f"device={value.device}"] if tensor else []
        facts += _values(value.flatten()) if values else []
        return _Text(f"{'Tensor' if tensor else 'np.ndarray'}({', '.join(facts)})")
    if isinstance(value, str | bytes | int | float | None):
        return value
    text = repr(value)
    return _Text(text if len(text) <= most else f"{text[:most]}...")


def _values(flat: Any) -> list[str]:
    """Range and first and last values, of whatever has them."""
    count = int(flat.shape[0])
    if not count:
        return ["values=[]"]
    try:
        span = [f"min={flat.min().item()}", f"max={flat.max().item()}"]
        ends = [
            part.tolist() for part in (flat[:_ENDS], flat[max(_ENDS, count - _ENDS) :])
        ]
    except (RuntimeError, TypeError, ValueError, AttributeError):
        return []  # complex numbers, texts, meta tensors: no order, or no values
    shown = [", ".join(map(repr, part)) for part in ends if part]
    return [
        *span,
        f"values=[{(', ' if count <= 2 * _ENDS else ', ..., ').join(shown)}]",
    ]


def sources_of(sample: Any) -> tuple[Any, ...] | None:
    """Return where a sample, or the samples of a list or batch, were read from.

    Args:
        sample: A sample, a batch, or a list or tuple of them.

    Returns:
        The `SourceInfo` of each stored sample; None if unknown.

    Example:
        >>> sources_of({"__key__": "a"}) is None
        True
    """
    if isinstance(sample, list | tuple):
        sources = [source for part in sample for source in sources_of(part) or ()]
        return tuple(sources) or None
    if isinstance(sample, dict):
        listed = sample.get("__sources__")
    else:
        listed = getattr(sample, "__sources__", None)
    if not isinstance(listed, tuple | list):
        return None
    return _flat_sources(listed) or None


def _flat_sources(entries: Iterable[Any]) -> tuple[Any, ...]:
    """Flatten sources: a batch has a tuple for each of its samples, or None."""
    sources: list[Any] = []
    for entry in entries:
        if isinstance(entry, tuple | list):
            sources.extend(entry)
        elif entry is not None:
            sources.append(entry)
    return tuple(sources)
