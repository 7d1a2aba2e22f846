"""Parts that are not images, from bytes."""

from __future__ import annotations

import gzip
import io
import math
import zipfile
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from energize.limits import limit, over_limit
from energize.storage.bounded import load_json


def _text(data: bytes) -> str:
    return data.decode("utf-8")


def decode_json(data: bytes) -> Any:
    """The value that JSON in UTF-8, UTF-16 or UTF-32 stands for."""
    return load_json(data)


def unpacked_gzip(data: bytes) -> bytes:
    """What gzip packed; ValueError where that is more than a part may have."""
    most = limit("PART_BYTES")
    size = int.from_bytes(data[-4:], "little")  # what gzip itself wrote, of its last 4 GiB
    if size > most:
        raise ValueError(over_limit("PART_BYTES", size))
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
        found = file.read(most + 1)
    if len(found) > most:
        raise ValueError(over_limit("PART_BYTES"))
    return found


def _array(data: bytes) -> np.ndarray[Any, Any]:
    stream = io.BytesIO(data)
    version = np.lib.format.read_magic(stream)
    read_header = _HEADERS.get(version)
    if read_header is None:
        raise ValueError(f"format version {version} of .npy files is not known")
    shape, _, dtype = read_header(stream)
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are pickled; nothing is ever unpickled")
    # The array is made before its bytes are read, so what the header says is compared with them.
    promised, there = math.prod(shape) * dtype.itemsize, len(data) - stream.tell()
    if promised != there:
        raise ValueError(f"the header says {promised} bytes of values, and there are {there}")
    stream.seek(0)
    return np.lib.format.read_array(stream, allow_pickle=False)


def _arrays(data: bytes) -> dict[str, np.ndarray[Any, Any]]:
    with zipfile.ZipFile(io.BytesIO(data)) as packed:
        files = packed.infolist()
        size = sum(each.file_size for each in files)
        if size > limit("PART_BYTES"):
            raise ValueError(over_limit("PART_BYTES", size))
        if len(files) > limit("PARTS"):
            raise ValueError(f"{len(files)} arrays: {over_limit('PARTS')}")
        return {each.filename.removesuffix(".npy"): _array(_file(packed, each)) for each in files}


def _file(packed: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    """A file of an archive; no more is unpacked than it says that it has."""
    with packed.open(info) as file:
        return file.read(info.file_size)


_HEADERS: dict[tuple[int, int], Callable[..., Any]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


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
