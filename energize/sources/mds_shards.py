"""The bytes of MDS shards: files, and compressed files that are unpacked in memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from energize.errors import ShardError
from energize.sources.mds_unpacking import check_hash, unpacked
from energize.storage.files import LocalFile, OpenFiles
from energize.storage.mds_format import (
    MdsFile,
    MdsPart,
    MdsShard,
    check_header,
    header_range,
)

_LONGEST_HEADER = 16 * 1024 * 1024


class ShardBytes(Protocol):
    """Byte ranges of a file of a shard."""

    def read_ranges(
        self, starts: Sequence[int], stops: Sequence[int]
    ) -> Iterator[tuple[bytes, int]]:
        """For each range, given in ascending order, bytes that hold it, and where in them."""


class _Unpacked:
    """A file in memory."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def read_ranges(
        self, starts: Sequence[int], stops: Sequence[int]
    ) -> Iterator[tuple[bytes, int]]:
        for start in starts:
            yield self.data, start


class MdsShards:
    """The shards of a folder as they are read: from their files, which are kept open.

    Of a file that is not there, the compressed one is unpacked. Those that were unpacked last are
    kept, at most `unpacked_bytes` of them or one. With `validate_hash`, an algorithm that the index
    has hashes of, each file is compared with its hash when it is first read. A pickled object
    arrives empty.
    """

    def __init__(self, folder: str, unpacked_bytes: int, validate_hash: str | None = None) -> None:
        self._folder = folder
        self._limit = unpacked_bytes
        self._validate_hash = validate_hash
        self._files = OpenFiles()
        self._unpacked: OrderedDict[str, _Unpacked] = OrderedDict()
        self._validated: set[str] = set()
        self._counted: set[str] = set()

    def get(self, shard: MdsShard) -> tuple[ShardBytes, ShardBytes]:
        """The bytes that have the offsets of a shard, and its data.

        Raises `ShardError` when a file is missing, of another size, hash or number of samples than
        the index says, or cannot be unpacked, `ConfigError` when the package for that is not
        installed.
        """
        data = self._part(shard.data)
        offsets = data if shard.offsets is None else self._part(shard.offsets)
        if shard.name not in self._counted:
            self._check(shard, offsets)
            self._counted.add(shard.name)
        return offsets, data

    def _check(self, shard: MdsShard, offsets: ShardBytes) -> None:
        """Compare what a shard says of itself with the index."""
        path = f"{self._folder}/{next(shard.parts).raw.name}"
        found, at = next(offsets.read_ranges([0], [8]))
        samples, first = np.frombuffer(found, "<u4", 2, at).tolist()
        if samples != shard.samples:
            raise ShardError(
                f"{path} has {samples} samples, but the index says {shard.samples}: it is another "
                "one; copy the folder again"
            )
        start, stop = header_range(shard, first)
        if stop - start > _LONGEST_HEADER:
            raise ShardError(
                f"{path}: its header would have {stop - start} bytes: it is damaged; copy the "
                "folder again"
            )
        found, at = next(offsets.read_ranges([start], [max(start, stop)]))
        check_header(shard, found[at : at + max(0, stop - start)], path)

    def _part(self, part: MdsPart) -> ShardBytes:
        known = self._unpacked.get(part.raw.name)
        if known is not None:
            self._unpacked.move_to_end(part.raw.name)
            return known
        try:
            return self._file(part.raw)
        except FileNotFoundError as error:
            if part.packed is None:
                path = f"{self._folder}/{part.raw.name}"
                raise ShardError(f"{path} is missing; copy the folder again") from error
        return self._unpack(part, part.packed)

    def _unpack(self, part: MdsPart, packed: MdsFile) -> ShardBytes:
        path = f"{self._folder}/{packed.name}"
        try:
            file = self._file(packed)
            held = file.read(0, file.size)
        except OSError as error:
            raise ShardError(
                f"neither {part.raw.name} nor {path}, the compressed one, can be read: {error}; "
                "copy the folder again"
            ) from error
        made = _Unpacked(unpacked(held, part.compression, part.raw.size, path))
        self._unpacked[part.raw.name] = made
        while len(self._unpacked) > 1 and self._kept() > self._limit:
            self._unpacked.popitem(last=False)
        return made

    def _file(self, expected: MdsFile) -> LocalFile:
        """An open file of the size and hash that the index says."""
        path = f"{self._folder}/{expected.name}"
        try:
            file = self._files.get(path)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise ShardError(f"{path} cannot be opened: {error}") from error
        if file.size != expected.size:
            raise ShardError(
                f"{path} holds {file.size} bytes, but the index says {expected.size}: it is cut "
                "off or another one; copy the folder again"
            )
        if self._validate_hash is not None and path not in self._validated:
            check_hash(file, dict(expected.hashes), self._validate_hash)
            self._validated.add(path)
        return file

    def _kept(self) -> int:
        return sum(len(each.data) for each in self._unpacked.values())

    def __reduce__(self) -> tuple[type[MdsShards], tuple[str, int, str | None]]:
        return MdsShards, (self._folder, self._limit, self._validate_hash)
