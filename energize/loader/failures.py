"""Counting and listing of samples that fail while a loader reads."""

from __future__ import annotations

import errno
import logging
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from energize.core.dataset import Dataset
from energize.core.failures import (
    Failed,
    FailureMemory,
    FailurePolicy,
    LeftOut,
    SamplePlace,
)
from energize.core.os_errors import check_path
from energize.core.quarantine import Entry, Listed, listed_for
from energize.core.rng import derive
from energize.data.quarantine import files_of, read_entries
from energize.data.writing import writing
from energize.errors import (
    ConfigError,
    FailureBudgetError,
    LoaderError,
)

_log = logging.getLogger("energize")

_KEPT = 10

_KINDS = 1000
"""Maximum number of kinds of failures that are counted separately."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A sample that failed; picklable.

    Attributes:
        text: Location and reason, for messages.
        reason: Type and text of the exception.
        kind: Groups similar failures.
        place: The stored sample, if it is a single one and a list of failures is
            written.
        sample: Identifies the sample.
        sources: The keys of the sources of its samples.
    """

    text: str
    reason: str
    kind: str
    place: SamplePlace | None = None
    sample: int = 0
    sources: tuple[int, ...] = ()

    @classmethod
    def of(cls, failed: Failed) -> Failure:
        """Describe a failed sample."""
        reason = f"{type(failed.reason).__name__}: {failed.reason}"
        kind = failed.kind
        sample = failed.sample
        if sample is None:  # of unknown origin
            sample = derive("failed", failed.where, kind) % 2**64
        return cls(str(failed), reason, kind, failed.place, sample, failed.sources)


@dataclass(frozen=True, slots=True)
class FailureSummary:
    """The samples that failed, each counted once.

    Attributes:
        count: Number of samples that failed.
        last: Location and reason of the last few.
        kinds: Number of samples of each kind of failure, by the text of its first one.
    """

    count: int
    last: tuple[str, ...]
    kinds: dict[str, int]


@dataclass(slots=True)
class _Kind:
    """Similar failures.

    Attributes:
        first: The text of the first one.
        count: Number of failures.
        logged: Number of failures that were logged.
    """

    first: str
    count: int = 0
    logged: int = 0


_MOST_COUNTED = 2**20
"""Maximum number of failed samples that are remembered, some 70 bytes each. Further
samples count each time they fail."""


class FailureLog:
    """Counts failed samples, and raises `FailureBudgetError` above the budget.

    Each sample counts once, at its first failure. The first failure of a kind is logged
    as a warning, then their number from time to time and at the end.

    Args:
        budget: Maximum number of failed samples; None for no limit.
        keep: Called with each failure, before it is counted.
    """

    def __init__(
        self, budget: int | None, keep: Callable[[Failure], None] | None = None
    ) -> None:
        self._budget = budget
        self._count = 0
        self._samples: set[int] = set()
        self.memory = FailureMemory()
        """The samples that are not read again in this process."""
        self._last: deque[str] = deque(maxlen=_KEPT)
        self._kinds: dict[str, _Kind] = {}
        self.keep = keep
        self.left_out = LeftOut()

    def add(self, failed: Failed | Failure) -> None:
        """Count a failed sample."""
        failure = failed if isinstance(failed, Failure) else Failure.of(failed)
        if failure.sample in self._samples:
            return
        if self.keep is not None:
            self.keep(failure)
        if len(self._samples) < _MOST_COUNTED:
            self._samples.add(failure.sample)
        self._count += 1
        self.left_out.add_failed(failure.sources)
        self._last.append(failure.text)
        has_kind = len(self._kinds) < _KINDS or failure.kind in self._kinds
        kind = self._kinds.setdefault(
            failure.kind if has_kind else "others", _Kind(failure.text)
        )
        kind.count += 1
        self._warn_of_kind(kind, failure)
        if self._budget is not None and self._count > self._budget:
            raise self._too_many(self._budget)

    def _warn_of_kind(self, kind: _Kind, failure: Failure) -> None:
        if kind.count == 1:
            _log.warning(
                "%s. The sample is left out (failure %d)", failure.text, self._count
            )
        elif kind.count >= 10 * kind.logged:
            text = "%d samples failed alike so far, the last: %s"
            _log.warning(text, kind.count, _first_line(failure.text))
        else:
            return
        kind.logged = kind.count

    def _too_many(self, budget: int) -> FailureBudgetError:
        most = sorted(self._kinds.values(), key=lambda kind: -kind.count)[:_KEPT]
        lines = "\n".join(
            f"  {kind.count} like {_first_line(kind.first)}" for kind in most
        )
        return FailureBudgetError(
            f"{self._count} samples failed, and the failure budget is {budget}:\n"
            f"{lines}\n"
            f"  the last: {self._last[-1]}\n"
            "Repair the data, or pass failures=FailurePolicy(budget=...) with a larger "
            "budget, or None for no limit"
        )

    def add_all(
        self, failed: Iterable[Failure], left_out: LeftOut | None = None
    ) -> None:
        """Count several failed samples, and all that were left out."""
        self.left_out.take_over(left_out)
        for failure in failed:
            self.add(failure)

    def conclude(self) -> None:
        """Log the final number of failures of each kind."""
        for kind in self._kinds.values():
            if kind.count > kind.logged:
                text = "%d samples failed alike, the first: %s"
                _log.warning(text, kind.count, _first_line(kind.first))
                kind.logged = kind.count

    def summary(self) -> FailureSummary:
        """Return the failures so far."""
        kinds = {kind.first: kind.count for kind in self._kinds.values()}
        return FailureSummary(self._count, tuple(self._last), kinds)


def _first_line(text: str) -> str:
    return text.split("\n", 1)[0]


def listed_samples(dataset: Dataset[Any], policy: FailurePolicy) -> Listed | None:
    """Return the samples that are left out unread; None if `skip_listed` is empty.

    Raises:
        ConfigError: If a list cannot be read. The list that `quarantine` is going to
            write need not exist yet.
    """
    paths = policy.lists
    if not paths:
        return None
    written = None if policy.quarantine is None else os.fspath(policy.quarantine)
    entries = [entry for path in paths for entry in _entries(path, written)]
    name = " and ".join(paths)
    sources = [source for source in dataset.sources if hasattr(source, "location")]
    listed, strange = listed_for(sources, entries, name)
    _log.info("%d samples that are listed in %s are left out", listed.count, name)
    if strange:
        text = (
            "%s: %d entries are of samples that this run does not read, the first is %s"
        )
        _log.warning(text, name, len(strange), strange[0].line.strip())
    return listed


def _entries(path: str, written: str | None) -> Iterator[Entry]:
    files = files_of(path)
    if not files and written != path:
        raise ConfigError(
            f"skip_listed: the list of failed samples {path} is missing. Run with a "
            "quarantine, which writes one even if nothing fails"
        )
    for file in files:
        yield from read_entries(file)[0]


class LineWriter:
    """Appends lines to a file.

    Each line is written in one call, so complete lines survive a kill. A file has one
    writer.

    Args:
        path: The file.
        of: The argument that named the file, for messages.

    Raises:
        ConfigError: If the file cannot be opened.
    """

    def __init__(self, path: Path, of: str) -> None:
        self._path = path
        self._of = of
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        with writing(path, ConfigError, of=of):
            self._file = os.open(check_path(str(path)), flags, 0o644)
        # A loader that is forgotten, and not closed, leaves no descriptor.
        self._end = weakref.finalize(self, os.close, self._file)
        self._end.atexit = False
        size = os.fstat(self._file).st_size if path.is_file() else 0
        self._ended = not size or os.pread(self._file, 1, size - 1) == b"\n"

    def append(self, line: bytes) -> None:
        """Write a line.

        Raises:
            LoaderError: If the line cannot be written, for example on a full disk. The
                file is then unchanged.
        """
        size = os.fstat(self._file).st_size
        line = line if self._ended else b"\n" + line
        with writing(self._path, LoaderError, of=self._of):
            try:
                written = os.write(self._file, line)
                if written < len(line):  # what a disk does that becomes full by it
                    raise OSError(
                        errno.ENOSPC,
                        f"only {written} of {len(line)} bytes were written",
                    )
            except OSError:
                with suppress(OSError):
                    os.ftruncate(self._file, size)
                raise
        self._ended = True

    def close(self) -> None:
        """Close the file."""
        self._end()


class ListWriter(LineWriter):
    """Appends failed samples to a list, each once.

    Args:
        path: The file. Samples in it are not listed again.

    Raises:
        ConfigError: If the file cannot be opened, or is not such a list.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, "quarantine")
        self._of = "quarantine (a sample that failed is not listed)"
        try:
            entries, half = read_entries(path) if path.is_file() else ([], 0)
            self._known = {entry.place for entry in entries}
            if half:
                os.ftruncate(self._file, os.fstat(self._file).st_size - half)
                self._ended = True
        except BaseException:
            self.close()
            raise
        self._unlisted: set[str] = set()

    def add(self, failure: Failure) -> None:
        """List a failed sample, if it is a single stored sample.

        Raises:
            LoaderError: If the line cannot be written.
        """
        if failure.place is None:
            if failure.kind not in self._unlisted:
                self._unlisted.add(failure.kind)
                text = (
                    "%s: not listed in %s, for it is not one stored sample: a batch or "
                    "a pack, "
                )
                _log.warning(
                    text + "or of a source without places", failure.text, self._path
                )
        elif failure.place not in self._known:
            self.append(Entry(failure.place, failure.reason).line.encode())
            self._known.add(failure.place)
