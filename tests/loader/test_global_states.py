"""One state for all ranks, over real process groups: saved by two ranks, restored by three."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from energize import ConfigError, StateError, WorkerConfig, get_savable_loader
from tests.support.datasets import numbers
from tests.support.global_states_program import DATASETS, LANES

pytestmark = pytest.mark.jobs

ROOT = Path(__file__).parent.parent.parent


def run(what: str, ranks: int, folder: Path) -> list[dict]:
    """What each of the ranks found."""
    program = [sys.executable, "-m", "tests.support.global_states_program", what]
    processes = [
        subprocess.Popen(
            [*program, str(rank), str(ranks), str(folder)],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        said = [each.communicate(timeout=110)[1] for each in processes]
        assert [each.returncode for each in processes] == [0] * ranks, "\n".join(said)
    finally:
        for each in processes:
            each.kill()
    return [json.loads((folder / f"{what}.{rank}.out").read_text()) for rank in range(ranks)]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("states")
    return run("save", 2, folder), run("restore", 3, folder)


def in_turn(of_ranks: list[list]) -> list:
    return [item for step in zip(*of_ranks, strict=True) for item in step]


@pytest.mark.parametrize("name", DATASETS)
def test_three_ranks_go_on_where_two_have_been(found, name):
    saved, restored = found
    config = WorkerConfig(0, 1, 0)
    with get_savable_loader(DATASETS[name](), worker_config=config, lanes=LANES) as loader:
        whole = list(islice(iter(loader), 22))
    assert in_turn([each[name][0] for each in saved]) == whole[:10]
    assert in_turn([each[name][1] for each in saved]) == whole[10:20]
    assert in_turn([each[name] for each in restored]) == whole[10:22]


@pytest.mark.parametrize("name", DATASETS)
def test_the_state_is_on_the_rank_that_asked_for_it(found, name):
    assert [each[name][2] for each in found[0]] == [False, True]


def test_what_cannot_be_restored_is_an_error_on_all_ranks(found):
    for rank in found[1]:
        none, stranger, nothing, damaged = rank["errors"]
        assert none == nothing
        assert none.startswith("StateError: restore_state_global: there is no state")
        assert stranger.startswith("ConfigError: restore_state_global: rank 7 is not among")
        assert damaged.startswith("StateError: the saved state has")


def test_a_process_alone():
    loader = get_savable_loader(numbers(9), worker_config=WorkerConfig(0, 1, 0))
    next(iter(loader))
    state = loader.save_state_global(global_dst_rank=0)
    assert state == loader.save_state_rank()
    assert loader.save_state_global(global_dst_rank=1) is None
    for source in (None, 0):
        other = get_savable_loader(numbers(9), worker_config=WorkerConfig(0, 1, 0))
        other.restore_state_global(state, src_rank=source)
        assert next(iter(other)) == 1
    with pytest.raises(StateError, match="there is no state"):
        other.restore_state_global(None)


def test_a_rank_that_cannot_talk_with_the_one_that_has_the_state():
    loader = get_savable_loader(numbers(9), worker_config=WorkerConfig(1, 2, 0))
    with pytest.raises(ConfigError, match=r"rank 0 has the state.*rank 1 of 2, cannot talk"):
        loader.restore_state_global(None, src_rank=0)
