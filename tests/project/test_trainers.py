"""Trainers on one, two and three ranks: the table of docs/clients.md is what they did."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from energize import get_loader
from examples.clients.common import batches, numbers, stream

pytestmark = pytest.mark.jobs

ROOT = Path(__file__).parents[2]
RANKS = (1, 2, 3)


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What was found, by the names of files."""
    folder = tmp_path_factory.mktemp("trainers")
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.trainers", folder],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return {each.stem: json.loads(each.read_text()) for each in folder.glob("*.json")}


def page_table() -> dict[str, dict[str, str]]:
    """The rows of the table of trainers, by their first cells."""
    text = (ROOT / "docs" / "clients.md").read_text()
    lines = text[text.index("| trainer |") :].split("\n\n")[0].splitlines()
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: dict(zip(head, row, strict=True)) for row in rows}


def test_the_table_is_what_they_did(told):
    loader = get_loader(batches(11))
    whole = [numbers(batch) for _ in range(3) for batch in loader]
    before, after = told["2-False"]["trained"], [told[f"{n}-True"] for n in RANKS]
    table = page_table()
    assert set(table) == set(before)
    for name, row in table.items():
        sequences = [before[name] + each["trained"][name] for each in after]
        assert all(len(each) > 6 for each in sequences), name
        same = all(each == whole[: len(each)] for each in sequences)
        assert row["resumed on 1, 2 and 3 ranks"] == ("equal" if same else "DIFFERENT"), name
        losses = [each["evaluated"].get(name) for each in after]
        if losses[0] is not None:
            same = all(each == pytest.approx([11.3275, 759], rel=1e-6) for each in losses)
            assert row["evaluated on 1, 2 and 3 ranks"] == ("equal" if same else losses), name


def test_what_is_refused(told):
    """On both ranks, each time; where one rank reads for both, the other one does not wait."""
    for rank in range(2):
        said, parts = told[f"refused-{rank}"]
        assert not any(said.values()), said
        assert sorted(number for part in parts for number in part) == list(range(48)), (
            "Accelerate alone divides"
        )
    assert "most of the data would never" in told["ended"]


@pytest.fixture(scope="module")
def left(tmp_path_factory):
    """What two ranks under Lightning did, in turn: kind, epoch, and the samples of both."""
    folder = tmp_path_factory.mktemp("left")
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.lightning_loops", folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    ranks = [json.loads((folder / f"loops-{rank}.json").read_text()) for rank in range(2)]
    return {
        name: [
            (*one[:2], [one[2], other[2]])
            for one, other in zip(ranks[0][name], ranks[1][name], strict=True)
        ]
        for name in ranks[0]
    }


def of(steps, kind, epoch=None):
    return [found for what, when, found in steps if what == kind and epoch in (None, when)]


@pytest.mark.parametrize("name", ["indexed", "stream"])
def test_lightning_that_leaves_loops_early(left, name):
    steps = left[name]
    first = of(steps, "validate", 0)
    assert of(steps, "sanity") == first[:2]
    assert [of(steps, "validate", epoch) for epoch in range(3)] == [first] * 3
    trained = of(steps, "train")
    assert [len(of(steps, "train", epoch)) for epoch in range(3)] == [4, 4, 4]
    dataset = {"indexed": batches, "stream": stream}[name](22)
    with get_loader(dataset, lanes=None if name == "indexed" else 4) as loader:
        whole = [numbers(batch) for _ in range(2) for batch in loader]
    in_turn = [batch for step in trained for batch in step]
    known = in_turn.index([]) if [] in in_turn else len(in_turn)  # where two ranks pad an epoch
    assert known > 16
    assert in_turn[:known] == whole[:known]


@pytest.mark.parametrize("name", ["indexed", "stream"])
def test_lightning_that_goes_on_from_a_checkpoint(left, name):
    for run, after in ((name, 6), (f"{name} whole", 7)):
        assert of(left[f"{run} resumed"], "train") == of(left[run], "train")[after:]
    first = of(left[f"{name} overfit"], "train", 0)
    assert [of(left[f"{name} overfit"], "train", epoch) for epoch in range(3)] == [first] * 3
