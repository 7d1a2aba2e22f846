"""Samples that were left out while items were read: how many of which source, and why."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import numpy as np

from energize.core.dataset import Dataset, IndexedDataset
from energize.core.trace import Failed, Origin, refs_of

_TOGETHER = 256
"""How many wait until they are looked up together."""

_REASONS = 1000
"""How many reasons for skipping are told apart."""

UNKNOWN = -1
"""The key of a source that is not known."""

Key = tuple[int, bool]
"""The key of a source, and whether its samples were skipped or failed."""


class _Waiting(NamedTuple):
    """Positions of items of a dataset, read with an attempt."""

    dataset: Dataset[Any]
    positions: list[int]


@dataclass(slots=True)
class LeftOut:
    """Counts samples that were skipped or failed, by the keys of their sources.

    `of_sources`: how many of each source, skipped ones and failed ones apart. `reasons`: how many
    were skipped for each reason that a `SkipSample` gives. They are looked up in bulk, so `drained`
    has them all, and nothing stays.
    """

    of_sources: Counter[Key] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    _waiting: dict[tuple[int, int, bool], _Waiting] = field(default_factory=dict)
    _count: int = 0

    def add(
        self, failed: Failed, dataset: Any, made: int | Sequence[Origin] | None, attempt: int
    ) -> None:
        """One more: the item of `dataset` at a position, read with `attempt`, or with some origins;
        None where that is not known.
        """
        skipped = failed.skipped
        if skipped:
            reason = str(failed.reason) or "SkipSample"
            known = reason in self.reasons or len(self.reasons) < _REASONS
            self.reasons[reason if known else "others"] += 1
        if made is None:
            self.of_sources[UNKNOWN, skipped] += 1
        elif isinstance(made, int):
            key = (id(dataset), attempt, skipped)
            self._waiting.setdefault(key, _Waiting(dataset, [])).positions.append(made)
            self._count += 1
            if self._count >= _TOGETHER:
                self._look_up()
        else:
            parts = [source for part in dataset._parts for source in part.sources]
            self._found([parts[row] for row in refs_of(dataset, made).source.tolist()], skipped)

    def _look_up(self) -> None:
        for (_, attempt, skipped), (dataset, positions) in self._waiting.items():
            at = np.array(positions, dtype=np.int64)
            refs = cast("IndexedDataset[Any]", dataset).refs(at, attempt)
            self._found([dataset.sources[row] for row in refs.source.tolist()], skipped)
        self._waiting.clear()
        self._count = 0

    def _found(self, sources: Iterable[Any], skipped: bool) -> None:
        for source in sources:
            self.of_sources[source.key, skipped] += 1

    def drained(self) -> LeftOut | None:
        """What was added since the last time, and nothing stays here; None for nothing."""
        self._look_up()
        if not self.of_sources:
            return None
        gone = LeftOut(self.of_sources, self.reasons)
        self.of_sources, self.reasons = Counter(), Counter()
        return gone

    def take_over(self, other: LeftOut | None) -> None:
        """Add what another has drained."""
        if other is not None:
            self.of_sources.update(other.of_sources)
            self.reasons.update(other.reasons)

    @property
    def counts(self) -> Mapping[Key, int]:
        """How many of each source."""
        self._look_up()
        return self.of_sources

    def __getstate__(self) -> tuple[Counter[Key], Counter[str]]:
        """What is copied and pickled: counts, and no dataset."""
        self._look_up()
        return self.of_sources, self.reasons

    def __setstate__(self, state: tuple[Counter[Key], Counter[str]]) -> None:
        self.of_sources, self.reasons = state
        self._waiting, self._count = {}, 0


def by_row(counts: Mapping[Key, int], keys: Sequence[int]) -> dict[tuple[int, bool], int]:
    """The counts by the numbers of rows whose sources have these keys; `UNKNOWN` for others."""
    rows: dict[int, int] = {}
    for row, key in enumerate(keys):
        rows.setdefault(key, row)
    found: defaultdict[tuple[int, bool], int] = defaultdict(int)
    for (key, skipped), number in counts.items():
        found[rows.get(key, UNKNOWN), skipped] += number
    return dict(found)
