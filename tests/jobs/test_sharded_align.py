"""A LLaVA under FSDP2 and DDP that calls its vision tower only for images, on 4 ranks:
without `align` they do not get through a step, with it they train as one process.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

from tests.support.launching import launched, running

pytestmark = pytest.mark.jobs

PROGRAM = "tests.support.sharded_program"
IMPORTS = (
    "torch.distributed.fsdp",
    "torch.distributed.checkpoint",
    "transformers.models.llava.modeling_llava",
    "transformers.models.llava.processing_llava",
    "transformers.models.clip.modeling_clip",
    "transformers.models.clip.image_processing_clip",
    "transformers.models.llama.modeling_llama",
)
STEPS, SAVED_AT, RANKS = 4, 2, 4
ALIGNS = {"fsdp": "together", "ddp": "always"}
BATCHES = ("fixed", "budget")
FAULTS = {"fsdp": "gloo", "ddp": "Expected to have finished reduction|gloo"}
HANGS = 60.0


def run(
    folder: Path, wrap: str, batches: str, align: str, save_at: object, ranks: int
) -> list[dict]:
    """What the ranks wrote down."""
    out = folder / f"{save_at}-{ranks}"
    out.mkdir()
    steps = STEPS - SAVED_AT if save_at == "resume" else STEPS
    arguments = (out, wrap, batches, align, steps, save_at, folder / "state")
    launched(PROGRAM, *arguments, ranks=ranks, imports=IMPORTS)
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(ranks)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Return the run of one process with the whole model.

    Batches of equal size are not aligned: their global batches have the same samples.
    """

    @cache
    def of(batches: str, align: str) -> dict:
        folder = tmp_path_factory.mktemp("alone")
        return run(folder, "none", batches, align, "never", 1)[0]

    return of


@pytest.mark.parametrize("batches", BATCHES)
@pytest.mark.parametrize("wrap", ALIGNS)
def test_without_align_it_hangs_or_fails_in_a_collective(wrap, batches, tmp_path):
    written = tmp_path / "written"
    written.mkdir()
    arguments = (tmp_path, wrap, batches, "plain", STEPS, "never", tmp_path / "none")
    with running(written, PROGRAM, *arguments, ranks=RANKS, imports=IMPORTS) as job:
        with suppress(AssertionError):
            job.wait(HANGS)
        codes = job.codes
        stderr = job.stderr
    assert not [*tmp_path.glob("*.json")]
    assert codes is None or (any(codes) and re.search(FAULTS[wrap], stderr))
    errors = re.findall(r"^(?:\[rank\d\]: )?\w+Error: .*", stderr, re.M)
    assert all(re.search(FAULTS[wrap], error) for error in errors), errors


@pytest.mark.parametrize("batches", BATCHES)
@pytest.mark.parametrize(("wrap", "align"), ALIGNS.items())
def test_with_align_it_trains_as_one_process_and_resumes_on_2_and_3_ranks(
    wrap, align, batches, alone, tmp_path
):
    expected = alone(batches, "plain" if batches == "fixed" else align)
    four = run(tmp_path, wrap, batches, align, SAVED_AT, RANKS)
    steps = list(zip(*(rank["called"] for rank in four), strict=True))
    assert all(len(set(step)) == 1 for step in steps)
    assert all(map(all, steps)) == (align == "always")
    size = sum(rank["local_size"] for rank in four)
    assert size == expected["local_size"] * (1 if wrap == "fsdp" else RANKS)
    for rank in four:
        assert rank["losses"] == pytest.approx(expected["losses"], rel=1e-5)
        assert rank["fillers"] + rank["padding"] > 0
    assert four[0]["losses"][-1] < four[0]["losses"][0]
    for ranks in (2, 3):
        resumed = run(tmp_path, wrap, batches, align, "resume", ranks)
        for rank in resumed:
            losses = pytest.approx(expected["losses"][SAVED_AT:], rel=1e-5)
            assert rank["losses"] == losses
        for name, values in expected["model"].items():
            weights = pytest.approx(values, rel=1e-4, abs=1e-6)
            assert resumed[0]["model"][name] == weights
