"""Staged datasets: which states may be resumed, and what the log says."""

from __future__ import annotations

import json
import logging
from itertools import islice

import pytest

from energize import (
    BlendDataset,
    ListSource,
    Stage,
    StagedDataset,
    StagePlan,
    StateMismatchError,
    get_loader,
)
from tests.support.stages import maths, mix, staged, two_mixes, web

# Resuming


def resumed(data, state):
    cursor = data.open(state=json.loads(json.dumps(state)))
    return list(cursor)


def state_at(data, items):
    cursor = data.open()
    for _ in islice(cursor, items):
        pass
    return cursor.state()


def test_a_state_names_its_stage():
    data = two_mixes()
    assert state_at(data, 0) == {"position": 0, "stage_idx": 0, "stage_name": "general"}
    assert state_at(data, 40) == {"position": 40, "stage_idx": 0, "stage_name": "general"}
    assert state_at(data, 41) == {"position": 41, "stage_idx": 1, "stage_name": "reasoning"}


def test_a_state_of_another_plan_is_refused_by_name():
    state = state_at(two_mixes(), 45)
    for other in (
        staged(
            Stage("general", 0, 40, dataset=web()), Stage("renamed", 40, dataset=web()), total=90
        ),
        staged(
            Stage("inserted", 0, 10, dataset=web()),
            Stage("general", 10, 40, dataset=web()),
            Stage("reasoning", 40, dataset=web()),
            total=90,
        ),
        staged(Stage("general", 0, 90, dataset=web())),
    ):
        with pytest.raises(StateMismatchError, match="was in stage 'reasoning', number 1"):
            other.open(state=state)


def loaded(data, state):
    loader = get_loader(data)
    loader.load_state_dict(json.loads(json.dumps(state)))
    return list(loader)


def saved(data, items):
    loader = get_loader(data)
    for _ in islice(loader, items):
        pass
    return loader.state_dict()


def test_stages_after_the_position_may_change():
    before = StagePlan([], 10, default=Stage("default", dataset=mix(0.9, 2)))
    plan = StagePlan(
        [Stage("ablation", 5, dataset=mix(0.1, 2))],
        12,
        default=Stage("default", dataset=mix(0.9, 2)),
    )
    state = saved(StagedDataset(before), 5)
    assert loaded(StagedDataset(plan), state) == list(StagedDataset(plan))[5:]
    with pytest.raises(StateMismatchError, match="6 of its items are read"):
        loaded(StagedDataset(plan), saved(StagedDataset(before), 6))


CHANGED = {
    "name": (Stage("x", 0, 5, dataset=mix(0.9, 2)), 'plan.stages[\'one\'].name was "one", is "x"'),
    "mix": (
        Stage("one", 0, 5, dataset=mix(0.8, 2)),
        "BlendDataset of 'numbers0', 'numbers1000': weights",
    ),
    "items": (
        Stage("one", 0, 5, dataset=mix(0.9, 2), items_per_step=2),
        "plan.stages['one'].items_per_step was 1, is 2",
    ),
    "seed": (Stage("one", 0, 5, dataset=mix(0.9, 2), seed=3), "plan.stages['one'].seed was"),
}


@pytest.mark.parametrize("name", CHANGED)
def test_what_lies_before_the_position_may_not_change(name):
    second = Stage("two", 5, dataset=mix(0.5, 2))
    state = saved(staged(Stage("one", 0, 5, dataset=mix(0.9, 2)), second, total=20), 7)
    changed, message = CHANGED[name]
    with pytest.raises(StateMismatchError) as caught:
        loaded(staged(changed, second, total=20), state)
    assert message in str(caught.value)


# The log


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.INFO, logger="energize")
    return caplog


def messages(log):
    return [record.getMessage() for record in log.records if "data stages" in record.getMessage()]


def test_the_plan_and_every_transition_are_logged(log):
    data = staged(
        Stage("general", 0, 40, dataset=mix(0.75), seq_len=4096),
        Stage("long", 40, 60, dataset=mix(0.25), seq_len=32768, batch={"global_batch_size": 4}),
    )
    list(get_loader(data, multiprocessing_context="fork"))
    plan, start, transition = messages(log)
    first, second = data.consumed(40), data.consumed(60) - data.consumed(40)
    lines = plan.splitlines()
    assert lines[0] == "data stages: 2, 60 steps"
    assert lines[1] == "  1. general: steps 0 -> 40 (40 steps), seq_len 4096, items_per_step 1"
    assert lines[2].endswith(
        f" numbers0: {first[0]} samples, {first[0] / 100:.2f} passes by the end"
    )
    assert lines[4].endswith(" 2.62M tokens, seq_len 32768, items_per_step 1, global_batch_size 4")
    assert lines[5].startswith(f"       {second[0] / 20:.3f} numbers0: {second[0]} samples after ")
    assert f"after the first {first[1]}, " in lines[6]
    assert start == "data stages: reading begins at step 0, in stage 'general'"
    assert transition.startswith("data stages: step 40: 'general' -> 'long': ")
    assert "seq_len 4096 -> 32768; global_batch_size None -> 4" in transition


def test_sources_that_come_and_go(log):
    nothing = BlendDataset((maths(), 1), (ListSource(range(7), name="unread"), 0))
    data = staged(Stage("a", 0, 5, dataset=web()), Stage("b", 5, dataset=nothing, seed=4))
    data.at([0])
    list(islice(data, 6))
    assert messages(log)[-1].endswith(
        "numbers0 is gone, was 1.000; numbers1000 is new with 1.000; seed None -> 4"
    )
