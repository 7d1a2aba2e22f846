"""Finding the shards of a folder."""

from __future__ import annotations

import glob
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from braceexpand import braceexpand

from energize.errors import ConfigError, DatasetNotFoundError, PrepareError

_COMPRESSED = (".tgz", ".tbz2", ".txz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst", ".tar.lz4")


def find_shards(path: Path, exclude: str | None = None) -> list[str]:
    """The names, relative to `path`, of all tar files below it, in the order Energon gives them.

    That order compares folder by folder, as text: `d10.tar` stands before `d2.tar`. Hidden files
    and folders are passed over, links to folders are followed. `exclude` is a regular expression;
    names in which it is found anywhere are left out.

    Raises `DatasetNotFoundError` when `path` is no folder, `PrepareError` when there are no shards
    or when some are compressed, `ConfigError` when `exclude` is no regular expression.
    """
    if not path.exists():
        raise DatasetNotFoundError(f"{path} does not exist")
    if not path.is_dir():
        raise PrepareError(f"{path} is a file; give the folder that holds the tar shards")
    left_out = _compiled(exclude)
    names = [
        name
        for pattern in (".tar", *_COMPRESSED)
        for name in glob.glob(f"**/*{pattern}", root_dir=path, recursive=True)
        if (path / name).is_file() and not (left_out and left_out.search(name))
    ]
    names.sort(key=PurePosixPath)
    _check_plain(path, names)
    if not names:
        excluded = f" but those that {exclude!r} excludes" if exclude else ""
        raise PrepareError(
            f"{path} has no *.tar files in it{excluded}. Samples are stored in tar shards, which "
            "energize.write_shards, webdataset.ShardWriter or the tar command write"
        )
    return names


def named_shards(path: Path, patterns: Sequence[str]) -> list[str]:
    """The shards that `patterns` name below the folder `path`, in their order.

    Patterns are names relative to `path`, with braces: `parts/data-{0..9}.tar`.

    Raises `DatasetNotFoundError` when `path` or some of the shards do not exist, `PrepareError`
    when one is named twice, compressed or not below `path`, `ConfigError` for a malformed pattern.
    """
    if not path.is_dir():
        raise DatasetNotFoundError(f"{path} does not exist, or is no folder")
    try:
        names = [str(name) for pattern in patterns for name in braceexpand(str(pattern))]
    except ValueError as reason:
        raise ConfigError(f"{list(patterns)} has a malformed brace pattern: {reason}") from reason
    twice = [name for name, count in Counter(names).items() if count > 1]
    outside = [
        name for name in names if PurePosixPath(name).is_absolute() or ".." in name.split("/")
    ]
    missing = [name for name in names if not (path / name).is_file()]
    if not names or twice or outside:
        wrong = f"{twice[0]} is named twice" if twice else "no shard is named"
        wrong = f"{outside[0]} is not below the folder" if outside else wrong
        raise PrepareError(f"{path}: of the shards {list(patterns)}, {wrong}")
    if missing:
        raise DatasetNotFoundError(
            f"{path / missing[0]} does not exist{_others(missing)}; it is named by {list(patterns)}"
        )
    _check_plain(path, names)
    return names


def _check_plain(path: Path, names: Sequence[str]) -> None:
    """Raises `PrepareError` for compressed shards."""
    compressed = [name for name in names if name.endswith(_COMPRESSED)]
    if compressed:
        raise PrepareError(
            f"{path / compressed[0]} is compressed{_others(compressed)}; single samples cannot be "
            "read out of it. Decompress it (gunzip, unzstd, ...; images are compressed already), "
            "or leave it out with --exclude"
        )


def _compiled(exclude: str | None) -> re.Pattern[str] | None:
    if exclude is None:
        return None
    try:
        return re.compile(exclude)
    except re.error as reason:
        raise ConfigError(f"exclude={exclude!r} is not a regular expression: {reason}") from reason


def _others(names: list[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""
