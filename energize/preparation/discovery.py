"""Finding the shards of a folder."""

from __future__ import annotations

import os
import re
import stat
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from energize.data.files import os_errors_as
from energize.data.nv_meta import expand, is_inside
from energize.errors import ConfigError, DatasetNotFoundError, PrepareError

_SHARDS = re.compile(r"\.(tar(\.(gz|bz2|xz|zst|lz4))?|tgz|tbz2|txz)\Z")
"""How shards are called; that some are compressed is told when they are read."""
_SHOWN = 10
_UNWRITABLE = {"Cc", "Cs", "Zl", "Zp"}
"""Control characters, bytes that are no UTF-8, and what ends lines."""


@dataclass(slots=True)
class FoundShards:
    """Names of shards, relative to their folder, and `notes` on what was passed over."""

    names: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@os_errors_as(PrepareError)
def find_shards(
    path: Path, exclude: str | None = None, *, skip_unreadable: bool = False
) -> FoundShards:
    """Return all tar files below `path`, in Energon's order: folder by folder, compared as text.

    Hidden files and folders are passed over, and names in which the regular expression `exclude` is
    found. Links to folders are followed, unless to one that was looked into already. What cannot be
    looked into (a link to nothing, a folder that may not be entered, a shard that may not be read)
    is an error, or with `skip_unreadable` a note.

    Raises `DatasetNotFoundError`, `PrepareError` for a folder without shards, and for names that no
    file of text could hold; `ConfigError` for a wrong `exclude`.
    """
    try:
        left_out = re.compile("(?!)" if exclude is None else exclude)
    except re.error as reason:
        raise ConfigError(f"exclude={exclude!r} is not a regular expression: {reason}") from reason
    if not path.exists():
        raise DatasetNotFoundError(f"{path} does not exist")
    if not path.is_dir():
        raise PrepareError(f"{path} is a file; give the folder that holds the tar shards")
    found = FoundShards()
    unreadable: dict[str, str] = {}
    for name in _files(path, found.notes, unreadable):
        shard = _SHARDS.search(name) is not None
        why = _why_unreadable(path / name) if shard or os.path.islink(path / name) else None
        if shard and not why:
            found.names.append(name)
        elif why and (shard or "." not in PurePosixPath(name).name):  # which may have been a folder
            unreadable[name if shard else f"{name}/"] = why
        elif why:
            found.notes.append(f"{name} is passed over: {why}")
    found.names = [each for each in found.names if not left_out.search(each)]
    unreadable = {name: why for name, why in unreadable.items() if not left_out.search(name)}
    _check_names(path, found.names)
    told = listed(f"{name.rstrip('/')}: {why}" for name, why in sorted(unreadable.items()))
    if told and not skip_unreadable:
        raise PrepareError(
            f"below {path}, these may be, or hold, shards and cannot be read:{told}\nMount the "
            "disk, repair the link or allow reading; or leave them out with --exclude, or all of "
            "the kind with skip_unreadable=True (--skip-unreadable)"
        )
    if told:
        found.notes.append(
            f"below {path}, {len(unreadable)} that cannot be read are left out:{told}"
        )
    if not found.names:
        excluded = f" but those that {exclude!r} excludes" if exclude else ""
        raise PrepareError(f"{path} has no *.tar files in it{excluded}; write_shards writes some")
    found.names.sort(key=PurePosixPath)
    return found


def named_shards(path: Path, patterns: Sequence[str]) -> FoundShards:
    """Return the shards that `patterns` name below `path`, with braces: `parts/data-{0..9}.tar`.

    Raises `DatasetNotFoundError`, `PrepareError` for shards that are named twice or not below
    `path`; `ConfigError` for a malformed pattern.
    """
    if not path.is_dir():
        raise DatasetNotFoundError(f"{path} does not exist, or is no folder")
    try:
        names = list(expand(map(str, patterns)))
    except ValueError as reason:
        raise ConfigError(f"{list(patterns)} has a malformed brace pattern: {reason}") from reason
    wrong = "" if names else "no shard is named"
    for name, count in Counter(names).items():
        if count > 1 or not is_inside(name):
            wrong = f"{name} is {'named twice' if count > 1 else 'not below the folder'}"
    if wrong:
        raise PrepareError(f"{path}: of the shards {list(patterns)}, {wrong}")
    _check_names(path, names)
    return FoundShards(names)


def _files(root: Path, notes: list[str], unreadable: dict[str, str]) -> Iterator[str]:
    """Yield the names of all files below a folder, hidden ones left out."""

    def cannot(reason: OSError) -> None:
        if os.path.samefile(reason.filename, root):
            raise reason
        unreadable[f"{os.path.relpath(reason.filename, root)}/"] = str(reason.strerror)

    seen: dict[tuple[int, int], str] = {}
    starts = [str(root)]
    for start in starts:  # and links, which are added: folders by their own names come first
        for folder, inner, files in os.walk(start, onerror=cannot):
            name = os.path.relpath(folder, root)
            found = os.stat(folder)
            before = seen.setdefault((found.st_dev, found.st_ino), name)
            inner[:] = sorted(each for each in inner if not each.startswith("."))
            if before != name:
                inner.clear()
                if folder == start:
                    notes.append(f"{name} is a link to {before}, and is not followed")
                continue
            paths = [os.path.join(folder, each) for each in inner]
            starts += [each for each in paths if os.path.islink(each)]
            for file in files:
                if not file.startswith("."):
                    yield os.path.normpath(os.path.join(name, file))


def _why_unreadable(path: Path) -> str:
    try:
        kind = path.stat().st_mode
    except OSError as reason:
        link = f"a link to {os.readlink(path)!r}: " if os.path.islink(path) else ""
        return f"{link}{reason.strerror}"
    if not stat.S_ISREG(kind):
        return "no regular file"
    return "" if os.access(path, os.R_OK) else "this user may not read it"


def _check_names(path: Path, names: Sequence[str]) -> None:
    """Raise `PrepareError` for names that no file of `.nv-meta` could hold."""
    bad = [
        repr(name)
        for name in names
        if not name.isprintable() and _UNWRITABLE & set(map(unicodedata.category, name))
    ]
    if bad:
        raise PrepareError(
            f"{len(bad)} shards of {path} have names that are no UTF-8, or hold control "
            f"characters:{listed(bad)}\nRename them, or leave them out with --exclude"
        )


def listed(told: Iterable[str], count: int = 0) -> str:
    """Return the first lines, indented, and how many more there are, of `count` in all."""
    lines = list(told)
    count = max(count, len(lines))
    more = [f"and {count - _SHOWN} more"] if count > _SHOWN else []
    return "".join(f"\n  {line}" for line in [*lines[:_SHOWN], *more])
