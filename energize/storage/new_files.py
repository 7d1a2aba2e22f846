"""Files that others will read: whole, and on the disk, before they get their names.

A file is written beside its place as `NAME.energize-TOKEN.tmp`. Nobody can guess that name, and it
is made, never opened when it is there: a link that somebody left cannot lead the writing elsewhere,
and no two processes write one file. What a killed process leaves is known by that name.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from energize.errors import EnergizeError
from energize.storage.faults import is_of_path
from energize.storage.stopping import not_stopped_halfway, taken_back_when_stopped

__all__ = [
    "NewFiles",
    "remove_left",
    "temporary",
    "write_new",
    "writing",
]

_LEFT = re.compile(r".+\.energize-[0-9a-f]{16}\.tmp", re.DOTALL)
_THREADS = 8
"""A disk does several of these waits at once."""

_WITHOUT_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES)
"""Of folders: file systems that have no such call for them, folders that may not be listed."""

_REMEDIES = {
    errno.EDQUOT: "your quota is used up: make room, or ask for more",
    errno.EFBIG: "files may not be that large here: see `ulimit -f`, and the file system",
    errno.EROFS: "that disk is mounted for reading only",
    errno.EACCES: "this user needs permission to make files in {folder}",
    errno.EPERM: "this user needs permission to make files in {folder}",
    errno.ENAMETOOLONG: "26 letters are added to the name while it is written: use a shorter one",
    errno.EMFILE: "this process may not open more files: raise `ulimit -n`, or use fewer workers",
    errno.ENFILE: "this machine has too many files open",
    errno.ENOENT: "make the folder {folder} first, and let nobody remove files there meanwhile",
    errno.ENOTDIR: "{folder} is no folder",
    errno.EISDIR: "a folder has that name",
    errno.EIO: "the disk reports an error: see the log of the system",
    errno.ESTALE: "the disk was mounted anew: try again",
}


def temporary(final: Path, token: str) -> Path:
    """Where the writer with this token writes what will be `final`; it makes it with mode "x".

    >>> temporary(Path("a/b.idx"), "0123456789abcdef").name
    'b.idx.energize-0123456789abcdef.tmp'
    """
    return final.with_name(f"{final.name}.energize-{token}.tmp")


@contextmanager
def writing(path: Path, error: type[EnergizeError], of: str = "") -> Iterator[None]:
    """Says by `error` that `path`, which is the value `of` something, could not be written, why,
    and what to do.
    """
    place = f"{of}: {path}" if of else str(path)
    try:
        yield
    except ValueError as reason:
        if not is_of_path(reason):
            raise
        told = "has a NUL in it, or what is no UTF-8, so that no file has that name"
        raise error(f"{str(path)[:80]!r} {told}") from reason
    except OSError as reason:
        told = reason.strerror or str(reason)
        raise error(f"{place} cannot be written: {told}; {_remedy(reason, path)}") from reason


def _remedy(reason: OSError, path: Path) -> str:
    if reason.errno == errno.ENOSPC:
        with suppress(OSError):
            found = os.statvfs(path.parent)
            free, files = found.f_bavail * found.f_frsize, found.f_favail
            return f"{free:,} bytes and {files:,} files are free on that disk: make room"
    remedy = _REMEDIES.get(reason.errno or 0, "see that {folder} can be written to")
    return remedy.format(folder=path.parent)


class NewFiles:
    """Files that get their names together, when all of them are complete and on the disk.

    Leaving the block without `commit` removes them, and of those whose names they were to get
    nothing has changed. `error` is raised, with the path and the reason, for what cannot be
    written. Processes that share a `token` know each other's names.
    """

    def __init__(self, error: type[EnergizeError], token: str = "") -> None:
        self.token = token or secrets.token_hex(8)
        self._error = error
        self._finals: dict[Path, None] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for final in self._finals:
            with suppress(OSError):
                self.place(final).unlink(missing_ok=True)

    def __contains__(self, final: Path) -> bool:
        return final in self._finals

    def place(self, final: Path) -> Path:
        """Where `final` is until it gets its name."""
        return temporary(final, self.token)

    def add(self, finals: Iterable[Path]) -> None:
        """Announce files that others write to `place(final)`."""
        self._finals.update(dict.fromkeys(finals))

    def create(self, final: Path) -> BinaryIO:
        """A new file that will be `final`; raises OSError."""
        self.add([final])
        return self.place(final).open("xb")

    def write(self, final: Path, data: bytes) -> None:
        """Write a whole file."""
        with writing(final, self._error), self.create(final) as stream:
            stream.write(data)

    def commit(self, mode: int | None = None, remove: Sequence[Path] = ()) -> None:
        """Give all files their names, in the order in which they were added.

        First they are on the disk. Then the files `remove` go. The last one gets its name when all
        others have theirs, on the disk too: it is the one that says that the others are there. When
        any cannot get its name, none has it. With `mode`, these are their permissions.
        """
        with not_stopped_halfway():
            self._commit(mode, remove)

    def _commit(self, mode: int | None, remove: Sequence[Path]) -> None:
        *others, last = self._finals
        _each(self._settle(mode), self._finals)
        self._sync_folders([path for path in remove if self._removed(path)])
        done: list[Path] = []
        try:
            for final in others:
                self._rename(final, done)
            self._sync_folders(others)
            self._rename(last, done)
        except BaseException:
            for final in done:
                with suppress(OSError):
                    final.unlink(missing_ok=True)
            raise
        self._finals.clear()
        self._sync_folders([last])

    def _settle(self, mode: int | None) -> Callable[[Path], None]:
        def settle(final: Path) -> None:
            made = self.place(final)
            with writing(final, self._error):
                if mode is not None:
                    made.chmod(mode)
                _sync(made)

        return settle

    def _removed(self, path: Path) -> bool:
        """Whether it was there."""
        with writing(path, self._error):
            try:
                path.unlink()
            except (FileNotFoundError, NotADirectoryError):
                return False
            return True

    def _rename(self, final: Path, done: list[Path]) -> None:
        with writing(final, self._error):
            self.place(final).replace(final)
        done.append(final)

    def _sync_folders(self, finals: Iterable[Path]) -> None:
        def sync(folder: Path) -> None:
            try:
                _sync(folder)
            except OSError as reason:
                if reason.errno not in _WITHOUT_SYNC:
                    with writing(folder, self._error):
                        raise

        _each(sync, dict.fromkeys(final.parent for final in finals))


def _each(function: Callable[[Path], None], paths: Iterable[Path]) -> None:
    paths = list(paths)
    if len(paths) < 2:
        for path in paths:
            function(path)
        return
    with ThreadPoolExecutor(_THREADS) as threads:
        for _ in threads.map(function, paths):
            pass


def _sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_left(folder: Path, own: str = "", of: Path | None = None) -> None:
    """Remove what killed writers left in a folder, or of one file there. Only who holds the lock of
    what is written knows that they are dead. `own` is a token whose files stay.
    """
    with suppress(OSError), os.scandir(folder) as found:
        names = [each.name for each in found if _LEFT.fullmatch(each.name)]
        for name in names:
            final, _, token = name.removesuffix(".tmp").rpartition(".energize-")
            if token != own and (of is None or final == of.name):
                with suppress(OSError):
                    (folder / name).unlink()


def write_new(path: Path, data: bytes, error: type[EnergizeError], mode: int | None = None) -> None:
    """Write a file that is there when it is whole; until then the one before stays.

    A link with its name is replaced, not followed. What is no file, a device or a pipe, is written
    to. Raises `error` with path, reason and remedy.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "a.txt")
    >>> write_new(path, b"hello", EnergizeError)
    >>> path.read_bytes(), [each.name for each in path.parent.iterdir()]
    (b'hello', ['a.txt'])
    >>> write_new(path / "b.txt", b"hello", EnergizeError)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
      ...
    energize.errors.EnergizeError: ...a.txt/b.txt cannot be written: Not a directory; ...
    """
    with writing(path, error):
        if _is_stream(path):
            with path.open("wb") as stream:
                stream.write(data)
            return
    with taken_back_when_stopped(), NewFiles(error) as new:
        new.write(path, data)
        new.commit(mode)


def _is_stream(path: Path) -> bool:
    try:
        kind = path.stat().st_mode
    except FileNotFoundError:
        return False
    return not (stat.S_ISREG(kind) or stat.S_ISDIR(kind))
