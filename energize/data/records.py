"""What preparing saw of the shards of a folder: `.nv-meta/shards.json`.

By it a reader tells a shard or an index that is not the one that was prepared, and a state shards
that were replaced since. Megatron-Energon neither writes nor reads the file: folders that it
prepared are read without. Where checksums were asked for, `SHARD.tar.crc` lies beside the index of
each shard: for each sample the CRC-32 of its bytes in the shard, from its first header to where the
next sample begins, unsigned 32-bit little-endian.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from energize.data.nv_meta import META_FOLDER, Document, parsed
from energize.errors import DatasetError

RECORDS_NAME = "shards.json"
END_BYTES = 16 * 1024
VERSION = 1

_CHECKSUM_BYTES = 4
_NUMBERS = MappingProxyType(
    {
        "bytes": 2**63,
        "index_crc32": 2**32,
        "headers_crc32": 2**32,
        "ends_crc32": 2**32,
        "checksums_crc32": 2**32,
    }
)
"""What the file has of a shard, in the order of `ShardRecord`, and what is too large for it."""

_REQUIRED = tuple(_NUMBERS)[:4]


class ShardRecord(NamedTuple):
    """A shard as it was prepared: its size; the CRC-32 of the bytes of its `.tar.idx`, of all its
    headers one after the other, and of its first and last `END_BYTES`.

    `checksums_crc` is the CRC-32 of the bytes of its `.tar.crc`, None for one without.
    """

    size: int
    index_crc: int
    headers_crc: int
    ends_crc: int
    checksums_crc: int | None = None

    @property
    def of_shard(self) -> tuple[int, int, int, int]:
        """What tells the shard from others, whether there are checksums or not."""
        return self[:4]


def checksums_path(tar: str) -> str:
    """Where the checksums of a shard lie: beside it, with `.tar.crc` for the last suffix.

    >>> checksums_path("parts/data.0.tar")
    'parts/data.0.tar.crc'
    """
    return f"{os.path.splitext(tar)[0]}.tar.crc"


def checksums_size(count: int) -> int:
    """The bytes of the checksums of so many samples."""
    return count * _CHECKSUM_BYTES


def ends_crc(read: Callable[[int, int], bytes], size: int) -> int:
    """The CRC-32 of the first and the last bytes of a file of `size` bytes, which `read` reads.

    >>> data = bytes(100_000)
    >>> ends_crc(lambda at, size: data[at : at + size], len(data)) == zlib.crc32(bytes(32 * 1024))
    True
    """
    first = zlib.crc32(read(0, min(END_BYTES, size)))
    last = max(size - END_BYTES, 0)
    return zlib.crc32(read(last, size - last), first)


def read_records(
    path: Path, shard_counts: Mapping[str, int] | None = None
) -> dict[str, ShardRecord] | None:
    """What was seen of the shards of the prepared folder `path`, which are those of `.info.json`
    (None: whichever there were); None where that was not written down.

    Raises `DatasetError` for a file that is damaged, of a later version, or of other shards.
    """
    file = path / META_FOLDER / RECORDS_NAME
    if not os.path.lexists(file):
        return None
    document = parsed(file)
    version = document.content.get("version")
    if version != VERSION or isinstance(version, bool):
        raise DatasetError(
            f"{file} is of version {str(version)[:80]!r}, and this release of energize reads "
            f"version {VERSION}; use the release that wrote it, or write it anew with: energize "
            f"prepare --tar-index-only {path}"
        )
    document.check_keys(("version", "shards"), required=("shards",))
    shards = document.mapping("shards")
    if shard_counts is not None and shards.keys() != shard_counts.keys():
        shard = min(shards.keys() ^ shard_counts.keys())
        only = "this file" if shard in shards else ".info.json"
        raise DatasetError(
            f"{file} is not of the shards that the folder has: only {only} knows {shard[:80]!r}. "
            "Another program prepared the folder since; write the file anew with: energize prepare "
            f"--tar-index-only {path}"
        )
    return {shard: _record(document, shard, shards[shard]) for shard in shard_counts or shards}


def dump_records(records: Mapping[str, ShardRecord]) -> str:
    """The text of `shards.json`."""
    shards = {
        shard: {
            name: value for name, value in zip(_NUMBERS, record, strict=True) if value is not None
        }
        for shard, record in records.items()
    }
    return json.dumps({"version": VERSION, "shards": shards}, indent=1)


def _record(document: Document, shard: str, given: object) -> ShardRecord:
    if isinstance(given, dict) and set(_REQUIRED) <= given.keys() <= set(_NUMBERS):
        found = [(given[name], most) for name, most in _NUMBERS.items() if name in given]
        if all(type(each) is int and 0 <= each < most for each, most in found):
            return ShardRecord(*(each for each, _ in found))
    expected = f"whole numbers: {', '.join(_REQUIRED)}"
    raise document.error(f"shards[{shard[:80]!r}]", given, expected)
