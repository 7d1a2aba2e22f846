"""Files of rows of every format, opened as one source, and rows that are kept in memory."""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from energize.core.arrays import Int64Array
from energize.core.validation import parse_json
from energize.data.rows import ArrowSource, FieldSource, JsonSource, ParquetSource, Row
from energize.data.source import ShardedSource

KEY = "__key__"
"""The key of the sample of a row in memory."""

AT = "__at__"
"""Where a row in memory was read: its file and its line."""

TABLES: Mapping[str, Callable[[Any], ShardedSource[Row]]] = {
    ".parquet": ParquetSource,
    ".arrow": ArrowSource,
    ".jsonl": JsonSource,
    ".json": JsonSource,
}
"""What reads the rows of a file, by its extension in small letters."""


def open_table(files: Sequence[Path]) -> ShardedSource[Row]:
    """Open files of rows of one format, one after the other.

    Args:
        files: At least one path. The extension of the first one decides the format.

    Returns:
        The rows of all files.

    Raises:
        ShardError: If a file is damaged or is not of its format.
        KeyError: If the extension is not one of `TABLES`.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "letters.jsonl")
        >>> _ = path.write_text('{"text": "a"}')
        >>> list(open_table([path]))
        [{'text': 'a'}]

    """
    return TABLES[files[0].suffix.lower()](list(files))


def plain(value: Any) -> Any:
    """Return a value as JSON can hold it: an array as a list, anything else as its text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


class MemoryRows(ShardedSource[Row], FieldSource[Row]):
    """Rows that are kept as lines of JSON, with their keys as `__key__`, and with where they were
    read from as `__at__`, if that is not said by their files.

    Memory is that of the lines, and 8 bytes for each. The identity is that of the keys.
    """

    text: bytes
    ends: Int64Array
    name = location = identity = ""
    shards = ("",)

    def __init__(self, rows: Iterable[Row]) -> None:
        text, ends, keys = bytearray(), array("q", [0]), hashlib.blake2b(digest_size=16)
        dumped = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=plain).encode
        for row in rows:
            keys.update(f"{row[KEY]}\0".encode())
            text += dumped(row).encode("utf-8", "surrogatepass")
            ends.append(len(text))
        own = {"text": bytes(text), "ends": np.array(ends), "counts": (len(ends) - 1,)}
        named = {"identity": keys.hexdigest(), "seed": 0, "occurrence": 0}
        self._freeze(**cast("dict[str, Any]", own | named))

    def _compared(self) -> tuple[Any, ...]:
        return (self.text,)

    def _where(self, shard: int, number: int) -> str:
        return str(self._read_shard(shard, [number])[0].get(AT, ""))

    def _read_shard(self, shard: int, numbers: list[int]) -> list[Row]:
        bounds = (self.ends[number : number + 2].tolist() for number in numbers)
        return [parse_json(self.text[start:stop]) for start, stop in bounds]
