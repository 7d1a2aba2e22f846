"""Ranks of process groups: one stream, one state, changes on all of them or on none."""

from __future__ import annotations

import json
import signal
from collections import Counter
from itertools import islice

import pytest

from energize import (
    ConfigError,
    FilterDataset,
    LimitDataset,
    ListSource,
    StateError,
    WorkerConfig,
)
from energize.loader.loader import get_savable_loader
from tests.support import texts
from tests.support.datasets import numbers
from tests.support.launching import launched
from tests.support.live_program import (
    FIRST,
    LANES,
    LATER,
    RUNS,
    SAVED,
    SAVED_GLOBALLY,
    STEPS,
    batches,
    mix,
)
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

RANKS = 4
EVENS = Counter(range(0, 97, 2))


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict:
    """What the ranks found; a check that failed is its traceback."""
    out = tmp_path_factory.mktemp("ranks") / "out.json"
    launched("tests.support.ranks_program", out, ranks=RANKS)
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
    with loader_of(filtered(), lanes=6) as loader:
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
    assert (
        len(indexed["items"]) == 20 * RANKS - 1
    )  # one was padding, at the end of the epoch
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
    with loader_of(LimitDataset(texts.batches(mix, 2), 41)) as loader:
        one = take(loader, 41 + 9 * RANKS)
    assert [[tuple(each) for each in batch] for batch in ranks["read"]] == one


def test_a_stream_goes_on_between_two_steps_of_these_ranks(found):
    with loader_of(filtered(), lanes=6) as loader:
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
        assert each.startswith(
            "LoaderError: set_weights: the calls of the ranks differ"
        )
        assert "ranks [0, 1, 2]: {'numbers': 1, 'other': 1}" in each
        assert "ranks [3]: {'numbers': 2, 'other': 1}" in each


def test_ranks_that_load_different_states_all_say_so(found):
    (told,) = set(found["different_states"])
    assert told.startswith("StateError: the ranks have loaded different states")
    assert "on ranks [0, 2]; " in told
    assert "on ranks [1, 3]" in told


def test_a_rank_that_saves_or_loads_alone_says_what_it_waits_for_and_does_not_hang(
    found,
):
    waits, saved, loaded = found["on_rank_0_only"]
    assert waits.startswith(
        "rank 0 of 4 has waited 1 s for the other ranks: the state of a stream"
    )
    assert saved.startswith(
        "LoaderError: the state of a stream: not all 4 ranks answered"
    )
    assert loaded.startswith(
        "LoaderError: the beginning of a loop: not all 4 ranks answered"
    )


def test_tensor_parallel_ranks_read_the_same(found):
    by_mesh, by_group, by_two = zip(*found["a_device_mesh"], strict=True)
    numbers = ListSource(range(8))
    assert by_mesh == (numbers.at([0, 2, 4, 6]),) * 2 + (numbers.at([1, 3, 5, 7]),) * 2
    assert by_group[0] == by_group[1] != by_group[2] == by_group[3]
    assert by_two == ([0, 4], [1, 5], [2, 6], [3, 7])


INDEXED = ("indexed", "loops")


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    folder = tmp_path_factory.mktemp("live")
    killed = launched(
        "tests.support.live_program", folder, "first", ranks=2, fails=True
    )
    assert killed.codes == [-signal.SIGKILL] * 2, killed
    launched("tests.support.live_program", folder, "again", ranks=3)
    told = [
        json.loads((folder / f"{part}.json").read_text()) for part in ("first", "again")
    ]
    return *told, killed.stderr


def in_turn(of_ranks):
    """The items of all ranks in turn, without padding, as they come out of JSON."""
    return [
        item
        for turn in zip(*of_ranks, strict=True)
        for item in turn
        if item is not None
    ]


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
def test_two_ranks_of_two_workers_and_then_three(live, kind):
    first, again, _ = live
    assert isinstance(first[kind], dict), first[kind]
    whole = alone(kind)
    assert first[kind]["states"] == 1
    assert in_turn(first[kind]["items"]) == whole[: 2 * STEPS]
    assert in_turn(again[kind]) == whole[2 * SAVED : 2 * SAVED + 12]


def test_loops_that_two_ranks_do_not_divide(live):
    """Of 29 batches: after 15 steps of two ranks the next loop begins."""
    first, again, _ = live
    blend = mix([(6 * 2 * 3, FIRST), (14 * 2 * 3, LATER)])
    expected = plain(batches(blend).at(range(2 * STEPS - 1)))
    assert in_turn(first["loops"]["items"]) == expected
    assert [items.count(None) for items in first["loops"]["items"]] == [0, 1]
    goes_on = in_turn(again["loops"])
    assert goes_on == plain(
        batches(blend).at(range(2 * SAVED, 2 * SAVED + len(goes_on)))
    )
    assert len(goes_on) >= 11


def test_a_run_that_was_killed_goes_on_from_its_state(live):
    _, again, _ = live
    whole = alone("stream", change=4, later=None)
    assert in_turn(again["killed"]) == whole[16 : 16 + 12]


def test_ranks_that_say_something_else_all_know(live):
    first, _, _ = live
    (told, after), (others, more) = first["differ"]
    assert told == others
    weights, step, name, far, one_far, ahead = told
    assert weights.startswith("LoaderError: set_weights: the calls of the ranks")
    assert "ranks [0]: {'web': 1, 'code': 1}, at_step=None" in weights
    assert "ranks [1]: {'web': 2, 'code': 1}, at_step=None" in weights
    assert "ranks [1]: {'web': 5, 'code': 1}, at_step=5" in step
    assert name.startswith("WeightError")
    assert "did you mean 'web'" in name
    assert far.startswith(f"ConfigError: at_step={2**45} is after the last step")
    assert one_far.startswith("LoaderError: set_weights: the calls of the ranks")
    assert f"ranks [1]: at_step={2**45} is after the last step" in one_far
    assert "before step 3" in ahead
    assert "before step 4" in ahead
    items = plain(batches(mix()).at(range(20)))
    assert after == items[8:16:2]  # nothing was changed
    assert more == items[9:17:2]


@pytest.mark.parametrize("kind", ["stream", "packs"])
def test_a_change_before_the_first_item_is_one_for_ranks_with_and_without_workers(
    live, kind
):
    first, _, _ = live
    with loader_of(RUNS[kind](mix()), 0, lanes=LANES) as loader:
        loader.set_weights(FIRST)
        expected = plain(take(loader, 12))
    assert in_turn([found[kind] for found in first["first item"]]) == expected


def test_a_rank_that_does_not_call_is_no_hang(live):
    _, again, _ = live
    assert "LoaderError" in again["missing"]
    assert "not all 3 ranks answered within timeout=1" in again["missing"]


def test_a_policy_is_told_what_all_ranks_saw(live):
    first, _, _ = live
    (answers, items, state), (others, more, same) = first["followed"]
    assert answers == others
    assert state == same
    assert [bool(each) for each in answers] == ([False] * 4 + [True]) * 4
    blend, weights = mix(), [each for each in answers if each]
    for number, each in enumerate(weights[:3], 1):
        blend = blend.with_weights_from(number * 5 * 2 * 3, each)
    assert in_turn([items, more]) == plain(batches(blend).at(range(2 * STEPS)))
    webs = [
        sum(n == "web" for each in part[:5] for n, _ in each) for part in (items, more)
    ]
    mean = (1.0 * webs[0] + 2.0 * webs[1]) / sum(webs)
    share = 1 / (1 + 2.718281828459045 ** (0.5 - mean))
    assert weights[0]["web"] == pytest.approx(share)
    assert state["counts"]["web"] + state["counts"]["code"] == 3 * 2 * 3


def test_a_file_that_the_first_rank_reads(live):
    first, _, log = live
    expected = mix([(6 * 2 * 3, {"web": 9, "code": 1})])
    assert in_turn(first["file"]) == plain(batches(expected).at(range(2 * STEPS)))
    assert (
        "the weights of" not in log
    )  # as no handler was set, and nothing was a warning


@pytest.fixture(scope="module")
def saved_globally(live):
    first, again, _ = live
    return first["saved"], again["restored"]


def steps_in_turn(of_ranks: list[list]) -> list:
    return [item for step in zip(*of_ranks, strict=True) for item in step]


@pytest.mark.parametrize("name", SAVED_GLOBALLY)
def test_three_ranks_go_on_where_two_have_been(saved_globally, name):
    saved, restored = saved_globally
    config = WorkerConfig(0, 1, 0)
    with get_savable_loader(
        SAVED_GLOBALLY[name](), worker_config=config, lanes=LANES
    ) as loader:
        whole = list(islice(iter(loader), 22))
    assert steps_in_turn([each[name][0] for each in saved]) == whole[:10]
    assert steps_in_turn([each[name][1] for each in saved]) == whole[10:20]
    assert steps_in_turn([each[name] for each in restored]) == whole[10:22]


@pytest.mark.parametrize("name", SAVED_GLOBALLY)
def test_the_state_is_on_the_rank_that_asked_for_it(saved_globally, name):
    assert [each[name][2] for each in saved_globally[0]] == [False, True]


def test_what_cannot_be_restored_is_an_error_on_all_ranks(saved_globally):
    for rank in saved_globally[1]:
        none, stranger, nothing, damaged = rank["errors"]
        assert none == nothing
        assert none.startswith("StateError: restore_state_global: the state is missing")
        assert stranger.startswith(
            "ConfigError: restore_state_global: rank 7 is not in"
        )
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
    with pytest.raises(StateError, match="the state is missing"):
        other.restore_state_global(None)


def test_a_rank_that_cannot_talk_with_the_one_that_has_the_state():
    loader = get_savable_loader(numbers(9), worker_config=WorkerConfig(1, 2, 0))
    with pytest.raises(
        ConfigError, match=r"rank 0 has the state.*rank 1 of 2 .*cannot get it"
    ):
        loader.restore_state_global(None, src_rank=0)


DIFFERENT = {
    "weights": "BlendDataset of 'a', 'b': weights of 'a' was 1.0, is 2.0",
    "samples": "'a': count was 40, is 41",
    "batch size": "batch_size was 2, is 3",
    "limit": "length was 9, is 10",
    "uneven": 'uneven: "pad" on ranks [0]; "drop" on ranks [1]',
    "lanes": "lanes: 4 on ranks [0]; 6 on ranks [1]",
    "loop": "steps of a loop: 4 on ranks [0]; 5 on ranks [1]",
    "global": "global_batch_size, in micro batches: 2 on ranks [0]; 4 on ranks [1]",
    "seed": "seed was 0, is 1",
    "dataset": "was a ListSource, is a LimitDataset",
    "rank": "have rank 0 of 2, 0 of 2",
    "order": "'n': content was ",
    "state": "every_other.<locals>.<lambda> returned another value",
    "call": "rank 0: the beginning of a loop; rank 1: set_weights",
}


def test_ranks_that_were_given_different_things_all_say_which(live):
    ranks = live[0]["different"]
    for found in ranks:
        assert found.pop("nothing")[0] is None
        assert found.keys() == DIFFERENT.keys()
        for name, (told, seconds) in found.items():
            assert DIFFERENT[name] in told, name
            assert seconds < 60, name  # no rank waits for another
