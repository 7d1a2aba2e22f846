"""Field maps: which part of a raw sample each field of a sample type is read from.

A description names parts in the order of preference, "jpg,png", each with keys into its JSON where
there are any, "json[caption][en]". A name with `*` or `?` stands for all parts that match it: the
field is their list, in the order of the numbers in their names, of "*.jpg" 0.jpg, 1.jpg, 10.jpg.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from energize.errors import ConfigError, DataError, nearest
from energize.samples.crude import CrudeSample
from energize.samples.sample import METADATA
from energize.samples.structure import required_fields, type_fields

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


def check_field_map(sample_type: type, field_map: Mapping[str, str]) -> None:
    """Raises `ConfigError` unless the map is for fields of `sample_type`, all that are needed, and
    its descriptions can be parsed.
    """
    if issubclass(sample_type, CrudeSample):
        raise ConfigError(f"{sample_type.__name__} has no fields, so it takes no field_map")
    known = [name for name in type_fields(sample_type) if name not in METADATA]
    for name, text in field_map.items():
        if name not in known:
            raise ConfigError(
                f"field_map names the field {name!r}, which {sample_type.__name__} does not have; "
                f"it has {', '.join(known) or 'none'}{nearest(name, known)}"
            )
        parse_field(text)
    required = required_fields(sample_type)
    missing = [name for name in known if name in required and name not in field_map]
    if missing:
        raise ConfigError(
            f"field_map does not say where {', '.join(missing)} of {sample_type.__name__} come from"
        )


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
