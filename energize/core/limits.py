"""How much is read of files that nobody has looked at: limits with defaults, raised by name."""

from __future__ import annotations

import os
from typing import NamedTuple

from energize.errors import ConfigError

MIB = 1024 * 1024


class Limit(NamedTuple):
    """The most there may be of something, unless the environment says otherwise; and what is said
    where there is more.
    """

    default: int
    complaint: str


_VALUES = "there are too many values when aliases are written out"

LIMITS = {
    "TEXT_BYTES": Limit(16 * MIB, "the file is too large"),
    "TOML_BYTES": Limit(MIB // 4, "the file is too large"),
    "META_BYTES": Limit(32 * MIB, "the file is too large"),
    "STATE_BYTES": Limit(32 * MIB, "it is larger than any state, in characters"),
    "STATE_VALUES": Limit(1_000_000, "there are more values than in any state"),
    "LEVELS": Limit(100, "lists and mappings are nested too deeply"),
    "VALUES": Limit(60_000, _VALUES),
    "META_VALUES": Limit(500_000, "there are too many values"),
    "INDEX_VALUES": Limit(2_000_000, "there are too many values"),
    "LETTERS": Limit(10_000, "a text has too many letters"),
    "DIGITS": Limit(1000, "a number has too many digits"),
    "ENTRIES": Limit(10_000, "the list has too many entries"),
    "NAMES": Limit(200_000, "braces stand for too many names"),
    "SAMPLE_BYTES": Limit(2048 * MIB, "a sample has too many bytes"),
    "ROWS": Limit(10_000, "the database has too many rows for one name"),
    "CELL_BYTES": Limit(64 * MIB, "a value in the database has too many bytes"),
    "PARTS": Limit(10_000, "a sample has too many parts"),
    "HEADER_BYTES": Limit(MIB, "an extension header of a tar has too many bytes"),
    "PART_BYTES": Limit(256 * MIB, "it is too large when it is unpacked, in bytes"),
    "READ_TRIES": Limit(5, "the disk failed again and again"),
    "PIXELS": Limit(100_000_000, "the image has too many pixels"),
    "BATCH_ITEMS": Limit(1_000_000, "a batch has too many items"),
}
"""What is limited: in files that people write (metadatasets), and META, files that programs write
(`.nv-meta`); in parts of samples. `ENERGIZE_LIMIT_TEXT_BYTES=100000000` in the environment raises
one, in workers too."""

_PREFIX = "ENERGIZE_LIMIT_"


def limit(name: str) -> int:
    """The limit of this name; `ConfigError` where the environment has no whole number for it.

    >>> limit("LEVELS")
    100
    """
    given = os.environ.get(_PREFIX + name)
    if given is None:
        return LIMITS[name].default
    if not given.isdigit() or not int(given):
        raise ConfigError(
            f"{_PREFIX}{name} in the environment is a whole number, 1 or more; got {given!r}"
        )
    return int(given)


def over_limit(name: str, found: int | None = None) -> str:
    """That there is more than the limit allows, and how to raise it, for messages.

    >>> over_limit("LEVELS")
    'lists and mappings are nested too deeply, more than 100; to raise that, set \
ENERGIZE_LIMIT_LEVELS in the environment'
    """
    seen = "" if found is None else f", {found}"
    return (
        f"{LIMITS[name].complaint}{seen}, more than {limit(name)}; to raise that, set "
        f"{_PREFIX}{name} in the environment"
    )
