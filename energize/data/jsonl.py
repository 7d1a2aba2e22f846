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
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np

from energize.core.arrays import Int64Array
from energize.core.description import digest
from energize.core.reading import Failed, SamplePlace
from energize.data.files import LocalFile, OpenFiles
from energize.data.rows import FieldSource, parsed_row
from energize.data.source import Window, narrowed, read_by_file
from energize.data.writing import own_errors, told
from energize.errors import (
    ColumnError,
    DataError,
    DatasetNotFoundError,
    EmptyDatasetError,
    NotPreparedError,
    ShardError,
)

_ENTRY = 8
_RANGE = struct.Struct("<2Q")
_CHECKSUM = struct.Struct("<I")


def jsonl_index_path(path: str) -> str:
    """Where the index of a file of JSON lines lies.

    >>> jsonl_index_path("texts/a.jsonl")
    'texts/a.jsonl.idx'
    """
    return f"{path}.idx"


def jsonl_checksums_path(path: str) -> str:
    """Where the checksums of a file of JSON lines lie.

    >>> jsonl_checksums_path("texts/a.jsonl")
    'texts/a.jsonl.crc'
    """
    return f"{path}.crc"


T = TypeVar("T", bound="bytes | ChangedLine")


class ChangedLine(NamedTuple):
    """What there is of a sample whose checksum is not what was written."""

    found: int
    expected: int


class IndexedJsonl:
    """The samples of the file `path`; making one opens nothing.

    Raises `NotPreparedError` when there is no index, and `ShardError` naming the files when they
    cannot be read or do not belong together.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._files = OpenFiles()

    @property
    def size(self) -> int:
        """The bytes of the file."""
        return self._file(self.path).size

    def count(self) -> int:
        """How many samples there are, by an index that fits the file."""
        index, size = self._index(), self._file(self.path).size
        count, rest = divmod(index.size, _ENTRY)
        if rest or count < 1:
            raise self._disagreement(f"{index.size} bytes are no whole offsets")
        if self._entry(index, 0) != 0:
            raise self._disagreement(f"the first sample starts at byte {self._entry(index, 0)}")
        end = self._entry(index, count - 1)
        if end != size:
            raise self._disagreement(f"the index is of a file of {end} bytes, this one has {size}")
        return count - 1

    def check_checksums(self, count: int) -> None:
        """Raises `NotPreparedError` where there are no checksums of so many samples."""
        command = f"energize prepare --checksums {self.path}"
        try:
            size = self._files.get(jsonl_checksums_path(self.path)).size
        except FileNotFoundError as error:
            raise NotPreparedError(
                f"{self.path} has no checksums; write them with: {command}"
            ) from error
        except OSError as error:
            raise ShardError(told(error, jsonl_checksums_path(self.path))) from error
        if size != count * _CHECKSUM.size:
            raise NotPreparedError(
                f"{jsonl_checksums_path(self.path)} has {size} bytes, and the checksums of {count} "
                f"samples have {count * _CHECKSUM.size}; write them again with: {command}"
            )

    def verified(self, numbers: Sequence[int]) -> list[bytes | ChangedLine]:
        """As `lines`, with checksums compared."""
        found = self._file(jsonl_checksums_path(self.path)).read_ranges(
            [number * _CHECKSUM.size for number in numbers],
            [(number + 1) * _CHECKSUM.size for number in numbers],
        )
        expected = [_CHECKSUM.unpack_from(data, at)[0] for data, at in found]
        lines: list[bytes | ChangedLine] = []
        for number, text, crc in zip(numbers, self._stored(numbers), expected, strict=True):
            now = zlib.crc32(memoryview(text)[1 if number else 0 :])
            lines.append(text.strip() if now == crc else ChangedLine(now, crc))
        return self._one_each(numbers, lines)

    def lines(self, numbers: Sequence[int]) -> list[bytes]:
        """The JSON of these samples, numbers ascending, without what is around it."""
        return self._one_each(numbers, [text.strip() for text in self._stored(numbers)])

    def _one_each(self, numbers: Sequence[int], lines: list[T]) -> list[T]:
        """The same lines, none of which is more than a line."""
        for number, line in zip(numbers, lines, strict=True):
            if b"\n" in line:
                raise self._disagreement(f"several lines are where sample {number} is said to be")
        return lines

    def _stored(self, numbers: Sequence[int]) -> list[bytes]:
        """The bytes of these samples as they are stored, and, but of the first, the one before."""
        file, index = self._file(self.path), self._index()
        entries = index.read_ranges(
            [number * _ENTRY for number in numbers],
            [number * _ENTRY + _RANGE.size for number in numbers],
        )
        starts, stops = [], []
        for number, (data, at) in zip(numbers, entries, strict=True):
            if at + _RANGE.size > len(data):
                raise self._disagreement(f"the index has no sample {number}")
            start, stop = _RANGE.unpack_from(data, at)
            if not start < stop <= file.size:
                raise self._disagreement(f"sample {number} is said to be bytes {start} to {stop}")
            # The byte before tells whether a line starts here at all.
            starts.append(max(0, start - 1))
            stops.append(stop)
        found = file.read_ranges(starts, stops)
        texts = []
        for number, start, stop, (data, at) in zip(numbers, starts, stops, found, strict=True):
            text = data[at : at + stop - start]
            if len(text) != stop - start:
                raise ShardError(f"{self.path}: cut off while it was read; copy it again")
            if start and text[:1] != b"\n":
                raise self._disagreement(f"no line starts where sample {number} does")
            texts.append(text)
        return texts

    def _index(self) -> LocalFile:
        path = jsonl_index_path(self.path)
        try:
            return self._files.get(path)
        except FileNotFoundError as error:
            self._file(self.path)
            raise NotPreparedError(
                f"{self.path} has no index {path}; write it with: energize prepare {self.path}"
            ) from error
        except OSError as error:
            raise ShardError(told(error, path)) from error

    def _file(self, path: str) -> LocalFile:
        try:
            return self._files.get(path)
        except OSError as error:
            raise ShardError(told(error, path)) from error

    def _entry(self, index: LocalFile, number: int) -> int:
        return int.from_bytes(index.read(number * _ENTRY, _ENTRY), "little")

    def _disagreement(self, what: str) -> ShardError:
        return ShardError(
            f"{self.path} and its index {jsonl_index_path(self.path)} do not belong together: "
            f"{what}. The file was changed after it was indexed, or the index was: write it again "
            f"with: energize prepare {self.path}"
        )


# The samples of an indexed file of JSON lines.

_PARSED_AT_ONCE = 4096


class JsonlSource(FieldSource[dict[str, Any]]):
    """The raw samples of a `.jsonl` file that `energize prepare` or Energon indexed.

    Sample i is a new dict: `__key__` is `str(i)`, `__dataset__` the path as given, `__shard__` the
    file's name, `__index__` i, and `json` the bytes of its line, which `SampleLoader` decodes. So
    crude samples have the parsed value as `json`, and field maps read `json[caption]`.

    With `checksums` every line is compared with the checksum that `energize prepare --checksums`
    wrote for it; one that differs is a `Failed` with a `DataError`.

    Opening looks at the index's ends only. The identity, and with it every order, depends on the
    file's name and the number of samples, not on the folder. There are no splits.

    Raises `DatasetNotFoundError`, `NotPreparedError` without an index or checksums that are asked
    for, `ShardError` when the file was changed after it was indexed, and `EmptyDatasetError`.

    >>> import tempfile
    >>> from energize.preparation.jsonl import prepare_jsonl
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

    def part(self, start: int, stop: int) -> Self:
        """The same source with the samples from `start` to before `stop` only, which keep their
        keys.

        Raises `ConfigError` for numbers beyond `count`, `EmptyDatasetError` when none is left.
        """
        return self._replace(window=narrowed(str(self.path), self._bounds, start, stop))

    @property
    def count(self) -> int:
        start, stop = self._bounds
        return stop - start

    @property
    def stored_count(self) -> int:
        """How many samples there are."""
        return self.count

    @property
    def _bounds(self) -> Window:
        return self.window or (0, self.samples)

    @cached_property
    def identity(self) -> str:
        parts = [self.name, self.samples]
        return digest(parts if self.window is None else [*parts, self.window])

    @cached_property
    def name(self) -> str:
        return self.path.name

    @property
    def record(self) -> str:
        return digest(self.stored_bytes)

    @property
    def run_length(self) -> int:
        return self.count

    def settings(self) -> dict[str, Any]:
        subset = {} if self.window is None else {"subset": list(self.window)}
        return super().settings() | {"identity": self.identity} | subset

    def where(self, position: int, attempt: int = 0) -> str:
        """File and number of a sample, for messages."""
        index = int(self._samples(np.array([position], dtype=np.int64), attempt)[0])
        return f"{self.path}, sample {self._bounds[0] + index}"

    @property
    def location(self) -> str:
        return str(self.path.absolute())

    def place(self, index: int) -> SamplePlace:
        number = self._bounds[0] + index
        return SamplePlace(self.location, self.name, number, str(number), self.identity)

    def find(self, shard: str | None, index: int) -> int | None:
        start, stop = self._bounds
        return index - start if shard == self.name and start <= index < stop else None

    @cached_property
    def field_names(self) -> tuple[str, ...]:
        """Those of the object in the first line that is read."""
        return tuple(next(self._rows()))

    def field_values(self, name: str) -> Iterator[Any]:
        """What each line has for a key; None where it has not."""
        return (row.get(name) for row in self._rows())

    def _rows(self) -> Iterator[dict[str, Any]]:
        """The objects of all lines, parsed."""
        start, stop = self._bounds
        for first in range(start, stop, _PARSED_AT_ONCE):
            numbers = range(first, min(first + _PARSED_AT_ONCE, stop))
            for number, text in zip(numbers, self._file.lines(numbers), strict=True):
                row = parsed_row(text, f"{self.path}, sample {number}")
                if isinstance(row, Failed):
                    raise ColumnError(f"{row.where}: {row.reason}; its keys cannot be columns")
                yield row

    def read(self, indices: Int64Array) -> list[dict[str, Any] | Failed]:
        return read_by_file(indices + self._bounds[0], _in_one_file, self._read_lines)

    def _read_lines(self, _: int, numbers: Sequence[int]) -> list[dict[str, Any] | Failed]:
        found = self._file.verified(numbers) if self.checksums else self._file.lines(numbers)
        return [
            {
                "__key__": str(number),
                "__dataset__": str(self.path),
                "__shard__": self.name,
                "__index__": number,
                "json": text,
            }
            if type(text) is bytes
            else self._changed(number, text)
            for number, text in zip(numbers, found, strict=True)
        ]

    def _changed(self, number: int, line: ChangedLine | bytes) -> Failed:
        where = f"{self.path}, sample {number}"
        return Failed(
            DataError(
                f"{where}: its checksum is {line[0]:08x}, and was {line[1]:08x} when checksums "
                "were written: the line has changed since. Copy the file again from its origin; "
                f"or, if it is meant to be so: energize prepare --checksums {self.path}"
            ),
            where,
        )

    @cached_property
    def _file(self) -> IndexedJsonl:
        return IndexedJsonl(str(self.path))


def _in_one_file(stored: Int64Array) -> tuple[Int64Array, Int64Array]:
    return np.zeros_like(stored), stored
