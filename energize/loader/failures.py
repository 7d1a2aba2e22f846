"""Samples that fail while a loader reads: who decides, what is counted and told, lists
of them.
"""

from __future__ import annotations

import errno
import logging
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from energize.core.checks import failed_allocation
from energize.core.dataset import Dataset
from energize.core.lanes import ErrorHandler
from energize.core.os_errors import check_path, of_machine
from energize.core.quarantine import Entry, Listed, listed_for
from energize.core.rng import derive
from energize.core.trace import (
    Failed,
    FailureMemory,
    ReadContext,
    SamplePlace,
    raise_error,
)
from energize.data.quarantine import files_of, read_entries
from energize.data.writing import writing
from energize.errors import (
    ConfigError,
    DatasetError,
    EncoderError,
    FailureBudgetError,
    FatalSampleError,
    LoaderError,
    ReturnError,
)
from energize.report.ledger import LeftOut

_log = logging.getLogger("energize")

OnError = Callable[[EncoderError], None]

_PROGRAM_ERRORS = (
    ImportError,
    NameError,
    RecursionError,
    ReferenceError,
    StopAsyncIteration,
    StopIteration,
    SyntaxError,
    SystemError,
)
"""What is wrong with the program or the machine, and would be with the next sample
too."""


@dataclass(frozen=True)
class Decisions:
    """Who decides about exceptions of users' functions: the `handler` of a worker
    config, or `on_error`; and how is read besides. `retry_failed`: whether damaged
    samples are read again. It travels to workers.
    """

    on_error: OnError
    handler: ErrorHandler | None
    besides: ReadContext
    retry_failed: bool = False

    @classmethod
    def of(
        cls,
        on_error: str | OnError,
        handler: ErrorHandler | None,
        *,
        retry_failed: bool = False,
        **others: Any,
    ) -> Decisions:
        """Return what a loader decides, `others` as for `ReadContext`.

        Raises:
            ConfigError: If both `on_error` and `handler` are to decide.
        """
        if handler is not None and on_error != "raise":
            raise ConfigError(
                f"on_error={on_error!r} is given, and the worker config has a "
                "global_error_handler; give one of the two"
            )
        decide = on_error if callable(on_error) else _leave_out
        decide = raise_error if on_error == "raise" else decide
        return cls(decide, handler, ReadContext(**others), retry_failed)

    def reading(
        self,
        report: Callable[[Failed], None],
        left_out: LeftOut | None = None,
        memory: FailureMemory | None = None,
    ) -> ReadContext:
        """Return how to read by these decisions.

        Args:
            report: Called with each sample that failed.
            left_out: Counts samples that are skipped.
            memory: What failed before in this process, where all of it was reported to
                `report`.
        """
        return replace(
            self.besides,
            report=report if self.handler is None else partial(self._told, report),
            on_error=self._decide,
            left_out=left_out,
            failure_memory=None if self.retry_failed else memory,
        )

    def _told(self, report: Callable[[Failed], None], failed: Failed) -> None:
        """A handler is asked about damaged samples too: nothing but where each is."""
        if self.handler is not None and not isinstance(failed.reason, EncoderError):
            self.handler(failed.reason, failed.where, ())
        report(failed)

    def _decide(self, error: EncoderError) -> None:
        """Raise, or return to have the sample left out; nobody is asked about what no
        sample is to blame for, and no handler about what is wrong with the program
        itself.
        """
        cause = error.__cause__
        handler = self.handler
        if isinstance(cause, FatalSampleError):
            raise cause
        if isinstance(cause, ReturnError | DatasetError) or of_machine(cause):
            raise error
        no_memory = failed_allocation(cause) is not None
        if handler is None:
            if no_memory:
                raise error
            self.on_error(error)
            return
        if not isinstance(cause, Exception):
            raise error
        if isinstance(cause, _PROGRAM_ERRORS) or no_memory:
            raise FatalSampleError(
                f"{error}\n  (a {type(cause).__name__} is no fault of a sample, so no "
                "handler was "
                "asked)"
            ) from cause
        try:
            handler(cause, error.sample, sources_of(error.sample))
        except Exception as raised:
            if raised is cause:
                cause.add_note(str(error))
            raise


def _leave_out(error: EncoderError) -> None:
    """Every sample that makes a user's function raise is left out, and counted as
    failed.
    """


def sources_of(sample: Any) -> tuple[Any, ...] | None:
    """Return where a sample, or those of a list or tuple, were read from, as far as
    they say so.
    """
    if isinstance(sample, list | tuple):
        found = [each for one in sample for each in sources_of(one) or ()]
        return tuple(found) or None
    is_dict = isinstance(sample, dict)
    named = (
        sample.get("__sources__") if is_dict else getattr(sample, "__sources__", None)
    )
    if not isinstance(named, tuple | list):
        return None
    # A batch has a tuple for each of its samples, or None.
    each_of = [
        one if isinstance(one, tuple | list) else [one]
        for one in named
        if one is not None
    ]
    return tuple(source for one in each_of for source in one) or None


_KEPT = 10

_KINDS = 1000
"""How many kinds of failures are told apart."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A sample that failed, as it travels.

    Attributes:
        text: Location and reason, for messages.
        reason: Type and text of the exception.
        kind: What is common to samples that fail alike.
        place: The stored sample, if it is a single one and a list of failures is
            written.
        sample: The number that it is counted by; equal numbers are of one sample.
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
        """Return what there is to say of a failed sample."""
        reason = f"{type(failed.reason).__name__}: {failed.reason}"
        kind = failed.kind
        sample = failed.sample
        if sample is None:  # of unknown origin
            sample = derive("failed", failed.where, kind) % 2**64
        return cls(str(failed), reason, kind, failed.place, sample, failed.sources)


@dataclass(frozen=True, slots=True)
class FailureSummary:
    """The samples that failed, each once, however often it came.

    Attributes:
        count: How many samples failed.
        last: The last few of them: location and reason.
        kinds: How many samples failed alike, by the text of the first one of each kind.
    """

    count: int
    last: tuple[str, ...]
    kinds: dict[str, int]


@dataclass(slots=True)
class _Kind:
    """Failures that are alike: the first, how many there are, and how many have been
    told of.
    """

    first: str
    count: int = 0
    told: int = 0


_MOST_COUNTED = 2**20
"""Failed samples that are known apart, some 70 bytes each. If more fail, a sample that
is not among them counts each time."""


class FailureLog:
    """Counts failed samples and raises `FailureBudgetError` at the first above
    `budget`.

    Each sample counts once, at its first failure. Of samples that fail alike the first
    is warned of; then how many they are, seldom, and at the end. Without a budget
    (None) any number may fail. `keep` is given each failure first.
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
        """One more failed sample."""
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
        known = len(self._kinds) < _KINDS or failure.kind in self._kinds
        kind = self._kinds.setdefault(
            failure.kind if known else "others", _Kind(failure.text)
        )
        kind.count += 1
        self._tell(kind, failure)
        if self._budget is not None and self._count > self._budget:
            raise self._too_many(self._budget)

    def _tell(self, kind: _Kind, failure: Failure) -> None:
        if kind.count == 1:
            _log.warning("%s; it is left out (failure %d)", failure.text, self._count)
        elif kind.count >= 10 * kind.told:
            text = "%d samples failed alike so far, the last: %s"
            _log.warning(text, kind.count, _first_line(failure.text))
        else:
            return
        kind.told = kind.count

    def _too_many(self, budget: int) -> FailureBudgetError:
        most = sorted(self._kinds.values(), key=lambda each: -each.count)[:_KEPT]
        alike = "\n".join(
            f"  {each.count} like {_first_line(each.first)}" for each in most
        )
        return FailureBudgetError(
            f"{self._count} samples failed and failure_budget allows "
            f"{budget}:\n{alike}\n"
            f"  the last: {self._last[-1]}\n"
            "Repair the data, or give a larger failure_budget (None: no limit)"
        )

    def add_all(
        self, failed: Iterable[Failure], left_out: LeftOut | None = None
    ) -> None:
        """Several failed samples, and counts of all that were left out."""
        self.left_out.take_over(left_out)
        for each in failed:
            self.add(each)

    def conclude(self) -> None:
        """Tell how many there were of each kind that more failed of than was told."""
        for kind in self._kinds.values():
            if kind.count > kind.told:
                text = "%d samples failed alike, the first: %s"
                _log.warning(text, kind.count, _first_line(kind.first))
                kind.told = kind.count

    def summary(self) -> FailureSummary:
        """Return what has been added so far."""
        kinds = {each.first: each.count for each in self._kinds.values()}
        return FailureSummary(self._count, tuple(self._last), kinds)


def _first_line(text: str) -> str:
    return text.split("\n", 1)[0]


def listed_samples(
    dataset: Dataset[Any],
    paths: Sequence[str],
    quarantine: str | os.PathLike[str] | None,
) -> Listed | None:
    """Return the samples in lists of failed ones, which are left out unread; None
    without a list.

    Raise `ConfigError` for lists that cannot be read; but the one that this loader
    itself is going to write need not be there yet.
    """
    if not paths:
        return None
    own = None if quarantine is None else os.fspath(quarantine)
    entries = [entry for path in paths for entry in _entries(path, own)]
    name = " and ".join(paths)
    sources = [each for each in dataset.sources if hasattr(each, "location")]
    listed, strange = listed_for(sources, entries, name)
    _log.info("%d samples that are listed in %s are left out", listed.count, name)
    if strange:
        text = (
            "%s: %d entries are of samples that this run does not read, the first is %s"
        )
        _log.warning(text, name, len(strange), strange[0].line.strip())
    return listed


def _entries(path: str, own: str | None) -> Iterator[Entry]:
    files = files_of(path)
    if not files and own != path:
        raise ConfigError(
            f"skip_listed: there is no list of failed samples at {path}; a run with "
            "quarantine= writes one, also when nothing fails"
        )
    for file in files:
        yield from read_entries(file)[0]


class LineWriter:
    """Appends lines to a file, which is the value `of` an argument.

    A line is written whole, at once: it is there even if the process is killed right
    after. There is one writer for each file. Raises `ConfigError` when the file cannot
    be opened.
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
        """Write a line; `LoaderError` when it cannot be written, on a full disk say;
        the file is then as it was.
        """
        before = os.fstat(self._file).st_size
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
                    os.ftruncate(self._file, before)
                raise
        self._ended = True

    def close(self) -> None:
        """Close the file."""
        self._end()


class ListWriter(LineWriter):
    """Appends samples to a list, each once, however often it fails and whatever is in
    the file.

    Raises `ConfigError` also when the file holds something else.
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
        """Write a failed sample down, if it is one stored sample; raise as `append`."""
        if failure.place is None:
            if failure.kind not in self._unlisted:
                self._unlisted.add(failure.kind)
                text = (
                    "%s: not listed in %s, for it is not one stored sample: a "
                    "batch "
                    "or a pack, "
                )
                _log.warning(
                    text + "or of a source without places", failure.text, self._path
                )
        elif failure.place not in self._known:
            self.append(Entry(failure.place, failure.reason).line.encode())
            self._known.add(failure.place)
