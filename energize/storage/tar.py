"""Tar shards: the files of one sample in memory, and whole shards by their headers."""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from energize.errors import ShardError
from energize.storage.files import LocalFile
from energize.storage.plain_headers import plain_members
from energize.storage.shard_records import ends_crc
from energize.storage.tar_headers import BLOCK, Member, TarWalk, is_header

__all__ = [
    "NAME_BYTES",
    "Member",
    "Part",
    "ScannedSample",
    "ShardScan",
    "compression",
    "first_key",
    "has_key",
    "index_path",
    "members",
    "scan",
    "split_name",
]

_MAGIC = {
    b"\x1f\x8b": ("gzip", "gzip -d"),
    b"BZh": ("bzip2", "bzip2 -d"),
    b"\xfd7zXZ\0": ("xz", "xz -d"),
    b"\x28\xb5\x2f\xfd": ("zstd", "zstd -d"),
    b"\x04\x22\x4d\x18": ("lz4", "lz4 -d"),
}
_AFTER_END = 1024 * 1024
_OTHER_KINDS = frozenset(b"LKxXg")

NAME_BYTES = 3 * BLOCK
"""Bytes of a tar in which the name of the next file is: a long one takes two blocks more."""


def members(data: bytes, where: str, start: int = 0, stop: int | None = None) -> list[Member]:
    """The regular files whose headers and payloads lie in `data[start:stop]`, a part of a tar.

    Offsets count from the start of `data`. `where` is what messages call the bytes. Other kinds of
    members are left out. Raises `ShardError` for anything that is not whole headers, with the right
    checksums, and payloads.
    """
    end = len(data) if stop is None else stop
    plain = plain_members(data, start, end)
    if plain is not None:
        return plain
    walk = TarWalk(lambda at, size: data[at : at + size], where)
    found = list(walk.members(start, end))
    if walk.end != end or end > len(data):
        raise ShardError(
            f"{where}: the tar ends {end - walk.end} bytes before the index says; run "
            "`energize prepare` again, or copy the shard again if it was cut off"
        )
    return found


def first_key(head: bytes) -> str | None:
    """The key of the sample that starts with these bytes, if they hold a header that says it."""
    walk = TarWalk(lambda at, size: head[at : at + size], "")
    try:
        names = (split_name(member.name) for member in walk.members(0, sys.maxsize))
        return next((split[0] for split in names if split is not None), None)
    except ShardError:
        return None


def has_key(data: bytes, at: int, key: str) -> bool:
    """Whether the header that starts at `at`, if one does, names a file of the sample `key`.

    `data` goes on for `NAME_BYTES` from there, unless the tar ends.
    """
    if at + BLOCK > len(data):
        return False
    if data[at + 345] or data[at + 156] in _OTHER_KINDS:  # a name in two fields, or in a header
        return first_key(data[at : at + NAME_BYTES]) == key
    return data.startswith(key.encode("utf-8", "surrogateescape") + b".", at)


def split_name(name: str) -> tuple[str, str] | None:
    """The key and the part of a member's name; None for a member that belongs to no sample.

    The last component of the path is cut at its first dot. Names without a dot, and everything
    below a top folder called `__...__`, belong to no sample.

    >>> split_name("cats/0001.meta.json")
    ('cats/0001', 'meta.json')
    """
    if name.startswith("__"):
        top = name.partition("/")[0]
        if len(top) >= 4 and top.endswith("__"):
            return None
    slash = name.rfind("/")
    dot = name.find(".", slash + 1)
    if dot < 0:
        return None
    # A component that starts with its dot is keyed by its folder, when that has no dot itself.
    if dot == slash + 1 and (slash < 0 or "." in name[name.rfind("/", 0, slash) + 1 : slash]):
        return None
    return name[:dot], name[dot + 1 :]


@lru_cache(maxsize=4096)
def index_path(tar: str) -> str:
    """Where the index of a shard lies: beside it, with `.tar.idx` for the last suffix.

    >>> index_path("parts/data.0.tar")
    'parts/data.0.tar.idx'
    """
    return os.path.splitext(tar)[0] + ".tar.idx"


def compression(start: bytes) -> tuple[str, str] | None:
    """The name of the compression that a file starting with these bytes has, and what undoes it."""
    return next((found for magic, found in _MAGIC.items() if start.startswith(magic)), None)


class Part(NamedTuple):
    """One file of a sample: its payload is the `size` bytes from `offset` of the shard."""

    name: str
    offset: int
    size: int


class ScannedSample(NamedTuple):
    """One sample of a shard; `offset` is where its first header starts."""

    key: str
    offset: int
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class ShardScan:
    """What a shard consists of.

    `end` is where the last sample ends: where the end mark starts, or the file ends. `duplicates`
    are the keys that come back after another sample, so that they name several samples. `size` is
    that of the file, `headers` the CRC-32 of its headers one after the other, extensions and all,
    `ends` that of its first and last bytes.
    """

    samples: list[ScannedSample]
    end: int
    duplicates: tuple[str, ...]
    size: int = 0
    headers: int = 0
    ends: int = 0


def scan(path: str | Path) -> ShardScan:
    """The samples of a local tar, found by reading its headers only, all verified.

    Raises `ShardError`, naming the shard, when it cannot be read, is compressed, truncated or
    damaged, goes on after its end mark, or has the same file twice in one sample.
    """
    where = str(path)
    try:
        file = LocalFile(where)
        return _scanned(file, where)
    except OSError as error:
        raise ShardError(f"{where}: the shard cannot be read: {error.strerror}") from error


def _scanned(file: LocalFile, where: str) -> ShardScan:
    _check_start(file.read(0, BLOCK), where)
    headers = 0

    def read(offset: int, size: int) -> bytes:
        nonlocal headers
        data = file.read(offset, size)
        headers = zlib.crc32(data, headers)
        return data

    walk = TarWalk(read, where)
    samples: list[ScannedSample] = []
    seen: set[str] = set()
    duplicates: dict[str, None] = {}
    for key, offset, parts in _grouped(walk.members(0, file.size), where):
        if key in seen:
            duplicates[key] = None
        seen.add(key)
        samples.append(ScannedSample(key, offset, parts))
    _check_end(file, walk.end, where)
    ends = ends_crc(file.read, file.size)
    return ShardScan(samples, walk.end, tuple(duplicates), file.size, headers, ends)


def _grouped(found: Iterator[Member], where: str) -> Iterator[ScannedSample]:
    """Neighbouring members with one key are a sample."""
    key, offset = None, 0
    parts: dict[str, Part] = {}
    for member in found:
        split = split_name(member.name)
        if split is None:
            continue
        if split[0] != key:
            if key is not None:
                yield ScannedSample(key, offset, tuple(parts.values()))
            key, offset, parts = split[0], member.header, {}
        if split[1] in parts:
            raise ShardError(
                f"{where}: sample {key!r} has two files {member.name!r}; remove one and pack the "
                "tar again"
            )
        parts[split[1]] = Part(split[1], member.offset, member.size)
    if key is not None:
        yield ScannedSample(key, offset, tuple(parts.values()))


def _check_start(block: bytes, where: str) -> None:
    found = compression(block)
    if found is not None:
        raise ShardError(
            f"{where}: the shard is compressed with {found[0]}, so samples in it cannot be read at "
            f"random; unpack it with `{found[1]}` to a .tar (images do not shrink anyway)"
        )
    if not block:
        raise ShardError(f"{where}: the shard is an empty file; copy it again from its origin")
    if any(block) and not is_header(block):
        raise ShardError(f"{where}: the file is no tar: it starts with {block[:16]!r}")


def _check_end(file: LocalFile, end: int, where: str) -> None:
    """Two tars joined end to end have an end mark in the middle: half the data is unseen."""
    for at in range(end, file.size, _AFTER_END):
        after = file.read(at, _AFTER_END)
        if after == bytes(len(after)):
            continue
        raise ShardError(
            f"{where}: the tar ends at byte {end}, but more data follows, as when tars are joined "
            "with cat; join them with `tar --concatenate`, or unpack and pack them again"
        )
