"""What a file system refuses: tried again where that may help, else an error that says what to do.

A disk, or the server behind it, that fails for a moment must not end a run, and says nothing of the
sample that was to be read: it is never bad data.
"""

from __future__ import annotations

import errno
import functools
import logging
import os
import re
import secrets
import signal
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ContextDecorator, contextmanager, suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import BinaryIO, ParamSpec, Self, TypeVar

from energize.core.limits import limit
from energize.errors import ConfigError, DatasetError, EnergizeError, legible

_log = logging.getLogger("energize")

P = ParamSpec("P")
T = TypeVar("T")

_NETWORK = (
    errno.ECONNABORTED,
    errno.ECONNREFUSED,
    errno.ECONNRESET,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.ENETDOWN,
    errno.ENETRESET,
    errno.ENETUNREACH,
    errno.ENOTCONN,
    errno.EREMOTEIO,
    errno.ETIMEDOUT,
)
PASSING = frozenset([errno.EIO, errno.ESTALE, errno.EAGAIN, errno.EINTR, errno.ENFILE, *_NETWORK])
"""What may be over when it is tried again: faults of disks, of file servers and on the way there,
and that all processes of the machine together have too many files open."""

_OF_MACHINE = (errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0

_REMEDIES = {
    errno.EACCES: "make it, and the folders above it, readable for the user who runs this",
    errno.EINVAL: "give a file, or a link to one",
    errno.EISDIR: "give a file",
    errno.ELOOP: "the links on the way to it lead in a circle: replace them",
    errno.EMFILE: "let the process open more with `ulimit -n`",
    errno.ENAMETOOLONG: "give it a shorter name",
    errno.ENFILE: "all processes together have too many files open: end some, or raise fs.file-max",
    errno.ENOENT: "restore it, or correct the path",
    errno.ENOMEM: "memory is short: use fewer workers, or let the process have more",
    errno.ENOTDIR: "a folder on the way to it is a file: correct the path",
}
_REMEDIES[errno.EPERM] = _REMEDIES[errno.EACCES]
_SICK = (
    "the disk, or the file server, fails: look into the system's log, and go on from the last "
    "state when it is well again"
)


class StillFailingError(OSError):
    """What might have passed has not: it is not tried any more."""


_NO_PATH = "that is no path: it has a NUL in it, or what cannot be encoded"


def patiently(
    call: Callable[[], T], path: str | os.PathLike[str], failed: OSError | None = None
) -> T:
    """`call()`; again after a pause where it raises an OSError that may pass.

    The limit READ_TRIES says how often in all, five times by default, in about seven seconds; each
    is told in the log. Then, and for any other fault, an OSError is raised. `failed` is what the
    first call raised, where it was made already.

    >>> patiently(lambda: 3, "a.tar")
    3
    """
    tries = 0
    while True:
        if failed is None:
            try:
                return call()
            except OSError as error:
                failed = error
        tries += 1
        if failed.errno not in PASSING or isinstance(failed, StillFailingError):
            if failed.filename is None:
                failed.filename = _text(path)  # calls on descriptors do not say it
            raise failed
        if tries >= (most := limit("READ_TRIES")):
            raise StillFailingError(failed.errno, failed.strerror, _text(path)) from failed
        pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 4 ** (tries - 1))
        _log.warning(
            "%s: %s; it is tried again in %.1f s (%d of %d tries)",
            legible(_text(path)),
            failed.strerror,
            pause,
            tries + 1,
            most,
        )
        time.sleep(pause)
        failed = None


def exists(path: str | os.PathLike[str], *, follow: bool = True) -> bool:
    r"""Whether there is something at a path, as `os.path.exists`, which takes a disk that fails for
    one that has nothing there: that is tried again, and raised. With `follow` a link to nothing is
    nothing.

    >>> exists("/"), exists("/nowhere"), exists("no\0path")
    (True, False, False)
    """
    try:
        patiently(lambda: os.stat(path, follow_symlinks=follow), path)
    except OSError as error:
        if error.errno in PASSING:
            raise
        return False
    except ValueError:
        return False
    return True


def of_machine(error: BaseException | None) -> bool:
    """Whether the disk or the system is what failed, so that no sample is to blame."""
    return isinstance(error, OSError) and error.errno in _OF_MACHINE


_SAID_BY_US = (errno.EFBIG, errno.EINVAL)
"""Of files that are too large, or no regular ones: what is wrong says what to do."""


def told(
    error: OSError, path: str | os.PathLike[str] | None = None, what: str = "cannot be read"
) -> str:
    """What to say of a file that cannot be read: the path, the system's words and what to do.

    `path` is what was asked for, where the error does not know.

    >>> told(OSError(errno.EMFILE, "Too many open files"), "a.tar")
    'a.tar: cannot be read (Too many open files); let the process open more with `ulimit -n`'
    """
    place = error.filename if path is None else path
    where = "" if place is None else f"{_text(place)}: "
    if error.errno in _SAID_BY_US:
        return f"{where}{what}: {error.strerror}"
    return f"{where}{what} ({error.strerror or error}); {remedy(error)}"


def remedy(error: OSError) -> str:
    """What to do about a file that cannot be read."""
    if error.errno in PASSING and error.errno != errno.ENFILE:
        return _SICK
    return _REMEDIES.get(error.errno or 0, "make it readable")


def os_errors_as(
    kind: type[EnergizeError],
    path: str | os.PathLike[str] | None = None,
    what: str = "cannot be read",
) -> _Translating:
    """A block, or a function, in which an OSError becomes an error of this kind; those of energize
    stay as they are.

    >>> with os_errors_as(DatasetError):
    ...     _ = open("/nowhere/at all")
    Traceback (most recent call last):
        ...
    energize.errors.DatasetError: /nowhere/at all: cannot be read (No such file or directory); \
restore it, or correct the path
    """
    return _Translating(kind, path, what)


class _Translating(ContextDecorator):
    """Not by `contextmanager`: generators cost more than what is done in many such blocks."""

    __slots__ = ("_kind", "_path", "_what")

    def __init__(
        self, kind: type[EnergizeError], path: str | os.PathLike[str] | None, what: str
    ) -> None:
        self._kind, self._path, self._what = kind, path, what

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, EnergizeError | BrokenPipeError):
            return  # the latter is of who reads what a command prints
        if isinstance(error, OSError):
            # An error of the system says which file it is, of another library often not.
            path = self._path if error.filename is None else error.filename
            raise self._kind(told(error, path, self._what)) from error
        if is_of_path(error):
            shown = "" if self._path is None else f"{os.fspath(self._path)}: "
            raise ConfigError(f"{shown}{_NO_PATH} ({error})") from error


def own_errors(function: Callable[P, T]) -> Callable[P, T]:
    """The function, which only reads: what may pass is tried again, what else the system refuses is
    a `DatasetError`, and what can be no path a `ConfigError`. For functions that are given paths.
    """

    @functools.wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
        with os_errors_as(DatasetError):
            try:
                return function(*args, **kwargs)
            except OSError as error:
                if error.errno not in PASSING:
                    raise
                place = error.filename or function.__qualname__
                return patiently(lambda: function(*args, **kwargs), _text(place), error)

    return guarded


def is_of_path(error: BaseException | None) -> bool:
    """Whether the error says that a text can be no path: a NUL in it, or what no encoding has."""
    if isinstance(error, UnicodeEncodeError):
        return True
    return type(error) is ValueError and "null" in str(error) and "embedded" in str(error)


def is_path(text: str) -> bool:
    r"""Whether a file could have this path at all.

    >>> is_path("a/b"), is_path("a\0b"), is_path("\ud800")
    (True, False, False)
    """
    try:
        return "\0" not in text and os.fsencode(text) is not None
    except UnicodeEncodeError:
        return False


def check_path(text: str) -> str:
    """The text; `ConfigError` where no file can have this path."""
    if not is_path(text):
        raise ConfigError(f"{text!r}: {_NO_PATH}; correct it")
    return text


def _text(place: object) -> str:
    """A path, or whatever an error has for one: some have the number of a descriptor."""
    return os.fsdecode(place) if isinstance(place, bytes | os.PathLike) else str(place)


# SIGTERM and SIGHUP as Ctrl-C: what a block has begun is taken back before the process ends.

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)

_asked: list[int] = []
"""The signals that have come in the block; there is one at a time, in the main thread."""
_waiting: list[None] = []
"""One for each block that is not to be left in the middle."""


class _Stopped(BaseException):
    """Unwinds a block whose process is asked to end; nothing but the block catches it."""


@contextmanager
def taken_back_when_stopped() -> Iterator[None]:
    """The block is left by an exception when the process is asked to end, and then it ends by the
    same signal, as it would have at once.

    Where the program has handlers of its own for these signals, or outside its main thread, there
    is no difference. One block stands in another: the outer one ends the process.
    """
    mine = threading.current_thread() is threading.main_thread() and [
        each for each in _SIGNALS if signal.getsignal(each) is signal.SIG_DFL
    ]
    if not mine:
        yield
        return
    owner = os.getpid()

    def stop(number: int, frame: FrameType | None) -> None:
        if os.getpid() != owner:  # a process that was forked in the block has nothing to take back
            _end(number)
        _asked.append(number)
        if len(_asked) == 1 and not _waiting:  # it is often sent twice: to a process, to its group
            raise _Stopped

    _asked.clear()
    try:
        for each in mine:
            signal.signal(each, stop)
        yield
    except _Stopped:
        pass
    finally:
        for each in mine:
            signal.signal(each, signal.SIG_DFL)
        if _asked:
            _end(_asked[0])


@contextmanager
def not_stopped_halfway() -> Iterator[None]:
    """Inside such a block, one that is not left in the middle: the exception comes after it.

    Forking is such a thing: Python forgets exceptions that arise in it.
    """
    _waiting.append(None)
    try:
        yield
    finally:
        _waiting.pop()
    if _asked and not _waiting:
        raise _Stopped


def _end(number: int) -> None:
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)  # the first process of a container is not ended by signals


# Files that others will read: whole, and on the disk, before they get their names.

_LEFT = re.compile(r".+\.energize-[0-9a-f]{16}\.tmp", re.DOTALL)
_THREADS = 8
"""A disk does several of these waits at once."""

_WITHOUT_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES)
"""Of folders: file systems that have no such call for them, folders that may not be listed."""

_NEW_FILES_REMEDIES = {
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
    remedy = _NEW_FILES_REMEDIES.get(reason.errno or 0, "see that {folder} can be written to")
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
