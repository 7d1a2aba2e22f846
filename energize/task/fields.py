"""The fields of sample types: whether values are what they declare, and which parts of raw samples
they are read from.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy as np

from energize.core.samples import METADATA, CrudeSample, required_fields, type_fields
from energize.errors import ConfigError, DataError, nearest

_PLAIN = (type(None), bool, int, float, str, bytes, list, tuple, dict, set, frozenset)
"""What JSON and text become. All else is made by decoders, which say themselves what they make."""

_LOOKED_AT = 3
"""Elements of a list that are compared with what it declares."""


@lru_cache(maxsize=256)
def declared_types(kind: type[Any]) -> dict[str, Any]:
    """Return the types of the fields of a dataclass; Any for names that only type checkers know."""
    unknown: dict[str, Any] = {}
    while True:
        try:
            return typing.get_type_hints(kind, localns=unknown)
        except NameError as error:
            unknown[str(error.name)] = Any
        except (TypeError, AttributeError, SyntaxError):
            return {}


def contradiction(kind: Any, values: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the first field of `kind` whose value contradicts it, with what is wrong, or None.

    >>> from energize import TextSample
    >>> contradiction(TextSample, {"text": ["a"]})
    ('text', "is declared as str, and its value is list ['a']")
    """
    declared = declared_types(kind)
    for name, value in values.items():
        wanted = declared.get(name, Any)
        if type(value) is not wanted and not fits(value, wanted):
            asked = None if typing.get_origin(wanted) else getattr(wanted, "__name__", None)
            told = f"is declared as {asked or wanted}, and its value is "
            return name, told + value_text(value)
    return None


def fits(value: Any, declared: Any) -> bool:
    """Return whether `value` may stand where `declared` is: False only where it certainly may not.

    What decoders make (tensors, arrays, images, videos) may stand for each other, as a decoder
    chooses between them, and never for text, numbers or lists of these. Whole numbers may stand for
    float. Of a list the first elements are looked at.

    >>> fits("yes", list[str]), fits(["yes"], list[str]), fits(3, float), fits(None, int | None)
    (False, True, True, True)
    """
    origin, arguments = typing.get_origin(declared), typing.get_args(declared)
    if origin is typing.Literal:
        return value in arguments
    if origin is typing.Annotated:
        return fits(value, arguments[0])
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, each) for each in arguments)
    kind = origin or declared
    unknown = kind is Any or not isinstance(kind, type)  # a type variable, a name
    return unknown or (_is_a(value, kind) and _holds(value, kind, arguments))


def _holds(value: Any, kind: type[Any], arguments: tuple[Any, ...]) -> bool:
    """Whether what is in a value of the type `kind[arguments]` fits, as far as it is looked at."""
    if isinstance(value, str | bytes):  # sequences too, and never what a sequence of anything means
        return not arguments
    inside: Iterable[tuple[Any, Any]] = ()
    if kind is tuple and arguments and arguments[1:] != (Ellipsis,):
        if len(value) != len(arguments):
            return False
        inside = zip(value, arguments, strict=True)
    elif isinstance(value, dict):
        items = islice(value.items(), _LOOKED_AT)
        inside = (pair for item in items for pair in zip(item, arguments, strict=False))
    elif isinstance(value, list | tuple) and arguments:
        inside = ((each, arguments[0]) for each in value[:_LOOKED_AT])
    return all(fits(each, declared) for each, declared in inside)


def _is_a(value: Any, kind: type[Any]) -> bool:
    """`isinstance`, with numbers of numpy as numbers, and what decoders make for one another."""
    if kind in (int, float):
        whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        return whole or (kind is float and isinstance(value, float | np.floating))
    try:
        if isinstance(value, kind):
            return True
    except TypeError:  # a protocol that cannot be asked
        return True
    plain = issubclass(kind, _PLAIN) or kind.__module__ in ("collections.abc", "typing")
    return not plain and not isinstance(value, _PLAIN)


def value_text(value: Any) -> str:
    """Return what a value is, in short: its type and how it begins.

    >>> value_text(["a", "b"])
    "list ['a', 'b']"
    """
    if hasattr(value, "shape"):
        return f"{type(value).__name__} of shape {tuple(value.shape)}"
    text = repr(value) if isinstance(value, _PLAIN) else ""
    return f"{type(value).__name__} {text if len(text) <= 60 else f'{text[:57]}...'}".rstrip()


# Field maps: which part of a raw sample each field of a sample type is read from.

_ACCESS = re.compile(r"\s*(?P<part>[^\[\],\s]+(?:\s+[^\[\],\s]+)*)(?P<keys>(?:\[[^\[\]]+\])*)\s*")
_KEY = re.compile(r"\[([^\[\]]+)\]")
_NUMBER = re.compile(r"([0-9]+)")

_IMAGE = ("jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff", "ppm")
_USUAL_PARTS = {
    "image": _IMAGE,
    "text": ("txt", "text"),
    "caption": ("txt", "text"),
    "label": ("cls", "cls2"),
    "context": ("json[question]",),
    "video": ("mp4", "webm", "mkv", "mov", "avi"),
}


@dataclass(frozen=True, slots=True)
class PartAccess:
    """A part of a raw sample, and the keys that lead to a value in it when it is JSON.

    With `*` (any text) or `?` (any character) in `part` it is all parts of that pattern.
    """

    part: str
    keys: tuple[str, ...] = ()

    @property
    def several(self) -> bool:
        """Whether it means a list, of all parts that match."""
        return "*" in self.part or "?" in self.part

    @property
    def is_whole(self) -> bool:
        """Whether it means one part as a whole, as decoded."""
        return not (self.keys or self.several or self.part.startswith("__"))

    def among(self, parts: Iterable[str]) -> list[str]:
        """Which of the names `parts` are meant; several in the order of the numbers in them.

        >>> PartAccess("*.jpg").among(["json", "10.jpg", "9.jpg", "jpg"])
        ['9.jpg', '10.jpg']
        """
        if not self.several:
            return [self.part] if self.part in parts else []
        named = (name for name in parts if not name.startswith("__"))
        return sorted((name for name in named if fnmatchcase(name, self.part)), key=_by_number)

    def within(self, value: Any) -> Any:
        """What the keys lead to in `value`, the content of the part; `DataError` when nothing."""
        for depth, key in enumerate(self.keys):
            try:
                value = value[int(key)] if isinstance(value, list) else value[key]
            except (LookupError, TypeError, ValueError):
                reached = PartAccess(self.part, self.keys[:depth])
                raise DataError(f"{self} leads nowhere: {reached} is {_shape(value)}") from None
        return value

    def __str__(self) -> str:
        return self.part + "".join(f"[{key}]" for key in self.keys)


def parse_field(text: str) -> tuple[PartAccess, ...]:
    """The parts that a description names, most preferred first; `ConfigError` when it is malformed.

    >>> [str(each) for each in parse_field("jpg, meta.json[urls][0], *.png")]
    ['jpg', 'meta.json[urls][0]', '*.png']
    """
    options: list[PartAccess] = []
    position = 0
    while position <= len(text):
        match = _ACCESS.match(text, position)
        if match is None or text[match.end() : match.end() + 1] not in ("", ","):
            raise ConfigError(
                f"{text!r} does not say which part a field is read from: expected parts such as "
                "'jpg,png', with keys in brackets for JSON, 'json[caption][en]'"
            )
        options.append(PartAccess(match["part"], tuple(_KEY.findall(match["keys"]))))
        position = match.end() + 1
    return tuple(options)


def check_fields(sample_type: type, names: Iterable[str], said: str) -> None:
    """Raise `ConfigError` unless these are fields of `sample_type`, all that are needed; beside
    them there may be metadata. It begins with `said`, who said which fields there are.
    """
    known = [name for name in type_fields(sample_type) if name not in METADATA]
    given = [name for name in names if name not in METADATA]
    for name in given:
        if name not in known:
            raise ConfigError(
                f"{said} the field {name!r}, which {sample_type.__name__} does not have; it has "
                f"{', '.join(known) or 'none'}{nearest(name, known)}"
            )
    required = required_fields(sample_type)
    missing = [name for name in known if name in required and name not in given]
    if missing:
        raise ConfigError(f"{said} no {', '.join(missing)}, which {sample_type.__name__} needs")


def check_field_map(sample_type: type, field_map: Mapping[str, str]) -> None:
    """Raise `ConfigError` unless the map is for fields of `sample_type`, all that are needed, and
    its descriptions can be parsed.
    """
    if issubclass(sample_type, CrudeSample):
        raise ConfigError(f"{sample_type.__name__} has no fields, so it takes no field_map")
    metadata = METADATA.intersection(field_map)
    if metadata:
        raise ConfigError(f"field_map names {', '.join(sorted(metadata))}, which is not of a part")
    check_fields(sample_type, field_map, "field_map names")
    for text in field_map.values():
        parse_field(text)


def default_field_map(sample_type: type) -> dict[str, str]:
    """The field map of a dataset that has none: for each field, the parts it usually comes from.

    After these come the field's name as a key of a `json` part, and as a part.
    """
    return {
        name: ",".join((*_USUAL_PARTS.get(name, ()), f"json[{name}]", name))
        for name in type_fields(sample_type)
        if name not in METADATA
    }


def _by_number(name: str) -> tuple[list[tuple[int, str]], str]:
    """A key that sorts numbers in names as numbers, of any length: page2 before page10."""
    pieces = _NUMBER.split(name)
    digits = (each.lstrip("0") if i % 2 else each for i, each in enumerate(pieces))
    return [(len(each) if i % 2 else 0, each) for i, each in enumerate(digits)], name


def _shape(value: Any) -> str:
    if isinstance(value, dict):
        return "an object with the keys " + (", ".join(map(repr, list(value)[:20])) or "(none)")
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return f"a {type(value).__name__}"
