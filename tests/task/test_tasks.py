"""Tasks from loose files to trained steps: learned, killed and resumed, and packed."""

from __future__ import annotations

import json
from statistics import mean

import pytest

from tests.support.launching import TRAINERS, launched

pytest.importorskip("transformers")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("task", ["videos", "tools", "boxes"])
def test_a_task_is_learned_and_resumes_and_packs(task, tmp_path):
    from tests.support.task_program import SAVED_AT, TASKS

    TASKS[task][0](tmp_path)
    results = {}
    for mode, ranks in (("whole", 2), ("killed", 2), ("resumed", 1)):
        arguments = ("tests.support.task_program", tmp_path, task, mode)
        launched(
            *arguments,
            ranks=ranks,
            imports=TRAINERS,
            timeout=500,
            fails=mode == "killed",
        )
        if mode != "killed":
            results |= json.loads((tmp_path / f"{mode}.json").read_text())
    losses = {name: [loss for loss, _ in steps] for name, steps in results.items()}
    assert mean(losses["whole"][-5:]) < 0.8 * mean(losses["whole"][:5])
    assert losses["packed"] == pytest.approx(losses["whole"], abs=1e-3)
    assert losses["resumed"] == pytest.approx(losses["whole"][SAVED_AT:], abs=1e-3)
    samples = {name: [keys for _, keys in steps] for name, steps in results.items()}
    assert samples["resumed"] == samples["whole"][SAVED_AT:]
