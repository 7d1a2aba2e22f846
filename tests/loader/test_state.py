"""Stopping and resuming a loader, and states that do not fit."""

from __future__ import annotations

import json
import time

import pytest
import torch.distributed.checkpoint as dcp
from hypothesis import given
from hypothesis import strategies as st

from energize import BatchDataset, MapDataset, RepeatDataset
from energize.errors import StateError
from tests.support.datasets import INDEXED, STREAMING, numbers, shuffled
from tests.support.loading import epoch_in_turns, loader_of, plain, prints, square, take
from tests.support.states import resealed

alone = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def resumed(dataset, state, count, workers=0):
    with loader_of(dataset, workers) as loader:
        loader.load_state_dict(state)
        return prints(take(loader, count))


@pytest.mark.parametrize("name", [*INDEXED, *STREAMING])
def test_resume_after_every_item(name):
    dataset = {**INDEXED, **STREAMING}[name]
    whole = plain(dataset, 24)
    loader = loader_of(dataset)
    states = [loader.state_dict()]
    for _ in range(20):
        take(loader, 1)
        states.append(json.loads(json.dumps(loader.state_dict())))
    for taken, state in enumerate(states):
        assert resumed(dataset, state, 4) == whole[taken : taken + 4], f"after {taken}"


@pytest.mark.parametrize("name", ["tower", "list", "blend of blends"])
def test_resume_after_every_item_does_not_see_what_workers_read_ahead(name):
    dataset = INDEXED[name]
    whole = plain(dataset, 16)
    with loader_of(dataset, workers=2, prefetch_factor=3) as loader, loader_of(dataset, 1) as other:
        for taken in range(13):
            other.load_state_dict(loader.state_dict())
            assert prints(take(other, 3)) == whole[taken : taken + 3]
            take(loader, 1)


@pytest.mark.parametrize("name", ["filter", "blend of filter", "epochize of filter"])
def test_resume_of_a_stream_that_workers_read(name):
    dataset = STREAMING[name]
    whole = prints(take(loader_of(dataset, lanes=3), 16))
    with loader_of(dataset, workers=2, lanes=3) as loader, loader_of(dataset, workers=1) as other:
        for taken in range(13):
            other.load_state_dict(loader.state_dict())
            assert prints(take(other, 3)) == whole[taken : taken + 3]
            take(loader, 1)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("finish", [False, True])
def test_a_state_of_an_epochs_end_starts_the_next_epoch(workers, finish):
    with loader_of(shuffled(6), workers) as loader:
        iterator = iter(loader)
        for _ in range(6):
            next(iterator)
        if finish:
            assert next(iterator, None) is None
        state = loader.state_dict()
        with loader_of(shuffled(6)) as other:
            other.load_state_dict(state)
            assert list(other) == list(loader)


@given(
    size=st.integers(1, 40),
    legs=st.lists(st.tuples(st.integers(1, 8), st.integers(0, 9)), min_size=1, max_size=5),
)
def test_any_chain_of_runs_on_any_numbers_of_ranks_is_one_stream(size, legs):
    dataset = RepeatDataset(shuffled(size))
    state, merged = loader_of(dataset).state_dict(), []
    for ranks, steps in legs:
        loaders = [loader_of(dataset, rank=rank, ranks=ranks) for rank in range(ranks)]
        for loader in loaders:
            loader.load_state_dict(state)
        merged += epoch_in_turns(loaders, steps)
        states = [loader.state_dict() for loader in loaders]
        assert all(each == states[0] for each in states)
        state = json.loads(json.dumps(states[-1]))
    assert merged == plain(dataset, len(merged))
    assert len(merged) == sum(ranks * steps for ranks, steps in legs)


def test_loading_while_iterating_takes_effect_at_the_next_loop():
    loader = loader_of(numbers(100))
    take(loader, 7)
    state = loader.state_dict()
    take(loader, 5)
    loader.load_state_dict(state)
    assert loader.state_dict() == state
    assert next(iter(loader)) == 7


def test_state_is_small_and_resuming_costs_the_same_far_out():
    dataset = BatchDataset(MapDataset(RepeatDataset(shuffled(50)), square), 8, list)
    near, far = loader_of(dataset).state_dict(), loader_of(dataset).state_dict()
    near = resealed(near, cursor='{"position": 10}')
    far = resealed(far, cursor='{"position": 1000000000}')
    assert len(json.dumps(far)) < 2000
    seconds = {}
    for state in (near, far, near, far):
        started = time.perf_counter()
        resumed(dataset, state, 1)
        seconds[state["cursor"]] = time.perf_counter() - started
    assert seconds[far["cursor"]] < 10 * seconds[near["cursor"]] + 0.05
    assert resumed(dataset, far, 2) == prints(dataset.at([10**9, 10**9 + 1]))


@alone
@pytest.mark.parametrize("name", ["tower", "limit of filter", "blend of filter"])
def test_state_through_torch_distributed_checkpoint(name, tmp_path):
    dataset = {**INDEXED, **STREAMING}[name]
    loader, other = loader_of(dataset), loader_of(dataset)
    take(loader, 5)
    dcp.save({"loader": loader}, checkpoint_id=tmp_path, no_dist=True)
    dcp.load({"loader": other}, checkpoint_id=tmp_path, no_dist=True)
    assert prints(take(other, 5)) == plain(dataset, 10)[5:]


@alone
def test_a_checkpoint_of_another_dataset_names_the_difference(tmp_path):
    dcp.save({"loader": loader_of(numbers(5))}, checkpoint_id=tmp_path, no_dist=True)
    with pytest.raises(Exception, match=r"'numbers0': count was 5, is 6"):
        dcp.load({"loader": loader_of(numbers(6))}, checkpoint_id=tmp_path, no_dist=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 1}, "'version' 1"),
        ({"version": None}, "'version'"),
        ({"version": True}, "'version'"),
        ({"config": None}, "'config'"),
        ({"fingerprint": None}, "'fingerprint'"),
        ({"fingerprint": "", "config": "{"}, "cut off"),
        ({"fingerprint": "", "config": "{}"}, "damaged"),
        ({"fingerprint": "", "config": "eJw="}, "cut off"),
        ({"fingerprint": "", "config": "[" * 100_000}, "cut off"),
        ({"cursor": '{"a":' * 100_000}, "cut off"),
        ({"cursor": "[]"}, "'cursor'"),
        ({"cursor": "not base64!"}, "cut off"),
        ({"cursor": "{}"}, "'position'"),
        ({"cursor": '{"position": -1}'}, "position -1"),
        ({"cursor": '{"position": 1e3}'}, "'position'"),
        ({"cursor": f'{{"position": {10**30}}}'}, f"position {10**30}"),
        ({"cursor": f'{{"position": {10**300}}}'}, "more than 256 bits"),
        ({"cursor": f'{{"position": {2**45}}}'}, "lies in"),
    ],
)
def test_a_damaged_state_is_refused_and_the_loader_stays_where_it_is(change, message):
    loader = loader_of(numbers(9))
    take(loader, 3)
    whole = loader.state_dict()
    state = {key: value for key, value in (whole | change).items() if value is not None}
    if change.keys() <= whole.keys() - {"version"} and None not in change.values():
        with pytest.raises(StateError, match="changed or damaged"):
            loader.load_state_dict(state)
        state = resealed(state)
    with pytest.raises(StateError, match=message):
        loader.load_state_dict(state)
    assert next(iter(loader)) == 3


@pytest.mark.parametrize("state", [None, [], "state", 3])
def test_what_is_no_state_is_refused(state):
    with pytest.raises(StateError, match="state_dict"):
        loader_of(numbers(9)).load_state_dict(state)
