"""Whether shards are those that were prepared: header by header, and sample by sample."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from energize.data.files import LocalFile
from energize.data.jsonl import jsonl_checksums_path, jsonl_index_path
from energize.data.nv_meta import read_info
from energize.data.records import ShardRecord, checksums_path, read_records
from energize.data.tar import BLOCK, ShardScan, index_path, scan
from energize.data.writing import exists
from energize.errors import DatasetError, PrepareError, ShardError
from energize.preparation.checksums import checksums_between, index_bytes, sample_checksums
from energize.preparation.indexing import record_of
from energize.preparation.parallel import map_in_order

_SHOWN = 5
_ENTRY = struct.calcsize("<Q")
"""Bytes that an index has of a sample."""
_TOLD = ("its size", *(f"the CRC-32 of its {what}" for what in ("index", "headers", "ends")))

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class CheckedShards:
    """What is wrong with shards; of how many of them there is no record, and no checksums."""

    faults: tuple[str, ...] = ()
    shards: int = 0
    unrecorded: int = 0
    without_checksums: int = 0


def check_counts(path: Path) -> None:
    """Raise `ShardError` for a shard of a prepared folder that cannot have as many samples as the
    folder says: reading each of them, to say that it is not there, might never end.
    """
    for shard, count in read_info(path).shard_counts.items():
        tar = path / shard
        files = (_ENTRY, Path(index_path(str(tar)))), (BLOCK, tar)
        room = [file.stat().st_size // least for least, file in files if exists(file)]
        if count > max(room, default=0):
            raise ShardError(
                f"{tar}: .info.json counts {count} samples, and neither the shard nor its index "
                "has room for so many; copy the folder again, or prepare it again"
            )


def check_shards(path: Path, workers: int, on_progress: Progress) -> CheckedShards:
    """Read every header of the shards of a prepared folder, and compare with index and record; and
    every sample of those that have checksums.

    Raises nothing for what is wrong: it is in the answer. Raises `DatasetError` where `.info.json`
    cannot be read, `PrepareError` when a process is killed.
    """
    counts = read_info(path).shard_counts
    faults: list[str] = []
    records: dict[str, ShardRecord] = {}
    try:
        records = read_records(path, counts) or {}
    except DatasetError as reason:
        faults.append(str(reason))
    on_progress(0, len(counts))
    work = _Checker(path, counts, records)
    with closing(map_in_order(work, list(counts), workers)) as results:
        for done, result in enumerate(results, 1):
            if isinstance(result, PrepareError):
                raise result
            if isinstance(result, Exception):
                faults.append(str(result))
            else:
                faults += result
            on_progress(done, len(counts))
    with_checksums = sum(record.checksums_crc is not None for record in records.values())
    return CheckedShards(
        tuple(faults), len(counts), len(counts) - len(records), len(counts) - with_checksums
    )


def check_lines(path: Path) -> tuple[str, ...]:
    """What is wrong with the checksums of a file of JSON lines, if it has any."""
    file = Path(jsonl_checksums_path(str(path)))
    if not file.exists():
        return ()
    try:
        index = LocalFile(jsonl_index_path(str(path)))
        offsets = _words("Q", index.read(8, index.size))
        found = checksums_between(str(path), offsets)
        stored = LocalFile(str(file))
        return tuple(_checksum_faults(str(path), found, stored.read(0, stored.size)))
    except (OSError, ShardError) as reason:
        return (str(reason),)


@dataclass(frozen=True, slots=True)
class _Checker:
    """What is wrong with a shard of `root`."""

    root: Path
    counts: dict[str, int]
    records: dict[str, ShardRecord]

    def __call__(self, name: str) -> list[str]:
        path = str(self.root / name)
        found, index = scan(path), LocalFile(index_path(path))
        stored = index.read(0, index.size)
        faults = list(self._index_faults(path, found, stored))
        if len(found.samples) != self.counts[name]:
            faults.append(
                f"{path} has {len(found.samples)} samples, and .info.json says {self.counts[name]}"
            )
        record = self.records.get(name)
        if record is None:
            return faults
        now = record_of(found, stored).of_shard
        for what, is_now, was in zip(_TOLD, now, record.of_shard, strict=True):
            if is_now != was:
                faults.append(
                    f"{path} is not the shard that was prepared: {what} is {is_now}, and was {was}"
                )
        if record.checksums_crc is not None:
            faults += self._checksum_faults(path, found, record.checksums_crc)
        return faults

    def _index_faults(self, path: str, found: ShardScan, stored: bytes) -> Iterator[str]:
        expected = index_bytes(found)
        if stored == expected or (stored[8:] == expected[8:] and not any(stored[:8])):
            return
        if len(stored) != len(expected):
            yield (
                f"{index_path(path)} has {len(stored)} bytes, and the index of the "
                f"{len(found.samples)} samples of {path} has {len(expected)}"
            )
            return
        starts, rights = _words("Q", stored), _words("Q", expected)
        wrong = [row for row, start in enumerate(starts) if start != rights[row]]
        names = [*(f"sample {each.key!r}" for each in found.samples), "the end"]
        shown = "; ".join(
            f"entry {row} is {starts[row]}, and {names[row][:80]} is at byte {rights[row]}"
            for row in wrong[:_SHOWN]
        )
        yield f"{index_path(path)}: {len(wrong)} of {len(starts)} entries are wrong: {shown}"

    def _checksum_faults(self, path: str, found: ShardScan, expected: int) -> Iterator[str]:
        file = LocalFile(checksums_path(path))
        stored = file.read(0, file.size)
        if zlib.crc32(stored) != expected:
            yield (
                f"{file.path} is not what was written: its CRC-32 is {zlib.crc32(stored)}, and was "
                f"{expected}"
            )
            return
        yield from _checksum_faults(path, sample_checksums(path, found), stored)


def _checksum_faults(path: str, found: bytes, stored: bytes) -> Iterator[str]:
    if len(found) != len(stored):
        yield f"{path} has {len(found) // 4} samples, and checksums of {len(stored) // 4}"
        return
    now, then = _words("I", found), _words("I", stored)
    wrong = [row for row, crc in enumerate(now) if crc != then[row]]
    if wrong:
        shown = "; ".join(
            f"that of sample {row} is {now[row]:08x}, and was {then[row]:08x}"
            for row in wrong[:_SHOWN]
        )
        yield f"{path}: the checksums of {len(wrong)} of {len(now)} samples are others: {shown}"


def _words(kind: str, data: bytes) -> tuple[int, ...]:
    size = struct.calcsize(f"<{kind}")
    return struct.unpack(f"<{len(data) // size}{kind}", data[: len(data) // size * size])
