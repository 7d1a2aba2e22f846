"""A program on a disk that can be made sick, which is asked line by line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.sick_disk import SickDisk

ROOT = Path(__file__).parents[2]


class SickProgram:
    """`tests.support.NAME`, with a folder for its only argument: for each line of JSON on its
    standard input it prints one.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.folder = folder
        self._disk = SickDisk()
        self._log = folder / "log"
        code = f"from tests.support.{name} import main; main()"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code, str(folder)],
                cwd=ROOT,
                env=self._disk.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def told(self, *asked: Any) -> Any:
        """The answer to what is asked."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the program ended when asked {asked}: {self.log()[-3000:]}"
        return json.loads(line)

    def log(self) -> str:
        """What it has printed as errors."""
        return self._log.read_text()

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._disk.close()
