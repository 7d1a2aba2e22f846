"""Files that get their names together, when all of them are complete, or not at all."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from energize.errors import PrepareError


def staged(final: Path) -> Path:
    """Where a file is until it gets its name: beside it, as `*.tmp`, which no reader opens."""
    return final.with_name(f"{final.name}.tmp")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Says which file could not be written, and why."""
    try:
        yield
    except OSError as reason:
        raise PrepareError(
            f"{reason.filename or path} cannot be written: {reason.strerror or reason}. "
            "Preparing needs permission to write, and some space, beside the shards and in "
            f"{path.parent}"
        ) from reason


class Staging:
    """The files that preparing `root` writes.

    Only one process at a time may hold a folder's. Leaving the block without `commit` removes
    whatever was staged; a process that is killed leaves files named `*.tmp` only, which the next
    run overwrites.
    """

    def __init__(self, root: Path, folder: str) -> None:
        self._root = root
        self.folder = root / folder
        self._finals: list[Path] = []
        self._lock = -1
        self._made_folder = False

    def __enter__(self) -> Self:
        self._lock = locked(self._root)
        with writing(self.folder):
            self._made_folder = not self.folder.exists()
            self.folder.mkdir(exist_ok=True)
            if self._made_folder:
                self.folder.chmod(stat.S_IMODE(self._root.stat().st_mode) | 0o700)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for final in self._finals:
            with contextlib.suppress(OSError):
                staged(final).unlink(missing_ok=True)
        if self._made_folder:
            # Only an empty one goes: what was committed stays.
            with contextlib.suppress(OSError):
                self.folder.rmdir()
        os.close(self._lock)

    def add(self, finals: Sequence[Path]) -> None:
        """Announce files that others write to `staged(final)`."""
        self._finals += finals

    def write(self, name: str, text: str) -> None:
        """Stage a text file in the folder."""
        final = self.folder / name
        self.add([final])
        with writing(final):
            staged(final).write_text(text, encoding="utf-8")

    def staged_text(self, name: str) -> str | None:
        """The text of a file of the folder that is staged; None where there is none."""
        final = self.folder / name
        return staged(final).read_text(encoding="utf-8") if final in self._finals else None

    def commit(self, like: Path, *, remove: Sequence[str] = ()) -> None:
        """Give all staged files their names, in the order in which they were added.

        Who may read the file `like` may read them too.

        The files `remove` of the folder go first: without the one that says that a folder is
        prepared, nobody reads a mixture of old and new files, whenever the process may die.
        """
        done: list[Path] = []
        mode = stat.S_IMODE(like.stat().st_mode) & 0o666 | 0o600
        try:
            for name in remove:
                (self.folder / name).unlink(missing_ok=True)
            for final in self._finals:
                staged(final).chmod(mode)
                staged(final).replace(final)
                done.append(final)
        except OSError as reason:
            for final in done:
                final.unlink(missing_ok=True)
            raise PrepareError(
                f"{reason.filename} cannot be replaced: {reason.strerror}. The folder is not "
                "prepared now; prepare it again"
            ) from reason


def locked(root: Path) -> int:
    """A descriptor of the folder that holds its lock until it is closed, or the process dies."""
    descriptor = os.open(root, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as reason:
        os.close(descriptor)
        raise PrepareError(
            f"{root} is being prepared by another process; wait until it is done"
        ) from reason
    except OSError:
        # A file system without locks: going on is what preparing there has to mean.
        pass
    return descriptor
