"""Joining prepared folders: samples with the same key are read together.

`JoinedSource` looks keys up in the `index.sqlite` of the folders; `write_matches`
caches the result in a file.
"""

from __future__ import annotations

import io
import sqlite3
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

from energize.core.arrays import Int64Array
from energize.core.columns import Column
from energize.core.description import digest
from energize.core.failures import Failed, SamplePlace
from energize.core.os_errors import convert_os_errors
from energize.data.columns import folder_version, load_values, values_file
from energize.data.nv_meta import read_info
from energize.data.source import Source, Window, narrowed
from energize.data.stores import connected, index_of, unreadable
from energize.data.webdataset import WebdatasetSource
from energize.data.writing import write_new, writing
from energize.errors import (
    ColumnError,
    ConfigError,
    DatasetError,
    EmptyDatasetError,
    ShardError,
)

# Handling of samples without a partner: an error, skip it, or insert None.
NONMATCH = ("error", "skip", "none")

Raw = tuple[dict[str, Any] | None, ...]

_PREPARE = "energize prepare --tar-index-only --sqlite"
_LEFT_SECONDS = 3600

_PARTNERS = (
    "SELECT p.sample_index, p.sample_key, s.tar_file_id, s.sample_index FROM "
    "main.samples p LEFT JOIN other.samples s ON s.sample_key = p.sample_key WHERE "
    "p.tar_file_id = ? ORDER BY p.sample_index"
)
_COUNTS = (
    "SELECT tar_file_id, COUNT(*), MIN(sample_index), MAX(sample_index) FROM "
    "{}.samples GROUP BY tar_file_id"
)


def partners(
    first: WebdatasetSource, other: WebdatasetSource
) -> tuple[Int64Array, str | None]:
    """Find the partner in `other` of each sample of `first`, by key.

    Splits, windows and excluded samples of both sources apply. If a sample has no
    partner, both indexes are checked for damage. Takes some microseconds and 8 bytes
    per sample of `first`.

    Args:
        first: The source to find partners for.
        other: The source that may have partners.

    Returns:
        The number in `other` of each sample of `first`, int64 (n,), -1 for none; and a
        key without a partner, None if all have one.

    Raises:
        NotPreparedError: If a folder has no `index.sqlite`.
        DatasetError: If an index cannot be read, or has a key twice.
        ShardError: If an index is of other shards.
    """
    paths = [str(index_of(source.path)) for source in (first, other)]
    with unreadable(*paths), closing(connected(*paths)) as database:
        ids = _checked_ids(database, "main", first)
        other_ids = _checked_ids(database, "other", other)
        shards_of = np.full(len(other_ids) + 1, -1, dtype=np.int64)  # last: no partner
        other_numbers = [other_ids[shard] for shard in other.shards]
        shards_of[other_numbers] = np.arange(len(other.shards))
        partner_numbers = np.full(first.count, -1, dtype=np.int64)
        example = None
        for number, shard in enumerate(first.shards):
            # More rows than samples means a repeated key.
            most = first.counts[number] + 1
            rows = database.execute(_PARTNERS, (ids[shard],)).fetchmany(most)
            numbers = _column([row[0] for row in rows])
            repeated = np.flatnonzero(np.diff(numbers) == 0)
            if len(repeated):
                raise _repeated_key(first, other, rows[int(repeated[0])][1])
            matches = _match_rows(rows, shards_of, other)
            indices = first.indices(np.full(len(rows), number), numbers)
            is_read = indices >= 0
            partner_numbers[indices[is_read]] = matches[is_read]
            unmatched = np.flatnonzero(is_read & (matches < 0))
            if example is None and len(unmatched):
                example = rows[unmatched[0]][1]
        if example is not None:
            _check_integrity(database)
    return partner_numbers, example


def _match_rows(
    rows: list[tuple[Any, ...]], shards_of: Int64Array, other: WebdatasetSource
) -> Int64Array:
    """Return the number in `other` of each row of `_PARTNERS`, -1 for none."""
    shard_ids = [-1 if row[2] is None else row[2] for row in rows]
    places = [0 if row[2] is None else row[3] for row in rows]
    shards = shards_of[_column(shard_ids)]
    return np.where(shards < 0, -1, other.indices(shards, _column(places)))


def _repeated_key(
    first: WebdatasetSource, other: WebdatasetSource, key: str
) -> DatasetError:
    return DatasetError(
        f"{first.path} and {other.path}: the key {key!r} is not unique in one of them. "
        "Write its shards again with unique keys (--fix-duplicates prefixes keys with "
        "shard names, which then match no other folder)"
    )


def _check_integrity(database: sqlite3.Connection) -> None:
    """Raise for damaged keys, which each database stores in its table and its index."""
    for schema in ("main", "other"):
        check = f"PRAGMA {schema}.integrity_check('samples')"
        [(fault,), *_] = database.execute(check).fetchall()
        if fault != "ok":
            raise sqlite3.DatabaseError(fault)


def _column(values: list[Any]) -> Int64Array:
    if not set(map(type, values)) <= {int}:
        raise sqlite3.DatabaseError("the location of a sample must be a number")
    return np.array(values, dtype=np.int64)


def _checked_ids(
    database: sqlite3.Connection, schema: str, source: WebdatasetSource
) -> dict[str, int]:
    """Return the shard numbers of an index; each must be listed exactly once."""
    listed = {row[0]: row[1:] for row in database.execute(_COUNTS.format(schema))}
    counts = read_info(source.path).shard_counts
    fault = ""
    for number, (shard, count) in enumerate(counts.items()):
        seen = listed.pop(number, (0, None, None))
        if seen != ((count, 0, count - 1) if count else (0, None, None)) and not fault:
            fault = f"{seen[0]} samples of {shard}, and .info.json {count}"
    if fault or listed:
        raise ShardError(
            f"{index_of(source.path)} lists {fault or 'more shards'}: the index "
            "belongs to other shards, or has one key for several samples. Write it "
            f"again with: {_PREPARE} {source.path}"
        )
    return {shard: number for number, shard in enumerate(counts)}


class JoinedSource(Source[Raw]):
    """Tuples of samples with the same key, one from each source.

    Samples are in the order of the first source. Values are raw samples, as
    `WebdatasetSource` returns them. If one is damaged, the tuple is a `Failed`. Looking
    up keys takes some microseconds per sample, unless `cache` has current matches.

    Args:
        *parts: The sources, of folders with an `index.sqlite`.
        nonmatch: Per source after the first, the handling of missing keys: `"error"`
            raises on creation, `"skip"` leaves the sample out, `"none"` inserts None.
        cache: Folder that may have matches written by `write_matches`; outdated ones
            are ignored.
        seed: Seed of the order.
        occurrence: Distinguishes several uses of the same sources.

    Raises:
        ConfigError: If an argument is invalid.
        NotPreparedError: If a folder has no index.
        DatasetError: If samples have no partner under `"error"`, or keys are not
            unique.
        ShardError: If an index is of other shards.
        EmptyDatasetError: If no sample is left.

    Example:
        >>> import tempfile
        >>> from energize import prepare, write_shards
        >>> def folder(texts):
        ...     path = tempfile.mkdtemp()
        ...     _ = write_shards(
        ...         [{"__key__": key, "txt": text} for key, text in texts.items()], path
        ...     )
        ...     _ = prepare(
        ...         path,
        ...         split_ratios={"train": 1},
        ...         sample_type="TextSample",
        ...         sqlite=True,
        ...     )
        ...     return WebdatasetSource(path)
        >>> english = folder({"cat": "a cat", "dog": "a dog"})
        >>> french = folder({"dog": "un chien", "cow": "une vache"})
        >>> joined = JoinedSource(english, french, nonmatch=["skip"])
        >>> [(first["__key__"], first["txt"], other["txt"]) for first, other in joined]
        [('dog', b'a dog', b'un chien')]
    """

    order_name = "JoinedSource"

    parts: tuple[WebdatasetSource, ...]
    nonmatch: tuple[str, ...]
    cache: Path | None
    window: Window | None

    @convert_os_errors
    def __init__(
        self,
        *parts: WebdatasetSource,
        nonmatch: Sequence[str] = (),
        cache: Path | None = None,
        seed: int = 0,
        occurrence: int = 0,
    ) -> None:
        rules = tuple(nonmatch) or ("error",) * (len(parts) - 1)
        if (
            len(parts) < 2
            or len(rules) != len(parts) - 1
            or not set(rules) <= set(NONMATCH)
        ):
            raise ConfigError(
                "JoinedSource must have at least two sources, and one of "
                f"{', '.join(NONMATCH)} for each after the first, got {len(parts)} "
                f"sources and {list(rules)}"
            )
        self.freeze(
            parts=parts,
            nonmatch=rules,
            cache=cache,
            window=None,
            seed=seed,
            occurrence=occurrence,
        )
        if not len(self.matches):
            raise EmptyDatasetError(
                f"the join {self.name} has no samples: no sample of {parts[0].path} "
                "has all partners"
            )

    def part(self, start: int, stop: int) -> Self:
        """Return the same source restricted to the samples from `start` to before
        `stop`.

        Args:
            start: First sample, counted among `count`.
            stop: Sample after the last one.

        Returns:
            The restricted source.

        Raises:
            ConfigError: If the range exceeds `count`.
            EmptyDatasetError: If the range is empty.
        """
        whole = self.window or (0, self.count)
        return self.replace(window=narrowed(self.name, whole, start, stop))

    @cached_property
    def matches(self) -> Int64Array:
        """The number of each sample in each part, int64 (count, parts), -1 for none."""
        return (
            self.all_matches
            if self.window is None
            else self.all_matches[slice(*self.window)]
        )

    @cached_property
    def all_matches(self) -> Int64Array:
        """The matches of the whole first dataset, without the window."""
        written = _load_written(self)
        return (
            _find_matches(self.parts, self.nonmatch) if written is None else written[1]
        )

    def __getstate__(self) -> dict[str, Any]:
        """Include the matches, so that other processes need no lookup."""
        cached = {} if _files(self) else {"all_matches": self.all_matches}
        return super().__getstate__() | cached

    @property
    def count(self) -> int:
        return len(self.matches)

    @property
    def column_names(self) -> tuple[str, ...]:
        """The columns of all parts."""
        return tuple(
            dict.fromkeys(name for part in self.parts for name in part.column_names)
        )

    def _column(self, name: str) -> Column:
        """Return the column of the first part that has it.

        Without a partner in that part, words are missing; numbers raise `ColumnError`.
        """
        having = next(
            i for i, part in enumerate(self.parts) if name in part.column_names
        )
        column = self.parts[having].column(name)
        rows = self.matches[:, having]
        alone = rows < 0
        if not alone.any():
            return column.part(rows)
        if not column.is_text:
            raise ColumnError(
                f"{self.name}: {int(alone.sum())} of {len(rows)} samples have no "
                f"partner in {self.parts[having].path}, so {name!r} is missing for "
                f"them. Join with `nonmatch: skip`, or measure {name!r} for the first "
                "dataset"
            )
        words = np.where(alone, -1, column.values[np.maximum(rows, 0)])
        return Column(words.astype(np.int32), column.categories)

    def indexing_hint(self, name: str) -> str:
        return self.parts[0].indexing_hint(name)

    @property
    def stored_count(self) -> int:
        """Number of samples."""
        return self.count

    @cached_property
    def identity(self) -> str:
        parts = [part.identity for part in self.parts]
        return digest(["join", parts, self.nonmatch, self.count, self.window])

    @cached_property
    def name(self) -> str:
        return "+".join(part.name for part in self.parts)

    @cached_property
    def record(self) -> str | None:
        records = [part.record for part in self.parts]
        return None if None in records else digest(records)

    @property
    def run_length(self) -> int:
        return min(part.run_length for part in self.parts)

    @property
    def path(self) -> Path:
        """Folder of the first source."""
        return self.parts[0].path

    @property
    def split_part(self) -> str:
        """Split of the first source."""
        return self.parts[0].split_part

    def settings(self) -> dict[str, Any]:
        parameters = {
            "split_part": self.split_part,
            "parts": [part.settings() for part in self.parts],
            "nonmatch": list(self.nonmatch),
            "identity": self.identity,
        }
        subset = {} if self.window is None else {"subset": list(self.window)}
        return super().settings() | parameters | subset

    def where(self, index: int) -> str:
        """Return the location of the sample of the first source."""
        return self.parts[0].where(int(self.matches[index, 0]))

    @property
    def location(self) -> str:
        return "+".join(part.location for part in self.parts)

    def place(self, index: int) -> SamplePlace:
        """Return where the sample of the first source is stored."""
        first = self.parts[0].place(int(self.matches[index, 0]))
        return replace(first, dataset=self.location, source=self.identity)

    def find(self, shard: str | None, index: int) -> int | None:
        """Return the index of the tuple with a sample of the first source."""
        first = self.parts[0].find(shard, index)
        rows = (
            []
            if first is None
            else np.flatnonzero(self.matches[:, 0] == first).tolist()
        )
        return rows[0] if rows else None

    @property
    def remote(self) -> bool:
        return any(part.remote for part in self.parts)

    def byte_ranges(self, index: int) -> Iterator[tuple[str, int, int]]:
        matches = self.matches[index].tolist()
        for part, match in zip(self.parts, matches, strict=True):
            if match >= 0:
                yield from part.byte_ranges(match)

    def expect(self, indices: Int64Array) -> int:
        parts = zip(self.parts, self.matches[indices].T, strict=True)
        return sum(part.expect(wanted[wanted >= 0]) for part, wanted in parts)

    def read(self, indices: Int64Array) -> list[Raw | Failed]:
        columns: list[list[Any]] = []
        for part, wanted in zip(self.parts, self.matches[indices].T, strict=True):
            column: list[Any] = [None] * len(indices)
            present = np.flatnonzero(wanted >= 0)
            samples = part.read(wanted[present]) if len(present) else []
            for row, sample in zip(present.tolist(), samples, strict=True):
                column[row] = sample
            columns.append(column)
        return [self._joined(samples) for samples in zip(*columns, strict=True)]

    def _joined(self, samples: tuple[Any, ...]) -> Raw | Failed:
        """Return the tuple of samples after checking keys, or its first failure."""
        failed = next((sample for sample in samples if type(sample) is Failed), None)
        if failed is not None:
            return failed
        first = samples[0]["__key__"]
        for sample in samples[1:]:
            if sample is not None and sample["__key__"] != first:
                raise ShardError(
                    f"{self.location}: {first!r} of {samples[0]['__shard__']} would "
                    f"be joined with {sample['__key__']!r} of "
                    f"{sample['__dataset__']}: one index.sqlite is damaged or "
                    f"outdated. Write both again with: {_PREPARE} FOLDER"
                )
        return samples


def write_matches(source: JoinedSource) -> Path:
    """Write the matches into the folder `cache` of the source, unless they exist.

    The file name has digests of the folders with their splits, and of the content. It
    is replaced atomically.

    Args:
        source: The source, with a `cache`.

    Returns:
        The file.

    Raises:
        ConfigError: If the source has no `cache`.
        DatasetError: If the file cannot be written.
    """
    if source.cache is None:
        raise ConfigError("the source has no folder for matches. Pass `cache`")
    existing = _load_written(source)
    if existing is not None:
        return existing[0]
    file = source.cache / values_file(_cache_stem(source), source.all_matches, None)
    with writing(file, DatasetError):
        file.parent.mkdir(exist_ok=True)
    content = io.BytesIO()
    np.save(content, source.all_matches, allow_pickle=False)
    write_new(file, content.getvalue(), DatasetError)
    return file


def remove_matches(cache: Path, keep: Collection[Path]) -> None:
    """Remove files of `write_matches` from a folder, except `keep`.

    Also removes temporary files that are more than an hour old.
    """
    for old in set(cache.glob("join_*.npy*")) - set(keep):
        with suppress(FileNotFoundError):
            if (
                old.suffix == ".npy"
                or time.time() - old.stat().st_mtime > _LEFT_SECONDS
            ):
                old.unlink()


def _find_matches(
    parts: Sequence[WebdatasetSource], nonmatch: Sequence[str]
) -> Int64Array:
    """Look up the matches in the indexes of the folders."""
    first, *further = parts
    columns = [np.arange(first.count, dtype=np.int64)]
    included = np.ones(first.count, dtype=np.bool_)
    for other, rule in zip(further, nonmatch, strict=True):
        indices, example = partners(first, other)
        unmatched = indices < 0
        if rule == "error" and unmatched.any():
            raise DatasetError(
                f"{int(unmatched.sum())} of {first.count} samples of {first.path} "
                f"[{first.split_part}] have no partner in {other.path} "
                f"[{other.split_part}], the first of them {example!r}. Add the "
                "partners, skip these samples (`nonmatch: skip`), or use None in "
                "place of partners (`nonmatch: none`)"
            )
        if rule == "skip":
            included &= ~unmatched
        columns.append(indices)
    return np.stack(columns, axis=1)[included]


def _cache_stem(source: JoinedSource) -> str:
    """Return the start of the file name of matches: a digest of folders and sources."""
    versions = []
    for part in source.parts:
        status = index_of(part.path).stat()
        version = folder_version(part.path) or [status.st_size, status.st_mtime_ns]
        versions.append([version, part.shards, part.counts, part.excluded, part.window])
    return f"join_{digest([versions, source.nonmatch])}"


def _files(source: JoinedSource) -> list[Path]:
    return (
        []
        if source.cache is None
        else sorted(source.cache.glob(f"{_cache_stem(source)}.*.npy"))
    )


def _load_written(source: JoinedSource) -> tuple[Path, Int64Array] | None:
    """Return the current file of matches and its content, None without one."""
    files = _files(source)
    if not files:
        return None
    counts = [part.count for part in source.parts]
    try:
        matches: Int64Array = load_values(str(files[0]))
        if (
            matches.dtype != np.int64
            or matches.ndim != 2
            or matches.shape[1] != len(counts)
        ):
            raise ValueError(f"it has {matches.dtype} {matches.shape}")
        if not ((matches < counts) & (matches >= -1)).all():
            raise ValueError("it lists samples missing from the folders")
    except ValueError as reason:
        text = f"{files[0]} is not a file of matches: {reason}. Delete it"
        raise DatasetError(text) from reason
    return files[0], matches
