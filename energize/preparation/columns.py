"""Measure columns of a prepared folder: one value for each sample.

A measure is written as `energize prepare --column NAME=HOW` takes it, or is a
function of a raw sample:

size:txt               bytes of a part, or of all parts of a pattern: size:*.jpg
len:txt                characters of a text; also len:json[caption], of one in JSON
json[meta][quality]    a number or a word in JSON
image:width            of the image header: width, height or pixels
"""

from __future__ import annotations

import inspect
import io
import math
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np

from energize.core.checks import real_number, whole_number
from energize.core.columns import Column
from energize.core.description import described
from energize.core.os_errors import os_errors_as
from energize.core.progress import Progress
from energize.data import columns as on_disk
from energize.data.columns import MOST_WORDS, ColumnIndex, StoredColumn
from energize.data.files import path_of
from energize.data.media import kind_by_name, open_image
from energize.data.nv_meta import read_info
from energize.data.writing import NewFiles, writing
from energize.errors import ConfigError, DataError, DatasetError, PrepareError, nearest
from energize.preparation.scan import RawSample, ScannedShard, ShardHeaders
from energize.preparation.tasks import (
    Job,
    JobPart,
    Piece,
    ShardWork,
    all_in_turn,
    column_of,
    unchanged,
)
from energize.preparation.write import commit, staging
from energize.task.field_maps import PartAccess, parse_field

Value = int | float | str
"""Value of a column for one sample."""
How = str | Callable[[dict[str, Any]], Any]
"""A measure: a text as in `--column NAME=HOW`, or a function of raw samples."""
Measure = Callable[[RawSample], Any]
"""Returns the value of a sample; raises `DataError` if the sample has none."""
_OfParts = Callable[[RawSample, PartAccess, list[str]], Any]

_EXPECTED = (
    "size:PART, len:PART, json[KEY], image:width (or height, pixels), or "
    "MODULE:FUNCTION"
)
_IMAGE_SIZES = ("width", "height", "pixels")
_LONGEST_WORD = 200


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
def prepare_columns(
    path: str | os.PathLike[str],
    columns: Mapping[str, How],
    *,
    defaults: Mapping[str, Value] | None = None,
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
            NAME=HOW` ("size:txt", "len:txt", "json[quality]", "image:width"; see the
            page on columns), or a function of a raw sample, a dict of its parts as
            bytes, that returns a number, a word or None.
        defaults: Values by column for samples without one. Without a default, words may
            be absent, which the report notes, and numbers may not.
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
    wanted = Columns(columns, defaults)
    counts = read_info(root).shard_counts
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

    Raises:
        ConfigError: For names and measures that cannot be used.
    """

    def __init__(
        self, columns: Mapping[str, How], defaults: Mapping[str, Value] | None = None
    ) -> None:
        self.how = {
            on_disk.check_name(name): how_text(how) for name, how in columns.items()
        }
        self._measures: dict[str, Measure] = {}
        for name, how in columns.items():
            try:
                self._measures[name] = measure_of(how)
            except ConfigError as fault:
                raise ConfigError(f"column {name!r}: {fault}") from None
        sources = {name: _source(how) for name, how in columns.items() if callable(how)}
        self.options: dict[str, Any] = {"columns": self.how, "sources": sources}
        self._defaults = dict(defaults or {})
        for name in self._defaults.keys() - columns.keys():
            raise ConfigError(
                f"a default is set for {name!r}, and the columns to measure are "
                f"{', '.join(columns)}{nearest(name, list(columns))}"
            )

    def measured(self, shard: ShardHeaders) -> dict[str, Piece]:
        """Return the columns of a shard."""
        samples = list(shard.samples())
        return {name: self._piece(name, samples) for name in self._measures}

    def _piece(self, name: str, samples: Sequence[RawSample]) -> Piece:
        measure = self._measures[name]
        values: list[Value] = []
        absent: list[bool] = []
        why = ""
        first: dict[bool, str] = {}
        for sample in samples:
            try:
                value = _checked(measure(sample))
            except DataError as reason:
                why = why or f"{sample.location}: {reason}"
                absent.append(True)
            except Exception as reason:  # whatever Pillow and functions of users raise
                message = (
                    f"column {name!r}, {self.how[name]}: {sample.location}: {reason}"
                )
                raise PrepareError(message) from reason
            else:
                if (is_word := isinstance(value, str)) not in first:
                    first[is_word] = f"{sample.location} has {str(value)[:80]!r}"
                values.append(value)
                absent.append(False)
        dtype = object if True in first else None
        return Piece(
            np.array(values, dtype=dtype), np.array(absent, dtype=bool), why, first
        )

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
        columns: dict[str, Column] = {}
        notes: list[str] = []
        stored = dict(previous)
        for name, how in self.how.items():
            column = ready.get(name) or self._whole(
                column_of(shards, name), name, notes
            )
            dtype = str(column.values.dtype)
            words = column.categories
            try:
                "".join(words or ()).encode()
            except UnicodeEncodeError:
                notes.append(
                    f"column {name!r} is left out: it has words that are no UTF-8"
                )
                continue
            columns[name] = column
            file = on_disk.values_file(name, column.values, column.categories)
            description = {
                "file": file,
                "dtype": dtype,
                "measured": how,
                "categories": words,
            }
            stored[name] = StoredColumn.model_validate(description)
            final = root / on_disk.COLUMNS_FOLDER / file
            with writing(final, PrepareError), files.create(final) as stream:
                # Into a file of its own numpy writes itself, and does not say why it
                # cannot.
                plain: Any = SimpleNamespace(write=stream.write)
                np.save(plain, column.values, allow_pickle=False)
        if stored:
            index = ColumnIndex(index=version, shard_counts=counts, columns=stored)
            text = on_disk.dump_columns(index)
            files.write(
                root / on_disk.COLUMNS_FOLDER / on_disk.COLUMNS_NAME, text.encode()
            )
        return columns, notes

    def _whole(self, piece: Piece, name: str, notes: list[str]) -> Column:
        """Return a column of all shards; add a note on samples without a value."""
        default = None
        if piece.absent.any():
            default = self._defaults.get(name)
            notes.append(_absence_note(piece, name, default))
        if True in piece.first:
            return _word_column(piece, name, default)
        return _number_column(piece, name, default)


def _absence_note(piece: Piece, name: str, default: Value | None) -> str:
    """Return a note on samples without a value.

    Raises:
        PrepareError: If these samples need a default and there is none.

    """
    absent = piece.absent
    message = f"column {name!r}: {absent.sum()} of {len(absent)} samples have no value"
    reason = f"the first of them {piece.why}"
    if not piece.first or (default is None and False in piece.first):
        option = f"--column-default {name}=0, or defaults={{{name!r}: 0}}"
        raise PrepareError(f"{message}, {reason}. Give one for these: {option}")
    outcome = "are without a word" if default is None else f"were given {default!r}"
    return f"{message} and {outcome}, {reason}"


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
            return _checked(
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


# Measures: functions of stored samples.


def measure_of(how: object) -> Measure:
    """Return the function of a measure; raise `ConfigError` for a wrong one."""
    if callable(how):
        return partial(_called, how)
    if not isinstance(how, str):
        raise ConfigError(f"expected {_EXPECTED}, got {how!r}")
    measure, _, rest = how.partition(":") if ":" in how else ("", "", how)
    if measure == "image" and rest in _IMAGE_SIZES:
        return partial(_image, rest)
    options = parse_field(rest) if measure in _OF_PARTS else ()
    if not options or not _keys_fit(measure, options):
        hint = _measure_hint(how, measure, rest, options)
        raise ConfigError(f"expected {_EXPECTED}, got {how!r}{hint}")
    return partial(_of_parts, _OF_PARTS[measure], options)


def _keys_fit(measure: str, options: Sequence[PartAccess]) -> bool:
    """Return whether a measure of this kind takes the JSON keys of its parts."""
    return measure == "len" or {bool(access.keys) for access in options} == {
        not measure
    }


def _measure_hint(
    how: str, measure: str, rest: str, options: Sequence[PartAccess]
) -> str:
    if measure and options:
        return "; keys of JSON are for len and alone"
    return nearest(rest, _IMAGE_SIZES) if measure == "image" else suggest_measure(how)


def is_written(how: str) -> bool:
    """Return whether a text is a measure, and not the name of a function.

    >>> (
    ...     is_written("size:txt"),
    ...     is_written("json[quality]"),
    ...     is_written("tools.py:count"),
    ... )
    (True, True, False)
    """
    return ":" not in how or how.partition(":")[0] in (*_OF_PARTS, "image")


def suggest_measure(how: str) -> str:
    """Return a hint at the measure that a text resembles.

    >>> suggest_measure("siz:txt")
    "; did you mean 'size'?"
    """
    return nearest(how.partition(":")[0], [*_OF_PARTS, "image"])


def how_text(how: Any) -> str:
    """Return a measure as text for `columns.json`; a function as MODULE:NAME."""
    if isinstance(how, str):
        return how
    module, name = (
        getattr(how, attribute, None) for attribute in ("__module__", "__qualname__")
    )
    return f"{module}:{name}" if module and name else str(described(how))


def _source(how: Callable[..., Any]) -> str:
    """Return the source of a function if available: a changed one measures again."""
    with suppress(OSError, TypeError):
        return inspect.getsource(how)
    return ""


def _checked(value: Any) -> Value:
    """Return a value as stored in a column; raise `PrepareError` if none fits."""
    if value is None:
        raise DataError("it is None")
    if isinstance(value, bool | np.bool_):
        return int(value)
    if _is_word(value):
        return sys.intern(str(value))  # so that workers send each word once
    whole = whole_number(value)
    if whole is not None and -(2**63) <= whole < 2**63:
        return whole
    number = real_number(value)
    if whole is None and number is not None and math.isfinite(number):
        return float(number)
    raise PrepareError(
        "a column must have finite numbers of at most 64 bits, or words of at most "
        f"{_LONGEST_WORD} letters, got {type(value).__name__} {str(value)[:80]!r}"
    )


def _is_word(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    return len(value) <= _LONGEST_WORD and not value.endswith("\0")


def _called(function: Callable[[dict[str, Any]], Any], sample: RawSample) -> Any:
    raw = sample.raw()
    try:
        return function(raw)
    except DataError:
        raise
    except Exception as reason:  # whatever the function of a user raises
        at = traceback.extract_tb(reason.__traceback__)[-1]
        raise PrepareError(
            f"it raised {type(reason).__name__}: {reason} ({at.filename}:{at.lineno})"
        ) from reason


def _of_parts(
    measure: _OfParts, options: Sequence[PartAccess], sample: RawSample
) -> Any:
    """Measure the first of some parts that a sample has, with keys for JSON."""
    why: DataError | None = None
    for access in options:
        if names := access.among(sample.sizes):
            try:
                return measure(sample, access, names)
            except DataError as reason:
                why = reason
    wanted = ", ".join(dict.fromkeys(access.part for access in options))
    raise why or DataError(f"it has no part {wanted}, but {', '.join(sample.sizes)}")


def _size(sample: RawSample, access: PartAccess, names: list[str]) -> int:
    return sum(sample.sizes[name] for name in names)


def _length(sample: RawSample, access: PartAccess, names: list[str]) -> int:
    texts = (
        [_in_json(sample, access, names)] if access.keys else [*map(sample.text, names)]
    )
    if not all(isinstance(text, str) for text in texts):
        raise PrepareError(f"{access} must be text, got {type(texts[0]).__name__}")
    return sum(map(len, texts))


def _in_json(sample: RawSample, access: PartAccess, names: list[str]) -> Any:
    value = sample.json(PartAccess(names[0], access.keys))
    if value is None:
        raise DataError(f"{access} is null")
    if isinstance(value, dict | list):
        raise PrepareError(
            f"{access} is neither a number nor a word, but a {type(value).__name__}"
        )
    return value


_OF_PARTS: Mapping[str, _OfParts] = {"": _in_json, "size": _size, "len": _length}
"""How a part is measured, by kind."""


def _image(measure: str, sample: RawSample) -> int:
    """Measure images: the sum of their pixels, or the largest width or height."""
    names = [name for name in sample.sizes if kind_by_name(f"a.{name}") == "image"]
    if not names:
        raise DataError(f"it has no image, only {', '.join(sample.sizes)}")
    sizes = []
    for name in names:
        with open_image(
            io.BytesIO(sample.part(name))
        ) as image:  # of which the header is read
            sizes.append(image.size)
    if measure == "pixels":
        return sum(width * height for width, height in sizes)
    return max(size[_IMAGE_SIZES.index(measure)] for size in sizes)
