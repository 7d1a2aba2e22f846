"""Limits on data that is parsed from untrusted files.

Exceeding a limit raises an error that names the limit, before memory is allocated. Set
limits before datasets are created; with spawned workers, at the top of the script:

>>> from energize.core import limits
>>> limits.DECODED_BYTES *= 4
>>> limits.DECODED_BYTES //= 4
"""

from __future__ import annotations

import threading
from contextlib import ContextDecorator

import numpy as np

from energize.errors import DecodeError

_MIB = 1024 * 1024

# Bytes of a file that people write: a metadataset, a stage file, `split.yaml`,
# `dataset.yaml`.
YAML_BYTES = 16 * _MIB

# Values in a file of YAML, with aliases written out; datasets that a metadataset reads,
# with all that it includes.
YAML_VALUES = 60_000

# Letters of a text, a number or a key in YAML, and of a pattern of names.
LETTERS = 10_000

# Bytes of a stage file of TOML.
TOML_BYTES = _MIB // 4

# Bytes of a file of JSON that programs write, and of a part of a saved state.
JSON_BYTES = 32 * _MIB

# Values in a file of JSON that programs write, and in a part of a saved state.
JSON_VALUES = 1_000_000

# Lists and mappings in one another, metadatasets, and braces in patterns of names.
LEVELS = 100

# Entries of a blend, a concat, a join or a list of stages.
ENTRIES = 10_000

# Names that the braces in one list of shards stand for.
NAMES = 200_000

# Bytes of an extension header of a tar, which holds a long name.
HEADER_BYTES = 64 * 1024

# Bytes of a stored sample, or of a line of JSON.
SAMPLE_BYTES = 2048 * _MIB

# Parts of a sample, and arrays in an `.npz`.
PARTS = 10_000

# Bytes that a sample takes when all of it is unpacked and decoded, a group of rows of
# Parquet, an unpacked shard.
DECODED_BYTES = 1024 * _MIB

# Bytes of the tensors that a batch is made of, padded as they are.
BATCH_BYTES = 8 * 1024 * _MIB

# Samples of a batch, a global batch or a group.
BATCH_ITEMS = 1_000_000

# Rows that an `index.sqlite` has for one name.
ROWS = 10_000

# Steps of SQLite for each byte of an `index.sqlite`, and of 100,000 bytes more, in one
# look-up.
STEPS = 100

# Bytes of a value in an `index.sqlite`.
CELL_BYTES = 64 * _MIB

# Names in a listed folder of a store of objects, or below it.
OBJECTS = 1_000_000

# Processes that a loader or a command starts, for each core of the machine.
PROCESSES = 16

_COMPLAINTS = {
    "YAML_BYTES": "the file is too large, in bytes",
    "YAML_VALUES": "it has too many values when aliases are written out",
    "LETTERS": "a text has too many letters",
    "TOML_BYTES": "the file is too large, in bytes",
    "JSON_BYTES": "it is too large",
    "JSON_VALUES": "it has too many values",
    "LEVELS": "lists and mappings are nested too deeply",
    "ENTRIES": "the list has too many entries",
    "NAMES": "braces stand for too many names",
    "HEADER_BYTES": "an extension header of a tar has too many bytes",
    "SAMPLE_BYTES": "a sample has too many bytes",
    "PARTS": "a sample has too many parts",
    "DECODED_BYTES": "it is too large when it is decoded, in bytes",
    "BATCH_BYTES": "a batch has too many bytes, padded",
    "BATCH_ITEMS": "a batch has too many items",
    "ROWS": "the database has too many rows for one name",
    "OBJECTS": "this folder has too many names",
    "PROCESSES": "too many processes for a core",
    "STEPS": (
        "its contents take far more work than its size suggests, in steps per byte"
    ),
    "CELL_BYTES": "a value in the database has too many bytes",
}


def over(name: str, actual: int | None = None) -> str:
    """Return the message for a value above a limit, and how to raise the limit.

    >>> over("LEVELS")
    'lists and mappings are nested too deeply, more than 100. To allow more, set \
energize.core.limits.LEVELS'
    """
    seen = "" if actual is None else f", {actual}"
    return (
        f"{_COMPLAINTS[name]}{seen}, more than {globals()[name]}. To allow more, set "
        f"{__name__}.{name}"
    )


class _Budget(threading.local, ContextDecorator):
    """A block, or a function, in which all sizes add up, as for one sample or batch.

    Nested blocks belong to the outer one. Outside of blocks, each size counts alone.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.blocks: list[int] = []
        """Blocks that this thread is in; the first one has what was counted in all of
        them."""

    def __enter__(self) -> None:
        self.blocks.append(0)

    def __exit__(self, *failed: object) -> None:
        self.blocks.pop()

    def spend(self, size: int, counted: int = 0) -> int:
        """Count the bytes of a value before it is created, or as it grows.

        Time is counted in bytes as well, and not measured, so a failure is the same on
        every machine.

        Args:
            size: Number of bytes.
            counted: Number of bytes of the value that were counted before.

        Returns:
            The counted size of the value.

        Raises:
            DecodeError: If the total is above the limit.
        """
        total = (self.blocks[0] if self.blocks else 0) + max(size - counted, 0)
        if total > globals()[self.name]:
            raise DecodeError(over(self.name, total))
        if self.blocks:
            self.blocks[0] = total
        return max(size, counted)


decoding = _Budget("DECODED_BYTES")
batching = _Budget("BATCH_BYTES")


def spend_pixels(count: int, pixel: int, data: bytes) -> None:
    """Count the pixels of an image before it is decoded. A JPEG may go over all of them
    again and again, in scans of few bytes, which takes the time for about half a byte
    each.
    """
    scans = 0
    if data.startswith(b"\xff\xd8"):
        # Twice as fast as bytes.count.
        values = np.frombuffer(data, dtype=np.uint8)
        scans = int(np.count_nonzero((values[:-1] == 0xFF) & (values[1:] == 0xDA)))
    decoding.spend(count * (pixel + scans // 2))
