"""Tar shards: parsing members from memory, and scanning whole shards by headers.

Plain headers, which nearly all tars have, are parsed here; GNU, PAX and older headers
by `tarfile`. The checksum of every header is verified. The second half compares shards
with their index, their record and their checksums.
"""

from __future__ import annotations

import io
import logging
import os
import re
import struct
import sys
import tarfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from energize.core import limits
from energize.core.failures import Failed
from energize.core.ignored import log_once
from energize.core.os_errors import os_errors_as
from energize.data.files import files_at
from energize.data.local import Files, FileStream, read_entries
from energize.data.nv_meta import ShardRecord
from energize.errors import DataError, ShardError

# Size of a header; payloads are padded to a multiple of it.
BLOCK = 512

# Zeros at the end of a tar.
END_MARK = 2 * BLOCK

# Bytes of a tar in which the name of the next file is: a long one takes two blocks
# more.
NAME_BYTES = 3 * BLOCK

# Bytes at the start and the end of a shard that identify it.
END_BYTES = 16 * 1024

# Name, size and what ends it, checksum, kind, and the first letter of what stands
# before the name.
_FIELDS = struct.Struct("<100s24x11sc12x8sc188xc")
_ENDS = (b"\0", b" ")

# The low half of Adler-32 of a header, by the checksum field that it has to have with
# it. Headers of one shard differ in some hundred checksums, so that few are ever
# computed.
_sums: dict[bytes, int] = {}
_MOST_SUMS = 2**14
_ADLER_BASE = 65521

_PAX = (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE)
_EXTENSIONS = (
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XGLTYPE),
    *_PAX,
)
_PAX_RECORD = re.compile(rb"([0-9]{1,20}) ([^=]{1,255})=")
_ZEROS = bytes(BLOCK)
_AFTER_END = 1024 * 1024
_WINDOW = 4096  # bytes that are read at once, to find the next header among them
_DAMAGED = (
    "the tar is damaged. Copy it again from its origin, then run `energize prepare`"
)

_MAGIC = {
    b"\x1f\x8b": ("gzip", "gzip -d"),
    b"BZh": ("bzip2", "bzip2 -d"),
    b"\xfd7zXZ\0": ("xz", "xz -d"),
    b"\x28\xb5\x2f\xfd": ("zstd", "zstd -d"),
    b"\x04\x22\x4d\x18": ("lz4", "lz4 -d"),
}

Read = Callable[[int, int], bytes]


class TarMember(NamedTuple):
    """A regular file in a tar: `size` bytes of payload from `offset`.

    `header` is the offset of its first header.
    """

    name: str
    offset: int
    size: int
    header: int


class ScannedSample(NamedTuple):
    """A sample of a shard and its parts; `offset` is the start of its first header."""

    key: str
    offset: int
    parts: tuple[TarMember, ...]

    @property
    def parts_crc32(self) -> int:
        """CRC-32 of the part names, as in `ShardRecord.parts_crc32`."""
        return zlib.crc32(repr([part.name for part in self.parts]).encode())


@dataclass(frozen=True, slots=True)
class ShardScan:
    """Result of scanning a shard.

    Attributes:
        samples: The samples in order.
        end: Offset of the end mark, or size of the file without one.
        size: Size of the file.
        headers: CRC-32 of all headers, concatenated, including extensions.
        ends: CRC-32 of the first and last bytes.
        left_out: Names of files that belong to no sample, except below `__...__`
            folders.
    """

    samples: list[ScannedSample]
    end: int
    size: int
    headers: int
    ends: int
    left_out: list[str]


def plain_header(data: bytes, at: int) -> tuple[str, int] | None:
    """Parse the plain header at `at`; return name and size of the regular file.

    Returns None for other headers and for damaged ones.
    """
    name, digits, end, checksum, type_flag, prefix = _FIELDS.unpack_from(data, at)
    length = name.find(b"\0")
    if (
        zlib.adler32(data[at : at + BLOCK]) & 0xFFFF
        != (_sums.get(checksum) or _sum_of(checksum))
        or type_flag != b"0"
        or prefix != b"\0"
        or length < 1
        or end not in _ENDS
        or not digits.isdigit()
    ):
        return None
    try:
        return name[:length].decode("utf-8", "surrogateescape"), int(digits, 8)
    except ValueError:  # an 8 or a 9
        return None


def _sum_of(checksum: bytes) -> int:
    """Compute a header checksum from Adler-32, or return -1 if the field is not one.

    The low half of Adler-32 is 1 + the sum of all bytes, modulo 65521. The header
    checksum is that sum with the checksum field as spaces; at most two possible sums
    have the same remainder.
    """
    digits = checksum.rstrip(b"\0 ")
    try:
        stored = int(digits, 8) if digits.isdigit() else -1
    except ValueError:
        return -1
    if not 0 <= stored < 2**17:
        return -1
    expected = (1 + stored + sum(checksum) - 8 * ord(" ")) % _ADLER_BASE
    if len(_sums) < _MOST_SUMS:
        _sums[checksum] = expected
    return expected


def members(data: bytes, location: str) -> list[TarMember]:
    """Return the regular files in `data`; other members are left out.

    Args:
        data: Complete headers and payloads.
        location: Name of the bytes in errors.

    Returns:
        The files in order.

    Raises:
        ShardError: If a link would be a part, a header is damaged, or bytes are left
            over.
    """
    files, at = walk(lambda at, size: data[at : at + size], len(data), location)
    if at != len(data):
        raise ShardError(
            f"{location}: the tar ends {len(data) - at} bytes before its end in the "
            "index. Run `energize prepare` again, or copy the shard again if it was "
            "cut off"
        )
    return files


def walk(read: Read, stop: int, location: str) -> tuple[list[TarMember], int]:
    """Return the regular files before `stop` or the end mark, and where that is.

    Args:
        read: Returns bytes for an offset and a size; fewer past the end.
        stop: Offset to stop at.
        location: Name of the file in errors.

    Returns:
        The files in order, and the offset of the end mark, or `stop`.

    Raises:
        ShardError: If a header is invalid, or a payload exceeds `stop`.
    """
    files = []
    at = 0
    while at < stop:
        member, end = _member(read, at, stop, location)
        if end == at:
            break
        if end > stop:
            raise _damaged(
                location, f"the member at byte {at} runs to byte {end}, of {stop}"
            )
        if member is not None:
            files.append(member)
        at = end
    return files, at


def padded(size: int) -> int:
    """Return the size of a payload with padding to whole blocks."""
    return size + (-size % BLOCK)


def _member(
    read: Read, begin: int, stop: int, location: str
) -> tuple[TarMember | None, int]:
    """Return the file with its first header at `begin`, and the offset of its end.

    The file is None for folders, devices and irrelevant links, and for the end mark,
    which ends at `begin`.
    """
    block = read(begin, BLOCK)
    if block == _ZEROS:
        return None, begin
    plain = plain_header(block, 0) if len(block) == BLOCK else None
    if plain is not None:
        plain_member = TarMember(plain[0], begin + BLOCK, plain[1], begin)
        return plain_member, plain_member.offset + padded(plain_member.size)
    name = None
    size = None
    at = begin
    info = _header(read, at, location)
    while info.type in _EXTENSIONS:
        header_end = at + BLOCK + padded(info.size)
        if header_end >= stop:
            raise _damaged(
                location, f"an extension header without a member at byte {begin}"
            )
        if info.type == tarfile.XGLTYPE and begin == at:  # not of a single member
            begin = header_end
        records = _extension_records(read, at, info, location)
        name = records.get(b"path", name)
        size = records.get(b"size", size)
        at = header_end
        info = _header(read, at, location)
    payload = at + BLOCK
    text = info.name
    if name is not None:
        text = name.decode("utf-8", "surrogateescape").rstrip("/")
    if not info.isreg():
        _check_no_part(info, text, location)
        has_payload = info.type not in tarfile.SUPPORTED_TYPES
        return None, payload + (padded(info.size) if has_payload else 0)
    if info.type == tarfile.GNUTYPE_SPARSE:
        raise _sparse(location)
    if not text:
        raise _damaged(location, f"a file without a name at byte {begin}")
    member = TarMember(text, payload, info.size if size is None else int(size), begin)
    return member, payload + padded(member.size)


def _extension_records(
    read: Read, at: int, info: tarfile.TarInfo, location: str
) -> dict[bytes, bytes]:
    """Return the records of an extension header at byte `at`; empty for other types."""
    is_long_name = info.type == tarfile.GNUTYPE_LONGNAME
    if not is_long_name and info.type not in _PAX:
        return {}
    if info.size > limits.HEADER_BYTES:
        raise ShardError(
            f"{location}, byte {at}: {limits.over('HEADER_BYTES', info.size)}"
        )
    data = read(at + BLOCK, info.size)
    if is_long_name:
        return {b"path": _long_name(data, location)}
    return dict(_pax_records(data, location))


def _header(read: Read, at: int, location: str) -> tarfile.TarInfo:
    try:
        info = tarfile.TarInfo.frombuf(read(at, BLOCK), "utf-8", "surrogateescape")
        if info.size < 0:
            raise ValueError(f"a size of {info.size}")
    except (tarfile.HeaderError, ValueError) as reason:
        raise _damaged(location, f"no valid header at byte {at}: {reason}") from reason
    return info


def _long_name(data: bytes, location: str) -> bytes:
    name, _, rest = data.partition(b"\0")
    if any(rest):
        raise _damaged(location, "a long name with bytes after its end")
    return name


def _pax_records(data: bytes, location: str) -> Iterator[tuple[bytes, bytes]]:
    """Yield keyword and value of PAX records, "length keyword=value" and a newline.

    The length counts the whole record.
    """
    at = 0
    while at < len(data):
        match = _PAX_RECORD.match(data, at)
        stop = at + int(match[1]) if match else 0
        if not match or stop <= match.end() or data[stop - 1 : stop] != b"\n":
            raise _damaged(location, "a PAX header that cannot be parsed")
        value = data[match.end() : stop - 1]
        _check_pax(match[2], value, location)
        yield match[2], value
        at = stop


def _check_pax(keyword: bytes, value: bytes, location: str) -> None:
    if keyword == b"size" and not (value.isdigit() and len(value) < 20):
        raise _damaged(location, f"a PAX header with the size {value!r}")
    if keyword == b"path" and b"\0" in value:
        raise _damaged(location, "a PAX header with a zero byte in a name")
    if keyword.startswith(b"GNU.sparse."):
        raise _sparse(location)


def _damaged(location: str, reason: str) -> ShardError:
    return ShardError(f"{location}: {reason}: {_DAMAGED}")


def _check_no_part(info: tarfile.TarInfo, name: str, location: str) -> None:
    if (info.islnk() or info.issym()) and split_name(name) is not None:
        raise ShardError(
            f"{location}: {name!r} is a link to {info.linkname!r}, not a file. Pack "
            "the tar again with --dereference --hard-dereference"
        )


def _sparse(location: str) -> ShardError:
    return ShardError(
        f"{location}: sparse files are not supported. Pack the tar again without "
        "--sparse"
    )


def is_header(block: bytes) -> bool:
    """Return whether a block is a tar header, by its checksum."""
    try:
        return bool(tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape"))
    except (tarfile.HeaderError, ValueError):
        return False


def first_key(head: bytes) -> str | None:
    """Return the key of the sample at the start of `head`; None if unreadable."""
    at = -1
    end = 0
    while at < end < len(head):
        at = end
        try:
            member, end = _member(
                lambda at, size: head[at : at + size], at, sys.maxsize, ""
            )
        except ShardError:
            return None
        split = None if member is None else split_name(member.name)
        if split is not None:
            return split[0]
    return None


def is_aside(name: str) -> bool:
    """Return whether a member is below a top folder `__...__`, which is not read."""
    top = name.partition("/")[0] if name.startswith("__") else ""
    return len(top) >= 4 and top.endswith("__")


def split_name(name: str) -> tuple[str, str] | None:
    """Split a member's name into key and part; None if it belongs to no sample.

    The last component of the path is cut at its first dot. Names without a dot, and
    everything below a top folder called `__...__`, belong to no sample.

    >>> split_name("cats/0001.meta.json")
    ('cats/0001', 'meta.json')
    """
    if is_aside(name):
        return None
    slash = name.rfind("/")
    dot = name.find(".", slash + 1)
    if dot < 0:
        return None
    # A component that starts with its dot is keyed by its folder, when that has no dot
    # itself.
    if dot == slash + 1 and (
        slash < 0 or "." in name[name.rfind("/", 0, slash) + 1 : slash]
    ):
        return None
    return name[:dot], name[dot + 1 :]


@lru_cache(maxsize=4096)
def index_path(tar: str) -> str:
    """Return the path of the index of a shard: the last suffix becomes `.tar.idx`.

    >>> index_path("parts/data.0.tar")
    'parts/data.0.tar.idx'
    """
    return f"{os.path.splitext(tar)[0]}.tar.idx"


def ends_crc(read: Read, size: int) -> int:
    """Return the CRC-32 of the first and last `END_BYTES` of a file of `size` bytes.

    >>> data = bytes(100_000)
    >>> ends_crc(lambda at, size: data[at : at + size], len(data)) == zlib.crc32(
    ...     bytes(32 * 1024)
    ... )
    True
    """
    first = zlib.crc32(read(0, min(END_BYTES, size)))
    last = max(size - END_BYTES, 0)
    return zlib.crc32(read(last, size - last), first)


def scan(path: str | Path) -> ShardScan:
    """Scan the headers of a tar, verify them, and return its samples.

    Args:
        path: The shard, local or a URL.

    Returns:
        The samples and checksums.

    Raises:
        ShardError: If the shard cannot be read, is compressed, truncated or damaged,
            has data after its end mark, or has two files of one name in a sample.
    """
    location = os.fspath(path)
    files = files_at(location)
    with os_errors_as(ShardError, location):
        size = files.size(location)
        block = files.read(location, 0, min(BLOCK, size))
        check_unpacked(block, location)
        _check_start(block, location)
        headers = 0
        files.plan(location, [], [])
        window = _WINDOW * (1024 if files.remote else 1)
        file = io.BufferedReader(FileStream(files, location), window)

        def read(at: int, count: int) -> bytes:
            file.seek(at)
            return file.read(count)

        def read_header(at: int, count: int) -> bytes:
            nonlocal headers
            data = read(at, count)
            headers = zlib.crc32(data, headers)
            return data

        members, end = walk(read_header, size, location)
        for at in range(end, size, _AFTER_END):
            if any(read(at, _AFTER_END)):
                raise ShardError(
                    f"{location}: the tar ends at byte {end}, but more data follows, "
                    "as after joining tars with cat. Join them with `tar "
                    "--concatenate`, or pack them again"
                )
        samples = list(samples_of(members))
        for sample in samples:
            _check_parts(sample, location)
        names = (member.name for member in members if split_name(member.name) is None)
        left_out = [name for name in names if not is_aside(name)]
        return ShardScan(samples, end, size, headers, ends_crc(read, size), left_out)


def _check_start(block: bytes, location: str) -> None:
    """Raise `ShardError` if a file that begins with `block` is not a tar."""
    if not block:
        raise ShardError(
            f"{location}: the shard is an empty file. Copy it again from its origin"
        )
    if any(block) and not is_header(block):
        raise ShardError(
            f"{location}: the file is not a tar: it starts with {block[:16]!r}"
        )


def _check_parts(sample: ScannedSample, location: str) -> None:
    """Raise `ShardError` for too many parts, or two of one name."""
    if len(sample.parts) > limits.PARTS:
        over = limits.over("PARTS", len(sample.parts))
        raise ShardError(f"{location}: sample {sample.key!r}: {over}")
    counts = Counter(part.name for part in sample.parts)
    if len(counts) < len(sample.parts):
        [(repeated, _)] = counts.most_common(1)
        raise ShardError(
            f"{location}: sample {sample.key!r} has two files "
            f"{f'{sample.key}.{repeated}'!r}. Remove one and pack the tar again"
        )


def samples_of(files: Iterable[TarMember]) -> Iterator[ScannedSample]:
    """Group the files of a shard into samples: neighbours with the same key."""
    named = (
        (split, member)
        for member in files
        if (split := split_name(member.name)) is not None
    )
    for key, group in groupby(named, lambda entry: entry[0][0]):
        members = list(group)
        parts = tuple(member._replace(name=part) for (_, part), member in members)
        yield ScannedSample(key, members[0][1].header, parts)


def check_unpacked(block: bytes, location: str) -> None:
    """Raise `ShardError` for a compressed file, detected by its first bytes."""
    compression = next(
        (
            compression
            for magic, compression in _MAGIC.items()
            if block.startswith(magic)
        ),
        None,
    )
    if compression is not None:
        raise ShardError(
            f"{location}: it is compressed with {compression[0]}, so its samples "
            f"cannot be read at random. Unpack it with `{compression[1]}` (images do "
            "not shrink anyway), and run `energize prepare` if it was prepared"
        )


_log = logging.getLogger("energize")

ENTRY = 8

# Largest index cached while it is open, in bytes: 8,000 samples.
KEPT = 64 * 1024

CHECKSUM = 4
RANGE = struct.Struct("<2Q")

_ADD_CHECKSUMS = "energize prepare --checksums FOLDER"


def checksums_path(tar: str) -> str:
    """Return the path of the checksums of a shard: the last suffix becomes `.tar.crc`.

    >>> checksums_path("parts/data.0.tar")
    'parts/data.0.tar.crc'
    """
    return f"{os.path.splitext(tar)[0]}.tar.crc"


def check_shard(files: Files, path: str, count: int, record: ShardRecord | None) -> int:
    """Compare a shard and its index with their record, or with each other.

    Without a record, only cheap checks are made, which detect a stale index.

    Args:
        files: Reads the shard.
        path: The shard.
        count: Number of samples by `.info.json`.
        record: The record of the preparation; None without one.

    Returns:
        Size of the shard in bytes.

    Raises:
        ShardError: If the files cannot be read or disagree.
    """
    index = index_path(path)
    with os_errors_as(ShardError):
        size = files.size(path)
        indexed = files.size(index)
    if indexed != (count + 1) * ENTRY:
        raise disagreement(
            path,
            f"the index must have {(count + 1) * ENTRY} bytes for the {count} samples "
            f"of .info.json, got {indexed}",
        )
    check_unpacked(files.read(path, 0, min(BLOCK, size)), path)
    if any(files.read(path, max(0, size - END_BYTES), size)[-BLOCK:]):
        folder, name = os.path.split(path)
        text = (
            f"{name}has no end mark, so samples may be missing (maybe in other shards "
            "too). Write them again"
        )
        log_once(folder, "end mark", text, logging.WARNING)
    if record is not None:
        _check_record(files, path, size, record)
        return size
    end = int.from_bytes(files.read(index, indexed - ENTRY), "little")
    if end > size:
        raise disagreement(
            path,
            f"by the index the samples end at byte {end}, but the shard has {size} "
            "bytes: it was truncated or replaced",
        )
    if any(files.read(path, end, min(end + BLOCK, size))):
        raise disagreement(
            path, f"by the index the samples end at byte {end}, but more follow"
        )
    return size


def _check_record(files: Files, path: str, size: int, record: ShardRecord) -> None:
    if size != record.bytes:
        raise _another(
            path,
            f"the shard has {size} bytes instead of {record.bytes}: it was replaced, "
            "changed or cut off",
        )
    _check_crc(path, "index", files.crc32(index_path(path)), record.index_crc32)
    ends = ends_crc(lambda at, count: files.read(path, at, at + count), size)
    if ends == record.ends_crc32:
        return
    # Distinguish a replaced shard from a damaged one, which only loses some samples.
    try:
        headers = scan(path).headers
    except ShardError as damage:
        _log.warning("%s has changed since it was prepared: %s", path, damage)
        return
    _check_crc(path, "headers of the shard", headers, record.headers_crc32)
    _log.warning(
        "%s has changed since it was prepared: its files have the same names and "
        "sizes, but other bytes. To have changed samples reported, write checksums "
        "with: energize prepare --checksums",
        path,
    )


def _check_crc(path: str, subject: str, actual: int, expected: int) -> None:
    if actual != expected:
        raise _another(
            path,
            f"the CRC-32 of the {subject} is {actual:08x} instead of {expected:08x}",
        )


def check_checksums(files: Files, path: str, count: int, expected: int | None) -> None:
    """Raise `ShardError` unless the checksum file of a shard is the recorded one."""
    file = checksums_path(path)
    with os_errors_as(ShardError):
        size = files.size(file)
    if size != count * CHECKSUM:
        raise ShardError(
            f"{file} must have {count * CHECKSUM} bytes for {count} samples, got "
            f"{size}. Write the checksums again with: {_ADD_CHECKSUMS}"
        )
    crc = files.crc32(file)
    if crc != expected:
        raise ShardError(
            f"{file} has changed: its CRC-32 is {crc:08x} instead of "
            f"{expected or 0:08x}. Copy it again, or write checksums of the current "
            f"shard with: {_ADD_CHECKSUMS}"
        )


def read_checksums(files: Files, path: str, numbers: Sequence[int]) -> list[int]:
    """Return the recorded checksums of samples; `numbers` are ascending."""
    entries = read_entries(files, path, numbers, CHECKSUM, CHECKSUM)
    return [int.from_bytes(data, "little") for data in entries]


def changed(location: str, data: bytes, expected: int, path: str) -> Failed:
    """Return the failure of a sample that does not match its checksum."""
    message = (
        f"{location}: its bytes have changed: its checksum is {zlib.crc32(data):08x} "
        f"instead of {expected:08x}. Copy the file again from its origin, or keep the "
        f"new bytes with: energize prepare --checksums {path}"
    )
    return Failed(DataError(message), location)


def disagreement(path: str, reason: str) -> ShardError:
    """Return the error for a shard that contradicts its index."""
    return ShardError(
        f"{path} and its index {index_path(path)} do not match: {reason}. Copy both "
        "again from the origin, or run `energize prepare` again"
    )


def _another(path: str, reason: str) -> ShardError:
    return ShardError(
        f"{path} and its index {index_path(path)} have changed since they were "
        f"prepared: {reason}. Restore both, or, to read the new ones, run `energize "
        "prepare --force-overwrite` on the folder"
    )
