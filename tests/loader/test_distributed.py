"""Real process groups: torchrun, four ranks, gloo. One run of them is enough for all."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from energize import FilterDataset, LimitDataset, ListSource
from tests.support import texts
from tests.support.loading import loader_of, take
from tests.support.ranks_program import (
    by_kind,
    endless,
    filtered,
    is_even,
    level,
    level_stream,
    mixed,
)

pytestmark = pytest.mark.jobs

ROOT = Path(__file__).parent.parent.parent
RANKS = 4
EVENS = Counter(range(0, 97, 2))


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict:
    """What the ranks found; a check that failed is its traceback."""
    out = tmp_path_factory.mktemp("ranks") / "out.json"
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    program = [f"--nproc-per-node={RANKS}", "-m", "tests.support.ranks_program", str(out)]
    done = subprocess.run(
        [*launch, *program], cwd=ROOT, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text())


def test_an_epoch_that_the_ranks_do_not_divide_does_not_hang_ddp(found):
    assert found["ddp_on_eleven_batches"] == {"steps": [6] * RANKS}


def test_a_loader_made_before_the_process_group_reads_its_ranks_part(found):
    made, pickled = found["a_loader_made_and_pickled_before_the_process_group"]
    assert made == pickled == list(range(3 * RANKS))


def test_ranks_deliver_the_stream_of_one_process_and_resume(found):
    assert found["an_indexed_mix_resumed"] == mixed().at(range(30 * RANKS))


def test_ranks_deliver_a_mix_by_property_and_resume(found):
    assert found["a_mix_by_property_resumed"] == by_kind().at(range(30 * RANKS))


def test_all_ranks_have_one_state_after_every_step(found):
    states = found["states_after_every_step"]
    assert len(states) >= 27
    assert set(states) == {1}, "how many states the ranks had, step by step"


def test_ranks_end_a_stream_together_where_only_reading_tells(found):
    loops = found["a_finite_stream"]
    with loader_of(filtered(), lanes=12) as loader:
        assert [items for items, _ in loops] == [list(loader), list(loader)]
    for items, steps in loops:
        assert len(set(steps)) == 1
        assert Counter(number for batch in items for number in batch) == EVENS


def test_a_stream_of_ranks_with_workers_is_that_of_one_process_and_resumes(found):
    stream = found["an_endless_stream_resumed"]
    assert stream["one state"]
    assert stream["resumed"] == stream["after"]
    with loader_of(endless(), lanes=12) as loader:
        assert take(loader, 30 * RANKS) == stream["before"] + stream["after"]
    with loader_of(endless(), workers=1, ranks=3) as loader:
        loader.load_state_dict(stream["state"])
        assert take(loader, 10) == stream["after"][::3][:10]


def test_level_batches_are_those_of_one_process_and_resume(found):
    indexed, stream = found["level_batches_resumed"].values()
    assert indexed["resumed"] == stream["resumed"] == [True] * RANKS
    assert indexed["items"] == level().at(range(len(indexed["items"])))
    assert len(indexed["items"]) == 20 * RANKS - 1  # one was padding, at the end of the epoch
    with loader_of(level_stream(), lanes=8) as loader:
        assert take(loader, 20 * RANKS) == stream["items"]
    for dataset, run, padding in ((level(), indexed, 1), (level_stream(), stream, 0)):
        with loader_of(dataset, workers=1) as loader:
            loader.load_state_dict(run["state"])
            rest = run["items"][13 * RANKS - padding :]
            assert take(loader, len(rest)) == rest


@pytest.mark.parametrize("name", ["column", "packs"])
def test_shares_in_tokens_are_those_of_one_process_and_resume(found, name):
    """20 steps of 4 ranks, the epoch ending within the eleventh."""
    mix = {"column": texts.by_column, "packs": texts.by_pack}[name]()
    ranks = found["shares_in_tokens_resumed"][name]
    assert ranks["states"] == 1
    with loader_of(LimitDataset(texts.batches(mix, 2), 41), lanes=12) as loader:
        one = take(loader, 41 + 9 * RANKS)
    assert [[tuple(each) for each in batch] for batch in ranks["read"]] == one


def test_a_stream_goes_on_between_two_steps_of_these_ranks(found):
    with loader_of(filtered(), lanes=12) as loader:
        epochs = [list(loader), list(loader)]
    assert found["a_stream_resumed_between_two_steps"] == [epochs[0][9:], epochs[1]]


def test_loops_of_a_number_of_steps(found):
    assert found["loops_that_count_steps"] == [[5] * RANKS, [5] * RANKS]


def test_weights_change_on_all_ranks_or_on_none(found):
    (indexed, resumed, said), (stream, again, told) = found["weights_that_change"]
    assert indexed == mixed().with_weights_from(24, [1, 9]).at(range(64))
    with loader_of(FilterDataset(mixed(), is_even), lanes=8) as loader:
        alone = take(loader, 24)
        loader.set_weights({"numbers": 1, "other": 9})
        assert stream == alone + take(loader, 40)
    assert resumed
    assert again
    for each in (*said, *told):
        assert each.startswith("LoaderError: set_weights: all ranks call it after the same number")
        assert "ranks [0, 1, 2]: {'numbers': 1, 'other': 1}" in each
        assert "ranks [3]: {'numbers': 2, 'other': 1}" in each


def test_ranks_that_load_different_states_all_say_so(found):
    (told,) = set(found["different_states"])
    assert told.startswith("StateError: the ranks have loaded different states")
    assert "ranks [0, 2]; ranks [1, 3]" in told


def test_a_state_loaded_on_one_rank_only_does_not_hang(found):
    assert "LoaderError" in found["state_loaded_on_rank_0_only"]
    assert "not all 4 ranks answered" in found["state_loaded_on_rank_0_only"]


def test_tensor_parallel_ranks_read_the_same(found):
    by_mesh, by_group, by_two = zip(*found["a_device_mesh"], strict=True)
    numbers = ListSource(range(8))
    assert by_mesh == (numbers.at([0, 2, 4, 6]),) * 2 + (numbers.at([1, 3, 5, 7]),) * 2
    assert by_group[0] == by_group[1] != by_group[2] == by_group[3]
    assert by_two == ([0, 4], [1, 5], [2, 6], [3, 7])
