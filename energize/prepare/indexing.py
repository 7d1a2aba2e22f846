"""The index of one shard: where each of its samples begins."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from energize.arrays import UInt64Array
from energize.errors import ShardError
from energize.prepare.staging import staged, writing
from energize.storage.tar import ScannedSample, index_path, scan


@dataclass(frozen=True, slots=True)
class IndexedShard:
    """What preparing needs to know of a shard once its index is written.

    `parts` counts the samples that have a part of that name. `hashes` holds a 64-bit hash of each
    sample's key. `samples` and `end` are kept only where they were asked for.
    """

    name: str
    count: int
    parts: dict[str, int]
    hashes: UInt64Array
    samples: tuple[ScannedSample, ...] = ()
    end: int = 0

    def without_samples(self) -> IndexedShard:
        """The same without what is kept per sample, but for the hashes."""
        return replace(self, samples=())


@dataclass(frozen=True, slots=True)
class ShardIndexer:
    """Scans a shard of `root` and stages its `.tar.idx`."""

    root: Path
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
        with writing(index):
            staged(index).write_bytes(offsets.tobytes())
        return IndexedShard(
            name,
            len(scanned.samples),
            dict(Counter(part.name for s in scanned.samples for part in s.parts)),
            key_hashes([sample.key for sample in scanned.samples]),
            tuple(scanned.samples) if self.keep_samples else (),
            scanned.end,
        )


def _check_names(path: Path, samples: list[ScannedSample]) -> None:
    """Raises `ShardError` for members that would be unpacked outside of any folder."""
    for sample in samples:
        if sample.key.startswith("/") or ".." in sample.key.split("/"):
            member = f"{sample.key}.{sample.parts[0].name}"
            raise ShardError(
                f"{path}: the member {member!r} has a name that is absolute or has '..' in it, so "
                "that unpacking it could write anywhere; pack the shard again with relative names"
            )


def key_hashes(keys: list[str]) -> UInt64Array:
    """One 64-bit word per key."""
    digests = b"".join(
        hashlib.blake2b(key.encode("utf-8", "surrogateescape"), digest_size=8).digest()
        for key in keys
    )
    return np.frombuffer(digests, dtype=np.uint64)
