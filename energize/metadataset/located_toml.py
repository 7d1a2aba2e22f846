"""TOML as plain values that remember, as far as can be told, the lines they were written on."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

from energize.metadataset.located_yaml import KeyPath, LocatedYaml
from energize.metadataset.problems import Problem

__all__ = ["read_toml"]

_TABLE = re.compile(r"\s*(\[\[?)\s*([\w.\- \t]+?)\s*\]\]?")
_KEY = re.compile(r"\s*([\w-]+)\s*=")


def read_toml(file: Path, problems: list[Problem]) -> LocatedYaml | None:
    """The values of `file`, or None when it cannot be read; faults go to `problems`."""
    try:
        text = file.read_text(encoding="utf-8")
        return LocatedYaml(file, tomllib.loads(text), _lines(text))
    except FileNotFoundError:
        problems.append(Problem(str(file), "the file does not exist", not_found=True))
    except OSError as error:
        problems.append(Problem(str(file), f"the file cannot be read: {error.strerror}"))
    except UnicodeDecodeError as error:
        problems.append(Problem(str(file), f"the file is not UTF-8: {error}"))
    except tomllib.TOMLDecodeError as error:
        problems.append(Problem(str(file), f"invalid TOML: {error}"))
    return None


def _lines(text: str) -> Mapping[KeyPath, int]:
    """The line of each table header and of each key that is written at the start of a line.

    The parser of the standard library does not tell them. A line inside a text of several lines can
    be taken for a key; that is a wrong line in a message at worst.
    """
    lines: dict[KeyPath, int] = {}
    lengths: dict[KeyPath, int] = {}
    table: KeyPath = ()
    for number, line in enumerate(text.splitlines(), 1):
        if header := _TABLE.match(line):
            table = ()
            for name in header[2].split("."):
                table = (*_in_last(table, lengths), name.strip())
            if header[1] == "[[":
                lengths[table] = lengths.get(table, 0) + 1
                lines.setdefault(table, number)
            table = _in_last(table, lengths)
            lines.setdefault(table, number)
        elif key := _KEY.match(line):
            lines.setdefault((*table, key[1]), number)
    return lines


def _in_last(table: KeyPath, lengths: Mapping[KeyPath, int]) -> KeyPath:
    """The last table so far of an array of tables; other tables as they are."""
    return (*table, lengths[table] - 1) if table in lengths else table
