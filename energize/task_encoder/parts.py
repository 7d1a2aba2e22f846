"""Parts that are not images, from bytes."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np


def _text(data: bytes) -> str:
    return data.decode("utf-8")


def decode_json(data: bytes) -> Any:
    """The value that JSON in UTF-8, UTF-16 or UTF-32 stands for."""
    return json.loads(data)


def _array(data: bytes) -> np.ndarray[Any, Any]:
    return np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)


def _arrays(data: bytes) -> dict[str, np.ndarray[Any, Any]]:
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        return dict(arrays)


def _of_all(extensions: str, decode: Callable[[bytes], Any]) -> dict[str, Callable[[bytes], Any]]:
    return dict.fromkeys(extensions.split(), decode)


PART_DECODERS: Mapping[str, Callable[[bytes], Any]] = MappingProxyType(
    _of_all("txt text transcript", _text)
    | _of_all("json jsn", decode_json)
    | _of_all("cls cls2 class index inx id count", int)
    | _of_all("npy", _array)
    | _of_all("npz", _arrays)
)
"""How each part is decoded. What is not here, pickles first of all, stays bytes."""
