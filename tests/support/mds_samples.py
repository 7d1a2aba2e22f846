"""Samples with a column of every MDS encoding; usable by other interpreters too."""

from __future__ import annotations

import io
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import numpy as np
from PIL import Image

SCALARS = [
    *(f"{sign}int{bits}" for bits in (8, 16, 32, 64) for sign in ("", "u")),
    *(f"float{bits}" for bits in (16, 32, 64)),
]
ENCODINGS = [
    "int",
    "str",
    "bytes",
    "json",
    "ndarray",
    "ndarray:float32",
    "ndarray:int16:2,3",
    *SCALARS,
    "str_int",
    "str_float",
    "str_decimal",
    "jpeg",
    "png",
    "pil",
    "jpeg_array",
    "list[jpeg]",
    "list[png]",
    "list[pil]",
]
COLUMNS = {f"column_{i:02d}": encoding for i, encoding in enumerate(ENCODINGS)}


def sample(number: int) -> dict[str, Any]:
    """A sample with a column of every encoding; `number` tells it from others."""
    rng = np.random.default_rng(number)
    pixels = rng.integers(0, 255, (8 + number % 3, 9, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    values = {
        "int": number - 5,
        "str": f"säm {number}",
        "bytes": bytes([number % 256]) * (number % 7),
        "json": {"x": [number, None]},
        "ndarray": rng.random((2, 300 if number % 2 else 3)),
        "ndarray:float32": rng.random(4, dtype=np.float32),
        "ndarray:int16:2,3": rng.integers(-9, 9, (2, 3)).astype(np.int16),
        **{f"uint{bits}": 2**bits - 1 - number for bits in (8, 16, 32, 64)},
        **{f"int{bits}": -(2 ** (bits - 1)) + number for bits in (8, 16, 32, 64)},
        **{f"float{bits}": number / 7 for bits in (16, 32, 64)},
        "str_int": 10**30 + number,
        "str_float": number / 3,
        "str_decimal": Decimal(f"{number}.125"),
        "jpeg": image,
        "png": image,
        "pil": image,
        "jpeg_array": [_jpeg(image), _jpeg(image.rotate(90))],
        "list[jpeg]": [image] * (number % 3),
        "list[png]": [image, image.rotate(180)],
        "list[pil]": [image, image.convert("L")],
    }
    return {name: values[encoding] for name, encoding in COLUMNS.items()}


def expected(number: int) -> dict[str, Any]:
    """What reading gives for `sample(number)`: JPEG loses a little, numbers have the
    dtype."""
    known = sample(number)
    for column, encoding in COLUMNS.items():
        if encoding == "jpeg":
            known[column] = _opened(_jpeg(known[column]))
        elif encoding == "list[jpeg]":
            known[column] = [_opened(_jpeg(each)) for each in known[column]]
        elif encoding == "jpeg_array":
            known[column] = [_opened(each) for each in known[column]]
        elif encoding in SCALARS:
            known[column] = np.dtype(encoding).type(known[column])
    return known


def _jpeg(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG")
    return buffer.getvalue()


def _opened(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))


def shown(sample: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Columns as text, in the order of their names: equal texts mean equal types and
    values."""
    return [(name, _shown(sample[name])) for name in sorted(sample)]


def _shown(value: Any) -> str:
    if isinstance(value, Image.Image):
        return f"image {value.mode} {value.size} {value.tobytes().hex()}"
    if isinstance(value, list):
        return str([_shown(each) for each in value])
    if isinstance(value, np.ndarray):
        return f"array {value.dtype} {value.shape} {value.tobytes().hex()}"
    return f"{type(value).__name__} {value!r}"
