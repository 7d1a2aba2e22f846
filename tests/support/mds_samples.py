"""Samples with a column of every MDS encoding; usable by other interpreters too."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
from PIL import Image

ENCODINGS = [
    "int",
    "str",
    "bytes",
    "json",
    "ndarray",
    "ndarray:float32",
    "ndarray:int16:2,3",
    "uint8",
    "float64",
    "str_int",
    "str_float",
    "str_decimal",
    "jpeg",
    "png",
    "pil",
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
        "uint8": number % 256,
        "float64": number / 7,
        "str_int": 10**30 + number,
        "str_float": number / 3,
        "str_decimal": Decimal(f"{number}.125"),
        "jpeg": image,
        "png": image,
        "pil": image,
    }
    return {name: values[encoding] for name, encoding in COLUMNS.items()}
