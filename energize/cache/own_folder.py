"""A folder of one process: gone when the process is, however it ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import time
import weakref
from pathlib import Path

from energize.errors import ConfigError

_PREFIX = f"energize-cache-{os.getuid()}-"
_NEW = f"energize-new-cache-{os.getuid()}-"
_NEW_SECONDS = 3600.0
_TRIES = 3


class OwnFolder:
    """A new folder below `parent` that only this user may enter.

    It is removed by `close`, or when the process ends by itself. Of a process that was killed, the
    next one that makes or closes a folder below the same parent removes it: the folder is locked as
    long as its process lives. A forked process has no part in it.

    Raises `ConfigError` when it cannot be made.

    >>> folder = OwnFolder(Path(tempfile.mkdtemp()))
    >>> folder.path.is_dir(), folder.close(), folder.path.exists()
    (True, None, False)
    """

    def __init__(self, parent: Path) -> None:
        try:
            parent.mkdir(parents=True, exist_ok=True)
            remove_orphans(parent)
            made = Path(tempfile.mkdtemp(prefix=_NEW, dir=parent))
            lock = os.open(made, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            # Where there are no locks, no orphans are found either: this one may stay behind.
            with contextlib.suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # By this name it is looked at by others, and it is locked already.
            self.path = made.rename(parent / made.name.replace(_NEW, _PREFIX, 1))
        except OSError as reason:
            raise ConfigError(
                f"no folder for a cache can be made below {parent}: {reason.strerror}; give a "
                "parent_cache_dir on a local disk that can be written to"
            ) from reason
        self._parent = parent
        self._removed = weakref.finalize(self, _remove, self.path, lock, os.getpid())

    def close(self) -> None:
        """Remove the folder and all that is in it, and what killed processes left beside it."""
        if self._removed.alive:
            self._removed()
            with contextlib.suppress(OSError):
                remove_orphans(self._parent)


def remove_orphans(parent: Path) -> None:
    """Remove the folders below `parent` whose processes are dead."""
    with os.scandir(parent) as found:
        names = [each.name for each in found if each.name.startswith((_PREFIX, _NEW))]
    for name in names:
        with contextlib.suppress(OSError):
            _remove_orphan(parent / name)


def _remove_orphan(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(folder)
        new = path.name.startswith(_NEW) and time.time() - found.st_mtime < _NEW_SECONDS
        if found.st_uid != os.getuid() or new or not stat.S_ISDIR(found.st_mode):
            return
        # Refused while the process that made it lives.
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(folder)


def _remove(path: Path, lock: int, owner: int) -> None:
    if os.getpid() == owner:
        for _ in range(_TRIES):
            # A thread that was writing just now makes it fail once.
            shutil.rmtree(path, ignore_errors=True)
            if not path.exists():
                break
    with contextlib.suppress(OSError):
        os.close(lock)
