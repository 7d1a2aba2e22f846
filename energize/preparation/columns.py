"""Measuring columns of a prepared folder: one value for each sample, known without reading it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from energize.core.arrays import Int64Array
from energize.core.checks import checked_whole
from energize.core.columns import Column
from energize.data.columns import (
    COLUMNS_FOLDER,
    COLUMNS_NAME,
    MOST_WORDS,
    ColumnIndex,
    StoredColumn,
    check_name,
    dump_columns,
    folder_version,
    read_columns,
    values_file,
)
from energize.data.nv_meta import read_info
from energize.data.writing import os_errors_as, writing
from energize.errors import ConfigError, DatasetError, PrepareError, nearest
from energize.preparation.measures import Value, how_text, named
from energize.preparation.measuring import Piece, Progress, measure_shards
from energize.preparation.older_columns import measured_before
from energize.preparation.parallel import default_workers
from energize.preparation.staging import Staging

How = str | Callable[[dict[str, Any]], Any]
"""A measure as `--column NAME=HOW` writes it, or a function of raw samples."""

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class ColumnsReport:
    """What was measured of how many samples: the columns by name, and `notes` on samples without a
    value.
    """

    path: Path
    samples: int
    columns: dict[str, Column]
    notes: tuple[str, ...] = ()


@os_errors_as(PrepareError, what="cannot be used")
def prepare_columns(
    path: str | os.PathLike[str],
    columns: Mapping[str, How],
    *,
    defaults: Mapping[str, Value] | None = None,
    workers: int | None = None,
    on_progress: Progress | None = None,
) -> ColumnsReport:
    """Measure columns of a prepared folder, so that they are known without reading samples.

    A measure is written as `energize prepare --column NAME=HOW` takes it ("size:txt" for the bytes
    of a part, "len:txt", "json[quality]", "image:width", ...: see the page on columns), or is a
    function of a raw sample, a dict of its parts as bytes, that returns a number, a word or None.
    Shards are read in `workers` processes; their index stays as it is. Columns of other names stay,
    too; all appear together when the last shard has been read, and on any error none does.

    A column has numbers (int64, or float64 if any is no whole one) or words. A sample without a
    value takes that of `defaults`; without one, words may be absent, which the report notes, and
    numbers may not.

    Raises `ConfigError` for wrong arguments; `PrepareError` for samples without a number, values
    that no column could have, what the functions raise, and shards that are damaged or not those
    that were indexed; `NotPreparedError` and `DatasetNotFoundError`.

    >>> import tempfile
    >>> from energize import WebdatasetSource, prepare, write_shards
    >>> folder = tempfile.mkdtemp()
    >>> samples = [{"__key__": "a", "txt": "one two"}, {"__key__": "b", "txt": "three"}]
    >>> _ = write_shards(samples, folder)
    >>> _ = prepare(folder, split_ratios={"train": 1}, sample_type="TextSample")
    >>> report = prepare_columns(folder, {"words": lambda raw: len(raw["txt"].split())})
    >>> WebdatasetSource(folder).column("words").values.tolist()
    [2, 1]
    """
    root = Path(path)
    counts = read_info(root).shard_counts
    measures = dict(named({check_name(name): how for name, how in columns.items()}))
    if not measures:
        raise ConfigError("prepare_columns: there are no columns to measure")
    for name in defaults or {}:
        if name not in measures:
            raise ConfigError(
                f"a default is given for {name!r}, and the columns to measure are "
                f"{', '.join(measures)}{nearest(name, list(measures))}"
            )
    processes = default_workers() if workers is None else checked_whole(workers, "workers", 1)
    with Staging(root, COLUMNS_FOLDER) as staging:
        shards = measure_shards(root, measures, counts, processes, on_progress or _silent)
        with closing(shards):
            pieces = [shard.pieces for shard in shards]
        made: dict[str, Column] = {}
        notes: list[str] = []
        for name in measures:
            of_column = [each[name] for each in pieces]
            made[name] = _whole(name, of_column, (defaults or {}).get(name), root)
            notes += _notes(name, of_column, made[name], (defaults or {}).get(name))
        measured = {name: how_text(how) for name, how in columns.items()}
        notes += _stage(staging, root, made, measured)
        if counts:
            staging.commit(root / next(iter(counts)))
    _remove_older(root)
    return ColumnsReport(root, sum(counts.values()), made, tuple(notes))


def _whole(name: str, pieces: Sequence[Piece], default: Value | None, root: Path) -> Column:
    """A column of all shards."""
    odd: dict[str, str] = {}
    for piece in pieces:
        odd = {**piece.odd, **odd}
    if len(odd) > 1:
        raise PrepareError(
            f"column {name!r}: all samples have numbers, or all have words; {odd['numbers']}, and "
            f"{odd['words']}"
        )
    absent = sum(len(piece.absent) for piece in pieces)
    if not odd and absent:
        raise PrepareError(
            f"column {name!r}: none of the {absent} samples of {root} has a value; the first, "
            f"{_first_why(pieces)}"
        )
    if "words" in odd:
        return _words(name, pieces, default)
    values = np.concatenate([np.zeros(0, np.int64), *(piece.values for piece in pieces)])
    if not absent:
        return Column(values)
    if default is None:
        raise PrepareError(
            f"column {name!r}: {absent} of {len(values)} samples have no number, the first of them "
            f"{_first_why(pieces)}. Give a default for these: --column-default {name}=0, or "
            f"defaults={{{name!r}: 0}}"
        )
    filled = _number(name, default)
    if isinstance(filled, float):
        values = values.astype(np.float64)
    values[_absent_rows(pieces)] = filled
    return Column(values)


def _words(name: str, pieces: Sequence[Piece], default: Value | None) -> Column:
    found = {word for piece in pieces for word in piece.categories or ()}
    absent = _absent_rows(pieces)
    if default is not None and len(absent):
        found.add(str(default))
    if len(found) > MOST_WORDS:
        raise PrepareError(
            f"column {name!r}: it has {len(found)} different words, and a property has at most "
            f"{MOST_WORDS}; measure something that samples have in common"
        )
    categories = sorted(found)
    places = {word: place for place, word in enumerate(categories)}
    parts = [np.zeros(0, np.int32)]
    for piece in pieces:
        own = np.array([*(places[word] for word in piece.categories or ()), -1], dtype=np.int32)
        # The place -1 is the last one, of what is absent; a piece without words has nothing else.
        parts.append(own[piece.values if piece.categories is not None else _none(piece)])
    values = np.concatenate(parts)
    if default is not None:
        values[absent] = places.get(str(default), -1)
    return Column(values, tuple(categories))


def _none(piece: Piece) -> Int64Array:
    return np.full(len(piece.values), -1, dtype=np.int64)


def _number(name: str, default: Value) -> int | float:
    if isinstance(default, str):
        for kind in (int, float):
            try:
                return kind(default)
            except ValueError:
                continue
        raise ConfigError(f"column {name!r} has numbers, and its default is {default!r}")
    return default


def _absent_rows(pieces: Iterable[Piece]) -> Int64Array:
    rows, before = [np.zeros(0, dtype=np.int64)], 0
    for piece in pieces:
        rows.append(piece.absent + before)
        before += len(piece.values)
    return np.concatenate(rows)


def _first_why(pieces: Iterable[Piece]) -> str:
    return next(piece.why for piece in pieces if piece.why)


def _notes(
    name: str, pieces: Sequence[Piece], column: Column, default: Value | None
) -> Iterator[str]:
    absent = sum(len(piece.absent) for piece in pieces)
    if not absent:
        return
    given = "are without a word" if default is None else f"were given {default!r}"
    yield (
        f"column {name!r}: {absent} of {len(column)} samples have no value and {given}, the first "
        f"of them {_first_why(pieces)}"
    )


def _stage(
    staging: Staging, root: Path, made: Mapping[str, Column], measured: Mapping[str, str]
) -> list[str]:
    """Stage the values, then what says of them: the last to get its name. Returns notes."""
    columns = {}
    for name, column in made.items():
        file = values_file(name, column.values, column.categories)
        final = staging.folder / file
        staging.add([final])
        with writing(final, PrepareError), staging.place(final).open("xb") as stream:
            np.save(stream, column.values, allow_pickle=False)
        columns[name] = StoredColumn(
            file, str(column.values.dtype), column.categories, measured[name]
        )
    kept: dict[str, StoredColumn] = {}
    notes = []
    try:
        before = read_columns(root)
        kept = {} if before is None else before.columns
    except DatasetError as reason:
        if not measured_before(root).keys() <= columns.keys():
            notes.append(f"other columns are gone, as they could not be used: {reason}")
    index = ColumnIndex(read_info(root).shard_counts, folder_version(root), {**kept, **columns})
    staging.write(COLUMNS_NAME, dump_columns(index))
    return notes


def _remove_older(root: Path) -> None:
    """Remove the values that no column has any more."""
    index = read_columns(root)
    used = set() if index is None else {column.file for column in index.columns.values()}
    for file in (root / COLUMNS_FOLDER).glob("*.npy"):
        if file.name not in used:
            with suppress(OSError):  # nobody reads it any more, so it may stay
                file.unlink(missing_ok=True)


def _silent(done: int, total: int) -> None:
    pass
