"""A command run in a terminal of its own, and answered as a person would."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

_STYLE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_SECONDS = 60


class Terminal:
    """`energize ARGUMENTS` on a pseudo-terminal; `shown` is all it printed, without
    colours."""

    def __init__(self, *arguments: str | Path) -> None:
        self._ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "energize"]
        self._process = subprocess.Popen(
            [*command, *map(str, arguments)],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            env=os.environ | {"COLUMNS": "120", "TERM": "xterm"},
        )
        os.close(theirs)
        self.shown = ""

    def answer(self, dialogue: Iterable[tuple[str, str]]) -> int:
        """Waits for each question, types its answer, then waits for the end: the exit
        code."""
        for question, text in dialogue:
            self._wait_for(question)
            os.write(self._ours, f"{text}\n".encode())
        self._read_until(lambda: False)
        os.close(self._ours)
        return self._process.wait(_SECONDS)

    def _wait_for(self, question: str) -> None:
        start = len(self.shown)
        assert self._read_until(lambda: question in self.shown[start:]), (
            f"{question!r} was not asked; shown was {self.shown}"
        )

    def _read_until(self, enough) -> bool:
        """Read to where `enough()`, or to the end."""
        deadline = time.monotonic() + _SECONDS
        while not enough():
            assert time.monotonic() < deadline, f"nothing more came after {self.shown}"
            if select.select([self._ours], [], [], 0.1)[0]:
                try:
                    data = os.read(self._ours, 65536)
                except OSError:  # how a terminal says that nobody writes to it any more
                    return False
                self.shown += _STYLE.sub("", data.decode("utf-8", "replace"))
        return True
