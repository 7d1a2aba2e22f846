"""A model that calls its vision encoder only for images, under DDP: without `align` it
does not train, with it as in one process.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.launching import launched

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
