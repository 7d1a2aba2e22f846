"""Files that list failed samples; `energize.core.quarantine` describes the format."""

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
    """Return the entries of a file, and the size of an incomplete last line.

    Skips an incomplete last line, as an interrupted machine leaves it, with a warning.

    Raises:
        ConfigError: If an entry is invalid; the message has file and line.
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
        _log.warning("%s, line %d is incomplete and skipped", file, len(lines) + 1)
    whole = enumerate(lines if half else [*lines, last], 1)
    entries = [
        Entry.parsed(line, f"{file}, line {n}") for n, line in whole if line.strip()
    ]
    return entries, len(last.encode()) if half else 0


def _is_half(line: str) -> bool:
    """Return whether a line starts like an entry and is incomplete."""
    if not line or not (line.startswith(LINE_START) or LINE_START.startswith(line)):
        return False
    try:
        parse_json(line)
    except ValueError:
        return True
    return False
