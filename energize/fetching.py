"""Samples that fail while items are fetched, and what takes their place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from energize.errors import SampleError, SkipSample, SubstitutionError

__all__ = ["MAX_ATTEMPTS", "Attempt", "Failed", "resolve"]

Int64Array = npt.NDArray[np.int64]
T = TypeVar("T")

MAX_ATTEMPTS = 32
"""How many substitutes in a row may fail at one position before it is an error."""


@dataclass(frozen=True, slots=True)
class Failed:
    """What stands in a list of items where a sample failed or was skipped."""

    reason: SampleError | SkipSample
    where: str

    @property
    def skipped(self) -> bool:
        """Whether it was left out on purpose."""
        return isinstance(self.reason, SkipSample)

    def __str__(self) -> str:
        what = "skipped" if self.skipped else f"{type(self.reason).__name__}: {self.reason}"
        return f"{self.where}: {what}"


@dataclass(frozen=True, slots=True)
class Attempt:
    """Which try this is, and whom to tell of failed samples."""

    number: int
    report: Callable[[Failed], None]

    def numbered(self, number: int) -> Attempt:
        """The same, as another try."""
        return replace(self, number=number)


class Fetches(Protocol[T]):
    """What has items to fetch: an `IndexedDataset`."""

    def fetch(self, positions: Int64Array, attempt: Attempt) -> list[T | Failed]: ...


def resolve(dataset: Fetches[T], positions: Int64Array, attempt: Attempt) -> list[T]:
    """The items at `positions`, each failed one replaced by the first substitute that does not
    fail.

    Substitutes are a function of position and attempt, so the result is a function of the position.
    Raises `SubstitutionError` when `MAX_ATTEMPTS` in a row fail.
    """
    items = dataset.fetch(positions, attempt)
    failed = [i for i, item in enumerate(items) if type(item) is Failed]
    tries = 1
    while failed:
        for i in failed:
            _report(items[i], attempt, tries, int(positions[i]))
        again = dataset.fetch(positions[np.array(failed)], attempt.numbered(attempt.number + tries))
        for i, item in zip(failed, again, strict=True):
            items[i] = item
        failed = [i for i in failed if type(items[i]) is Failed]
        tries += 1
    return items  # type: ignore[return-value]  # no Failed is left


def _report(item: object, attempt: Attempt, tries: int, position: int) -> None:
    if not isinstance(item, Failed):
        return
    if not item.skipped:
        attempt.report(item)
    if tries >= MAX_ATTEMPTS:
        raise SubstitutionError(
            f"item {position}: the sample and its {tries - 1} substitutes were all skipped or "
            f"failed, the last one at {item}. Filter such samples out when the data are prepared, "
            "or with FilterDataset"
        )
