"""Files that list failed samples, as `energize.core.quarantine` describes them."""

from __future__ import annotations

import logging
import os
from glob import escape, glob
from pathlib import Path

from energize.core.os_errors import is_url
from energize.core.quarantine import LINE_START, RANK, Entry
from energize.core.validation import parse_json
from energize.data.files import path_of, read_file
from energize.errors import ConfigError

_log = logging.getLogger("energize")


def files_of(path: str) -> list[Path]:
    """Return the files that ranks have written for one path, in order."""
    if RANK in path:
        patterns = [escape(path).replace(escape(RANK), "*")]
    else:
        stem, suffix = os.path.splitext(path)
        patterns = [escape(path), f"{escape(stem)}.rank*{escape(suffix)}"]
    if is_url(path):
        return sorted(
            f for path in map(path_of, patterns) for f in path.parent.glob(path.name)
        )
    files = {path for pattern in patterns for path in glob(pattern)}
    return sorted(map(Path, files))


def read_entries(file: Path) -> tuple[list[Entry], int]:
    """Return the entries of a file, and how many bytes at its end are half a line;
    `ConfigError` naming file and line for what is none.

    A last line without its end may be the half of one, of a machine that stopped while
    it was written: if it is, it is passed over with a warning.
    """
    try:
        *lines, last = read_file(file, "JSON_BYTES").decode("utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{file}: the list of failed samples cannot be read: "
            f"{type(error).__name__}: {error}"
        ) from error
    half = _is_half(last)
    if half:
        _log.warning(
            "%s, line %d is half a line; it is passed over", file, len(lines) + 1
        )
    whole = enumerate(lines if half else [*lines, last], 1)
    entries = [
        Entry.parsed(line, f"{file}, line {n}") for n, line in whole if line.strip()
    ]
    return entries, len(last.encode()) if half else 0


def _is_half(line: str) -> bool:
    """Return whether it begins as an entry and stops before its end."""
    if not line or not (line.startswith(LINE_START) or LINE_START.startswith(line)):
        return False
    try:
        parse_json(line)
    except ValueError:
        return True
    return False
