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
from energize.errors import ConfigError, DatasetError, EmptyDatasetError, NotPreparedError
from energize.reading import Failed, SamplePlace
from energize.sources.base import Source
from energize.sources.prepared_columns import PreparedColumns
from energize.sources.shard_reader import ShardReader, place_in
from energize.sources.sharded import read_by_file
from energize.sources.webdataset_split import read_split
from energize.storage.columns import column_command
from energize.storage.faults import own_errors
from energize.storage.files import OpenFiles
from energize.storage.indexed_tar import IndexedTar
from energize.storage.shard_records import ShardRecord


class WebdatasetSource(Source[dict[str, Any]]):
    """The raw samples of one split part of a folder prepared by `energize prepare` or Energon.

    A sample is a new dict of its parts as bytes, by part name ("jpg", "meta.json"), in the order of
    the shard, after four entries that say where it is from: `__key__`, `__dataset__` (the path as
    given), `__shard__` (the shard's name in the dataset) and `__index__` (the sample's number in
    the shard).

    Opening reads `.nv-meta` only; memory and time do not depend on the number of samples. A shard
    is opened when a sample of it is first asked for, and compared with what preparing wrote down of
    it (`.nv-meta/shards.json`, see `docs/integrity.md`). With `checksums` every sample is compared
    with the checksum that `energize prepare --checksums` wrote for it; one that differs is damaged.
    Samples named by `exclude` in the split file do not exist here. The identity, and with it every
    order, depends on the folder's name, the shards and the split part, not on where the folder is
    mounted.

    Raises `DatasetNotFoundError`, `NotPreparedError` (also without checksums that are asked for),
    `SplitError` or `EmptyDatasetError` when it is made. Reading raises `ShardError` when a shard is
    missing, cut off or not the one that was prepared; a single damaged sample is a `Failed` with a
    `DataError`.

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
    records: tuple[ShardRecord, ...] | None
    """What preparing saw of each of the shards; None where it did not write that down."""
    checksums: bool

    @own_errors
    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        split_part: str = "train",
        split_config: str | None = None,
        checksums: bool = False,
        seed: int = 0,
        occurrence: int = 0,
    ) -> None:
        split = read_split(Path(path), split_part, split_config)
        if checksums:
            _check_checksums(Path(path), split.names, split.records)
        self._freeze(
            path=Path(path),
            split_part=split_part,
            split_config=split_config,
            shards=split.names,
            counts=split.counts,
            excluded=split.excluded,
            window=None,
            records=split.records,
            checksums=checksums,
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
            records=None if self.records is None else self.records[first : last + 1],
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

    @cached_property
    def record(self) -> str | None:
        if self.records is None:
            return None
        return digest([each.of_shard for each in self.records])

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
        return place_in(f"{self._root}/{self.shards[shard]}", number, key)

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
        return self._reader(shard).key(number)

    def read(self, indices: Int64Array) -> list[dict[str, Any] | Failed]:
        return read_by_file(self._stored(indices), self._located, self._read_shard)

    def _read_shard(self, shard: int, numbers: Sequence[int]) -> list[dict[str, Any] | Failed]:
        """Samples of one shard, numbers ascending."""
        return self._reader(shard).read(numbers)

    def _reader(self, shard: int) -> ShardReader:
        """What reads a shard; it is compared with its index when this process first asks for it."""
        reader = self._readers.get(shard)
        if reader is None:
            name, count = self.shards[shard], self.counts[shard]
            record = None if self.records is None else self.records[shard]
            tar = IndexedTar(self._files, f"{self._root}/{name}", count, record)
            reader = ShardReader(tar, name, self._root, checksums=self.checksums)
            self._readers[shard] = reader
        return reader

    def _stored(self, indices: Int64Array) -> Int64Array:
        """Samples as they are numbered in the shards, with the excluded ones."""
        if self.excluded:
            indices = indices + np.searchsorted(self._shifts, indices, side="right")
        return indices + self._bounds[0] if self._bounds[0] else indices

    def _located(self, stored: Int64Array) -> tuple[Int64Array, Int64Array]:
        """The shard of each sample and its number in it."""
        shards = np.searchsorted(self._firsts, stored, side="right") - 1
        return shards, stored - self._firsts[shards]

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
    def _readers(self) -> dict[int, ShardReader]:
        """Those of the shards that this process has read from."""
        return {}


def _check_checksums(
    path: Path, shards: Sequence[str], records: Sequence[ShardRecord] | None
) -> None:
    """Raises `NotPreparedError` unless there are checksums of all shards."""
    known = dict(zip(shards, records or (), strict=False))
    without = [
        shard for shard in shards if shard not in known or known[shard].checksums_crc is None
    ]
    if without:
        raise NotPreparedError(
            f"{path} has no checksums of {len(without)} of its {len(shards)} shards, {without[0]} "
            f"for example; write them with: energize prepare --checksums {path}"
        )
