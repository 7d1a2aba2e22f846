"""The columns of MDS shards, from bytes. Encodings are named as in the index of a folder.

Format: the Mosaic Data Shard format, version 2, of MosaicML Streaming.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import partial
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import PIL.Image

from energize.errors import DatasetError, nearest
from energize.storage.bounded import load_json

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
