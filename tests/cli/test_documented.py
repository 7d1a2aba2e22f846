"""The commands of docs/command-line.md print what the page says."""

import doctest
import re
import shlex
from pathlib import Path

import typer
from typer.testing import CliRunner

from energize.cli.main import app
from tests.cli.documented import lay_out

PAGE = Path(__file__).parents[2] / "docs" / "command-line.md"
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def examples():
    """Each command of the page, with what is said to come out."""
    for block in re.findall(r"(?:^(?: {4}.*)?\n)+", PAGE.read_text(), re.MULTILINE):
        for each in re.split(r"^    \$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = each.partition("\n")
            yield command, re.sub(r"^    ", "", output, flags=re.MULTILINE)


def test_the_page(tmp_path, monkeypatch):
    lay_out(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    code, seen = 0, []
    for command, said in examples():
        program, *arguments = shlex.split(command)
        if program == "echo":
            printed = f"{code}\n"
        else:
            done = CliRunner().invoke(app, arguments)
            printed, code = done.output, done.exit_code
            seen.append(arguments[0])
        assert doctest.OutputChecker().check_output(said, printed, FLAGS), f"{command}\n{printed}"
    assert {"prepare", "prepare-media", "info", "lint", "preview", "replay"} <= set(seen)


def test_every_command_is_on_the_page():
    text = PAGE.read_text()
    for name in typer.main.get_command(app).commands:
        assert f"`{name}" in text, name
