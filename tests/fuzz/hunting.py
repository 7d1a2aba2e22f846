"""Reads mutants in processes that may hang, crash or eat memory, and judges whether
those who read them were told.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from energize.core.validation import load_json, load_yaml
from tests.fuzz.formats import Corpus, Format, Seen
from tests.fuzz.mutations import changed_bytes, mutated, mutated_tree
from tests.support.trying import HANG, Ending, tried

SECONDS = 10.0
"""How long a mutant may take. One that takes longer is read once more, with more
patience."""

MOST_MIB = 1024
"""Memory that reading a small folder may take beside what the process has."""

_BEGIN = 20
"""Letters that are left of a long path in messages, at least."""

_SHOWN = 400
_PARSERS = {"json": load_json, "yaml": load_yaml}


class Outcome(StrEnum):
    """The kinds of endings; those of `BAD` must not be."""

    EQUAL = "equal"
    OWN_ERROR = "own error"
    SUBSTITUTE = "substitute"
    DESCRIPTION = "another description"
    PAYLOAD = "payload unchecked"
    SILENT = "SILENT WRONG"
    FOREIGN = "FOREIGN ERROR"
    UNNAMED = "NAMES NO FILE"
    HANG = "HANG"
    CRASH = "CRASH"
    MEMORY = "MEMORY"


BAD = {each for each in Outcome if each.isupper()}


@dataclass(frozen=True)
class Mutant:
    """A damaged file: which, how, and the bytes before and after."""

    number: int
    file: str
    change: str
    old: bytes
    new: bytes


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant, and some words on it."""

    form: str
    mutant: Mutant
    outcome: Outcome
    text: str

    @property
    def bad(self) -> bool:
        """Whether it must not be."""
        return self.outcome in BAD

    def __str__(self) -> str:
        what = f"{self.outcome}: {self.form}:{self.mutant.number}: {self.mutant.file}"
        return f"{what}: {self.mutant.change[:200]}: {self.text[:200]}"


class Hunt:
    """The mutants of one format: the same ones for the same seed and corpus.

    `folder` is where the corpus is written, and copies of it are damaged.
    """

    def __init__(
        self, form: Format, folder: Path, seed: int = 0, seconds: float = SECONDS
    ) -> None:
        self.form = form
        self.base = folder / "base" / form.corpus.name
        self.work = folder / "work"
        self._seed = seed
        self._seconds = seconds
        _written(form.corpus, self.base)
        self._files = {
            str(path.relative_to(self.base)): path.read_bytes()
            for path in sorted(self.base.rglob("*"))
            if path.is_file()
        }
        self._targets = sorted(
            str(each.relative_to(self.base)) for each in self.base.glob(form.files)
        )
        if not self._targets:
            raise ValueError(f"{form.name}: no file of the corpus matches {form.files}")
        self._copy()
        self._well = form.corpus.read(
            self.work
        )  # here: what it imports, no mutant has to
        self._copy()
        if self._well.reported or not self._well.items:
            raise ValueError(
                f"{form.name}: the undamaged corpus cannot be read: {self._well}"
            )

    def mutant(self, number: int) -> Mutant:
        """The mutant of this number."""
        rng = random.Random(f"{self._seed}/{self.form.name}/{number}")
        file = rng.choice(self._targets)
        old, kind = self._files[file], self.form.kind
        others = [data for name, data in self._files.items() if name != file]
        if kind in _PARSERS:
            new, change = mutated_tree(
                old, kind, _PARSERS[kind](old.decode()), rng, others
            )
        else:
            new, change = mutated(old, rng, others, text=kind == "text")
        return Mutant(number, file, change, old, new)

    def verdict(self, number: int) -> Verdict:
        """What becomes of this mutant."""
        mutant = self.mutant(number)
        place = self.work / mutant.file
        place.write_bytes(mutant.new)
        try:
            ending = self._read()
            outcome, text = self._judged(mutant, ending)
            if outcome == Outcome.SILENT and self._unchecked(mutant, ending.value):
                outcome = Outcome.PAYLOAD
        finally:
            place.write_bytes(mutant.old)
        return Verdict(self.form.name, mutant, outcome, text)

    def _copy(self) -> None:
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.copytree(self.base, self.work, symlinks=True)

    def _read(self, data: tuple[str, bytes] | None = None) -> Ending:
        """What reading the folder gives; with other bytes in a file where they are
        given."""
        if data is not None:
            (self.work / data[0]).write_bytes(data[1])
        ending = tried(lambda: self.form.corpus.read(self.work), self._seconds)
        if self.form.corpus.fresh:
            self._copy()
        return ending

    def _judged(self, mutant: Mutant, ending: Ending) -> tuple[Outcome, str]:
        names = (
            str(self.work),
            Path(mutant.file).name,
            f"{str(self.work)[:_BEGIN]}...(",
        )
        known = (*names, *self.form.named)
        text = f"{ending.error}: {ending.message[:_SHOWN]}"
        if ending.error == "MemoryError" or ending.mib > MOST_MIB:
            return Outcome.MEMORY, f"{ending.mib:.0f} MiB; {text}"
        if ending.error and ending.ours:
            named = any(name in ending.message for name in known)
            return (Outcome.OWN_ERROR if named else Outcome.UNNAMED), text
        if ending.error:
            how = {HANG: Outcome.HANG}.get(ending.error, Outcome.CRASH)
            return (Outcome.FOREIGN if ending.trace else how), f"{text}\n{ending.trace}"
        found: Seen = ending.value
        if found.items == self._well.items and not found.reported:
            return Outcome.EQUAL, ""
        for told in found.reported:
            if not any(name in told for name in known):
                return Outcome.UNNAMED, f"reported: {told[:_SHOWN]}"
        strange = [each for each in found.items if each not in self._well.items]
        if found.reported and not strange:
            return Outcome.SUBSTITUTE, found.reported[0][:_SHOWN]
        what = strange[0] if strange else "other items, or another order"
        other = self.form.describes and found.described != self._well.described
        return (Outcome.DESCRIPTION if other else Outcome.SILENT), what

    def _unchecked(self, mutant: Mutant, found: Seen) -> bool:
        """Whether all that is strange comes of damage that no checksum covers."""
        known = set(self._well.items)
        for data in unchecked_damage(self.form, mutant):
            ending = self._read((mutant.file, data))
            known.update(ending.value.items if ending.value else ())
        return known.issuperset(found.items)


def unchecked_damage(form: Format, mutant: Mutant) -> Iterator[bytes]:
    """The file with only that part of the damage that no checksum could find: all of
    it, then what lies in each range alone. What reading these gives is no fault of who
    reads.
    """
    if form.unchecked is None:
        return
    changed = changed_bytes(mutant.old, mutant.new)
    ranges = [range(*each) for each in form.unchecked(mutant.old, mutant.new)]
    parts = [{place for place in changed if place in each} for each in ranges]
    parts = [{*()}.union(*parts), *parts]
    if len(mutant.old) != len(mutant.new):
        if parts[0] == set(changed):
            yield mutant.new
        # Damage before the place where bytes came or went stands where it was done.
        pairs = zip(mutant.old, mutant.new, strict=False)
        moved = {place for place, (old, new) in enumerate(pairs) if old != new}
        parts = [moved.intersection(each) for each in ranges]
    for at in filter(None, parts):
        yield bytes(
            mutant.new[i] if i in at else byte for i, byte in enumerate(mutant.old)
        )


def _written(corpus: Corpus, folder: Path) -> None:
    """Write a corpus, which several formats may have, once."""
    if not folder.exists():
        folder.mkdir(parents=True)
        try:
            corpus.write(folder)
        except BaseException:
            shutil.rmtree(folder)
            raise
