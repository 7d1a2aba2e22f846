"""Parts of samples and the access of fields, from columns."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from energize.core.lazy import optional_module
from energize.core.records import type_fields
from energize.data.loose import Media, part_name
from energize.data.media import BY_EXTENSION, EXTENSIONS, MediaMetadataType
from energize.errors import ConfigError, nearest, some
from energize.inference.candidates import Reading
from energize.inference.columns import AV, ColumnProfile
from energize.task.field_maps import PartAccess, parse_call, parse_field
from energize.task.types import may_be_none

_FILE_COLUMN = re.compile(r"(?:(.*?)_)?file_names?")


def parts_of(reading: Reading, kind: type[Any]) -> tuple[Media, dict[str, str]]:
    """Return the prefix of the parts of each media column, and the access of each
    column.
    """
    columns = {
        name: column for name, column in reading.columns.items() if column.is_media
    }
    if any(column.form.startswith(AV) for column in columns.values()):
        optional_module("av", "energize[av]", "reading videos and sounds")
    media: dict[str, tuple[str, bool]] = {}
    access = _accesses(reading)
    is_conversation = "images" in _fields(kind)
    is_several = len(columns) > 1 or any(map(_is_list, columns.values()))
    for name, column in columns.items():
        is_numbered = is_conversation or _is_list(column)
        part = _part_prefix(name, several=is_several, listed=is_numbered)
        if is_conversation:
            part = "videos" if column.form.startswith(AV) else "images"
        prefix = f"{part}." if part else ""
        media[name] = prefix, is_numbered
        access[name] = f"{prefix}*" if is_numbered else _by_extension(column, prefix)
        if column.nullable and may_be_none(kind, "image"):
            access[name] += f",json[{name}]"
    if is_conversation:  # in rows that come later too
        for name in ("image", "images", "video", "videos"):
            media.setdefault(name, (f"{name[:5]}s.", True))
    return media, access


def _is_list(column: ColumnProfile) -> bool:
    """Return whether a column has lists of media."""
    return column.form.endswith("s")


def _by_extension(column: ColumnProfile, prefix: str) -> str:
    """Return the access of a single medium, by all extensions of its kind."""
    is_av = column.form.startswith(AV)
    kind = MediaMetadataType.AV if is_av else MediaMetadataType.IMAGE
    return ",".join(f"{prefix}{extension}" for extension in EXTENSIONS[kind])


def _accesses(reading: Reading) -> dict[str, str]:
    """Return the access of columns other than media."""
    access = {name: f"json[{name}]" for name in reading.columns if "[" not in name}
    for name, column in reading.columns.items():
        if column.form == "bytes" and "[*]" not in name:
            access[name] = f"{part_name(name)}.bin"
    return {**access, **reading.parts}


def _fields(kind: type[Any]) -> tuple[str, ...]:
    return type_fields(kind) if hasattr(kind, "__dataclass_fields__") else ()


def _part_prefix(column: str, *, several: bool, listed: bool) -> str:
    """Return the name of the parts of a column, before their extension."""
    if not several:
        return ""
    named = _FILE_COLUMN.fullmatch(column)
    if named:
        return named[1] or ("images" if listed else "")
    keys = [key for key in re.split(r"[\[\]]+", column) if key not in ("", "*")]
    return keys[-1]


def translated(
    owner: object, text: str, access: Mapping[str, str], reading: Reading
) -> str:
    """Return the description of a field with columns replaced by their parts.

    Raises:
        ConfigError: If it names neither a column nor a part.
    """
    call = parse_call(text)
    if call is not None:
        arguments = tuple(
            (label, parse_field(_read_from(owner, access_of_field, access, reading))[0])
            for label, access_of_field in call.arguments
        )
        return str(replace(call, arguments=arguments))
    return ",".join(
        _read_from(owner, access_of_field, access, reading)
        for access_of_field in parse_field(text)
    )


def _read_from(
    owner: object, field: PartAccess, access: Mapping[str, str], reading: Reading
) -> str:
    whole = str(field)
    if whole in access:
        return access[whole]
    keys = "".join(f"[{key}]" for key in field.keys)
    if field.part in access:
        return f"{access[field.part]}{keys}"
    parts = [*reading.parts.values(), "json", *BY_EXTENSION]
    if not field.among(parts):
        raise ConfigError(
            f"{owner} has no column {field.part!r}"
            f"{nearest(field.part, list(access)) or '.'} "
            f"Its columns are {some(reading.columns)}"
        )
    return whole
