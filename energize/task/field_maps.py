"""Field maps: the parts that the fields of a sample type are read from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, cast

from energize.core.records import declared_fields, type_fields
from energize.core.samples import (
    METADATA,
    CrudeSample,
    Sample,
)
from energize.core.validation import load_json
from energize.data.media import (
    EXTENSIONS,
    MediaMetadataType,
)
from energize.errors import (
    ConfigError,
    DataError,
    DecodeError,
    nearest,
)
from energize.task.shapes import SHAPES

# Field maps: which part of a raw sample each field of a sample type is read from.

ANY_ELEMENT = "*"
"""The key of every element of a list."""

_CALL = re.compile(r"\s*(?P<name>[a-z_]+)\((?P<arguments>.*)\)\s*", re.S)
_LABEL = re.compile(r"\s*(?:([a-z_]+)=)?(.*)", re.S)
_TEXT = re.compile(r"\s*'([^']*)'\s*")
_ACCESS = re.compile(
    r"\s*(?P<part>[^\[\],\s]+(?:\s+[^\[\],\s]+)*)(?P<keys>(?:\[[^\[\]]+\])*)\s*"
)
_KEY = re.compile(r"\[([^\[\]]+)\]")
_NUMBER = re.compile(r"([0-9]+)")

_USUAL_PARTS = {
    "image": EXTENSIONS[MediaMetadataType.IMAGE],
    "text": ("txt", "text"),
    "caption": ("txt", "text", "json[text]"),
    "label": ("cls", "cls2"),
    "context": ("json[question]",),
    "video": EXTENSIONS[MediaMetadataType.AV],
    "turns": ("json[conversations]", "json[messages]"),
    "images": ("images.*", *EXTENSIONS[MediaMetadataType.IMAGE]),
    "videos": ("videos.*", *EXTENSIONS[MediaMetadataType.AV]),
}


@dataclass(frozen=True, slots=True)
class PartAccess:
    """A part of a raw sample, and the keys of a value in it if it is JSON.

    `*` (any text) or `?` (any character) in `part` match several parts. The key `*`
    stands for every element of a list: the further keys apply to each element.
    """

    part: str
    keys: tuple[str, ...] = ()

    @property
    def several(self) -> bool:
        """Whether the result is the list of all parts that match."""
        return "*" in self.part or "?" in self.part

    @property
    def is_whole(self) -> bool:
        """Whether the result is one whole part, decoded."""
        return not (self.keys or self.several or self.part.startswith("__"))

    def among(self, parts: Iterable[str]) -> list[str]:
        """Return the matching names, ordered by the numbers in them.

        A part in capital letters matches its name in small letters, as in webdataset.

        Args:
            parts: Names of the parts of a sample.

        Example:
            >>> PartAccess("*.jpg").among(["json", "10.jpg", "9.jpg", "jpg"])
            ['9.jpg', '10.jpg']
        """
        if not self.several and self.part in parts:
            return [self.part]
        pattern = self.part.lower()
        named = (name for name in parts if not name.startswith("__"))
        matches = (name for name in named if fnmatchcase(name.lower(), pattern))
        return sorted(matches, key=_by_number)[: None if self.several else 1]

    def within(self, value: Any) -> Any:
        """Return the value at the keys; raise `DataError` if there is none."""
        for depth, key in enumerate(self.keys):
            if isinstance(value, str):
                with suppress(ValueError, DecodeError):
                    value = load_json(value)
            if key == ANY_ELEMENT and value is None:
                return None
            if key == ANY_ELEMENT and isinstance(value, list):
                rest = PartAccess(self.part, self.keys[depth + 1 :])
                return [rest.within(element) for element in value]
            try:
                value = value[int(key)] if isinstance(value, list) else value[key]
            except (LookupError, TypeError, ValueError):
                reached = PartAccess(self.part, self.keys[:depth])
                raise DataError(
                    f"{self} has no value: {reached} is {_shape(value)}"
                ) from None
        return value

    def __str__(self) -> str:
        return self.part + "".join(f"[{key}]" for key in self.keys)


@dataclass(frozen=True, slots=True)
class FieldCall:
    """A call of a function of `energize.task.shapes`: labels, and parts or texts."""

    name: str
    arguments: tuple[tuple[str, PartAccess], ...]
    texts: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        labelled = [
            f"{label}={access}" if label else f"{access}"
            for label, access in self.arguments
        ]
        labelled += [f"{label}='{text}'" for label, text in self.texts]
        return f"{self.name}({', '.join(labelled)})"


def parse_call(text: str) -> FieldCall | None:
    """Return the function call of a description, or None if it names parts.

    Example:
        >>> print(parse_call("placed(json[turns],user_tag='customer')"))
        placed(json[turns], user_tag='customer')
    """
    match = _CALL.fullmatch(text)
    if match is None:
        return None
    if match["name"] not in SHAPES:
        raise ConfigError(
            f"{text!r} calls {match['name']!r}, which is not one of {', '.join(SHAPES)}"
            f"{nearest(match['name'], list(SHAPES))}"
        )
    arguments = []
    texts = []
    for argument in match["arguments"].split(","):
        label, access = cast("re.Match[str]", _LABEL.fullmatch(argument)).groups()
        text_match = _TEXT.fullmatch(access)
        if text_match is not None:
            texts.append((label or "", text_match[1]))
        else:
            arguments.append((label or "", parse_field(access)[0]))
    return FieldCall(match["name"], tuple(arguments), tuple(texts))


@lru_cache(256)
def parse_field(text: str) -> tuple[PartAccess, ...]:
    """Return the parts of a description, preferred first; all arguments of a call.

    Raises:
        ConfigError: For a malformed description.

    Example:
        >>> [str(access) for access in parse_field("jpg, meta.json[urls][0], *.png")]
        ['jpg', 'meta.json[urls][0]', '*.png']
    """
    call = parse_call(text)
    if call is not None:
        return tuple(access for _, access in call.arguments)
    options: list[PartAccess] = []
    position = 0
    while position <= len(text):
        match = _ACCESS.match(text, position)
        if match is None or text[match.end() : match.end() + 1] not in ("", ","):
            raise ConfigError(
                f"{text!r} has no part to read the field from: expected parts like "
                "'jpg,png', with keys in brackets for JSON, "
                "'json[caption][en]'"
            )
        options.append(PartAccess(match["part"], tuple(_KEY.findall(match["keys"]))))
        position = match.end() + 1
    return tuple(options)


def check_fields(sample_type: type, names: Iterable[str], prefix: str) -> None:
    """Raise `ConfigError` unless names are the fields of a type.

    Args:
        sample_type: The type; all its required fields must be among the names.
        names: The fields; names of metadata are ignored.
        prefix: Start of the message: the origin of the names.
    """
    fields, required = declared_fields(sample_type)
    declared = _without_metadata(fields)
    filled = _without_metadata(names)
    for name in filled:
        if name not in declared:
            raise ConfigError(
                f"{prefix} the field {name!r}, which {sample_type.__name__} does not "
                "have; it has "
                f"{', '.join(declared) or 'none'}{nearest(name, declared)}"
            )
    missing = [name for name in declared if name in required and name not in filled]
    if missing:
        raise ConfigError(
            f"{prefix} no {', '.join(missing)}, which {sample_type.__name__} needs"
        )


def _without_metadata(names: Iterable[str]) -> list[str]:
    return [name for name in names if name not in METADATA]


def check_sample_type(sample_type: Any) -> None:
    """Raise `ConfigError` unless the value is a sample type."""
    if not (
        isinstance(sample_type, type) and issubclass(sample_type, Sample | CrudeSample)
    ):
        raise ConfigError(
            "sample_type must be a dataclass that extends Sample, or CrudeSample, got "
            f"{sample_type!r}"
        )


def check_field_map(sample_type: type, field_map: Mapping[str, str]) -> None:
    """Raise `ConfigError` unless a field map fits a type and can be parsed."""
    if issubclass(sample_type, CrudeSample):
        raise ConfigError(
            f"{sample_type.__name__} has no fields, so it takes no field_map"
        )
    metadata = METADATA.intersection(field_map)
    if metadata:
        raise ConfigError(
            f"field_map names {', '.join(sorted(metadata))}, which are not read from a "
            "part"
        )
    check_fields(sample_type, field_map, "field_map names")
    for text in field_map.values():
        parse_field(text)


def default_field_map(sample_type: type) -> dict[str, str]:
    """Return the default field map of a type: the usual parts of each field.

    The last options are the field name as a key of a `json` part, and as a part.
    """
    return {
        name: ",".join((*_USUAL_PARTS.get(name, ()), f"json[{name}]", name))
        for name in type_fields(sample_type)
        if name not in METADATA
    }


def _by_number(name: str) -> tuple[list[tuple[int, str]], str]:
    """Return a key that sorts numbers in names by value: page2 before page10."""
    pieces = _NUMBER.split(name)
    digits = (piece.lstrip("0") if i % 2 else piece for i, piece in enumerate(pieces))
    return [(len(piece) if i % 2 else 0, piece) for i, piece in enumerate(digits)], name


def _shape(value: Any) -> str:
    if isinstance(value, dict):
        return "an object with the keys " + (
            ", ".join(map(repr, list(value)[:20])) or "(none)"
        )
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return f"a {type(value).__name__}"
