"""TOML as plain values that remember the lines they were written on."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from energize.limits import limit, over_limit
from energize.metadataset.located import KeyPath, Located, read_bytes
from energize.metadataset.problems import Problem
from energize.storage.bounded import check_depth

_BETWEEN = re.compile(r"[=\[\]{},\n]")

_LONGEST = 50
"""Lines of a value, in a longer one of which lines are not told apart."""


def read_toml(file: Path, problems: list[Problem]) -> Located | None:
    """The values of `file`, or None when it cannot be read; faults go to `problems`."""
    content = read_bytes(file, problems)
    if content is None:
        return None
    try:
        text = content.decode("utf-8")
        _check(text)
        data = tomllib.loads(text)
        check_depth(data)
        return Located(file, data, _lines(text))
    except UnicodeDecodeError as error:
        fault = f"the file is not UTF-8: {error}"
    except tomllib.TOMLDecodeError as error:
        fault = f"invalid TOML: {error}"
    except RecursionError:
        fault = over_limit("LEVELS")
    except ValueError as error:
        fault = str(error)
    problems.append(Problem(str(file), fault))
    return None


def _check(text: str) -> None:
    """Raise ValueError for more than the parser gets through at once: it is written in Python, and
    takes time that grows with the square of the parts of a dotted key.
    """
    if len(text) > limit("TOML_BYTES"):
        raise ValueError(over_limit("TOML_BYTES", len(text)))
    if any(piece.count(".") > limit("LEVELS") for piece in _BETWEEN.split(text)):
        raise ValueError(over_limit("LEVELS"))


def _lines(text: str) -> dict[KeyPath, int]:
    """The line of each table and each key of a TOML text.

    The parser does not tell them, but it tells whether a statement is complete: each is parsed by
    itself, from its first line on.
    """
    lines: dict[KeyPath, int] = {}
    lengths: dict[KeyPath, int] = {}
    table: KeyPath = ()
    statement, first = "", 1
    for number, line in enumerate(text.splitlines(), 1):
        statement += f"{line}\n"
        found = _parsed(statement)
        if found is None and number - first < _LONGEST:
            continue  # in the middle of a value
        paths = list(_paths(found or {}))
        if found and statement.lstrip().startswith("["):
            names, table = [name for name in paths[-1] if name != 0], ()
            for name in names:
                table = (*_in_last(table, lengths), name)
            if 0 in paths[-1]:
                lengths[table] = lengths.get(table, 0) + 1
                lines.setdefault(table, first)
            table = _in_last(table, lengths)
            paths = [()]
        for path in paths:
            lines.setdefault((*table, *path), first)
        statement, first = "", number + 1
    return lines


def _parsed(statement: str) -> dict[str, Any] | None:
    try:
        return tomllib.loads(statement)
    except tomllib.TOMLDecodeError:
        return None


def _paths(value: Any) -> Iterator[KeyPath]:
    """The paths of all values in a value, the innermost of the last one last."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for name, inner in items:
        yield (name,)
        if isinstance(inner, dict | list):
            yield from ((name, *path) for path in _paths(inner))


def _in_last(table: KeyPath, lengths: Mapping[KeyPath, int]) -> KeyPath:
    """The last table so far of an array of tables; other tables as they are."""
    return (*table, lengths[table] - 1) if table in lengths else table
