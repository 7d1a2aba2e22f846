"""Stage plans: which stage a step belongs to, and what cannot be a plan."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from energize import ConfigError, Stage, StagePlan


def stage(name, start=0, end=None, **options):
    return Stage(name, start, end, dataset=options.pop("dataset", name), **options)


def three(total=15):
    return StagePlan([stage("a", 0, 5), stage("b", 5, 10), stage("c", 10)], total)


def test_every_stage_trains_the_steps_that_were_written():
    plan = three()
    assert [plan.at(step).name for step in (0, 4, 5, 9, 10, 14)] == ["a", "a", "b", "b", "c", "c"]
    assert [each.steps for each in plan.stages] == [5, 5, 5]


def test_after_the_end_the_last_stage_goes_on():
    assert three().at(15).name == "c"
    assert three().at(10**12).name == "c"


def test_stages_may_be_given_in_any_order():
    plan = StagePlan([stage("b", 5), stage("a", 0)], 7)
    assert [(s.name, s.start_step, s.end_step) for s in plan.stages] == [("a", 0, 5), ("b", 5, 7)]


def test_without_stages_the_default_is_the_only_one():
    plan = StagePlan([], 9, default=stage("default"))
    assert [(s.name, s.start_step, s.end_step) for s in plan.stages] == [("default", 0, 9)]


def test_the_default_fills_the_steps_before_the_first_stage():
    plan = StagePlan([stage("ablation", 5)], 10, default=stage("default"))
    assert [(s.name, s.start_step, s.end_step) for s in plan.stages] == [
        ("default", 0, 5),
        ("ablation", 5, 10),
    ]
    assert plan.at(4).name == "default"
    assert plan.at(5).name == "ablation"


def test_a_stage_may_be_called_default_where_none_is_filled_in():
    assert StagePlan([stage("default", 0), stage("b", 3)], 5).at(0).name == "default"


def test_training_without_end():
    plan = StagePlan([stage("a", 0, 5), stage("b", 5)])
    assert plan.total_steps is None
    assert plan.total_items is None
    assert plan.stages[-1].steps is None


def test_the_end_of_the_last_stage_ends_training():
    assert StagePlan([stage("a", 0, 5)]).total_steps == 5


def test_a_last_stage_that_is_too_long_is_cut_with_a_warning(caplog):
    plan = StagePlan([stage("a", 0, 50)], 20)
    assert plan.stages[0].end_step == 20
    assert "'a' ends at step 50, but training ends after 20 steps" in caplog.text


def test_remaining_steps_of_each_stage():
    plan = StagePlan([stage("a", 0), stage("b", 9), stage("c", 15)], 20)
    assert plan.remaining(0) == [9, 6, 5]
    assert plan.remaining(9) == [0, 6, 5]
    assert plan.remaining(17) == [0, 0, 3]
    assert StagePlan([stage("a", 0), stage("b", 9)]).remaining(3) == [6, None]


FAULTS = {
    "gap": ([stage("a", 0, 4), stage("b", 5)], 10, "steps 4 to 5 belong to no stage: stage 'a'"),
    "overlap": ([stage("a", 0, 6), stage("b", 5)], 10, "steps 5 to 6 belong to two stages"),
    "end before the end of training": (
        [stage("a", 0, 4), stage("b", 4, 8)],
        10,
        "steps 8 to 10 belong to no stage: the last, stage 'b'",
    ),
    "starts at the end": ([stage("a", 0), stage("b", 10)], 10, "stage 'b' would never run"),
    "starts after the end": ([stage("a", 0), stage("b", 100)], 20, "stage 'b' would never run"),
    "same start": ([stage("a", 0), stage("b", 0)], 10, "'a' and stage 'b' both start at step 0"),
    "same name": (
        [stage("a", 0, 5), stage("a", 5)],
        10,
        "stage 'a': the name is taken by the stage that starts at step 0",
    ),
    "leading gap": ([stage("a", 3)], 10, "steps 0 to 3 belong to no stage: the first, stage 'a'"),
    "nothing": ([], 10, "there are no stages"),
    "negative start": ([stage("a", -3)], 10, "stage 'a': start_step is a whole number"),
    "end before start": ([stage("a", 0), stage("b", 5, 5)], 9, "stage 'b': end_step is the step"),
    "name empty": ([stage("  ", 0)], 10, "a stage has a name that is not empty"),
    "name no text": ([stage(7, 0)], 10, "a stage has a name that is not empty"),
    "sequence length 0": ([stage("a", seq_len=0)], 10, "stage 'a': seq_len counts tokens"),
    "seed negative": ([stage("a", seed=-1)], 10, "stage 'a': a seed is a whole number"),
    "no items": ([stage("a", items_per_step=0)], 10, "stage 'a': items_per_step is a whole"),
    "bool": ([stage("a", True)], 10, "start_step is a whole number, 0 or more; got True"),
    "batch": ([stage("a", batch=[1])], 10, "stage 'a': batch is a mapping"),
    "no steps": ([stage("a")], 0, "total_steps is a whole number, 1 or more; got 0"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_cannot_be_a_plan(name):
    stages, total, message = FAULTS[name]
    with pytest.raises(ConfigError) as caught:
        StagePlan(stages, total)
    assert message in str(caught.value)


@pytest.mark.parametrize("start", [3, 8])
def test_a_stage_called_as_the_default_that_fills_the_gap(start):
    stages = [stage("first", 3), stage("last", 8)]
    stages[0 if start == 3 else 1] = stage("default", start)
    with pytest.raises(ConfigError, match="the name is taken by the one that fills the steps"):
        StagePlan(stages, 10, default=stage("default"))


def test_a_default_with_nothing_to_fill():
    with pytest.raises(ConfigError, match="stage 'default' would never run: stage 'a' starts at"):
        StagePlan([stage("a", 0)], 10, default=stage("default"))


def test_all_faults_are_told_together():
    with pytest.raises(ConfigError) as caught:
        StagePlan([stage("a", 0, 4, place="run.yaml:3"), stage("b", 5, 8), stage("c", 7)], 7)
    lines = str(caught.value).splitlines()
    assert len(lines) == 3
    assert "run.yaml:3: stage 'a'" in lines[0]


@pytest.mark.parametrize("step", [-1, 1.5, True, None])
def test_a_step_is_a_whole_number(step):
    with pytest.raises(ConfigError, match="a step is a whole number"):
        three().at(step)
    with pytest.raises(ConfigError, match="a step is a whole number"):
        three().remaining(step)


def test_numbers_may_be_those_of_other_libraries():
    stages = [
        stage("a", np.int64(0), torch.tensor(5), seed=np.int32(3), seq_len=torch.tensor(64)),
        stage("b", torch.tensor(5), items_per_step=np.int64(2)),
    ]
    plan = StagePlan(stages, np.int64(9))
    same = StagePlan([stage("a", 0, 5, seed=3, seq_len=64), stage("b", 5, items_per_step=2)], 9)
    assert plan == same
    assert json.dumps(plan.describe()) == json.dumps(same.describe())
    assert plan.at(np.int64(5)).name == plan.at(torch.tensor(5)).name == "b"
    assert plan.remaining(np.int64(3)) == [2, 4]


@pytest.mark.parametrize(
    "stages", [None, stage("a"), {"a": stage("a")}, ["a"], [("a", 0)], [None]], ids=repr
)
def test_what_is_no_stage(stages):
    with pytest.raises(ConfigError, match=r"StagePlan: .*; got"):
        StagePlan(stages, 10)


def test_a_default_is_a_stage():
    with pytest.raises(ConfigError, match=r"a stage is a Stage\(.*; got 'web'"):
        StagePlan([stage("a", 5)], 10, default="web")


def test_more_items_than_can_be_counted():
    with pytest.raises(ConfigError, match=r"items .* no more than 2\*\*62 can be counted"):
        StagePlan([stage("a", 0, items_per_step=8)], 10**18)
    with pytest.raises(ConfigError, match=r"items .* no more than 2\*\*62 can be counted"):
        StagePlan([stage("a"), stage("b", 10**19)])


def test_items_are_counted_through_stages_of_different_batches():
    plan = StagePlan([stage("a", 0, 2, items_per_step=3), stage("b", 2, items_per_step=2)], 5)
    assert plan.first_items == [0, 6]
    assert plan.total_items == 12
    steps = [plan.step_of_item(item) for item in range(14)]
    assert steps == [0, 0, 0, 1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert [plan.index_of_item(item) for item in (0, 5, 6, 11)] == [0, 0, 1, 1]


@given(
    lengths=st.lists(st.integers(1, 50), min_size=1, max_size=8),
    items=st.lists(st.integers(1, 4), min_size=8, max_size=8),
)
def test_steps_and_items_agree_for_any_plan(lengths, items):
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    plan = StagePlan(
        [stage(f"s{i}", s, items_per_step=items[i]) for i, s in enumerate(starts)], sum(lengths)
    )
    assert [each.steps for each in plan.stages] == lengths
    expected = []
    for step in range(sum(lengths)):
        expected += [step] * plan.at(step).items_per_step
    assert [plan.step_of_item(k) for k in range(plan.total_items)] == expected
    names = [plan.stages[plan.index_of_item(k)].name for k in range(plan.total_items)]
    assert names == [plan.at(step).name for step in expected]


def test_a_plan_is_compared_and_pickled():
    assert pickle.loads(pickle.dumps(three())) == three()
    assert three() != three(16)


def test_a_plan_describes_itself():
    described = three().describe()
    assert described["total_steps"] == 15
    assert described["stages"][1] == {
        "name": "b",
        "start_step": 5,
        "end_step": 10,
        "seq_len": None,
        "seed": None,
        "items_per_step": 1,
        "batch": {},
    }
