"""The index of one shard: where each of its samples begins."""

from __future__ import annotations

import hashlib
import zlib
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from energize.core.arrays import UInt64Array
from energize.data.records import ShardRecord
from energize.data.tar import ScannedSample, ShardScan, index_path, scan
from energize.data.writing import temporary, writing
from energize.errors import PrepareError, ShardError


@dataclass(frozen=True, slots=True)
class IndexedShard:
    """What preparing needs to know of a shard once its index is written.

    `parts` counts the samples that have a part of that name. `hashes` holds a 64-bit hash of each
    sample's key, `record` is what readers know the shard by. `samples` and `end` are kept only
    where they were asked for.
    """

    name: str
    count: int
    parts: dict[str, int]
    hashes: UInt64Array
    record: ShardRecord
    samples: tuple[ScannedSample, ...] = ()
    end: int = 0

    def without_samples(self) -> IndexedShard:
        """The same without what is kept per sample, but for the hashes."""
        return replace(self, samples=())


@dataclass(frozen=True, slots=True)
class ShardIndexer:
    """Scans a shard of `root` and writes its `.tar.idx`, under the name that `token` gives it."""

    root: Path
    token: str
    keep_samples: bool = False

    def __call__(self, name: str) -> IndexedShard:
        path = self.root / name
        scanned = scan(path)
        if not scanned.samples:
            raise ShardError(
                f"{path} holds no samples. Members of a shard are named key.part, 000001.jpg and "
                "000001.txt for example; remove the shard or leave it out with --exclude"
            )
        _check_names(path, scanned.samples)
        offsets = np.array([s.offset for s in scanned.samples] + [scanned.end], dtype=np.uint64)
        index = Path(index_path(str(path)))
        with writing(index, PrepareError), temporary(index, self.token).open("xb") as stream:
            stream.write(offsets.tobytes())
        return IndexedShard(
            name,
            len(scanned.samples),
            dict(Counter(part.name for s in scanned.samples for part in s.parts)),
            key_hashes([sample.key for sample in scanned.samples]),
            record_of(scanned, offsets.tobytes()),
            tuple(scanned.samples) if self.keep_samples else (),
            scanned.end,
        )


def record_of(found: ShardScan, index: bytes) -> ShardRecord:
    """What a shard is known by, given its index."""
    return ShardRecord(found.size, zlib.crc32(index), found.headers, found.ends)


def _check_names(path: Path, samples: list[ScannedSample]) -> None:
    """Raises `ShardError` for members that would be unpacked outside of any folder, or whose names
    no file of text could hold.
    """
    for sample in samples:
        for name in (sample.key, *(part.name for part in sample.parts)):
            if not is_utf8(name):
                raise ShardError(
                    f"{path}: sample {sample.key!r} has a name that is no UTF-8, {name!r}; "
                    "rename its files (convmv does it for whole folders) and pack the shard again"
                )
        if sample.key.startswith("/") or ".." in sample.key.split("/"):
            member = f"{sample.key}.{sample.parts[0].name}"
            raise ShardError(
                f"{path}: the member {member!r} has a name that is absolute or has '..' in it, so "
                "that unpacking it could write anywhere; pack the shard again with relative names"
            )


def is_utf8(name: str) -> bool:
    """Whether the bytes of a name are text; those that are not stand in it as surrogates."""
    if name.isascii():
        return True
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def key_hashes(keys: list[str]) -> UInt64Array:
    """One 64-bit word per key."""
    digests = b"".join(
        hashlib.blake2b(key.encode("utf-8", "surrogateescape"), digest_size=8).digest()
        for key in keys
    )
    return np.frombuffer(digests, dtype=np.uint64)
