"""Policies alone: what they answer to losses."""

from __future__ import annotations

import json

import pytest

from energize.mixing import ExcessLoss, unimax


def told(policy, rows, counts=None):
    answers = [
        policy.observe(i, row, counts or dict.fromkeys(row, 10))
        for i, row in enumerate(rows)
    ]
    return answers[-1]


def test_excess_loss_waits_for_all_sources_and_remembers():
    policy = ExcessLoss({"web": 0, "code": 0}, memory=0.5)
    assert policy.observe(0, {"web": 4.0}, {"web": 8}) is None
    policy.observe(1, {"web": 2.0, "code": 3.0}, {"web": 8, "code": 8})
    assert policy.state_dict() == {"losses": {"web": 3.0, "code": 3.0}}
    slow = ExcessLoss({"web": 0}, memory=0.75)
    assert told(slow, [{"web": 4.0}, {"web": 2.0}]) == {"web": 1.0}
    assert slow.state_dict() == {"losses": {"web": 3.5}}
    floored = told(
        ExcessLoss({"a": 1, "b": 1}, temperature=0.01, floor=0.2), [{"a": 3, "b": 1}]
    )
    assert floored == pytest.approx({"a": 0.8, "b": 0.2})
    other = ExcessLoss({"web": 0, "code": 0}, memory=0.5)
    other.load_state_dict(json.loads(json.dumps(policy.state_dict())))
    assert told(other, [{"code": 1.0}]) == told(policy, [{"code": 1.0}])


def test_unimax_of_the_paper():
    """The algorithm as its pseudocode has it, and a table worked out by hand."""
    shares = unimax({"en": 500, "de": 100, "fy": 10, "sw": 1}, budget=400, max_epochs=4)
    assert shares == pytest.approx(
        {"en": 178 / 400, "de": 178 / 400, "fy": 0.1, "sw": 0.01}
    )
