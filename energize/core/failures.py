"""Failed samples: their policy, their values among items, and their counts."""

from __future__ import annotations

import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from energize.core.checks import (
    checked_choice,
    checked_flag,
    checked_whole,
    failed_allocation,
)
from energize.core.ignored import log_once
from energize.core.node import IndexedNode, Refs
from energize.core.os_errors import of_machine
from energize.errors import (
    ConfigError,
    DataError,
    DatasetError,
    EncoderError,
    FatalSampleError,
    ReturnError,
    SampleError,
    SkipSample,
)

OnError = Callable[[EncoderError], None]
"""Decides about an exception of a user's function: it raises, or returns to have the
sample left out as a failed one."""

_VARIABLE_WORDS = re.compile(r"""'[^']*'|"[^"]*"|\S*/\S*|\w*\d\w*""")
"""The words that differ between messages of equal failures: names in quotes, paths,
numbers of any base."""

_MOST_REASONS = 1000
"""Reasons for skipping that are counted separately."""

_LOOKED_UP_TOGETHER = 256
"""Batch size for looking up the sources of skipped items."""

MOST_REMEMBERED = 2**15
"""Failed samples that a process remembers, some 750 bytes each; others are read
again."""


# Policy


@dataclass(frozen=True)
class FailurePolicy:
    """The reaction of a loader to samples and functions that fail.

    A failed sample is left out and counted, and another sample takes its place; in an
    evaluation its row becomes padding. A sample counts once, however often it fails. A
    `SkipSample` is never a failure, and a `FatalSampleError` always ends the loop.

    Args:
        on_error: The effect of an exception in one of your functions. "raise" ends the
            loop with an `EncoderError`. "skip" counts the sample as failed. A function
            is called with the `EncoderError`: it raises, or returns to have the sample
            counted as failed.
        budget: Number of different samples of this rank that may fail before the loop
            ends with a `FailureBudgetError`. None for any number.
        tolerance: Number of failures in a row of one function before the loop ends with
            a `FatalSampleError`. None for any number.
            `@stateless(failure_tolerance=...)` sets it for one function.
        retry: Whether a damaged sample is read again each time it comes. By default a
            process reads it once and then takes its substitute; the items are the same.
            Samples for which a function of yours raises are always tried again.
        check_functions: The effect of functions that keep state between calls. The
            first calls of each function are made twice to detect them. "error" raises
            `NotRepeatableError`, "warn" logs it once, "off" makes no second calls.
        quarantine: A file to which stored samples that fail are appended, a line of
            JSON for each: `dataset`, `shard`, `index`, `key` and `reason`. Each rank
            has its own file: `{rank}` in the path stands for its number, which is
            otherwise set before the suffix if there are several ranks.
        skip_listed: One or several such files. Their samples are left out without being
            read. The same substitutes take their places as when they failed, so states
            stay valid. It may be the path of `quarantine`, which need not exist yet.

    Raises:
        ConfigError: If a value cannot be used.

    Example:
        >>> from energize import ListSource, MapDataset, get_loader
        >>> inverse = MapDataset(ListSource([1, 0, 2]), lambda number: 1 / number)
        >>> policy = FailurePolicy(on_error="skip", budget=1)
        >>> loader = get_loader(inverse, failures=policy)
        >>> len(list(loader)), loader.failures.count
        (3, 1)
    """

    on_error: str | OnError = "raise"
    budget: int | None = 100
    tolerance: int | None = None
    retry: bool = False
    check_functions: str = "error"
    quarantine: str | os.PathLike[str] | None = None
    skip_listed: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = ()

    def __post_init__(self) -> None:
        owner = type(self).__name__
        if not callable(self.on_error):
            checked_choice(self.on_error, "on_error", ("raise", "skip"), owner)
        for name, least in (("budget", 0), ("tolerance", 1)):
            value = getattr(self, name)
            if value is not None:
                number = checked_whole(value, f"{owner}: {name}", least)
                object.__setattr__(self, name, number)
        checked_flag(self.retry, "retry", owner)
        choices = ("error", "warn", "off")
        checked_choice(self.check_functions, "check_functions", choices, owner)
        paths: Any = self.skip_listed
        if isinstance(paths, str | os.PathLike):
            paths = (paths,)
        if not isinstance(paths, list | tuple):
            raise ConfigError(
                f"{owner}: skip_listed must be a path or a list of paths, got "
                f"{paths!r:.80}"
            )
        if self.quarantine is not None:
            paths = (*paths, self.quarantine)
        for path in paths:
            if not isinstance(path, str | os.PathLike):
                raise ConfigError(
                    f"{owner}: quarantine and skip_listed must be paths, got "
                    f"{path!r:.80}"
                )

    @property
    def lists(self) -> tuple[str, ...]:
        """The paths of `skip_listed`, as texts."""
        paths = self.skip_listed
        if isinstance(paths, str | os.PathLike):
            paths = (paths,)
        return tuple(os.fspath(path) for path in paths)

    def check(self, failed: Failed) -> None:
        """Look at a sample that failed, before it is counted; raise to end the loop.

        Args:
            failed: The sample that failed.
        """

    def decide(self, error: EncoderError) -> None:
        """Raise, or return to have a sample counted as failed.

        Args:
            error: The wrapped exception of a user's function.

        Raises:
            EncoderError: If the exception ends the loop: by this policy, or since no
                sample is to blame for it.
            FatalSampleError: If the function raised it.
        """
        cause = error.__cause__
        if isinstance(cause, FatalSampleError):
            raise cause
        if is_program_fault(cause) or failed_allocation(cause) is not None:
            raise error
        if callable(self.on_error):
            self.on_error(error)
        elif self.on_error == "raise":
            raise error


def is_program_fault(cause: BaseException | None) -> bool:
    """Return whether an exception is to blame on the program, the dataset or the
    machine, and not on a sample.
    """
    return of_machine(cause) or isinstance(cause, ReturnError | DatasetError)


# Failed samples


@dataclass(frozen=True, slots=True)
class SamplePlace:
    """The location of a stored sample.

    Attributes:
        dataset: The path of the dataset, or its identity without a path.
        shard: The shard; None if the dataset has none.
        index: The number of the sample in the shard.
        source: The identity of the dataset, independent of its path.
        function: The function that failed on the sample; None if reading it failed.
    """

    dataset: str
    shard: str | None
    index: int
    key: str | None = None
    source: str | None = None
    function: str | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """Stands in a list of items for a sample that failed or was skipped.

    Attributes:
        reason: The exception.
        where: The location of the sample, for messages.
        place: The stored sample, if a quarantine list is written and it is a single
            one.
        lasting: Whether the sample fails at every position and in every epoch: True if
            its stored bytes are damaged, False if a function of the user failed, which
            may draw.
        remembered: Whether it comes from a `FailureMemory`: it was reported before.
        sample: The number that the failure is counted by, see `ReadContext.leave_out`.
        sources: The keys of the sources of its samples.
    """

    reason: SampleError | SkipSample
    where: str
    place: SamplePlace | None = None
    lasting: bool = True
    remembered: bool = False
    sample: int | None = None
    sources: tuple[int, ...] = ()

    @property
    def skipped(self) -> bool:
        """Whether it was left out on purpose."""
        return isinstance(self.reason, SkipSample)

    @property
    def kind(self) -> str:
        """The type and text of the reason, without variable words, for grouping."""
        first = str(self.reason).split("\n", 1)[0].removeprefix(self.where)
        return f"{type(self.reason).__name__}: {_VARIABLE_WORDS.sub('*', first)}"

    def __str__(self) -> str:
        message = str(self.reason).removeprefix(f"{self.where}: ")
        if self.skipped:
            return f"{self.where}: skipped"
        return f"{self.where}: {type(self.reason).__name__}: {message}"


# Sinks


class LeftOut:
    """Counts samples that were skipped or failed, by the keys of their sources.

    The sources of skipped items are looked up in bulk.

    Attributes:
        of_sources: How many samples of each source, by its key and whether they were
            skipped.
        reasons: How many samples were skipped for each reason.
    """

    __slots__ = ("_count", "_waiting", "of_sources", "reasons")

    def __init__(
        self,
        of_sources: Counter[tuple[int, bool]] | None = None,
        reasons: Counter[str] | None = None,
    ) -> None:
        self.of_sources = Counter() if of_sources is None else of_sources
        self.reasons = Counter() if reasons is None else reasons
        # Datasets with the positions of skipped items, by identity and attempt.
        self._waiting: dict[tuple[int, int], tuple[Any, list[int]]] = {}
        self._count = 0

    def add_failed(self, sources: Iterable[int]) -> None:
        """Count a sample that failed, or those of a batch, by the keys of sources."""
        for key in sources:
            self.of_sources[key, False] += 1

    def add_reason(self, skipped: Failed) -> None:
        """Count why an item was skipped."""
        reason = str(skipped.reason) or "SkipSample"
        is_counted = reason in self.reasons or len(self.reasons) < _MOST_REASONS
        self.reasons[reason if is_counted else "others"] += 1

    def add_position(self, dataset: Any, position: int, attempt: int) -> None:
        """Count the samples of a skipped item of a dataset."""
        key = (id(dataset), attempt)
        self._waiting.setdefault(key, (dataset, []))[1].append(position)
        self._count += 1
        if self._count >= _LOOKED_UP_TOGETHER:
            self._look_up()

    def add_skipped(self, sources: Iterable[int]) -> None:
        """Count samples that were skipped, by the keys of sources."""
        for key in sources:
            self.of_sources[key, True] += 1

    def _look_up(self) -> None:
        for (_, attempt), (dataset, positions) in self._waiting.items():
            refs = dataset.refs(np.array(positions, dtype=np.int64), attempt)
            self.add_skipped(dataset.sources[row].key for row in refs.source.tolist())
        self._waiting.clear()
        self._count = 0

    def drained(self) -> LeftOut | None:
        """Return the additions since the last call, and reset them; None if empty."""
        self._look_up()
        if not (self.of_sources or self.reasons):
            return None
        previous = LeftOut(self.of_sources, self.reasons)
        self.of_sources = Counter()
        self.reasons = Counter()
        return previous

    def take_over(self, other: LeftOut | None) -> None:
        """Add the additions of another process."""
        if other is not None:
            self.of_sources.update(other.of_sources)
            self.reasons.update(other.reasons)

    @property
    def counts(self) -> Mapping[tuple[int, bool], int]:
        """How many samples of each source, by its key and whether they were skipped."""
        self._look_up()
        return self.of_sources

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle the counts, and no dataset."""
        self._look_up()
        return LeftOut, (self.of_sources, self.reasons)


class FailureMemory:
    """The damaged samples of a process, which reads each only once.

    A sample that comes again is `Failed` without being read, at the node where it
    failed, so the same substitute takes its place. Samples are remembered by node,
    source and number, and only if their failure is `lasting`.
    """

    def __init__(self) -> None:
        self.nodes: dict[
            int, tuple[IndexedNode[Any], dict[tuple[int, int], Failed]]
        ] = {}
        """By `id`: each node, which is kept so that its id stays its own, and what
        failed there."""
        self._count = 0

    def takes(self, failed: Failed) -> bool:
        """Return whether a failed sample may be remembered."""
        is_damaged = isinstance(failed.reason, DataError)
        return is_damaged and self._count < MOST_REMEMBERED

    def add(self, node: IndexedNode[Any], refs: Refs, failed: Failed) -> None:
        """Remember that an item of a node failed.

        Args:
            node: The node that reads the sample.
            refs: The sample; an item of several samples is not remembered.
            failed: Why it failed.
        """
        if len(refs) != 1:
            return
        # An error that was raised refers to frames, and with them to other samples.
        reason = DataError(f"{str(failed.reason)[:200]} (not read again)")
        _, samples = self.nodes.setdefault(id(node), (node, {}))
        key = int(refs.source[0]), int(refs.index[0])
        self._count += key not in samples
        samples[key] = Failed(reason, failed.where, remembered=True)

    def rows(
        self, node: IndexedNode[Any], refs: Refs, start: int, stop: int
    ) -> dict[int, Failed]:
        """Return the remembered failures among rows `start` to before `stop`, by
        row.
        """
        _, samples = self.nodes[id(node)]
        failures: dict[int, Failed] = {}
        for row, source, index in zip(
            refs.item.tolist(), refs.source.tolist(), refs.index.tolist(), strict=True
        ):
            failed = samples.get((source, index))
            if failed is not None and start <= row < stop:
                failures[row - start] = failed
        return failures

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle as an empty memory."""
        return FailureMemory, ()


def log_failure(failed: Failed) -> None:
    """Log a failed sample as a warning, the first of those of a folder that fail
    alike.
    """
    name = failed.where.partition(", ")[0]
    folder = os.path.dirname(name) or name
    message = str(failed).removeprefix(folder).lstrip("/, ")
    text = f"{message}. It and others with the same failure are left out"
    log_once(folder, failed.kind, text, logging.WARNING)


@dataclass(frozen=True, slots=True)
class FailureSink:
    """Receives the samples that fail while a process reads.

    Attributes:
        report: Called with each sample that failed, every time that it fails.
        left_out: Counts the samples that are skipped. None counts nothing.
        memory: The damaged samples that are not read again. None to read each one
            whenever it comes.
    """

    report: Callable[[Failed], None] = log_failure
    left_out: LeftOut | None = None
    memory: FailureMemory | None = None
