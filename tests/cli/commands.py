"""Running `energize` in this process, and as a program of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner

from energize.cli.main import app


def run(*arguments, code=0, stdin=None):
    """What is printed; the errors when it ends with another code than 0 and prints any."""
    done = CliRunner().invoke(app, [str(each) for each in arguments], input=stdin)
    assert done.exit_code == code, done.output
    assert "Traceback" not in done.output
    return done.stdout if code == 0 or not done.stderr else done.stderr


def program(*arguments, code=0, stdin="", cwd=None, **environment):
    """What a process of its own prints on a pipe, outputs and errors."""
    done = subprocess.run(
        [sys.executable, "-m", "energize.cli", *map(str, arguments)],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])} | environment,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout, done.stderr
