"""What is in a folder cannot act on the terminal on which a command shows it."""

from __future__ import annotations

import io
import tarfile

import pytest
from typer.testing import CliRunner

from energize import prepare
from energize.cli.main import app

STEERING = "\x1b[2J\x9b31m\u202e\x07"
COMMANDS = {
    "info": ["info", "@"],
    "lint": ["lint", "@"],
    "plan": ["plan", "@", "--steps", "3", "--world-size", "1"],
    "preview": ["preview", "@"],
    "prepare": [
        "prepare",
        "@",
        "--force-overwrite",
        "--sample-type",
        "TextSample",
        "--split-ratio",
        "1,0,0",
    ],
    "simulate": ["simulate", "@", "--steps", "3"],
    "simulate as JSON": ["simulate", "@", "--steps", "3", "--json"],
    "plan as JSON": ["plan", "@", "--json"],
}


@pytest.fixture
def folder(tmp_path):
    """A folder whose name, keys and texts steer terminals; its name is no UTF-8 either."""
    made = tmp_path / f"photos{STEERING}\udce9"
    made.mkdir()
    with tarfile.open(made / "shard.tar", "w") as tar:
        for number in range(4):
            for part, data in (("txt", f"text {STEERING}"), ("json", f'"{STEERING[-2]}"')):
                member = tarfile.TarInfo(f"{number}{STEERING}.{part}")
                member.size = len(data.encode())
                tar.addfile(member, io.BytesIO(data.encode()))
    prepare(made, split_ratios={"train": 1}, sample_type="TextSample")
    return made


@pytest.mark.parametrize("name", COMMANDS)
def test_folders_cannot_steer_the_terminal(folder, name):
    arguments = [str(folder) if each == "@" else each for each in COMMANDS[name]]
    done = CliRunner().invoke(app, arguments)
    assert (done.exit_code, done.exception) == (0, None), done.output
    assert done.output
    assert all(letter.isprintable() or letter in "\n\t" for letter in done.output), done.output
