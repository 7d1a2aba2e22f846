"""The script written for Megatron-Energon: here with our imports, and with its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.peers import peer_python

pytestmark = pytest.mark.jobs

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "energon_training.py"


def run(python: Path | str, script: Path, data: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, script, "--data", data, "--steps", "12"],
        cwd=data.parent,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def test_it_trains_saves_restores_and_validates(tmp_path):
    done = run(sys.executable, SCRIPT, tmp_path / "data")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "after restoring: 6 of 6 batches are equal" in done.stdout
    assert re.search(r"validation: \d+ batches, loss \d", done.stdout)


@pytest.mark.energon
def test_it_is_a_script_of_energon_but_for_its_imports(tmp_path):
    text = SCRIPT.read_text()
    script = tmp_path / "script.py"
    theirs, changed = re.subn(r"(?m)^from energize\b", "from megatron.energon", text)
    script.write_text(theirs)
    assert changed == 2
    done = run(peer_python("energon"), script, tmp_path / "data")
    # It trains there too. Packs of joined samples cannot be restored there.
    assert re.search(r"step 11: loss \d", done.stdout), done.stdout + done.stderr
