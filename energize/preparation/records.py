"""What preparing writes down of each shard, by which readers know the shard again."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path

from energize.data.records import (
    RECORDS_NAME,
    ShardRecord,
    checksums_path,
    checksums_size,
    dump_records,
    read_records,
)
from energize.errors import DatasetError
from energize.preparation.indexing import IndexedShard
from energize.preparation.staging import Staging


def stage_records(staging: Staging, root: Path, shards: Sequence[IndexedShard]) -> tuple[str, ...]:
    """Stage what was seen of the shards of a folder; a note where checksums are gone by it.

    Checksums that lie beside a shard stay its own, unless it was prepared before and was another
    one, or had none, then. That they fit is seen when they are verified.
    """
    before = _before(root)
    records: dict[str, ShardRecord] = {}
    lost: list[str] = []
    for shard in shards:
        record = shard.record
        earlier = None if before is None else before.get(shard.name)
        had = before is None or (earlier is not None and earlier.checksums_crc is not None)
        same = earlier is None or earlier.of_shard == record.of_shard
        kept = _checksums(root / shard.name, shard.count) if had and same else None
        if kept is None and earlier is not None and earlier.checksums_crc is not None:
            lost.append(shard.name)
        records[shard.name] = record._replace(checksums_crc=kept)
    staging.write(RECORDS_NAME, dump_records(records))
    if not lost:
        return ()
    return (
        f"the checksums of {len(lost)} of {len(shards)} shards are gone, of {lost[0]} for example, "
        "which is another shard now or has lost them; write them again with: energize prepare "
        f"--checksums {root}",
    )


def _before(root: Path) -> dict[str, ShardRecord] | None:
    """What was seen when the folder was prepared last; None where it was not, or not so."""
    try:
        return read_records(root)
    except DatasetError:  # a damaged one is written anew, and nothing is known by it
        return {}


def _checksums(shard: Path, count: int) -> int | None:
    """The CRC-32 of the checksums of a shard; None where there are none of so many samples."""
    try:
        data = Path(checksums_path(str(shard))).read_bytes()
    except OSError:
        return None
    return zlib.crc32(data) if len(data) == checksums_size(count) else None
