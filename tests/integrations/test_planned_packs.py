"""States of planned packs pass through the checkpoints of trainers."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.launching import ROOT


@pytest.mark.slow
def test_trainers_resume_planned_packs_on_other_ranks(tmp_path):
    pytest.importorskip("pytorch_lightning")
    pytest.importorskip("transformers")
    subprocess.run(
        [sys.executable, "-m", "tests.support.planned_trainers", str(tmp_path)],
        cwd=ROOT,
        check=True,
        timeout=400,
    )
    from tests.support.planned_trainers import TRAINERS, packs

    expected = [batch["number"].tolist() for batch in packs().at(range(90))]
    for trainer in TRAINERS:
        stopped = json.loads((tmp_path / f"{trainer}-2-False.json").read_text())
        assert stopped == expected[:6]
        for ranks in (1, 3):
            resumed = json.loads(
                (tmp_path / f"{trainer}-{ranks}-True.json").read_text()
            )
            assert len(resumed) > 8
            assert resumed == expected[6 : 6 + len(resumed)]
