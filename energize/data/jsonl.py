"""JSON lines with random access through an index file.

The index of n samples, `name.jsonl.idx`, is n + 1 offsets, unsigned 64-bit
little-endian: the start of each sample's line, and the file size. Blank lines belong to
the previous sample, leading ones to the first. The optional checksums,
`name.jsonl.crc`, are the CRC-32 of these bytes per sample, unsigned 32-bit
little-endian.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from energize.core.columns import Column
from energize.core.description import digest
from energize.core.failures import Failed
from energize.core.os_errors import convert_os_errors
from energize.data.files import exists, files_at, path_of
from energize.data.local import Files, Ranges, read_entries
from energize.data.loose_columns import loose_column, loose_column_names
from energize.data.rows import FieldSource, Row, parsed_row
from energize.data.source import ShardedSource, Window
from energize.data.tar import CHECKSUM, ENTRY, RANGE, changed, read_checksums
from energize.errors import (
    DatasetNotFoundError,
    EmptyDatasetError,
    NotPreparedError,
    ShardError,
)


def jsonl_index_path(path: str) -> str:
    """Return the path of the index of a file of JSON lines.

    >>> jsonl_index_path("texts/a.jsonl")
    'texts/a.jsonl.idx'
    """
    return f"{path}.idx"


def jsonl_checksums_path(path: str) -> str:
    """Return the path of the checksums of a file of JSON lines.

    >>> jsonl_checksums_path("texts/a.jsonl")
    'texts/a.jsonl.crc'
    """
    return f"{path}.crc"


def _disagreement(path: str, reason: str) -> ShardError:
    return ShardError(
        f"{path} and its index {jsonl_index_path(path)} do not match: {reason}. The "
        "file or its index has changed. Write the index again with: energize prepare "
        f"{path}"
    )


def _counted(files: Files, path: str, checksums: bool) -> int:
    """Return the number of samples, after checking index and checksums."""
    index = jsonl_index_path(path)
    crc = jsonl_checksums_path(path)
    size = files.size(path)
    if not exists(index):
        raise NotPreparedError(
            f"{path} has no index {index}. Write it with: energize prepare {path}"
        )
    indexed = files.size(index)
    count, rest = divmod(indexed, ENTRY)
    if rest or count < 1:
        raise _disagreement(
            path, f"{indexed} bytes are not a multiple of the offset size"
        )
    first, end = RANGE.unpack(
        files.read(index, 0, ENTRY) + files.read(index, indexed - ENTRY, indexed)
    )
    if first != 0 or end != size:
        raise _disagreement(
            path,
            f"the index covers bytes {first} to {end} of a file, but this one has "
            f"{size}",
        )
    checksum_bytes = files.size(crc) if checksums and exists(crc) else 0
    if checksums and checksum_bytes != (count - 1) * CHECKSUM:
        raise NotPreparedError(
            f"{path} has no checksums of its {count - 1} samples: {crc} has "
            f"{checksum_bytes} bytes. Write them with: energize prepare --checksums "
            f"{path}"
        )
    return count - 1


class JsonlSource(ShardedSource[dict[str, Any]], FieldSource[dict[str, Any]]):
    """The raw samples of a `.jsonl` file indexed by `energize prepare` or Energon.

    Sample i is a new dict: `__key__` is `str(i)`, `__dataset__` the path as specified,
    `__shard__` the file name, `__index__` i, and `json` the bytes of its line, which
    `SampleLoader` parses. So crude samples have the parsed value as `json`, and field
    maps read `json[caption]`.

    Opening reads only the ends of the index. The identity, which keys the order,
    depends on the file name and the number of samples, not on the folder. There are no
    splits.

    Args:
        path: The file.
        checksums: Whether to compare each line with the checksum written by `energize
            prepare --checksums`; one that differs is a `Failed` with a `DataError`.
        seed: Seed of the order.
        occurrence: Distinguishes several uses of the same file.

    Raises:
        DatasetNotFoundError: If the file does not exist.
        NotPreparedError: If the index, or requested checksums, are missing.
        ShardError: If the file changed after it was indexed.
        EmptyDatasetError: If the file has no samples.

    Example:
        >>> import tempfile
        >>> from energize.preparation.index import prepare_jsonl
        >>> path = Path(tempfile.mkdtemp(), "texts.jsonl")
        >>> _ = path.write_text('{"text": "a"}' + chr(10) + '{"text": "b"}')
        >>> _ = prepare_jsonl(path)
        >>> JsonlSource(path)[1]["json"]
        b'{"text": "b"}'
    """

    order_name = "JsonlSource"

    path: Path
    samples: int
    stored_bytes: int
    checksums: bool
    window: Window | None

    @convert_os_errors
    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        checksums: bool = False,
        seed: int = 0,
        occurrence: int = 0,
    ) -> None:
        file = path_of(path)
        if not file.is_file():
            raise DatasetNotFoundError(f"{file} does not exist or is not a file")
        files = files_at(file)
        samples = _counted(files, str(file), checksums)
        if samples == 0:
            raise EmptyDatasetError(f"{file} has no samples")
        self.freeze(
            path=file,
            samples=samples,
            shards=(file.name,),
            counts=(samples,),
            stored_bytes=files.size(str(file)),
            checksums=checksums,
            window=None,
            seed=seed,
            occurrence=occurrence,
        )

    @cached_property
    def identity(self) -> str:
        parts = [self.name, self.samples]
        return digest(parts if self.window is None else [*parts, self.window])

    @cached_property
    def name(self) -> str:
        return self.path.name

    @property
    def message_name(self) -> str:
        return str(self.path)

    @property
    def record(self) -> str:
        return digest(self.stored_bytes)

    @property
    def location(self) -> str:
        return str(self.path.absolute())

    def location_in_shard(self, shard: int, number: int) -> str:
        return f"{self.path}, sample {number}"

    def _key(self, shard: int, number: int) -> str:
        return str(number)

    @property
    def row_names(self) -> tuple[str, ...]:
        """The keys of the first line."""
        return super().column_names

    @cached_property
    def column_names(self) -> tuple[str, ...]:
        measured = loose_column_names(self.path)
        return tuple(dict.fromkeys([*self.row_names, *measured]))

    def _column(self, name: str) -> Column:
        whole = loose_column(self.path, self, name)
        if whole is None:
            return super()._column(name)
        return whole if self.window is None else whole.part(slice(*self.window))

    def _parsed(self, first: int, stop: int) -> list[Row | Failed]:
        start = self._bounds[0]
        numbers = range(start + first, start + stop)
        return [
            parsed_row(text.strip(), self.location_in_shard(0, number))
            for number, text in zip(numbers, self.stored(numbers), strict=True)
        ]

    def read_shard(
        self, shard: int, numbers: list[int]
    ) -> list[dict[str, Any] | Failed]:
        texts = self.stored(numbers)
        path = str(self.path)
        expected: Iterable[int] = map(zlib.crc32, texts)
        if self.checksums:
            expected = read_checksums(self._files, jsonl_checksums_path(path), numbers)
        return [
            {
                "__key__": str(number),
                "__dataset__": path,
                "__shard__": self.name,
                "__index__": number,
                "json": text.strip(),
            }
            if zlib.crc32(text) == crc
            else changed(self.location_in_shard(0, number), text, crc, path)
            for number, text, crc in zip(numbers, texts, expected, strict=True)
        ]

    def stored(self, numbers: Sequence[int]) -> list[bytes]:
        """Return the stored bytes of lines, including surrounding white space.

        Args:
            numbers: The lines, ascending.
        """
        path = str(self.path)
        texts = []
        [ranges] = self.sample_ranges(0, numbers)
        for number, text in zip(numbers, self._files.read_ranges(*ranges), strict=True):
            if number and text[:1] != b"\n":
                raise _disagreement(path, f"no line starts where sample {number} does")
            if b"\n" in text.strip():
                raise _disagreement(
                    path, f"several lines are at the offset of sample {number}"
                )
            texts.append(text[1:] if number else text)
        return texts

    def index_ranges(self, shard: int) -> list[Ranges]:
        return [(jsonl_index_path(str(self.path)), [], [])]

    def sample_ranges(self, shard: int, numbers: Sequence[int]) -> list[Ranges]:
        path = str(self.path)
        entries = read_entries(
            self._files, jsonl_index_path(path), numbers, ENTRY, RANGE.size
        )
        bounds = [RANGE.unpack(data) for data in entries]
        for number, (start, stop) in zip(numbers, bounds, strict=True):
            if not start < stop <= self.stored_bytes:
                raise _disagreement(
                    path, f"sample {number} has the offsets {start} to {stop}"
                )
        # The previous byte shows whether a line starts here.
        return [
            (
                path,
                [max(0, start - 1) for start, _ in bounds],
                [stop for _, stop in bounds],
            )
        ]
