"""Whether shards are those that were prepared.

`.nv-meta/shards.json` says what preparing saw of each shard: by it a reader tells a shard or an
index that is another one, and a state shards that were replaced since. Megatron-Energon neither
writes nor reads the file: folders that it prepared are read without. Where checksums were asked
for, `SHARD.tar.crc` lies beside the index of each shard: for each sample the CRC-32 of its bytes in
the shard, from its first header to where the next sample begins, unsigned 32-bit little-endian.
"""

from __future__ import annotations

import json
import logging
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, TypeAdapter

from energize.core.validation import Model
from energize.data.files import Files, exists, told
from energize.data.nv_meta import META_FOLDER, read_document
from energize.data.tar import BLOCK, compression, ends_crc, index_path, scan
from energize.errors import DatasetError, ShardError

_log = logging.getLogger("energize")

RECORDS_NAME = "shards.json"
VERSION = 1
ENTRY = 8
CHECKSUM = 4

_ADD_CHECKSUMS = "energize prepare --checksums FOLDER"
_AT_ONCE = 8 * 1024 * 1024


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


_Crc = Annotated[int, Field(ge=0, lt=2**32)]


class _Record(Model):
    """The fields of a `ShardRecord`, in their order."""

    bytes: Annotated[int, Field(ge=0, lt=2**63)]
    index_crc32: _Crc
    headers_crc32: _Crc
    ends_crc32: _Crc
    checksums_crc32: _Crc | None = None


class _Records(Model):
    version: Literal[1]
    shards: dict[str, _Record]


_RECORDS = TypeAdapter(_Records)


def checksums_path(tar: str) -> str:
    """Return where the checksums of a shard lie: beside it, with `.tar.crc` for the last suffix.

    >>> checksums_path("parts/data.0.tar")
    'parts/data.0.tar.crc'
    """
    return f"{os.path.splitext(tar)[0]}.tar.crc"


def read_records(
    path: Path, shard_counts: Mapping[str, int] | None = None
) -> dict[str, ShardRecord] | None:
    """Return what was seen of the shards of the prepared folder `path`, which are those of
    `.info.json` (None: whichever there were); None if that was not written down.

    Raise `DatasetError` for a file that is damaged, of a later version, or of other shards.
    """
    file = path / META_FOLDER / RECORDS_NAME
    if not exists(file, follow=False):
        return None
    shards = read_document(file, _RECORDS).shards
    if shard_counts is not None and shards.keys() != shard_counts.keys():
        shard = min(shards.keys() ^ shard_counts.keys())
        only = "this file" if shard in shards else ".info.json"
        raise DatasetError(
            f"{file} is not of the shards that the folder has: only {only} knows {shard[:80]!r}. "
            "Another program prepared the folder since; write the file anew with: energize prepare "
            f"--tar-index-only {path}"
        )
    return {
        shard: ShardRecord(*(value for _, value in shards[shard]))
        for shard in shard_counts or shards
    }


def dump_records(records: Mapping[str, ShardRecord]) -> str:
    """Return the text of `shards.json`."""
    names = list(_Record.model_fields)
    shards = {
        shard: {name: value for name, value in zip(names, record, strict=True) if value is not None}
        for shard, record in records.items()
    }
    return json.dumps({"version": VERSION, "shards": shards}, indent=1)


def check_shard(files: Files, path: str, count: int, record: ShardRecord | None) -> None:
    """Compare a shard of `count` samples and its index with what was prepared. Where that is not
    known, with each other, where it costs little; a stale index is found by it.

    Raise `ShardError` naming the files if they cannot be read or disagree.
    """
    index, again = index_path(path), "run `energize prepare --force-overwrite` on the folder to"
    size = _size(files, path, f"restore it, or {again} leave it out")
    indexed = _size(files, index, f"{again} write it")
    if indexed != (count + 1) * ENTRY:
        raise disagreement(
            path,
            f"the index of {count} samples, as .info.json counts them, has {(count + 1) * ENTRY} "
            f"bytes; this one has {indexed}",
        )
    packed = compression(files.read(path, 0, min(BLOCK, size)))
    if packed is not None:
        raise ShardError(
            f"{path}: the shard is compressed with {packed[0]}; unpack it with `{packed[1]}` to a "
            ".tar, then run `energize prepare`"
        )
    if record is not None:
        _check_record(files, path, size, record)
        return
    end = int.from_bytes(files.read(index, indexed - ENTRY), "little")
    if end > size:
        raise disagreement(
            path,
            f"by the index the samples end at byte {end}, but the shard has {size} bytes: it was "
            "cut off, or is another one",
        )
    if any(files.read(path, end, min(end + BLOCK, size))):
        raise disagreement(path, f"by the index the samples end at byte {end}, but more follow")


def _check_record(files: Files, path: str, size: int, record: ShardRecord) -> None:
    if size != record.size:
        raise _another(
            path,
            f"the shard has {size} bytes, and had {record.size}: it was replaced, changed or cut "
            "off",
        )
    _check_crc(path, "index", _crc32(files, index_path(path)), record.index_crc)
    ends = ends_crc(lambda at, count: files.read(path, at, at + count), size)
    if ends == record.ends_crc:
        return
    # A shard that is another one is told from one in which some bytes are damaged: of the latter
    # only those samples are lost.
    try:
        headers = scan(path).headers
    except ShardError as damage:
        _log.warning("%s has changed since it was prepared: %s", path, damage)
        return
    _check_crc(path, "headers of the shard", headers, record.headers_crc)
    _log.warning(
        "%s has changed since it was prepared: the files in it have the same names and sizes, but "
        "not the same bytes. Which samples changed is told where there are checksums (energize "
        "prepare --checksums)",
        path,
    )


def _check_crc(path: str, what: str, found: int, expected: int) -> None:
    if found != expected:
        raise _another(path, f"the CRC-32 of the {what} is {found:08x}, and was {expected:08x}")


def check_checksums(files: Files, path: str, count: int, record: ShardRecord | None) -> None:
    """Compare the checksums of a shard with what was written, which has to be known."""
    if record is None or record.checksums_crc is None:
        raise ShardError(f"{path} has no checksums; write them with: {_ADD_CHECKSUMS}")
    file = checksums_path(path)
    size = _size(files, file, f"write it again with: {_ADD_CHECKSUMS}")
    if size != count * CHECKSUM:
        raise ShardError(
            f"{file} has {size} bytes, and the checksums of {count} samples have "
            f"{count * CHECKSUM}; write them again with: {_ADD_CHECKSUMS}"
        )
    found = _crc32(files, file)
    if found != record.checksums_crc:
        raise ShardError(
            f"{file} is not what was written: its CRC-32 is {found:08x}, and was "
            f"{record.checksums_crc:08x}. Copy it again, or write the checksums of the shard as it "
            f"is now with: {_ADD_CHECKSUMS}"
        )


def disagreement(path: str, what: str) -> ShardError:
    """Return the error for a shard whose content is not what its index says."""
    return ShardError(
        f"{path} and its index {index_path(path)} do not belong together: {what}. Copy both again "
        "from where they do, or run `energize prepare` again"
    )


def _another(path: str, what: str) -> ShardError:
    return ShardError(
        f"{path} and its index {index_path(path)} are not what was prepared: {what}. Put both back "
        "as they were; or, if these are to be read, run `energize prepare --force-overwrite` on "
        "the folder"
    )


def _size(files: Files, path: str, remedy: str) -> int:
    try:
        return files.size(path)
    except FileNotFoundError as error:
        raise ShardError(f"{path}: cannot be read ({error.strerror}); {remedy}") from error
    except OSError as error:
        raise ShardError(told(error, path)) from error


def _crc32(files: Files, path: str) -> int:
    found, size = 0, files.size(path)
    for start in range(0, size, _AT_ONCE):
        found = zlib.crc32(files.read(path, start, min(start + _AT_ONCE, size)), found)
    return found
