"""Tar headers: USTAR, GNU and PAX, as bytes at an offset.

Only what a reader of regular files needs: where their payloads lie and what they are called. Source
of the layout: POSIX.1-2017, pax, "ustar Interchange Format", and the GNU tar manual, "Basic Tar
Format".
"""

from __future__ import annotations

import errno
import logging
import os
import re
import struct
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from energize.core.limits import limit, over_limit
from energize.data.files import LocalFile, OpenFiles
from energize.data.records import ShardRecord, checksums_path, checksums_size, ends_crc
from energize.data.writing import told
from energize.errors import ShardError

BLOCK = 512
"""Bytes of a header, and what payloads are padded to a multiple of."""

END_MARK = 2 * BLOCK
"""Zeros that a tar ends with."""

_FIELDS = struct.Struct("<100s24x12s20xc100x6s82x155s12x")
_Fields = tuple[bytes, bytes, bytes, bytes, bytes]
"""Name, size, kind, magic and prefix, as stored."""

_REGULAR = frozenset((b"0", b"\0", b"7"))
_WITHOUT_PAYLOAD = frozenset((b"1", b"2", b"3", b"4", b"5", b"6"))
_LONG_NAME, _LONG_LINK, _SPARSE, _GLOBAL = b"L", b"K", b"S", b"g"
_PAX = frozenset((b"x", b"X"))
_EXTENSIONS = frozenset((_LONG_NAME, _LONG_LINK, _GLOBAL, *_PAX))
_USUAL_EXTENSION = 64 * 1024
_LONGEST_NUMBER = 20
_ZEROS = bytes(BLOCK)
_ADLER_BASE = 65521
_SPACES = 8 * ord(" ")
"""What the checksum's own bytes count, whatever they are."""

_DAMAGED = "the tar is damaged; copy it again from its origin, then run `energize prepare`"


class Member(NamedTuple):
    """A regular file in a tar: its payload is the `size` bytes from `offset`.

    `header` is where the first header that belongs to it starts.
    """

    name: str
    offset: int
    size: int
    header: int


class TarWalk:
    """The members of a tar, or of a part of one that starts with a header.

    `read(offset, size)` gives bytes, fewer past the end. Every header's checksum is compared.
    """

    def __init__(self, read: Callable[[int, int], bytes], where: str) -> None:
        self._read = read
        self._where = where
        self._name: bytes | None = None
        self._size: int | None = None
        self._pending = False
        self.end = 0
        """Where the walk stopped: at the end mark, or at the end of the bytes."""

    def members(self, start: int, stop: int) -> Iterator[Member]:
        """The regular files between `start` and `stop` or the end mark, in order.

        Raises `ShardError` where there is no valid header, or a payload runs over `stop`.
        """
        at = begin = start
        while at < stop:
            block = self._read(at, BLOCK)
            if block == _ZEROS:
                break
            fields = self._fields(block, at)
            kind = fields[2]
            payload = at + BLOCK
            size = self._payload_size(kind, fields[1], at)
            at = payload + (size + BLOCK - 1) // BLOCK * BLOCK
            if at > stop:
                raise self._truncated(begin, at, stop)
            if kind in _EXTENSIONS:
                if kind == _GLOBAL and not self._pending:
                    begin = at
                else:
                    self._extend(kind, payload, size)
                continue
            if kind in _REGULAR and not (kind == b"\0" and _text(fields[0]).endswith("/")):
                name = self._full_name(fields)
                if not name:
                    raise self._damaged(begin, "a file without a name")
                yield Member(name, payload, size, begin)
            elif kind == _SPARSE:
                raise self._sparse(begin)
            self._name, self._size, self._pending = None, None, False
            begin = at
        if begin != at:
            raise self._damaged(begin, "an extension header without a member")
        self.end = at

    def _fields(self, block: bytes, at: int) -> _Fields:
        if len(block) != BLOCK:
            raise self._damaged(at, f"a header of {len(block)} bytes instead of {BLOCK}")
        if not is_header(block):
            looks = (
                "a header with a wrong checksum" if block[257:262] == b"ustar" else "no tar header"
            )
            raise self._damaged(at, looks)
        fields: _Fields = _FIELDS.unpack(block)
        return fields

    def _payload_size(self, kind: bytes, field: bytes, at: int) -> int:
        if kind in _WITHOUT_PAYLOAD:
            return 0
        if self._size is not None and kind in _REGULAR:
            return self._size
        try:
            return _number(field)
        except ValueError:
            raise self._damaged(at, f"a size that is no number, {field!r},") from None

    def _extend(self, kind: bytes, payload: int, size: int) -> None:
        """Take a name or a size for the member that follows."""
        self._pending = True
        if kind in (_LONG_LINK, _GLOBAL):
            return
        if size > _USUAL_EXTENSION and size > limit("HEADER_BYTES"):
            raise ShardError(
                f"{self._where}, byte {payload}: {over_limit('HEADER_BYTES', size)}; headers say "
                "names and times, so that the tar is likely damaged"
            )
        data = self._read(payload, size)
        if kind == _LONG_NAME:
            self._name = data
            return
        for keyword, value in self._pax_records(data, payload):
            if keyword == b"path":
                self._name = value.rstrip(b"/")
            elif keyword == b"size":
                self._size = self._decimal(value, payload)
            elif keyword.startswith(b"GNU.sparse."):
                raise self._sparse(payload)

    def _pax_records(self, data: bytes, payload: int) -> Iterator[tuple[bytes, bytes]]:
        """Records "length keyword=value" and a newline, each length counting the whole record."""
        at = 0
        while at < len(data) and data[at]:
            digits = data[at : at + _LONGEST_NUMBER + 1].split(b" ", 1)[0]
            stop = at + self._decimal(digits, payload)
            keyword, equals, value = data[at + len(digits) + 1 : stop - 1].partition(b"=")
            if not equals or data[stop - 1 : stop] != b"\n":
                raise self._damaged(payload, "a PAX header that cannot be parsed")
            yield keyword, value
            at = stop

    def _decimal(self, digits: bytes, payload: int) -> int:
        if not digits.isdigit() or len(digits) > _LONGEST_NUMBER:
            raise self._damaged(payload, f"a PAX header with {digits!r} for a number")
        return int(digits)

    def _full_name(self, fields: _Fields) -> str:
        name, _, _, magic, prefix = fields
        if self._name is not None:
            return _text(self._name)
        if prefix[0] and magic == b"ustar\0":
            return f"{_text(prefix)}/{_text(name)}"
        return _text(name)

    def _truncated(self, begin: int, end: int, stop: int) -> ShardError:
        return ShardError(
            f"{self._where}: the member at byte {begin} runs to byte {end}, but the bytes end at "
            f"{stop}: {_DAMAGED}"
        )

    def _damaged(self, at: int, what: str) -> ShardError:
        return ShardError(f"{self._where}: found {what} at byte {at}: {_DAMAGED}")

    def _sparse(self, at: int) -> ShardError:
        return ShardError(
            f"{self._where}: the member at byte {at} is a sparse file, whose bytes do not lie "
            "together; pack the tar again without --sparse"
        )


def is_header(block: bytes) -> bool:
    """Whether a block is a tar header, by its checksum: signed or not, old tars have either."""
    if len(block) != BLOCK:
        return False
    stored = stored_checksum(block[148:156])
    if stored is None:
        return False
    # The low half of Adler-32 is 1 + the sum of the bytes, modulo 65521; adding them up in Python
    # would cost more than all else. Of the sums that there can be, two at most have one remainder.
    head = zlib.adler32(block[:148], _SPACES)
    if not (stored - (zlib.adler32(block[156:], head) & 0xFFFF)) % _ADLER_BASE:
        return True
    rest = block[:148] + block[156:]
    signed = sum(rest) + 8 * ord(" ") - 256 * sum(byte > 127 for byte in rest)
    return stored == signed


def stored_checksum(field: bytes) -> int | None:
    """The number in the checksum's field; None where there is none that a sum of bytes can be."""
    try:
        stored = int(field[:6], 8) if field[6] == 0 else _number(field)
    except ValueError:
        return None
    return stored if 0 <= stored < 2**17 else None


def _number(field: bytes) -> int:
    """An octal number, or, with the first bit set, a binary one; ValueError for anything else."""
    usual = field.rstrip(b"\0 ")
    if usual.isdigit():
        return int(usual, 8)
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.split(b"\0", 1)[0].strip() or b"0"
    if not digits.isdigit():
        raise ValueError(f"not a number: {field!r}")
    return int(digits, 8)


def _text(field: bytes) -> str:
    """Text up to the first zero byte; bytes that are not UTF-8 survive as surrogates."""
    return field.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")


# Tar headers as nearly all tars have them, in half the time.

_PLAIN_HEADERS_FIELDS = struct.Struct("<100s24x12s12x8sc188xc")
"""Name, size, checksum, kind, and the first letter of what would stand before the name."""

_OCTAL = re.compile(rb"[0-7]{11}[\0 ]").fullmatch
_MOST_REMEMBERED = 2**14

_sums: dict[bytes, int] = {}
"""The low half of Adler-32 of a header, by the checksum field that it has to have with it. Headers
of one shard differ in some hundred checksums, so that few are ever computed."""


def plain_members(data: bytes, start: int, stop: int) -> list[Member] | None:
    """What `TarWalk.members` finds in `data[start:stop]`; None where a header is no plain one, or
    one is damaged.
    """
    if stop > len(data):
        return None
    view, found, at = memoryview(data), [], start
    while at < stop:
        payload = at + BLOCK
        if payload > stop:
            return None
        name, digits, checksum, kind, prefix = _PLAIN_HEADERS_FIELDS.unpack_from(data, at)
        expected = _sums.get(checksum)
        if expected is None:
            expected = _sum_of(checksum)
        length = name.find(b"\0")
        if (
            zlib.adler32(view[at:payload]) & 0xFFFF != expected
            or kind != b"0"
            or prefix != b"\0"
            or length < 1
            or not _OCTAL(digits)
        ):
            return None
        size = int(digits[:11], 8)
        found.append(Member(name[:length].decode("utf-8", "surrogateescape"), payload, size, at))
        at = payload + (size + BLOCK - 1) // BLOCK * BLOCK
    return found if at == stop else None


def _sum_of(checksum: bytes) -> int:
    """The low half of Adler-32 is 1 + the sum of all bytes, modulo 65521; a checksum is that sum
    with its own bytes as spaces. -1, which no half is, where the field is no checksum.
    """
    stored = stored_checksum(checksum)
    if stored is None:
        return -1
    expected = (1 + stored + sum(checksum) - _SPACES) % _ADLER_BASE
    if len(_sums) < _MOST_REMEMBERED:
        _sums[checksum] = expected
    return expected


# Tar shards: the files of one sample in memory, and whole shards by their headers.

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


# Tar shards with random access through the index beside them.

_log = logging.getLogger("energize")

_ENTRY = 8
_RANGE = struct.Struct("<2Q")
_CHECKSUM = struct.Struct("<I")
_ADD_CHECKSUMS = "energize prepare --checksums FOLDER"
_PROBES = 16
_KEPT = 64 * 1024
"""Bytes of an index that is kept in memory while it is open, so that it is read once: of 8,000
samples. As many indices are open as files, 128."""

_AT_ONCE = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class IndexedTar:
    """A shard of `count` samples at `path`, read through `files`; making one opens nothing.

    `record` is what was seen of it when it was prepared, if that is known. Every method raises
    `ShardError` naming the files when they cannot be read or disagree.
    """

    files: OpenFiles
    path: str
    count: int
    record: ShardRecord | None = None

    def check(self) -> None:
        """Compare shard and index with what was prepared. Where that is not known, with each other,
        where it costs little; a stale index is found by it.
        """
        tar, index = self._open(self.path), self._open(index_path(self.path))
        expected = (self.count + 1) * _ENTRY
        if index.size != expected:
            raise self.disagreement(
                f"the index of {self.count} samples, as .info.json counts them, has {expected} "
                f"bytes; this one has {index.size}"
            )
        packed = compression(self._bytes(tar, 0, min(BLOCK, tar.size)))
        if packed is not None:
            raise ShardError(
                f"{self.path}: the shard is compressed with {packed[0]}; unpack it with "
                f"`{packed[1]}` to a .tar, then run `energize prepare`"
            )
        if self.record is not None:
            self._check_record(self.record, tar, index)
            return
        end = int.from_bytes(self._bytes(index, expected - _ENTRY, expected), "little")
        if end > tar.size:
            raise self.disagreement(
                f"by the index the samples end at byte {end}, but the shard has {tar.size} bytes: "
                "it was cut off, or is another one"
            )
        if any(self._bytes(tar, end, min(end + BLOCK, tar.size))):
            raise self.disagreement(f"by the index the samples end at byte {end}, but more follow")

    def _check_record(self, record: ShardRecord, tar: LocalFile, index: LocalFile) -> None:
        if tar.size != record.size:
            raise self._another(
                f"the shard has {tar.size} bytes, and had {record.size}: it was replaced, changed "
                "or cut off"
            )
        found = self._crc32(index)
        if found != record.index_crc:
            raise self._another(
                f"the CRC-32 of the index is {found:08x}, and was {record.index_crc:08x}"
            )
        ends = ends_crc(lambda at, size: self._bytes(tar, at, at + size), tar.size)
        if ends != record.ends_crc:
            self._look_closer(record)

    def _look_closer(self, record: ShardRecord) -> None:
        """Tell a shard that is another one from one in which some bytes are damaged: of the latter
        only those samples are lost.
        """
        try:
            headers = scan(self.path).headers
        except ShardError as damage:
            _log.warning("%s has changed since it was prepared: %s", self.path, damage)
            return
        if headers != record.headers_crc:
            raise self._another(
                f"the CRC-32 of the headers of the shard is {headers:08x}, and was "
                f"{record.headers_crc:08x}"
            )
        _log.warning(
            "%s has changed since it was prepared: the files in it have the same names and sizes, "
            "but not the same bytes. Which samples changed is told where there are checksums "
            "(energize prepare --checksums)",
            self.path,
        )

    def check_checksums(self) -> None:
        """Compare the checksums with what was written, which has to be known."""
        if self.record is None or self.record.checksums_crc is None:
            raise ShardError(f"{self.path} has no checksums; write them with: {_ADD_CHECKSUMS}")
        file, expected = self._open(checksums_path(self.path)), checksums_size(self.count)
        if file.size != expected:
            raise ShardError(
                f"{file.path} has {file.size} bytes, and the checksums of {self.count} samples "
                f"have {expected}; write them again with: {_ADD_CHECKSUMS}"
            )
        found = self._crc32(file)
        if found != self.record.checksums_crc:
            raise ShardError(
                f"{file.path} is not what was written: its CRC-32 is {found:08x}, and was "
                f"{self.record.checksums_crc:08x}. Copy it again, or write the checksums of the "
                f"shard as it is now with: {_ADD_CHECKSUMS}"
            )

    def checksums(self, numbers: Sequence[int]) -> list[int]:
        """Those of these samples, in ascending order."""
        found = self._read(
            self._open(checksums_path(self.path)),
            [number * _CHECKSUM.size for number in numbers],
            [(number + 1) * _CHECKSUM.size for number in numbers],
        )
        return [_CHECKSUM.unpack_from(data, at)[0] for data, at in found]

    @property
    def size(self) -> int:
        """The bytes of the shard."""
        return self._open(self.path).size

    def ranges(self, numbers: Sequence[int]) -> tuple[list[int], list[int]]:
        """The first byte of each of these samples, in ascending order, and the byte after it."""
        size = self._open(self.path).size
        starts, stops = [], []
        for number, (entry, stop) in zip(numbers, self._entries(numbers), strict=True):
            start = entry if number else 0
            if not start < stop <= size:
                raise self.disagreement(
                    f"by the index sample {number} lies from byte {start} to {stop}, and the shard "
                    f"has {size} bytes"
                )
            starts.append(start)
            stops.append(stop)
        return starts, stops

    def _entries(self, numbers: Sequence[int]) -> list[tuple[int, int]]:
        """What the index says of these samples, and of those that follow them."""
        index = self._open(index_path(self.path))
        if index.size > _KEPT:
            found = self._read(
                index,
                [number * _ENTRY for number in numbers],
                [number * _ENTRY + _RANGE.size for number in numbers],
            )
            return [_RANGE.unpack_from(data, at) for data, at in found]
        data = self._bytes_of(index)
        return [_RANGE.unpack_from(data, number * _ENTRY) for number in numbers]

    def _bytes_of(self, file: LocalFile) -> bytes:
        """A whole small file."""
        try:
            data = file.whole()
        except OSError as error:
            raise _unreadable(file.path, error) from error
        if len(data) < file.size:
            raise _cut_off(file.path, len(data), file.size)
        return data

    def read(self, starts: Sequence[int], stops: Sequence[int]) -> Iterator[tuple[bytes, int]]:
        """For each range of the shard, ascending, bytes that hold it and where in them it is."""
        return self._read(self._open(self.path), starts, stops)

    def check_unchanged(self) -> None:
        """Raise `ShardError` when the shard has changed since it was first read."""
        self._open(self.path).check()

    def agrees(self) -> bool:
        """Whether most samples start where the index says: not so when it is of another shard."""
        starts, _ = self.ranges(range(0, self.count, max(1, self.count // _PROBES)))
        tar = self._open(self.path)
        blocks = [self._bytes(tar, start, start + BLOCK) for start in starts]
        return sum(map(is_header, blocks)) * 2 > len(blocks)

    def _another(self, what: str) -> ShardError:
        return ShardError(
            f"{self.path} and its index {index_path(self.path)} are not what was prepared: {what}. "
            "Put both back as they were; or, if these are to be read, run `energize prepare "
            "--force-overwrite` on the folder"
        )

    def disagreement(self, what: str) -> ShardError:
        """The error for a shard whose content is not what its index says."""
        return ShardError(
            f"{self.path} and its index {index_path(self.path)} do not belong together: {what}. "
            "Copy both again from where they do, or run `energize prepare` again"
        )

    def _open(self, path: str) -> LocalFile:
        try:
            return self.files.get(path)
        except OSError as error:
            raise _unreadable(path, error) from error

    def _crc32(self, file: LocalFile) -> int:
        found = 0
        for start in range(0, file.size, _AT_ONCE):
            found = zlib.crc32(self._bytes(file, start, min(start + _AT_ONCE, file.size)), found)
        return found

    def _bytes(self, file: LocalFile, start: int, stop: int) -> bytes:
        return next(self._read(file, [start], [stop]))[0]

    def _read(
        self, file: LocalFile, starts: Sequence[int], stops: Sequence[int]
    ) -> Iterator[tuple[bytes, int]]:
        found = file.read_ranges(starts, stops)
        for start, stop in zip(starts, stops, strict=True):
            try:
                data, at = next(found)
            except OSError as error:
                raise _unreadable(file.path, error) from error
            if at + stop - start > len(data):
                raise _cut_off(file.path, start, stop)
            yield data, at


def _cut_off(path: str, start: int, stop: int) -> ShardError:
    return ShardError(
        f"{path}: cut off while it was being read: there are no bytes {start} to {stop} any more; "
        "copy it again from its origin"
    )


def _unreadable(path: str, error: OSError) -> ShardError:
    if error.errno != errno.ENOENT:
        return ShardError(told(error, path))
    again = "run `energize prepare --force-overwrite` on the folder to"
    missing = f"restore it, or {again} leave it out"
    if path.endswith(".idx"):
        missing = f"{again} write it"
    elif path.endswith(".crc"):
        missing = f"write it again with: {_ADD_CHECKSUMS}"
    return ShardError(f"{path}: cannot be read ({error.strerror}); {missing}")
