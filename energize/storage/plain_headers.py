"""Tar headers as nearly all tars have them, in half the time.

Short names, no other headers before a file's: what writers of shards write unless a name is long.
Everything else, and everything that is wrong, is for `TarWalk`, which says what.
"""

from __future__ import annotations

import re
import struct
import zlib

from energize.storage.tar_headers import BLOCK, Member, stored_checksum

_FIELDS = struct.Struct("<100s24x12s12x8sc188xc")
"""Name, size, checksum, kind, and the first letter of what would stand before the name."""

_OCTAL = re.compile(rb"[0-7]{11}[\0 ]").fullmatch
_ADLER_BASE = 65521
_SPACES = 8 * ord(" ")
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
        name, digits, checksum, kind, prefix = _FIELDS.unpack_from(data, at)
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
