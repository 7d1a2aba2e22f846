"""JSON lines with random access through the index beside them.

The index of a file of n samples, `name.jsonl.idx`, is n + 1 offsets, unsigned 64-bit little-endian:
where the line of each sample starts, and the size of the file. Blank lines belong to the sample
before them, those at the start to the first one. The checksums, `name.jsonl.crc` where they were
asked for, are of each sample the CRC-32 of these bytes, unsigned 32-bit little-endian.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from energize.core.description import digest
from energize.core.trace import Failed
from energize.data.files import files_at, own_errors, read_entries
from energize.data.rows import FieldSource, Row, parsed_row
from energize.data.source import ShardedSource, Window
from energize.errors import (
    DataError,
    DatasetNotFoundError,
    EmptyDatasetError,
    NotPreparedError,
    ShardError,
)

_ENTRY = 8
_RANGE = struct.Struct("<2Q")
_CHECKSUM = 4


def jsonl_index_path(path: str) -> str:
    """Return where the index of a file of JSON lines lies.

    >>> jsonl_index_path("texts/a.jsonl")
    'texts/a.jsonl.idx'
    """
    return f"{path}.idx"


def jsonl_checksums_path(path: str) -> str:
    """Return where the checksums of a file of JSON lines lie.

    >>> jsonl_checksums_path("texts/a.jsonl")
    'texts/a.jsonl.crc'
    """
    return f"{path}.crc"


class IndexedJsonl:
    """The samples of the file `path`; making one opens nothing.

    Raise `NotPreparedError` if there is no index, `ShardError` naming the files if they do not
    belong together, and OSError.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._index = jsonl_index_path(path)
        self._files = files_at(path)

    @property
    def size(self) -> int:
        """The bytes of the file."""
        return self._files.size(self.path)

    def count(self) -> int:
        """Return how many samples there are, by an index that fits the file."""
        size = self.size
        if not self._files.exists(self._index):
            raise NotPreparedError(
                f"{self.path} has no index {self._index}; write it with: energize prepare "
                f"{self.path}"
            )
        indexed = self._files.size(self._index)
        count, rest = divmod(indexed, _ENTRY)
        if rest or count < 1:
            raise self._disagreement(f"{indexed} bytes are no whole offsets")
        first, end = (
            int.from_bytes(self._files.read(self._index, at, at + _ENTRY), "little")
            for at in (0, indexed - _ENTRY)
        )
        if first != 0:
            raise self._disagreement(f"the first sample starts at byte {first}")
        if end != size:
            raise self._disagreement(f"the index is of a file of {end} bytes, this one has {size}")
        return count - 1

    def check_checksums(self, count: int) -> None:
        """Raise `NotPreparedError` if there are no checksums of so many samples."""
        file = jsonl_checksums_path(self.path)
        size = self._files.size(file) if self._files.exists(file) else 0
        if size != count * _CHECKSUM:
            raise NotPreparedError(
                f"{self.path} has no checksums of its {count} samples: {file} has {size} bytes; "
                f"write them with: energize prepare --checksums {self.path}"
            )

    def lines(self, numbers: Sequence[int]) -> list[bytes]:
        """Return the JSON of these samples, numbers ascending, without what is around it."""
        return [text.strip() for text in self.stored(numbers)]

    def checksums(self, numbers: Sequence[int]) -> list[int]:
        """Return those of these samples, as they were written."""
        found = read_entries(
            self._files, jsonl_checksums_path(self.path), numbers, _CHECKSUM, _CHECKSUM
        )
        return [int.from_bytes(data, "little") for data in found]

    def stored(self, numbers: Sequence[int]) -> list[bytes]:
        """Return the bytes of these samples as they are stored."""
        entries = read_entries(self._files, self._index, numbers, _ENTRY, _RANGE.size)
        bounds = [_RANGE.unpack(data) for data in entries]
        for number, (start, stop) in zip(numbers, bounds, strict=True):
            if not start < stop <= self.size:
                raise self._disagreement(f"sample {number} is said to be bytes {start} to {stop}")
        # The byte before tells whether a line starts here at all.
        starts, stops = [max(0, start - 1) for start, _ in bounds], [stop for _, stop in bounds]
        texts = []
        for number, text in zip(
            numbers, self._files.read_ranges(self.path, starts, stops), strict=True
        ):
            if number and text[:1] != b"\n":
                raise self._disagreement(f"no line starts where sample {number} does")
            if b"\n" in text.strip():
                raise self._disagreement(f"several lines are where sample {number} is said to be")
            texts.append(text[1:] if number else text)
        return texts

    def _disagreement(self, what: str) -> ShardError:
        return ShardError(
            f"{self.path} and its index {self._index} do not belong together: {what}. The file was "
            f"changed after it was indexed, or the index was: write it again with: energize "
            f"prepare {self.path}"
        )


class JsonlSource(ShardedSource[dict[str, Any]], FieldSource[dict[str, Any]]):
    """The raw samples of a `.jsonl` file that `energize prepare` or Energon indexed.

    Sample i is a new dict: `__key__` is `str(i)`, `__dataset__` the path as given, `__shard__` the
    file's name, `__index__` i, and `json` the bytes of its line, which `SampleLoader` decodes. So
    crude samples have the parsed value as `json`, and field maps read `json[caption]`.

    With `checksums` every line is compared with the checksum that `energize prepare --checksums`
    wrote for it; one that differs is a `Failed` with a `DataError`.

    Opening looks at the index's ends only. The identity, and with it every order, depends on the
    file's name and the number of samples, not on the folder. There are no splits.

    Raise `DatasetNotFoundError`, `NotPreparedError` without an index or checksums that are asked
    for, `ShardError` if the file was changed after it was indexed, and `EmptyDatasetError`.

    >>> import tempfile
    >>> from energize.preparation.index import prepare_jsonl
    >>> path = Path(tempfile.mkdtemp(), "texts.jsonl")
    >>> _ = path.write_text('{"text": "a"}' + chr(10) + '{"text": "b"}')
    >>> _ = prepare_jsonl(path)
    >>> JsonlSource(path)[1]["json"]
    b'{"text": "b"}'
    """

    path: Path
    samples: int
    stored_bytes: int
    checksums: bool
    window: Window | None

    @own_errors
    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        checksums: bool = False,
        seed: int = 0,
        occurrence: int = 0,
    ) -> None:
        file = Path(path)
        if not file.is_file():
            raise DatasetNotFoundError(f"{file} does not exist, or is no file")
        indexed = IndexedJsonl(str(file))
        samples = indexed.count()
        if samples == 0:
            raise EmptyDatasetError(f"{file} has no samples")
        if checksums:
            indexed.check_checksums(samples)
        self._freeze(
            path=file,
            samples=samples,
            stored_bytes=indexed.size,
            checksums=checksums,
            window=None,
            seed=seed,
            occurrence=occurrence,
        )

    @property
    def shards(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.name,)

    @property
    def counts(self) -> tuple[int, ...]:  # type: ignore[override]
        return (self.samples,)

    @cached_property
    def identity(self) -> str:
        parts = [self.name, self.samples]
        return digest(parts if self.window is None else [*parts, self.window])

    @cached_property
    def name(self) -> str:
        return self.path.name

    @property
    def _told_name(self) -> str:
        return str(self.path)

    @property
    def record(self) -> str:
        return digest(self.stored_bytes)

    @property
    def location(self) -> str:
        return str(self.path.absolute())

    def _where(self, shard: int, number: int) -> str:
        return f"{self.path}, sample {number}"

    def _key(self, shard: int, number: int) -> str:
        return str(number)

    def _parsed(self, first: int, stop: int) -> list[Row | Failed]:
        start = self._bounds[0]
        numbers = range(start + first, start + stop)
        return [
            parsed_row(text, self._where(0, number))
            for number, text in zip(numbers, self._file.lines(numbers), strict=True)
        ]

    def _read_shard(self, shard: int, numbers: list[int]) -> list[dict[str, Any] | Failed]:
        texts = self._file.stored(numbers)
        expected = self._file.checksums(numbers) if self.checksums else map(zlib.crc32, texts)
        return [
            {
                "__key__": str(number),
                "__dataset__": str(self.path),
                "__shard__": self.name,
                "__index__": number,
                "json": text.strip(),
            }
            if zlib.crc32(text) == crc
            else self._changed(number, zlib.crc32(text), crc)
            for number, text, crc in zip(numbers, texts, expected, strict=True)
        ]

    def _changed(self, number: int, found: int, expected: int) -> Failed:
        where = self._where(0, number)
        return Failed(
            DataError(
                f"{where}: its checksum is {found:08x}, and was {expected:08x} when checksums were "
                "written: the line has changed since. Copy the file again from its origin; or, if "
                f"it is meant to be so: energize prepare --checksums {self.path}"
            ),
            where,
        )

    @cached_property
    def _file(self) -> IndexedJsonl:
        return IndexedJsonl(str(self.path))
