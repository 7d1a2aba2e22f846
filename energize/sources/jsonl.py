"""The samples of an indexed file of JSON lines."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

from energize.arrays import Int64Array
from energize.describing import digest
from energize.errors import ColumnError, DataError, DatasetNotFoundError, EmptyDatasetError
from energize.reading import Failed, SamplePlace
from energize.sources.field_columns import FieldSource
from energize.sources.row_files import parsed_row
from energize.sources.sharded import read_by_file
from energize.sources.window import Window, narrowed
from energize.storage.faults import own_errors
from energize.storage.indexed_jsonl import ChangedLine, IndexedJsonl

_PARSED_AT_ONCE = 4096


class JsonlSource(FieldSource[dict[str, Any]]):
    """The raw samples of a `.jsonl` file that `energize prepare` or Energon indexed.

    Sample i is a new dict: `__key__` is `str(i)`, `__dataset__` the path as given, `__shard__` the
    file's name, `__index__` i, and `json` the bytes of its line, which `SampleLoader` decodes. So
    crude samples have the parsed value as `json`, and field maps read `json[caption]`.

    With `checksums` every line is compared with the checksum that `energize prepare --checksums`
    wrote for it; one that differs is a `Failed` with a `DataError`.

    Opening looks at the index's ends only. The identity, and with it every order, depends on the
    file's name and the number of samples, not on the folder. There are no splits.

    Raises `DatasetNotFoundError`, `NotPreparedError` without an index or checksums that are asked
    for, `ShardError` when the file was changed after it was indexed, and `EmptyDatasetError`.

    >>> import tempfile
    >>> from energize.prepare.jsonl import prepare_jsonl
    >>> path = Path(tempfile.mkdtemp(), "texts.jsonl")
    >>> _ = path.write_text('{"text": "a"}' + chr(10) + '{"text": "b"}')
    >>> _ = prepare_jsonl(path)
    >>> JsonlSource(path)[1]["json"]
    b'{"text": "b"}'
    """

    path: Path
    samples: int
    stored_bytes: int
    checksums: bool
    window: Window | None

    @own_errors
    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        checksums: bool = False,
        seed: int = 0,
        occurrence: int = 0,
    ) -> None:
        file = Path(path)
        if not file.is_file():
            raise DatasetNotFoundError(f"{file} does not exist, or is no file")
        indexed = IndexedJsonl(str(file))
        samples = indexed.count()
        if samples == 0:
            raise EmptyDatasetError(f"{file} has no samples")
        if checksums:
            indexed.check_checksums(samples)
        self._freeze(
            path=file,
            samples=samples,
            stored_bytes=indexed.size,
            checksums=checksums,
            window=None,
            seed=seed,
            occurrence=occurrence,
        )

    def part(self, start: int, stop: int) -> Self:
        """The same source with the samples from `start` to before `stop` only, which keep their
        keys.

        Raises `ConfigError` for numbers beyond `count`, `EmptyDatasetError` when none is left.
        """
        return self._replace(window=narrowed(str(self.path), self._bounds, start, stop))

    @property
    def count(self) -> int:
        start, stop = self._bounds
        return stop - start

    @property
    def stored_count(self) -> int:
        """How many samples there are."""
        return self.count

    @property
    def _bounds(self) -> Window:
        return self.window or (0, self.samples)

    @cached_property
    def identity(self) -> str:
        parts = [self.name, self.samples]
        return digest(parts if self.window is None else [*parts, self.window])

    @cached_property
    def name(self) -> str:
        return self.path.name

    @property
    def record(self) -> str:
        return digest(self.stored_bytes)

    @property
    def run_length(self) -> int:
        return self.count

    def settings(self) -> dict[str, Any]:
        subset = {} if self.window is None else {"subset": list(self.window)}
        return super().settings() | {"identity": self.identity} | subset

    def where(self, position: int, attempt: int = 0) -> str:
        """File and number of a sample, for messages."""
        index = int(self._samples(np.array([position], dtype=np.int64), attempt)[0])
        return f"{self.path}, sample {self._bounds[0] + index}"

    @property
    def location(self) -> str:
        return str(self.path.absolute())

    def place(self, index: int) -> SamplePlace:
        number = self._bounds[0] + index
        return SamplePlace(self.location, self.name, number, str(number), self.identity)

    def find(self, shard: str | None, index: int) -> int | None:
        start, stop = self._bounds
        return index - start if shard == self.name and start <= index < stop else None

    @cached_property
    def field_names(self) -> tuple[str, ...]:
        """Those of the object in the first line that is read."""
        return tuple(next(self._rows()))

    def field_values(self, name: str) -> Iterator[Any]:
        """What each line has for a key; None where it has not."""
        return (row.get(name) for row in self._rows())

    def _rows(self) -> Iterator[dict[str, Any]]:
        """The objects of all lines, parsed."""
        start, stop = self._bounds
        for first in range(start, stop, _PARSED_AT_ONCE):
            numbers = range(first, min(first + _PARSED_AT_ONCE, stop))
            for number, text in zip(numbers, self._file.lines(numbers), strict=True):
                row = parsed_row(text, f"{self.path}, sample {number}")
                if isinstance(row, Failed):
                    raise ColumnError(f"{row.where}: {row.reason}; its keys cannot be columns")
                yield row

    def read(self, indices: Int64Array) -> list[dict[str, Any] | Failed]:
        return read_by_file(indices + self._bounds[0], _in_one_file, self._read_lines)

    def _read_lines(self, _: int, numbers: Sequence[int]) -> list[dict[str, Any] | Failed]:
        found = self._file.verified(numbers) if self.checksums else self._file.lines(numbers)
        return [
            {
                "__key__": str(number),
                "__dataset__": str(self.path),
                "__shard__": self.name,
                "__index__": number,
                "json": text,
            }
            if type(text) is bytes
            else self._changed(number, text)
            for number, text in zip(numbers, found, strict=True)
        ]

    def _changed(self, number: int, line: ChangedLine | bytes) -> Failed:
        where = f"{self.path}, sample {number}"
        return Failed(
            DataError(
                f"{where}: its checksum is {line[0]:08x}, and was {line[1]:08x} when checksums "
                "were written: the line has changed since. Copy the file again from its origin; "
                f"or, if it is meant to be so: energize prepare --checksums {self.path}"
            ),
            where,
        )

    @cached_property
    def _file(self) -> IndexedJsonl:
        return IndexedJsonl(str(self.path))


def _in_one_file(stored: Int64Array) -> tuple[Int64Array, Int64Array]:
    return np.zeros_like(stored), stored
