"""Faults of samples, those that are alike as one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from energize.cli.mix_options import counted_text

_SHOWN = 3

_ITS_OWN = re.compile(
    r"""b'(?:[^'\\]|\\.)*' | b"(?:[^"\\]|\\.)*"    # bytes
      | '(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*"      # names and texts
      | 0x[0-9a-f]+ | \d+(?:\.\d+)?                              # counts and sizes
    """,
    re.VERBOSE,
)


class Fault(NamedTuple):
    """What is wrong with one sample: where it is, the kind of error, and its words."""

    where: str
    kind: str
    text: str


@dataclass(slots=True)
class _Alike:
    first: Fault
    count: int = 0
    places: list[str] = field(default_factory=list)


@dataclass(slots=True)
class FaultList:
    """Counts faults; of those that differ only in names and numbers a few places are kept."""

    count: int = 0
    _groups: dict[tuple[str, str], _Alike] = field(default_factory=dict)

    def add(self, faults: Iterable[Fault]) -> None:
        """Count more of them."""
        for fault in faults:
            self.count += 1
            key = fault.kind, _ITS_OWN.sub("_", without_place(fault))
            alike = self._groups.setdefault(key, _Alike(fault))
            alike.count += 1
            if len(alike.places) < _SHOWN:
                alike.places.append(fault.where)

    def lines(self, what: str = "sample") -> list[str]:
        """Each kind of fault once, the most frequent first, with its count and first places; `what`
        is what has them.

        >>> faults = FaultList()
        >>> faults.add(Fault(f"0.tar, sample {key!r}", "DataError", f"no {key!r}") for key in "ab")
        >>> print(*faults.lines(), sep=chr(10))
        2 samples: DataError: no 'a'
          0.tar, sample 'a'
          0.tar, sample 'b'
        """
        lines = []
        for alike in sorted(self._groups.values(), key=lambda each: -each.count):
            kind = f"{alike.first.kind}: " if alike.first.kind else ""
            count = counted_text(alike.count, what)
            lines.append(f"{count}: {kind}{without_place(alike.first)}")
            lines += [f"  {place}" for place in alike.places]
            if alike.count > len(alike.places):
                lines.append(f"  and {alike.count - len(alike.places):,} more")
        return lines


def without_place(fault: Fault) -> str:
    """The words of a fault without the place, where they begin with it."""
    text = fault.text.removeprefix(fault.where).lstrip(":, ")
    text = re.sub(r" at 0x[0-9a-f]+>", ">", text)
    return re.sub(r"^sample '(?:[^'\\]|\\.)*': ", "", text)
