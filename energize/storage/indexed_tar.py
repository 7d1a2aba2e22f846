"""Tar shards with random access through the index beside them.

The index of a shard of n samples is n + 1 offsets, unsigned 64-bit little-endian: where each
sample starts, and where the last one ends. Whatever the first one says, sample 0 starts at 0.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from energize.errors import ShardError
from energize.storage.files import LocalFile, OpenFiles
from energize.storage.tar import compression, index_path
from energize.storage.tar_headers import BLOCK, is_header

_ENTRY = 8
_RANGE = struct.Struct("<2Q")
_PROBES = 16


@dataclass(frozen=True, slots=True)
class IndexedTar:
    """A shard of `count` samples at `path`, read through `files`; making one opens nothing.

    Every method raises `ShardError` naming the files when they cannot be read or disagree.
    """

    files: OpenFiles
    path: str
    count: int

    def check(self) -> None:
        """Compare shard and index where it costs little; a stale index is found by it."""
        tar, index = self._open(self.path), self._open(index_path(self.path))
        expected = (self.count + 1) * _ENTRY
        if index.size != expected:
            raise self.disagreement(
                f"the index of {self.count} samples, as .info.json counts them, has {expected} "
                f"bytes; this one has {index.size}"
            )
        packed = compression(self._bytes(tar, 0, min(BLOCK, tar.size)))
        if packed is not None:
            raise ShardError(
                f"{self.path}: the shard is compressed with {packed[0]}; unpack it with "
                f"`{packed[1]}` to a .tar, then run `energize prepare`"
            )
        end = int.from_bytes(self._bytes(index, expected - _ENTRY, expected), "little")
        if end > tar.size:
            raise self.disagreement(
                f"by the index the samples end at byte {end}, but the shard has {tar.size} bytes: "
                "it was cut off, or is another one"
            )
        if any(self._bytes(tar, end, min(end + BLOCK, tar.size))):
            raise self.disagreement(f"by the index the samples end at byte {end}, but more follow")

    def ranges(self, numbers: Sequence[int]) -> tuple[list[int], list[int]]:
        """The first byte of each of these samples, in ascending order, and the byte after it."""
        size = self._open(self.path).size
        entries = self._read(
            self._open(index_path(self.path)),
            [number * _ENTRY for number in numbers],
            [number * _ENTRY + _RANGE.size for number in numbers],
        )
        starts, stops = [], []
        for number, (data, at) in zip(numbers, entries, strict=True):
            start, stop = _RANGE.unpack_from(data, at)
            if number == 0:
                start = 0
            if not start < stop <= size:
                raise self.disagreement(
                    f"by the index sample {number} lies from byte {start} to {stop}, and the shard "
                    f"has {size} bytes"
                )
            starts.append(start)
            stops.append(stop)
        return starts, stops

    def read(self, starts: Sequence[int], stops: Sequence[int]) -> Iterator[tuple[bytes, int]]:
        """For each range of the shard, ascending, bytes that hold it and where in them it is."""
        return self._read(self._open(self.path), starts, stops)

    def agrees(self) -> bool:
        """Whether most samples start where the index says: not so when it is of another shard."""
        starts, _ = self.ranges(range(0, self.count, max(1, self.count // _PROBES)))
        tar = self._open(self.path)
        blocks = [self._bytes(tar, start, start + BLOCK) for start in starts]
        return sum(map(is_header, blocks)) * 2 > len(blocks)

    def disagreement(self, what: str) -> ShardError:
        """The error for a shard whose content is not what its index says."""
        return ShardError(
            f"{self.path} and its index {index_path(self.path)} do not belong together: {what}. "
            "Copy both again from where they do, or run `energize prepare` again"
        )

    def _open(self, path: str) -> LocalFile:
        try:
            return self.files.get(path)
        except OSError as error:
            raise _unreadable(path, error) from error

    def _bytes(self, file: LocalFile, start: int, stop: int) -> bytes:
        return next(self._read(file, [start], [stop]))[0]

    def _read(
        self, file: LocalFile, starts: Sequence[int], stops: Sequence[int]
    ) -> Iterator[tuple[bytes, int]]:
        found = file.read_ranges(starts, stops)
        for start, stop in zip(starts, stops, strict=True):
            try:
                data, at = next(found)
            except OSError as error:
                raise _unreadable(file.path, error) from error
            if at + stop - start > len(data):
                raise ShardError(
                    f"{file.path}: cut off while it was being read: there are no bytes {start} to "
                    f"{stop} any more; copy it again from its origin"
                )
            yield data, at


def _unreadable(path: str, error: OSError) -> ShardError:
    again = "run `energize prepare --force-overwrite` on the folder to"
    missing = (
        f"{again} write it" if path.endswith(".idx") else f"restore it, or {again} leave it out"
    )
    remedy = {
        errno.ENOENT: missing,
        errno.EMFILE: "let the process open more with `ulimit -n`",
        errno.EINVAL: "give a file, or a link to one",
    }.get(error.errno or 0, "make it readable")
    return ShardError(f"{path}: cannot be read ({error.strerror}); {remedy}")
