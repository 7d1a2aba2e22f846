"""JSON lines with random access through the index beside them.

The index of a file of n samples, `name.jsonl.idx`, is n + 1 offsets, unsigned 64-bit little-endian:
where the line of each sample starts, and the size of the file. Blank lines belong to the sample
before them, those at the start to the first one. The checksums, `name.jsonl.crc` where they were
asked for, are of each sample the CRC-32 of these bytes, unsigned 32-bit little-endian.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from energize.errors import NotPreparedError, ShardError
from energize.storage.faults import told
from energize.storage.files import LocalFile, OpenFiles

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
