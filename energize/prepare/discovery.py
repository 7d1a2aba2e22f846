"""Finding the shards of a folder."""

from __future__ import annotations

import glob
import re
from pathlib import Path, PurePosixPath

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
    compressed = [name for name in names if name.endswith(_COMPRESSED)]
    if compressed:
        raise PrepareError(
            f"{path / compressed[0]} is compressed{_others(compressed)}; single samples cannot be "
            "read out of it. Decompress it (gunzip, unzstd, ...; images are compressed already), "
            "or leave it out with --exclude"
        )
    if not names:
        excluded = f" but those that {exclude!r} excludes" if exclude else ""
        raise PrepareError(
            f"{path} has no *.tar files in it{excluded}. Samples are stored in tar shards, which "
            "energize.write_shards, webdataset.ShardWriter or the tar command write"
        )
    return names


def _compiled(exclude: str | None) -> re.Pattern[str] | None:
    if exclude is None:
        return None
    try:
        return re.compile(exclude)
    except re.error as reason:
        raise ConfigError(f"exclude={exclude!r} is not a regular expression: {reason}") from reason


def _others(names: list[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""
