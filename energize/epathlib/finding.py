"""Making paths plain, and finding files."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from energize.errors import ConfigError

_MAGIC = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True, kw_only=True)
class PathInfo:
    """What a store says of a file: its size in bytes, and when it was last changed if it knows."""

    key: str
    type: Literal["file", "directory"]
    content_length: int
    last_modified: datetime | None = None


def info_of(found: Mapping[str, Any]) -> PathInfo:
    """What a file system of fsspec says of a file, in one form."""
    changed = found.get("LastModified") or found.get("last_modified") or found.get("mtime")
    if isinstance(changed, int | float):
        changed = datetime.fromtimestamp(changed, UTC)
    return PathInfo(
        key=str(found["name"]),
        type="directory" if found["type"] == "directory" else "file",
        content_length=int(found.get("size") or 0),
        last_modified=changed if isinstance(changed, datetime) else None,
    )


def resolved(path: str, shown: str) -> PurePosixPath:
    """The absolute path without `.` and `..`; `ConfigError` for `shown` when it leaves the root.

    >>> str(resolved("a/./b/../c", "a path"))
    '/a/c'
    """
    parts: list[str] = []
    for part in PurePosixPath("/" + path.lstrip("/")).parts[1:]:
        if part == ".." and not parts:
            raise ConfigError(f"{shown} leads above the root of its store")
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return PurePosixPath("/", *parts)


def split_pattern(pattern: str) -> tuple[str, str]:
    """The folders that a pattern begins with, and the rest from the first with a wildcard on.

    >>> split_pattern("parts/2024/**/*.tar")
    ('parts/2024', '**/*.tar')
    """
    parts = pattern.split("/")
    first = next((i for i, part in enumerate(parts) if _MAGIC.search(part)), len(parts))
    return "/".join(parts[:first]), "/".join(parts[first:])


def _refused(error: OSError) -> None:
    """A folder that cannot be listed is not an empty one; one that is not there has no files."""
    if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG):
        raise error


def files_below(root: Path, depth: int | None) -> Iterator[str]:
    """Local files up to `depth` levels below `root`, relative to it.

    Links to folders are followed; a folder that was met before is not entered again.
    """
    seen: set[str] = set()
    for folder, folders, files in os.walk(root, onerror=_refused, followlinks=True):
        inside = Path(folder).relative_to(root)
        real = os.path.realpath(folder)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        if depth is not None and len(inside.parts) + 1 >= depth:
            folders.clear()
        folders.sort()
        yield from (str(inside / name) for name in files)
