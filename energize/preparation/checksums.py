"""Writing a checksum of each sample of a prepared folder."""

from __future__ import annotations

import os
import sys
import zlib
from array import array
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from energize.core.checks import checked_whole
from energize.data.files import LocalFile
from energize.data.nv_meta import META_FOLDER, read_info
from energize.data.records import (
    RECORDS_NAME,
    ShardRecord,
    checksums_path,
    dump_records,
    read_records,
)
from energize.data.tar import ShardScan, index_path, scan
from energize.data.writing import os_errors_as, temporary, writing
from energize.errors import PrepareError, ShardError
from energize.preparation.indexing import record_of
from energize.preparation.parallel import default_workers, map_in_order
from energize.preparation.staging import Staging

_AT_ONCE = 8 * 1024 * 1024

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class ChecksumsReport:
    """Of how many samples and bytes of shards checksums were written."""

    path: Path
    samples: int
    bytes: int


@os_errors_as(PrepareError, what="cannot be used")
def prepare_checksums(
    path: str | os.PathLike[str],
    *,
    workers: int | None = None,
    on_progress: Progress | None = None,
) -> ChecksumsReport:
    """Write a checksum of each sample of a prepared folder, one that Energon prepared too.

    They are read with `WebdatasetSource(checksums=True)`, `get_train_dataset(checksums=True)` and
    by `energize lint`. Beside the index of each shard stands `SHARD.tar.crc`: of each sample the
    CRC-32 of its bytes in the shard, headers included, as unsigned 32-bit little-endian number. All
    shards are read as a whole, in `workers` processes. `.nv-meta/shards.json` is written too where
    it was missing. Files appear together when the last shard has been read; on any error none does.

    Raises `PrepareError` for shards that are damaged, or not those that were prepared, and for
    files that cannot be written; `NotPreparedError` and `DatasetNotFoundError`.

    >>> import tempfile
    >>> from energize import WebdatasetSource, prepare, write_shards
    >>> folder = tempfile.mkdtemp()
    >>> _ = write_shards([{"__key__": "a", "txt": "one"}, {"__key__": "b", "txt": "two"}], folder)
    >>> _ = prepare(folder, split_ratios={"train": 1}, sample_type="TextSample")
    >>> prepare_checksums(folder).samples
    2
    >>> WebdatasetSource(folder, checksums=True)[1]["txt"]
    b'two'
    """
    root = Path(path)
    counts = read_info(root).shard_counts
    if not counts:
        raise PrepareError(f"{root / META_FOLDER} names no shards; prepare the folder again")
    processes = default_workers() if workers is None else checked_whole(workers, "workers", 1)
    tell = on_progress or _silent
    tell(0, len(counts))
    with Staging(root, META_FOLDER) as staging:
        staging.add([Path(checksums_path(str(root / name))) for name in counts])
        before = read_records(root, counts) or {}
        work = _Checksummer(root, staging.token, counts, before)
        records: dict[str, ShardRecord] = {}
        with closing(map_in_order(work, list(counts), processes)) as results:
            for done, (name, result) in enumerate(zip(counts, results, strict=True), 1):
                if isinstance(result, ShardError | OSError):
                    raise PrepareError(f"{result}\nNo checksums were written") from result
                if isinstance(result, Exception):
                    raise result
                records[name] = result
                tell(done, len(counts))
        staging.write(RECORDS_NAME, dump_records(records))
        staging.commit(root / next(iter(counts)))
    size = sum(record.size for record in records.values())
    return ChecksumsReport(root, sum(counts.values()), size)


@dataclass(frozen=True, slots=True)
class _Checksummer:
    """Writes the checksums of a shard under the name that `token` gives it."""

    root: Path
    token: str
    counts: dict[str, int]
    before: dict[str, ShardRecord]

    def __call__(self, name: str) -> ShardRecord:
        path = self.root / name
        found = scan(path)
        index = LocalFile(index_path(str(path)))
        offsets = index_bytes(found)
        record = record_of(found, offsets)
        again = f"prepare the folder again first: energize prepare --force-overwrite {self.root}"
        if len(found.samples) != self.counts[name]:
            raise ShardError(
                f"{path} has {len(found.samples)} samples, and .info.json says "
                f"{self.counts[name]}: {again}"
            )
        if index.read(0, index.size) != offsets:
            raise ShardError(f"{index.path} is not the index of {path} as it is now: {again}")
        if name in self.before and self.before[name].of_shard != record.of_shard:
            raise ShardError(f"{path} is not the shard that was prepared: {again}")
        data = sample_checksums(str(path), found)
        final = Path(checksums_path(str(path)))
        with writing(final, PrepareError), temporary(final, self.token).open("xb") as stream:
            stream.write(data)
        return record._replace(checksums_crc=zlib.crc32(data))


def index_bytes(found: ShardScan) -> bytes:
    """The index of a shard."""
    starts = [sample.offset for sample in found.samples]
    return _little(array("Q", [*starts, found.end])).tobytes()


def sample_checksums(path: str, found: ShardScan) -> bytes:
    """The checksums of the samples of the shard at `path`, as they are stored."""
    return checksums_between(path, [*(each.offset for each in found.samples[1:]), found.end])


def checksums_between(path: str, stops: Sequence[int]) -> bytes:
    """For each stretch of a file that ends at one of `stops`, and begins where the one before ends,
    the CRC-32 of its bytes, as unsigned 32-bit little-endian numbers.

    Raises `ShardError` when the file changes meanwhile, and OSError.
    """
    file = LocalFile(path)
    found, start = array("I"), 0
    for stop in stops:
        crc = 0
        for at in range(start, stop, _AT_ONCE):
            end = min(at + _AT_ONCE, stop)
            data, first = next(file.read_ranges([at], [end]))
            if len(data) - first < end - at:
                raise ShardError(f"{path}: cut off while it was being read; copy it again")
            crc = zlib.crc32(memoryview(data)[first : first + end - at], crc)
        found.append(crc)
        start = stop
    return _little(found).tobytes()


def _little(numbers: array[int]) -> array[int]:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def _silent(done: int, total: int) -> None:
    pass
