"""What preparing a folder writes: all of it gets its names together, or none."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from energize.data.writing import NewFiles, remove_left, taken_back_when_stopped, writing
from energize.errors import PrepareError


class Staging:
    """The files that preparing `root` writes.

    Only one process at a time may hold a folder's. Leaving the block without `commit` removes
    whatever was staged, also when the process is asked to end; what one left that was killed, under
    names that no reader opens, the next removes.
    """

    def __init__(self, root: Path, folder: str) -> None:
        self._root = root
        self.folder = root / folder
        self._files = NewFiles(PrepareError)
        self._made_folder = False
        self._ends = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as ends:
            ends.enter_context(taken_back_when_stopped())
            ends.callback(os.close, locked(self._root))
            ends.callback(self._remove_folder)
            with writing(self.folder, PrepareError):
                self._made_folder = not self.folder.exists()
                self.folder.mkdir(exist_ok=True)
                if self._made_folder:
                    self.folder.chmod(stat.S_IMODE(self._root.stat().st_mode) | 0o700)
            remove_left(self.folder)
            ends.enter_context(self._files)
            self._ends = ends.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ends.__exit__(kind, error, traceback)

    def _remove_folder(self) -> None:
        if self._made_folder:
            # Only an empty one goes: what was committed stays.
            with suppress(OSError):
                self.folder.rmdir()

    @property
    def token(self) -> str:
        """By which other processes know the names that they write to, see `temporary`."""
        return self._files.token

    def place(self, final: Path) -> Path:
        """Where a file is until it gets its name: beside it, where no reader looks."""
        return self._files.place(final)

    def add(self, finals: Sequence[Path]) -> None:
        """Announce files that others write to `place(final)`."""
        self._files.add(finals)
        for folder in dict.fromkeys(final.parent for final in finals):
            remove_left(folder, own=self.token)

    def write(self, name: str, text: str) -> None:
        """Stage a text file in the folder."""
        self._files.write(self.folder / name, text.encode())

    def staged_text(self, name: str) -> str | None:
        """The text of a file of the folder that is staged; None where there is none."""
        final = self.folder / name
        return self.place(final).read_text(encoding="utf-8") if final in self._files else None

    def commit(self, like: Path, *, remove: Sequence[str] = ()) -> None:
        """Give all staged files their names, in the order in which they were added.

        Who may read the file `like` may read them too.

        The files `remove` of the folder go first: without the one that says that a folder is
        prepared, nobody reads a mixture of old and new files, whenever the process may die.
        """
        mode = stat.S_IMODE(like.stat().st_mode) & 0o666 | 0o600
        replaced = [self.folder / name for name in remove]
        before = [path.exists() for path in replaced]
        try:
            self._files.commit(mode, replaced)
        except PrepareError as reason:
            if before != [path.exists() for path in replaced]:
                raise PrepareError(
                    f"{reason}. The folder is not prepared now; prepare it again"
                ) from reason
            raise


def locked(root: Path) -> int:
    """A descriptor of the folder, or file, that holds its lock until it is closed, or the process
    dies.
    """
    with writing(root, PrepareError):
        descriptor = os.open(root, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
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
