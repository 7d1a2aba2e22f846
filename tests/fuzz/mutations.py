"""Damage to files: what disks, networks, half-done copies and people do to bytes; and
other values in what JSON and YAML say.
"""

from __future__ import annotations

import copy
import json
import random
import re
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import yaml

BLOCK = 512
"""What members of a tar, and sectors, are multiples of."""

_TOKEN = re.compile(rb"-?\d+(?:\.\d+)?|[\w./-]+")
_INTERESTING = (0, 1, 2, 7, 15, 16, 63, 127, 128, 255, 256, 511, 512, 1024, 4096)
_KINDS = (
    *["bit", "number"] * 2,
    "bit",
    "zeros",
    "noise",
    "gone",
    "other",
    "own",
    "more",
)
_EDGES = (2**15, 2**16, 2**31, 2**32, 2**53, 2**61, 2**63, 2**64)
_NUMERALS = (
    *(
        b"0",
        b"-1",
        b"1",
        b"2",
        b"00",
        b"-0",
        b"1.5",
        b"1e9",
        b"1e400",
        b"-1e-400",
        b"NaN",
    ),
    *(
        b"Infinity",
        b"-Infinity",
        b".inf",
        b"0x10",
        b"0o17",
        b"1_000",
        b"9" * 30,
        b"9" * 5000,
    ),
    *(str(edge).encode() for edge in _EDGES),
)
_WORDS = (
    *(
        b" ",
        b"\0",
        b"..",
        b"../..",
        b"/",
        b"/etc/passwd",
        b"%s",
        b"null",
        b"true",
        b"~",
    ),
    *(
        b"{",
        b"}",
        b"[",
        b"]",
        b'"',
        b"'",
        b"&a",
        b"*a",
        b"!!python/object/apply:os.getcwd []",
    ),
    *(
        b"\xff\xfe",
        b"\xc3\x28",
        b"\xed\xa0\x80",
        b"\r\n",
        b"\x1b[2J",
        b"a" * 5000,
        b"[" * 3000,
    ),
    *(b"{a,b}" * 30, b"{0..9999999}", "\u202e".encode(), b"\xef\xbb\xbf"),
)


def mutated(
    data: bytes, rng: random.Random, others: Sequence[bytes], *, text: bool = False
) -> tuple[bytes, str]:
    """Return other bytes than these, and how they came about: mostly by one thing, at
    times by several. `others` are the contents of other files.

    >>> mutated(b"abc", random.Random(3), [])
    (b'', "byte 3 to 3 became b'', 0 bytes; byte 0 to 3 became b'', 0 bytes")
    """
    made, told = bytearray(data), []
    while bytes(made) == data:
        if rng.random() < 0.01:
            made[:] = rng.choice(
                [*others, b"", b"\0" * 3000, b"<html>404 Not Found</html>\n"]
            )
            told.append(f"replaced by {len(made)} other bytes")
            continue
        for _ in range(rng.choice((1, 1, 1, 1, 2, 3))):
            start, stop = _span(made, rng, text)
            content = _content(bytes(made), start, stop, rng, others, text)
            made[start:stop] = content
            told.append(
                f"byte {start} to {stop} became {content[:20]!r}, {len(content)} bytes"
            )
    return bytes(made), "; ".join(told)


def _span(data: bytearray, rng: random.Random, text: bool) -> tuple[int, int]:
    """What is replaced: a word or number, a byte, blocks, the rest of the file, or
    nothing."""
    found = (
        list(_TOKEN.finditer(data[: 64 * 1024])) if text and rng.random() < 0.6 else []
    )
    if found:
        return rng.choice(found).span()
    at = rng.randrange(len(data) + 1)
    if rng.random() < 0.5:  # where blocks begin, formats say what follows
        at = at // BLOCK * BLOCK + rng.choice((0, rng.randrange(160)))
    at = min(at, len(data))
    length = rng.choice((0, 1, 1, 1, 1, 1, 2, 4, 8, BLOCK, 2 * BLOCK, len(data)))
    return at, min(at + length, len(data))


def _content(
    data: bytes,
    start: int,
    stop: int,
    rng: random.Random,
    others: Sequence[bytes],
    text: bool,
) -> bytes:
    """What comes in place of a span; more often than not as many bytes."""
    old, length = data[start:stop], stop - start
    kind = rng.choice(_KINDS)
    if text and rng.random() < 0.6:
        number = old.isdigit() and len(old) <= 4000  # which is what Python reads
        near = str(int(old) + rng.choice((-1, 1))).encode() if number else b""
        return rng.choice(
            (rng.choice(_NUMERALS), rng.choice(_WORDS) + rng.choice((b"", old)), near)
        )
    if kind == "bit" and old:
        at = rng.randrange(length)
        return old[:at] + bytes([old[at] ^ 1 << rng.randrange(8)]) + old[at + 1 :]
    if kind == "number":
        width = rng.choice((1, 2, 4, 8))
        near = int.from_bytes(data[start : start + width], "little") + rng.choice(
            (-BLOCK, -1, 1)
        )
        edge = rng.choice(_EDGES) - rng.choice((0, 1))
        value = rng.choice((rng.choice(_INTERESTING), edge, near, len(data), start))
        order = "<>"[rng.random() < 0.3]
        packed = struct.pack(f"{order}Q", value % 2**64)
        return (packed[:width] if order == "<" else packed[-width:]) + old[width:]
    if kind == "gone":
        return b""
    if kind in ("other", "own"):
        source = (
            rng.choice([each for each in others if each] or [data])
            if kind == "other"
            else data
        )
        at = rng.randrange(len(source) or 1) // BLOCK * BLOCK
        return source[at : at + rng.choice((length, length, BLOCK, len(source)))]
    if kind == "more":
        return old + rng.choice((bytes, rng.randbytes))(
            rng.choice((1, 2, 8, 100, BLOCK))
        )
    return (
        rng.choice((bytes, lambda n: b"\xff" * n))(length)
        if kind == "zeros"
        else rng.randbytes(length)
    )


def changed_bytes(old: bytes, new: bytes) -> list[int]:
    """Return where two texts of equal length differ; of others, all bytes of the old
    one between what both begin and end with.
    """
    if len(old) == len(new):
        return [i for i, (a, b) in enumerate(zip(old, new, strict=True)) if a != b]
    most = min(len(old), len(new))
    start = next((i for i in range(most) if old[i] != new[i]), most)
    same = next(
        (i for i in range(most - start) if old[-1 - i] != new[-1 - i]), most - start
    )
    return list(range(start, max(len(old) - same, start + 1)))


# Values

_ACTIONS = (*["other", "near"] * 2, "other", "removed", "renamed", "moved", "deep")
_STRANGE: Sequence[Any] = (
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        2,
        10**30,
        -(10**30),
        2**61,
        2**63,
        0.5,
        1e308,
        -0.0,
    ),
    *(
        float("nan"),
        float("inf"),
        float("-inf"),
        "",
        " ",
        "a",
        "0",
        "-1",
        "..",
        "../x",
        "/",
    ),
    *(
        "/dev/zero",
        "a\0b",
        "\ud800",
        "x" * 5000,
        "é" * 300,
        "{a,b}" * 12,
        "{0..99999999}",
        "1e9",
    ),
    *([], {}, [[]], [{}], {"": ""}, [None], {"a": {"b": {"c": []}}}, list(range(300))),
    *(
        {"__class__": "os.system"},
        {"points": []},
        {"points": [[0, 1], [0, 2]]},
        "os.system",
    ),
)


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values in a tree, its own first."""
    yield path
    if isinstance(tree, dict | list):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from places(value, (*path, key))


def _at(tree: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        tree = tree[step]
    return tree


def _near(value: Any, rng: random.Random) -> Any:
    """A value that might be meant."""
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int | float):
        return rng.choice(
            (value + 1, value - 1, value * 2, -value, value / 2, str(value))
        )
    if isinstance(value, str):
        at = rng.randrange(len(value) + 1)
        return rng.choice(
            (value[:at], value + "x", value[:at] + "/" + value[at:], [value])
        )
    if isinstance(value, list):
        return rng.choice((value * 2, value[1:], value[::-1], dict(enumerate(value))))
    return rng.choice((list(value.values()), list(value), [value]))


def changed(tree: Any, rng: random.Random) -> tuple[Any, str]:
    """A tree with another value, key or order somewhere, and what was done."""
    tree = copy.deepcopy(tree)
    path = rng.choice([each for each in places(tree) if each] or [()])
    if not path:
        return rng.choice(_STRANGE), "it is another value"
    holder, key = _at(tree, path[:-1]), path[-1]
    action = rng.choice(_ACTIONS)
    if action == "removed":
        del holder[key]
    elif action == "renamed" and isinstance(holder, dict):
        holder[rng.choice((f"{key}s", "zzz", "", 7, None, "é"))] = holder.pop(key)
    elif action == "renamed":
        holder.insert(key, copy.deepcopy(holder[key]))
    elif action == "deep":
        for _ in range(rng.choice((5, 60, 99, 101, 400))):
            holder[key] = [holder[key]] if key == path[0] else {"a": holder[key]}
    elif action == "near":
        holder[key] = _near(holder[key], rng)
    else:
        other = (
            rng.choice(_STRANGE)
            if action == "other"
            else _at(tree, rng.choice([*places(tree)]))
        )
        holder[key] = copy.deepcopy(other)
    return tree, f"{'.'.join(map(str, path))}: {action}"


def mutated_tree(
    data: bytes, kind: str, parsed: Any, rng: random.Random, others: Sequence[bytes]
) -> tuple[bytes, str]:
    """Return the text of a JSON or YAML file with another content, or damaged as any
    text."""
    if rng.random() < 0.6:
        try:
            tree, told = changed(parsed, rng)
            text = (
                json.dumps(tree)
                if kind == "json"
                else yaml.safe_dump(tree, sort_keys=False)
            )
            return text.encode("utf-8", "surrogatepass"), told
        except (TypeError, ValueError, RecursionError, yaml.YAMLError):
            pass
    return mutated(data, rng, others, text=True)
