"""What is wrong with a metadataset: collected while reading, raised together at the end."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from energize.errors import DatasetNotFoundError, EnergizeError, MetadatasetError

_LONGEST_PATH = 500

MOST_PROBLEMS = 100
"""After as many, the file is not looked at further: something else is meant by it."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault: its place as `file:line (path in the document)`, and what to do about it."""

    place: str
    message: str
    line: int = 0
    not_found: bool = False

    def included_from(self, place: str) -> Problem:
        """The same fault of a file that `place` in another file includes."""
        return replace(self, message=f"{self.message} (included from {place})")

    def __str__(self) -> str:
        return f"{self.place}: {self.message}"


def as_error(file: Path, problems: Sequence[Problem]) -> MetadatasetError | DatasetNotFoundError:
    """All `problems` found from `file` on as one error to raise.

    It is a `DatasetNotFoundError` when nothing but paths that do not exist is wrong, else a
    `MetadatasetError`.
    """
    if len(problems) == 1:
        text = str(problems[0])
    else:
        listed = problems[:MOST_PROBLEMS]
        lines = (f"  {number}. {problem}" for number, problem in enumerate(listed, 1))
        first = "The first " if len(problems) >= MOST_PROBLEMS else ""
        text = "\n".join([f"{first}{len(listed)} errors in {file}:", *lines])
    if all(problem.not_found for problem in problems):
        return DatasetNotFoundError(text)
    return MetadatasetError(text)


def check_few(file: Path, problems: Sequence[Problem]) -> None:
    """Raise what is found in `file` so far where it is so much that nobody would read on."""
    if len(problems) >= MOST_PROBLEMS:
        raise as_error(file, problems)


@contextmanager
def place_noted(place: str) -> Iterator[None]:
    """Says in errors where what they are about was asked for: `file:line (path)`."""
    try:
        yield
    except EnergizeError as error:
        if not place:
            raise
        raise type(error)(f"{error}\n  asked for at {place}") from error


def shown(value: Any) -> str:
    """A value as one writes it in YAML, cut to a readable length."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return cut(repr(value))


def cut(text: str) -> str:
    """A text, or the beginning of a long one."""
    return text if len(text) <= 80 else f"{text[:77]}..."


def shown_path(path: str | os.PathLike[str]) -> str:
    """A whole path as people know it, or the beginning of one that is longer than any should be."""
    text = os.path.abspath(path)
    return text if len(text) <= _LONGEST_PATH else f"{text[:_LONGEST_PATH]}..."


def number_hint(value: Any) -> str:
    """What to do about a text in the place of a number, when it reads like one; else nothing.

    >>> number_hint("100_000")
    '; write 100000, without quotes and underscores'
    """
    if not isinstance(value, str) or not re.fullmatch(r"[0-9][0-9_]*(\.[0-9]+)?", value):
        return ""
    return f"; write {value.replace('_', '')}, without quotes and underscores"
