"""Refs: which samples of which sources items are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from energize.core.arrays import Int64Array


@dataclass(frozen=True, slots=True)
class Refs:
    """One row per sample, ordered by item; all four columns are int64 of one length.

    `item`: which of the asked positions the sample belongs to, 0 for the first asked.
    `source`: the position of its source in `dataset.sources`.
    `index`: the sample's index in that source.
    `epoch`: how many times the source had been passed through before.
    """

    item: Int64Array
    source: Int64Array
    index: Int64Array
    epoch: Int64Array

    def __len__(self) -> int:
        return len(self.item)

    @classmethod
    def of_source(cls, index: Int64Array, epoch: Int64Array) -> Refs:
        """One sample per item, all of the only source."""
        return cls(np.arange(len(index)), np.zeros(len(index), dtype=np.int64), index, epoch)

    @classmethod
    def merged(cls, parts: Sequence[tuple[Refs, Int64Array, int]]) -> Refs:
        """The refs of several inputs as one: each part with the items it serves and the number of
        sources before its own.
        """
        if not parts:
            empty = np.zeros(0, dtype=np.int64)
            return cls(empty, empty, empty, empty)
        item = np.concatenate([items[refs.item] for refs, items, _ in parts])
        order = np.argsort(item, kind="stable")
        return cls(
            item[order],
            np.concatenate([refs.source + before for refs, _, before in parts])[order],
            np.concatenate([refs.index for refs, _, _ in parts])[order],
            np.concatenate([refs.epoch for refs, _, _ in parts])[order],
        )

    def grouped(self, item: Int64Array) -> Refs:
        """The same samples belonging to larger items: `item` gives the new item of each old one."""
        return Refs(item[self.item], self.source, self.index, self.epoch)
