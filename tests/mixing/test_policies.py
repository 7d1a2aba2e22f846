"""Policies alone: what they answer to losses."""

from __future__ import annotations

import json

import pytest

from energize import ExcessLoss, LossCurves, unimax


def told(policy, rows, counts=None):
    answers = [
        policy.observe(i, row, counts or dict.fromkeys(row, 10)) for i, row in enumerate(rows)
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
    floored = told(ExcessLoss({"a": 1, "b": 1}, temperature=0.01, floor=0.2), [{"a": 3, "b": 1}])
    assert floored == pytest.approx({"a": 0.8, "b": 0.2})
    other = ExcessLoss({"web": 0, "code": 0}, memory=0.5)
    other.load_state_dict(json.loads(json.dumps(policy.state_dict())))
    assert told(other, [{"code": 1.0}]) == told(policy, [{"code": 1.0}])


def test_unimax_of_the_paper():
    """The algorithm as its pseudocode has it, and a table worked out by hand."""
    shares = unimax({"en": 500, "de": 100, "fy": 10, "sw": 1}, budget=400, max_epochs=4)
    assert shares == pytest.approx({"en": 178 / 400, "de": 178 / 400, "fy": 0.1, "sw": 0.01})


def losses_after(n):
    """Code is learned, web is as good as known."""
    return {"web": 2 + 0.5 * n**-0.3, "code": 1 + 40 * n**-0.5}


def test_loss_curves_prefer_what_is_learned_and_go_on_from_their_state():
    policy = LossCurves({"web": 3, "code": 1}, warm_up=5, adaptation=1.0, floor=0.1)
    answers = []
    other = None
    for call in range(1, 200):
        losses = losses_after(200.0 * call)
        answers.append(policy.observe(call, losses, {"web": 150, "code": 50}))
        if other is not None:
            assert other.observe(call, losses, {"web": 150, "code": 50}) == answers[-1]
        if call == 90:
            other = LossCurves({"web": 3, "code": 1}, warm_up=5, adaptation=1.0, floor=0.1)
            other.load_state_dict(json.loads(json.dumps(policy.state_dict())))
    assert answers[:4] == [None] * 4
    assert answers[4] is not None
    credit = policy.state_dict()["credit"]  # as good as that before the last call
    preferred = {
        name: prior * credit[name] ** 0.5 * policy.curves()[name].speed(200.0 * 199)
        for name, prior in (("web", 0.75), ("code", 0.25))
    }
    share = 0.1 + 0.8 * preferred["code"] / sum(preferred.values())
    assert answers[-1]["code"] == pytest.approx(share, abs=0.005)
    assert share > 0.8  # though it is a quarter of the mix as written
    assert sum(answers[-1].values()) == pytest.approx(1)
    assert policy.curves()["code"].exponent == pytest.approx(0.5, rel=0.2)
    assert len(json.dumps(policy.state_dict())) < 8000


def test_loss_curves_of_losses_that_do_not_fall_are_the_prior():
    policy = LossCurves({"web": 3, "code": 1}, warm_up=2)
    rows = [{"web": 2.0, "code": 1.0}] * 5
    assert told(policy, rows) == pytest.approx({"web": 0.745, "code": 0.255}, abs=0.01)
