"""JSON lines with random access through the index beside them.

The index of a file of n samples, `name.jsonl.idx`, is n + 1 offsets, unsigned 64-bit little-endian:
where the line of each sample starts, and the size of the file. Blank lines belong to the sample
before them, those at the start to the first one.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Sequence

from energize.errors import NotPreparedError, ShardError
from energize.storage.files import LocalFile, OpenFiles

_ENTRY = 8
_RANGE = struct.Struct("<2Q")


def jsonl_index_path(path: str) -> str:
    """Where the index of a file of JSON lines lies.

    >>> jsonl_index_path("texts/a.jsonl")
    'texts/a.jsonl.idx'
    """
    return f"{path}.idx"


class IndexedJsonl:
    """The samples of the file `path`; making one opens nothing.

    Raises `NotPreparedError` when there is no index, and `ShardError` naming the files when they
    cannot be read or do not belong together.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._files = OpenFiles()

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

    def lines(self, numbers: Sequence[int]) -> list[bytes]:
        """The JSON of these samples, numbers ascending, without what is around it."""
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
            texts.append(text.strip())
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
            raise self._unreadable(path, error) from error

    def _file(self, path: str) -> LocalFile:
        try:
            return self._files.get(path)
        except OSError as error:
            raise self._unreadable(path, error) from error

    def _entry(self, index: LocalFile, number: int) -> int:
        return int.from_bytes(index.read(number * _ENTRY, _ENTRY), "little")

    def _unreadable(self, path: str, error: OSError) -> ShardError:
        remedy = {
            errno.ENOENT: "restore it",
            errno.EMFILE: "let the process open more with `ulimit -n`",
        }.get(error.errno or 0, "make it readable")
        return ShardError(f"{path}: cannot be read ({error.strerror}); {remedy}")

    def _disagreement(self, what: str) -> ShardError:
        return ShardError(
            f"{self.path} and its index {jsonl_index_path(self.path)} do not belong together: "
            f"{what}. The file was changed after it was indexed, or the index was: write it again "
            f"with: energize prepare {self.path}"
        )
