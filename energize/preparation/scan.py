"""The one walk over a shard, of whose results everything is made that preparing writes.

Indices, records, checksums, columns, media metadata and what `energize lint` compares are made of
the `ScannedShard`s that `scan_shards` gives.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from energize.core.arrays import UInt64Array
from energize.data.files import Files, files_at, os_errors_as, read_file
from energize.data.integrity import ShardRecord, read_records
from energize.data.nv_meta import read_info
from energize.data.tar import ScannedSample, index_path, scan
from energize.errors import DatasetError, PrepareError, ShardError
from energize.preparation.discovery import listed
from energize.preparation.workers import Progress, told_in_order
from energize.task.fields import PartAccess

_AT_ONCE = 8 * 1024 * 1024

T = TypeVar("T")


class Shard:
    """A shard of a folder, whose headers have been read.

    Raises `ShardError` as `energize.data.tar.scan` does.
    """

    def __init__(self, root: Path, name: str) -> None:
        self.root, self.name, self.path = root, name, root / name
        self.content = scan(self.path)

    def samples(self) -> Iterator[RawSample]:
        """Yield the samples in their order."""
        for number, sample in enumerate(self.content.samples):
            yield RawSample(self, number, sample)

    def checksums(self) -> bytes:
        """Return the checksums of the samples, as `SHARD.tar.crc` has them."""
        stops = [*(sample.offset for sample in self.content.samples[1:]), self.content.end]
        return checksums_of(self.path, stops)

    @cached_property
    def files(self) -> Files:
        """What reads the shard."""
        return files_at(self.path)

    @cached_property
    def index(self) -> bytes:
        """The bytes of the shard's `.tar.idx`: where each sample starts, and the last one ends."""
        offsets = [*(sample.offset for sample in self.content.samples), self.content.end]
        return np.array(offsets, dtype="<u8").tobytes()


@dataclass
class RawSample:
    """A stored sample whose parts are read when they are asked for."""

    shard: Shard
    number: int
    found: ScannedSample

    @property
    def where(self) -> str:
        """Shard and key, for messages."""
        return f"{self.shard.path}, sample {self.found.key!r}"

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The bytes of each part, by name."""
        return {part.name: part.size for part in self.found.parts}

    def part(self, name: str, limit: int | None = None) -> bytes:
        """Return the bytes of a part, or the first of them."""
        part = next(each for each in self.found.parts if each.name == name)
        stop = part.offset + (part.size if limit is None else min(limit, part.size))
        return self.shard.files.read(str(self.shard.path), part.offset, stop)

    def json(self, access: PartAccess) -> Any:
        """Return what keys lead to in a part.

        Raises `DataError` where they lead nowhere, `PrepareError` for a part that is not JSON.
        """
        try:
            content = json.loads(self.part(access.part))
        except (ValueError, RecursionError) as reason:
            raise PrepareError(f"{access.part} is not JSON: {reason}") from reason
        return access.within(content)

    def text(self, name: str) -> str:
        """Return a part that is UTF-8; raise `PrepareError` for one that is not."""
        try:
            return self.part(name).decode()
        except UnicodeDecodeError as reason:
            raise PrepareError(f"{name} is no UTF-8: {reason}") from reason

    def raw(self) -> dict[str, Any]:
        """Return the sample as `WebdatasetSource` gives it."""
        return {
            "__key__": self.found.key,
            "__dataset__": str(self.shard.root),
            "__shard__": self.shard.name,
            "__index__": self.number,
            **{part.name: self.part(part.name) for part in self.found.parts},
        }


@dataclass(slots=True)
class ScannedShard:
    """What one walk over a shard found.

    `parts` counts the samples that have a part of that name, `hashes` are 64 bits for each key,
    `record` is what readers know the shard by, `trailing` the bytes behind its last sample.
    `found` is what functions made of it that were given to `scan_shards`, by their names.
    """

    name: str
    count: int
    index: bytes
    parts: Counter[str]
    hashes: UInt64Array
    record: ShardRecord
    trailing: int
    found: dict[str, Any]

    def differences(self, root: Path, count: int, record: ShardRecord | None) -> Iterator[str]:
        """Yield in what the shard is not that of the index beside it, and of what was prepared."""
        path = root / self.name
        if self.count != count:
            yield f"{path} has {self.count} samples, and .info.json says {count}"
        file = index_path(str(path))
        with os_errors_as(ShardError):
            data = read_file(file)
        if len(data) != len(self.index):
            yield f"{file} has {len(data)} bytes, and the index of {path} {len(self.index)}"
        else:
            stored, rights = np.frombuffer(data, "<u8"), np.frombuffer(self.index, "<u8")
            # The first sample is read from the start of the shard, where its entry may point too.
            wrong = [row for row in np.flatnonzero(stored != rights) if row or stored[0]]
            if wrong:
                yield (
                    f"{file}: {len(wrong)} of {len(rights)} entries are wrong: entry "
                    f"{wrong[0]} is {stored[wrong[0]]}, and that sample is at {rights[wrong[0]]}"
                )
        self.record = self.record._replace(index_crc=zlib.crc32(data))
        for what in ("size", "index_crc", "headers_crc", "ends_crc") if record else ():
            now, was = getattr(self.record, what), getattr(record, what)
            if now != was:
                yield f"{path} is not the shard that was prepared: its {what} is {now}, was {was}"


def scan_shards(
    root: Path,
    names: Sequence[str],
    keep: Callable[[ScannedShard], T],
    functions: Mapping[str, Callable[[Shard], Any]] | None = None,
    *,
    workers: int | None = None,
    on_progress: Progress | None = None,
    faults: list[str] | None = None,
) -> list[T]:
    """Walk over shards in processes, and return what `keep` makes of each, in their order.

    `functions` are called with each `Shard` where it is read; what they return is sent here.

    Raises `PrepareError` that lists all damaged shards, and what the functions raise, unless
    `faults` are given, which take both; and `PrepareError` as `map_in_order` does.
    """
    kept: list[T] = []
    damaged: list[str] = []
    tolerated = ShardError if faults is None else DatasetError
    work = _Scan(root, functions or {})
    with closing(told_in_order(work, names, workers, on_progress)) as results:
        for result in results:
            try:
                if isinstance(result, Exception):
                    raise result
                kept.append(keep(result))
            except tolerated as fault:
                (damaged if faults is None else faults).append(str(fault))
    if damaged:
        raise PrepareError(
            f"{len(damaged)} of {len(names)} shards of {root} cannot be used:{listed(damaged)}\n"
            "Nothing was written. Repair them, or prepare the folder without them (--exclude)"
        )
    return kept


def scan_prepared(
    root: Path,
    keep: Callable[[ScannedShard], T],
    functions: Mapping[str, Callable[[Shard], Any]],
    **options: Any,
) -> list[T]:
    """Walk over the shards of a prepared folder, as `scan_shards` does.

    Raises `PrepareError` for shards that are not those that were prepared, too.
    """
    counts = read_info(root).shard_counts
    records = read_records(root, counts) or {}

    def unchanged(shard: ScannedShard) -> T:
        for difference in shard.differences(root, counts[shard.name], records.get(shard.name)):
            raise ShardError(
                f"{difference}; prepare the folder again first, with: energize prepare "
                f"--force-overwrite {root}"
            )
        return keep(shard)

    return scan_shards(root, list(counts), unchanged, functions, **options)


@dataclass(frozen=True)
class _Scan:
    root: Path
    functions: Mapping[str, Callable[[Shard], Any]]

    def __call__(self, name: str) -> ScannedShard:
        with os_errors_as(ShardError, self.root / name):
            shard = Shard(self.root, name)
            content = shard.content
            return ScannedShard(
                name,
                len(content.samples),
                shard.index,
                Counter(part.name for sample in content.samples for part in sample.parts),
                key_hashes([sample.key for sample in content.samples]),
                ShardRecord(content.size, zlib.crc32(shard.index), content.headers, content.ends),
                content.size - content.end,
                {what: function(shard) for what, function in self.functions.items()},
            )


def checksums_of(path: Path, stops: Sequence[int]) -> bytes:
    """Return for each stretch of a file that ends at one of `stops`, and begins where the one
    before ends, the CRC-32 of its bytes, as unsigned 32-bit little-endian numbers.

    Raises `ShardError` when the file changes meanwhile, and OSError.
    """
    files, found, begin = files_at(path), [], 0
    for stop in stops:
        crc = 0
        for at in range(begin, stop, _AT_ONCE):
            crc = zlib.crc32(files.read(str(path), at, min(at + _AT_ONCE, stop)), crc)
        found.append(crc)
        begin = stop
    return np.array(found, dtype="<u4").tobytes()


def key_hashes(keys: Sequence[str]) -> UInt64Array:
    """Return a word of 64 bits for each key."""
    named = (key.encode("utf-8", "surrogateescape") for key in keys)
    digests = b"".join(hashlib.blake2b(name, digest_size=8).digest() for name in named)
    return np.frombuffer(digests, dtype=np.uint64)
