"""Samples of tables with columns of images, videos and sounds, or of their names.

`LooseSource` builds samples that equal those of the converted folder; `unfolded` and
`fill` normalise chats and file names.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import posixpath
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Self, cast

from energize.core.arrays import Int64Array
from energize.core.columns import Column
from energize.core.description import digest
from energize.core.failures import Failed
from energize.core.ignored import log_once
from energize.core.os_errors import is_url
from energize.core.os_errors import os_error_message as refusal
from energize.data.columns import column_command
from energize.data.eagle import without_eagle
from energize.data.files import absolute, exists, files_at, joined, path_of, read_file
from energize.data.local import Files, Ranges
from energize.data.loose_columns import loose_column, loose_column_names
from energize.data.media import (
    decode_media_value,
    extension_of,
    media_name,
)
from energize.data.nv_meta import ConvertedFrom
from energize.data.rows import FieldSource, Row
from energize.data.source import ShardedSource
from energize.data.stores import NO_REGULAR_FILE, NO_SUCH_FILE
from energize.data.tables import AT, KEY, plain, values_in
from energize.data.tar import split_name
from energize.errors import DataError

_UNNAMED = re.compile(r"[^\w/ +=@~,()-]")
"""Characters that keys may not contain: dots, which end a key, and invisible ones."""

Media = Mapping[str, tuple[str, bool]]
"""Media columns: prefix of part names, and whether parts are numbered.

`{"images": ("images.", True)}` makes `images.0.jpg`. A nested column is a path:
`image_info[*][image_url]`.
"""

_PIECES = ("image", "image_url", "video", "video_url")
_IN_TEXT = re.compile(r"<img>(.*?)</img>")
_NUMBERED = re.compile(r"<image[-_ ]?(\d+)>")
_TEXTS = ("content", "value")


def key_of(name: str) -> str:
    """Return the key of the sample of a file, valid in a tar.

    >>> key_of("cats/Tom v1.2.jpg")
    'cats/Tom v1_2'
    """
    key = _UNNAMED.sub("_", os.path.splitext(name)[0])
    return key if split_name(f"{key}.jpg") == (key, "jpg") else f"_{key}"


def part_name(column: str) -> str:
    """Return the part name of a column, without the extension.

    >>> part_name("meta[a.b]"), part_name("thumb")
    ('meta.a_b', 'thumb')
    """
    return ".".join(
        _UNNAMED.sub("_", key) for key in column.replace("]", "").split("[")
    )


def unfolded(row: Row) -> Row:
    """Return a row with the files named in its chats as `images` and `videos`.

    Chats name files in typed pieces, or in their text as `<img>a.jpg</img>`, which
    becomes `<image>`. Numbered placeholders such as `<image-2>` become `<image>`, and
    images follow their order. If the row names images itself, pieces are ignored.

    Args:
        row: The row.

    Returns:
        A new row.

    Example:
        >>> pieces = [
        ...     {"type": "image", "image": "a.jpg"},
        ...     {"type": "text", "text": "What?"},
        ... ]
        >>> unfolded({"messages": [{"role": "user", "content": pieces}]})["images"]
        ['a.jpg']
    """
    files: dict[str, list[Any]] = {}
    changed: dict[str, Any] = {}
    row = without_eagle(row)
    for name, turns in row.items():
        if not _are_turns(turns):
            continue
        for field, file in _files_of_pieces(turns):
            files.setdefault(field, []).extend([file] if file else [])
        if _names_images(turns):
            images = files.setdefault("images", [])
            listed = row.get("images") or row.get("image")
            changed[name] = [_renamed(turn, listed, images) for turn in turns]
            if isinstance(listed, list):
                changed["images" if row.get("images") else "image"] = images
    added = {
        field: named
        for field, named in files.items()
        if named and not (row.get(field) or row.get(field[:-1]))
    }
    return row | added | changed


def _names_images(turns: Iterable[dict[str, Any]]) -> bool:
    """Return whether texts of turns have `<img>` tags or numbered placeholders."""
    text = "".join(str(turn.get(key, "")) for turn in turns for key in _TEXTS)
    return "</img>" in text or _NUMBERED.search(text) is not None


def _are_turns(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(turn, dict) for turn in value)


def _prepend_system(row: dict[str, Any]) -> None:
    """Insert the column `system` as the first turn of each chat without such a turn."""
    system = row.get("system")
    if not isinstance(system, str) or not system:
        return
    for name in _CHATS & row.keys():
        chat = row[name]
        if isinstance(chat, list) and not _begins_with_system(chat):
            row[name] = [{"from": "system", "value": system}, *chat]


def _begins_with_system(chat: list[Any]) -> bool:
    first = chat[0] if chat and isinstance(chat[0], dict) else {}
    return "system" in (first.get("role"), first.get("from"))


def _files_of_pieces(turns: Iterable[dict[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield the field and the file of each typed piece, None without a file."""
    contents = (turn.get("content") for turn in turns)
    lists = (content for content in contents if isinstance(content, list))
    for piece in chain.from_iterable(lists):
        if isinstance(piece, dict) and piece.get("type") in _PIECES:
            piece_type = piece["type"]
            yield f"{piece_type[:5]}s", _file_of_piece(piece, piece_type)


def _file_of_piece(piece: dict[str, Any], piece_type: str) -> Any:
    """Return the file of a typed piece, None if it names none."""
    values = (piece.get(key) for key in (piece_type, "url", "path", "value"))
    file = next((value for value in values if value), None)
    return file.get("url") if isinstance(file, dict) and "url" in file else file


def _renamed(turn: dict[str, Any], listed: Any, images: list[Any]) -> dict[str, Any]:
    """Return a turn with `<image>` for every image; append files to `images`."""

    def replaced(match: re.Match[str]) -> str:
        images.append(match[1])
        return "<image>"

    def numbered(match: re.Match[str]) -> str:
        number = int(match[1])
        if not isinstance(listed, list) or not 0 < number <= len(listed):
            return match[0]
        images.append(listed[number - 1])
        return "<image>"

    texts = {key: turn[key] for key in _TEXTS if isinstance(turn.get(key), str)}
    return turn | {
        key: _NUMBERED.sub(numbered, _IN_TEXT.sub(replaced, text))
        for key, text in texts.items()
    }


_CHATS = frozenset({"conversations", "messages"})
"""Columns of chats, which the column `system` is inserted into."""

AS_TEXT = dict.fromkeys(("caption", "cap", "tags"), "txt")
"""Extensions of text files; their parts have another name."""


class LooseSource(ShardedSource[dict[str, Any]], FieldSource[dict[str, Any]]):
    """The raw samples of rows with media, as bytes or as names of files.

    A sample is a new dict, as from `WebdatasetSource`: `__key__`, `__dataset__`,
    `__shard__` (file of the row), `__index__` (number in that file), the media bytes by
    extension, and the remaining fields as `json`. The key is the `__key__` of the row,
    or else its number.

    Media files are read with the sample: a missing or unreadable one makes it a
    `Failed` with a `DataError`. The identity, which keys the order, depends on the name
    of `path`, the split, keys and counts, not on the mount point of `path`.

    Args:
        path: The dataset folder or file.
        rows: The rows.
        media: The media columns.
        base: Folder that contains the media files.
        split_part: Name of the split.
        labels: Class names by column of class numbers; `label` gets a `label_name`.
        media_paths: Templates of paths below `base`, tried in order; see `fill`.
    """

    order_name = "LooseSource"

    path: Path
    split_part: str
    rows: ShardedSource[Row]
    media: Media
    base: Path
    media_paths: tuple[str, ...]
    """Templates of paths below `base`, tried in order; see `fill`."""
    labels: Mapping[str, Sequence[str]]
    """Class names by column of class numbers; `label` gets a `label_name`."""
    opened: float
    """Time of opening, in seconds since 1970."""

    def __init__(
        self,
        path: Path,
        rows: ShardedSource[Row],
        media: Media,
        base: Path,
        split_part: str,
        labels: Mapping[str, Sequence[str]],
        media_paths: Sequence[str] = (),
    ) -> None:
        parameters = {
            "path": path,
            "rows": rows,
            "media": media,
            "base": base,
            "split_part": split_part,
        }
        parameters |= {
            "labels": labels,
            "media_paths": tuple(media_paths),
            "opened": time.time(),
        }
        more = {
            "counts": tuple(rows.counts),
            "window": None,
            "seed": 0,
            "occurrence": 0,
        }
        self.freeze(**cast("dict[str, Any]", parameters | more))

    @cached_property
    def shards(self) -> tuple[str, ...]:  # type: ignore[override]
        inside = f"{self.location}/"
        above = f"{os.path.dirname(self.location)}/"
        names = self.rows.shards
        return tuple(name.removeprefix(inside).removeprefix(above) for name in names)

    @cached_property
    def identity(self) -> str:
        whole = digest([self.name, self.split_part, self.rows.identity, self.counts])
        return whole if self.window is None else digest([whole, self.window])

    @property
    def origin(self) -> ConvertedFrom:
        """Record that keeps the identity of these samples after conversion."""
        return ConvertedFrom.of(self)

    def called(self, name: str) -> Self:
        return super().called(name).replace(rows=self.rows.called(name))

    @cached_property
    def name(self) -> str:
        return self.earlier_name or self.path.absolute().name

    @property
    def location(self) -> str:
        return str(self.path.absolute())

    @cached_property
    def _files(self) -> Files:
        return files_at(self.base)

    def expect(self, indices: Int64Array) -> int:
        return self.rows.expect(self._stored(indices))

    def sample_ranges(self, shard: int, numbers: Sequence[int]) -> Sequence[Ranges]:
        return self.rows.sample_ranges(shard, numbers)

    @property
    def column_names(self) -> tuple[str, ...]:
        names = (name for name in self.rows.column_names if name not in (KEY, AT))
        labels = (f"{name}_name" for name in self.labels)
        return tuple(dict.fromkeys([*names, *labels, *loose_column_names(self.path)]))

    def indexing_hint(self, name: str) -> str:
        return (
            f"Measure it with: {column_command(self.path, {name: 'HOW'})}, or write it "
            "into each row"
        )

    def compared(self) -> tuple[Any, ...]:
        return tuple(
            entry for entry in super().compared() if entry != ("opened", self.opened)
        )

    def _column(self, name: str) -> Column:
        whole = self._whole_column(name)
        return whole if self.window is None else whole.part(slice(*self.window))

    def _whole_column(self, name: str) -> Column:
        """Return a column without the window."""
        measured = loose_column(self.path, self, name)
        if measured is not None:
            return measured
        label = name.removesuffix("_name")
        if label != name and label in self.labels:
            values = self.rows.column_values(label)
            return Column.of((self._called(label, value) for value in values), name)
        return self.rows.column(name)

    def _key(self, shard: int, number: int) -> str | None:
        [row] = self.rows.read_shard(shard, [number])
        return None if isinstance(row, Failed) else self._key_of(shard, number, row)

    def _key_of(self, shard: int, number: int, row: Row) -> str:
        several = (
            f"{os.path.splitext(self.shards[shard])[0]}/"
            if len(self.shards) > 1
            else ""
        )
        return row.get(KEY) or key_of(f"{several}{number:06d}.json")

    def location_in_shard(self, shard: int, number: int) -> str:
        location = self.rows.location_in_shard(shard, number).removeprefix(
            f"{self.location}/"
        )
        location = (
            location
            if location.startswith(self.location)
            else f"{self.location}/{location}".rstrip("/")
        )
        return f"{location}, sample {self._key(shard, number)!r}"

    def read_shard(
        self, shard: int, numbers: list[int]
    ) -> list[dict[str, Any] | Failed]:
        rows = zip(numbers, self.rows.read_shard(shard, numbers), strict=True)
        return [self._sample(shard, number, row) for number, row in rows]

    def _sample(
        self, shard: int, number: int, row: Row | Failed
    ) -> dict[str, Any] | Failed:
        if isinstance(row, Failed):
            return row
        new: dict[str, Any] = {KEY: self._key_of(shard, number, row)}
        new |= {
            "__dataset__": str(self.path),
            "__shard__": self.shards[shard],
            "__index__": number,
        }
        try:
            return new | self._build_parts(row)
        except DataError as reason:
            # A missing file may exist at the next attempt.
            lasting = not isinstance(reason.__cause__, OSError)
            return Failed(
                reason, self.location_in_shard(shard, number), lasting=lasting
            )

    def _build_parts(self, row: Row) -> dict[str, bytes]:
        """Return the parts of a sample by name."""
        parts: dict[str, bytes] = {}
        rest: dict[str, Any] = {}
        row = unfolded(row)
        for name, value in row.items():
            held = self._without_bytes(value, name, part_name(name), parts)
            values = value if isinstance(value, list) else [value]
            if name in self.media and value and not any(map(media_name, values)):
                continue  # embedded bytes are in the parts only
            if name not in (KEY, AT) and not isinstance(value, bytes):
                rest[name] = held
        for name in self.media:
            self._add_files(parts, name, row)
        rest |= {
            f"{name}_name": self._called(name, row.get(name)) for name in self.labels
        }
        _prepend_system(rest)
        has_more = rest.keys() - self.media.keys() or None in rest.values()
        if has_more and "json" not in parts:
            parts["json"] = json.dumps(rest, default=plain).encode()
        return parts

    def _without_bytes(
        self, value: Any, column: str, part: str, parts: dict[str, bytes]
    ) -> Any:
        """Replace bytes in a value by None, and add non-media bytes to the parts.

        Parts are named by the path of keys to the bytes.
        """
        is_media = column in self.media
        if isinstance(value, dict):
            return {
                key: self._without_bytes(
                    item,
                    column if is_media else f"{column}[{key}]",
                    f"{part}.{part_name(key)}",
                    parts,
                )
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [
                self._without_bytes(
                    item, column if is_media else f"{column}[*]", f"{part}.{n}", parts
                )
                for n, item in enumerate(value)
            ]
        if not isinstance(value, bytes):
            return value
        if not is_media:
            parts[f"{part}.bin"] = value
        return None

    def _add_files(self, parts: dict[str, bytes], name: str, row: Row) -> None:
        """Add the files of a column to the parts of a sample."""
        prefix, counted = self.media[name]
        values = values_in(row, name)
        counted |= isinstance(row.get(name), list)
        names = [
            posixpath.normpath(media_file)
            for media_file in map(media_name, values)
            if media_file
        ]
        if len({*names}) < len(names):
            raise DataError(f"{name!r} has two files under one name: {names}"[:300])
        for value in values:
            number = sum(part.startswith(prefix) for part in parts)
            extension, data = self._file(name, value)
            parts[f"{prefix}{f'{number}.' if counted else ''}{extension}"] = data

    def _called(self, label: str, number: Any) -> str | None:
        names = self.labels[label]
        return (
            names[number]
            if isinstance(number, int) and 0 <= number < len(names)
            else None
        )

    def _file(self, column: str, value: Any) -> tuple[str, bytes]:
        """Return the extension and the bytes of a file."""
        decoded = decode_media_value(value)
        if decoded is not None:
            return decoded
        name = media_name(value)
        if name is None and isinstance(value, int):
            name = str(value)
        if name is None:
            raise DataError(
                f"column {column!r} was inferred to hold images or videos, by path or "
                f"as bytes, got {value!r:.80}. Correct the row, or write which columns "
                "hold media: field_map: {FIELD: COLUMN}"
            )
        data, path = self._read(column, name)
        extension = extension_of(path, data)
        return AS_TEXT.get(extension, extension), data

    def _places(self, name: str) -> list[Path]:
        """Return the candidate paths of a file name."""
        paths = [fill(template, name) for template in self.media_paths or ("{}",)]
        return [path_of(absolute(joined(self.base, path))) for path in paths]

    def files_of(self, row: Row) -> list[str]:
        """Return the candidate paths of all files that a row names."""
        row = unfolded(row)
        values = chain.from_iterable(values_in(row, column) for column in self.media)
        names = (
            str(value) if isinstance(value, int) else media_name(value)
            for value in values
        )
        return [str(path) for name in names if name for path in self._places(name)]

    def _read(self, column: str, name: str) -> tuple[bytes, str]:
        """Return the bytes and the path of a file that a row names in a column."""
        candidates = self._places(name)
        existing = candidates
        if len(candidates) > 1:
            existing = [path for path in candidates if exists(path)]
        if len(existing) > 1:
            raise DataError(f"{name!r:.200} may be {existing[0]} or {existing[1]}")
        path = (existing or candidates)[0]
        if not path.is_relative_to(self.base):
            raise DataError(
                f"{name!r:.200} is outside of {self.base}. Set image_folder to a "
                "parent folder, and download files from the web first"
            )
        file = str(path)
        try:
            data = read_file(file, "SAMPLE_BYTES")
            if not is_url(file) and os.stat(file).st_mtime > self.opened:
                message = (
                    f"{file} has changed since the dataset was opened; the new content "
                    "is read"
                )
                log_once(self.location, "written", message, logging.WARNING)
            return data, file
        except OSError as error:
            if error.errno not in (*NO_SUCH_FILE, *NO_REGULAR_FILE, errno.EFBIG):
                raise
            raise DataError(f"column {column!r}: {refusal(error, file)}") from error


def fill(template: str, value: str) -> str:
    """Return the path that a template makes of a column value.

    `{}` is replaced by the value, `{:name}` by its file name, and `{:stem}` by the file
    name without extension.

    Args:
        template: The template; integer formats such as `{:012d}` apply to digits.
        value: The column value.

    Returns:
        The path.

    Example:
        >>> fill("images/{}.jpg", "7"), fill("COCO_train2014_{:012d}.jpg", "7")
        ('images/7.jpg', 'COCO_train2014_000000000007.jpg')
        >>> (
        ...     fill("scans/{:name}", "documents/7.png"),
        ...     fill("scans/{:stem}.jpg", "documents/7.png"),
        ... )
        ('scans/7.png', 'scans/7.jpg')
    """
    prefix, _, rest = template.partition("{")
    form, _, suffix = rest.partition("}")
    name = posixpath.basename(value)
    texts = {"": value, ":name": name, ":stem": posixpath.splitext(name)[0]}
    if form in texts:
        return f"{prefix}{texts[form]}{suffix}"
    return f"{prefix}{int(value):{form[1:]}}{suffix}" if value.isdigit() else value
