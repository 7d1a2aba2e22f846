"""How items are read: which attempt it is, samples that fail, and what takes their place."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from energize.core.arrays import Int64Array
from energize.errors import EncoderError, SampleError, SkipSample

if TYPE_CHECKING:
    from energize.core.quarantine import Listed
    from energize.ledger.left_out import LeftOut


MAX_ATTEMPTS = 256
"""How many samples in a row may fail at one position before it is an error: enough for encoders
that leave out nine of ten, where one position in 10**11 needs more."""

_log = logging.getLogger("energize")


@dataclass(frozen=True, slots=True)
class SamplePlace:
    """Where a stored sample is: sample `index` of a shard, or of a dataset without shards.

    `dataset` is the path, or the identity of what has none, and `source` the identity, which is the
    same wherever the dataset is mounted. `function` is set where the sample is found by what a
    function was called with, and not by where it is read.
    """

    dataset: str
    shard: str | None
    index: int
    key: str | None = None
    source: str | None = None
    function: str | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """What stands in a list of items where a sample failed or was skipped.

    `place` is known where it was asked for (`Reading.locate`) and it is one stored sample.
    """

    reason: SampleError | SkipSample
    where: str
    place: SamplePlace | None = None

    @property
    def skipped(self) -> bool:
        """Whether it was left out on purpose."""
        return isinstance(self.reason, SkipSample)

    def __str__(self) -> str:
        said = str(self.reason).removeprefix(f"{self.where}: ")
        what = "skipped" if self.skipped else f"{type(self.reason).__name__}: {said}"
        return f"{self.where}: {what}"


def log_failure(failed: Failed) -> None:
    """What happens to a failed sample where nobody asked for anything else: a warning."""
    _log.warning("%s; a substitute takes its place", failed)


def raise_error(error: EncoderError) -> None:
    """What happens to an exception of a user's function where nobody asked for anything else."""
    raise error


class Request(NamedTuple):
    """What a node is asked to make: the items at `positions` (int64), read as `reading` says.

    `where(n)` says where the n-th of them comes from, for messages.
    """

    positions: Int64Array
    reading: Reading
    where: Callable[[int], str]


@dataclass(frozen=True, slots=True)
class Reading:
    """What goes along with positions on the way down to the sources.

    `attempt`: 0, or which substitute is asked for. `report` is told of each sample that failed.
    `on_error` is given an exception of a user's function: it raises, or returns to have the sample
    left out as a failed one. `locate`: whether `report` wants to know which stored samples fail.
    `listed`: samples that are left out without being read. `left_out` counts those that are left
    out for whatever reason. What else reading needs one day is
    another field, and no signature changes.
    """

    attempt: int = 0
    report: Callable[[Failed], None] = log_failure
    on_error: Callable[[EncoderError], None] = raise_error
    locate: bool = False
    listed: Listed | None = None
    left_out: LeftOut | None = None

    def leave_out(
        self, failed: Failed, dataset: Any, made: int | Sequence[Any] | None, attempt: int = 0
    ) -> None:
        """Count a sample that is left out, and report it if it failed: an item of `dataset`, by its
        position and attempt, or its origins; None where these are not known.
        """
        if self.left_out is not None:
            self.left_out.add(failed, dataset, made, attempt)
        if not failed.skipped:
            self.report(failed)

    def again(self, attempt: int) -> Reading:
        """The same, for another attempt."""
        return self if attempt == self.attempt else replace(self, attempt=attempt)
