"""The real megatron-energon, in an environment of its own."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.peers import peer_python


def run_energon(*arguments: str | Path, program: str = "", stdin: str | None = None) -> str:
    """What `energon ARGUMENTS`, or a Python program given them, prints; it must succeed."""
    python = peer_python("energon")
    command = [python, "-c", program] if program else [python.with_name("energon")]
    done = subprocess.run(
        [*command, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
