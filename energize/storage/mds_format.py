"""Folders of MDS shards: the index, and where the samples and columns of a shard lie.

A folder has an `index.json` that lists its shards. A shard is, in little-endian 32-bit numbers, the
count of its samples n and n + 1 offsets, then a copy of its part of the index, then the samples. A
sample is the sizes of those columns that have none fixed, then the columns.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from energize.errors import DatasetError, DatasetNotFoundError, DecodeError, EmptyDatasetError
from energize.storage.mds_encodings import BAD_COLUMN, IMAGE_ENCODINGS, Decode, column_decoder

INDEX = "index.json"


@dataclass(frozen=True, slots=True)
class MdsColumns:
    """The columns of a shard: their names, encodings and sizes in bytes where these are fixed."""

    names: tuple[str, ...]
    encodings: tuple[str, ...]
    sizes: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class MdsShard:
    """A shard as the index has it: its file, and, when there is one, its compressed file."""

    name: str
    size: int
    samples: int
    columns: MdsColumns
    compression: str | None
    compressed_name: str | None


def read_mds_index(folder: Path) -> tuple[MdsShard, ...]:
    """The shards of a folder, in their order.

    Raises `DatasetNotFoundError` when there is no index, `DatasetError` when it is not one of MDS
    shards of version 2, `EmptyDatasetError` when the shards hold no sample.
    """
    path = folder / INDEX
    try:
        index = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise DatasetNotFoundError(
            f"{folder} is not a folder of MDS shards: it has no {INDEX}"
        ) from error
    except ValueError as error:
        raise DatasetError(f"{path} is not JSON: {error}; copy the folder again") from error
    listed = index.get("shards") if isinstance(index, dict) else None
    if not isinstance(listed, list) or index.get("version") != 2:
        raise DatasetError(
            f"{path} is not an index of MDS shards of version 2; write the folder with MDSWriter"
        )
    shards = tuple(_shard(each, f"{path}, shard {i}") for i, each in enumerate(listed))
    if not any(shard.samples for shard in shards):
        raise EmptyDatasetError(f"{path}: the {len(shards)} shards hold no sample")
    return shards


def _shard(entry: Any, where: str) -> MdsShard:
    if not isinstance(entry, dict) or entry.get("format") != "mds" or entry.get("version") != 2:
        raise DatasetError(
            f"{where}: an MDS shard of version 2 is expected; it begins with {str(entry)[:80]!r}"
        )
    try:
        raw, compressed = entry["raw_data"], entry.get("zip_data")
        shard = MdsShard(
            name=_file_name(raw["basename"], where),
            size=int(raw["bytes"]),
            samples=int(entry["samples"]),
            columns=MdsColumns(
                tuple(map(str, entry["column_names"])),
                tuple(map(str, entry["column_encodings"])),
                tuple(int(size) if size else None for size in entry["column_sizes"]),
            ),
            compression=entry.get("compression"),
            compressed_name=compressed and _file_name(compressed["basename"], where),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DatasetError(
            f"{where}: the entry is damaged ({type(error).__name__}: {error}); copy the folder "
            "again"
        ) from error
    columns = shard.columns
    if not len(columns.names) == len(columns.encodings) == len(columns.sizes):
        raise DatasetError(f"{where}: names, encodings and sizes of columns differ in number")
    return shard


def _file_name(name: str, where: str) -> str:
    """A file in the folder: an index may not lead out of it."""
    if not re.fullmatch(r"[^/\\\0]+", name) or name in (".", ".."):
        raise DatasetError(f"{where}: {name!r} is not the name of a file in the folder")
    return name


def column_decoders(columns: MdsColumns, where: str, *, decode_images: bool) -> tuple[Decode, ...]:
    """A decoder for each column; images stay bytes unless `decode_images`."""
    return tuple(
        bytes
        if encoding in IMAGE_ENCODINGS and not decode_images
        else column_decoder(encoding, name, where)
        for name, encoding in zip(columns.names, columns.encodings, strict=True)
    )


def offset_range(number: int) -> tuple[int, int]:
    """Where in a shard the two offsets of a sample lie: those of its start and its end."""
    return 4 * (number + 1), 4 * (number + 3)


def decoded_sample(
    columns: MdsColumns, decoders: Sequence[Decode], data: bytes, where: str
) -> dict[str, Any]:
    """The columns of a sample by name. Raises `DecodeError` naming the column with bad bytes."""
    unknown = sum(size is None for size in columns.sizes)
    if len(data) < 4 * unknown:
        raise DecodeError(f"{where}: {len(data)} bytes are too few for a sample")
    given = iter(np.frombuffer(data, "<u4", unknown).tolist())
    sizes = [next(given) if size is None else size for size in columns.sizes]
    if 4 * unknown + sum(sizes) != len(data):
        raise DecodeError(f"{where}: {len(data)} bytes, but its columns have {sum(sizes)}")
    sample: dict[str, Any] = {}
    at = 4 * unknown
    for name, decode, size in zip(columns.names, decoders, sizes, strict=True):
        try:
            sample[name] = decode(data[at : at + size])
        except BAD_COLUMN as error:
            raise DecodeError(
                f"{where}: column {name!r} of {size} bytes cannot be decoded: "
                f"{type(error).__name__}: {error}"
            ) from error
        at += size
    return sample
