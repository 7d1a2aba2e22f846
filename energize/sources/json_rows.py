"""The rows of JSON files, read at random."""

from __future__ import annotations

import json
from functools import cached_property
from typing import Any

import numpy as np

from energize.arrays import Int64Array
from energize.errors import ShardError
from energize.reading import Failed
from energize.sources.row_files import DataFiles, RowFiles, data_files, parsed_row
from energize.storage.faults import own_errors
from energize.storage.files import FileStream, LocalFile, OpenFiles

_AT_ONCE = 64 * 1024 * 1024
"""Bytes searched for ends of lines at once."""

_COMPRESSED = {".gz", ".zst", ".bz2", ".xz"}


class JsonSource(RowFiles):
    """The rows of JSON files: one object per line, or a file that is one array of objects.

    `files` is a path, a pattern, or a list of them. Opening passes over the files once to find the
    lines, and keeps 16 bytes for each; a row is then read alone. Empty lines are left out. A file
    that is one array is parsed and kept whole.

    Raises `DatasetNotFoundError` for a path without a file, and `ShardError` for a file that is
    compressed, or an array that is not JSON. A line that is not an object is a `Failed` with a
    `DataError`.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "letters.jsonl")
    >>> _ = path.write_text('{"text": "a"}' + chr(10) + '{"text": "b"}' + chr(10))
    >>> list(JsonSource(path))
    [{'text': 'a'}, {'text': 'b'}]
    """

    @own_errors
    def __init__(
        self, files: DataFiles, *, name: str = "", seed: int = 0, occurrence: int = 0
    ) -> None:
        found = data_files(files, "JsonSource")
        for file in found:
            if file.suffix in _COMPRESSED:
                raise ShardError(
                    f"{file} is compressed, so its rows cannot be read at random; unpack it first"
                )
        self._freeze(files=found, given_name=name, seed=seed, occurrence=occurrence)

    @cached_property
    def runs(self) -> list[tuple[int, int, int]]:
        rows = [len(each) for each in self._rows]
        return [(file, 0, count) for file, count in enumerate(rows) if count]

    @cached_property
    @own_errors
    def _rows(self) -> list[Int64Array | list[Any]]:
        """Of each file the first byte of each line and the byte after it, or its parsed rows."""
        opened = (self._open_files.get(str(path)) for path in self.files)
        return [_array(file) if _is_array(file) else _lines(file) for file in opened]

    @cached_property
    def _open_files(self) -> OpenFiles:
        return OpenFiles()

    def read_run(self, file: int, number: int, rows: Int64Array) -> list[dict[str, Any] | Failed]:
        index = self._rows[file]
        if isinstance(index, list):
            # Parsed again, so that who changes a row does not change what others are given.
            texts = [json.dumps(index[row]).encode() for row in rows.tolist()]
        else:
            bounds = index[rows]
            starts, stops = bounds[:, 0].tolist(), bounds[:, 1].tolist()
            parts = self._open_files.get(str(self.files[file])).read_ranges(starts, stops)
            texts = [
                data[at : at + stop - start]
                for (data, at), start, stop in zip(parts, starts, stops, strict=True)
            ]
        places = rows.tolist()
        return [
            parsed_row(text, f"{self.files[file]}, row {row}")
            for text, row in zip(texts, places, strict=True)
        ]


def _is_array(file: LocalFile) -> bool:
    return file.read(0, 4096).lstrip()[:1] == b"["


def _array(file: LocalFile) -> list[Any]:
    try:
        rows: list[Any] = json.loads(FileStream(file).read())
    except (ValueError, RecursionError) as error:
        text = f"{file.path} begins as a JSON array and is not one: {error}"
        raise ShardError(text) from error
    return rows


def _lines(file: LocalFile) -> Int64Array:
    """The bounds of the lines that are not empty: int64 [lines, 2]."""
    if file.size == 0:
        return np.zeros((0, 2), dtype=np.int64)
    ends = [np.array([-1], dtype=np.int64)]
    stream = FileStream(file)
    for start in range(0, file.size, _AT_ONCE):
        part = np.frombuffer(stream.read(_AT_ONCE), dtype=np.uint8)
        ends.append(np.flatnonzero(part == ord("\n")) + start)
    ends.append(np.array([file.size], dtype=np.int64))
    cuts = np.concatenate(ends)
    bounds = np.stack([cuts[:-1] + 1, cuts[1:]], axis=1)
    return bounds[bounds[:, 1] - bounds[:, 0] > 1]  # one byte is at most a carriage return
