"""Brace patterns of shard names: `parts/data-{000..012}.tar` and what it stands for."""

from __future__ import annotations

import re
from collections.abc import Iterable

from braceexpand import braceexpand

__all__ = ["collapse", "escaped", "expand"]

_NUMBER = re.compile(r"([0-9]+)")
_SPECIAL = re.compile(r"[\\{},]")


def expand(patterns: Iterable[str]) -> tuple[str, ...]:
    r"""All names that the patterns stand for, in their order; `\{` is a brace in a name.

    Raises ValueError when braces are not balanced.

    >>> expand(["b.tar", "a{08..10}.tar"])
    ('b.tar', 'a08.tar', 'a09.tar', 'a10.tar')
    """
    return tuple(name for pattern in patterns for name in braceexpand(pattern))


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
