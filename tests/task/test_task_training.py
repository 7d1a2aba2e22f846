"""Documents, preference pairs and questions train from loose files, and resume."""

from __future__ import annotations

import json

import pytest

from tests.support import task_files
from tests.support.launching import launched

pytest.importorskip("transformers")
pytestmark = pytest.mark.slow

PROGRAM = "tests.support.tasks_program"
SAVED = 12
MAKE = {
    "documents": task_files.documents,
    "preferences": task_files.preferences,
    "questions": task_files.questions,
}


def trained(data, folder, task, *, workers, ranks, killed=0):
    folder.mkdir(exist_ok=True)
    arguments = (data, folder, task, workers, killed)
    options = {"ranks": ranks, "fails": bool(killed), "timeout": 280}
    launched(PROGRAM, *arguments, imports=["transformers"], **options)
    file = folder / "losses.json"
    return json.loads(file.read_text()) if file.exists() else None


@pytest.mark.timeout(900)
@pytest.mark.parametrize("task", MAKE)
def test_a_killed_run_continues_on_another_topology(task, tmp_path):
    data = MAKE[task](tmp_path / "data").parent
    whole = trained(data, tmp_path / "whole", task, ranks=2, workers=2)
    assert len(whole) == 30
    assert sum(whole[-5:]) < 0.7 * sum(whole[:5])
    broken = tmp_path / "broken"
    assert trained(data, broken, task, ranks=2, workers=2, killed=17) is None
    resumed = trained(data, broken, task, ranks=1, workers=3)
    assert resumed == pytest.approx(whole[SAVED:], rel=1e-3, abs=1e-4)


@pytest.mark.timeout(900)
def test_dpo_trainer_of_trl_continues_from_a_checkpoint(tmp_path):
    pytest.importorskip("trl")
    data = task_files.preferences(tmp_path / "data").parent
    launched("tests.support.trl_program", data, tmp_path, ranks=2, timeout=280)
    whole, resumed = json.loads((tmp_path / "losses.json").read_text())
    assert whole[0] == pytest.approx(0.6931, abs=1e-3)
    assert sum(whole[-3:]) < 0.6 * sum(whole[:3])
    assert resumed == pytest.approx(whole, rel=1e-3)
