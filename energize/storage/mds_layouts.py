"""How the samples of MDS shards are written: as columns of bytes, as JSON, or as lines of text.

Format: the Mosaic Data Shard format, version 2, of MosaicML Streaming. A sample of an MDS shard is
the sizes of those columns that have none fixed, in little-endian 32-bit numbers, then the columns.
In a JSON shard it is an object of its columns; in CSV, TSV and XSV shards the texts of its columns
with a separator between them, in which neither that nor the end of a line can be quoted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from energize.errors import DatasetError, DecodeError, nearest
from energize.storage.bounded import load_json
from energize.storage.mds_encodings import BAD_COLUMN, Decode, column_decoder

DecodeSample: TypeAlias = Callable[[bytes, str], dict[str, Any]]
"""The columns of a sample by name, from its bytes and where it is; a `DecodeError` says both."""


@dataclass(frozen=True, slots=True)
class MdsColumns:
    """The columns of an MDS shard: names, encodings and sizes in bytes where these are fixed."""

    names: tuple[str, ...]
    encodings: tuple[str, ...]
    sizes: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class JsonRows:
    """The columns of a JSON shard, and what stands after each object."""

    names: tuple[str, ...]
    encodings: tuple[str, ...]
    newline: str


@dataclass(frozen=True, slots=True)
class SeparatedRows:
    """The columns of a CSV, TSV or XSV shard, and what stands between them and after the last."""

    names: tuple[str, ...]
    encodings: tuple[str, ...]
    separator: str
    newline: str


Layout: TypeAlias = MdsColumns | JsonRows | SeparatedRows

_TEXTS: Mapping[str, Callable[[str], Any]] = MappingProxyType(
    {"str": str, "int": int, "float": float}
)
"""What the columns of rows are, by the names of their encodings."""


def sample_decoder(layout: Layout, where: str, *, decode_images: bool) -> DecodeSample:
    """What decodes the samples of shards of this layout; images stay bytes unless `decode_images`.

    Raises `DatasetError` for an encoding that is not known.
    """
    if isinstance(layout, MdsColumns):
        decoders = tuple(
            column_decoder(encoding, name, where, decode_images=decode_images)
            for name, encoding in zip(layout.names, layout.encodings, strict=True)
        )
        return partial(_columns, layout, decoders)
    for name, encoding in zip(layout.names, layout.encodings, strict=True):
        if encoding not in _TEXTS:
            raise DatasetError(
                f"{where}: column {name!r} has the encoding {encoding!r}, which is not one of "
                f"{', '.join(_TEXTS)}{nearest(encoding, list(_TEXTS))}"
            )
    if isinstance(layout, JsonRows):
        return partial(_json_row, layout)
    return partial(_separated_row, layout)


def _columns(
    layout: MdsColumns, decoders: Sequence[Decode], data: bytes, where: str
) -> dict[str, Any]:
    unknown = sum(size is None for size in layout.sizes)
    if len(data) < 4 * unknown:
        raise DecodeError(f"{where}: {len(data)} bytes are too few for a sample")
    given = iter(np.frombuffer(data, "<u4", unknown).tolist())
    sizes = [next(given) if size is None else size for size in layout.sizes]
    if 4 * unknown + sum(sizes) != len(data):
        raise DecodeError(f"{where}: {len(data)} bytes, but its columns have {sum(sizes)}")
    sample: dict[str, Any] = {}
    at = 4 * unknown
    for name, decode, size in zip(layout.names, decoders, sizes, strict=True):
        try:
            sample[name] = decode(data[at : at + size])
        except BAD_COLUMN as error:
            raise DecodeError(
                f"{where}: column {name!r} of {size} bytes cannot be decoded: "
                f"{type(error).__name__}: {error}"
            ) from error
        at += size
    return sample


def _json_row(layout: JsonRows, data: bytes, where: str) -> dict[str, Any]:
    try:
        sample = load_json(data.removesuffix(layout.newline.encode()))
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"{where} is not JSON: {error}; it begins with {data[:40]!r}") from error
    if not isinstance(sample, dict) or not sample.keys() >= set(layout.names):
        raise DecodeError(
            f"{where}: an object with {', '.join(map(repr, layout.names))} is expected; it begins "
            f"with {data[:40]!r}"
        )
    return sample


def _separated_row(layout: SeparatedRows, data: bytes, where: str) -> dict[str, Any]:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DecodeError(f"{where} is no UTF-8: {error}") from error
    texts = text.removesuffix(layout.newline).split(layout.separator)
    if not text.endswith(layout.newline) or len(texts) != len(layout.names):
        raise DecodeError(
            f"{where}: a line of {len(layout.names)} columns with {layout.separator!r} between "
            f"them is expected; it has {len(texts)} and begins with {text[:40]!r}"
        )
    sample: dict[str, Any] = {}
    for name, encoding, column in zip(layout.names, layout.encodings, texts, strict=True):
        try:
            sample[name] = _TEXTS[encoding](column)
        except ValueError as error:
            raise DecodeError(
                f"{where}: column {name!r} cannot be decoded as {encoding}: {column[:40]!r}"
            ) from error
    return sample
