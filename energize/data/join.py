"""Which samples of prepared folders have the same key, by their `index.sqlite`."""

from __future__ import annotations

import hashlib
import io
import sqlite3
import time
from collections.abc import Collection, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import numpy as np
from numpy.lib.format import open_memmap

from energize.core.arrays import Int64Array
from energize.core.columns import Column
from energize.core.description import digest
from energize.core.reading import Failed, SamplePlace
from energize.data.columns import BAD_ARRAY
from energize.data.nv_meta import META_FOLDER, SQLITE_NAME, UUID_NAME, read_info
from energize.data.source import Source, Window, narrowed
from energize.data.sqlite import check_disk
from energize.data.webdataset import WebdatasetSource
from energize.data.writing import own_errors, patiently, write_new, writing
from energize.errors import (
    ColumnError,
    ConfigError,
    DatasetError,
    EmptyDatasetError,
    NotPreparedError,
    ShardError,
)

_PREPARE = "energize prepare --tar-index-only --sqlite"
_PARTNERS = (
    "SELECT p.sample_index, p.sample_key, s.tar_file_id, s.sample_index FROM main.samples p "
    "LEFT JOIN other.samples s ON s.sample_key = p.sample_key "
    "WHERE p.tar_file_id = ? ORDER BY p.sample_index"
)

_UNREADABLE = (sqlite3.Error, UnicodeDecodeError)
"""What sqlite3 raises for damaged files; the latter where its message quotes damaged text."""


@dataclass(frozen=True, slots=True)
class Partners:
    """For each sample of one source, by its number, the sample of another one that has its key: -1
    where there is none. `example` is a key without a partner, if there is one.
    """

    indices: Int64Array
    example: str | None


def partners(first: WebdatasetSource, other: WebdatasetSource) -> Partners:
    """Look the keys of all samples of `first` up in `other`.

    Keys come from the `index.sqlite` of both folders. Splits, parts and excluded samples are those
    of the sources: what `other` does not read is no partner. Where a sample has none, both
    indexes are looked through for damage. Time is some microseconds for each sample of `first`,
    memory 8 bytes.

    Raises `NotPreparedError` for a folder without this index, `DatasetError` for one that cannot be
    read or has a key twice, and `ShardError` for one of other shards than those indexed now.
    """
    with closing(_opened(first, other)) as database:
        _check_counts(database, "main", first)
        _check_counts(database, "other", other)
        found = np.full(first.count, -1, dtype=np.int64)
        example = None
        ids, numbers_of = _shard_ids(first), _numbers_by_id(other)
        for number, shard in enumerate(first.shards):
            rows = _rows(database, ids[shard], first, other)
            _check_keys(rows, first, other)
            own = first.indices(np.full(len(rows), number), _column(rows, 0))
            kept = own >= 0
            theirs = _theirs(rows, other, numbers_of)
            found[own[kept]] = theirs[kept]
            if example is None:
                alone = np.flatnonzero(kept & (theirs < 0))
                example = rows[alone[0]][1] if len(alone) else None
        if len(found) and found.min() < 0:
            _check_whole(database, "main", first)
            _check_whole(database, "other", other)
    return Partners(found, example)


def index_version(source: WebdatasetSource) -> str:
    """What is different when the folder was prepared again, or other samples of it are read.

    Raises `NotPreparedError` for a folder without `index.sqlite`.
    """
    file = _index_of(source)
    uuid = file.with_name(UUID_NAME)
    if uuid.is_file():
        version: Any = uuid.read_bytes()[:100].hex()
    else:
        version = [file.stat().st_size, file.stat().st_mtime_ns]
    return digest([version, source.shards, source.counts, source.excluded, source.window])


def _opened(first: WebdatasetSource, other: WebdatasetSource) -> sqlite3.Connection:
    """Both indexes, which nobody writes to while they are read."""
    try:
        database = sqlite3.connect(_uri(first), uri=True)
    except sqlite3.Error as reason:
        check_disk(reason, str(_index_of(first)))
        raise _unreadable(str(_index_of(first)), reason) from reason
    try:
        database.execute("PRAGMA trusted_schema = OFF")
        database.execute("ATTACH DATABASE ? AS other", (_uri(other),))
    except _UNREADABLE as reason:
        database.close()
        check_disk(reason, str(_index_of(other)))
        raise _unreadable(str(_index_of(other)), reason) from reason
    return database


def _uri(source: WebdatasetSource) -> str:
    return f"file:{quote(str(_index_of(source).absolute()))}?mode=ro&immutable=1"


def _index_of(source: WebdatasetSource) -> Path:
    file = source.path / META_FOLDER / SQLITE_NAME
    if not file.is_file():
        raise NotPreparedError(
            f"{source.path} has no {META_FOLDER}/{SQLITE_NAME}, by which samples are found by "
            f"their keys; write it with: {_PREPARE} {source.path}"
        )
    return file


def _rows(
    database: sqlite3.Connection, shard_id: int, first: WebdatasetSource, other: WebdatasetSource
) -> list[tuple[Any, ...]]:
    try:
        return database.execute(_PARTNERS, (shard_id,)).fetchall()
    except _UNREADABLE as reason:
        check_disk(reason, str(_index_of(first)))
        check_disk(reason, str(_index_of(other)))
        what = f"the {SQLITE_NAME} of {first.path} and {other.path}"
        raise _unreadable(what, reason) from reason


def _unreadable(what: str, reason: object) -> DatasetError:
    return DatasetError(
        f"{what} cannot be read: {reason}. It was cut off, is no SQLite database, or lacks a "
        f"table; write it again with: {_PREPARE} FOLDER"
    )


def _check_counts(database: sqlite3.Connection, name: str, source: WebdatasetSource) -> None:
    """The index has to be of the shards that `.info.json` lists, with every sample once."""
    try:
        is_table = database.execute(
            f"SELECT 1 FROM {name}.sqlite_master WHERE type = 'table' AND name = 'samples'"  # noqa: S608
        ).fetchone()
        if not is_table:  # a view could compute for ever
            raise _unreadable(str(_index_of(source)), "it has no table 'samples'")
        listed = database.execute(
            f"SELECT tar_file_id, COUNT(*), MIN(sample_index), MAX(sample_index) "  # noqa: S608
            f"FROM {name}.samples GROUP BY tar_file_id"  # `name` is "main" or "other"
        ).fetchall()
    except _UNREADABLE as reason:
        check_disk(reason, str(_index_of(source)))
        raise _unreadable(str(_index_of(source)), reason) from reason
    found = {each[0]: each[1:] for each in listed}
    for shard_id, (shard, count) in enumerate(read_info(source.path).shard_counts.items()):
        expected = (count, 0, count - 1) if count else (0, None, None)
        seen = found.pop(shard_id, (0, None, None))
        if seen != expected:
            raise ShardError(
                f"{_index_of(source)} lists {seen[0]} samples of {shard}, and .info.json {count}: "
                "the index is of other shards, or has one key for several samples; write it again "
                f"with: {_PREPARE} {source.path}"
            )
    if found:
        raise ShardError(
            f"{_index_of(source)} lists samples of more shards than .info.json; write it again "
            f"with: {_PREPARE} {source.path}"
        )


def _check_whole(database: sqlite3.Connection, name: str, source: WebdatasetSource) -> None:
    """Where samples have no partner: each key is stored twice, so a damaged one can be told."""
    try:
        found = database.execute(f"PRAGMA {name}.integrity_check('samples')").fetchone()
    except _UNREADABLE as reason:
        check_disk(reason, str(_index_of(source)))
        raise _unreadable(str(_index_of(source)), reason) from reason
    if found != ("ok",):
        raise _unreadable(str(_index_of(source)), found[0])


def _check_keys(
    rows: list[tuple[Any, ...]], first: WebdatasetSource, other: WebdatasetSource
) -> None:
    """Every sample stands in `rows` once, unless a key stands for several of the others."""
    numbers = _column(rows, 0)
    twice = np.flatnonzero(np.diff(numbers) == 0)
    if len(twice):
        raise DatasetError(
            f"{first.path} cannot be joined with {other.path}: in one of them the key "
            f"{rows[int(twice[0])][1]!r} stands for several samples; make keys unique, with "
            "`energize prepare --fix-duplicates` say"
        )


def _column(rows: list[tuple[Any, ...]], number: int) -> Int64Array:
    return np.fromiter((row[number] for row in rows), dtype=np.int64, count=len(rows))


def _shard_ids(source: WebdatasetSource) -> dict[str, int]:
    """The numbers that the index gives to shards: their places in `.info.json`."""
    return {shard: number for number, shard in enumerate(read_info(source.path).shard_counts)}


def _numbers_by_id(source: WebdatasetSource) -> Int64Array:
    """For each number of the index the shard's number in `source`, -1 where it is not read."""
    ids = _shard_ids(source)
    numbers = np.full(len(ids), -1, dtype=np.int64)
    numbers[[ids[shard] for shard in source.shards]] = np.arange(len(source.shards))
    return numbers


def _theirs(
    rows: list[tuple[Any, ...]], other: WebdatasetSource, numbers_of: Int64Array
) -> Int64Array:
    """For each row the sample of `other`, -1 for none."""
    indices = np.full(len(rows), -1, dtype=np.int64)
    paired = [i for i, row in enumerate(rows) if row[2] is not None]
    shards = numbers_of[[rows[i][2] for i in paired]] if paired else np.zeros(0, dtype=np.int64)
    numbers = np.array([rows[i][3] for i in paired], dtype=np.int64)
    read = shards >= 0
    at = np.array(paired, dtype=np.int64)[read]
    indices[at] = other.indices(shards[read], numbers[read])
    return indices


# Samples of several prepared folders that have the same key, read together.

NONMATCH = ("error", "skip", "none")
"""What may happen to a sample without a partner: an error, it is left out, or None stands for it.
"""

_LEFT_SECONDS = 3600

_FORM = 2
"""Of files of matches; those of form 1 had no digest."""

Raw = tuple[dict[str, Any] | None, ...]


class JoinedSource(Source[Raw]):
    """The samples of a first source, each in a tuple with those of the others that have its key.

    Sample k is the k-th of the first source, of those that are kept. `nonmatch` says for each of
    the others what happens where it has no such key: "error" raises when the source is made, "skip"
    leaves the sample out, "none" puts None in its place. The values are raw samples, as
    `WebdatasetSource` gives them. Where one of them is damaged, the whole one is a `Failed`.

    Keys come from the `index.sqlite` of the folders. `cache` is a folder in which
    `write_matches` may have written what belongs together; what is there is used when it is of the
    folders as they are now, else the index is asked: some microseconds for each sample.

    Raises `ConfigError` for wrong arguments, `NotPreparedError` for a folder without an index,
    `DatasetError` for samples without a partner under "error" and for keys that are not unique,
    `ShardError` for an index of other shards, and `EmptyDatasetError` when no sample is left.

    >>> import tempfile
    >>> from energize import prepare, write_shards
    >>> def folder(texts):
    ...     path = tempfile.mkdtemp()
    ...     _ = write_shards([{"__key__": key, "txt": text} for key, text in texts.items()], path)
    ...     _ = prepare(path, split_ratios={"train": 1}, sample_type="TextSample", sqlite=True)
    ...     return WebdatasetSource(path)
    >>> english = folder({"cat": "a cat", "dog": "a dog"})
    >>> french = folder({"dog": "un chien", "cow": "une vache"})
    >>> joined = JoinedSource(english, french, nonmatch=["skip"])
    >>> [(first["__key__"], first["txt"], other["txt"]) for first, other in joined]
    [('dog', b'a dog', b'un chien')]
    """

    parts: tuple[WebdatasetSource, ...]
    nonmatch: tuple[str, ...]
    cache: Path | None
    window: Window | None

    @own_errors
    def __init__(
        self,
        *parts: WebdatasetSource,
        nonmatch: Sequence[str] = (),
        cache: Path | None = None,
        seed: int = 0,
        occurrence: int = 0,
    ) -> None:
        rules = tuple(nonmatch) or ("error",) * (len(parts) - 1)
        if len(parts) < 2 or len(rules) != len(parts) - 1 or not set(rules) <= set(NONMATCH):
            raise ConfigError(
                "JoinedSource takes two sources or more, and for each but the first what happens "
                f"to samples without a partner: {', '.join(NONMATCH)}; got {len(parts)} sources "
                f"and {list(rules)}"
            )
        self._freeze(
            parts=parts, nonmatch=rules, cache=cache, window=None, seed=seed, occurrence=occurrence
        )
        if not len(self.matches):
            raise EmptyDatasetError(
                f"the join {self.name} has no samples: none of the {parts[0].count} of "
                f"{parts[0].path} has a partner in all of the others"
            )

    def part(self, start: int, stop: int) -> Self:
        """The same source with the samples from `start` to before `stop` only.

        Raises `ConfigError` for numbers beyond `count`, `EmptyDatasetError` when none is left.
        """
        whole = self.window or (0, self.count)
        return self._replace(window=narrowed(self.name, whole, start, stop))

    @cached_property
    def matches(self) -> Int64Array:
        """For each sample its number in each of `parts`, -1 for none: int64 [samples, parts]."""
        return self._all_matches if self.window is None else self._all_matches[slice(*self.window)]

    @cached_property
    def _all_matches(self) -> Int64Array:
        found = _cached(self)
        return _found(self.parts, self.nonmatch) if found is None else found

    def __getstate__(self) -> dict[str, Any]:
        """With what was looked up in the indexes, which no other process has to do again."""
        found = self.__dict__.get("_all_matches")
        kept = {} if found is None or isinstance(found, np.memmap) else {"_all_matches": found}
        return super().__getstate__() | kept

    @property
    def count(self) -> int:
        return len(self.matches)

    @property
    def column_names(self) -> tuple[str, ...]:
        """Those of its parts."""
        return tuple(dict.fromkeys(name for part in self.parts for name in part.column_names))

    def column(self, name: str) -> Column:
        """That of the first part that has it. Of a part that a sample has no partner in, words are
        absent, and numbers a `ColumnError`.
        """
        having = [i for i, each in enumerate(self.parts) if name in each.column_names]
        if not having:
            return super().column(name)
        part = having[0]
        column, rows = self.parts[part].column(name), self.matches[:, part]
        if not (rows < 0).any():
            return column.part(rows)
        if not column.is_text:
            raise ColumnError(
                f"{self.name}: the column {name!r} is of {self.parts[part].path}, in which "
                f"{int((rows < 0).sum())} of {len(rows)} samples have no partner, so they have no "
                "number; join with `nonmatch: skip`, or measure it for the first dataset"
            )
        words = np.where(rows < 0, -1, column.values[np.maximum(rows, 0)])
        return Column(words.astype(np.int32), column.categories)

    def _how_to_index(self, name: str) -> str:
        return self.parts[0]._how_to_index(name)

    @property
    def stored_count(self) -> int:
        """How many samples there are."""
        return self.count

    @cached_property
    def identity(self) -> str:
        parts = [each.identity for each in self.parts]
        return digest(["join", parts, self.nonmatch, self.count, self.window])

    @cached_property
    def name(self) -> str:
        return "+".join(each.name for each in self.parts)

    @cached_property
    def record(self) -> str | None:
        records = [each.record for each in self.parts]
        return None if None in records else digest(records)

    @property
    def run_length(self) -> int:
        return min(each.run_length for each in self.parts)

    @property
    def path(self) -> Path:
        """The folder of the first source, in whose order samples come."""
        return self.parts[0].path

    @property
    def split_part(self) -> str:
        """The split part of the first source."""
        return self.parts[0].split_part

    def settings(self) -> dict[str, Any]:
        return (
            super().settings()
            | {
                "split_part": self.split_part,
                "parts": [each.settings() for each in self.parts],
                "nonmatch": list(self.nonmatch),
                "identity": self.identity,
            }
            | ({} if self.window is None else {"subset": list(self.window)})
        )

    def where(self, position: int, attempt: int = 0) -> str:
        """Where the sample of the first source lies."""
        index = int(self._samples(np.array([position], dtype=np.int64), attempt)[0])
        return self.parts[0].where(int(self.matches[index, 0]))

    @property
    def location(self) -> str:
        return "+".join(each.location for each in self.parts)

    def place(self, index: int) -> SamplePlace:
        """Where the sample of the first source is stored."""
        first = self.parts[0].place(int(self.matches[index, 0]))
        return replace(first, dataset=self.location, source=self.identity)

    def find(self, shard: str | None, index: int) -> int | None:
        """The number here of the joined sample whose first one is sample `index` of a shard."""
        first = self.parts[0].find(shard, index)
        rows = [] if first is None else np.flatnonzero(self.matches[:, 0] == first).tolist()
        return rows[0] if rows else None

    def read(self, indices: Int64Array) -> list[Raw | Failed]:
        wanted = self.matches[indices]
        columns: list[list[Any]] = []
        for number, part in enumerate(self.parts):
            column: list[Any] = [None] * len(indices)
            there = np.flatnonzero(wanted[:, number] >= 0)
            samples = part.read(wanted[there, number]) if len(there) else []
            for row, sample in zip(there.tolist(), samples, strict=True):
                column[row] = sample
            columns.append(column)
        return [self._joined(samples) for samples in zip(*columns, strict=True)]

    def _joined(self, samples: tuple[Any, ...]) -> Raw | Failed:
        """The samples of a row, which have one key, or what failed of them."""
        failed = next((each for each in samples if type(each) is Failed), None)
        if failed is not None:
            return failed
        first = samples[0]["__key__"]
        for each in samples[1:]:
            if each is not None and each["__key__"] != first:
                raise ShardError(
                    f"{self.location}: {first!r} of {samples[0]['__shard__']} would be joined with "
                    f"{each['__key__']!r} of {each['__dataset__']}: the index.sqlite of one of the "
                    "folders is damaged, or of other shards; write them again with: energize "
                    "prepare --tar-index-only --sqlite FOLDER"
                )
        return samples


def write_matches(source: JoinedSource) -> Path:
    """Write what belongs together into the folder `cache` of the source, unless it is there.

    The file is named after the folders as they are now, their splits and `nonmatch`. It is written
    under another name and renamed at the end. Raises `DatasetError` when it cannot be written.
    """
    file = _file_of(source)
    if file is None:
        raise ConfigError("the source has no folder for what belongs together; give it a `cache`")
    if _cached(source) is not None:
        return file
    matches = source._all_matches
    with writing(file, DatasetError):
        file.parent.mkdir(exist_ok=True)
    content = io.BytesIO()
    np.save(content, sealed(matches), allow_pickle=False)
    write_new(file, content.getvalue(), DatasetError)
    return file


def remove_matches(cache: Path, kept: Collection[Path]) -> None:
    """Remove what `write_matches` wrote into a folder, but for the files `kept`; and what writing
    left that was killed an hour ago or before.
    """
    for old in set(cache.glob("join_*.npy")) - set(kept):
        old.unlink(missing_ok=True)
    for left in cache.glob("join_*.npy.*.tmp"):
        with suppress(FileNotFoundError):
            if time.time() - left.stat().st_mtime > _LEFT_SECONDS:
                left.unlink()


def _found(parts: Sequence[WebdatasetSource], nonmatch: Sequence[str]) -> Int64Array:
    """The matches that the indexes of the folders give."""
    first, *others = parts
    columns = [np.arange(first.count, dtype=np.int64)]
    kept = np.ones(first.count, dtype=np.bool_)
    for other, rule in zip(others, nonmatch, strict=True):
        found = partners(first, other)
        alone = found.indices < 0
        if rule == "error" and alone.any():
            raise DatasetError(
                f"{int(alone.sum())} of {first.count} samples of {first.path} "
                f"[{first.split_part}] have no partner in {other.path} [{other.split_part}], the "
                f"first of them {found.example!r}; add them, or say what happens: "
                f"`nonmatch: skip` leaves such samples out, `nonmatch: none` puts None in their "
                "place"
            )
        if rule == "skip":
            kept &= ~alone
        columns.append(found.indices)
    return np.stack(columns, axis=1)[kept]


def _file_of(source: JoinedSource) -> Path | None:
    if source.cache is None:
        return None
    versions = [index_version(part) for part in source.parts]
    return source.cache / f"join_{digest([_FORM, versions, source.nonmatch])}.npy"


def sealed(matches: Int64Array) -> Int64Array:
    """What a file of matches holds: them, and a row that begins with a digest of the others."""
    row = np.zeros((1, matches.shape[1]), dtype=np.int64)
    found = hashlib.blake2b(np.ascontiguousarray(matches).data, digest_size=8).digest()
    row[0, 0] = int.from_bytes(found, "little", signed=True)
    return np.concatenate([matches, row])


def _cached(source: JoinedSource) -> Int64Array | None:
    """The matches that were written before; None where there are none of these folders."""
    file = _file_of(source)
    if file is None or not file.is_file():
        return None
    # Not `np.load`, which takes archives and pickles too.
    load = partial(open_memmap, file, mode="r")
    try:
        matches: Int64Array = patiently(load, file)
    except BAD_ARRAY as reason:
        raise _damaged(file, str(reason)) from reason
    counts = [part.count for part in source.parts]
    if matches.dtype != np.int64 or matches.ndim != 2 or matches.shape[1] != len(counts):
        raise _damaged(file, f"it holds {matches.dtype} {matches.shape}")
    if not np.array_equal(matches, sealed(matches[:-1])):
        raise _damaged(file, "it was changed since it was written")
    matches = matches[:-1]
    if len(matches) and not ((matches.max(axis=0) < counts) & (matches.min(axis=0) >= -1)).all():
        raise _damaged(file, "it names samples that the folders do not have")
    return matches


def _damaged(file: Path, reason: str) -> DatasetError:
    return DatasetError(f"{file} is no list of joined samples: {reason}; delete it")
