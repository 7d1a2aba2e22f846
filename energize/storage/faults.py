"""What a file system refuses: tried again where that may help, else an error that says what to do.

A disk, or the server behind it, that fails for a moment must not end a run, and says nothing of the
sample that was to be read: it is never bad data.
"""

from __future__ import annotations

import errno
import functools
import logging
import os
import time
from collections.abc import Callable
from contextlib import ContextDecorator
from typing import ParamSpec, TypeVar

from energize.errors import ConfigError, DatasetError, EnergizeError, legible
from energize.limits import limit

__all__ = [
    "PASSING",
    "check_path",
    "exists",
    "is_path",
    "of_machine",
    "os_errors_as",
    "own_errors",
    "patiently",
    "remedy",
    "told",
]

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
