"""How much is read of files that nobody has looked at: limits with defaults, raised by name."""

from __future__ import annotations

import os
from typing import NamedTuple

from energize.errors import ConfigError

__all__ = ["LIMITS", "Limit", "limit", "over_limit"]

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
    "META_BYTES": Limit(256 * MIB, "the file is too large"),
    "LEVELS": Limit(100, "lists and mappings are nested too deeply"),
    "VALUES": Limit(200_000, _VALUES),
    "META_VALUES": Limit(1_000_000, _VALUES),
    "PART_BYTES": Limit(1024 * MIB, "it is too large when it is unpacked, in bytes"),
    "PIXELS": Limit(100_000_000, "the image has too many pixels"),
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
