"""Samples of several prepared folders that have the same key, read together."""

from __future__ import annotations

import hashlib
import io
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.lib.format import open_memmap

from energize.arrays import Int64Array
from energize.columns import Column
from energize.describing import digest
from energize.errors import (
    ColumnError,
    ConfigError,
    DatasetError,
    EmptyDatasetError,
    ShardError,
)
from energize.reading import Failed, SamplePlace
from energize.sources.base import Source
from energize.sources.matching import index_version, partners
from energize.sources.webdataset import WebdatasetSource
from energize.sources.window import Window, narrowed
from energize.storage.columns import BAD_ARRAY
from energize.storage.faults import own_errors, patiently
from energize.storage.new_files import write_new, writing

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
