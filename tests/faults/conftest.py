"""One disk that can be made sick, and the folders on it, for all tests of a process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.sick_disk import SickDisk

ROOT = Path(__file__).parents[2]


class Readers:
    """The program that reads everything on a disk that fails."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._disk = SickDisk()
        self._log = folder / "log"
        code = "from tests.support.sick_readers import main; main()"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code, str(folder)],
                cwd=ROOT,
                env=self._disk.environment | {"ENERGIZE_LIMIT_READ_TRIES": "2"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._well: dict[str, list[str]] = {}

    def ask(self, name: str, workers: int, faults: list[dict[str, Any]], after: int) -> Any:
        """What a reader made of these faults; see `tests/support/sick_readers.py`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([name, workers, faults, after]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, self.log()[-3000:]
        return json.loads(line)

    def well(self, name: str) -> list[str]:
        """What the reader gives on a disk that is well."""
        if name not in self._well:
            told = self.ask(name, 0, [], -1)
            assert told["error"] is None, told
            assert len(told["items"]) == 20
            self._well[name] = told["items"]
        return self._well[name]

    def log(self) -> str:
        return self._log.read_text()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._disk.close()


@pytest.fixture(scope="module")
def readers(tmp_path_factory) -> Iterator[Readers]:
    started = Readers(tmp_path_factory.mktemp("sick"))
    yield started
    started.close()
