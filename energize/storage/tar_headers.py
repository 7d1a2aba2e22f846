"""Tar headers: USTAR, GNU and PAX, as bytes at an offset.

Only what a reader of regular files needs: where their payloads lie and what they are called. Source
of the layout: POSIX.1-2017, pax, "ustar Interchange Format", and the GNU tar manual, "Basic Tar
Format".
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from energize.errors import ShardError
from energize.limits import limit, over_limit

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
