"""What became of a mutant: whether those who read it were told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from energize.errors import EnergizeError
from tests.fuzz.formats import Format, Seen
from tests.fuzz.mutations import changed_bytes

MOST_MEMORY = 1024 * 1024 * 1024
"""Bytes that reading a small folder may take beside what the process has."""

_SHOWN = 400


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


BAD = (
    Outcome.SILENT,
    Outcome.FOREIGN,
    Outcome.UNNAMED,
    Outcome.HANG,
    Outcome.CRASH,
    Outcome.MEMORY,
)


@dataclass(frozen=True)
class Mutant:
    """A damaged file: which, how, and the bytes before and after."""

    number: int
    file: str
    change: str
    old: bytes
    new: bytes


def judged(
    form: Format, mutant: Mutant, base: Seen, found: Seen | BaseException, names: Sequence[str]
) -> tuple[Outcome, str]:
    """The ending, and some words on it. `names` are of the folder and the file."""
    known = (*names, *form.named)
    if isinstance(found, MemoryError):
        return Outcome.MEMORY, "MemoryError"
    if isinstance(found, BaseException):
        return _of_error(found, known)
    if found.items == base.items and not found.reported:
        return Outcome.EQUAL, ""
    for text in found.reported:
        if not any(name in text for name in known):
            return Outcome.UNNAMED, f"reported: {text[:_SHOWN]}"
    strange = [each for each in found.items if each not in base.items]
    if found.reported and not strange:
        return Outcome.SUBSTITUTE, found.reported[0][:_SHOWN]
    what = f"{strange[0]}" if strange else "other items, or another order"
    if form.describes and found.described != base.described:
        return Outcome.DESCRIPTION, what
    return Outcome.SILENT, what


def _of_error(error: BaseException, names: Sequence[str]) -> tuple[Outcome, str]:
    text = f"{type(error).__name__}: {str(error)[:_SHOWN]}"
    if not isinstance(error, EnergizeError):
        return Outcome.FOREIGN, text
    if not any(name in str(error) for name in names):
        return Outcome.UNNAMED, text
    return Outcome.OWN_ERROR, text


def unchecked_damage(form: Format, mutant: Mutant) -> Iterator[bytes]:
    """The file with only that part of the damage that no checksum could find: all of it, then what
    lies in each range alone. What reading these gives is no fault of who reads.
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
        return
    for at in filter(None, parts):
        yield bytes(mutant.new[i] if i in at else byte for i, byte in enumerate(mutant.old))
