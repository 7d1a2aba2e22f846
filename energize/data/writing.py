"""Atomic writing: files are complete and on disk before they get their names.

`write_new` writes one file, `NewFiles` several together; `writing` converts errors of
the system.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import BinaryIO, Self
from urllib.parse import quote

from energize.core.os_errors import is_url, os_errors_as
from energize.errors import EnergizeError

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)

_LEFT = re.compile(r".+\.energize-[0-9a-f]{16}\.tmp", re.DOTALL)
# Disks sync several files concurrently.
_THREADS = 8

# Errors of folders on file systems without fsync for folders, or that cannot be listed.
_WITHOUT_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES)


@contextmanager
def writing(path: Path, error: type[EnergizeError], of: str = "") -> Iterator[None]:
    """Convert OSError in the block to `error`, with path, reason and remedy.

    Args:
        path: The file that is written.
        error: The type of the error.
        of: Setting that the path comes from, for the message.
    """
    with os_errors_as(error, path, f"{of} cannot be written".lstrip()):
        try:
            yield
        except OSError as reason:
            reason.filename = os.fspath(path)  # not the temporary name
            raise


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """Raise SystemExit in the block on SIGTERM or SIGHUP, so that it can clean up.

    Has no effect outside of the main thread, or if the program handles these signals.
    """
    main = threading.current_thread() is threading.main_thread()
    default_signals = [
        signal_number
        for signal_number in _SIGNALS
        if main and signal.getsignal(signal_number) is signal.SIG_DFL
    ]
    received: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if len(received) == 1:  # it is often sent twice, to the process and its group
            raise SystemExit(128 + number)

    for signal_number in default_signals:
        signal.signal(signal_number, stop)
    try:
        yield
    finally:
        for signal_number in default_signals:
            signal.signal(signal_number, signal.SIG_DFL)
    if received:  # the exception was dropped, as in the middle of a fork
        raise SystemExit(128 + received[0])


class NewFiles:
    """Files that get their names together, once all are complete and on disk.

    Leaving the block without `commit` removes them; existing files of these names stay
    unchanged.

    Args:
        error: Type of the error for files that cannot be written.

    Example:
        >>> with NewFiles(EnergizeError) as files:
        ...     len(files.place(Path("a/b.idx")).name) - len("b.idx.energize-.tmp")
        16
    """

    def __init__(self, error: type[EnergizeError]) -> None:
        self._token = secrets.token_hex(8)
        self._error = error
        self._finals: dict[Path, None] = {}
        self._staging: TemporaryDirectory[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for final in self._finals:
            with suppress(OSError, ValueError):  # ValueError for an invalid path
                self.place(final).unlink(missing_ok=True)
        if self._staging is not None:
            self._staging.cleanup()

    def place(self, final: Path) -> Path:
        """Return the temporary path of `final`, local also for object storage."""
        if is_url(final):
            if self._staging is None:
                self._staging = TemporaryDirectory(prefix="energize-")
            return Path(self._staging.name, quote(str(final), safe=""))
        return final.with_name(f"{final.name}.energize-{self._token}.tmp")

    def create(self, final: Path) -> BinaryIO:
        """Open a new file that becomes `final`; raises OSError if that fails."""
        self._finals[final] = None
        return self.place(final).open("xb")

    def write(self, final: Path, data: bytes) -> None:
        """Write a whole file."""
        with writing(final, self._error), self.create(final) as stream:
            stream.write(data)

    def put_last(self, final: Path) -> None:
        """Move a file to the end: it gets its name when all others are complete."""
        self._finals[final] = self._finals.pop(final)

    def commit(self, mode: int | None = None, remove: Sequence[Path] = ()) -> None:
        """Give all files their names, in the order in which they were added.

        First all files are synced to disk, then the files in `remove` are deleted. The
        last file marks the others as complete, so it gets its name when theirs are on
        disk. If any cannot get its name, none does.

        Args:
            mode: Permissions of the files; None for the default.
            remove: Files to delete first.
        """
        *earlier, last = self._finals

        def settle(final: Path) -> None:
            temporary = self.place(final)
            with writing(final, self._error):
                if mode is not None:
                    temporary.chmod(mode)
                _sync(temporary)

        _run_all(settle, self._finals)
        self._sync_folders([path for path in remove if self._removed(path)])
        done: list[Path] = []
        try:
            if is_url(last):
                _run_all(lambda final: self._rename(final, done), earlier)
            else:
                for final in earlier:
                    self._rename(final, done)
            self._sync_folders(earlier)
            self._rename(last, done)
        except BaseException:
            for final in done:
                with suppress(OSError):
                    final.unlink(missing_ok=True)
            raise
        self._finals.clear()
        self._sync_folders([last])

    def _removed(self, path: Path) -> bool:
        """Remove a file; return whether it existed."""
        with (
            writing(path, self._error),
            suppress(FileNotFoundError, NotADirectoryError),
        ):
            path.unlink()
            return True
        return False

    def _rename(self, final: Path, done: list[Path]) -> None:
        with writing(final, self._error):
            if is_url(final):
                final.write_bytes(self.place(final))  # type: ignore[arg-type]
            else:
                self.place(final).replace(final)
        done.append(final)

    def _sync_folders(self, finals: Iterable[Path]) -> None:
        def sync(folder: Path) -> None:
            with writing(folder, self._error):
                try:
                    _sync(folder)
                except OSError as reason:
                    if reason.errno not in _WITHOUT_SYNC:
                        raise

        _run_all(
            sync, dict.fromkeys(final.parent for final in finals if not is_url(final))
        )


def _run_all(function: Callable[[Path], None], paths: Iterable[Path]) -> None:
    with ThreadPoolExecutor(_THREADS) as threads:
        list(threads.map(function, paths))


def _sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_leftovers(folder: Path, of: Path | None = None) -> None:
    """Remove temporary files of killed writers from a folder.

    The caller must hold the lock of the files, which proves that their writers are
    dead.

    Args:
        folder: The folder.
        of: Only files that were to become this one; None for all.
    """
    if is_url(folder):
        return
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            final = entry.name.rpartition(".energize-")[0]
            if _LEFT.fullmatch(entry.name) and (of is None or final == of.name):
                with suppress(OSError):
                    os.unlink(entry)


def write_new(path: Path, data: bytes, error: type[EnergizeError]) -> None:
    """Write a file atomically: until it is complete, the old one stays.

    Replaces links instead of following them. Devices and pipes are written to directly.

    Args:
        path: The file.
        data: Its content.
        error: Type of the error, raised with path, reason and remedy.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "a.txt")
        >>> write_new(path, b"hello", EnergizeError)
        >>> path.read_bytes(), [entry.name for entry in path.parent.iterdir()]
        (b'hello', ['a.txt'])
        >>> write_new(path / "b.txt", b"hello", EnergizeError)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
          ...
        energize.errors.EnergizeError: ...a.txt/b.txt: cannot be written (Not a ...
    """
    with writing(path, error):
        if path.exists() and not (path.is_file() or path.is_dir()):  # such as a pipe
            with path.open("wb") as stream:
                stream.write(data)
            return
    with exit_on_signals(), NewFiles(error) as new:
        new.write(path, data)
        new.commit()
