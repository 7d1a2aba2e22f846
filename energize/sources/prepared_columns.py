"""The columns of a prepared folder, as its shards have them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np

from energize.columns import Column
from energize.errors import DatasetError
from energize.storage.columns import ColumnIndex, read_columns, read_values


class PreparedColumns:
    """The columns of the folder `path`; nothing is read before one is asked for.

    Raises what `read_columns` and `read_values` raise.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._whole: dict[str, Column] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Those that were measured."""
        return tuple(self._index.columns)

    def of(self, name: str, counts: Mapping[str, int]) -> Column:
        """A column of the samples of some shards, in the order of these; `counts` says how many
        each has for who asks.
        """
        if name not in self._whole:
            samples = sum(self._index.shard_counts.values())
            stored = self._index.columns[name]
            self._whole[name] = read_values(self._path, name, stored, samples)
        whole = self._whole[name]
        stretches = [self._stretches.get(shard, (0, 0)) for shard in counts]
        if [stop - start for start, stop in stretches] != list(counts.values()):
            raise DatasetError(
                f"{self._path} was prepared again, with other shards, while it was in use; make "
                "the dataset anew"
            )
        start, stop = stretches[0][0], stretches[-1][1]
        if all(one[1] == other[0] for one, other in pairwise(stretches)):
            return whole.part(slice(start, stop))  # neighbours: a view, nothing is copied
        values = np.concatenate([whole.values[slice(*each)] for each in stretches])
        return Column(values, whole.categories)

    @cached_property
    def _index(self) -> ColumnIndex:
        return read_columns(self._path) or ColumnIndex({}, None)

    @cached_property
    def _stretches(self) -> dict[str, tuple[int, int]]:
        """Of each shard its first sample, and the one after its last, among all of the folder."""
        found, before = {}, 0
        for shard, count in self._index.shard_counts.items():
            found[shard] = before, before + count
            before += count
        return found
