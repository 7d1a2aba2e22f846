"""Install the other libraries, and compare loading in one run.

    python -m benchmarks [--runs 5] [--samples 16000]

prints one table, and writes build/loading.json and build/loading.svg.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.loading import main, parsed

_ROOT = Path(__file__).resolve().parents[1]
_PEERS = ("energon", "streaming", "litdata")


def _compare(arguments: list[str]) -> None:
    parsed(arguments)  # shows --help and faults before anything is installed
    subprocess.run(["make", "peers", ".venv-litdata/.ready"], cwd=_ROOT, check=True)
    peers = []
    for name in _PEERS:
        peers += [f"--{name}", str(_ROOT / f".venv-{name}" / "bin" / "python")]
    build = _ROOT / "build"
    build.mkdir(exist_ok=True)
    files = ["--json", f"{build}/loading.json", "--plot", f"{build}/loading.svg"]
    main([*peers, *files, *arguments])


if __name__ == "__main__":
    _compare(sys.argv[1:])
