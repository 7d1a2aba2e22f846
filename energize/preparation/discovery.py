"""Finding the shards of a folder."""

from __future__ import annotations

import os
import re
import stat
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from energize.data.nv_meta import expand
from energize.data.writing import os_errors_as
from energize.errors import ConfigError, DatasetNotFoundError, PrepareError

_COMPRESSED = (".tgz", ".tbz2", ".txz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst", ".tar.lz4")
_SHARDS = (".tar", *_COMPRESSED)
_SHOWN = 10
_UNWRITABLE = {"Cc", "Cs", "Zl", "Zp"}
"""Control characters, bytes that are no UTF-8, and what ends lines."""


@dataclass(slots=True)
class FoundShards:
    """The shards of a folder by their names, relative to it; `notes` on what was passed over."""

    names: list[str]
    notes: list[str] = field(default_factory=list)


def find_shards(
    path: Path, exclude: str | None = None, *, skip_unreadable: bool = False
) -> FoundShards:
    """All tar files below `path`, in the order Energon gives them.

    That order compares folder by folder, as text: `d10.tar` stands before `d2.tar`. Hidden files
    and folders are passed over. Links to folders are followed, unless to a folder that was looked
    into already. `exclude` is a regular expression; names in which it is found anywhere are left
    out.

    What cannot be looked into (a folder that may not be entered, a link to something that is gone,
    as when a disk is not mounted, a shard that may not be read) is an error, or with
    `skip_unreadable` a note.

    Raises `DatasetNotFoundError` when `path` is no folder, `PrepareError` when there are no shards,
    when some are compressed, unreadable, or have names that are no UTF-8 or hold control
    characters; `ConfigError` when `exclude` is no regular expression.
    """
    left_out = _compiled(exclude)
    with os_errors_as(PrepareError, path):
        if not path.exists():
            raise DatasetNotFoundError(f"{path} does not exist")
        if not path.is_dir():
            raise PrepareError(f"{path} is a file; give the folder that holds the tar shards")
        look = _Look(path, left_out)
        names = sorted(look.shards(), key=PurePosixPath)
    _check_plain(path, names)
    _check_names(path, names)
    notes = sorted(look.again)
    if look.unreadable:
        notes.append(_unreadable(path, look.unreadable, skip_unreadable))
    if not names:
        excluded = f" but those that {exclude!r} excludes" if exclude else ""
        raise PrepareError(
            f"{path} has no *.tar files in it{excluded}. Samples are stored in tar shards, which "
            "energize.write_shards, webdataset.ShardWriter or the tar command write"
        )
    return FoundShards(names, notes)


def named_shards(path: Path, patterns: Sequence[str]) -> FoundShards:
    """The shards that `patterns` name below the folder `path`, in their order.

    Patterns are names relative to `path`, with braces: `parts/data-{0..9}.tar`.

    Raises `DatasetNotFoundError` when `path` or some of the shards do not exist, `PrepareError`
    when one is named twice, compressed, unreadable or not below `path`, or has a name that is no
    UTF-8; `ConfigError` for a malformed pattern.
    """
    with os_errors_as(PrepareError, path):
        if not path.is_dir():
            raise DatasetNotFoundError(f"{path} does not exist, or is no folder")
    try:
        names = list(expand(map(str, patterns)))
    except ValueError as reason:
        raise ConfigError(f"{list(patterns)} has a malformed brace pattern: {reason}") from reason
    twice = [name for name, count in Counter(names).items() if count > 1]
    outside = [
        name for name in names if PurePosixPath(name).is_absolute() or ".." in name.split("/")
    ]
    if not names or twice or outside:
        wrong = f"{twice[0]} is named twice" if twice else "no shard is named"
        wrong = f"{outside[0]} is not below the folder" if outside else wrong
        raise PrepareError(f"{path}: of the shards {list(patterns)}, {wrong}")
    missing = [name for name in names if _missing(path / name)]
    if missing:
        raise DatasetNotFoundError(
            f"{path / missing[0]} does not exist{_others(missing)}; it is named by {list(patterns)}"
        )
    _check_plain(path, names)
    _check_names(path, names)
    unreadable = {name: why for name in names if (why := _why_not(path / name))}
    if unreadable:
        _unreadable(path, unreadable, False)
    return FoundShards(names)


class _Look:
    """A look at all that is below a folder."""

    def __init__(self, root: Path, left_out: re.Pattern[str] | None) -> None:
        self._root = root
        self._left_out = left_out
        self._seen: dict[tuple[int, int], str] = {}
        self.unreadable: dict[str, str] = {}
        """By name, why what is there cannot be looked into."""
        self.again: list[str] = []
        """Notes on links to folders that were looked into already."""

    def shards(self) -> Iterator[str]:
        """The names of all files that are called as shards are."""
        links = [""]
        while links:
            # Folders by their own names first, so that links to them are known for such.
            start = links.pop(0)
            folders = [start]
            while folders:
                folder = folders.pop()
                if self._entered(folder, folder == start):
                    yield from self._inside(folder, folders, links)

    def _entered(self, folder: str, by_link: bool) -> bool:
        """Whether nobody has looked into a folder yet."""
        try:
            found = (self._root / folder).stat()
        except OSError as reason:
            self._cannot(folder, reason)
            return False
        before = self._seen.setdefault((found.st_dev, found.st_ino), folder)
        if before == folder:
            return True
        if by_link:
            self.again.append(
                f"{folder} is a link to {before or 'the folder itself'}, where shards are looked "
                "for by that name; it is not followed"
            )
        return False

    def _inside(self, folder: str, folders: list[str], links: list[str]) -> Iterator[str]:
        try:
            with os.scandir(self._root / folder) as entries:
                found = sorted(entries, key=lambda entry: entry.name)
        except OSError as reason:
            self._cannot(folder, reason)
            return
        for entry in found:
            if entry.name.startswith("."):
                continue
            name = f"{folder}/{entry.name}" if folder else entry.name
            try:
                if entry.is_dir():
                    (links if entry.is_symlink() else folders).append(name)
                elif entry.name.endswith(_SHARDS):
                    yield from self._shard(name)
                elif entry.is_symlink() and not entry.is_file():
                    self._dangling(name)
            except OSError as reason:
                self._cannot(name, reason)

    def _shard(self, name: str) -> Iterator[str]:
        if self._left_out and self._left_out.search(name):
            return
        why = _why_not(self._root / name)
        if why:
            self.unreadable[name] = why
        else:
            yield name

    def _dangling(self, name: str) -> None:
        """A link to something that is gone, which may have been a folder of shards."""
        why = _why_not(self._root / name)
        if why and "." not in PurePosixPath(name).name:
            self._cannot(name, why)
        elif why:
            self.again.append(f"{name} is passed over: {why}")

    def _cannot(self, name: str, why: OSError | str) -> None:
        """Remember what may be a folder of shards, unless what is in it is left out anyway."""
        if self._left_out and self._left_out.search(f"{name}/"):
            return
        if not name and isinstance(why, OSError):
            raise why
        self.unreadable[name] = why if isinstance(why, str) else why.strerror or str(why)


def _missing(path: Path) -> bool:
    """Whether there is nothing, which is something else than what cannot be looked at."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return True
    except OSError:
        return False
    return False


def _why_not(path: Path) -> str:
    """Why a file cannot be read, if it cannot."""
    try:
        kind = path.stat().st_mode
    except OSError as reason:
        if os.path.islink(path):
            return f"a link to {os.readlink(path)!r}: {reason.strerror or reason}"
        return reason.strerror or str(reason)
    if not stat.S_ISREG(kind):
        return "no regular file"
    return "" if os.access(path, os.R_OK) else "this user may not read it"


def _unreadable(path: Path, unreadable: dict[str, str], skipped: bool) -> str:
    """What to say of what cannot be looked into, as an error unless that is what was asked for."""
    listed = [f"  {name}: {why}" for name, why in sorted(unreadable.items())]
    more = [f"  and {len(listed) - _SHOWN} more"] if len(listed) > _SHOWN else []
    told = "\n".join([*listed[:_SHOWN], *more])
    if skipped:
        return f"below {path}, {len(listed)} that cannot be read are left out:\n{told}"
    raise PrepareError(
        f"below {path}, {len(listed)} that may be, or hold, shards cannot be read:\n{told}\n"
        "Nothing was written. Mount the disk, repair the link or allow reading; or leave these out "
        "with --exclude, or all of the kind with skip_unreadable=True (--skip-unreadable)"
    )


def _check_names(path: Path, names: Sequence[str]) -> None:
    """Raises `PrepareError` for names that the files of `.nv-meta` could not hold."""
    bad = [name for name in names if not name.isprintable() and _unwritable(name)]
    if bad:
        listed = "\n".join(f"  {name!r}" for name in bad[:_SHOWN])
        more = f"\n  and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else ""
        raise PrepareError(
            f"{len(bad)} shards of {path} have names that are no UTF-8, or hold control "
            f"characters:\n{listed}{more}\nNothing was written. Rename them (mv, or convmv for "
            "another encoding), or leave them out with --exclude"
        )


def _unwritable(text: str) -> bool:
    return any(unicodedata.category(letter) in _UNWRITABLE for letter in text)


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
