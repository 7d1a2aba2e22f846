"""Staged datasets: what may stand in them, which states may be resumed, and what the
log says."""

from __future__ import annotations

import json
import logging
from itertools import islice

import pytest

from energize import (
    BlendDataset,
    ConfigError,
    EmptyDatasetError,
    FilterDataset,
    ListSource,
    NotIndexedError,
    StateMismatchError,
    get_loader,
)
from energize.experimental import Stage, StagedDataset, StagePlan
from tests.support.datasets import is_even, numbers
from tests.support.stages import maths, mix, staged, web


def test_streams_do_not_carry_over():
    with pytest.raises(
        NotIndexedError, match=r"stage 'even' is a stream.*carry_over=False"
    ):
        staged(Stage("even", 0, dataset=FilterDataset(numbers(20), is_even)))


def test_a_stage_that_reads_from_no_dataset():
    wrong = Stage("second", 5, dataset=[1, 2], location="run.toml:7")
    with pytest.raises(
        ConfigError, match=r"run\.toml:7: stage 'second' .*got list '\[1, 2\]'"
    ):
        staged(Stage("first", 0, dataset=web()), wrong)


def test_a_stage_without_items():
    with pytest.raises(EmptyDatasetError, match="stage 'a' has no items"):
        staged(Stage("a", 0, dataset=ListSource([])))


# Resuming


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


# The log


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.INFO, logger="energize")
    return caplog


def messages(log):
    return [
        record.getMessage()
        for record in log.records
        if "data stages" in record.getMessage()
    ]


def test_sources_that_come_and_go(log):
    nothing = BlendDataset((maths(), 1), (ListSource(range(7), name="unread"), 0))
    data = staged(
        Stage("a", 0, 5, dataset=web()), Stage("b", 5, dataset=nothing, seed=4)
    )
    data.at([0])
    list(islice(data, 6))
    assert messages(log)[-1].endswith(
        "numbers0 1.000 -> 0.000; numbers1000 0.000 -> 1.000; seed None -> 4"
    )
