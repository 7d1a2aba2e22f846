"""Parts of samples, tars and the files of other formats that are hostile."""

from __future__ import annotations

import gzip
import io
import json
import os
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image

from energize import prepare
from energize.core.failures import Failed
from energize.core.trace import ReadContext
from energize.data.jsonl import JsonlSource
from energize.data.mds import MdsSource, unpacked
from energize.data.webdataset import WebdatasetSource
from energize.task.decode import SampleDecoder
from tests.support.mds import COMPRESS

M = 1_000_000


def _npy(shape: str, dtype: str = "<f8") -> bytes:
    header = (
        f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    )
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header


def _npz(files: int, size: int, claimed: int | None = None) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as packed:
        for i in range(files):
            packed.writestr(f"{i}.npy", bytes(size))
    data = buffer.getvalue()
    if claimed is not None:  # in the archive's list of files
        at = data.rindex(b"PK\x01\x02") + 24
        data = data[:at] + struct.pack("<I", claimed) + data[at + 4 :]
    return data


def _image(kind: str, side: int) -> bytes:
    buffer = io.BytesIO()
    PIL.Image.new("1", (side, side)).save(buffer, kind)
    return buffer.getvalue()


def _png_with(*chunks: tuple[bytes, bytes]) -> bytes:
    plain = _image("PNG", 8)
    made = [
        struct.pack(">I", len(data))
        + kind
        + data
        + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    ]
    return plain[:33] + b"".join(made) + plain[33:]


def _jpeg(side: int) -> bytes:
    buffer = io.BytesIO()
    PIL.Image.new("RGB", (8, 8)).save(buffer, "JPEG")
    data = bytearray(buffer.getvalue())
    at = data.index(b"\xff\xc0") + 5
    data[at : at + 4] = struct.pack(">HH", side, side)
    return bytes(data)


def _scans(side: int, times: int) -> bytes:
    buffer = io.BytesIO()
    PIL.Image.new("L", (side, side)).save(buffer, "JPEG", progressive=True)
    data = buffer.getvalue()
    return data[:-2] + data[data.rindex(b"\xff\xda") : -2] * times + data[-2:]


PARTS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "200,000 levels": ("json", lambda: b"[" * 200_000),
    "a million digits": ("json", lambda: b"9" * M),
    "gzip of 1.2 GB": (
        "txt.gz",
        lambda: gzip.compress(b"")[:-4] + struct.pack("<I", 1200 * M),
    ),
    "a million members of gzip": ("txt.gz", lambda: gzip.compress(b"x") * M),
    "10 million lists": (
        "json.gz",
        lambda: gzip.compress(b"[" + b"[]," * 10 * M + b"0]", 1),
    ),
    "an archive of 300 MB that says 100": (
        "npz",
        lambda: _npz(1, 300 * M, claimed=100),
    ),
    "an archive of 20,000 files": ("npz", lambda: _npz(20_000, 0)),
    "an array of 10^12 numbers": ("npy", lambda: _npy("(1000000000000,)")),
    "an array of objects": ("npy", lambda: _npy("(1,)", "|O")),
    "an array of 1,000 axes": ("npy", lambda: _npy("(" * 1000 + ")" * 1000)),
    "PNG of 225 million pixels": ("png", lambda: _image("PNG", 15_000)),
    "PNG with 200 MB of colours": (
        "png",
        lambda: _png_with((b"iCCP", b"k\0\0" + zlib.compress(bytes(200 * M)))),
    ),
    "PNG with 1.2 GB of text": (
        "png",
        lambda: _png_with(*[(b"zTXt", b"k\0\0" + zlib.compress(bytes(60 * M)))] * 20),
    ),
    "JPEG of 25 million pixels, 200 times": ("jpg", lambda: _scans(5000, 200)),
    "JPEG of 4 billion pixels": ("jpg", lambda: _jpeg(65_000)),
}


def _part(kind: str, data: Callable[[], bytes], place: Path) -> Callable[[], Any]:
    content = data()
    return lambda: SampleDecoder().decode(f"a.{kind}", content)


def _tar(write: Callable[[io.BufferedWriter], Any], place: Path) -> Callable[[], Any]:
    folder = place / "tar"
    folder.mkdir()
    with (folder / "0.tar").open("wb") as file:
        write(file)
        file.write(bytes(1024))

    def read() -> Any:
        prepare(
            folder, split_ratios={"train": 1}, sample_type="CrudeWebdataset", workers=1
        )
        source = WebdatasetSource(folder, split_part="train")
        [sample] = source.fetch(np.zeros(1, dtype=np.int64), ReadContext())
        if isinstance(sample, Failed):
            raise sample.reason
        return sample

    return read


def _header(name: str, size: int, kind: bytes = b"0") -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def _member(file: io.BufferedWriter, name: str, data: bytes = b"x") -> None:
    file.write(_header(name, len(data)) + data + bytes(-len(data) % 512))


def _with_extension(kind: bytes, data: bytes) -> Callable[[io.BufferedWriter], Any]:
    def write(file: io.BufferedWriter) -> None:
        file.write(
            _header("././@LongLink", len(data), kind) + data + bytes(-len(data) % 512)
        )
        _member(file, "a.txt")

    return write


def _sparse(file: io.BufferedWriter) -> None:
    file.write(_header("a.txt", 10**11))
    file.seek(10**11, 1)


TARS: dict[str, Callable[[io.BufferedWriter], Any]] = {
    "a name of 15 MB": _with_extension(b"L", b"x" * 15 * M),
    "attributes of 15 MB": _with_extension(b"x", b"11 path=abc\n" * (15 * M // 12)),
    "attributes with 5,000 digits": _with_extension(b"x", b"9" * 5000 + b" a=b\n"),
    "a file of 100 GB": _sparse,
    "20,000 parts": lambda file: [_member(file, f"a.{i}") for i in range(20_000)],
    "a name that leads out": lambda file: _member(file, "../../a.txt"),
    "a part that is a key": lambda file: _member(file, "a.__key__"),
}


def _mds(change: Callable[[dict[str, Any], dict[str, Any]], Any], place: Path) -> Any:
    entry: dict[str, Any] = {
        "format": "mds",
        "version": 2,
        "samples": 2,
        "column_names": ["a"],
        "column_encodings": ["str"],
        "column_sizes": [None],
        "compression": None,
        "raw_data": {"basename": "a.mds", "bytes": 100, "hashes": {}},
        "zip_data": None,
    }
    index = {"version": 2, "shards": [entry]}
    change(index, entry)
    (place / "a.mds").write_bytes(bytes(100))
    (place / "index.json").write_text(json.dumps(index))
    return lambda: list(MdsSource(place))


def _set(**values: Any) -> Callable[[dict[str, Any], dict[str, Any]], Any]:
    return lambda index, entry: entry.update(values)


def _raw(**values: Any) -> Callable[[dict[str, Any], dict[str, Any]], Any]:
    return lambda index, entry: entry["raw_data"].update(values)


MDS: dict[str, Callable[[dict[str, Any], dict[str, Any]], Any]] = {
    "10^30 samples": _set(samples=10**30),
    "a file above": _raw(basename="../a.mds"),
    "a file by its path": _raw(basename="/etc/passwd"),
    "pickles": _set(column_encodings=["pkl"]),
    "an encoding of a million letters": _set(column_encodings=["x" * M]),
    "an array with 5,000 digits": _set(
        column_encodings=["ndarray:uint8:" + "9" * 5000]
    ),
    "4 GB unpacked": lambda index, entry: entry.update(
        compression="zstd",
        zip_data=dict(entry["raw_data"]),
        raw_data={"basename": "b.mds", "bytes": 2**32, "hashes": {}},
    ),
    "2 million shards": lambda index, entry: index.update(shards=[5] * 2 * M),
}


def _jsonl(data: bytes, size: int, index: bytes, place: Path) -> Callable[[], Any]:
    file = place / "a.jsonl"
    file.write_bytes(data)
    os.truncate(file, size)
    (place / "a.jsonl.idx").write_bytes(index)
    return lambda: list(JsonlSource(file))


JSONL: dict[str, tuple[bytes, int, bytes]] = {
    "a line of 10^12 bytes": (b"{", 10**12, struct.pack("<2Q", 0, 10**12)),
    "an offset of 2^64 - 1": (b'{"a":1}\n', 8, struct.pack("<3Q", 0, 2**64 - 1, 8)),
}


def _bomb(kind: str, place: Path) -> Callable[[], Any]:
    """128 MiB, of which an index says that they are a thousand bytes."""
    packed = COMPRESS[kind](bytes(2**27))
    unpacked(b"\0", "snappy", 0, "")  # so that what it imports is here
    return lambda: unpacked(packed, kind, 1000, "bomb")


CASES = (
    {
        f"part: {name}": partial(_part, kind, data)
        for name, (kind, data) in PARTS.items()
    }
    | {f"tar: {name}": partial(_tar, write) for name, write in TARS.items()}
    | {f"MDS: {name}": partial(_mds, change) for name, change in MDS.items()}
    | {f"MDS: 128 MiB of {kind}": partial(_bomb, kind) for kind in COMPRESS}
    | {f"JSON lines: {name}": partial(_jsonl, *given) for name, given in JSONL.items()}
)
