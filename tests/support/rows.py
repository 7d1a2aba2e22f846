"""Small files of rows, and re-iterable sources."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet


def texts(source: str, count: int) -> list[dict[str, Any]]:
    return [{"text": f"{source} {number}", "id": number} for number in range(count)]


def write_parquet(
    path: Path, rows: list[dict[str, Any]], row_group_size: int = 1000
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pyarrow.Table.from_pylist(rows)
    pyarrow.parquet.write_table(table, path, row_group_size=row_group_size)
    return path


def write_lines(path: Path, rows: Iterable[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


class Stream:
    """Samples that can be iterated over again and again, and counted only by doing
    so."""

    def __init__(self, samples: Iterable[Any]) -> None:
        self.samples = list(samples)
        self.passes = 0

    def __iter__(self) -> Iterator[Any]:
        self.passes += 1
        return iter(self.samples)


def letter_streams(*sizes: int) -> list[Stream]:
    """Streams of samples like "a0", "a1", of these sizes."""
    return [
        Stream(f"{letter}{i}" for i in range(size))
        for letter, size in zip("abcdefgh", sizes, strict=False)
    ]
