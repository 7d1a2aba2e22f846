"""Sources of prepared folders of tar shards, with random access.

`WebdatasetSource` reads samples through the indexes of the shards; `read_split`
resolves a split of `.nv-meta` to shards, counts and excluded samples.
"""

from __future__ import annotations

import os
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from itertools import islice, repeat
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from energize.core import limits
from energize.core.arrays import Int64Array
from energize.core.columns import Column
from energize.core.description import digest
from energize.core.failures import Failed
from energize.core.os_errors import convert_os_errors
from energize.data import tar
from energize.data.columns import ColumnIndex, column_command, column_of, read_columns
from energize.data.files import exists, files_at, path_of
from energize.data.local import Ranges, read_entries
from energize.data.nv_meta import (
    ConvertedFrom,
    ShardRecord,
    read_info,
    read_records,
    read_splits,
)
from energize.data.source import ShardedSource, Window, narrowed
from energize.data.tar import ENTRY, KEPT, RANGE, disagreement, index_path, scan
from energize.errors import (
    DataError,
    DatasetError,
    EmptyDatasetError,
    NotPreparedError,
    ShardError,
    SplitError,
    nearest,
    some,
)

# Bytes at the start of a sample that are searched for its key.
_HEAD = 8192

_MANY = (
    50  # parts, below any sensible limit: looking one up costs more than reading a part
)
_PROBES = 16
_OWN = 4  # entries of a sample that are not parts


def _is_plain(data: bytes, end: int, sample: dict[str, Any]) -> bool:
    """Add the parts of one sample of plain headers to `sample`.

    Returns whether `data[:end]` is such a sample. Adds at most one part more than the
    limit.
    """
    at = 0
    begin = ""
    most = len(sample) + limits.PARTS
    while at < end and len(sample) <= most:
        start = at + tar.BLOCK
        header = tar.plain_header(data, at) if start <= end else None
        if header is None:
            return False
        name, size = header
        at = start + (size + 511 & -512)
        if begin and name.startswith(begin) and name.find("/", len(begin)) < 0:
            part = name[len(begin) :]  # equals `split_name`, but faster
        else:
            split = tar.split_name(name)
            if split is None:
                continue
            key, part = split
            if not begin:
                begin = f"{key}."
                sample["__key__"] = key
            elif key != sample["__key__"]:
                return False
        if part in sample:
            return False
        sample[part] = data[start : start + size]
    return (at == end or len(sample) > most) and bool(begin)


def _failed(location: str, reason: str) -> Failed:
    return Failed(DataError(f"{location}: {reason}"), location)


def place_in(path: str, number: int, key: str | None) -> str:
    """Return the location of a sample of a shard, for messages."""
    return f"{path}, sample {'' if key is None else f'{key!r} '}(index {number})"


class WebdatasetSource(ShardedSource[dict[str, Any]]):
    """The raw samples of one split of a prepared folder of tar shards.

    `energize prepare` or Energon prepare folders. A sample is a new dict: `__key__`,
    `__dataset__` (the path as specified), `__shard__` (name of the shard in the
    dataset), `__index__` (number in the shard), then the parts as bytes by part name
    ("jpg", "meta.json"), in shard order.

    Opening reads `.nv-meta` only; its time and memory are independent of the number of
    samples. A shard is opened at its first sample, and compared with the record of its
    preparation (`.nv-meta/shards.json`, see `docs/storage.md`). Samples excluded by the
    split file do not exist here. The identity, which keys the order, depends on the
    folder's name, the shards and the split, not on the mount point.

    Reading raises `ShardError` if a shard is missing, truncated or not the prepared
    one; a single damaged sample is a `Failed` with a `DataError`.

    Args:
        path: The prepared folder, local or a URL.
        split_part: Name of the split.
        split_config: Name of the split file in `.nv-meta`; None for `split.yaml`.
        checksums: Whether to compare each sample with the checksum written by `energize
            prepare --checksums`; samples that differ are damaged.
        seed: Seed of the order.
        occurrence: Distinguishes several uses of the same folder.

    Raises:
        DatasetNotFoundError: If the folder does not exist.
        NotPreparedError: If the folder is not prepared, or has no checksums.
        SplitError: If the split does not exist or is invalid.
        EmptyDatasetError: If the split has no samples.

    Example:
        >>> import tempfile, webdataset
        >>> from energize.preparation import prepare
        >>> folder = tempfile.mkdtemp()
        >>> with webdataset.TarWriter(f"{folder}/0.tar") as shard:
        ...     _ = shard.write({"__key__": "cat", "txt": "a cat"})
        >>> _ = prepare(
        ...     folder, split_ratios={"train": 1}, sample_type="TextSample", workers=1
        ... )
        >>> sample = WebdatasetSource(folder)[0]
        >>> sample["__key__"], sample["__shard__"], sample["txt"]
        ('cat', '0.tar', b'a cat')
    """

    order_name = "WebdatasetSource"

    path: Path
    split_part: str
    split_config: str | None
    shards: tuple[str, ...]
    counts: tuple[int, ...]
    excluded: tuple[int, ...]
    window: tuple[int, int] | None
    """First sample and the one after the last, including excluded ones; None for all.
    """
    records: tuple[ShardRecord, ...] | None
    """Records of the shards from their preparation; None without records."""
    origin: ConvertedFrom | None
    """The loose files of the conversion, which determine the identity."""
    checksums: bool

    @convert_os_errors
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
        folder = path_of(path)
        split = read_split(folder, split_part, split_config)
        if checksums:
            records = zip(split.shards, split.records or repeat(None), strict=False)
            without = [
                name
                for name, record in records
                if not record or record.checksums_crc32 is None
            ]
            if without:
                raise NotPreparedError(
                    f"{folder} has no checksums of {len(without)} of its "
                    f"{len(split.shards)} shards, {without[0]} for example. Write "
                    f"them with: energize prepare --checksums {folder}"
                )
        self.freeze(
            path=folder,
            split_part=split_part,
            split_config=split_config,
            **split._asdict(),
            checksums=checksums,
            seed=seed,
            occurrence=occurrence,
        )

    def part(self, start: int, stop: int) -> Self:
        """Return the same source restricted to the samples from `start` to before
        `stop`.

        Numbers include excluded samples, so that excluding a sample does not move
        others between parts.

        Args:
            start: First sample, counted among `stored_count`.
            stop: Sample after the last one.

        Returns:
            The restricted source.

        Raises:
            ConfigError: If the range exceeds `stored_count`.
            EmptyDatasetError: If no sample is left.
        """
        start, stop = narrowed(self.message_name, self._bounds, start, stop)
        if self.origin is not None:  # windows keep all files
            return self.replace(window=(start, stop))
        ends = np.cumsum(self.counts, dtype=np.int64)
        first, last = np.searchsorted(ends, (start, stop - 1), side="right").tolist()
        skipped = int(ends[first - 1]) if first else 0
        excluded = tuple(
            number - skipped for number in self.excluded if start <= number < stop
        )
        if stop - start == len(excluded):
            raise EmptyDatasetError(
                f"{self.message_name}: all {len(excluded)} samples of the part are "
                "excluded"
            )
        chosen = slice(first, last + 1)
        return self.replace(
            shards=self.shards[chosen],
            counts=self.counts[chosen],
            excluded=excluded,
            window=(start - skipped, stop - skipped),
            records=None if self.records is None else self.records[chosen],
        )

    @property
    def message_name(self) -> str:
        return f"{self.path} [{self.split_part}]"

    @property
    def column_names(self) -> tuple[str, ...]:
        return tuple(self._columns.columns)

    def _column(self, name: str) -> Column:
        """Load a column measured by `energize prepare --column`."""
        counts = dict(zip(self.shards, self.counts, strict=True))
        whole = column_of(self.path, self._columns, name, counts)
        start, stop = self._bounds
        if self.excluded:
            return whole.part(self._stored(np.arange(self.count, dtype=np.int64)))
        return (
            whole
            if (start, stop) == (0, len(whole))
            else whole.part(slice(start, stop))
        )

    @cached_property
    def _columns(self) -> ColumnIndex:
        return read_columns(self.path)

    def indexing_hint(self, name: str) -> str:
        how = {name: f"json[{name}]"}
        return (
            f"Measure it with: "
            f"{column_command(self.path, how)} (or size:PART, len:PART, image:width, "
            "MODULE:FUNCTION)"
        )

    @cached_property
    def identity(self) -> str:
        if self.origin is not None:
            whole = self.origin.identity
            return whole if self.window is None else digest([whole, self.window])
        parts = [self.name, self.split_part, self.shards, self.counts, self.excluded]
        return digest(parts if self.window is None else [*parts, self.window])

    @cached_property
    def name(self) -> str:
        if self.origin is not None:
            return self.origin.name
        return self.earlier_name or self.path.absolute().name

    @property
    def run_length(self) -> int:
        if self.origin is None:
            return super().run_length
        return max(1, self.count // self.origin.files)

    def called(self, name: str) -> Self:
        other = super().called(name)
        if self.origin is None:
            return other
        # Unprepared tars are their own origin; converted ones cannot be located.
        return other.replace(
            origin=ConvertedFrom.of(other.replace(origin=None, window=None))
        )

    @cached_property
    def record(self) -> str | None:
        if self.records is None or self.origin is not None:
            return None
        return digest([record.of_shard for record in self.records])

    def settings(self) -> dict[str, Any]:
        if self.origin is not None:
            return super().settings() | {"kind": "LooseSource"}
        shards = {"split_part": self.split_part, "shards": len(self.shards)}
        return super().settings() | shards

    def location_in_shard(self, shard: int, number: int) -> str:
        """Return dataset, shard, key (if readable) and number of a sample."""
        return place_in(self._path(shard), number, self._key(shard, number))

    @property
    def location(self) -> str:
        return str(self.path.absolute())

    def indices(self, shards: Int64Array, numbers: Int64Array) -> Int64Array:
        positions = super().indices(shards, numbers)
        stored = positions + self._bounds[0]
        left = positions - np.searchsorted(self.excluded, stored)
        return np.where((positions < 0) | np.isin(stored, self.excluded), -1, left)

    def keys(self, indices: Int64Array) -> list[str | None]:
        """Return the keys of samples, reading only the head of each.

        Args:
            indices: int64 (n,), the samples.

        Returns:
            One key per sample; None if the head is damaged.

        Raises:
            ShardError: As for reading.
        """
        located = zip(
            *(values.tolist() for values in self.locate(indices)), strict=True
        )
        return [self._read_key(shard, number) for shard, number in located]

    def _key(self, shard: int, number: int) -> str | None:
        with suppress(DatasetError, OSError):
            return self._read_key(shard, number)
        return None

    def _read_key(self, shard: int, number: int) -> str | None:
        [start], [stop], _ = self._spans_of(shard, [number])
        return tar.first_key(
            self._files.read(self._path(shard), start, min(stop, start + _HEAD))
        )

    def read_shard(
        self, shard: int, numbers: list[int]
    ) -> list[dict[str, Any] | Failed]:
        expected = None
        (path, _) = self._opened(shard)
        starts, stops, ends = self._spans_of(shard, numbers)
        if self.checksums:
            expected = tar.read_checksums(
                self._files, tar.checksums_path(path), numbers
            )
        new = {
            "__key__": None,
            "__dataset__": self._root,
            "__shard__": self.shards[shard],
        }
        samples: list[dict[str, Any] | Failed] = []
        for row, data in enumerate(self._files.read_ranges(path, starts, ends)):
            number = numbers[row]
            end = stops[row] - starts[row]
            if (
                expected is not None
                and zlib.crc32(memoryview(data)[:end]) != expected[row]
            ):
                location = place_in(path, number, tar.first_key(data))
                samples.append(
                    tar.changed(location, data[:end], expected[row], self._root)
                )
                continue
            plain: dict[str, Any] = {**new, "__index__": number}
            sample: dict[str, Any] | Failed = plain
            if not _is_plain(data, end, plain):
                sample = self._any_sample(
                    shard, data[:end], {**new, "__index__": number}
                )
            if len(data) > end or len(plain) > _MANY:
                sample = self._checked(shard, sample, data, end)
            samples.append(sample)
        return samples

    def _checked(
        self, shard: int, sample: dict[str, Any] | Failed, data: bytes, end: int
    ) -> dict[str, Any] | Failed:
        """Check the bytes after a sample, and its number of parts."""
        if isinstance(sample, Failed):
            return sample
        key = sample["__key__"]
        number = sample["__index__"]
        path = self._path(shard)
        if tar.first_key(data[end:]) == key:
            raise disagreement(
                path,
                f"by the index sample {number} has {end} bytes, but another file of "
                "its key, "
                f"{key[:80]!r}, follows",
            )
        if (parts := len(sample) - _OWN) > limits.PARTS:
            return _failed(place_in(path, number, key), limits.over("PARTS", parts))
        return sample

    def _any_sample(
        self, shard: int, data: bytes, sample: dict[str, Any]
    ) -> dict[str, Any] | Failed:
        """Parse a sample with headers of any kind, or return why it failed.

        Raises `ShardError` if the index belongs to another shard.
        """
        path = self._path(shard)
        number = sample["__index__"]
        location = place_in(path, number, tar.first_key(data))
        try:
            members = tar.members(data, location)
        except ShardError as damage:
            self._files.check(path)
            if not self._agrees(shard):
                reason = f"at most places no sample starts ({damage})"
                raise disagreement(path, reason) from damage
            return Failed(DataError(str(damage)), location)
        samples = list(tar.samples_of(members))
        if len(samples) != 1:
            keys = [scanned.key for scanned in samples]
            raise disagreement(
                path, f"by the index sample {number} has the keys {keys}"
            )
        return self._with_parts(shard, data, sample, samples[0], location)

    def _with_parts(
        self,
        shard: int,
        data: bytes,
        sample: dict[str, Any],
        scanned: tar.ScannedSample,
        location: str,
    ) -> dict[str, Any] | Failed:
        """Add the scanned parts to a sample."""
        sample["__key__"] = scanned.key
        names = [part.name for part in scanned.parts]
        for part in scanned.parts:
            if part.name in sample:
                return _failed(
                    location,
                    "the sample has one part twice, or one with a reserved name: "
                    f"{names}. Remove it and pack the shard again",
                )
            sample[part.name] = data[part.offset : part.offset + part.size]
        # Header checksums do not cover long names.
        recorded = None if self.records is None else self.records[shard].parts_crc32
        if recorded is not None and scanned.parts_crc32 not in recorded:
            return _failed(
                location,
                f"its parts {names} are new since the shard was prepared: a name "
                "in the tar is damaged. Copy the tar again",
            )
        return sample

    def _agrees(self, shard: int) -> bool:
        """Return whether most samples start at their offset in the index."""
        count = self.counts[shard]
        (path, size) = self._opened(shard)
        starts, *_ = self._spans_of(shard, range(0, count, max(1, count // _PROBES)))
        ends = [min(start + tar.BLOCK, size) for start in starts]
        blocks = self._files.read_ranges(path, starts, ends)
        return sum(map(tar.is_header, blocks)) * 2 > len(ends)

    def _spans_of(
        self, shard: int, numbers: Sequence[int]
    ) -> tuple[list[int], list[int], list[int]]:
        """Return start, end and read limit of samples, in ascending order.

        Without a record of the shard, bytes after a sample are read too, to detect
        index entries that point too early.
        """
        path, size = self._opened(shard)
        if self.counts[shard] * ENTRY < KEPT:
            unpack = partial(
                RANGE.unpack_from, self._files.read_whole(index_path(path))
            )
            bounds = map(unpack, [number * ENTRY for number in numbers])
        else:
            entries = read_entries(
                self._files, index_path(path), numbers, ENTRY, RANGE.size
            )
            bounds = map(RANGE.unpack, entries)
        starts = []
        stops = []
        for number, (begin, stop) in zip(numbers, bounds, strict=True):
            start = (
                begin if number else 0
            )  # Energon stores the offset of the first header
            if not start < stop <= size:
                raise disagreement(
                    path,
                    f"by the index sample {number} spans bytes {start} to {stop}, but "
                    f"the shard has {size} bytes",
                )
            starts.append(start)
            stops.append(stop)
        if self.records is not None:
            return starts, stops, stops
        return starts, stops, [min(stop + tar.NAME_BYTES, size) for stop in stops]

    def _opened(self, shard: int) -> tuple[str, int]:
        """Return path and size of a shard; check it cheaply when first used."""
        opened = self._read_from.get(shard)
        if opened is None:
            path = self._path(shard)
            count = self.counts[shard]
            record = None if self.records is None else self.records[shard]
            opened = path, tar.check_shard(self._files, path, count, record)
            if self.checksums:
                crc = None if record is None else record.checksums_crc32
                tar.check_checksums(self._files, path, count, crc)
            self._read_from[shard] = opened
        return opened

    def _path(self, shard: int) -> str:
        return f"{self._root}/{self.shards[shard]}"

    def index_ranges(self, shard: int) -> list[Ranges]:
        path = self._path(shard)
        return [
            (index_path(path), [], []),
            (path, [0, -tar.END_BYTES], [tar.END_BYTES, 0]),
        ]

    def sample_ranges(self, shard: int, numbers: Sequence[int]) -> list[Ranges]:
        starts, _, ends = self._spans_of(shard, numbers)
        return [(self._path(shard), starts, ends)]

    def _stored(self, indices: Int64Array) -> Int64Array:
        """Map indices to numbers among all stored samples, including excluded ones."""
        if self.excluded:
            indices = indices + np.searchsorted(self._shifts, indices, side="right")
        return indices + self._bounds[0]

    @cached_property
    def _root(self) -> str:
        return str(self.path)

    @cached_property
    def _shifts(self) -> Int64Array:
        """For each excluded sample, the number of included ones before it."""
        excluded = np.array(self.excluded, dtype=np.int64) - self._bounds[0]
        return excluded - np.arange(len(excluded))

    @cached_property
    def _read_from(self) -> dict[int, tuple[str, int]]:
        """Shards already opened by this process: path and size."""
        return {}


class SplitShards(NamedTuple):
    """The shards of a split in order, and which of their samples belong to it.

    Attributes:
        shards: Names of the shards.
        counts: Samples per shard.
        excluded: Ascending numbers of excluded samples, among those of all the shards.
        records: Records from preparation; None without records.
        window: First sample of the split and the one after the last; None for all.
        origin: The loose files of the conversion; None if not converted, or not
            complete.
    """

    shards: tuple[str, ...]
    counts: tuple[int, ...]
    excluded: tuple[int, ...]
    records: tuple[ShardRecord, ...] | None = None
    window: tuple[int, int] | None = None
    origin: ConvertedFrom | None = None


def read_split(path: Path, split_part: str, split_config: str | None) -> SplitShards:
    """Resolve a split of the prepared folder `path`.

    Reads only shards with individually excluded samples, and the index of empty shards
    without a record.

    Args:
        path: The prepared folder.
        split_part: Name of the split.
        split_config: Name of the split file; None for `split.yaml`.

    Returns:
        The shards and samples of the split.

    Raises:
        SplitError: If the split, or a shard or sample that the file names, does not
            exist.
        EmptyDatasetError: If no sample is left.
    """
    shard_counts = read_info(path).shard_counts
    records = read_records(path, shard_counts)
    name = "split.yaml" if split_config is None else split_config
    splits = read_splits(path, name)
    if split_part not in splits.split_parts:
        parts = list(splits.split_parts)
        raise SplitError(
            f"{path} has no split part {split_part!r}"
            f"{nearest(split_part, parts) or '.'} "
            f"Its {name} has {some(parts) or 'none'}"
        )
    listed = splits.split_parts[split_part]
    _check_listed(listed, shard_counts, f"{path}, split part {split_part!r} in {name}")
    left_out = _excluded(splits.exclude, shard_counts, f"{path}, exclude in {name}")
    total = sum(map(shard_counts.__getitem__, listed))
    start, stop = splits.samples.get(split_part, (0, total))
    if stop > total:
        raise SplitError(
            f"{path}, samples of split part {split_part!r} in {name}: numbers must be "
            f"<= {total}, the samples of its shards, got {[start, stop]}. Run "
            "`energize prepare` again"
        )
    if records is None:
        for shard in listed:
            if not shard_counts[shard]:
                _check_empty(path / shard)
    chosen = _choose_shards(path, listed, shard_counts, left_out, (start, stop))
    if chosen.end - chosen.begin == len(chosen.excluded):
        raise EmptyDatasetError(
            f"{path}: split part {split_part!r} has no samples: {len(listed)} shards "
            f"are listed in {name}, {len(listed) - len(chosen.shards)} of them and "
            f"{len(chosen.excluded)} single samples are excluded"
        )
    shards = chosen.shards
    counts = tuple(map(shard_counts.__getitem__, shards))
    is_all = (chosen.begin, chosen.end) == (0, sum(counts))
    is_whole = is_all and not chosen.excluded
    return SplitShards(
        tuple(shards),
        counts,
        tuple(chosen.excluded),
        None if records is None else tuple(map(records.__getitem__, shards)),
        None if is_all else (chosen.begin, chosen.end),
        _origin_of(shards, shard_counts, records) if is_whole else None,
    )


class _ChosenShards(NamedTuple):
    """Shards with samples of a range: window `begin` to `end`, excluded numbers."""

    shards: list[str]
    begin: int
    end: int
    excluded: list[int]


def _choose_shards(
    path: Path,
    listed: Sequence[str],
    counts: Mapping[str, int],
    left_out: Mapping[str, set[str] | None],
    span: Window,
) -> _ChosenShards:
    """Return the listed shards that have samples of `span`, and which samples."""
    start, stop = span
    shards: list[str] = []
    excluded: list[int] = []
    offset = 0  # of the shard, among listed shards
    chosen = 0  # samples of the shards chosen so far
    begin = 0
    end = 0
    for shard in listed:
        keys = left_out.get(shard, set())
        count = counts[shard]
        first = max(start - offset, 0)
        last = min(stop - offset, count)
        offset += count
        if keys is None or first >= last:
            continue
        numbers = _numbers(path / shard, count, keys) if keys else []
        excluded += [chosen + number for number in numbers if first <= number < last]
        begin = begin if shards else first
        end = chosen + last
        shards.append(shard)
        chosen += count
    return _ChosenShards(shards, begin, end, excluded)


def _check_listed(
    listed: Sequence[str], shard_counts: Mapping[str, int], location: str
) -> None:
    """Raise `SplitError` for shards that are unknown or listed twice."""
    distinct = set(listed)
    if len(distinct) == len(listed) and distinct <= shard_counts.keys():
        return
    for shard, times in Counter(listed).items():
        if shard not in shard_counts:
            raise SplitError(
                f"{location}: shard {shard!r} is not in "
                f".info.json"
                f"{nearest(shard, list(shard_counts)) or '.'} Correct the name, "
                "or run `energize prepare` again to index new shards"
            )
        if times > 1:
            raise SplitError(
                f"{location}: shard {shard!r} is listed twice. List it once, and set "
                "a larger weight for the dataset instead"
            )


def _origin_of(
    shards: Sequence[str],
    counts: Mapping[str, int],
    records: Mapping[str, ShardRecord] | None,
) -> ConvertedFrom | None:
    """Return the common origin of all shards, None if they were not converted."""
    origin = records[shards[0]].origin if records else None
    if origin is None:
        return None
    contents = digest([shards, [counts[shard] for shard in shards]])
    return origin if origin.shards == contents else None


def _excluded(
    entries: Iterable[str], shard_counts: Mapping[str, int], location: str
) -> dict[str, set[str] | None]:
    """Return excluded keys by shard, from entries `shard` and `shard/key`.

    None for a whole shard.
    """
    keys_of: dict[str, set[str] | None] = {}
    deepest = (
        max((shard.count("/") for shard in shard_counts), default=0) if entries else 0
    )
    for entry in entries:
        slashes = (match.start() for match in re.finditer(r"/|\Z", entry))
        prefixes = islice(slashes, deepest + 1)
        cut = next((at for at in prefixes if entry[:at] in shard_counts), None)
        if cut is None:
            raise SplitError(
                f"{location}: {entry!r} must be SHARD or SHARD/KEY with a shard of "
                f".info.json"
                f"{nearest(entry, list(shard_counts)) or '.'} Correct or remove it"
            )
        keys = keys_of.setdefault(entry[:cut], set())
        if cut == len(entry):
            keys_of[entry] = None
        elif keys is not None:
            keys.add(entry[cut + 1 :])
    return keys_of


def _numbers(shard: Path, count: int, keys: set[str]) -> list[int]:
    """Return the numbers of the samples with these keys; raise if any is missing."""
    samples = scan(shard).samples
    if len(samples) != count:
        raise ShardError(
            f"{shard} has {len(samples)} samples, but .info.json lists {count}. Run "
            "`energize prepare` again"
        )
    missing = keys - {sample.key for sample in samples}
    if missing:
        raise SplitError(
            f"{shard} has no sample {min(missing)!r}, which is excluded (its keys "
            f"look like {samples[0].key if samples else None!r}). Correct or remove "
            "the entry"
        )
    return [number for number, sample in enumerate(samples) if sample.key in keys]


def _check_empty(shard: Path) -> None:
    """Raise if the index of a shard without samples lists samples."""
    index = index_path(str(shard))
    size = files_at(index).size(index) if exists(index) else ENTRY
    if size != ENTRY:
        raise ShardError(
            f"{shard} has no samples in .info.json, but its index {index} has {size} "
            f"bytes instead of {ENTRY}. Run `energize prepare` again"
        )
