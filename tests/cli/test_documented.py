"""The commands of docs/command-line.md and docs/debugging.md print what the pages say."""

import doctest
import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from energize.cli.main import COMMANDS, app, load_command
from tests.cli.documented import lay_out

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "command-line.md"
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def examples(page):
    """Each command of a page, with what is said to come out."""
    for block in re.findall(r"(?:^(?: {4}.*)?\n)+", page.read_text(), re.MULTILINE):
        for each in re.split(r"^    \$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = each.partition("\n")
            yield command, re.sub(r"^    ", "", output, flags=re.MULTILINE)


def ran(page, folder, monkeypatch):
    """The commands of a page that were run in `folder`, and printed what it says."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "120")
    code, seen = 0, []
    for command, said in examples(page):
        program, *arguments = shlex.split(command)
        if program == "echo":
            printed = f"{code}\n"
        else:
            done = CliRunner().invoke(app, arguments)
            printed, code = done.output, done.exit_code
            seen.append(arguments[0])
        assert doctest.OutputChecker().check_output(said, printed, FLAGS), (
            f"{command}\n{printed}"
        )
    return seen


@pytest.mark.jobs
def test_the_page(tmp_path, monkeypatch):
    lay_out(tmp_path)
    seen = ran(PAGE, tmp_path, monkeypatch)
    assert {"prepare", "prepare-media", "info", "lint", "preview", "replay"} <= set(
        seen
    )


@pytest.mark.jobs
def test_the_page_of_pictures(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("draw", DOCS / "images" / "draw.py")
    drawing = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(drawing)
    drawing.lay_out(tmp_path)
    assert set(ran(DOCS / "debugging.md", tmp_path, monkeypatch)) == {
        "simulate",
        "report",
    }
    for name in ("stages.png", "changed.png"):
        with (
            Image.open(tmp_path / name) as drawn,
            Image.open(DOCS / "images" / name) as shown,
        ):
            assert drawn.size == shown.size
            assert (DOCS / "images" / name).stat().st_size < 100_000
    assert "<svg" in (tmp_path / "many.html").read_text()


def test_every_command_is_on_the_page():
    text = PAGE.read_text()
    for name in COMMANDS:
        assert f"`{name}" in text, name


@pytest.mark.parametrize("name", COMMANDS)
def test_the_summary_of_a_command_is_the_first_sentence_of_its_help(name):
    paragraph = load_command(name).help.split("\n\n")[0]
    assert COMMANDS[name].summary == " ".join(paragraph.split())


def test_the_list_of_commands_imports_none_of_them():
    code = (
        "import sys; sys.argv = ['energize', '--help']; "
        "import atexit; from energize.cli.main import app; "
        "atexit.register(lambda: print(*sys.modules)); app()"
    )
    command = [sys.executable, "-c", code]
    shown = subprocess.run(command, check=True, capture_output=True, text=True)
    loaded = set(shown.stdout.splitlines()[-1].split())
    assert "energize.cli.main" in loaded
    assert not loaded & {"numpy", "torch", "pydantic", "energize.cli.look"}
