"""Errors of the operating system: their messages, and what is tried again.

`os_errors_as` raises them as errors of this package. `again` calls a function once more
if the failure may pass: a disk or file server that fails for a moment must not end a
run, and is never bad data of a sample.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial, wraps
from typing import ParamSpec, TypeVar

from energize.errors import (
    ConfigError,
    DatasetError,
    EnergizeError,
    legible,
)

P = ParamSpec("P")
T = TypeVar("T")

_log = logging.getLogger("energize")
AnyPath = str | os.PathLike[str]
URL = re.compile(
    r"(?!file:)(?P<root>[a-zA-Z][a-zA-Z0-9+.-]*://(?P<host>[^/?#]*))(?P<key>.*)", re.S
)
_PAUSE = 0.5
_NETWORK = (
    "CONNABORTED CONNREFUSED CONNRESET HOSTDOWN HOSTUNREACH NETDOWN NETRESET NETUNREACH"
)
_DISK = "NOTCONN REMOTEIO TIMEDOUT IO STALE AGAIN INTR NFILE"
# What may be over when it is tried again: faults of disks, of file servers and on the
# way there, and that all processes of the machine together have too many files open.
PASSING = frozenset(
    getattr(errno, f"E{name}") for name in f"{_NETWORK} {_DISK}".split()
)
_OF_MACHINE = (
    errno.EIO,
    errno.ESTALE,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.ENOSPC,
)
NO_PATH = "this is not a path: it has a NUL or characters that cannot be encoded"
_LOOK = "Check that it exists and can be read and written"
_FAILS = (
    "The disk or the file server fails: repair it, then continue from the last state"
)
_MAKE_ROOM = "Make room on that disk"
_REMEDIES = {
    **dict.fromkeys(PASSING, _FAILS),
    errno.EACCES: "Let the user of this process read and write there",
    errno.EDQUOT: _MAKE_ROOM,
    errno.ELOOP: "Correct the links on the way to it, which lead to one another",
    errno.EMFILE: "Let it open more with `ulimit -n`, or use fewer workers",
    errno.ENFILE: (
        "End some processes, which together have too many open files, or raise "
        "fs.file-max"
    ),
    errno.ENOENT: "Restore it, or correct the path",
    errno.ENOMEM: "Use fewer workers, or give the process more memory",
    errno.ENOSPC: _MAKE_ROOM,
    errno.ENOTDIR: "Correct the path: a folder on the way to it is a file",
}


def is_url(path: object) -> bool:
    """Return whether a path is one of object storage.

    >>> is_url("s3://bucket/web"), is_url("/data/web"), is_url("file:///data/web")
    (True, False, False)
    """
    return isinstance(path, str | os.PathLike) and bool(URL.match(os.fspath(path)))


def again(call: Callable[[], T], path: AnyPath, failed: OSError | None = None) -> T:
    """Return `call()`; where it raises an OSError that may pass, call it once more
    after a pause. `failed` is what the first call raised, where it was made already.

    >>> again(lambda: 3, "a.tar")
    3
    """
    tries = 0
    while True:
        try:
            if failed is None:
                return call()
        except EnergizeError:
            raise
        except OSError as error:
            failed = error
        tries += 1
        if failed.filename is None:
            failed.filename = _text(path)
        if tries > 1 or failed.errno not in PASSING or is_url(failed.filename):
            raise failed
        _log.warning("%s: %s. It is tried again", legible(_text(path)), failed.strerror)
        time.sleep(_PAUSE)
        failed = None


def of_machine(error: BaseException | None) -> bool:
    """Return whether the disk or the system is what failed, so that no sample is to
    blame.
    """
    return isinstance(error, OSError) and error.errno in _OF_MACHINE


def os_error_message(
    error: OSError, path: AnyPath | None = None, fault: str = "cannot be read"
) -> str:
    """Return the text of an error of the system: path, fault and remedy.

    Args:
        error: The error.
        path: The path, used if the error has none.
        fault: The failed operation, such as "cannot be read".

    >>> os_error_message(OSError(errno.EMFILE, "Too many open files"), "a.tar")
    'a.tar: cannot be read (Too many open files). Let it open more with `ulimit -n`, \
or use fewer workers'
    """
    file = error.filename if error.filename is not None else path
    prefix = "" if file is None else f"{_text(file)}: "
    if error.errno and error.strerror != os.strerror(
        error.errno
    ):  # its text has the remedy
        return f"{prefix}{fault}: {error.strerror}"
    return (
        f"{prefix}{fault} ({error.strerror or error}). "
        f"{_REMEDIES.get(error.errno or 0, _LOOK)}"
    )


@contextmanager
def os_errors_as(
    error_class: type[EnergizeError],
    path: AnyPath | None = None,
    fault: str = "cannot be read",
) -> Iterator[None]:
    """Convert an OSError of a block or function to an error of a class.

    Errors of this package pass unchanged.

    >>> with os_errors_as(DatasetError):
    ...     _ = open("/nowhere/at all")
    Traceback (most recent call last):
        ...
    energize.errors.DatasetError: /nowhere/at all: cannot be read (No such file or \
directory). Restore it, or correct the path
    """
    try:
        yield
    except (
        EnergizeError,
        BrokenPipeError,
    ):  # a reader of the output has closed it
        raise
    except OSError as error:
        raise error_class(os_error_message(error, path, fault)) from error
    except ValueError as error:
        null = type(error) is ValueError and "embedded null" in str(error)
        if not (null or isinstance(error, UnicodeEncodeError)):
            raise
        shown = "" if path is None else f"{os.fspath(path)}: "
        raise ConfigError(f"{shown}{NO_PATH} ({error})") from error


def convert_os_errors(function: Callable[P, T]) -> Callable[P, T]:
    """Wrap a function that takes paths and only reads.

    Temporary errors are retried. Other errors of the system become a `DatasetError`,
    and invalid paths a `ConfigError`.
    """

    @wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
        with os_errors_as(DatasetError):
            return again(partial(function, *args, **kwargs), function.__qualname__)

    return guarded


def is_path(text: str) -> bool:
    r"""Return whether a file could have this path at all.

    >>> is_path("a/b"), is_path("a\0b"), is_path("\ud800")
    (True, False, False)
    """
    with suppress(UnicodeEncodeError):
        return "\0" not in text and os.fsencode(text) is not None
    return False


def check_path(text: str) -> str:
    """Return the text; raise `ConfigError` if no file can have this path."""
    if not is_path(text):
        raise ConfigError(f"{text!r}: {NO_PATH}. Correct it")
    return text


def _text(file: object) -> str:
    """Return a path, or whatever an error has for one: some have the number of a
    descriptor.
    """
    return os.fsdecode(file) if isinstance(file, bytes | os.PathLike) else str(file)
