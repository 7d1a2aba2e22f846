"""The columns of MDS shards, from bytes. Encodings are named as in the index of a folder.

Format: the Mosaic Data Shard format, version 2, of MosaicML Streaming.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import PIL.Image

from energize.core.arrays import Int64Array
from energize.core.bounded import load_json, read_json
from energize.core.checks import checked_whole
from energize.core.description import digest
from energize.core.lazy import optional_module
from energize.core.reading import Failed, SamplePlace
from energize.data.files import LocalFile, OpenFiles
from energize.data.source import Source, read_by_file
from energize.data.writing import own_errors
from energize.errors import (
    ConfigError,
    DatasetError,
    DatasetNotFoundError,
    DecodeError,
    EmptyDatasetError,
    ShardError,
    nearest,
)

Decode = Callable[[bytes], Any]

BAD_COLUMN = (
    ArithmeticError,
    EOFError,
    LookupError,
    OSError,
    PIL.Image.DecompressionBombError,
    SyntaxError,
    ValueError,
)
"""What decoders raise for bad bytes."""

_DTYPES = {
    8: "uint8",
    9: "int8",
    16: "uint16",
    17: "int16",
    18: "float16",
    32: "uint32",
    33: "int32",
    34: "float32",
    64: "uint64",
    65: "int64",
    66: "float64",
}
"""The byte that stands for a dtype: its bits, plus 1 for signed and 2 for floating numbers."""

_MOST_DIGITS = 10
"""Of a size of an array: files of shards have less than 2**32 bytes."""

_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")


def column_decoder(encoding: str, column: str, where: str, *, decode_images: bool) -> Decode:
    """What decodes a column of this encoding; bad bytes raise one of `BAD_COLUMN`.

    bytes, str, json, int (int), uint8 .. float64 (numpy scalars), str_int, str_float, str_decimal;
    ndarray, ndarray:dtype, ndarray:dtype:shape (writable arrays); jpeg, png, pil (Pillow images),
    jpeg_array, list[jpeg], list[png], list[pil] (lists of these). Images that are files stay bytes
    unless `decode_images`.

    Raises `DatasetError` for an unknown encoding, and for pickles, which could run any program.
    """
    name, _, options = encoding.partition(":")
    if name == "pkl":
        raise DatasetError(
            f"{where}: column {column!r} holds pickles (pkl), which can run any program when they "
            "are read, and energize never reads them; write the folder again with another "
            "encoding, json or ndarray or bytes"
        )
    if name == "ndarray":
        return partial(_array, *_array_type(options, column, where))
    if name not in _DECODERS or options:
        raise DatasetError(
            f"{where}: column {column!r} has the encoding {encoding!r}, which is not one of "
            f"{', '.join(_DECODERS)}, ndarray{nearest(encoding, list(_DECODERS))}"
        )
    return _DECODERS[name] if decode_images else _UNDECODED.get(name, _DECODERS[name])


def _array_type(
    options: str, column: str, where: str
) -> tuple[np.dtype[Any] | None, tuple[int, ...] | None]:
    """The dtype and the shape that an encoding fixes for all its arrays."""
    dtype, _, shape = options.partition(":")
    sizes = shape.split(",") if shape else []
    if (dtype and dtype not in _DTYPES.values()) or not all(map(_is_size, sizes)):
        raise DatasetError(
            f"{where}: column {column!r} has the encoding 'ndarray:{options}'; a dtype, and sizes "
            "with commas between them, are expected after the colon"
        )
    return np.dtype(dtype) if dtype else None, tuple(map(int, sizes)) or None


def _is_size(text: str) -> bool:
    return text.isdecimal() and len(text) <= _MOST_DIGITS


def _array(
    dtype: np.dtype[Any] | None, shape: tuple[int, ...] | None, data: bytes
) -> npt.NDArray[Any]:
    """Dtype and shape stand before the values where they are not fixed."""
    at = 0
    if dtype is None:
        dtype = np.dtype(_DTYPES[data[at]])
        at += 1
    if shape is None:
        axes, width = divmod(data[at], 4)
        sizes = np.frombuffer(data, f"<u{2**width}", axes, at + 1)
        shape = tuple(sizes.tolist())
        at += 1 + sizes.nbytes
    values = np.frombuffer(data, dtype.newbyteorder("<"), math.prod(shape), at)
    if at + values.nbytes != len(data):
        raise ValueError(f"{len(data)} bytes are too many for an array of shape {shape}")
    return values.reshape(shape).astype(dtype)


def _scalar(dtype: str, data: bytes) -> Any:
    values = np.frombuffer(data, np.dtype(dtype).newbyteorder("<"))
    if len(values) != 1:
        raise ValueError(f"a {dtype} is expected")
    return values.astype(dtype)[0]


def _int(data: bytes) -> int:
    return int(_scalar("int64", data))


def _text(data: bytes) -> str:
    return data.decode("utf-8")


def _text_as(kind: Callable[[str], Any], data: bytes) -> Any:
    return kind(data.decode("utf-8"))


def _image(data: bytes) -> PIL.Image.Image:
    image = PIL.Image.open(io.BytesIO(data), formats=_FORMATS)
    image.load()
    return image


def _raw_image(data: bytes) -> PIL.Image.Image:
    """Three numbers, width, height and the length of the mode's name, stand before the pixels."""
    width, height, length = np.frombuffer(data, "<u4", 3).tolist()
    mode = data[12 : 12 + length].decode("ascii")
    if width * height > 8 * len(data):  # before there is memory for it; a pixel has a bit or more
        raise ValueError(f"{len(data)} bytes are too few for {width} x {height} pixels")
    return PIL.Image.frombytes(mode, (width, height), data[12 + length :])


def _several(decode: Decode, before: int, data: bytes) -> list[Any]:
    """Their number and sizes stand before the values, after `before` bytes that say nothing."""
    [count] = np.frombuffer(data, "<u4", 1, before).tolist()
    begin = before + 4 * (1 + count)
    ends = begin + np.cumsum([0, *np.frombuffer(data[before + 4 : begin], "<u4")], dtype=np.int64)
    if len(ends) != 1 + count or ends[-1] != len(data):
        raise ValueError(f"{len(data)} bytes are not those of {count} values")
    return [decode(data[start:end]) for start, end in pairwise(ends.tolist())]


_PLAIN: dict[str, Decode] = {
    "bytes": bytes,
    "str": _text,
    "int": _int,
    "json": load_json,
    "str_int": partial(_text_as, int),
    "str_float": partial(_text_as, float),
    "str_decimal": partial(_text_as, Decimal),
    "jpeg": _image,
    "png": _image,
    "pil": _raw_image,
    "jpeg_array": partial(_several, _image, 0),
    "jpegarray": partial(_several, _image, 0),
    "list[jpeg]": partial(_several, _image, 4),
    "list[png]": partial(_several, _image, 4),
    "list[pil]": partial(_several, _raw_image, 4),
}
_DECODERS: Mapping[str, Decode] = MappingProxyType(
    _PLAIN | {dtype: partial(_scalar, dtype) for dtype in _DTYPES.values()}
)

_UNDECODED: Mapping[str, Decode] = MappingProxyType(
    dict.fromkeys(("jpeg", "png"), bytes)
    | dict.fromkeys(("jpeg_array", "jpegarray"), partial(_several, bytes, 0))
    | dict.fromkeys(("list[jpeg]", "list[png]"), partial(_several, bytes, 4))
)
"""What stands for the decoders of images that are files, where these are to stay bytes."""


# How the samples of MDS shards are written: as columns of bytes, as JSON, or as lines of text.

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


# Folders of MDS shards: the index, and in which files and where in them the samples lie.

INDEX = "index.json"

_MOST_BYTES = 2**32
"""Offsets have 32 bits, so no file of a shard is larger."""

_SEPARATORS = {"csv": ",", "tsv": "\t"}


@dataclass(frozen=True, slots=True)
class MdsFile:
    """A file as the index has it: its path in the folder, its size and its hashes by algorithm."""

    name: str
    size: int
    hashes: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class MdsPart:
    """A file of a shard, and the compressed one that may lie there besides or instead."""

    raw: MdsFile
    packed: MdsFile | None
    compression: str | None


@dataclass(frozen=True, slots=True)
class MdsShard:
    """A shard as the index has it. `offsets` are in a file of their own, or at the beginning of
    `data`.
    """

    samples: int
    layout: Layout
    data: MdsPart
    offsets: MdsPart | None

    @property
    def name(self) -> str:
        return self.data.raw.name

    @property
    def size(self) -> int:
        return self.data.raw.size

    @property
    def begin(self) -> int:
        """Where in the data samples may begin."""
        return offset_range(self.samples)[0] if self.offsets is None else 0

    @property
    def parts(self) -> Iterator[MdsPart]:
        """The part that has the offsets, and, if that is another one, the data."""
        if self.offsets is not None:
            yield self.offsets
        yield self.data


def offset_range(number: int) -> tuple[int, int]:
    """Where in its file the two offsets of a sample lie: those of its start and its end."""
    return 4 * (number + 1), 4 * (number + 3)


def header_range(shard: MdsShard, first: int) -> tuple[int, int]:
    """Where in the file that has the offsets the copy of the shard's entry lies, of which the
    samples begin at the offset `first`.
    """
    start = 4 * (shard.samples + 2)
    return start, first if shard.offsets is None else shard.offsets.raw.size


def check_header(shard: MdsShard, header: bytes, where: str) -> None:
    """Compare the columns of a shard's own header with those that the index says.

    Raises `ShardError` where they differ, or the header is damaged.
    """
    try:
        found = _layout(load_json(header))
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise ShardError(
            f"{where}: its header is damaged ({type(error).__name__}: {error}); copy the folder "
            "again"
        ) from error
    if found != shard.layout:
        raise ShardError(
            f"{where}: by its header it has {_columns_of(found)}, and by {INDEX} "
            f"{_columns_of(shard.layout)}: one of the files is damaged, or of another folder; copy "
            "the folder again"
        )


def _columns_of(layout: Layout) -> str:
    columns = dict(zip(layout.names, layout.encodings, strict=False))
    return f"the columns {str(columns)[:300]}"


def read_mds_index(folder: Path) -> tuple[MdsShard, ...]:
    """The shards of a folder, in their order.

    Raises `DatasetNotFoundError` when there is no index, `DatasetError` when it is not one of
    shards of version 2 or lists a file twice, `EmptyDatasetError` when the shards hold no sample.
    """
    path = folder / INDEX
    try:
        index = read_json(path, "INDEX_VALUES")
    except FileNotFoundError as error:
        raise DatasetNotFoundError(
            f"{folder} is not a folder of MDS shards: it has no {INDEX}{_hint(folder)}"
        ) from error
    except OSError as error:
        raise DatasetError(f"{path} cannot be read: {error.strerror}") from error
    except ConfigError:
        raise
    except ValueError as error:
        raise DatasetError(
            f"{path} is not JSON that can be read: {error}; copy the folder again"
        ) from error
    listed = index.get("shards") if isinstance(index, dict) else None
    if not isinstance(listed, list) or index.get("version") != 2:
        raise DatasetError(
            f"{path} is not an index of MDS shards of version 2; write the folder with MDSWriter"
        )
    shards = tuple(_shard(each, f"{path}, shard {i}") for i, each in enumerate(listed))
    _check_listed_once(shards, path)
    if not any(shard.samples for shard in shards):
        raise EmptyDatasetError(f"{path}: the {len(shards)} shards hold no sample")
    return shards


def _hint(folder: Path) -> str:
    """What to do about subfolders that have an index."""
    inner = sorted(each.parent.name for each in folder.glob(f"*/{INDEX}"))
    if not inner:
        return ""
    shown = f"{', '.join(inner[:3])}{', ...' if len(inner) > 3 else ''}"
    return (
        f", but {len(inner)} of its subfolders do ({shown}): name one as split, or make one index "
        "of them with merge_index of MosaicML Streaming"
    )


def _check_listed_once(shards: tuple[MdsShard, ...], path: Path) -> None:
    known: dict[str, int] = {}
    for number, shard in enumerate(shards):
        for part in shard.parts:
            first = known.setdefault(part.raw.name, number)
            if first != number:
                raise DatasetError(
                    f"{path}: {part.raw.name} is listed twice, as shards {first} and {number}, so "
                    "its samples would come twice; merge the indices of the subfolders anew"
                )


def _shard(entry: Any, where: str) -> MdsShard:
    kinds = ("mds", "json", "csv", "tsv", "xsv")
    if not isinstance(entry, dict) or entry.get("format") not in kinds or entry.get("version") != 2:
        raise DatasetError(
            f"{where}: an MDS, JSON, CSV, TSV or XSV shard of version 2 is expected; the entry "
            f"begins with {str(entry)[:80]!r}"
        )
    try:
        joint = entry["format"] == "mds"
        shard = MdsShard(
            samples=_whole(entry, "samples"),
            layout=_layout(entry),
            data=_part(entry, "data", where),
            offsets=None if joint else _part(entry, "meta", where),
        )
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise DatasetError(
            f"{where}: the entry is damaged ({type(error).__name__}: {error}); copy the folder "
            "again"
        ) from error
    layout = shard.layout
    sizes = layout.sizes if isinstance(layout, MdsColumns) else layout.names
    if not len(layout.names) == len(layout.encodings) == len(sizes):
        raise DatasetError(f"{where}: names, encodings and sizes of columns differ in number")
    with_offsets = next(iter(shard.parts)).raw
    if shard.samples < 0 or offset_range(shard.samples)[0] + 4 > with_offsets.size:
        raise DatasetError(
            f"{where}: {with_offsets.name} of {with_offsets.size} bytes has no room for the "
            f"offsets of {shard.samples} samples; copy the folder again"
        )
    return shard


def _layout(entry: dict[str, Any]) -> Layout:
    kind = entry["format"]
    if kind == "json":
        columns = entry["columns"]
        return JsonRows(
            tuple(columns), tuple(map(str, columns.values())), _mds_format_text(entry, "newline")
        )
    names, encodings = (_texts(entry, f"column_{each}") for each in ("names", "encodings"))
    if kind == "mds":
        sizes = tuple(int(size) if size else None for size in entry["column_sizes"])
        if any(size is not None and size < 0 for size in sizes):
            raise ValueError(f"columns have the sizes {sizes}")
        return MdsColumns(names, encodings, sizes)
    separator = _SEPARATORS.get(kind) or _mds_format_text(entry, "separator")
    return SeparatedRows(names, encodings, separator, _mds_format_text(entry, "newline"))


def _texts(entry: dict[str, Any], key: str) -> tuple[str, ...]:
    texts = entry[key]
    if not isinstance(texts, list) or not all(isinstance(each, str) for each in texts):
        raise ValueError(f"{key} is a list of texts, not {str(texts)[:80]!r}")
    return tuple(texts)


def _whole(entry: dict[str, Any], key: str) -> int:
    number = entry[key]
    if type(number) is not int:
        raise ValueError(f"{key} is a whole number, not {str(number)[:80]!r}")
    return number


def _mds_format_text(entry: dict[str, Any], key: str) -> str:
    text = entry[key]
    if not isinstance(text, str) or not text:
        raise ValueError(f"{key} is a text, not {text!r}")
    return text


def _part(entry: dict[str, Any], kind: str, where: str) -> MdsPart:
    packed = entry.get(f"zip_{kind}")
    return MdsPart(
        raw=_file(entry[f"raw_{kind}"], where),
        packed=_file(packed, where) if packed else None,
        compression=entry.get("compression"),
    )


def _file(entry: dict[str, Any], where: str) -> MdsFile:
    size = _whole(entry, "bytes")
    if not 0 <= size <= _MOST_BYTES:
        raise ValueError(f"a file of a shard has 0 to 2**32 bytes, not {size}")
    hashes = entry.get("hashes") or {}
    return MdsFile(
        _file_name(entry["basename"], where),
        size,
        tuple((str(name), str(value)) for name, value in hashes.items()),
    )


def _file_name(name: str, where: str) -> str:
    """A file in the folder or a subfolder: an index may not lead out of it."""
    path = PurePosixPath(name)
    plain = str(path) == name and "\\" not in name and "\0" not in name
    if not plain or name == "." or path.is_absolute() or ".." in path.parts:
        raise DatasetError(f"{where}: {name!r} is not the name of a file in the folder")
    return name


# Files of MDS shards that are compressed, and the hashes that the index has of files.

_EXTRA = "energize[mds]"

_UNPACKERS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "br": ("brotli", "decompress_into"),
        "bz2": ("bzip2", "decompress_into"),
        "gz": ("gzip", "decompress_into"),
        "snappy": ("snappy", "decompress_raw_into"),
        "zstd": ("zstd", "decompress_into"),
    }
)
"""The part of cramjam, and its function, for each compression by its name in an index."""

_BLOCK = 2**23


def unpacked(packed: bytes, compression: str | None, size: int, path: str) -> bytes:
    """The `size` bytes that `packed` holds.

    No more memory than for these is used, whatever the file would unpack to. Raises `ShardError`
    for another size, damaged bytes and a compression that is not known, `ConfigError` when the
    package for it is not installed.
    """
    kind = str(compression).partition(":")[0]
    if kind not in _UNPACKERS:
        raise ShardError(
            f"{path} is compressed with {kind!r}, which is not one of {', '.join(_UNPACKERS)}; "
            "unpack it in the same folder, under the name that the index has for it"
        )
    cramjam = optional_module("cramjam", _EXTRA, f"reading {path}, which is compressed,")
    module, function = _UNPACKERS[kind]
    try:
        data = bytearray(size)
    except MemoryError as error:
        raise ShardError(
            f"{path} would unpack to {size} bytes, as the index says, and there is no memory for "
            "them; if the index is right, unpack it in the same folder"
        ) from error
    try:
        written = getattr(getattr(cramjam, module), function)(packed, data)
    except cramjam.DecompressionError as error:
        raise ShardError(
            f"{path} cannot be unpacked into the {size} bytes that the index says: {error}; it is "
            "damaged, or holds more. Copy the folder again"
        ) from error
    if written != size:
        raise ShardError(
            f"{path} holds {written} bytes, but the index says {size}: it is another one; copy the "
            "folder again"
        )
    return bytes(data)


def new_hash(algorithm: str) -> Any:
    """An object of this algorithm with `update` and `hexdigest`: of hashlib, or of xxhash, which
    then has to be installed. `ConfigError` when neither knows it.
    """
    if algorithm in hashlib.algorithms_available and not algorithm.startswith("shake_"):
        return hashlib.new(algorithm, usedforsecurity=False)
    if algorithm.startswith("xxh"):
        xxhash = optional_module("xxhash", _EXTRA, f"checking the hash {algorithm}")
        if algorithm in xxhash.algorithms_available:
            return getattr(xxhash, algorithm)()
    raise ConfigError(
        f"validate_hash={algorithm!r} is not one of the algorithms of hashlib and xxhash"
    )


def check_hash(file: LocalFile, hashes: Mapping[str, str], algorithm: str) -> None:
    """`ShardError` unless the file has the hash that the index says."""
    expected = hashes[algorithm]
    hashed = new_hash(algorithm)
    for start in range(0, file.size, _BLOCK):
        hashed.update(file.read(start, _BLOCK))
    if (found := hashed.hexdigest()) != expected:
        raise ShardError(
            f"{file.path} has the {algorithm} {found}, but the index says {expected}: the file was "
            "changed or damaged; copy it again"
        )


# The bytes of MDS shards: files, and compressed files that are unpacked in memory.

_LONGEST_HEADER = 16 * 1024 * 1024


class ShardBytes(Protocol):
    """Byte ranges of a file of a shard."""

    def read_ranges(
        self, starts: Sequence[int], stops: Sequence[int]
    ) -> Iterator[tuple[bytes, int]]:
        """For each range, given in ascending order, bytes that hold it, and where in them."""


class _Unpacked:
    """A file in memory."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def read_ranges(
        self, starts: Sequence[int], stops: Sequence[int]
    ) -> Iterator[tuple[bytes, int]]:
        for start in starts:
            yield self.data, start


class MdsShards:
    """The shards of a folder as they are read: from their files, which are kept open.

    Of a file that is not there, the compressed one is unpacked. Those that were unpacked last are
    kept, at most `unpacked_bytes` of them or one. With `validate_hash`, an algorithm that the index
    has hashes of, each file is compared with its hash when it is first read. A pickled object
    arrives empty.
    """

    def __init__(self, folder: str, unpacked_bytes: int, validate_hash: str | None = None) -> None:
        self._folder = folder
        self._limit = unpacked_bytes
        self._validate_hash = validate_hash
        self._files = OpenFiles()
        self._unpacked: OrderedDict[str, _Unpacked] = OrderedDict()
        self._validated: set[str] = set()
        self._counted: set[str] = set()

    def get(self, shard: MdsShard) -> tuple[ShardBytes, ShardBytes]:
        """The bytes that have the offsets of a shard, and its data.

        Raises `ShardError` when a file is missing, of another size, hash or number of samples than
        the index says, or cannot be unpacked, `ConfigError` when the package for that is not
        installed.
        """
        data = self._part(shard.data)
        offsets = data if shard.offsets is None else self._part(shard.offsets)
        if shard.name not in self._counted:
            self._check(shard, offsets)
            self._counted.add(shard.name)
        return offsets, data

    def _check(self, shard: MdsShard, offsets: ShardBytes) -> None:
        """Compare what a shard says of itself with the index."""
        path = f"{self._folder}/{next(shard.parts).raw.name}"
        found, at = next(offsets.read_ranges([0], [8]))
        samples, first = np.frombuffer(found, "<u4", 2, at).tolist()
        if samples != shard.samples:
            raise ShardError(
                f"{path} has {samples} samples, but the index says {shard.samples}: it is another "
                "one; copy the folder again"
            )
        start, stop = header_range(shard, first)
        if stop - start > _LONGEST_HEADER:
            raise ShardError(
                f"{path}: its header would have {stop - start} bytes: it is damaged; copy the "
                "folder again"
            )
        found, at = next(offsets.read_ranges([start], [max(start, stop)]))
        check_header(shard, found[at : at + max(0, stop - start)], path)

    def _part(self, part: MdsPart) -> ShardBytes:
        known = self._unpacked.get(part.raw.name)
        if known is not None:
            self._unpacked.move_to_end(part.raw.name)
            return known
        try:
            return self._file(part.raw)
        except FileNotFoundError as error:
            if part.packed is None:
                path = f"{self._folder}/{part.raw.name}"
                raise ShardError(f"{path} is missing; copy the folder again") from error
        return self._unpack(part, part.packed)

    def _unpack(self, part: MdsPart, packed: MdsFile) -> ShardBytes:
        path = f"{self._folder}/{packed.name}"
        try:
            file = self._file(packed)
            held = file.read(0, file.size)
        except OSError as error:
            raise ShardError(
                f"neither {part.raw.name} nor {path}, the compressed one, can be read: {error}; "
                "copy the folder again"
            ) from error
        made = _Unpacked(unpacked(held, part.compression, part.raw.size, path))
        self._unpacked[part.raw.name] = made
        while len(self._unpacked) > 1 and self._kept() > self._limit:
            self._unpacked.popitem(last=False)
        return made

    def _file(self, expected: MdsFile) -> LocalFile:
        """An open file of the size and hash that the index says."""
        path = f"{self._folder}/{expected.name}"
        try:
            file = self._files.get(path)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise ShardError(f"{path} cannot be opened: {error}") from error
        if file.size != expected.size:
            raise ShardError(
                f"{path} holds {file.size} bytes, but the index says {expected.size}: it is cut "
                "off or another one; copy the folder again"
            )
        if self._validate_hash is not None and path not in self._validated:
            check_hash(file, dict(expected.hashes), self._validate_hash)
            self._validated.add(path)
        return file

    def _kept(self) -> int:
        return sum(len(each.data) for each in self._unpacked.values())

    def __reduce__(self) -> tuple[type[MdsShards], tuple[str, int, str | None]]:
        return MdsShards, (self._folder, self._limit, self._validate_hash)


# Samples of a folder of MDS shards, read at random.

UNPACKED_BYTES = 2**29


class MdsSource(Source[dict[str, Any]]):
    """The samples of a folder that MosaicML Streaming's writers wrote: MDS, JSON, CSV, TSV or XSV
    shards, in subfolders too where `index.json` is a merged one.

    A sample is a new dict of its columns by name. Of MDS shards, columns of the encodings jpeg, png
    and pil become Pillow images, loaded, those of jpeg_array and list[...] lists of them; with
    `decode_images=False` all but pil stay bytes. ndarray columns become writable arrays, the others
    Python's or numpy's scalars, str, bytes and values of JSON. Pickles are refused.

    Opening reads `index.json` only. Shards are read where they lie. Of one that is there only
    compressed, with br, bz2, gz, snappy or zstd (which needs `energize[mds]`), the files are
    unpacked as a whole into memory, where those used last are kept, up to `unpacked_bytes` in each
    process. So compressed shards should be read nearly in order: unpack folders that are to be
    shuffled as a whole. A shard that is there in both forms is read uncompressed.

    With `validate_hash`, the name of an algorithm that the writer was given in `hashes`, each
    process compares every file with its hash before it reads a sample of it.

    Raises `DatasetNotFoundError`, `DatasetError` or `EmptyDatasetError` when it is made. Reading
    raises `ShardError` when a shard is missing or not as the index says, in its size, its samples
    and its columns, of which each shard has a list of its own; a single damaged sample is a
    `Failed` with a `DecodeError`.
    """

    path: Path
    split: str
    decode_images: bool
    unpacked_bytes: int
    validate_hash: str | None
    shards: tuple[MdsShard, ...]

    @own_errors
    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        split: str = "",
        decode_images: bool = True,
        unpacked_bytes: int = UNPACKED_BYTES,
        validate_hash: str | None = None,
        seed: int = 0,
        occurrence: int = 0,
    ) -> None:
        self._freeze(
            path=Path(path),
            split=split,
            decode_images=decode_images,
            unpacked_bytes=checked_whole(unpacked_bytes, "MdsSource: unpacked_bytes", 0),
            validate_hash=validate_hash,
            shards=read_mds_index(Path(path) / split),
            seed=seed,
            occurrence=occurrence,
        )
        _ = self._decoders  # unknown encodings are found now
        if validate_hash is not None:
            self._check_hashes_known(validate_hash)

    @cached_property
    def count(self) -> int:
        return sum(shard.samples for shard in self.shards)

    @cached_property
    def identity(self) -> str:
        shards = [[shard.name, shard.samples, shard.size] for shard in self.shards]
        return digest([self.path.absolute().name, self.split, shards])

    @cached_property
    def name(self) -> str:
        return "/".join(filter(None, [self.path.absolute().name, self.split]))

    @property
    def run_length(self) -> int:
        return max(1, self.count // len(self.shards))

    def _how_to_index(self, name: str) -> str:
        return (
            "The fields of MDS shards lie among the bytes of the samples, so each sample would be "
            "read for them; write the samples into a folder (write_shards), prepare it and measure "
            "the column there: energize prepare FOLDER --column NAME=json[FIELD]"
        )

    def settings(self) -> dict[str, Any]:
        return super().settings() | {
            "shards": len(self.shards),
            "decode_images": self.decode_images,
            "identity": self.identity,
        }

    def where(self, position: int, attempt: int = 0) -> str:
        index = self._samples(np.array([position], dtype=np.int64), attempt)
        shard, number = (int(each[0]) for each in self._located(index))
        return self._place(shard, number)

    @property
    def location(self) -> str:
        return str((self.path / self.split).absolute())

    def place(self, index: int) -> SamplePlace:
        shard, number = (int(each[0]) for each in self._located(np.array([index], dtype=np.int64)))
        return SamplePlace(self.location, self.shards[shard].name, number, source=self.identity)

    def find(self, shard: str | None, index: int) -> int | None:
        for each, first in zip(self.shards, self._firsts.tolist(), strict=True):
            if each.name == shard:
                return first + index if 0 <= index < each.samples else None
        return None

    def read(self, indices: Int64Array) -> list[dict[str, Any] | Failed]:
        return read_by_file(indices, self._located, self._read_shard)

    def _read_shard(self, number: int, samples: Sequence[int]) -> list[dict[str, Any] | Failed]:
        """Samples of one shard, given in ascending order."""
        shard = self.shards[number]
        offsets, data = self._bytes.get(shard)
        wanted = zip(*map(offset_range, samples), strict=True)
        bounds = [
            np.frombuffer(found, "<u4", 2, at).tolist()
            for found, at in offsets.read_ranges(*wanted)
        ]
        for sample, (start, stop) in zip(samples, bounds, strict=True):
            if not shard.begin <= start <= stop <= shard.size:
                raise ShardError(
                    f"{self._place(number, sample)} would lie at bytes {start} to {stop} of "
                    f"{shard.size}: the shard is damaged; copy the folder again"
                )
        found = data.read_ranges([start for start, _ in bounds], [stop for _, stop in bounds])
        return [
            self._decoded(number, sample, held[at : at + stop - start])
            for sample, (start, stop), (held, at) in zip(samples, bounds, found, strict=True)
        ]

    def _decoded(self, shard: int, number: int, data: bytes) -> dict[str, Any] | Failed:
        where = self._place(shard, number)
        try:
            return self._decoders[shard](data, where)
        except DecodeError as reason:
            return Failed(reason, where)

    def _check_hashes_known(self, algorithm: str) -> None:
        new_hash(algorithm)
        for shard in self.shards:
            for file in (each for part in shard.parts for each in (part.raw, part.packed) if each):
                known = [name for name, _ in file.hashes]
                if algorithm not in known:
                    raise DatasetError(
                        f"{self._folder}: validate_hash={algorithm!r}, but the index has "
                        f"{', '.join(known) or 'no hashes'} of {file.name}; name one of those, or "
                        "write the folder with hashes=[...]"
                    )

    def _place(self, shard: int, number: int) -> str:
        return f"{self._folder}/{self.shards[shard].name}, sample {number}"

    def _located(self, indices: Int64Array) -> tuple[Int64Array, Int64Array]:
        """The shard of each sample and its number in it."""
        shards = np.searchsorted(self._firsts, indices, side="right") - 1
        return shards, indices - self._firsts[shards]

    @cached_property
    def _firsts(self) -> Int64Array:
        """The number of samples before each shard."""
        counts = np.array([shard.samples for shard in self.shards], dtype=np.int64)
        return np.cumsum(counts) - counts

    @cached_property
    def _decoders(self) -> list[DecodeSample]:
        """Those of each shard; shards of one folder may have different columns."""
        known = {
            layout: sample_decoder(layout, self._folder, decode_images=self.decode_images)
            for layout in {shard.layout for shard in self.shards}
        }
        return [known[shard.layout] for shard in self.shards]

    @cached_property
    def _folder(self) -> str:
        return str(self.path / self.split)

    @cached_property
    def _bytes(self) -> MdsShards:
        return MdsShards(self._folder, self.unpacked_bytes, self.validate_hash)
