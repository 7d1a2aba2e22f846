"""Tar shards with random access through the index beside them.

The index of a shard of n samples is n + 1 offsets, unsigned 64-bit little-endian: where each
sample starts, and where the last one ends. Whatever the first one says, sample 0 starts at 0.
"""

from __future__ import annotations

import errno
import logging
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from energize.errors import ShardError
from energize.storage.faults import told
from energize.storage.files import LocalFile, OpenFiles
from energize.storage.shard_records import ShardRecord, checksums_path, checksums_size, ends_crc
from energize.storage.tar import compression, index_path, scan
from energize.storage.tar_headers import BLOCK, is_header

_log = logging.getLogger("energize")

_ENTRY = 8
_RANGE = struct.Struct("<2Q")
_CHECKSUM = struct.Struct("<I")
_ADD_CHECKSUMS = "energize prepare --checksums FOLDER"
_PROBES = 16
_KEPT = 64 * 1024
"""Bytes of an index that is kept in memory while it is open, so that it is read once: of 8,000
samples. As many indices are open as files, 128."""

_AT_ONCE = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class IndexedTar:
    """A shard of `count` samples at `path`, read through `files`; making one opens nothing.

    `record` is what was seen of it when it was prepared, if that is known. Every method raises
    `ShardError` naming the files when they cannot be read or disagree.
    """

    files: OpenFiles
    path: str
    count: int
    record: ShardRecord | None = None

    def check(self) -> None:
        """Compare shard and index with what was prepared. Where that is not known, with each other,
        where it costs little; a stale index is found by it.
        """
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
        if self.record is not None:
            self._check_record(self.record, tar, index)
            return
        end = int.from_bytes(self._bytes(index, expected - _ENTRY, expected), "little")
        if end > tar.size:
            raise self.disagreement(
                f"by the index the samples end at byte {end}, but the shard has {tar.size} bytes: "
                "it was cut off, or is another one"
            )
        if any(self._bytes(tar, end, min(end + BLOCK, tar.size))):
            raise self.disagreement(f"by the index the samples end at byte {end}, but more follow")

    def _check_record(self, record: ShardRecord, tar: LocalFile, index: LocalFile) -> None:
        if tar.size != record.size:
            raise self._another(
                f"the shard has {tar.size} bytes, and had {record.size}: it was replaced, changed "
                "or cut off"
            )
        found = self._crc32(index)
        if found != record.index_crc:
            raise self._another(
                f"the CRC-32 of the index is {found:08x}, and was {record.index_crc:08x}"
            )
        ends = ends_crc(lambda at, size: self._bytes(tar, at, at + size), tar.size)
        if ends != record.ends_crc:
            self._look_closer(record)

    def _look_closer(self, record: ShardRecord) -> None:
        """Tell a shard that is another one from one in which some bytes are damaged: of the latter
        only those samples are lost.
        """
        try:
            headers = scan(self.path).headers
        except ShardError as damage:
            _log.warning("%s has changed since it was prepared: %s", self.path, damage)
            return
        if headers != record.headers_crc:
            raise self._another(
                f"the CRC-32 of the headers of the shard is {headers:08x}, and was "
                f"{record.headers_crc:08x}"
            )
        _log.warning(
            "%s has changed since it was prepared: the files in it have the same names and sizes, "
            "but not the same bytes. Which samples changed is told where there are checksums "
            "(energize prepare --checksums)",
            self.path,
        )

    def check_checksums(self) -> None:
        """Compare the checksums with what was written, which has to be known."""
        if self.record is None or self.record.checksums_crc is None:
            raise ShardError(f"{self.path} has no checksums; write them with: {_ADD_CHECKSUMS}")
        file, expected = self._open(checksums_path(self.path)), checksums_size(self.count)
        if file.size != expected:
            raise ShardError(
                f"{file.path} has {file.size} bytes, and the checksums of {self.count} samples "
                f"have {expected}; write them again with: {_ADD_CHECKSUMS}"
            )
        found = self._crc32(file)
        if found != self.record.checksums_crc:
            raise ShardError(
                f"{file.path} is not what was written: its CRC-32 is {found:08x}, and was "
                f"{self.record.checksums_crc:08x}. Copy it again, or write the checksums of the "
                f"shard as it is now with: {_ADD_CHECKSUMS}"
            )

    def checksums(self, numbers: Sequence[int]) -> list[int]:
        """Those of these samples, in ascending order."""
        found = self._read(
            self._open(checksums_path(self.path)),
            [number * _CHECKSUM.size for number in numbers],
            [(number + 1) * _CHECKSUM.size for number in numbers],
        )
        return [_CHECKSUM.unpack_from(data, at)[0] for data, at in found]

    @property
    def size(self) -> int:
        """The bytes of the shard."""
        return self._open(self.path).size

    def ranges(self, numbers: Sequence[int]) -> tuple[list[int], list[int]]:
        """The first byte of each of these samples, in ascending order, and the byte after it."""
        size = self._open(self.path).size
        starts, stops = [], []
        for number, (entry, stop) in zip(numbers, self._entries(numbers), strict=True):
            start = entry if number else 0
            if not start < stop <= size:
                raise self.disagreement(
                    f"by the index sample {number} lies from byte {start} to {stop}, and the shard "
                    f"has {size} bytes"
                )
            starts.append(start)
            stops.append(stop)
        return starts, stops

    def _entries(self, numbers: Sequence[int]) -> list[tuple[int, int]]:
        """What the index says of these samples, and of those that follow them."""
        index = self._open(index_path(self.path))
        if index.size > _KEPT:
            found = self._read(
                index,
                [number * _ENTRY for number in numbers],
                [number * _ENTRY + _RANGE.size for number in numbers],
            )
            return [_RANGE.unpack_from(data, at) for data, at in found]
        data = self._bytes_of(index)
        return [_RANGE.unpack_from(data, number * _ENTRY) for number in numbers]

    def _bytes_of(self, file: LocalFile) -> bytes:
        """A whole small file."""
        try:
            data = file.whole()
        except OSError as error:
            raise _unreadable(file.path, error) from error
        if len(data) < file.size:
            raise _cut_off(file.path, len(data), file.size)
        return data

    def read(self, starts: Sequence[int], stops: Sequence[int]) -> Iterator[tuple[bytes, int]]:
        """For each range of the shard, ascending, bytes that hold it and where in them it is."""
        return self._read(self._open(self.path), starts, stops)

    def check_unchanged(self) -> None:
        """Raise `ShardError` when the shard has changed since it was first read."""
        self._open(self.path).check()

    def agrees(self) -> bool:
        """Whether most samples start where the index says: not so when it is of another shard."""
        starts, _ = self.ranges(range(0, self.count, max(1, self.count // _PROBES)))
        tar = self._open(self.path)
        blocks = [self._bytes(tar, start, start + BLOCK) for start in starts]
        return sum(map(is_header, blocks)) * 2 > len(blocks)

    def _another(self, what: str) -> ShardError:
        return ShardError(
            f"{self.path} and its index {index_path(self.path)} are not what was prepared: {what}. "
            "Put both back as they were; or, if these are to be read, run `energize prepare "
            "--force-overwrite` on the folder"
        )

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

    def _crc32(self, file: LocalFile) -> int:
        found = 0
        for start in range(0, file.size, _AT_ONCE):
            found = zlib.crc32(self._bytes(file, start, min(start + _AT_ONCE, file.size)), found)
        return found

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
                raise _cut_off(file.path, start, stop)
            yield data, at


def _cut_off(path: str, start: int, stop: int) -> ShardError:
    return ShardError(
        f"{path}: cut off while it was being read: there are no bytes {start} to {stop} any more; "
        "copy it again from its origin"
    )


def _unreadable(path: str, error: OSError) -> ShardError:
    if error.errno != errno.ENOENT:
        return ShardError(told(error, path))
    again = "run `energize prepare --force-overwrite` on the folder to"
    missing = f"restore it, or {again} leave it out"
    if path.endswith(".idx"):
        missing = f"{again} write it"
    elif path.endswith(".crc"):
        missing = f"write it again with: {_ADD_CHECKSUMS}"
    return ShardError(f"{path}: cannot be read ({error.strerror}); {missing}")
