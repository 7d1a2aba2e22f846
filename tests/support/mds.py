"""Folders of MDS shards, written by the format's description."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import cramjam
import numpy as np
import xxhash
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


def _several(values: Iterable[bytes]) -> bytes:
    parts = list(values)
    return np.array([0, len(parts), *map(len, parts)], "<u4").tobytes() + b"".join(
        parts
    )


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
    "jpeg_array": lambda files: _several(files)[4:],
    "jpegarray": lambda files: _several(files)[4:],
    "list[jpeg]": lambda images: _several(map(ENCODERS["jpeg"], images)),
    "list[png]": lambda images: _several(map(ENCODERS["png"], images)),
    "list[pil]": lambda images: _several(map(_pil, images)),
    "pkl": bytes,
}
FIXED = {name: np.dtype(name).itemsize for name in SCALARS} | {
    "int": 8,
    "ndarray:int16:2,3": 12,
}


COMPRESS: Mapping[str | None, Callable[[bytes], bytes]] = {
    "br": lambda data: bytes(cramjam.brotli.compress(data, level=1)),
    "bz2": lambda data: bytes(cramjam.bzip2.compress(data)),
    "gz": lambda data: bytes(cramjam.gzip.compress(data)),
    "snappy": lambda data: bytes(cramjam.snappy.compress_raw(data)),
    "zstd": lambda data: bytes(cramjam.zstd.compress(data)),
}
"""How files are compressed, by what an index calls it."""


def write_mds(
    folder: Path,
    samples: Sequence[Mapping[str, Any]],
    columns: Mapping[str, str],
    *,
    per_shard: int = 10,
    compression: str | None = None,
    hashes: Sequence[str] = (),
) -> Path:
    """Write samples whose columns have the encodings `columns`."""
    names = sorted(columns)
    header = {
        "column_encodings": [columns[name] for name in names],
        "column_names": names,
        "column_sizes": [FIXED.get(columns[name]) for name in names],
        "compression": compression,
        "format": "mds",
        "hashes": list(hashes),
        "size_limit": None,
        "version": 2,
    }

    def shard(some: Sequence[Mapping[str, Any]]) -> dict[str, bytes]:
        parts = [_encoded(each, names, columns) for each in some]
        start = 4 * (len(parts) + 2) + len(json.dumps(header))
        return {"data": _offsets(parts, start, header) + b"".join(parts)}

    return _write(folder, samples, per_shard, header, "mds", shard)


def write_rows(
    folder: Path,
    samples: Sequence[Mapping[str, Any]],
    columns: Mapping[str, str],
    kind: str,
    *,
    separator: str = ",",
    newline: str = "\n",
    per_shard: int = 10,
    compression: str | None = None,
    hashes: Sequence[str] = (),
) -> Path:
    """Write samples as a JSON, CSV, TSV or XSV folder."""
    names = sorted(columns)
    between = {"csv": ",", "tsv": "\t"}.get(kind, separator)
    header: dict[str, Any] = {
        "compression": compression,
        "format": kind,
        "hashes": list(hashes),
        "newline": newline,
        "size_limit": None,
        "version": 2,
    }
    if kind == "json":
        header["columns"] = dict(columns)
    else:
        header["column_names"] = names
        header["column_encodings"] = [columns[name] for name in names]
    if kind == "xsv":
        header["separator"] = between

    def shard(some: Sequence[Mapping[str, Any]]) -> dict[str, bytes]:
        if kind == "json":
            title = b""
            parts = [(json.dumps(dict(each)) + newline).encode() for each in some]
        else:
            title = (between.join(names) + newline).encode()
            rows = [between.join(str(each[name]) for name in names) for each in some]
            parts = [(row + newline).encode() for row in rows]
        return {
            "data": title + b"".join(parts),
            "meta": _offsets(parts, len(title), header),
        }

    return _write(folder, samples, per_shard, header, kind, shard)


def _write(
    folder: Path,
    samples: Sequence[Mapping[str, Any]],
    per_shard: int,
    header: Mapping[str, Any],
    kind: str,
    shard: Callable[[Sequence[Mapping[str, Any]]], dict[str, bytes]],
) -> Path:
    folder.mkdir(parents=True)
    compression = header["compression"]
    shards = []
    for number, first in enumerate(range(0, len(samples), per_shard)):
        some = samples[first : first + per_shard]
        entry: dict[str, Any] = dict(header) | {"samples": len(some)}
        for part, raw in shard(some).items():
            name, data = (
                f"shard.{number:05d}.{kind}" + (".meta" if part == "meta" else ""),
                raw,
            )
            entry[f"raw_{part}"] = _listed(name, raw, header)
            entry[f"zip_{part}"] = None
            if compression:
                data = COMPRESS[compression.partition(":")[0]](raw)
                name = f"{name}.{compression.partition(':')[0]}"
                entry[f"zip_{part}"] = _listed(name, data, header)
            (folder / name).write_bytes(data)
        shards.append(entry)
    (folder / "index.json").write_text(json.dumps({"shards": shards, "version": 2}))
    return folder


def _listed(name: str, data: bytes, header: Mapping[str, Any]) -> dict[str, Any]:
    hashes = {
        each: (
            xxhash.xxh64(data) if each == "xxh64" else hashlib.new(each, data)
        ).hexdigest()
        for each in header["hashes"]
    }
    return {"basename": name, "bytes": len(data), "hashes": hashes}


def merge_indices(folder: Path, parts: Sequence[str]) -> Path:
    """One index of the folders in `folder`, as the package's `merge_index` writes
    it."""
    shards = []
    for part in parts:
        for shard in json.loads((folder / part / "index.json").read_text())["shards"]:
            for name in ("raw_data", "zip_data", "raw_meta", "zip_meta"):
                if shard.get(name):
                    shard[name]["basename"] = f"{part}/{shard[name]['basename']}"
            shards.append(shard)
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": shards}))
    return folder


def _encoded(
    each: Mapping[str, Any], names: Sequence[str], columns: Mapping[str, str]
) -> bytes:
    parts = [ENCODERS[columns[name]](each[name]) for name in names]
    sizes = [
        len(part)
        for name, part in zip(names, parts, strict=True)
        if columns[name] not in FIXED
    ]
    return np.array(sizes, "<u4").tobytes() + b"".join(parts)


def _offsets(samples: Sequence[bytes], start: int, header: Mapping[str, Any]) -> bytes:
    """The count of the samples, their offsets and a copy of the index."""
    offsets = (start + np.cumsum([0, *map(len, samples)])).astype("<u4")
    count = np.array([len(samples)], "<u4").tobytes()
    return count + offsets.tobytes() + json.dumps(header).encode()


def numbered_mds(folder: Path, count: int, start: int = 0, **options: Any) -> Path:
    """`count` samples {"number": start + i, "text": ...}."""
    samples = [
        {"number": start + i, "text": f"sample {start + i}"} for i in range(count)
    ]
    return write_mds(folder, samples, {"number": "int", "text": "str"}, **options)
