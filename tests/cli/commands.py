"""Running `energize` in this process, and as a program of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner

from energize.cli.main import app


def run(*arguments, code=0, stdin=None):
    """What is printed; the errors when it ends with another code than 0 and prints
    any."""
    done = CliRunner().invoke(app, [str(each) for each in arguments], input=stdin)
    assert done.exit_code == code, (arguments, done.output)
    assert "Traceback" not in done.output
    return done.stdout if code == 0 or not done.stderr else done.stderr


def refused(rows, *command):
    """Run a command with the options of each row: the exit code and words of the one
    error."""
    for options, code, *words in rows:
        told = " ".join(run(*command, *options, code=code).split())
        for word in words:
            assert word in told, (options, word, told)


def as_json(*arguments):
    """The objects that a command prints with --json."""
    text = run(*arguments, "--json")
    plan = arguments[0] == "plan"
    return (
        [json.loads(line) for line in text.splitlines()] if plan else json.loads(text)
    )


def program(*arguments, code=0, stdin="", cwd=None, **environment):
    """What a process of its own prints on a pipe, outputs and errors."""
    done = subprocess.run(
        [sys.executable, "-m", "energize", *map(str, arguments)],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])} | environment,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert ("Traceback" in done.stderr) == ("--debug" in arguments)
    return done.stdout, done.stderr
