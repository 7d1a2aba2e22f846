"""Samples of a prepared folder of tar shards, read at random."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

from energize.arrays import Int64Array
from energize.columns import Column
from energize.describing import digest
from energize.errors import ConfigError, DataError, DatasetError, EmptyDatasetError, ShardError
from energize.reading import Failed, SamplePlace
from energize.sources.base import Source
from energize.sources.prepared_columns import PreparedColumns
from energize.sources.sharded import read_by_file
from energize.sources.webdataset_split import read_split
from energize.storage.columns import column_command
from energize.storage.files import OpenFiles
from energize.storage.indexed_tar import IndexedTar
from energize.storage.tar import first_key, members, split_name

_HEAD = 8192
"""Bytes of a sample in which its key is looked for."""


class WebdatasetSource(Source[dict[str, Any]]):
    """The raw samples of one split part of a folder prepared by `energize prepare` or Energon.

    A sample is a new dict of its parts as bytes, by part name ("jpg", "meta.json"), in the order of
    the shard, after four entries that say where it is from: `__key__`, `__dataset__` (the path as
    given), `__shard__` (the shard's name in the dataset) and `__index__` (the sample's number in
    the shard).

    Opening reads `.nv-meta` only; memory and time do not depend on the number of samples. A shard
    is opened when a sample of it is first asked for. Samples named by `exclude` in the split file
    do not exist here. The identity, and with it every order, depends on the folder's name, the
    shards and the split part, not on where the folder is mounted.

    Raises `DatasetNotFoundError`, `NotPreparedError`, `SplitError` or `EmptyDatasetError` when it
    is made. Reading raises `ShardError` when a shard is missing, cut off or not the one that was
    indexed; a single damaged sample is a `Failed` with a `DataError`.

    >>> import tempfile, webdataset
    >>> from energize.prepare import prepare
    >>> folder = tempfile.mkdtemp()
    >>> with webdataset.TarWriter(f"{folder}/0.tar") as shard:
    ...     _ = shard.write({"__key__": "cat", "txt": "a cat"})
    >>> _ = prepare(folder, split_ratios={"train": 1}, sample_type="TextSample", workers=1)
    >>> sample = WebdatasetSource(folder)[0]
    >>> sample["__key__"], sample["__shard__"], sample["txt"]
    ('cat', '0.tar', b'a cat')
    """

    path: Path
    split_part: str
    split_config: str | None
    shards: tuple[str, ...]
    counts: tuple[int, ...]
    excluded: tuple[int, ...]
    window: tuple[int, int] | None
    """Of the samples of `shards`, excluded ones too, the first and the one after the last; None for
    all."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        split_part: str = "train",
        split_config: str | None = None,
        seed: int = 0,
        occurrence: int = 0,
    ) -> None:
        split = read_split(Path(path), split_part, split_config)
        self._freeze(
            path=Path(path),
            split_part=split_part,
            split_config=split_config,
            shards=split.names,
            counts=split.counts,
            excluded=split.excluded,
            window=None,
            seed=seed,
            occurrence=occurrence,
        )

    def part(self, start: int, stop: int) -> Self:
        """The same source with the samples from `start` to before `stop` only.

        These are numbers among `stored_count` samples, excluded ones too: to exclude a sample moves
        no other one into a part or out of it. Raises `ConfigError` for numbers beyond that, and
        `EmptyDatasetError` when no sample is left.
        """
        if not 0 <= start <= stop <= self.stored_count:
            raise ConfigError(
                f"{self.path} [{self.split_part}] has {self.stored_count} samples; there is no "
                f"part from {start} to {stop}"
            )
        start, stop = (self._bounds[0] + each for each in (start, stop))
        ends = np.cumsum(self.counts, dtype=np.int64)
        first, last = np.searchsorted(ends, (start, stop - 1), side="right").tolist()
        before = int(ends[first - 1]) if first else 0
        excluded = tuple(each - before for each in self.excluded if start <= each < stop)
        if stop - start == len(excluded):
            raise EmptyDatasetError(
                f"{self.path} [{self.split_part}]: no sample is left of the part from {start} to "
                f"{stop}, in which {len(excluded)} are excluded"
            )
        return self._replace(
            shards=self.shards[first : last + 1],
            counts=self.counts[first : last + 1],
            excluded=excluded,
            window=(start - before, stop - before),
        )

    @cached_property
    def stored_count(self) -> int:
        """How many samples there are, excluded ones too."""
        start, stop = self._bounds
        return stop - start

    @cached_property
    def count(self) -> int:
        return self.stored_count - len(self.excluded)

    @property
    def column_names(self) -> tuple[str, ...]:
        return self._columns.names

    def column(self, name: str) -> Column:
        """As `energize prepare --column` measured it; mapped from its file where all samples of
        neighbouring shards are read, else copied.
        """
        if name not in self._columns.names:
            return super().column(name)
        counts = dict(zip(self.shards, self.counts, strict=True))
        whole = self._columns.of(name, counts)
        start, stop = self._bounds
        if self.excluded:
            return whole.part(self._stored(np.arange(self.count, dtype=np.int64)))
        return whole if (start, stop) == (0, len(whole)) else whole.part(slice(start, stop))

    @cached_property
    def _columns(self) -> PreparedColumns:
        return PreparedColumns(self.path)

    def _how_to_index(self, name: str) -> str:
        how = {name: f"json[{name}]"}
        return (
            f"Measure it, so that it is known without reading samples: "
            f"{column_command(self.path, how)} (or size:PART, len:PART, image:width, "
            "MODULE:FUNCTION)"
        )

    @cached_property
    def identity(self) -> str:
        parts = [self.name, self.split_part, self.shards, self.counts, self.excluded]
        return digest(parts if self.window is None else [*parts, self.window])

    @cached_property
    def name(self) -> str:
        return self.path.absolute().name

    @property
    def run_length(self) -> int:
        return max(1, self.count // len(self.shards))

    def settings(self) -> dict[str, Any]:
        return (
            super().settings()
            | {
                "split_part": self.split_part,
                "shards": len(self.shards),
                "identity": self.identity,
            }
            | ({} if self.window is None else {"subset": list(self.window)})
        )

    def where(self, position: int, attempt: int = 0) -> str:
        """Dataset, shard, key (where it can be read) and number of a sample, for messages."""
        wanted = self._samples(np.array([position], dtype=np.int64), attempt)
        shard, number = (int(each[0]) for each in self.locate(wanted))
        try:
            key = self._key(shard, number)
        except DatasetError:
            key = None
        return self._place(self._tar(shard), number, key)

    @property
    def location(self) -> str:
        return str(self.path.absolute())

    def place(self, index: int) -> SamplePlace:
        wanted = np.array([index], dtype=np.int64)
        shard, number = (int(each[0]) for each in self.locate(wanted))
        try:
            key = self._key(shard, number)
        except DatasetError:
            key = None
        return SamplePlace(self.location, self.shards[shard], number, key, self.identity)

    def find(self, shard: str | None, index: int) -> int | None:
        if shard not in self.shards:
            return None
        at = self.shards.index(shard)
        stored, (start, stop) = int(self._firsts[at]) + index, self._bounds
        before = bisect_left(self.excluded, stored)
        known = 0 <= index < self.counts[at] and start <= stored < stop
        return stored - start - before if known and stored not in self.excluded else None

    def locate(self, indices: Int64Array) -> tuple[Int64Array, Int64Array]:
        """For each of the samples `indices` its shard, a position in `shards`, and its number in
        the shard; reads nothing.
        """
        return self._located(self._stored(indices))

    def indices(self, shards: Int64Array, numbers: Int64Array) -> Int64Array:
        """The samples that lie at these numbers of these shards, the inverse of `locate`; -1 for
        one that is excluded, or outside of the part that is read.
        """
        start, stop = self._bounds
        stored = self._firsts[shards] + numbers
        before = np.searchsorted(self.excluded, stored)
        excluded = np.isin(stored, self.excluded)
        inside = (stored >= start) & (stored < stop) & ~excluded
        return np.where(inside, stored - start - before, -1)

    def keys(self, indices: Int64Array) -> list[str | None]:
        """The keys of the samples `indices`, None for one whose head is damaged.

        Only the head of each sample is read. Raises `ShardError` as reading does.
        """
        located = zip(*(each.tolist() for each in self.locate(indices)), strict=True)
        return [self._key(shard, number) for shard, number in located]

    def _key(self, shard: int, number: int) -> str | None:
        tar = self._tar(shard)
        starts, stops = tar.ranges([number])
        head, _ = next(tar.read(starts, [min(stops[0], starts[0] + _HEAD)]))
        return first_key(head)

    def read(self, indices: Int64Array) -> list[dict[str, Any] | Failed]:
        return read_by_file(self._stored(indices), self._located, self._read_shard)

    def _read_shard(self, shard: int, numbers: Sequence[int]) -> list[dict[str, Any] | Failed]:
        """Samples of one shard, numbers ascending."""
        tar = self._tar(shard)
        if not self._checked[shard]:
            tar.check()
            self._checked[shard] = True
        starts, stops = tar.ranges(numbers)
        found = tar.read(starts, stops)
        samples: list[dict[str, Any] | Failed] = []
        for number, start, stop, (data, at) in zip(numbers, starts, stops, found, strict=True):
            sample = self._parsed(shard, number, data, at, at + stop - start)
            if sample is None:
                samples.append(self._damaged(tar, number, data[at : at + stop - start]))
            else:
                samples.append(sample)
        return samples

    def _parsed(
        self, shard: int, number: int, data: bytes, start: int, stop: int
    ) -> dict[str, Any] | None:
        """The sample whose files are `data[start:stop]`; None when they are not those of one."""
        sample: dict[str, Any] = {
            "__key__": None,
            "__dataset__": self._root,
            "__shard__": self.shards[shard],
            "__index__": number,
        }
        key = None
        try:
            found = members(data, self.shards[shard], start, stop)
        except ShardError:
            return None
        for name, offset, size, _ in found:
            split = split_name(name)
            if split is None:
                continue
            if key is None:
                key = sample["__key__"] = split[0]
            if split[0] != key or split[1] in sample:
                return None
            sample[split[1]] = data[offset : offset + size]
        return None if key is None else sample

    def _damaged(self, tar: IndexedTar, number: int, data: bytes) -> Failed:
        """Why a sample could not be parsed; `ShardError` when the index is of another shard."""
        where = self._place(tar, number, first_key(data))
        try:
            found = [split_name(each.name) for each in members(data, where)]
        except ShardError as damage:
            if not tar.agrees():
                raise tar.disagreement(f"at most places no sample starts ({damage})") from damage
            return Failed(DataError(str(damage)), where)
        names = [each for each in found if each is not None]
        keys = sorted({key for key, _ in names})
        if len(keys) != 1:
            raise tar.disagreement(f"by the index sample {number} has the keys {keys}")
        return Failed(
            DataError(
                f"{where}: the sample has one part twice, or one with a reserved name: "
                f"{[part for _, part in names]}; remove it and pack the shard again"
            ),
            where,
        )

    def _stored(self, indices: Int64Array) -> Int64Array:
        """Samples as they are numbered in the shards, with the excluded ones."""
        if self.excluded:
            indices = indices + np.searchsorted(self._shifts, indices, side="right")
        return indices + self._bounds[0] if self._bounds[0] else indices

    def _located(self, stored: Int64Array) -> tuple[Int64Array, Int64Array]:
        """The shard of each sample and its number in it."""
        shards = np.searchsorted(self._firsts, stored, side="right") - 1
        return shards, stored - self._firsts[shards]

    def _tar(self, shard: int) -> IndexedTar:
        return IndexedTar(self._files, f"{self._root}/{self.shards[shard]}", self.counts[shard])

    def _place(self, tar: IndexedTar, number: int, key: str | None) -> str:
        return f"{tar.path}, sample {'' if key is None else f'{key!r} '}(index {number})"

    @cached_property
    def _root(self) -> str:
        return str(self.path)

    @cached_property
    def _firsts(self) -> Int64Array:
        """The number of samples before each shard."""
        counts = np.array(self.counts, dtype=np.int64)
        return np.cumsum(counts) - counts

    @cached_property
    def _bounds(self) -> tuple[int, int]:
        return self.window or (0, sum(self.counts))

    @cached_property
    def _shifts(self) -> Int64Array:
        """For each excluded sample, how many of the others come before it."""
        excluded = np.array(self.excluded, dtype=np.int64) - self._bounds[0]
        return excluded - np.arange(len(excluded))

    @cached_property
    def _files(self) -> OpenFiles:
        return OpenFiles()

    @cached_property
    def _checked(self) -> bytearray:
        """Which shards have been compared with their index in this process."""
        return bytearray(len(self.shards))
