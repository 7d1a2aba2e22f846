"""Brace patterns of shard names: `parts/data-{000..012}.tar` and what it stands for."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterable

from braceexpand import braceexpand

from energize.limits import limit, over_limit

_NUMBER = re.compile(r"([0-9]+)")
_SPECIAL = re.compile(r"[\\{},]")
_RANGE = re.compile(r"(-?[0-9]+|[A-Za-z])\.\.(-?[0-9]+|[A-Za-z])(?:\.\.-?([0-9]+))?")
_USUAL_LETTERS = 100
"""Of a name; longer ones count as several."""

_MOST_DIGITS = 18
_COSTS = 20
"""How many names take the time that it takes to look at a pattern."""


def expand(patterns: Iterable[str]) -> tuple[str, ...]:
    r"""All names that the patterns stand for, in their order; `\{` is a brace in a name.

    Raises ValueError when braces are not balanced, nested too deeply, or stand for too many names.

    >>> expand(["b.tar", "a{08..10}.tar"])
    ('b.tar', 'a08.tar', 'a09.tar', 'a10.tar')
    """
    listed = list(patterns)
    most, names, letters = limit("NAMES"), 0, 0
    for pattern in listed:
        if len(pattern) > limit("LETTERS"):
            raise ValueError(f"{reprlib.repr(pattern)}: {over_limit('LETTERS', len(pattern))}")
        if _SPECIAL.search(pattern):
            names += (count := _count(pattern))
            letters += (count + _COSTS) * len(pattern)
        if names > most or letters > most * _USUAL_LETTERS:
            raise ValueError(f"{reprlib.repr(pattern)}: {over_limit('NAMES')}")
    return tuple(name for pattern in listed for name in _names(pattern))


def _names(pattern: str) -> Iterable[str]:
    return braceexpand(pattern) if _SPECIAL.search(pattern) else (pattern,)


def collapse(names: Iterable[str]) -> list[str]:
    """Patterns that expand to exactly `names`, in the same order.

    Neighbours that count up by one in a single number of constant width become one pattern.

    >>> collapse(["a08.tar", "a09.tar", "a10.tar", "b.tar"])
    ['a{08..10}.tar', 'b.tar']
    """
    runs: list[_Run] = []
    for name in names:
        if not runs or not runs[-1].extended_by(name):
            runs.append(_Run(name))
    return [run.pattern() for run in runs]


def escaped(name: str) -> str:
    """The pattern that stands for `name` alone.

    >>> expand([escaped("a{1,2}.tar")])
    ('a{1,2}.tar',)
    """
    return _SPECIAL.sub(r"\\\g<0>", name)


def _count(pattern: str) -> int:
    """How many names a pattern stands for, without making them."""
    around: list[tuple[int, int, int]] = []  # of what is open: its start, and counts before it
    others, product = 0, 1  # names of the alternatives before this one; and of it, so far
    position = 0
    while position < len(pattern):
        char = pattern[position]
        if char == "{":
            around.append((position + 1, others, product))
            others, product = 0, 1
            if len(around) > limit("LEVELS"):
                raise ValueError(f"{reprlib.repr(pattern)}: {over_limit('LEVELS')}")
        elif char == "," and around:
            others, product = others + product, 1
        elif char == "}" and around:
            start, before, factor = around.pop()
            ends = _RANGE.fullmatch(pattern, start, position)
            inner = _length(ends) if ends else others + product
            others, product = before, factor * inner
        position += 2 if char == "\\" else 1
    for _, before, factor in reversed(around):  # which `braceexpand` refuses, mostly
        others, product = before, factor * (others + product)
    return others + product


def _length(ends: re.Match[str]) -> int:
    """How many numbers or letters a range has, or a few more."""
    if max(len(end) for end in ends.group(1, 2, 3) if end) > _MOST_DIGITS:
        return int(10**_MOST_DIGITS)
    first, last = (int(end) if end[-1].isdigit() else ord(end) for end in ends.group(1, 2))
    return abs(first - last) // (int(ends[3] or 1) or 1) + 1


class _Run:
    """Names that count up in one slot; texts have even places, numbers odd ones."""

    def __init__(self, name: str) -> None:
        self.first = _NUMBER.split(name)
        self.last = self.first
        self.slot: int | None = None

    def extended_by(self, name: str) -> bool:
        """Take `name` in if it is the next one of this run."""
        pieces = _NUMBER.split(name)
        if len(pieces) != len(self.last):
            return False
        changed = [i for i, piece in enumerate(pieces) if piece != self.last[i]]
        if len(changed) != 1 or self.slot not in (None, changed[0]):
            return False
        slot = changed[0]
        before, after = self.last[slot], pieces[slot]
        if slot % 2 == 0 or len(before) != len(after) or int(after) != int(before) + 1:
            return False
        self.slot, self.last = slot, pieces
        return True

    def pattern(self) -> str:
        pieces = [escaped(piece) for piece in self.first]
        if self.slot is not None:
            pieces[self.slot] = f"{{{self.first[self.slot]}..{self.last[self.slot]}}}"
        return "".join(pieces)
