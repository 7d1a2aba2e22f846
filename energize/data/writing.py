"""Files that others will read: whole, and on the disk, before they get their names."""

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
# A disk does several of these waits at once.
_THREADS = 8

# Of folders: file systems that have no such call for them, folders that may not be
# listed.
_WITHOUT_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES)


@contextmanager
def writing(path: Path, error: type[EnergizeError], of: str = "") -> Iterator[None]:
    """A block in which what the system refuses is `error`: that `path`, which is the
    value `of` something, cannot be written, why, and what to do.
    """
    with os_errors_as(error, path, f"{of} cannot be written".lstrip()):
        try:
            yield
        except OSError as reason:
            reason.filename = os.fspath(
                path
            )  # not the name that it has until it is whole
            raise


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """Leave the block by SystemExit when the process is asked to end, by SIGTERM or
    SIGHUP.

    Where the program has handlers of its own for these signals, or outside its main
    thread, there is no difference.
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
        if len(received) == 1:  # it is often sent twice: to a process, to its group
            raise SystemExit(128 + number)

    for signal_number in default_signals:
        signal.signal(signal_number, stop)
    try:
        yield
    finally:
        for signal_number in default_signals:
            signal.signal(signal_number, signal.SIG_DFL)
    if (
        received
    ):  # and the exception was forgotten, as Python does in the middle of a fork
        raise SystemExit(128 + received[0])


class NewFiles:
    """Files that get their names together, when all of them are complete and on the
    disk.

    Leaving the block without `commit` removes them, and of those whose names they were
    to get nothing has changed. `error` is raised, with the path and the reason, for
    what cannot be written.

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
            with suppress(OSError, ValueError):  # the latter of what is no path
                self.place(final).unlink(missing_ok=True)
        if self._staging is not None:
            self._staging.cleanup()

    def place(self, final: Path) -> Path:
        """Return where `final` is until it gets its name; on this machine, of one in a
        store.
        """
        if is_url(final):
            if self._staging is None:
                self._staging = TemporaryDirectory(prefix="energize-")
            return Path(self._staging.name, quote(str(final), safe=""))
        return final.with_name(f"{final.name}.energize-{self._token}.tmp")

    def create(self, final: Path) -> BinaryIO:
        """Open a new file that will be `final`; raise OSError if there can be none."""
        self._finals[final] = None
        return self.place(final).open("xb")

    def write(self, final: Path, data: bytes) -> None:
        """Write a whole file."""
        with writing(final, self._error), self.create(final) as stream:
            stream.write(data)

    def put_last(self, final: Path) -> None:
        """Make a file the one that says that all others are there."""
        self._finals[final] = self._finals.pop(final)

    def commit(self, mode: int | None = None, remove: Sequence[Path] = ()) -> None:
        """Give all files their names, in the order in which they were added.

        First they are on the disk. Then the files `remove` go. The last one gets its
        name when all others have theirs, on the disk too: it is the one that says that
        the others are there. When any cannot get its name, none has it. With `mode`,
        these are their permissions.
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
        """Return whether it was there."""
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
                final.write_bytes(self.place(final))  # type: ignore[arg-type]  # a `RemotePath`
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
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_leftovers(folder: Path, of: Path | None = None) -> None:
    """Remove what killed writers left in a folder, or of one file there. Only who holds
    the lock of what is written knows that they are dead.
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
    """Write a file that is there when it is whole; until then the one before stays.

    A link with its name is replaced, not followed. What is no file, a device or a pipe,
    is written to. Raise `error` with path, reason and remedy.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "a.txt")
    >>> write_new(path, b"hello", EnergizeError)
    >>> path.read_bytes(), [each.name for each in path.parent.iterdir()]
    (b'hello', ['a.txt'])
    >>> write_new(path / "b.txt", b"hello", EnergizeError)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
      ...
    energize.errors.EnergizeError: ...a.txt/b.txt: cannot be written (Not a ...
    """
    with writing(path, error):
        if path.exists() and not (path.is_file() or path.is_dir()):  # a pipe, say
            with path.open("wb") as stream:
                stream.write(data)
            return
    with exit_on_signals(), NewFiles(error) as new:
        new.write(path, data)
        new.commit()
