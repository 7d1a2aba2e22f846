"""Measure columns of a prepared folder: one value for each sample."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np

from energize.core.columns import Column
from energize.core.os_errors import os_errors_as
from energize.core.progress import Progress
from energize.data import columns as on_disk
from energize.data.columns import MOST_WORDS, ColumnIndex, StoredColumn
from energize.data.files import path_of
from energize.data.nv_meta import read_info
from energize.data.writing import NewFiles, writing
from energize.errors import ConfigError, DataError, DatasetError, PrepareError, nearest
from energize.preparation.lookups import Lookup
from energize.preparation.measures import (
    How,
    Measure,
    SampleReading,
    Value,
    checked_value,
    how_text,
    measure_of,
    source_of,
)
from energize.preparation.scan import ScannedShard, ShardHeaders, StoredSample
from energize.preparation.tasks import (
    Absence,
    Job,
    JobPart,
    Piece,
    ShardWork,
    add_absences,
    all_in_turn,
    check_one_kind,
    column_of,
    unchanged,
)
from energize.preparation.write import commit, staging

_SHOWN = 3
"""Most keys of a table without samples that are shown."""


@dataclass(frozen=True, slots=True)
class ColumnsReport:
    """Measured columns of a folder.

    Args:
        path: The folder.
        samples: Number of samples.
        columns: The columns by name.
        notes: Notes on samples without a value.
    """

    path: Path
    samples: int
    columns: dict[str, Column]
    notes: tuple[str, ...] = ()


@all_in_turn
@os_errors_as(PrepareError, fault="cannot be used")
def prepare_columns(  # noqa: PLR0913
    path: str | os.PathLike[str],
    columns: Mapping[str, How],
    *,
    defaults: Mapping[str, Value] | None = None,
    lengths: Collection[str] = (),
    workers: int | None = None,
    tasks: int | None = None,
    task: int | None = None,
    merge: bool = False,
    on_progress: Progress | None = None,
) -> ColumnsReport:
    """Measure columns of a prepared folder, so that later reads need no samples.

    The index of the shards stays unchanged, and so do columns of other names. All
    columns appear together when the last shard has been read; after an error, none
    appears. A column has numbers (int64, or float64 if any is not whole) or words.

    Args:
        path: The prepared folder.
        columns: Measures by column name: a text as in `energize prepare --column
            NAME=HOW` ("size:txt", "len:txt", "json[quality]", "image:width",
            "lengths.parquet:tokens"; see the page on columns), an `ImageTokenRule`, or
            a function that returns a number, a word or None. It takes a raw sample, a
            dict of its parts as bytes, or the typed sample that its parameter is
            annotated with. An object of a class is built once in each process.
        defaults: Values by column for samples without one. Without a default, words may
            be absent, which the report notes, and numbers may not.
        lengths: Columns of lengths: values that are not whole numbers above 0 count as
            missing.
        workers: Processes that read shards; by default one for each core.
        tasks: Number of tasks that the shards are partitioned into, as in `prepare`.
        task: The task that this call does; its values appear after the merge.
        merge: Whether all tasks have ended, and their results are merged.
        on_progress: Called with the shards that are done, and with all shards.

    Returns:
        The measured columns, and notes.

    Raises:
        ConfigError: For wrong arguments.
        PrepareError: For samples without a number, values that do not fit a column,
            errors of the functions, and shards that are damaged or have changed since
            they were indexed.
        NotPreparedError: If the folder is not prepared.
        DatasetNotFoundError: If the folder does not exist.

    Example:
        >>> import tempfile
        >>> from energize import WebdatasetSource, prepare, write_shards
        >>> folder = tempfile.mkdtemp()
        >>> samples = [{"__key__": "a", "txt": "a b"}, {"__key__": "b", "txt": "c"}]
        >>> _ = write_shards(samples, folder)
        >>> _ = prepare(folder, split_ratios={"train": 1}, sample_type="TextSample")
        >>> columns = {"words": lambda raw: len(raw["txt"].split())}
        >>> report = prepare_columns(folder, columns)
        >>> WebdatasetSource(folder).column("words").values.tolist()
        [2, 1]
    """
    root = path_of(path)
    counts = read_info(root).shard_counts
    reading = SampleReading.of_folder(root)
    wanted = Columns(columns, defaults, lengths, reading)
    if not columns or not counts:
        raise ConfigError(
            f"{root}: there are no {'shards' if columns else 'columns'} to measure"
        )
    work = ShardWork(unchanged(root), {"columns": wanted.measured})
    part = JobPart(workers, on_progress, tasks, task, merge)
    job = Job(root, "columns", list(counts), work, part, wanted.options)
    if task is not None:
        return ColumnsReport(root, sum(shard.count for shard in job.of_task()), {})
    with staging(root, root / on_disk.COLUMNS_FOLDER, *job.folders) as files:
        shards = job.of_all(files)
        stored = read_stored_columns(root)
        measured, notes = wanted.stage(
            files, root, shards, counts, on_disk.folder_version(root), stored
        )
        commit(files, root / next(iter(counts)))
    remove_unused(root)
    return ColumnsReport(root, sum(counts.values()), measured, tuple(notes))


class Columns:
    """Columns to measure, with defaults for samples without a value.

    Args:
        columns: Measures by column name.
        defaults: Values by column for samples without one.
        lengths: Columns that must have whole numbers above 0.
        reading: How functions and image measures read samples.

    Raises:
        ConfigError: For names and measures that cannot be used.
    """

    def __init__(
        self,
        columns: Mapping[str, How],
        defaults: Mapping[str, Value] | None = None,
        lengths: Collection[str] = (),
        reading: SampleReading | None = None,
    ) -> None:
        self.how = {
            on_disk.check_name(name): how_text(how) for name, how in columns.items()
        }
        self._measures: dict[str, Measure] = {}
        for name, how in columns.items():
            try:
                self._measures[name] = measure_of(how, reading)
            except ConfigError as fault:
                raise ConfigError(f"column {name!r}: {fault}") from None
        self._defaults = dict(defaults or {})
        self._lengths = frozenset(lengths)
        for option, names in (
            ("a default is set", self._defaults),
            ("a length is set", self._lengths),
        ):
            for name in names - columns.keys():
                raise ConfigError(
                    f"{option} for {name!r}, and the columns to measure are "
                    f"{', '.join(columns)}{nearest(name, list(columns))}"
                )
        for name in self._lengths & self._defaults.keys():
            default = _default_number(name, self._defaults[name])
            try:
                self._check_length(name, default)
            except DataError as fault:
                raise ConfigError(
                    f"the default of column {name!r} is {default!r}: {fault}. Set "
                    "another one"
                ) from None
        sources = {
            name: source
            for name, how in columns.items()
            if (source := source_of(how)) is not None
        }
        self.options: dict[str, Any] = {"columns": self.how, "sources": sources}
        if lengths:
            self.options["lengths"] = sorted(self._lengths)

    def measured(self, shard: ShardHeaders) -> dict[str, Piece]:
        """Return the columns of a shard."""
        return self.measured_samples(shard.samples())

    def measured_samples(self, samples: Iterable[StoredSample]) -> dict[str, Piece]:
        """Return the columns of samples, which are read one after the other."""
        pieces = {name: _NewPiece() for name in self._measures}
        for sample in samples:
            for name, piece in pieces.items():
                self._add(name, piece, sample)
        return {name: piece.finished() for name, piece in pieces.items()}

    def _add(self, name: str, piece: _NewPiece, sample: StoredSample) -> None:
        measure = self._measures[name]
        try:
            value = checked_value(measure(sample))
            if not isinstance(measure, Lookup):
                self._check_length(name, value)
        except DataError as reason:
            piece.leave_out(str(reason), sample)
        except Exception as reason:  # whatever Pillow and functions of users raise
            message = f"column {name!r}, {self.how[name]}: {sample.location}: {reason}"
            raise PrepareError(message) from reason
        else:
            piece.add(value, sample)

    def _check_length(self, name: str, value: Value) -> None:
        """Raise `DataError` for a length that is not a whole number above 0."""
        if name in self._lengths and (not isinstance(value, int) or value < 1):
            raise DataError("a length must be a whole number above 0")

    def stage(
        self,
        files: NewFiles,
        root: Path,
        shards: Sequence[ScannedShard],
        counts: dict[str, int],
        version: str | None,
        previous: Mapping[str, StoredColumn],
        ready: Mapping[str, Column] = MappingProxyType({}),
    ) -> tuple[dict[str, Column], list[str]]:
        """Write the columns of all shards, and then `columns.json`.

        Args:
            files: The staged files of the folder.
            root: The folder.
            shards: The shards, with their measured columns.
            counts: Samples by shard.
            version: Version of the index.
            previous: Stored columns that stay, by name.
            ready: Columns that need no measurement, by name.

        Returns:
            The columns by name, and notes.

        Raises:
            PrepareError: For values that do not fit a column.
        """
        columns, notes = self.whole(shards, ready)
        folder = root / on_disk.COLUMNS_FOLDER
        stored = dict(previous) | self.stage_values(files, folder, columns)
        if stored:
            index = ColumnIndex(index=version, shard_counts=counts, columns=stored)
            text = on_disk.dump_columns(index)
            files.write(folder / on_disk.COLUMNS_NAME, text.encode())
        return columns, notes

    def whole(
        self,
        shards: Sequence[ScannedShard],
        ready: Mapping[str, Column] = MappingProxyType({}),
    ) -> tuple[dict[str, Column], list[str]]:
        """Return the columns of all shards, and notes.

        Args:
            shards: The shards, with their measured columns.
            ready: Columns that need no measurement, by name.

        Raises:
            PrepareError: For values that do not fit a column.
        """
        columns: dict[str, Column] = {}
        notes: list[str] = []
        for name in self.how:
            column = ready.get(name)
            if column is None:
                piece = self._looked_up(name, column_of(shards, name), notes)
                column = self._whole(piece, name, notes)
            try:
                "".join(column.categories or ()).encode()
            except UnicodeEncodeError:
                notes.append(
                    f"column {name!r} is left out: it has words that are no UTF-8"
                )
            else:
                columns[name] = column
        return columns, notes

    def stage_values(
        self, files: NewFiles, folder: Path, columns: Mapping[str, Column]
    ) -> dict[str, StoredColumn]:
        """Write the values of columns to files of a folder.

        Returns:
            The entries of the columns, by name.
        """
        stored: dict[str, StoredColumn] = {}
        for name, column in columns.items():
            file = on_disk.values_file(name, column.values, column.categories)
            description = {
                "file": file,
                "dtype": str(column.values.dtype),
                "measured": self.how[name],
                "categories": column.categories,
            }
            stored[name] = StoredColumn.model_validate(description)
            final = folder / file
            with writing(final, PrepareError), files.create(final) as stream:
                # Into a file of its own numpy writes itself, and does not say why it
                # cannot.
                plain: Any = SimpleNamespace(write=stream.write)
                np.save(plain, column.values, allow_pickle=False)
        return stored

    def _looked_up(self, name: str, piece: Piece, notes: list[str]) -> Piece:
        """Return the values at the rows of a table; add a note on further rows."""
        lookup = self._measures[name]
        if not isinstance(lookup, Lookup):
            return piece
        rows: list[int] = piece.values.astype(np.int64).tolist()
        if unused := lookup.unused(rows):
            shown = ", ".join(map(repr, unused[:_SHOWN]))
            notes.append(
                f"column {name!r}: {len(unused)} keys of {lookup.file} are of no "
                f"sample, the first of them {shown}"
            )
        values: list[Value] = []
        first: dict[bool, str] = {}
        left_out = defaultdict[str, list[int]](list)
        is_valid = np.ones(len(rows), dtype=bool)
        for number, row in enumerate(rows):
            try:
                value = self._value_at(name, lookup, row)
            except DataError as reason:
                left_out[str(reason)].append(row)
                is_valid[number] = False
            else:
                values.append(value)
                first.setdefault(
                    isinstance(value, str), f"{lookup.file} has {str(value)[:80]!r}"
                )
        check_one_kind(name, first)
        absent = piece.absent.copy()
        absent[np.flatnonzero(~absent)[~is_valid]] = True
        absences = dict(piece.absences)
        for fault, rows_of in left_out.items():
            keys = [lookup.key_of(row) for row in rows_of[:_SHOWN]]
            absence = Absence(len(rows_of), f"sample {keys[0]!r}", keys)
            add_absences(absences, {fault: absence})
        dtype = object if True in first else None
        return Piece(np.array(values, dtype=dtype), absent, absences, first)

    def _value_at(self, name: str, lookup: Lookup, row: int) -> Value:
        """Return the value at a row; raise `DataError` if it has none."""
        try:
            value = checked_value(lookup.value(row))
        except PrepareError as reason:
            raise PrepareError(
                f"column {name!r}: {lookup.file}, key {lookup.key_of(row)!r}: {reason}"
            ) from reason
        self._check_length(name, value)
        return value

    def _whole(self, piece: Piece, name: str, notes: list[str]) -> Column:
        """Return a column of all shards; add a note on samples without a value."""
        default = None
        if piece.absent.any():
            default = self._defaults.get(name)
            least = 1 if name in self._lengths else 0
            notes.append(_absence_note(piece, name, default, least))
        if True in piece.first:
            return _word_column(piece, name, default)
        return _number_column(piece, name, default)


class _NewPiece:
    """A column of some samples that is being measured."""

    def __init__(self) -> None:
        self._values: list[Value] = []
        self._absent: list[bool] = []
        self._absences: dict[str, Absence] = {}
        self._first: dict[bool, str] = {}

    def add(self, value: Value, sample: StoredSample) -> None:
        """Add the value of a sample."""
        is_word = isinstance(value, str)
        if is_word not in self._first:
            self._first[is_word] = f"{sample.location} has {str(value)[:80]!r}"
        self._values.append(value)
        self._absent.append(False)

    def leave_out(self, reason: str, sample: StoredSample) -> None:
        """Add a sample without a value."""
        absence = Absence(1, sample.location, [sample.key])
        add_absences(self._absences, {reason: absence})
        self._absent.append(True)

    def finished(self) -> Piece:
        """Return the column."""
        dtype = object if True in self._first else None
        values = np.array(self._values, dtype=dtype)
        absent = np.array(self._absent, dtype=bool)
        return Piece(values, absent, self._absences, self._first)


def _absence_note(piece: Piece, name: str, default: Value | None, least: int) -> str:
    """Return a note on samples without a value.

    Raises:
        PrepareError: If these samples need a default, of at least `least`, and there is
            none; or if no sample has a value.
    """
    absent = piece.absent
    message = f"column {name!r}: {absent.sum()} of {len(absent)} samples have no value"
    reasons = "; ".join(map(_absence_text, *zip(*piece.absences.items(), strict=True)))
    reason = f"the first of them {reasons}"
    if not piece.first:
        raise PrepareError(f"{message}, {reason}. Correct the measure")
    if default is None and False in piece.first:
        option = f"--column-default {name}={least}, or defaults={{{name!r}: {least}}}"
        raise PrepareError(f"{message}, {reason}. Give one for these: {option}")
    outcome = "are without a word" if default is None else f"were given {default!r}"
    return f"{message} and {outcome}, {reason}"


def _absence_text(reason: str, absence: Absence) -> str:
    """Return a reason with its first samples and their number."""
    text = f"{absence.location}: {reason}"
    if absence.samples == 1:
        return text
    further = ", ".join(map(repr, absence.keys[1:]))
    return f"{text} ({absence.samples} samples, next {further})"


def _word_column(piece: Piece, name: str, default: Value | None) -> Column:
    filler = None if default is None else str(default)
    words = np.full(len(piece.absent), filler, dtype=object)
    words[~piece.absent] = piece.values
    column = Column.of(words, name)
    count = len(column.categories or ())
    if count > MOST_WORDS:
        raise PrepareError(
            f"column {name!r}: it has {count} different words, and a property has at "
            f"most {MOST_WORDS}. Measure a property that samples share"
        )
    return column


def _number_column(piece: Piece, name: str, default: Value | None) -> Column:
    filler = np.array(0 if default is None else _default_number(name, default))
    dtype = np.result_type(piece.values, filler)
    numbers = np.full(len(piece.absent), filler, dtype=dtype)
    numbers[~piece.absent] = piece.values
    return Column(numbers)


def _default_number(name: str, default: Value) -> Value:
    for number_type in (int, float):
        with suppress(ValueError):
            return checked_value(
                number_type(default) if isinstance(default, str) else default
            )
    raise ConfigError(f"column {name!r} has numbers, but its default is {default!r}")


# What becomes of the columns that a folder has.


def read_stored_columns(root: Path) -> dict[str, StoredColumn]:
    """Return the columns of a folder; none if their file is damaged."""
    with suppress(DatasetError):
        return on_disk.read_columns(root).columns
    return {}


def remove_unused(root: Path) -> None:
    """Remove the values of columns that no longer exist."""
    used = {column.file for column in on_disk.read_columns(root).columns.values()}
    for file in (root / on_disk.COLUMNS_FOLDER).glob("*.npy"):
        if file.name not in used:
            with suppress(OSError):  # nobody reads it any more, so it may stay
                file.unlink()
