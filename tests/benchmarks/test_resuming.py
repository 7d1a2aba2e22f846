"""The benchmark of resuming, run for real on a few sources."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.comparing import OWN
from benchmarks.large_photographs import large_folder
from benchmarks.large_photographs import main as read_large
from benchmarks.resuming import main

pytestmark = pytest.mark.jobs

NEAR, FAR = 6_400, 10**9


def test_resuming_is_measured_at_positions_far_out(tmp_path, capsys):
    report = tmp_path / "report.json"
    kinds = ["--kinds", "stream", "folders"]
    sizes = ["--sources", "3", "--workers", "0", "--positions", str(NEAR), str(FAR)]
    main([*kinds, *sizes, "--rounds", "3", "--data", str(tmp_path), "--json", str(report)])
    found = json.loads(report.read_text())["resumptions"]
    assert [(each["kind"], each["position"]) for each in found] == [
        (kind, position) for kind in ("stream", "folders") for position in (NEAR, FAR)
    ]
    for each in found:
        assert each["library"] == OWN
        assert each["rounds"] == 3
        assert each["json_bytes"] < 2_000
        assert 0 < each["state_again"] < each["resumed"] < 1
        assert each["ratio"] < 5
    shown = capsys.readouterr().out
    assert "stream: ms" in shown
    assert "1,000,000,000" in shown


def test_a_batch_that_is_not_the_next_one_is_no_measurement(tmp_path):
    forgetful = tmp_path / "forgetful.py"
    forgetful.write_text(
        "from benchmarks.resuming_measuring import main\n"
        "from benchmarks.subject_energize_resuming import Energize\n"
        "class Forgetful(Energize):\n"
        "    def load(self, loader, state):\n"
        "        pass\n"
        "main(Forgetful)\n"
    )
    asked = {"kind": "indexed", "sources": 3, "workers": 0, "positions": [NEAR], "rounds": 3}
    done = subprocess.run(
        [sys.executable, str(forgetful), json.dumps(asked | {"seconds": 5})],
        cwd=Path(__file__).parents[2],
        env={"PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "energize: the first batch is" in done.stderr
    assert not done.stdout


def test_large_photographs_are_read_within_their_bounds(tmp_path):
    found = read_large(str(large_folder(tmp_path, "jpg", side=700)), "torchrgb8", 3)
    assert found["one"] == 3 * 700 * 700
    assert found["one"] < found["shared"] < 2**30
    assert 0 < found["first"] <= found["second"]
