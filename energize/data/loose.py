"""The samples of tables whose columns are, or name, images, videos and sounds."""

from __future__ import annotations

import base64
import errno
import json
import logging
import os
import posixpath
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Self, cast

import PIL.Image

from energize.core.arrays import Int64Array
from energize.core.columns import Column
from energize.core.description import digest
from energize.core.ignored import said_once
from energize.core.trace import Failed
from energize.data.files import (
    Files,
    Ranges,
    absolute,
    files_at,
    is_url,
    joined,
    path_of,
    read_file,
)
from energize.data.files import told as refusal
from energize.data.media import (
    HEAD,
    MediaMetadataType,
    decode_media_value,
    kind_by_name,
    kind_by_start,
    media_extension,
)
from energize.data.nv_meta import Origin
from energize.data.rows import FieldSource, Row
from energize.data.source import ShardedSource
from energize.data.stores import NO_REGULAR_FILE, NO_SUCH_FILE
from energize.data.tables import AT, KEY, plain
from energize.data.tar import split_name
from energize.errors import DataError

TURNS = frozenset({"conversations", "messages"})
"""Columns of turns, whose pieces may name files."""


_UNNAMED = re.compile(r"[^\w/ +=@~,()-]")
"""What no key may have in it: dots, which end it, and what does not show."""

Media = Mapping[str, tuple[str, bool]]
"""Columns of files: what stands before the extension in the names of the parts, and whether these
are counted: `{"images": ("images.", True)}` makes `images.0.jpg`."""


def key_of(name: str) -> str:
    """Return the key of the sample of a file: one that may stand in a tar.

    >>> key_of("cats/Tom v1.2.jpg")
    'cats/Tom v1_2'
    """
    key = _UNNAMED.sub("_", os.path.splitext(name)[0])
    return key if split_name(f"{key}.jpg") == (key, "jpg") else f"_{key}"


def kind_of(value: Any) -> MediaMetadataType | None:
    """Return the kind of media that a value of a row is, or names."""
    if isinstance(value, dict) and value.keys() == {"bytes", "path"}:
        value = value["bytes"] or value["path"]
    if isinstance(value, bytes):
        return kind_by_start(value[:HEAD])
    if isinstance(value, str):
        return None if "://" in value else kind_by_name(value)
    return MediaMetadataType.IMAGE if isinstance(value, PIL.Image.Image) else None


def names_in(rows: Iterable[Any], columns: Iterable[str]) -> Iterator[Any]:
    """Yield what rows have in some columns, one by one."""
    for row in rows:
        for value in map(row.get, columns):
            yield from value if isinstance(value, list) else [value]


def unfolded(row: Row) -> Row:
    """Return a row with the files that pieces of its turns name as `images` and `videos`, where it
    names none itself.

    >>> told = [{"type": "image", "image": "a.jpg"}, {"type": "text", "text": "What?"}]
    >>> unfolded({"messages": [{"role": "user", "content": told}]})["images"]
    ['a.jpg']
    """
    found: dict[str, list[Any]] = {}
    lists = (row[name] for name in TURNS & row.keys() if isinstance(row[name], list))
    said = (turn.get("content") for turn in chain(*lists) if isinstance(turn, dict))
    for piece in chain(*(content for content in said if isinstance(content, list))):
        kind = piece.get("type") if isinstance(piece, dict) else None
        if kind in ("image", "image_url", "video", "video_url"):
            named = next((piece[name] for name in (kind, "url", "path") if piece.get(name)), None)
            named = named["url"] if isinstance(named, dict) and "url" in named else named
            if isinstance(named, str) and named.startswith("data:"):
                with suppress(ValueError):
                    named = base64.b64decode(named.partition(",")[2])
            if named:
                named = named.removeprefix("file://") if isinstance(named, str) else named
                found.setdefault(f"{kind[:5]}s", []).append(named)
    own = {name for name in found if row.get(name) or row.get(name[:-1])}
    return row | {name: named for name, named in found.items() if name not in own}


class LooseSource(ShardedSource[dict[str, Any]], FieldSource[dict[str, Any]]):
    """The raw samples of rows whose columns `media` are images, videos or sounds: as structs of
    bytes, or as names of files below the folder `base`.

    A sample is a new dict, as `WebdatasetSource` gives it: `__key__`, `__dataset__`, `__shard__`
    (the file of the row), `__index__` (its number there), the bytes of its files by extension, and
    as `json` the other fields of its row. Its key is the `__key__` of its row, else its number.

    Files are read when a sample is: one that is not there, or may not be read, makes a `Failed`
    with a `DataError` that names it. The identity, and with it every order, depends on the name of
    `path`, the split part, keys and counts, not on where `path` is mounted.
    """

    path: Path
    split_part: str
    rows: ShardedSource[Row]
    media: Media
    base: Path
    labels: Mapping[str, Sequence[str]]
    """What classes are called, by the columns of their numbers; beside `label` comes `label_name`.
    """
    opened: float
    """When it was looked at, in seconds since 1970."""

    def __init__(  # noqa: PLR0917
        self,
        path: Path,
        rows: ShardedSource[Row],
        media: Media,
        base: Path,
        split_part: str,
        labels: Mapping[str, Sequence[str]],
    ) -> None:
        own = {"path": path, "rows": rows, "media": media, "base": base, "split_part": split_part}
        own |= {"labels": labels, "opened": time.time()}
        more = {"counts": tuple(rows.counts), "window": None, "seed": 0, "occurrence": 0}
        self._freeze(**cast("dict[str, Any]", own | more))

    @cached_property
    def shards(self) -> tuple[str, ...]:  # type: ignore[override]
        inside, above = f"{self.location}/", f"{os.path.dirname(self.location)}/"
        names = self.rows.shards
        return tuple(each.removeprefix(inside).removeprefix(above) for each in names)

    @cached_property
    def identity(self) -> str:
        whole = digest([self.name, self.split_part, self.rows.identity, self.counts])
        return whole if self.window is None else digest([whole, self.window])

    @property
    def origin(self) -> Origin:
        """As what its samples are known, wherever they will lie."""
        return Origin.of(self)

    def called(self, name: str) -> Self:
        return super().called(name)._replace(rows=self.rows.called(name))

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

    def _ranges_of(self, shard: int, numbers: Sequence[int]) -> Sequence[Ranges]:
        return self.rows._ranges_of(shard, numbers)

    @property
    def column_names(self) -> tuple[str, ...]:
        names = (name for name in self.rows.column_names if name not in (KEY, AT))
        return *names, *(f"{name}_name" for name in self.labels)

    def _compared(self) -> tuple[Any, ...]:
        return tuple(each for each in super()._compared() if each != ("opened", self.opened))

    def _column(self, name: str) -> Column:
        label = name.removesuffix("_name")
        if label != name and label in self.labels:
            whole = Column.of(
                (self._called(label, each) for each in self.rows._values(label)), name
            )
        else:
            whole = self.rows.column(name)
        return whole if self.window is None else whole.part(slice(*self.window))

    def _key(self, shard: int, number: int) -> str | None:
        [row] = self.rows._read_shard(shard, [number])
        return None if isinstance(row, Failed) else self._key_of(shard, number, row)

    def _key_of(self, shard: int, number: int, row: Row) -> str:
        several = f"{os.path.splitext(self.shards[shard])[0]}/" if len(self.shards) > 1 else ""
        return row.get(KEY) or key_of(f"{several}{number:06d}.json")

    def _where(self, shard: int, number: int) -> str:
        where = self.rows._where(shard, number).removeprefix(f"{self.location}/")
        where = where if where.startswith(self.location) else f"{self.location}/{where}".rstrip("/")
        return f"{where}, sample {self._key(shard, number)!r}"

    def _read_shard(self, shard: int, numbers: list[int]) -> list[dict[str, Any] | Failed]:
        rows = zip(numbers, self.rows._read_shard(shard, numbers), strict=True)
        return [self._sample(shard, number, row) for number, row in rows]

    def _sample(self, shard: int, number: int, row: Row | Failed) -> dict[str, Any] | Failed:
        if isinstance(row, Failed):
            return row
        new: dict[str, Any] = {KEY: self._key_of(shard, number, row)}
        new |= {"__dataset__": str(self.path), "__shard__": self.shards[shard], "__index__": number}
        try:
            return new | self._made_of(row)
        except DataError as reason:
            return Failed(reason, self._where(shard, number))

    def _made_of(self, row: Row) -> dict[str, bytes]:
        """Return the parts of a sample by name."""
        parts, rest = dict[str, bytes](), dict[str, Any]()
        for name, value in unfolded(row).items():
            if name in self.media and value:
                prefix, counted = self.media[name]
                given = value if isinstance(value, list) else [value]
                counted |= isinstance(value, list)
                names = [each for each in given if isinstance(each, str)]
                if len({*map(posixpath.normpath, names)}) < len(names):
                    raise DataError(f"{name!r} has two files under one name: {names}"[:300])
                for each in given:
                    number = sum(part.startswith(prefix) for part in parts)
                    extension, data = self._file(each)
                    parts[f"{prefix}{f'{number}.' if counted else ''}{extension}"] = data
                if names:
                    rest[name] = value
            elif isinstance(value, bytes):
                parts[f"{_UNNAMED.sub('_', name)}.{media_extension(value)}"] = value
            elif name not in (KEY, AT):
                rest[name] = value
        rest |= {f"{name}_name": self._called(name, row.get(name)) for name in self.labels}
        for name in TURNS & rest.keys():
            turns, told = rest[name], rest.get("system")
            if isinstance(told, str) and told and isinstance(turns, list):
                rest[name] = [{"from": "system", "value": told}, *turns]
        if rest.keys() - self.media.keys() and "json" not in parts:
            parts["json"] = json.dumps(rest, default=plain).encode()
        return parts

    def _called(self, label: str, number: Any) -> str | None:
        names = self.labels[label]
        return names[number] if isinstance(number, int) and 0 <= number < len(names) else None

    def _file(self, value: Any) -> tuple[str, bytes]:
        """Return the extension and the bytes of a file."""
        decoded = decode_media_value(value)
        if decoded is not None:
            return decoded
        path = value.get("path") if isinstance(value, dict) else value
        if not isinstance(path, str):
            raise DataError(f"an image is named by its path, or is bytes; got {value!r:.80}")
        return _extension(path), self._read(path)

    def _read(self, name: str) -> bytes:
        path = path_of(absolute(joined(self.base, name)))
        if not path.is_relative_to(self.base):
            raise DataError(
                f"{name!r:.200} leads out of {self.base}; image_folder may be one above it, and "
                "what is on the web is downloaded first"
            )
        file = str(path)
        try:
            data = read_file(file, "SAMPLE_BYTES")
            if not is_url(file) and os.stat(file).st_mtime > self.opened:
                told_of = f"{file} was written after it was opened, and is read as it is now"
                said_once(self.location, "written", told_of, logging.WARNING)
            return data
        except OSError as error:
            if error.errno not in (*NO_SUCH_FILE, *NO_REGULAR_FILE, errno.EFBIG):
                raise
            raise DataError(refusal(error, file)) from error


def _extension(name: str) -> str:
    return os.path.splitext(name)[1][1:].lower()
