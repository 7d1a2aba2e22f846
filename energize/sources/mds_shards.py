"""The bytes of MDS shards: files, and compressed files that are unpacked in memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Protocol

from energize.errors import ShardError
from energize.sources.optional import optional_module
from energize.storage.files import OpenFiles
from energize.storage.mds_format import MdsShard


class ShardBytes(Protocol):
    """Byte ranges of a shard."""

    def read_ranges(
        self, starts: Sequence[int], stops: Sequence[int]
    ) -> Iterator[tuple[bytes, int]]:
        """For each range, given in ascending order, bytes that hold it, and where in them."""


class _Unpacked:
    """A shard in memory."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def read_ranges(
        self, starts: Sequence[int], stops: Sequence[int]
    ) -> Iterator[tuple[bytes, int]]:
        for start in starts:
            yield self.data, start


class MdsShards:
    """The shards of a folder as they are read: from their files, which are kept open.

    Of a shard whose file is not there, the compressed file is unpacked. Shards that were unpacked
    last are kept, at most `unpacked_bytes` of them or one. A pickled object arrives empty.
    """

    def __init__(self, folder: str, unpacked_bytes: int) -> None:
        self._folder = folder
        self._limit = unpacked_bytes
        self._files = OpenFiles()
        self._unpacked: OrderedDict[str, _Unpacked] = OrderedDict()

    def get(self, shard: MdsShard) -> ShardBytes:
        """The bytes of a shard.

        Raises `ShardError` when it is missing, of another size than the index says, or cannot be
        unpacked, `ConfigError` when the package for that is not installed.
        """
        known = self._unpacked.get(shard.name)
        if known is not None:
            self._unpacked.move_to_end(shard.name)
            return known
        path = f"{self._folder}/{shard.name}"
        try:
            file = self._files.get(path)
        except FileNotFoundError as error:
            if shard.compressed_name is None:
                raise ShardError(f"{path} is missing; copy the folder again") from error
            return self._unpack(shard)
        except OSError as error:
            raise ShardError(f"{path} cannot be opened: {error}") from error
        _check_size(path, file.size, shard)
        return file

    def _unpack(self, shard: MdsShard) -> ShardBytes:
        path = f"{self._folder}/{shard.compressed_name}"
        try:
            file = self._files.get(path)
            packed = file.read(0, file.size)
        except OSError as error:
            raise ShardError(f"{path} cannot be read: {error}; copy the folder again") from error
        data = _unpacked(packed, shard, path)
        _check_size(path, len(data), shard)
        unpacked = self._unpacked[shard.name] = _Unpacked(data)
        while len(self._unpacked) > 1 and self._kept() > self._limit:
            self._unpacked.popitem(last=False)
        return unpacked

    def _kept(self) -> int:
        return sum(len(each.data) for each in self._unpacked.values())

    def __reduce__(self) -> tuple[type[MdsShards], tuple[str, int]]:
        return MdsShards, (self._folder, self._limit)


def _unpacked(packed: bytes, shard: MdsShard, path: str) -> bytes:
    kind = str(shard.compression).partition(":")[0]
    if kind != "zstd":
        raise ShardError(
            f"{path} is compressed with {kind!r}; energize reads zstd and uncompressed shards. "
            f"Unpack it to {shard.name} in the same folder"
        )
    zstandard = optional_module(
        "zstandard", "energize[mds]", f"reading {path}, which is compressed,"
    )
    try:
        data: bytes = zstandard.ZstdDecompressor().decompress(packed, max_output_size=shard.size)
    except zstandard.ZstdError as error:
        raise ShardError(f"{path} cannot be unpacked: {error}; copy the folder again") from error
    return data


def _check_size(path: str, size: int, shard: MdsShard) -> None:
    if size != shard.size:
        raise ShardError(
            f"{path} holds {size} bytes, but the index says {shard.size}: the shard is cut off or "
            "another one; copy the folder again"
        )
