"""All formats, and how a number of mutants is shared out to them."""

from __future__ import annotations

import math
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz.corpora import commands, mixes, parts, rows, saved, shards
from tests.fuzz.formats import Format
from tests.fuzz.hunting import Hunt, Verdict
from tests.fuzz.judging import BAD, Outcome

FORMATS: Sequence[Format] = [
    *(*shards.FORMATS, *rows.FORMATS, *mixes.FORMATS, *saved.FORMATS),
    *(*parts.FORMATS, *commands.FORMATS),
]

_PER_PROCESS = 500
"""Mutants that one process reads, before another one goes on."""


@dataclass
class Tally:
    """What became of the mutants of a format: how many, the longest seconds, the most bytes."""

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    seconds: float = 0.0
    memory: int = 0

    def add(self, verdict: Verdict) -> None:
        """One more."""
        self.outcomes[verdict.outcome] += 1
        self.seconds = max(self.seconds, verdict.seconds)
        self.memory = max(self.memory, verdict.memory)

    def merge(self, other: Tally) -> None:
        """Those of another format."""
        self.outcomes += other.outcomes
        self.seconds = max(self.seconds, other.seconds)
        self.memory = max(self.memory, other.memory)


def chosen(words: Sequence[str]) -> list[Format]:
    """The formats whose names have one of these words in them, all without words.

    >>> [form.name for form in chosen(["shards.json"])]
    ['shards.json']
    """
    return [form for form in FORMATS if not words or any(word in form.name for word in words)]


def shared_out(mutants: int, forms: Sequence[Format]) -> list[int]:
    """How many mutants each format has, fewer of those that take long; at least as many as asked
    for together.
    """
    whole = sum(1 / form.cost for form in forms)
    return [math.ceil(mutants / (whole * form.cost)) for form in forms]


def fuzzed(
    form: Format,
    count: int,
    folder: Path,
    seed: int = 0,
    *,
    keep: Path | None = None,
    on_progress: Callable[[int], None] = lambda done: None,
) -> tuple[Tally, list[Verdict]]:
    """What became of the mutants of a format, and those that must not be. The folders of these are
    written into `keep`.
    """
    hunt = Hunt(form, folder, seed)
    tally, bad = Tally(), []
    for start in range(0, count, _PER_PROCESS):
        for verdict in hunt.verdicts(range(start, min(start + _PER_PROCESS, count))):
            tally.add(verdict)
            on_progress(verdict.number + 1)
            if verdict.bad:
                bad.append(verdict)
                if keep is not None:
                    _keep(hunt, verdict, keep, seed)
    shutil.rmtree(hunt.work, ignore_errors=True)
    return tally, bad


def _keep(hunt: Hunt, verdict: Verdict, keep: Path, seed: int) -> None:
    place = hunt.kept(verdict.number, keep)
    told = f"{verdict.outcome}: {verdict.file}: {verdict.change}\n{verdict.text}\n"
    again = f"python -m tests.fuzz --seed {seed} --repeat '{hunt.form.name}:{verdict.number}'\n"
    (place / "FAULT.txt").write_text(f"{told}\n{again}", encoding="utf-8", errors="replace")


def table(tallies: dict[str, Tally]) -> str:
    """What became of them all, a line for each format."""
    whole = Tally()
    for tally in tallies.values():
        whole.merge(tally)
    seen = [each for each in Outcome if each in BAD or whole.outcomes[each]]
    width = max(map(len, [*tallies, "together"]))
    lines = [" " * width + "".join(f"  {each}" for each in ("mutants", *seen, "seconds", "MB"))]
    for name, tally in [*tallies.items(), ("together", whole)]:
        counts = [tally.outcomes.total(), *(tally.outcomes[each] for each in seen)]
        cells = [f"{n:>{len(title)}}" for n, title in zip(counts, ("mutants", *seen), strict=True)]
        ends = [f"{tally.seconds:>7.2f}", f"{tally.memory / 1e6:>2.0f}"]
        lines.append("  ".join([name.ljust(width), *cells, *ends]))
    return "\n".join(lines)
