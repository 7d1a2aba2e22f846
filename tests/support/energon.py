"""The real megatron-energon, in an environment of its own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


def energon_python() -> Path:
    """An interpreter that has megatron-energon; none is a failure in CI and a skip elsewhere."""
    given = os.environ.get("ENERGIZE_ENERGON_PYTHON")
    python = Path(given) if given else ROOT / ".venv-energon" / "bin" / "python"
    if not python.exists():
        missing = f"there is no {python}; `make peers` makes it"
        if os.environ.get("CI") == "true":
            pytest.fail(missing)
        pytest.skip(missing)
    return python


def run_energon(*arguments: str | Path, program: str = "") -> str:
    """What `energon ARGUMENTS`, or a Python program given them, prints; it must succeed."""
    python = energon_python()
    command = [python, "-c", program] if program else [python.with_name("energon")]
    done = subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
