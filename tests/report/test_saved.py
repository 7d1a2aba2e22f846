"""Reports of saved states beside those of the runs that saved them."""

from __future__ import annotations

import json

import pytest

from energize import (
    BatchDataset,
    BlendDataset,
    FilterDataset,
    StateError,
    StateMismatchError,
)
from energize.loader.state import report_of_state
from tests.support.deliveries import told
from tests.support.loading import loader_of, take


def mix(count: int = 90) -> BatchDataset:
    parts = {"web": told(count, "w"), "code": told(12, "c")}
    return BatchDataset(BlendDataset(parts, weights={"web": 1, "code": 1}), 4, list)


def test_a_state_says_what_the_run_had_been_given():
    loaders = [loader_of(mix(), rank=rank, ranks=2) for rank in range(2)]
    for loader in loaders:
        take(loader, 10)
    state = json.loads(json.dumps(loaders[0].state_dict()))
    report = report_of_state(mix(), state)
    assert report.scope.title == "After 20 items to all ranks"
    rows = [loader.report() for loader in loaders]
    for name in ("web", "code"):
        assert (
            report[name].counts.samples
            == sum(each[name].counts.samples for each in rows)
            == 40
        )
        assert report[name].shares.requested == report[name].shares.delivered == 0.5
    assert [each["code"].epochs for each in (report, *rows)] == pytest.approx(
        [40 / 12] * 3
    )
    assert report["code"].fractions.repeats == pytest.approx(28 / 40)


def test_with_weights_that_were_changed_while_it_ran():
    loader = loader_of(mix())
    take(loader, 10)
    loader.set_weights({"web": 3, "code": 1})
    take(loader, 10)
    report = report_of_state(mix(), loader.state_dict())
    assert (report["web"].counts.samples, report["web"].shares.requested) == (
        50,
        pytest.approx(50 / 80),
    )


def test_alone_it_says_where_it_stands_and_over_what():
    loader = loader_of(mix())
    take(loader, 7)
    report = report_of_state(None, loader.state_dict())
    assert "After 7 items" in report.scope.title
    assert [row.name for row in report.rows] == ["all", "w", "c"]
    assert "Pass the mix too" in str(report)


def test_a_stream_says_what_was_asked_for():
    stream = FilterDataset(mix(), bool)
    loader = loader_of(stream, lanes=3)
    take(loader, 7)
    report = report_of_state(stream, loader.state_dict())
    assert "After 7 items of epoch 0, in 3 lanes" in report.scope.title
    assert (report["web"].shares.requested, report["web"].counts.samples) == (0.5, 0)
    assert "stream" in str(report)


def test_a_state_of_another_mix_is_refused():
    loader = loader_of(mix())
    take(loader, 7)
    state = loader.state_dict()
    with pytest.raises(StateMismatchError):
        report_of_state(mix(50), state)
    assert report_of_state(mix(50), state, strict=False)["web"].counts.samples == 14
    for damaged in ({}, {**state, "cursor": 3}, {**state, "dataset": ""}):
        with pytest.raises(StateError):
            report_of_state(None, damaged)
