"""The examples run, each in a process of its own, and show what they promise."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from examples import photographs, resume

pytestmark = pytest.mark.jobs

ROOT = Path(__file__).parents[2]
NAMES = [recipe.name for recipe in photographs.RECIPES]
ENVIRONMENT = os.environ | {"COLUMNS": "120", "PYTHONUNBUFFERED": "1"}


def command(name: str, data: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", f"examples.{name}", "--data", str(data), *options]


def run(name: str, data: Path, *options: str, code: int = 0) -> str:
    done = subprocess.run(
        command(name, data, *options),
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    if code == 0:
        assert done.stderr == ""
    return done.stdout + done.stderr


def rows(output: str, title: str) -> dict[str, list[str]]:
    """The rows of the table of that title, by their first cell."""
    lines = output[output.index(title) :].splitlines()
    body = lines[4 : next(i for i, line in enumerate(lines) if line.startswith("└"))]
    cells = [[cell.strip() for cell in line.strip("│").split("│")] for line in body]
    return {first: others for first, *others in cells}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("examples") / "data"
    assert run("photographs", folder).count(", made") == 3
    return folder


@pytest.fixture(scope="module")
def demo(data) -> str:
    return run("demo", data, "--batch-size", "4")


def test_folders_that_are_whole_stay_as_they_are(demo):
    assert demo.count("already there") == 3


def test_losses_go_down(demo):
    losses = rows(demo, "Loss without weights")
    assert set(losses) == {"CaptionBatch", "ImageBatch"}
    assert {row[0] for row in losses.values()} == {"500"}
    for row in losses.values():
        assert 0 <= float(row[2]) < 0.6 * float(row[1])


def test_shares_of_the_blend_are_exact(demo):
    assert rows(demo, "Shares of the blend") == {
        "classification": ["50.00%", "50.00%", "2000", "1.00"],
        "captions_a": ["30.00%", "30.00%", "1200", "1.00"],
        "captions_b": ["20.00%", "20.00%", "800", "0.50"],
    }


def test_shares_of_the_mix_are_exact(demo):
    mixed = demo[demo.index("3  A mix") :]
    (losses,) = rows(mixed, "Loss without weights").values()
    assert 0 < float(losses[2]) < 0.8 * float(losses[1])
    shares = rows(mixed, "Shares of the mix")
    assert {name: row[2] for name, row in shares.items()} == {
        "classification": "600",
        "captions_a": "300",
        "captions_b": "100",
    }


def test_validation_reads_every_sample_and_gives_the_same_numbers_twice(demo):
    found = rows(demo, "Validation  ")
    assert {name: (row[0], row[3]) for name, row in found.items()} == {
        "classification": ("200", "equal"),
        "captions_a": ("160", "equal"),
        "captions_b": ("120", "equal"),
    }


def test_a_resumed_run_goes_on_with_equal_batches(demo):
    assert f"{resume.COMPARED} of {resume.COMPARED} batches and losses are equal" in demo
    assert "DIFFERS" not in demo
    assert "all equal" in demo


def test_an_example_on_its_own_saves_a_model_that_another_loads(data, tmp_path):
    saved = tmp_path / "model.pt"
    options = ("--batch-size", "8", "--workers", "0")
    trained = run("train_blend", data, "--steps", "60", "--save", str(saved), *options)
    shares = rows(trained, "Shares of the blend")
    assert sum(int(row[2]) for row in shares.values()) == 480
    validated = run("validate", data, "--model", str(saved), *options)
    assert "DIFFERS" not in validated
    untrained = run("validate", data, *options)
    loss = {name: float(row[1]) for name, row in rows(validated, "Validation  ").items()}
    before = {name: float(row[1]) for name, row in rows(untrained, "Validation  ").items()}
    assert all(loss[name] < before[name] for name in NAMES)


def test_a_folder_of_somebody_else_is_left_alone(tmp_path):
    (tmp_path / "classification").mkdir()
    (tmp_path / "classification" / "mine.tar").write_bytes(b"mine")
    said = run("photographs", tmp_path, code=1)
    assert str(tmp_path / "classification") in said
    assert "--data" in said
    assert (tmp_path / "classification" / "mine.tar").read_bytes() == b"mine"


def test_ctrl_c_leaves_no_process_and_no_half_made_folder(data):
    process = subprocess.Popen(
        command("train_blend", data, "--steps", "100000"),
        cwd=ROOT,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while len(members(process.pid)) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(members(process.pid)) == 3, "the trainer and two workers"
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=20)
    assert process.returncode == 130
    assert said.strip() == "stopped"
    assert members(process.pid) == []
    assert not list(data.glob(".*"))


def members(group: int) -> list[int]:
    """The running processes of a process group."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def test_the_readme_lists_every_file():
    text = (ROOT / "examples" / "README.md").read_text()
    for path in (ROOT / "examples").glob("[a-z]*.py"):
        assert path.name in text or f"examples.{path.stem}`" in text, path.name
