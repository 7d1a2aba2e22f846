"""Lists of failed samples: the one that a rank writes, and those that it leaves out."""

from __future__ import annotations

import errno
import logging
import os
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from energize.core.dataset import Dataset
from energize.core.lanes import WorkerConfig
from energize.core.quarantine import Entry, files_of, half_line, listed_for, read_entries
from energize.data.files import check_path
from energize.data.writing import writing
from energize.errors import ConfigError, LoaderError
from energize.loader.deciding import Decisions, decided_by
from energize.loader.failures import Failure
from energize.loader.settings import LoaderSettings

_log = logging.getLogger("energize")


def decisions_for(
    dataset: Dataset[Any], config: WorkerConfig, settings: LoaderSettings
) -> Decisions:
    """What a loader decides about samples that fail, and which it leaves out unread.

    Raises `ConfigError` for lists that cannot be read; but the one that this loader itself is going
    to write need not be there yet.
    """
    on_error = decided_by(settings.on_error, config.global_error_handler)
    locate, listed = settings.quarantine is not None, None
    if settings.lists:
        entries = [entry for path in settings.lists for entry in _entries(path, settings)]
        name = " and ".join(settings.lists)
        sources = [each for each in dataset.sources if hasattr(each, "location")]
        listed, strange = listed_for(sources, entries, name)
        _log.info("%d samples that are listed in %s are left out", listed.count, name)
        if strange:
            text = "%s: %d entries are of samples that this run does not read, the first is %s"
            _log.warning(text, name, len(strange), strange[0].line.strip())
    return Decisions(on_error, locate, listed)


def _entries(path: str, settings: LoaderSettings) -> Iterator[Entry]:
    files = files_of(path)
    own = settings.quarantine is not None and os.fspath(settings.quarantine) == path
    if not files and not own:
        raise ConfigError(
            f"skip_listed: there is no list of failed samples at {path}; a run with "
            "quarantine= writes one, also when nothing fails"
        )
    for file in files:
        yield from read_entries(file)


class ListWriter:
    """Appends samples to a list, each once, however often it fails and whatever is in the file.

    A line is written whole, at once: it is there even if the process is killed right after. There
    is one writer for each file. Raises `ConfigError` when the file cannot be opened or holds
    something else.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        with writing(path, ConfigError, of="quarantine"):
            self._file = os.open(check_path(str(path)), flags, 0o644)
        # A loader that is forgotten, and not closed, leaves no descriptor.
        self._end = weakref.finalize(self, os.close, self._file)
        self._end.atexit = False
        try:
            regular = path.is_file()
            self._known = {entry.place for entry in read_entries(path)} if regular else set()
            if regular and (half := half_line(path)):
                os.ftruncate(self._file, os.fstat(self._file).st_size - half)
        except BaseException:
            self.close()
            raise
        self._unlisted: set[str] = set()
        size = os.fstat(self._file).st_size
        self._ended = not (regular and size) or os.pread(self._file, 1, size - 1) == b"\n"

    def add(self, failure: Failure) -> None:
        """Write a failed sample down, if it is one stored sample.

        Raises `LoaderError` when it cannot be written, on a full disk say; the file is then as it
        was.
        """
        if failure.place is None:
            self._say_why_not(failure)
        elif failure.place not in self._known:
            self._append(Entry(failure.place, failure.reason).line.encode())
            self._known.add(failure.place)

    def _append(self, line: bytes) -> None:
        before = os.fstat(self._file).st_size
        line = line if self._ended else b"\n" + line
        with writing(self._path, LoaderError, of="quarantine (a sample that failed is not listed)"):
            try:
                written = os.write(self._file, line)
                if written < len(line):  # what a disk does that becomes full by it
                    raise OSError(errno.ENOSPC, f"only {written} of {len(line)} bytes were written")
            except OSError:
                with suppress(OSError):
                    os.ftruncate(self._file, before)
                raise
        self._ended = True

    def _say_why_not(self, failure: Failure) -> None:
        if failure.kind not in self._unlisted:
            self._unlisted.add(failure.kind)
            _log.warning(
                "%s: not listed in %s, for it is not one stored sample: a batch or a pack, or of "
                "a source without places",
                failure.text,
                self._path,
            )

    def close(self) -> None:
        """Close the file."""
        self._end()
