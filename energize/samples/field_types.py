"""Whether values are what the fields of a sample type declare."""

from __future__ import annotations

import collections.abc
import types
import typing
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

_PLAIN = (type(None), bool, int, float, str, bytes, list, tuple, dict, set, frozenset)
"""What JSON and text become. All else is made by decoders, which say themselves what they make."""

_LOOKED_AT = 3
"""Elements of a list that are compared with what it declares."""


@lru_cache(maxsize=256)
def declared_types(kind: type[Any]) -> dict[str, Any]:
    """The types of the fields of a dataclass; nothing where they name what cannot be found."""
    try:
        return typing.get_type_hints(kind)
    except (NameError, TypeError, AttributeError, SyntaxError):
        return {}


def contradiction(kind: Any, values: Mapping[str, Any]) -> tuple[str, str] | None:
    """The first field of `kind` whose value contradicts it, with what is wrong; None for none.

    >>> from energize import TextSample
    >>> contradiction(TextSample, {"text": ["a"]})
    ('text', "is declared as str, and its value is list ['a']")
    """
    declared = declared_types(kind)
    for name, value in values.items():
        if name in declared and not fits(value, declared[name]):
            wrong = f"is declared as {declared_text(declared[name])}, and its value is "
            return name, wrong + value_text(value)
    return None


def fits(value: Any, declared: Any) -> bool:
    """Whether `value` may stand where `declared` is: False only where it certainly may not.

    What decoders make (tensors, arrays, images, videos) may stand for each other, as a decoder
    chooses between them, and never for text, numbers or lists of these. Whole numbers may stand for
    float. Of a list the first elements are looked at.

    >>> fits("yes", list[str]), fits(["yes"], list[str]), fits(3, float), fits(None, int | None)
    (False, True, True, True)
    """
    if declared in (Any, object) or isinstance(declared, TypeVar | str | typing.ForwardRef):
        return True
    origin, arguments = typing.get_origin(declared), typing.get_args(declared)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, each) for each in arguments)
    if origin is typing.Literal:
        return value in arguments
    if origin is typing.Annotated:
        return fits(value, arguments[0])
    kind = origin or declared
    if not isinstance(kind, type):
        return True
    return _fits_generic(value, kind, arguments) if origin else _is_a(value, kind)


def _fits_generic(value: Any, origin: type[Any], arguments: tuple[Any, ...]) -> bool:
    """Whether a value fits `origin[arguments]`: a list, a tuple, a dict and their likes."""
    if not _is_a(value, origin):
        return False
    if isinstance(value, str | bytes):
        # These are sequences too, and never what a sequence of anything means.
        return not arguments
    if isinstance(value, tuple) and origin is tuple:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            arguments = arguments[:1]
        elif arguments:
            pairs = zip(value, arguments, strict=False)
            return len(value) == len(arguments) and all(fits(each, kind) for each, kind in pairs)
    if isinstance(value, list | tuple) and len(arguments) == 1:
        return all(fits(each, arguments[0]) for each in value[:_LOOKED_AT])
    if isinstance(value, dict) and len(arguments) == 2:
        items = [item for item, _ in zip(value.items(), range(_LOOKED_AT), strict=False)]
        return all(fits(k, arguments[0]) and fits(v, arguments[1]) for k, v in items)
    return True


def _is_a(value: Any, kind: type[Any]) -> bool:
    """`isinstance`, with numbers of numpy as numbers, and what decoders make for one another."""
    if kind is float and isinstance(value, int | np.integer | np.floating):
        return not isinstance(value, bool)
    if kind is int and isinstance(value, np.integer):
        return True
    if kind is int and isinstance(value, bool):
        return False
    try:
        if isinstance(value, kind):
            return True
    except TypeError:  # a protocol that cannot be asked
        return True
    plain = issubclass(kind, _PLAIN) or kind.__module__ in ("collections.abc", "typing")
    return not plain and not isinstance(value, _PLAIN)


def declared_text(declared: Any) -> str:
    """A declared type as it is written.

    >>> declared_text(list[str] | None)
    'list[str] | None'
    """
    plain = isinstance(declared, type) and typing.get_origin(declared) is None
    return declared.__name__ if plain else str(declared)


def value_text(value: Any) -> str:
    """What a value is, in short: its type and how it begins.

    >>> value_text(["a", "b"])
    "list ['a', 'b']"
    """
    shape = getattr(value, "shape", None)
    if shape is not None:
        return f"{type(value).__name__} of shape {tuple(shape)}"
    if isinstance(value, collections.abc.Sized | int | float | type(None)):
        text = repr(value)
        return f"{type(value).__name__} {text if len(text) <= 60 else f'{text[:57]}...'}"
    return type(value).__name__
