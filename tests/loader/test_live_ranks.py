"""Weights that change on real process groups: two ranks of two workers train under DDP and are
killed, three of one worker go on.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.live_program import FIRST, LANES, LATER, RUNS, SAVED, STEPS, batches, mix
from tests.support.loading import loader_of, take

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent
INDEXED = ("indexed", "loops")


def launched(folder, part, ranks):
    """What the ranks wrote down, and how torchrun ended."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    program = [f"--nproc-per-node={ranks}", "-m", "tests.support.live_program", str(folder), part]
    done = subprocess.run(
        [*launch, *program], cwd=ROOT, capture_output=True, text=True, timeout=110, check=False
    )
    file = folder / f"{part}.json"
    assert file.exists(), done.stderr
    return json.loads(file.read_text()), done


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("live")
    first, killed = launched(folder, "first", 2)
    again, done = launched(folder, "again", 3)
    assert killed.returncode != 0
    assert "SIGKILL" in killed.stderr
    assert done.returncode == 0, done.stderr
    return first, again, killed.stderr


def in_turn(of_ranks):
    """The items of all ranks in turn, without padding, as they come out of JSON."""
    return [item for turn in zip(*of_ranks, strict=True) for item in turn if item is not None]


def plain(items):
    return json.loads(json.dumps(items))


def alone(kind, ranks=2, change=6, later=14, steps=STEPS):
    """The items that one process reads of the same run."""
    lanes = {} if kind in INDEXED else {"lanes": LANES}
    items = []
    with loader_of(RUNS[kind](mix()), 0, **lanes) as loader:
        items += take(loader, change * ranks)
        loader.set_weights(FIRST)
        if later is not None:
            loader.set_weights(LATER, at_step=later * ranks)
        items += take(loader, (steps - change + 8) * ranks)
    return plain(items)


@pytest.mark.parametrize("kind", ["indexed", "stream", "packs"])
def test_two_ranks_of_two_workers_and_then_three(found, kind):
    first, again, _ = found
    assert isinstance(first[kind], dict), first[kind]
    whole = alone(kind)
    assert first[kind]["states"] == 1
    assert in_turn(first[kind]["items"]) == whole[: 2 * STEPS]
    assert in_turn(again[kind]) == whole[2 * SAVED : 2 * SAVED + 12]


def test_loops_that_two_ranks_do_not_divide(found):
    """Of 29 batches: after 15 steps of two ranks the next loop begins."""
    first, again, _ = found
    blend = mix([(6 * 2 * 3, FIRST), (14 * 2 * 3, LATER)])
    expected = plain(batches(blend).at(range(2 * STEPS - 1)))
    assert in_turn(first["loops"]["items"]) == expected
    assert [items.count(None) for items in first["loops"]["items"]] == [0, 1]
    goes_on = in_turn(again["loops"])
    assert goes_on == plain(batches(blend).at(range(2 * SAVED, 2 * SAVED + len(goes_on))))
    assert len(goes_on) >= 11


def test_a_run_that_was_killed_goes_on_from_its_state(found):
    _, again, _ = found
    whole = alone("stream", change=4, later=None)
    assert in_turn(again["killed"]) == whole[16 : 16 + 12]


def test_ranks_that_say_something_else_all_know(found):
    first, _, _ = found
    (told, after), (others, more) = first["differ"]
    assert told == others
    weights, step, name, ahead = told
    assert weights.startswith("LoaderError: set_weights: all ranks")
    assert "ranks [0]: {'web': 1, 'code': 1}, at_step=None" in weights
    assert "ranks [1]: {'web': 2, 'code': 1}, at_step=None" in weights
    assert "ranks [1]: {'web': 5, 'code': 1}, at_step=5" in step
    assert name.startswith("WeightError")
    assert "did you mean 'web'" in name
    assert "before step 3" in ahead
    assert "before step 4" in ahead
    items = plain(batches(mix()).at(range(20)))
    assert after == items[6:14:2]  # nothing was changed
    assert more == items[9:17:2]


def test_a_rank_that_does_not_call_is_no_hang(found):
    _, again, _ = found
    assert "LoaderError" in again["missing"]
    assert "not all 3 ranks answered within timeout=2" in again["missing"]


def test_a_policy_is_told_what_all_ranks_saw(found):
    first, _, _ = found
    (answers, items, state), (others, more, same) = first["followed"]
    assert answers == others
    assert state == same
    assert [bool(each) for each in answers] == ([False] * 4 + [True]) * 4
    blend, weights = mix(), [each for each in answers if each]
    for number, each in enumerate(weights[:3], 1):
        blend = blend.with_weights_from(number * 5 * 2 * 3, each)
    assert in_turn([items, more]) == plain(batches(blend).at(range(2 * STEPS)))
    webs = [sum(n == "web" for each in part[:5] for n, _ in each) for part in (items, more)]
    mean = (1.0 * webs[0] + 2.0 * webs[1]) / sum(webs)
    share = 1 / (1 + 2.718281828459045 ** (0.5 - mean))
    assert weights[0]["web"] == pytest.approx(share)
    assert state["counts"]["web"] + state["counts"]["code"] == 3 * 2 * 3


def test_a_file_that_the_first_rank_reads(found):
    first, _, log = found
    expected = mix([(6 * 2 * 3, {"web": 9, "code": 1})])
    assert in_turn(first["file"]) == plain(batches(expected).at(range(2 * STEPS)))
    assert "the weights of" not in log  # as no handler was set, and nothing was a warning
