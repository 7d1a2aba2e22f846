"""The ledger of a loader: what it counts, since when, and what it reports."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np

from energize.core.arrays import FloatArray, Int64Array
from energize.core.blends import ContinuedDataset
from energize.core.costs import ColumnCost
from energize.core.dataset import Dataset
from energize.ledger.counting import (
    ALL_FAILED,
    ALL_SKIPPED,
    FAILED,
    SKIPPED,
    TOTALS,
    Counted,
    Counter,
)
from energize.ledger.left_out import UNKNOWN, LeftOut, by_row
from energize.ledger.levels import Level, levels_of, rows_of
from energize.ledger.places import Places
from energize.ledger.report import Report
from energize.ledger.settings import Ledger
from energize.ledger.telling import Stand, Told, report_of


class Book:
    """Counts what a loader delivers of a dataset.

    It begins where reading begins; of an indexed dataset, what was delivered before that is known
    by the order.
    """

    def __init__(self, dataset: Dataset[Any], settings: Ledger) -> None:
        self.settings = settings
        self._dataset = dataset
        self._since: int | None = None
        self._base: Counted | None = None
        self._counter: Counter | None = None

    @cached_property
    def levels(self) -> Level:
        """The levels of the mix."""
        return levels_of(self._dataset)

    @cached_property
    def names(self) -> list[str]:
        """What the source of each row is called."""
        return [each.label for each in self.levels.walk() if each.source is not None]

    @cached_property
    def _places(self) -> Places:
        return Places(self._dataset, self.levels)

    @property
    def counter(self) -> Counter:
        """What counts."""
        if self._counter is None:
            column = self._column
            self._counter = Counter(self._places, self.levels, column, self.settings.item_cost)
        return self._counter

    @cached_property
    def _column(self) -> ColumnCost | None:
        """What samples cost: as it was asked for, else what a blend weighs."""
        if self.settings.cost is not None:
            return ColumnCost(self.settings.cost)
        if self.settings.item_cost is not None:
            return None
        units = (getattr(each.mix, "unit", None) for each in self.levels.walk())
        return next((each for each in units if isinstance(each, ColumnCost)), None)

    @property
    def _cost_name(self) -> str | None:
        named = self.settings.cost_name
        if named is not None or self._column is None:
            return named
        return self._column.cost if isinstance(self._column.cost, str) else "cost"

    def begin(self, dataset: Dataset[Any], items: int | None) -> None:
        """Reading begins, after so many items of all ranks; of a dataset that may have other
        weights than before.
        """
        if dataset is not self._dataset:
            self._change(dataset)
        if self._counter is None:
            self._since = items
        _ = self.counter

    @property
    def begun(self) -> bool:
        """Whether it counts already."""
        return self._counter is not None

    def _change(self, dataset: Dataset[Any]) -> None:
        """Go on with an edited dataset; where it has other parts, counting begins anew."""
        before = None if self._counter is None else self._counter.counted
        names = self.names
        for known in ("levels", "names", "_places", "_edited", "_column"):
            self.__dict__.pop(known, None)
        self._dataset, self._counter = dataset, None
        if before is not None and self.names == names:
            self.counter.go_on(before)

    def forget(self) -> None:
        """Counting begins anew, where reading next begins."""
        self._counter = self._since = None

    def report(
        self,
        stand: Stand,
        *,
        summed: FloatArray | None = None,
        left_out: LeftOut | None = None,
        reasons: Mapping[str, int] | None = None,
        title: str | None = None,
    ) -> Report:
        """What there is to say; `summed` are the `numbers` of all ranks together."""
        counted = self._counted(left_out)
        of_ranks = counted.totals[None]
        if summed is not None:
            counted, of_ranks = self._unpacked(summed, stand.world_size)
        all_ranks = summed is not None or stand.world_size == 1
        whole = all_ranks and (not self._edited or title is not None)
        told = Told(
            levels=self.levels,
            counted=counted,
            of_ranks=of_ranks,
            stand=stand,
            since=self._since,
            all_ranks=all_ranks,
            planned=self._planned(stand.items, 0 if whole else self._since or 0),
            before=self._planned(self._since, 0) if whole and self._since else None,
            run=self._planned(stand.items, 0),
            cost_name=self._cost_name,
            left_out=dict(reasons or {}),
            title=title,
            edited=self._edited,
        )
        return report_of(told)

    @cached_property
    def _edited(self) -> bool:
        """Whether its parts go on from places in another mix, in which nobody knows what came."""
        waiting: list[Any] = [self._dataset]
        while waiting:
            node = waiting.pop()
            if isinstance(node, ContinuedDataset):
                return True
            waiting += node.inputs
        return False

    def _planned(self, stop: int | None, start: int) -> Int64Array | None:
        if stop is None:
            return None
        until = self._places.planned(stop)
        if until is None or not start:
            return until
        before = self._places.planned(start)
        return None if before is None else until - before

    def _counted(self, left_out: LeftOut | None) -> Counted:
        """What this rank has counted."""
        rows, totals = self.counter.counted
        if left_out is not None:
            keys = [source.key for source in rows_of(self.levels)]
            for (row, skipped), number in by_row(left_out.counts, keys).items():
                totals[ALL_SKIPPED if skipped else ALL_FAILED] += number
                if row != UNKNOWN:
                    rows[row, SKIPPED if skipped else FAILED] += number
        return Counted(rows, totals)

    def numbers(self, stand: Stand, left_out: LeftOut | None = None) -> FloatArray:
        """What this rank has counted, so that the sum over ranks says all: float64 in one row."""
        counted = self._counted(left_out)
        totals = np.zeros((stand.world_size, TOTALS))
        totals[stand.rank] = counted.totals
        return np.concatenate([counted.rows.ravel(), totals.ravel()])

    def _unpacked(self, summed: FloatArray, world_size: int) -> tuple[Counted, FloatArray]:
        rows, columns = len(self.levels.rows), self.counter.counted.rows.shape[1]
        table = summed[: rows * columns].reshape(rows, columns)
        of_ranks = summed[rows * columns :].reshape(world_size, TOTALS)
        return Counted(table, of_ranks.sum(axis=0)), of_ranks

    def last(self) -> list[str]:
        """The names of the sources of the samples of the last item."""
        return [self.names[row] for row in self.counter.rows_of_last()]
