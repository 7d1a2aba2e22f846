"""Files of MDS shards that are compressed, and the hashes that the index has of files."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from energize.errors import ConfigError, ShardError
from energize.optional import optional_module
from energize.storage.files import LocalFile

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
