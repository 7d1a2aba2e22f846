"""Samples of files that nobody packed: of rows that name files, or hold what these would."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image

from energize.core.arrays import Int64Array
from energize.core.columns import Column
from energize.core.description import digest
from energize.core.trace import Failed
from energize.core.validation import parse_json
from energize.data.files import PASSING, Files, Ranges, files_at, of_machine, told
from energize.data.media import HEAD, kind_by_name, kind_by_start
from energize.data.remote import joined, tidied
from energize.data.rows import FieldSource, Row
from energize.data.source import ShardedSource
from energize.data.tar import split_name
from energize.errors import DataError

KEY = "__key__"

_STARTS = {b"\x89P": "png", b"GI": "gif", b"BM": "bmp", b"RI": "webp", b"II": "tif", b"MM": "tif"}
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


def is_media(value: Any) -> bool:
    """Return whether a value of a row is an image, a video or a sound, or names one, or is a list
    of such.
    """
    if isinstance(value, list):
        return bool(value) and all(map(is_media, value))
    if isinstance(value, dict):
        return value.keys() == {"bytes", "path"}
    if isinstance(value, bytes):
        return kind_by_start(value[:HEAD]) is not None
    if isinstance(value, str):
        return kind_by_name(value) is not None and "://" not in value and "\n" not in value
    return isinstance(value, PIL.Image.Image)


def names_in(rows: Iterable[Any], columns: Iterable[str]) -> Iterator[Any]:
    """Yield what rows have in some columns, one by one."""
    for row in rows:
        for value in () if isinstance(row, Failed) else map(row.get, columns):
            yield from value if isinstance(value, list) else [value]


class MemoryRows(ShardedSource[Row], FieldSource[Row]):
    """Rows that are kept as lines of JSON: of each its table, the line it was read from, and the
    fields, `__key__` among them; rows of one table stand together.

    Memory is that of the lines, and 12 bytes for each. The identity is that of the keys.
    """

    text: bytes
    ends: Int64Array
    lines: np.ndarray[Any, Any]
    shards: tuple[str, ...]
    counts: tuple[int, ...]
    keys_digest: str

    def __init__(
        self, rows: Iterable[tuple[str, int, Row]], *, seed: int = 0, occurrence: int = 0
    ) -> None:
        text, ends, lines = bytearray(), array("q", [0]), array("i")
        counts: dict[str, int] = {}
        keys = hashlib.blake2b(digest_size=16)
        for shard, line, row in rows:
            dumped = json.dumps(row, ensure_ascii=False, separators=(",", ":"), default=str)
            text += dumped.encode("utf-8", "surrogatepass")
            keys.update(f"{row.get(KEY)}\0".encode("utf-8", "surrogatepass"))
            ends.append(len(text))
            lines.append(line)
            counts[shard] = counts.get(shard, 0) + 1
        self._freeze(
            text=bytes(text),
            ends=np.array(ends),
            lines=np.array(lines),
            shards=tuple(counts),
            counts=tuple(counts.values()),
            keys_digest=keys.hexdigest(),
            seed=seed,
            occurrence=occurrence,
        )

    def _compared(self) -> tuple[Any, ...]:
        return self.shards, self.counts, self.text

    @property
    def identity(self) -> str:
        return self.keys_digest

    @property
    def name(self) -> str:
        return ", ".join(self.shards)

    location = name

    def _where(self, shard: int, number: int) -> str:
        line = self.lines[self._firsts[shard] + number]
        return f"{self.shards[shard]}, line {line}" if line else ""

    def _read_shard(self, shard: int, numbers: list[int]) -> list[Row | Failed]:
        first = int(self._firsts[shard])
        bounds = [self.ends[first + number : first + number + 2].tolist() for number in numbers]
        return [parse_json(self.text[start:stop]) for start, stop in bounds]


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
    rows: Any
    media: Media
    base: Path

    def __init__(
        self,
        path: Path,
        rows: ShardedSource[Row],
        media: Media,
        *,
        base: Path,
        split_part: str = "train",
        seed: int = 0,
        occurrence: int = 0,
    ) -> None:
        self._freeze(
            path=path,
            rows=rows,
            media=dict(media),
            base=base,
            split_part=split_part,
            window=None,
            seed=seed,
            occurrence=occurrence,
        )

    @cached_property
    def shards(self) -> tuple[str, ...]:  # type: ignore[override]
        folder = str(tidied(self.path if self.path.is_dir() else self.path.parent))
        names = (each.removeprefix(f"{folder}/") for each in self.rows.shards)
        return tuple(names)

    @property
    def counts(self) -> tuple[int, ...]:  # type: ignore[override]
        return tuple(self.rows.counts)

    @cached_property
    def identity(self) -> str:
        parts = [self.name, self.split_part, self.rows.identity, self.counts]
        return digest(parts if self.window is None else [*parts, self.window])

    @cached_property
    def name(self) -> str:
        return self.path.absolute().name

    @property
    def location(self) -> str:
        return str(self.path.absolute())

    @cached_property
    def remote(self) -> bool:
        return self._files.remote

    @cached_property
    def _files(self) -> Files:
        return files_at(self.base)

    @property
    def column_names(self) -> tuple[str, ...]:
        return tuple(name for name in self.rows.column_names if name != KEY)

    def _column(self, name: str) -> Column:
        whole: Column = self.rows.column(name)
        return whole if self.window is None else whole.part(slice(*self.window))

    def _key(self, shard: int, number: int) -> str | None:
        [row] = self.rows._read_shard(shard, [number])
        return None if isinstance(row, Failed) else self._key_of(shard, number, row)

    def _key_of(self, shard: int, number: int, row: Row) -> str:
        several = f"{os.path.splitext(self.shards[shard])[0]}/" if len(self.shards) > 1 else ""
        return row.get(KEY) or key_of(f"{several}{number:06d}.json")

    def _where(self, shard: int, number: int) -> str:
        where = self.rows._where(shard, number)
        if isinstance(self.rows, MemoryRows):
            where = "/".join(filter(None, [str(self.path), where]))
        return f"{where}, sample {self._key(shard, number)!r}"

    def _read_shard(self, shard: int, numbers: list[int]) -> list[dict[str, Any] | Failed]:
        samples: list[dict[str, Any] | Failed] = []
        for number, row in zip(numbers, self.rows._read_shard(shard, numbers), strict=True):
            sample = row
            if not isinstance(row, Failed):
                new = {
                    KEY: self._key_of(shard, number, row),
                    "__dataset__": str(self.path),
                    "__shard__": self.shards[shard],
                    "__index__": number,
                }
                try:
                    sample = new | self._made_of(row)
                except DataError as reason:
                    sample = Failed(reason, self._where(shard, number))
            samples.append(sample)
        return samples

    def _made_of(self, row: Row) -> dict[str, bytes]:
        """Return the parts of a sample by name."""
        parts, rest = dict[str, bytes](), dict[str, Any]()
        for name, value in row.items():
            if name in self.media and value:
                prefix, counted = self.media[name]
                given = value if isinstance(value, list) else [value]
                counted |= isinstance(value, list)
                self._check_once(name, given)
                for each in given:
                    number = sum(part.startswith(prefix) for part in parts)
                    extension, data = self._file(each)
                    parts[f"{prefix}{f'{number}.' if counted else ''}{extension}"] = data
                value = [each for each in given if isinstance(each, str)]  # noqa: PLW2901
                if value:
                    rest[name] = value if isinstance(row[name], list) else value[0]
            elif isinstance(value, bytes | np.ndarray):
                parts[f"{_UNNAMED.sub('_', name)}.{_kind(value)}"] = _stored(value)
            elif name != KEY:
                rest[name] = value
        if rest.keys() - self.media.keys() and "json" not in parts:
            parts["json"] = json.dumps(rest, default=_plain).encode()
        return parts

    def _check_once(self, name: str, given: Sequence[Any]) -> None:
        names = [each for each in given if isinstance(each, str)]
        twice = next((each for each in names if names.count(each) > 1), None)
        if twice is not None:
            raise DataError(
                f"{name!r} has {twice!r} twice, so one of two images would stand for the other; "
                "name the second one, or take it out"
            )

    def _file(self, value: Any) -> tuple[str, bytes]:
        """Return the extension and the bytes of a file."""
        path = value
        if isinstance(value, dict):
            path, value = value.get("path"), value.get("bytes")
        if isinstance(value, bytes | PIL.Image.Image):
            named = isinstance(path, str) and kind_by_name(path) is not None
            return _extension(path) if named else _kind(value), _stored(value)
        if not isinstance(path, str):
            raise DataError(f"an image is named by its path, or is bytes; got {value!r:.80}")
        return _extension(path), self._read(path)

    def _read(self, name: str) -> bytes:
        file = str(self._path(name))
        try:
            return self._files.whole(file, "SAMPLE_BYTES")
        except OSError as error:
            if error.errno in PASSING or of_machine(error):
                raise
            raise DataError(told(error, file)) from error
        finally:
            self._files.forget(file)  # there are too many to remember each

    def _path(self, name: str) -> Path:
        path = tidied(joined(self.base, name))
        if not path.is_relative_to(self._root):
            raise DataError(
                f"{name!r} leads out of {self.base}; give the folder that all files are in as "
                "image_folder"
            )
        return path

    @cached_property
    def _root(self) -> Path:
        return tidied(self.base)

    def _ranges_of(self, shard: int, numbers: Sequence[int]) -> list[Ranges]:
        """Files of a store, which are known where rows are in memory."""
        rows = self.rows._read_shard(shard, list(numbers)) if self._files.remote else []
        names = names_in(rows, self.media)
        return [(str(self._path(each)), [], []) for each in names if isinstance(each, str)]


def _extension(name: str) -> str:
    return os.path.splitext(name)[1][1:].lower()


def _kind(value: Any) -> str:
    """Return the extension of a file with these bytes, or of one that is made of a value."""
    if not isinstance(value, bytes):
        return "npy" if isinstance(value, np.ndarray) else "png"
    kind = kind_by_start(value[:HEAD])
    if kind is None:
        return "bin"
    return _STARTS.get(value[:2], "jpg") if kind == "image" else "mp4"


def _stored(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    stream = io.BytesIO()
    if isinstance(value, np.ndarray):
        np.save(stream, value, allow_pickle=False)
    else:
        value.save(stream, "PNG")
    return stream.getvalue()


def _plain(value: Any) -> Any:
    """Return what JSON can hold in place of a value: numbers of numpy are numbers, dates texts."""
    return value.item() if isinstance(value, np.generic) else str(value)
