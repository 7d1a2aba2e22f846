"""A model that calls its vision encoder only for images, under DDP: without `align` it
does not train, with it as in one process.
"""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest

from energize.core.config import unpacked
from tests.support import budget_program
from tests.support.launching import launched, running

pytestmark = pytest.mark.jobs

STEPS, SAVED_AT = 6, 3
ALIGNS = {"one": "always", "two": "together"}


def run(folder: Path, wrap: str, align: str, save_at: object, ranks: int) -> list[dict]:
    """What the ranks wrote down."""
    out = folder / f"{wrap}-{align}-{save_at}-{ranks}"
    out.mkdir()
    steps = STEPS - SAVED_AT if save_at == "resume" else STEPS
    state = folder / f"{wrap}.pt"
    arguments = (out, wrap, align, steps, save_at, state)
    launched("tests.support.aligned_program", *arguments, ranks=ranks)
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(ranks)]


@pytest.mark.parametrize("wrap", ALIGNS)
def test_without_align_the_model_does_not_train(wrap, tmp_path):
    arguments = (tmp_path, wrap, "plain", STEPS, "never", tmp_path / "none")
    done = launched("tests.support.aligned_program", *arguments, ranks=2, fails=True)
    assert any(done.codes)
    assert not [*tmp_path.glob("*.json")]
    if wrap == "one":
        assert "Expected to have finished reduction" in done.stderr


@pytest.mark.parametrize(("wrap", "align"), ALIGNS.items())
def test_with_align_it_trains_as_one_process_and_resumes_on_other_ranks(
    wrap, align, tmp_path
):
    alone = run(tmp_path, wrap, align, "never", 1)[0]
    two = run(tmp_path, wrap, align, SAVED_AT, 2)
    resumed = run(tmp_path, wrap, align, "resume", 4)
    steps = list(zip(*(rank["called"] for rank in two), strict=True))
    assert all(len(set(step)) == 1 for step in steps)
    assert all(map(all, steps)) == (align == "always")
    for rank in two:
        assert rank["losses"] == pytest.approx(alone["losses"], rel=1e-5)
        assert rank["fillers"] == alone["fillers"] > 0
    for rank in resumed:
        assert rank["losses"] == pytest.approx(alone["losses"][SAVED_AT:], rel=1e-5)
        for values, expected in zip(rank["model"], alone["model"], strict=True):
            assert values == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert two[0]["losses"][-1] < two[0]["losses"][0]


def lines_of(folder: Path, ranks: int) -> list[list[str]]:
    """The whole lines that each rank wrote."""
    files = [folder / f"{rank}.jsonl" for rank in range(ranks)]
    return [file.read_text().split("\n")[:-1] for file in files if file.exists()]


def test_aligned_batches_of_a_budget_resume_after_a_kill_on_other_ranks(tmp_path):
    program = "tests.support.budget_program"
    state = tmp_path / "state"
    written = tmp_path / "written"
    written.mkdir()
    arguments = (tmp_path, 2, state, 10**6)
    with running(written, program, *arguments, ranks=2) as job:
        until = time.monotonic() + 60
        while not all(len(lines) > 60 for lines in lines_of(tmp_path, 2) or [[]]):
            assert job.codes is None, job.stderr
            assert time.monotonic() < until
            time.sleep(0.01)
    expected = [
        budget_program.line_of(batch)
        for batch in budget_program.dataset().at(range(1200))
    ]
    assert any(0 in json.loads(line)[1] for line in expected)  # fillers
    for rank, lines in enumerate(lines_of(tmp_path, 2)):
        delivered = expected[rank::2]
        assert lines[: len(delivered)] == delivered[: len(lines)]
    saved = json.loads(state.read_text())
    position = unpacked(saved["cursor"], "cursor")["position"]
    assert position % 6 == 0 < position
    for ranks, workers in ((1, 0), (3, 1)):
        out = tmp_path / f"{ranks}"
        out.mkdir()
        shutil.copy(state, out / "state")
        launched(program, out, workers, out / "state", 24, ranks=ranks)
        for rank, lines in enumerate(lines_of(out, ranks)):
            start = position + rank
            following = budget_program.dataset().at(
                range(start, start + 24 * ranks, ranks)
            )
            assert lines == [*map(budget_program.line_of, following)]
