"""Damage to bytes: what disks, networks, half-done copies and people do to files."""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Callable, Sequence

BLOCK = 512
"""What members of a tar, and sectors, are multiples of."""

_NUMERAL = re.compile(rb"-?\d+(?:\.\d+)?")
_TOKEN = re.compile(rb"[\w./-]+")
_LARGE = 64 * 1024
_INTERESTING = [
    *(0, 1, 2, 7, 8, 15, 16, 31, 32, 63, 64, 127, 128, 255, 256, 511, 512, 1023, 1024, 4096),
    *(2**15 - 1, 2**15, 2**16 - 1, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32),
    *(2**53, 2**61, 2**63 - 1, 2**63, 2**64 - 1),
]
_NUMERALS = [
    *(b"0", b"-1", b"1", b"2", b"00", b"-0", b"1.5", b"1e9", b"1e400", b"-1e-400", b"NaN"),
    *(b"Infinity", b"-Infinity", b".inf", b"0x10", b"0o17", b"1_000", b"9" * 30, b"9" * 5000),
    *(str(2**n).encode() for n in (31, 32, 53, 61, 63, 64, 200)),
]
_WORDS = [
    *(b"", b" ", b"\0", b"..", b"../..", b"/", b"/etc/passwd", b"%s", b"null", b"true", b"~"),
    *(b"{", b"}", b"[", b"]", b'"', b"'", b"&a", b"*a", b"!!python/object/apply:os.getcwd []"),
    *(b"\xff\xfe", b"\xc3\x28", b"\xed\xa0\x80", b"\r\n", b"\x1b[2J", b"a" * 5000, b"[" * 3000),
    *(b"{a,b}" * 30, b"{0..9999999}", "\u202e".encode(), b"\xef\xbb\xbf"),
]

Mutation = Callable[[bytearray, random.Random, Sequence[bytes]], str]
"""Changes the bytes in place, may use those of other files, and says what it did."""


def flip(data: bytearray, rng: random.Random, _: Sequence[bytes]) -> str:
    at, bit = rng.randrange(len(data)), rng.randrange(8)
    data[at] ^= 1 << bit
    return f"bit {bit} of byte {at} flipped"


def flip_header(data: bytearray, rng: random.Random, _: Sequence[bytes]) -> str:
    """One bit near the start of a block, or of the file: where formats say what follows."""
    starts = range(0, len(data), BLOCK)
    at = rng.choice(starts) + rng.randrange(min(BLOCK, 160))
    at = min(at, len(data) - 1)
    bit = rng.randrange(8)
    data[at] ^= 1 << bit
    return f"bit {bit} of byte {at} flipped"


def set_byte(data: bytearray, rng: random.Random, _: Sequence[bytes]) -> str:
    at, value = rng.randrange(len(data)), rng.choice((0, 255, 32, 48, 10, rng.randrange(256)))
    data[at] = value
    return f"byte {at} set to {value}"


def insert(data: bytearray, rng: random.Random, _: Sequence[bytes]) -> str:
    at, length = rng.randrange(len(data) + 1), rng.choice((1, 2, 8, 100, BLOCK))
    data[at:at] = rng.randbytes(length) if rng.random() < 0.5 else bytes(length)
    return f"{length} bytes inserted at byte {at}"


def delete(data: bytearray, rng: random.Random, _: Sequence[bytes]) -> str:
    at, length = rng.randrange(len(data)), rng.choice((1, 2, 8, 100, BLOCK))
    del data[at : at + length]
    return f"{length} bytes deleted at byte {at}"


def truncate(data: bytearray, rng: random.Random, _: Sequence[bytes]) -> str:
    length = rng.choice((0, 1, len(data) - 1, rng.randrange(len(data))))
    length = length if rng.random() < 0.7 else length // BLOCK * BLOCK
    del data[length:]
    return f"cut to {length} bytes"


def duplicate(data: bytearray, rng: random.Random, _: Sequence[bytes]) -> str:
    start, stop = _stretch(data, rng)
    at = _place(data, rng)
    data[at:at] = data[start:stop]
    return f"bytes {start} to {stop} repeated at byte {at}"


def swap(data: bytearray, rng: random.Random, _: Sequence[bytes]) -> str:
    """Two stretches of equal length change places."""
    start, stop = _stretch(data, rng)
    length = stop - start
    other = min(_place(data, rng), len(data) - length)
    if abs(other - start) < length:
        return set_byte(data, rng, ())
    data[start:stop], data[other : other + length] = data[other : other + length], data[start:stop]
    return f"{length} bytes at {start} and at {other} swapped"


def overwrite(data: bytearray, rng: random.Random, _: Sequence[bytes]) -> str:
    """A stretch becomes zeros, ones or noise, as pages that were never written."""
    start, stop = _stretch(data, rng)
    made = rng.choice((bytes, lambda n: b"\xff" * n, rng.randbytes))(stop - start)
    data[start:stop] = made
    return f"bytes {start} to {stop} overwritten with {made[:4]!r}..."


def integer(data: bytearray, rng: random.Random, _: Sequence[bytes]) -> str:
    """A binary field becomes a number at which programs go wrong."""
    width = rng.choice((1, 2, 4, 8))
    at = rng.randrange(max(1, len(data) - width + 1))
    at = at // width * width if rng.random() < 0.7 else at
    value = rng.choice((*_INTERESTING, len(data), len(data) - 1, at)) % 2 ** (8 * width)
    if rng.random() < 0.3 and len(data) >= at + width:
        there = int.from_bytes(data[at : at + width], "little")
        value = (there + rng.choice((-BLOCK, -1, 1, BLOCK))) % 2 ** (8 * width)
    packed = struct.pack("<>"[rng.random() < 0.3] + "BHIQ"[width.bit_length() - 1], value)
    data[at : at + width] = packed
    return f"{width} bytes at {at} set to the number {value}"


def numeral(data: bytearray, rng: random.Random, _: Sequence[bytes]) -> str:
    """A number that is written out becomes another one."""
    found = list(_NUMERAL.finditer(data[:_LARGE]))
    if not found:
        return integer(data, rng, ())
    match = rng.choice(found)
    value = rng.choice(_NUMERALS)
    if rng.random() < 0.3 and match[0].isdigit() and len(match[0]) < 20:
        value = str(int(match[0]) + rng.choice((-1, 1))).encode()
    data[match.start() : match.end()] = value
    return f"the number {match[0]!r} at byte {match.start()} became {value[:20]!r}"


def word(data: bytearray, rng: random.Random, _: Sequence[bytes]) -> str:
    """A word becomes one that means something to some program, or is put beside it."""
    found = list(_TOKEN.finditer(data[:_LARGE]))
    if not found:
        return insert(data, rng, ())
    match, value = rng.choice(found), rng.choice(_WORDS)
    end = match.end() if rng.random() < 0.6 else match.start()
    data[match.start() : end] = value
    return f"{bytes(match[0])[:20]!r} at byte {match.start()} became, or got, {value[:20]!r}"


def splice(data: bytearray, rng: random.Random, others: Sequence[bytes]) -> str:
    """A stretch is taken from another file, as when blocks of a disk are mixed up."""
    other = rng.choice([each for each in others if each] or [bytes(data)])
    start, stop = _stretch(bytearray(other), rng)
    at = _place(data, rng)
    end = at + (stop - start if rng.random() < 0.6 else 0)
    data[at:end] = other[start:stop]
    return f"bytes {start} to {stop} of another file put at byte {at}, in place of {end - at}"


def replace(data: bytearray, rng: random.Random, others: Sequence[bytes]) -> str:
    """The file is another one altogether."""
    made = rng.choice([*others, b"", b"\0" * 3000, b"<html>404 Not Found</html>\n"])
    data[:] = made
    return f"replaced by {len(made)} other bytes"


IN_PLACE: Sequence[Mutation] = (flip, flip, flip_header, set_byte, swap, overwrite)
"""Those after which every other byte lies where it lay."""

BINARY: Sequence[Mutation] = (
    *(flip, flip, flip, flip_header, flip_header, flip_header, set_byte, set_byte),
    *(insert, delete, truncate, duplicate, swap, overwrite, integer, integer, splice, numeral),
)
TEXT: Sequence[Mutation] = (
    *(flip, set_byte, insert, delete, truncate, duplicate, swap, splice),
    *(numeral, numeral, word, word, word),
)


def mutated(
    data: bytes, rng: random.Random, others: Sequence[bytes], kinds: Sequence[Mutation]
) -> tuple[bytes, str]:
    """Other bytes than these, and how they came about; mostly by one thing, at times by several.

    >>> mutated(b"abc", random.Random(4), [], [flip])
    (b'afc', 'bit 2 of byte 1 flipped')
    """
    made = bytearray(data)
    told: list[str] = []
    while bytes(made) == data:
        several = rng.choice((1, 1, 1, 1, 2, 3))
        if not made:
            told.append(insert(made, rng, others))
        elif several > 1 and len(made) > 1:
            told += [rng.choice(IN_PLACE)(made, rng, others) for _ in range(several)]
        else:
            kind = replace if rng.random() < 0.01 else rng.choice(kinds)
            told.append(kind(made, rng, others))
    return bytes(made), "; ".join(told)


def changed_span(old: bytes, new: bytes) -> tuple[int, int]:
    """The bytes of `old` outside of which both are the same.

    >>> changed_span(b"abcdef", b"abXXef"), changed_span(b"abc", b"abbc")
    ((2, 4), (2, 2))
    """
    most = min(len(old), len(new))
    start = next((i for i in range(most) if old[i] != new[i]), most)
    same = next((i for i in range(most - start) if old[-1 - i] != new[-1 - i]), most - start)
    return start, len(old) - same


def changed_bytes(old: bytes, new: bytes) -> list[int]:
    """Where two texts of equal length differ; of others, all bytes of `changed_span`."""
    if len(old) == len(new):
        return [i for i, (a, b) in enumerate(zip(old, new, strict=True)) if a != b]
    start, stop = changed_span(old, new)
    return list(range(start, max(stop, start + 1)))


def _place(data: bytearray, rng: random.Random) -> int:
    """Somewhere, half the time where a block begins."""
    at = rng.randrange(len(data) + 1)
    return at // BLOCK * BLOCK if rng.random() < 0.5 else at


def _stretch(data: bytearray, rng: random.Random) -> tuple[int, int]:
    start = _place(data, rng)
    length = rng.choice((1, 4, 16, BLOCK, 2 * BLOCK, 4 * BLOCK, rng.randrange(1, len(data) + 1)))
    return start, min(len(data), start + length)
