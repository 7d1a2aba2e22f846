"""energize under the real packages of others: each example of `examples/clients`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.jobs

ROOT = Path(__file__).parents[2]

LINES = {
    "ddp": 6,
    "checkpoint": 2,
    "lightning_fit": 5,
    "accelerate_train": 4,
    "hf_trainer": 6,
    "torch_dataloader": 6,
}
"""How many comparisons each example makes."""


@pytest.mark.parametrize("name", LINES)
def test_it_runs_and_what_is_resumed_is_equal(name):
    done = subprocess.run(
        [sys.executable, "-m", f"examples.clients.{name}"],
        cwd=ROOT,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    compared = [line for line in done.stdout.splitlines() if line.endswith(", equal")]
    assert len(compared) == LINES[name], done.stdout
    assert "DIFFERENT" not in done.stdout


def test_every_example_is_run_and_listed():
    examples = ROOT / "examples" / "clients"
    names = {path.stem for path in examples.glob("[a-z]*.py")} - {"common"}
    assert names == set(LINES)
    listed = (ROOT / "examples" / "README.md").read_text()
    documented = (ROOT / "docs" / "clients.md").read_text()
    for name in names:
        assert f"examples.clients.{name}`" in listed
        assert f"examples/clients/{name}.py" in documented
