"""Tables: files of rows of every format as one source, and rows in memory.

`open_table` chooses the source by extension. Delimited files are parsed completely and
stored as JSON lines in a `MemoryRows`; `ChosenRows` selects or repeats rows of a table.
"""

from __future__ import annotations

import codecs
import csv
import hashlib
import io
import json
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any, Self, cast

import numpy as np

from energize.core import limits
from energize.core.arrays import Int64Array
from energize.core.description import digest
from energize.core.failures import Failed
from energize.core.validation import parse_json
from energize.data.files import path_type, read_file
from energize.data.lance import LanceSource
from energize.data.local import Ranges
from energize.data.media import kind_by_name
from energize.data.rows import ArrowSource, FieldSource, JsonSource, ParquetSource, Row
from energize.data.source import ShardedSource
from energize.errors import DataError, DatasetError, some

KEY = "__key__"
"""Key of the sample of a row in memory."""

AT = "__at__"
"""File and line of a row in memory."""

EXTENSIONS = (
    *(
        ".parquet",
        ".pq",
        ".arrow",
        ".arrows",
        ".ipc",
        ".feather",
        ".jsonl",
        ".ndjson",
        ".json",
    ),
    *(".csv", ".tsv"),
)
"""Extensions of files of rows, in lower case."""

LANCE = ".lance"
"""Extension of folders of Lance, which are tables."""

_READERS: Mapping[str, Callable[[Any], ShardedSource[Row]]] = {
    ".parquet": ParquetSource,
    ".pq": ParquetSource,
    ".arrow": ArrowSource,
    ".arrows": ArrowSource,
    ".ipc": ArrowSource,
    ".feather": ArrowSource,
}


def open_table(files: Sequence[Path]) -> ShardedSource[Row]:
    """Open files of rows of one format as one source, in order.

    Args:
        files: At least one path. The extension of the first one decides the format.

    Returns:
        The rows of all files.

    Raises:
        ShardError: If a file is damaged or has another format.
        DatasetError: If a delimited file is invalid.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "letters.jsonl")
        >>> _ = path.write_text('{"text": "a"}')
        >>> list(open_table([path]))
        [{'text': 'a'}]
    """
    extension = files[0].suffix.lower()
    if extension == LANCE:
        return _lance(files)
    if extension in DELIMITED:
        rows = read_delimited(files)
        return MemoryRows(
            {KEY: f"{number:06d}", **row} for number, row in enumerate(rows)
        )
    return _READERS.get(extension, JsonSource)(list(files))


def is_table(path: Path) -> bool:
    """Return whether a path is a file, or a folder of Lance.

    Args:
        path: The path.
    """
    return path.suffix.lower() == LANCE or path_type(path) == "file"


def _lance(files: Sequence[Path]) -> LanceSource:
    """Return the rows of the latest version of a Lance dataset."""
    if len(files) > 1:
        raise DatasetError(
            f"{files[0]} and {files[1]} are Lance datasets with equal columns, which "
            "are not read as one. Write an entry for each"
        )
    return LanceSource(files[0], name=files[0].name)


# Delimited values.

DELIMITED = (".csv", ".tsv", ".txt")
"""Extensions of files of delimited values."""

UNNAMED = "column "
"""Prefix of column names in files without a header line."""

_DELIMITERS = (",", ";", "\t", "|", " ")
_LINES_TRIED = 50
_LONGEST_NAME = 60  # characters in the name of a column
_WORDS_OF_NAME = 4


def read_delimited(files: Sequence[Path]) -> list[Row]:
    """Read files of delimited values; each row has its location as `__at__`.

    The delimiter is the first of comma, semicolon, tab and bar that splits all first
    lines into equally many values; in `.tsv` files tab, in `.txt` files tab or else
    space. A first line that contains file names, numbers or web addresses is a row, and
    columns are named `column 1` and so on. A first line 0, 1, 2, which pandas writes,
    is a header if there are texts below it. Columns of numbers become numbers; 007
    stays text.

    Args:
        files: The files, in UTF-8, or UTF-16 with a byte order mark.

    Returns:
        The rows of all files.

    Raises:
        DatasetError: If a file has another encoding, a row has another number of values
            than columns, two columns have one name, or a first line may be a header or
            a row. The message has file and line.
    """
    rows = [row for file in files for row in _delimited(file)]
    return _with_numbers(
        rows, dict.fromkeys(name for row in rows for name in row if name != AT)
    )


def _delimited(path: Path) -> list[Row]:
    """Return the rows of a file, all values as text."""
    try:
        csv.field_size_limit(limits.JSON_BYTES)
        text = decoded_text(read_file(path))
        delimiter, quoting = _delimiter_of(text, path.suffix.lower())
        reader = _reader(text, delimiter, quoting)
        lines = [
            (reader.line_num, [value.strip() for value in row]) for row in reader if row
        ]
    except (csv.Error, UnicodeDecodeError) as reason:
        raise DatasetError(f"{path} is not a CSV file in UTF-8: {reason}") from reason
    if not lines:
        return []
    has_names = _has_names(path, lines)
    names = _column_names(lines[0][1], has_names)
    if has_names:
        del lines[0]
    _check_delimited(path, names, lines, delimiter)
    return [
        {**dict(zip(names, values, strict=True)), AT: f"{path}, line {n}"}
        for n, values in lines
    ]


def _column_names(first_line: list[str], has_names: bool) -> list[str]:
    """Return the names of columns, numbered where the file has none."""
    names = first_line if has_names else [""] * len(first_line)
    return [name or f"{UNNAMED}{number}" for number, name in enumerate(names, 1)]


def _check_delimited(
    path: Path,
    names: list[str],
    lines: Sequence[tuple[int, list[str]]],
    delimiter: str,
) -> None:
    """Raise `DatasetError` for names that repeat, and rows of another length."""
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise DatasetError(
            f"{path}, line 1: {len(names)} columns, several named {repeated[0]!r}. "
            "Use unique names"
        )
    for number, values in lines:
        if len(values) != len(names):
            raise DatasetError(
                f"{path}, line {number}: a row has {len(values)} values. Write one "
                f"for each of {some(names)}, in quotes if it contains {delimiter!r}"
            )


def _has_names(path: Path, lines: Sequence[tuple[int, list[str]]]) -> bool:
    """Return whether the first line is a header; raise `DatasetError` if in doubt."""
    names = lines[0][1]
    rows = [values for _, values in lines[1:]]
    numbers = [name for name in names if name]
    if numbers and numbers == [str(number) for number in range(len(numbers))]:
        return not all(map(_is_value, chain.from_iterable(rows)))
    if any(map(_is_value, names)) or not any(names):
        return False
    again = next((number for number, values in lines[1:] if values == names), None)
    if again is not None:
        raise DatasetError(
            f"{path}, line {again}: the header is repeated. Remove the line"
        )
    if path.suffix.lower() != ".txt":
        _check_names(path, names, rows)
    return True


def _check_names(path: Path, names: list[str], rows: list[list[str]]) -> None:
    """Raise `DatasetError` for names that may be values of a first row."""
    for column, name in enumerate(names):
        repeated = any(name and row[column : column + 1] == [name] for row in rows)
        if repeated or len(name.split()) > _WORDS_OF_NAME:
            raise DatasetError(
                f"{path}, line 1: {name!r} may be the name of a column or a value of "
                "the first row. Write a line of names of columns above the rows, each "
                f"of at most {_WORDS_OF_NAME} words"
            )


def decoded_text(data: bytes) -> str:
    """Decode UTF-8, or UTF-16 with a byte order mark."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16")
    return data.decode("utf-8-sig")


def _reader(text: str, delimiter: str, quoting: Any) -> Any:
    stream = io.StringIO(text, newline="")
    strict = quoting == csv.QUOTE_MINIMAL
    return csv.reader(
        stream,
        delimiter=delimiter,
        quoting=quoting,
        strict=strict,
        skipinitialspace=True,
    )


def _delimiter_of(text: str, extension: str) -> tuple[str, Any]:
    """Return the delimiter, and whether quotes enclose values."""
    first = {".tsv": "\t", ".txt": "\t"}.get(extension, "")
    tried = [first, *_DELIMITERS] if first else [*_DELIMITERS[:-1]]
    for quoting in (csv.QUOTE_MINIMAL, csv.QUOTE_NONE):
        for delimiter in tried:
            with suppress(csv.Error):
                rows = [
                    row
                    for row in islice(_reader(text, delimiter, quoting), _LINES_TRIED)
                    if row
                ]
                if len({*map(len, rows)}) == 1 and len(rows[0]) > 1:
                    return delimiter, quoting
    head = text.partition("\n")[0]
    return next(
        (candidate for candidate in tried if candidate in head), ","
    ), csv.QUOTE_MINIMAL


def _is_value(cell: str) -> bool:
    """Return whether a text in the first line is a value rather than a column name."""
    number = re.fullmatch(r"[-+]?\d+(\.\d+)?", cell) is not None
    return (
        number
        or "://" in cell
        or kind_by_name(cell) is not None
        or len(cell) > _LONGEST_NAME
    )


def _with_numbers(rows: list[Row], names: Iterable[str]) -> list[Row]:
    """Convert columns of numbers from text to numbers."""
    for name in names:
        with suppress(TypeError, ValueError):
            numbers = [json.loads(row[name]) if row.get(name) else None for row in rows]
            if {*map(type, numbers)} <= {int, float, type(None)}:
                for row, number in zip(rows, numbers, strict=True):
                    row[name] = number
    return rows


def plain(value: Any) -> Any:
    """Convert a value for JSON: arrays to lists, anything else to text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


class MemoryRows(ShardedSource[Row], FieldSource[Row]):
    """Rows in memory as JSON lines, with `__key__` and, if needed, `__at__`.

    Memory is the size of the lines and 8 bytes per line. The identity is that of the
    keys.
    """

    order_name = "MemoryRows"

    text: bytes
    ends: Int64Array
    name = location = identity = ""
    shards = ("",)

    def __init__(self, rows: Iterable[Row]) -> None:
        text = bytearray()
        ends = array("q", [0])
        keys = hashlib.blake2b(digest_size=16)
        dumped = json.JSONEncoder(
            ensure_ascii=False, separators=(",", ":"), default=plain
        ).encode
        for row in rows:
            keys.update(f"{row[KEY]}\0".encode())
            text += dumped(row).encode("utf-8", "surrogatepass")
            ends.append(len(text))
        parameters = {
            "text": bytes(text),
            "ends": np.array(ends),
            "counts": (len(ends) - 1,),
        }
        named = {"identity": keys.hexdigest(), "seed": 0, "occurrence": 0}
        self.freeze(**cast("dict[str, Any]", parameters | named))

    def compared(self) -> tuple[Any, ...]:
        return (self.text,)

    def location_in_shard(self, shard: int, number: int) -> str:
        return str(self.read_shard(shard, [number])[0].get(AT, ""))

    def read_shard(self, shard: int, numbers: list[int]) -> list[Row]:
        bounds = (self.ends[number : number + 2].tolist() for number in numbers)
        return [parse_json(self.text[start:stop]) for start, stop in bounds]


def values_in(row: Mapping[str, Any], column: str) -> list[Any]:
    """Return the values of a row in a column, also nested ones, without nulls.

    Args:
        row: The row.
        column: A column, or a path through lists and objects.

    Returns:
        The values as one list.

    Example:
        >>> values_in(
        ...     {"pages": [{"file": "a.jpg"}, {"file": "b.jpg"}]}, "pages[*][file]"
        ... )
        ['a.jpg', 'b.jpg']
    """
    path = [column]
    if column not in row:
        path = column.rstrip("]").replace("]", "").split("[")
    name, *keys = path
    values = [row.get(name)]
    for key in [*keys, "*"]:
        values = [item for value in values for item in _items_at(value, key)]
    return [value for value in values if value is not None and value not in ("", b"")]


def _items_at(value: Any, key: str) -> list[Any]:
    """Return the value at a key of an object; for `*`, the items of a list."""
    if key == "*":
        return value if isinstance(value, list) else [value]
    return [value.get(key) if isinstance(value, dict) else None]


class ChosenRows(FieldSource[Row], ShardedSource[Row]):
    """Selected rows of a table.

    With `pieces`, a row stands for one element of each of these list columns: the n-th
    repetition of a row has the n-th elements. Nulls of a single column are skipped;
    several columns must have equally many elements.

    Args:
        rows: The table.
        numbers: Ascending row numbers per shard; repeated ones for `pieces`.
        pieces: List columns to split into rows.
    """

    order_name = "ChosenRows"

    rows: ShardedSource[Row]
    numbers: tuple[Int64Array, ...]
    pieces: tuple[str, ...]
    """List columns that are split into rows."""

    def __init__(
        self,
        rows: ShardedSource[Row],
        numbers: Sequence[Int64Array],
        pieces: Sequence[str] = (),
    ) -> None:
        counts = tuple(len(rows_of_shard) for rows_of_shard in numbers)
        parameters: dict[str, Any] = {"rows": rows, "numbers": tuple(numbers)}
        parameters["pieces"] = tuple(pieces)
        self.freeze(**parameters, counts=counts, seed=0, occurrence=0)

    @classmethod
    def selecting(
        cls,
        rows: ShardedSource[Row],
        keep: Callable[[Row], int],
        pieces: Sequence[str] = (),
    ) -> Self:
        """Return each row as often as `keep` returns; skip damaged rows."""
        numbers = []
        for shard, count in enumerate(rows.counts):
            samples = rows.read_shard(shard, [*range(count)])
            times = [0 if isinstance(row, Failed) else keep(row) for row in samples]
            numbers.append(np.repeat(np.arange(count), times))
        return cls(rows, numbers, pieces)

    @classmethod
    def dividing(cls, rows: ShardedSource[Row], columns: Sequence[str]) -> Self:
        """Return a row for each element of a list column, or of parallel ones."""
        return cls.selecting(
            rows, lambda row: max(map(len, _elements(row, columns))), columns
        )

    @property
    def piece_names(self) -> list[str]:
        """Names of the element columns: the last key of each path."""
        keys = (re.split(r"[\[\]]+", column) for column in self.pieces)
        return [[key for key in path if key not in ("", "*")][-1] for path in keys]

    @property
    def shards(self) -> Sequence[str]:  # type: ignore[override]
        return self.rows.shards

    @property
    def name(self) -> str:
        return self.rows.name

    @property
    def location(self) -> str:
        return self.rows.location

    @cached_property
    def identity(self) -> str:
        digests = [
            hashlib.blake2b(array.tobytes(), digest_size=16).hexdigest()
            for array in self.numbers
        ]
        pieces: Any = (
            self.pieces if len(self.pieces) > 1 else next(iter(self.pieces), None)
        )
        return digest([self.rows.identity, digests, pieces])

    def called(self, name: str) -> Self:
        return super().called(name).replace(rows=self.rows.called(name))

    def location_in_shard(self, shard: int, number: int) -> str:
        return self.rows.location_in_shard(shard, int(self.numbers[shard][number]))

    def sample_ranges(self, shard: int, numbers: Sequence[int]) -> Sequence[Ranges]:
        return self.rows.sample_ranges(
            shard, self.numbers[shard][list(numbers)].tolist()
        )

    def read_shard(self, shard: int, numbers: list[int]) -> list[Row | Failed]:
        stored = self.numbers[shard]
        wanted = stored[numbers].tolist()
        unique = [*dict.fromkeys(wanted)]
        rows = dict(zip(unique, self.rows.read_shard(shard, unique), strict=True))
        firsts = np.searchsorted(stored, wanted).tolist()
        triples = zip(wanted, numbers, firsts, strict=True)
        return [
            self._piece(
                rows[row], number - first, self.location_in_shard(shard, number)
            )
            for row, number, first in triples
        ]

    def _piece(self, row: Row | Failed, number: int, location: str) -> Row | Failed:
        if isinstance(row, Failed) or not self.pieces:
            return row
        elements = _elements(row, self.pieces)
        lengths = [*map(len, elements)]
        if len({*lengths}) > 1:
            lists = " and ".join(map(repr, self.pieces))
            reason = DataError(
                f"columns {lists} must be lists of one length, got {lengths}"
            )
            return Failed(reason, location)
        values = dict(
            zip(
                self.piece_names, (element[number] for element in elements), strict=True
            )
        )
        if number and KEY in row:
            values[KEY] = f"{row[KEY]}~{number + 1}"
        return {**row, **values}


def _elements(row: Row, columns: Sequence[str]) -> list[list[Any]]:
    """Return the elements of list columns; for parallel columns including nulls."""
    if len(columns) == 1:
        return [values_in(row, columns[0])]
    values = [row.get(column) for column in columns]
    return [value if isinstance(value, list) else [] for value in values]
