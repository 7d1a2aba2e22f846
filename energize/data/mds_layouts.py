"""How the samples of MDS shards are written: as columns of bytes, as JSON, or as lines of text.

Format: the Mosaic Data Shard format, version 2, of MosaicML Streaming. Encodings are named as in
the index of a folder.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from functools import partial
from itertools import pairwise
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import PIL.Image
from pydantic import BaseModel, ConfigDict, Field, model_validator

from energize.core.limits import load_json
from energize.core.validation import Listed
from energize.errors import DatasetError, DecodeError, nearest

Decode = Callable[[bytes], Any]

# The columns of a sample by name, from its bytes and where it is; a `DecodeError` says both.
DecodeSample: TypeAlias = Callable[[bytes, str], dict[str, Any]]

# What decoders raise for bad bytes.
BAD_COLUMN = (
    *(ArithmeticError, EOFError, LookupError, OSError, SyntaxError, ValueError),
    PIL.Image.DecompressionBombError,
)

# The byte that stands for a dtype: its bits, plus 1 for signed and 2 for floating numbers.
_DTYPES = {
    8 * size + flag: f"{kind}{8 * size}"
    for flag, kind in enumerate(("uint", "int", "float"))
    for size in (1, 2, 4, 8)
    if (size, kind) != (1, "float")
}

# Digits of a size of an array: files of shards have less than 2**32 bytes.
_MOST_DIGITS = 10

_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")


def column_decoder(encoding: str, column: str, where: str, *, decode_images: bool) -> Decode:
    """Return what decodes a column of this encoding; bad bytes raise one of `BAD_COLUMN`.

    bytes, str, json, int (int), uint8 .. float64 (numpy scalars), str_int, str_float, str_decimal;
    ndarray, ndarray:dtype, ndarray:dtype:shape (writable arrays); jpeg, png, pil (Pillow images),
    jpeg_array, list[jpeg], list[png], list[pil] (lists of these). Images that are files stay bytes
    unless `decode_images`.

    Raise `DatasetError` for an unknown encoding, and for pickles, which could run any program.
    """
    name, _, options = encoding.partition(":")
    if name == "pkl":
        raise DatasetError(
            f"{where}: column {column!r} holds pickles (pkl), which can run any program and are "
            "never read; write the folder again with another encoding: json, ndarray or bytes"
        )
    if name == "ndarray":
        dtype, _, shape = options.partition(":")
        sizes = shape.split(",") if shape else []
        known = not dtype or dtype in _DTYPES.values()
        if known and all(each.isdecimal() and len(each) <= _MOST_DIGITS for each in sizes):
            fixed = np.dtype(dtype) if dtype else None
            return partial(_array, fixed, tuple(map(int, sizes)) or None)
    if name not in _DECODERS or options:
        raise _unknown(where, column, encoding, [*_DECODERS, "ndarray:DTYPE:SIZE,SIZE"])
    return _DECODERS[name] if decode_images else _UNDECODED.get(name, _DECODERS[name])


def _unknown(where: str, column: str, encoding: str, known: Iterable[str]) -> DatasetError:
    return DatasetError(
        f"{where}: column {column!r} has the encoding {encoding!r}, which is not one of "
        f"{', '.join(known)}{nearest(encoding, list(known))}"
    )


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


def _of_files(decode: Decode) -> dict[str, Decode]:
    """Decoders of images that are files, by what decodes the bytes of one."""
    return (
        dict.fromkeys(("jpeg", "png"), decode)
        | dict.fromkeys(("jpeg_array", "jpegarray"), partial(_several, decode, 0))
        | dict.fromkeys(("list[jpeg]", "list[png]"), partial(_several, decode, 4))
    )


_PLAIN: dict[str, Decode] = {
    "bytes": bytes,
    "str": _text,
    "int": lambda data: int(_scalar("int64", data)),
    "json": load_json,
    "str_int": partial(_text_as, int),
    "str_float": partial(_text_as, float),
    "str_decimal": partial(_text_as, Decimal),
    "pil": _raw_image,
    "list[pil]": partial(_several, _raw_image, 4),
}
_DECODERS: Mapping[str, Decode] = MappingProxyType(
    _PLAIN | _of_files(_image) | {dtype: partial(_scalar, dtype) for dtype in _DTYPES.values()}
)

# What stands for the decoders of images that are files, where these are to stay bytes.
_UNDECODED: Mapping[str, Decode] = MappingProxyType(_of_files(bytes))

_TEXTS: dict[str, Decode] = {
    "str": _text,
    "int": partial(_text_as, int),
    "float": partial(_text_as, float),
}
_SEPARATORS = {"csv": ",", "tsv": "\t"}


class Loose(BaseModel):
    """A mapping in a file that may have more keys than these."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class Layout(Loose):
    """The columns of a shard: of MDS, with sizes in bytes where these are fixed; of rows, with what
    stands after each of them, and between columns.
    """

    version: Literal[2]
    format: Literal["mds", "json", "csv", "tsv", "xsv"]
    column_names: Listed[str] = ()
    column_encodings: Listed[str] = ()
    column_sizes: Listed[Annotated[int, Field(ge=0)] | None] = ()
    columns: dict[str, str] = {}
    newline: str = ""
    separator: str = ""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        counts = {len(self.column_names), len(self.column_encodings)}
        if self.format == "mds":
            counts.add(len(self.column_sizes))
        elif not self.newline:
            raise ValueError("nothing stands after a row: newline is text")
        if len(counts) > 1:
            raise ValueError("names, encodings and sizes of columns differ in number")
        if not (self.columns if self.format == "json" else self.column_names):
            raise ValueError("there are no columns")
        if self.format == "xsv" and not self.separator:
            raise ValueError("nothing stands between columns: separator is text")
        return self

    def decoder(self, where: str, *, decode_images: bool) -> DecodeSample:
        """Return what decodes the samples of shards of this layout.

        Images stay bytes unless `decode_images`. Raise `DatasetError` for an unknown encoding.
        """
        named = zip(self.column_names, self.column_encodings, strict=True)
        columns = self.columns or dict(named)
        if self.format == "mds":
            sizes = [size or None for size in self.column_sizes]
            decoders = {
                name: column_decoder(encoding, name, where, decode_images=decode_images)
                for name, encoding in columns.items()
            }
            return partial(_decoded, decoders, partial(_sliced, sizes))
        for name, encoding in columns.items():
            if encoding not in _TEXTS:
                raise _unknown(where, name, encoding, _TEXTS)
        newline = self.newline.encode()
        if self.format == "json":
            return partial(_json_row, list(columns), newline)
        separator = _SEPARATORS.get(self.format, self.separator).encode()
        decoders = {name: _TEXTS[encoding] for name, encoding in columns.items()}
        return partial(_decoded, decoders, partial(_separated, len(columns), separator, newline))


def _decoded(
    decoders: dict[str, Decode], cut: Callable[[bytes], list[bytes]], data: bytes, where: str
) -> dict[str, Any]:
    sample: dict[str, Any] = {}
    what = ""
    try:
        for (name, decode), piece in zip(decoders.items(), cut(data), strict=True):
            what = f"column {name!r} of {len(piece)} bytes cannot be decoded: "
            sample[name] = decode(piece)
    except BAD_COLUMN as error:
        what += f"{type(error).__name__}: {error}; the sample begins with {data[:40]!r}"
        raise DecodeError(f"{where}: {what}") from error
    return sample


def _sliced(fixed: list[int | None], data: bytes) -> list[bytes]:
    """The columns of an MDS sample, after the sizes of those that have no fixed one."""
    unknown = fixed.count(None)
    given = iter(np.frombuffer(data, "<u4", unknown).tolist())
    sizes = [next(given) if size is None else size for size in fixed]
    if 4 * unknown + sum(sizes) != len(data):
        raise ValueError(f"its columns have {sum(sizes)} bytes, and it {len(data)}")
    ends = np.cumsum([4 * unknown, *sizes], dtype=np.int64).tolist()
    return [data[start:end] for start, end in pairwise(ends)]


def _separated(count: int, separator: bytes, newline: bytes, data: bytes) -> list[bytes]:
    pieces = data.removesuffix(newline).split(separator)
    if not data.endswith(newline) or len(pieces) != count:
        raise ValueError(
            f"a line of {count} columns with {separator.decode()!r} between them is expected, and "
            f"it has {len(pieces)}"
        )
    return pieces


def _json_row(names: list[str], newline: bytes, data: bytes, where: str) -> dict[str, Any]:
    try:
        sample = load_json(data.removesuffix(newline))
        if not isinstance(sample, dict) or not sample.keys() >= set(names):
            raise ValueError(f"an object with {', '.join(map(repr, names))} is expected")
    except (ValueError, RecursionError) as error:
        raise DecodeError(
            f"{where} is not JSON of a sample: {error}; it begins with {data[:40]!r}"
        ) from error
    return sample
