"""Which shards and samples a split part of a prepared folder has."""

from __future__ import annotations

import os
import zlib
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np

from energize.core.arrays import Int64Array
from energize.core.columns import Column
from energize.core.description import digest
from energize.core.limits import limit, over_limit
from energize.core.reading import Failed, SamplePlace
from energize.data.columns import ColumnIndex, column_command, read_columns, read_values
from energize.data.files import OpenFiles
from energize.data.nv_meta import read_info, read_splits, where_listed
from energize.data.records import ShardRecord, read_records
from energize.data.source import Source, read_by_file
from energize.data.tar import (
    NAME_BYTES,
    IndexedTar,
    first_key,
    has_key,
    index_path,
    members,
    scan,
    split_name,
)
from energize.data.writing import own_errors
from energize.errors import (
    ConfigError,
    DataError,
    DatasetError,
    EmptyDatasetError,
    NotPreparedError,
    ShardError,
    SplitError,
    nearest,
    some,
)

_DEFAULT_CONFIG = "split.yaml"
_EMPTY_INDEX = 8
"""Bytes: where the last of no samples ends."""
_COMPARED = 1000
"""How many shards are looked at for a name like a wrong one."""


@dataclass(frozen=True, slots=True)
class SplitShards:
    """The shards of a split part in their order, with the number of samples in each.

    `excluded` are samples to leave out: their numbers among those of all the shards, ascending.
    `records` is what preparing saw of the shards, None where that is not known.
    """

    names: tuple[str, ...]
    counts: tuple[int, ...]
    excluded: tuple[int, ...]
    records: tuple[ShardRecord, ...] | None = None


def read_split(path: Path, split_part: str, split_config: str | None) -> SplitShards:
    """Look a split part of the prepared folder `path` up.

    Only shards from which single samples are excluded are looked into. Raises `SplitError` for an
    unknown part and for shards or samples that are named but not there, `EmptyDatasetError` when
    nothing is left, and what reading `.nv-meta` raises.
    """
    info = read_info(path)
    name = _DEFAULT_CONFIG if split_config is None else split_config
    splits = read_splits(path, name)
    if split_part not in splits.parts:
        known = list(splits.parts)
        raise SplitError(
            f"{path} has no split part {split_part!r}{nearest(split_part, known)}; "
            f"its {name} has {some(known) or 'none'}"
        )
    listed = splits.parts[split_part]
    _check_listed(
        listed,
        info.shard_counts,
        lambda shard: f"{where_listed(path, name, split_part, shard)}, split part {split_part!r}",
    )
    whole, single = _excludes(splits.exclude, info.shard_counts, f"{path}, exclude in {name}")
    shards = tuple(shard for shard in listed if shard not in whole)
    counts = tuple(info.shard_counts[shard] for shard in shards)
    excluded: list[int] = []
    before = 0
    for shard, count in zip(shards, counts, strict=True):
        if shard in single:
            numbers = _numbers_of(path / shard, count, single[shard])
            excluded.extend(before + number for number in numbers)
        before += count
    if before == len(excluded):
        raise EmptyDatasetError(
            f"{path}: split part {split_part!r} has no samples: {len(listed)} shards are listed in "
            f"{name}, {len(whole.intersection(listed))} of them and {len(excluded)} single samples "
            "are excluded"
        )
    seen = read_records(path, info.shard_counts)
    records = None if seen is None else tuple(seen[shard] for shard in shards)
    _check_empty([path / shard for shard, count in zip(shards, counts, strict=True) if not count])
    return SplitShards(shards, counts, tuple(excluded), records)


def _check_empty(shards: Iterable[Path]) -> None:
    """A shard without samples is never opened; its index would tell of some."""
    for shard in shards:
        index = Path(index_path(str(shard)))
        with suppress(FileNotFoundError):
            if index.stat().st_size != _EMPTY_INDEX:
                raise ShardError(
                    f"{shard} has no samples, as .info.json counts them, but its index {index} has "
                    f"{index.stat().st_size} bytes, and not {_EMPTY_INDEX}: run `energize prepare` "
                    "again"
                )


def _check_listed(
    listed: Iterable[str], known: Mapping[str, int], where: Callable[[str], str]
) -> None:
    seen: set[str] = set()
    for shard in listed:
        if shard not in known:
            raise SplitError(
                f"{where(shard)}: shard {shard!r} is not in .info.json{_similar(shard, known)}; "
                "correct the name, or run `energize prepare` again to index new shards"
            )
        if shard in seen:
            raise SplitError(
                f"{where(shard)}: shard {shard!r} is listed twice; list it once, and give the "
                "dataset a larger weight to see it more often"
            )
        seen.add(shard)


def _excludes(
    entries: Iterable[str], known: Mapping[str, int], where: str
) -> tuple[set[str], dict[str, set[str]]]:
    """Excluded shards, and excluded keys by shard, of entries `shard` and `shard/key`."""
    whole: set[str] = set()
    single: defaultdict[str, set[str]] = defaultdict(set)
    deepest = max((shard.count("/") for shard in known), default=0) if entries else 0
    for entry in entries:
        if entry in known:
            whole.add(entry)
            continue
        cuts = (at for at, char in enumerate(entry) if char == "/")
        cut = next((at for at in islice(cuts, deepest + 1) if entry[:at] in known), None)
        if cut is None:
            raise SplitError(
                f"{where}: {entry!r} is neither a shard of .info.json nor such a shard, '/' and "
                f"the key of a sample{_similar(entry, known)}; correct or remove it"
            )
        single[entry[:cut]].add(entry[cut + 1 :])
    return whole, single


def _similar(shard: str, known: Iterable[str]) -> str:
    return nearest(shard, list(islice(known, _COMPARED)))


def _numbers_of(shard: Path, count: int, keys: set[str]) -> list[int]:
    """The numbers of the samples with these keys; all of them have to be there."""
    samples = scan(shard).samples
    if len(samples) != count:
        raise ShardError(
            f"{shard} has {len(samples)} samples, but .info.json says {count}: run "
            "`energize prepare` again"
        )
    some = samples[0].key if samples else None
    missing = keys - {sample.key for sample in samples}
    if missing:
        raise SplitError(
            f"{shard} has no sample {min(missing)!r}, which is excluded; its keys look like "
            f"{some!r}; correct or remove the entry of the split file"
        )
    return [number for number, sample in enumerate(samples) if sample.key in keys]


# The columns of a prepared folder, as its shards have them.


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


# The samples of one tar shard, parsed; and what is wrong with those that cannot be.

_OWN_NAMES = 4
_MANY = 50
"""Parts, below any sensible limit: looking one up costs more than reading a part."""
_HEAD = 8192
"""Bytes of a sample in which its key is looked for."""


class ShardReader:
    """Reads raw samples of the shard `tar`, called `name` in the dataset `dataset`.

    What can be compared at little cost is compared when it is made. With `checksums` each sample
    has to have the one that was written for it. Where it is not known how the shard was prepared,
    what follows a sample is looked at too, for an index entry that points too early.

    Raises `ShardError` when shard and index cannot be read or do not belong together.
    """

    __slots__ = ("_checksums", "_dataset", "_looks_on", "_name", "_tar")

    def __init__(self, tar: IndexedTar, name: str, dataset: str, *, checksums: bool) -> None:
        tar.check()
        if checksums:
            tar.check_checksums()
        self._tar, self._name, self._dataset = tar, name, dataset
        self._checksums = checksums
        self._looks_on = tar.record is None

    def key(self, number: int) -> str | None:
        """The key of a sample; None where its head is damaged."""
        starts, stops = self._tar.ranges([number])
        head, _ = next(self._tar.read(starts, [min(stops[0], starts[0] + _HEAD)]))
        return first_key(head)

    def read(self, numbers: Sequence[int]) -> list[dict[str, Any] | Failed]:
        """These samples, numbers ascending; each a new dict, or why there is none."""
        tar = self._tar
        starts, stops = tar.ranges(numbers)
        found = tar.read(starts, self._looked_at(stops) if self._looks_on else stops)
        expected = tar.checksums(numbers) if self._checksums else None
        samples: list[dict[str, Any] | Failed] = []
        for row, (start, stop, (data, at)) in enumerate(zip(starts, stops, found, strict=True)):
            number, end = numbers[row], at + stop - start
            if expected is not None:
                crc = zlib.crc32(memoryview(data)[at:end])
                if crc != expected[row]:
                    samples.append(self._changed(number, data[at:end], crc, expected[row]))
                    continue
            sample = self._parsed(number, data, at, end)
            if sample is None:
                samples.append(self._damaged(number, data[at:end]))
                continue
            if self._looks_on and has_key(data, end, sample["__key__"]):
                raise tar.disagreement(
                    f"by the index sample {number} ends at byte {stop}, but a file of its key, "
                    f"{sample['__key__'][:80]!r}, follows"
                )
            if len(sample) > _MANY and len(sample) > limit("PARTS") + _OWN_NAMES:
                where = place_in(tar.path, number, sample["__key__"])
                text = f"{where}: {over_limit('PARTS', len(sample) - _OWN_NAMES)}"
                samples.append(Failed(DataError(text), where))
                continue
            samples.append(sample)
        return samples

    def _looked_at(self, stops: Sequence[int]) -> list[int]:
        """Where the bytes end that tell what follows each sample."""
        found, size = [stop + NAME_BYTES for stop in stops], self._tar.size
        return found if found[-1] <= size else [min(each, size) for each in found]

    def _parsed(self, number: int, data: bytes, start: int, stop: int) -> dict[str, Any] | None:
        """The sample whose files are `data[start:stop]`; None when they are not those of one."""
        sample: dict[str, Any] = {
            "__key__": None,
            "__dataset__": self._dataset,
            "__shard__": self._name,
            "__index__": number,
        }
        key, begin, length = None, None, 0
        try:
            found = members(data, self._name, start, stop)
        except ShardError:
            return None
        for name, offset, size, _ in found:
            if begin is not None and name.startswith(begin) and name.find("/", length) < 0:
                part = name[length:]  # what `split_name` says of it, sooner
            else:
                split = split_name(name)
                if split is None:
                    continue
                if key is None:
                    key = sample["__key__"] = split[0]
                    begin, length = f"{key}.", len(key) + 1
                if split[0] != key:
                    return None
                part = split[1]
            if part in sample:
                return None
            sample[part] = data[offset : offset + size]
        return None if key is None else sample

    def _damaged(self, number: int, data: bytes) -> Failed:
        """Why a sample could not be parsed; `ShardError` when the index is of another shard."""
        tar = self._tar
        tar.check_unchanged()
        where = place_in(tar.path, number, first_key(data))
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

    def _changed(self, number: int, data: bytes, found: int, expected: int) -> Failed:
        where = place_in(self._tar.path, number, first_key(data))
        return Failed(
            DataError(
                f"{where}: its checksum is {found:08x}, and was {expected:08x} when checksums were "
                "written: its bytes have changed since. Copy the shard again from its origin; or, "
                "if they are meant to be so, run `energize prepare --checksums` on the folder"
            ),
            where,
        )


def place_in(path: str, number: int, key: str | None) -> str:
    """A sample of a shard, for messages."""
    return f"{path}, sample {'' if key is None else f'{key!r} '}(index {number})"


# Samples of a prepared folder of tar shards, read at random.


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
    >>> from energize.preparation import prepare
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
