"""Walk through a page: files are written and commands run as they are printed, in one
folder."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_BLOCK = re.compile(
    r'^```(?:\w+ title="(?P<file>[^"]+)"|console)\n(?P<text>.*?)^```', re.M | re.S
)
_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def walk(page: Path, folder: Path) -> Iterator[tuple[str, str]]:
    """Yield each command of a page with what it printed, which is what the page
    says."""
    programs = Path(sys.executable).parent
    environment = os.environ | {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "COLUMNS": "100",
    }
    for block in _BLOCK.finditer(page.read_text()):
        if block["file"]:
            (folder / block["file"]).write_text(block["text"])
            continue
        for command, said in re.findall(
            r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block["text"], re.M
        ):
            done = subprocess.run(
                ["bash", "-c", command],
                cwd=folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=110,
                check=False,
            )
            fits = doctest.OutputChecker().check_output(said, done.stdout, _FLAGS)
            assert fits, f"{command}\n{done.stdout}"
            assert done.returncode == 0
            yield command, done.stdout
