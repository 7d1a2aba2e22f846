"""Folders of MDS shards, written by the format's description."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import zstandard
from PIL import Image

from tests.support.mds_samples import SCALARS


def _image(kind: str) -> Callable[[Image.Image], bytes]:
    def encode(image: Image.Image) -> bytes:
        buffer = io.BytesIO()
        image.save(buffer, kind)
        return buffer.getvalue()

    return encode


def _pil(image: Image.Image) -> bytes:
    mode = image.mode.encode()
    return np.array([*image.size, len(mode)], "<u4").tobytes() + mode + image.tobytes()


def _array(array: np.ndarray) -> bytes:
    code = array.dtype.itemsize * 8 + {"u": 0, "i": 1, "f": 2}[array.dtype.kind]
    width = next(w for w in range(4) if max(array.shape) < 2 ** (8 * 2**w))
    head = bytes([code, array.ndim * 4 + width])
    return head + np.array(array.shape, f"<u{2**width}").tobytes() + array.tobytes()


def _scalar(name: str) -> Callable[[Any], bytes]:
    return lambda value: np.dtype(name).type(value).tobytes()


ENCODERS: Mapping[str, Callable[[Any], bytes]] = {
    "int": lambda value: np.int64(value).tobytes(),
    "str": str.encode,
    "bytes": bytes,
    "json": lambda value: json.dumps(value).encode(),
    "ndarray": _array,
    "ndarray:float32": lambda array: _array(array)[1:],
    "ndarray:int16:2,3": np.ndarray.tobytes,
    **{name: _scalar(name) for name in SCALARS},
    "str_int": lambda value: str(value).encode(),
    "str_float": lambda value: str(value).encode(),
    "str_decimal": lambda value: str(value).encode(),
    "jpeg": _image("JPEG"),
    "png": _image("PNG"),
    "pil": _pil,
    "pkl": bytes,
}
FIXED = {name: np.dtype(name).itemsize for name in SCALARS} | {"int": 8, "ndarray:int16:2,3": 12}


def write_mds(
    folder: Path,
    samples: Sequence[Mapping[str, Any]],
    columns: Mapping[str, str],
    *,
    per_shard: int = 10,
    zstd: bool = False,
) -> Path:
    """Write samples whose columns have the encodings `columns`."""
    folder.mkdir(parents=True)
    names = sorted(columns)
    header = {
        "column_encodings": [columns[name] for name in names],
        "column_names": names,
        "column_sizes": [FIXED.get(columns[name]) for name in names],
        "compression": "zstd" if zstd else None,
        "format": "mds",
        "hashes": [],
        "size_limit": None,
        "version": 2,
    }
    shards = []
    for number, first in enumerate(range(0, len(samples), per_shard)):
        some = samples[first : first + per_shard]
        data = _shard([_encoded(each, names, columns) for each in some], json.dumps(header))
        name = f"shard.{number:05d}.mds"
        raw = {"basename": name, "bytes": len(data), "hashes": {}}
        packed = None
        if zstd:
            compressed = zstandard.compress(data)
            packed = {"basename": f"{name}.zstd", "bytes": len(compressed), "hashes": {}}
            (folder / f"{name}.zstd").write_bytes(compressed)
        else:
            (folder / name).write_bytes(data)
        shards.append(header | {"raw_data": raw, "samples": len(some), "zip_data": packed})
    (folder / "index.json").write_text(json.dumps({"shards": shards, "version": 2}))
    return folder


def _encoded(each: Mapping[str, Any], names: Sequence[str], columns: Mapping[str, str]) -> bytes:
    parts = [ENCODERS[columns[name]](each[name]) for name in names]
    sizes = [
        len(part) for name, part in zip(names, parts, strict=True) if columns[name] not in FIXED
    ]
    return np.array(sizes, "<u4").tobytes() + b"".join(parts)


def _shard(samples: Sequence[bytes], header: str) -> bytes:
    start = 4 * (len(samples) + 2) + len(header)
    offsets = start + np.cumsum([0, *map(len, samples)])
    count = np.array([len(samples)], "<u4").tobytes()
    return count + offsets.astype("<u4").tobytes() + header.encode() + b"".join(samples)


def numbered_mds(folder: Path, count: int, start: int = 0, **options: Any) -> Path:
    """`count` samples {"number": start + i, "text": ...}."""
    samples = [{"number": start + i, "text": f"sample {start + i}"} for i in range(count)]
    return write_mds(folder, samples, {"number": "int", "text": "str"}, **options)
