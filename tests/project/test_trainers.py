"""Trainers on one, two and three ranks: the table of docs/frameworks.md is what they
did."""

from __future__ import annotations

import json
import os
import subprocess
from itertools import groupby
from pathlib import Path

import pytest

from energize import get_loader
from examples.clients.common import batches, numbers, stream
from tests.support.launching import TRAINERS, launched

pytestmark = [pytest.mark.jobs, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
RANKS = (1, 2, 3)


def found_in(folder):
    """What a program has written down, by the names of files."""
    return {each.stem: json.loads(each.read_text()) for each in folder.glob("*.json")}


def run_of(module, folder):
    program = f"tests.support.{module}"
    launched(program, folder, folder=folder, imports=TRAINERS, timeout=300)
    return found_in(folder)


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    return run_of("trainers", tmp_path_factory.mktemp("trainers"))


@pytest.fixture(scope="module")
def composer(tmp_path_factory):
    if not (python := ROOT / ".venv-streaming" / "bin" / "python").exists():
        pytest.skip("needs MosaicML's libraries: make peers")
    folder = tmp_path_factory.mktemp("composer")
    command = [python, "-m", "tests.support.composer_trainer", folder]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run(command, cwd=folder, env=environment, timeout=300, check=True)
    return found_in(folder)


def page_table() -> dict[str, list[str]]:
    """The rows of the table of trainers, by their first cells."""
    text = (ROOT / "docs" / "frameworks.md").read_text()
    lines = text[text.index("| trainer |") :].split("\n\n")[0].splitlines()
    head, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in lines
    ]
    assert len(head) == 4
    return {name: cells for name, *cells in rows}


def alike(sequences, whole):
    return all(len(each) > 6 and each == whole[: len(each)] for each in sequences)


def trained_on(dataset, steps):
    """Whether training goes on in the stream, as far as an epoch that two ranks do not
    pad."""
    with get_loader(dataset) as loader:
        whole = [numbers(batch) for _ in range(2) for batch in loader]
    in_turn = [batch for step in steps for batch in step]
    known = in_turn.index([]) if [] in in_turn else len(in_turn)
    return known > 16 and in_turn[:known] == whole[:known]


def left_early(found):
    """Whether trainers validated on the same batches each time, and trained on in the
    stream."""
    for name, dataset in {"indexed": batches(22), "stream": stream(22)}.items():
        loops = [
            (trains, [step for _, step in steps])
            for trains, steps in groupby(found[name], lambda step: step[0] == "train")
        ]
        assert [trains for trains, _ in loops] == [False, True] * 3 + [False]
        sanity, *validated = (steps for trains, steps in loops if not trains)
        trained = [step for trains, steps in loops for step in steps if trains]
        same = validated == [validated[0]] * 3 and sanity == validated[0][: len(sanity)]
        if len(trained) != 12 or not same or not trained_on(dataset, trained):
            return False
    return True


def test_the_table_is_what_they_did(told, composer):
    whole = {}
    for data, make in {"indexed": batches, "stream": stream}.items():
        with get_loader(make(11)) as loader:
            whole[data] = [numbers(batch) for _ in range(3) for batch in loader]
    table, found = page_table(), {}
    for runs, prefix in ((told, ""), (composer, "composer-")):
        before, after = (
            runs[f"{prefix}2-False"],
            [runs[f"{prefix}{n}-True"] for n in RANKS],
        )
        for name, trained in before["trained"].items():
            row = found[name] = ["as with DistributedDataParallel"] * 2 + ["equal"]
            for data, first in trained.items():
                resumed = [first + each["trained"][name][data] for each in after]
                if not alike(resumed, whole[data]):
                    row[2] = f"DIFFERENT: {data}"
            losses = [each["evaluated"].get(name) for each in after]
            if losses[0] is not None:
                same = all(
                    each == pytest.approx([11.3275, 759], rel=1e-6) for each in losses
                )
                row[0] = "equal" if same else str(losses)
            if name in before["left"]:
                row[1] = "equal" if left_early(before["left"][name]) else "DIFFERENT"
            elif name == "Lightning":
                row[1] = "equal"  # as the tests of its loops below find
    assert table == found


def test_evaluations_of_other_lengths_are_those_of_one_process(told):
    """42 samples: a short last batch, and a stream of unknown length."""
    for ranks in RANKS:
        for trainer, numbers_of_trainer in told[f"{ranks}-True"]["more"].items():
            assert numbers_of_trainer == pytest.approx([11.72167, 716], rel=1e-6), (
                trainer
            )


def test_a_run_whose_loops_are_left_early_is_killed(told):
    """In the second loop, which is read to its end on other ranks, and another one."""
    loader = get_loader(batches(11))
    whole = [numbers(batch) for _ in range(4) for batch in loader]
    for ranks in RANKS:
        found = [batch for batch in told[f"killed-{ranks}"] if batch]
        assert len(found) == 18
        assert found == whole[12 : 12 + len(found)]


def test_what_is_refused(told, composer):
    """On both ranks, each time; where one rank reads for both, the other one does not
    wait."""
    for rank in range(2):
        said, parts = told[f"refused-{rank}"]
        assert not any(said.values()), said
        assert sorted(number for part in parts for number in part) == list(range(48)), (
            "Accelerate alone divides"
        )
        assert "has no state of the loader" in composer[f"composer-refused-{rank}"]
    assert "most of the data would never" in told["ended"]


@pytest.fixture(scope="module")
def left(tmp_path_factory):
    """What two ranks under Lightning did, in turn: kind, epoch, and the samples of
    both."""
    folder = tmp_path_factory.mktemp("left")
    told = run_of("lightning_loops", folder)
    ranks = [told[f"loops-{rank}"] for rank in range(2)]
    return {
        name: [
            (*one[:2], [one[2], other[2]])
            for one, other in zip(ranks[0][name], ranks[1][name], strict=True)
        ]
        for name in ranks[0]
    }


def of(steps, kind, epoch=None):
    return [
        found for what, when, found in steps if what == kind and epoch in (None, when)
    ]


@pytest.mark.parametrize("name", ["indexed", "stream"])
def test_lightning_that_leaves_loops_early(left, name):
    steps = left[name]
    first = of(steps, "validate", 0)
    assert of(steps, "sanity") == first[:2]
    assert [of(steps, "validate", epoch) for epoch in range(3)] == [first] * 3
    assert [len(of(steps, "train", epoch)) for epoch in range(3)] == [4, 4, 4]
    dataset = {"indexed": batches, "stream": stream}[name](22)
    assert trained_on(dataset, of(steps, "train"))


@pytest.mark.parametrize("name", ["indexed", "stream"])
def test_lightning_that_goes_on_from_a_checkpoint(left, name):
    for run, after in ((name, 6), (f"{name} whole", 7)):
        assert of(left[f"{run} resumed"], "train") == of(left[run], "train")[after:]
    first = of(left[f"{name} overfit"], "train", 0)
    assert [of(left[f"{name} overfit"], "train", epoch) for epoch in range(3)] == [
        first
    ] * 3
