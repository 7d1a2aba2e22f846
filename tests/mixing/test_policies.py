"""Policies alone: what they answer to losses."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from energize import ExcessLoss, LossCurves, unimax
from energize.errors import ConfigError, StateError
from energize.mixing import fitted
from tests.support.refusals import check_refusals

SIZES = st.dictionaries(st.text("abc", min_size=1), st.integers(1, 10**6), min_size=1, max_size=6)


def told(policy, rows, counts=None):
    answers = [
        policy.observe(i, row, counts or dict.fromkeys(row, 10)) for i, row in enumerate(rows)
    ]
    return answers[-1]


def test_softmax_of_excess_loss_with_temperature_and_floor():
    reference = {"web": 2.0, "code": 1.0, "maths": 3.0}
    losses = {"web": 2.5, "code": 1.1, "maths": 3.0}
    weights = told(ExcessLoss(reference, temperature=0.25), [losses])
    expected = {name: math.exp((losses[name] - low) / 0.25) for name, low in reference.items()}
    total = sum(expected.values())
    assert weights == pytest.approx({name: each / total for name, each in expected.items()})
    floored = told(ExcessLoss(reference, temperature=0.01, floor=0.2), [losses])
    assert floored == pytest.approx({"web": 0.6, "code": 0.2, "maths": 0.2}, abs=1e-3)
    huge = told(ExcessLoss({"a": 0, "b": 0}, temperature=0.1), [{"a": 1000.0, "b": 1000.0}])
    assert huge == {"a": 0.5, "b": 0.5}
    even = told(ExcessLoss(reference, temperature=1e9), [losses])
    assert even == pytest.approx(dict.fromkeys(reference, 1 / 3))


def test_excess_loss_waits_for_all_sources_and_remembers():
    policy = ExcessLoss({"web": 0, "code": 0}, memory=0.5)
    assert policy.observe(0, {"web": 4.0}, {"web": 8}) is None
    policy.observe(1, {"web": 2.0, "code": 3.0}, {"web": 8, "code": 8})
    assert policy.state_dict() == {"losses": {"web": 3.0, "code": 3.0}}
    other = ExcessLoss({"web": 0, "code": 0}, memory=0.5)
    other.load_state_dict(json.loads(json.dumps(policy.state_dict())))
    assert told(other, [{"code": 1.0}]) == told(policy, [{"code": 1.0}])


def test_what_policies_cannot_use():
    def excess(**options):
        return lambda: ExcessLoss(**{"reference": {"web": 1.0, "code": 1.0}, **options})

    def curves(**options):
        return lambda: LossCurves(**{"prior": {"web": 1.0, "code": 1.0}, **options})

    def unimax_of(**options):
        return lambda: unimax(**{"sizes": {"a": 1}, "budget": 1, "max_epochs": 1, **options})

    def loading(policy, **changed):
        return lambda: policy.load_state_dict(policy.state_dict() | changed)

    one, two = ExcessLoss({"web": 1.0}), LossCurves({"web": 1})
    rows = {
        "temperature": (excess(temperature=0), "ExcessLoss: temperature", "got 0"),
        "floors": (excess(floor=0.6), "2 sources cannot all have a share of 0.6"),
        "floor": (excess(floor=-1), "ExcessLoss: floor", "got -1"),
        "memory": (excess(memory=1), "ExcessLoss: memory", "got 1"),
        "no reference": (excess(reference={}), "ExcessLoss: reference"),
        "nan": (excess(reference={"web": math.nan}), "reference.web", "got nan"),
        "unknown": (lambda: told(one, [{"wab": 1.0}]), "no reference loss", "mean 'web'?"),
        "infinite": (lambda: told(one, [{"web": math.inf}]), "the mean loss of 'web' is inf"),
        "a text": (lambda: told(one, [{"web": "1"}]), "the mean loss of 'web' is '1'"),
        "warm up": (curves(warm_up=1), "LossCurves: warm_up", "got 1"),
        "credit": (curves(credit_memory=2), "LossCurves: credit_memory", "got 2"),
        "prior": (curves(prior={"web": 0}), "prior.web", "got 0"),
        "no prior": (lambda: told(two, [{"maths": 1.0}]), "'maths' has no prior"),
        "sizes": (unimax_of(sizes={"a": 0}), "unimax: sizes.a"),
        "budget": (unimax_of(budget=-1), "unimax: budget"),
        "epochs": (unimax_of(max_epochs=math.inf), "unimax: max_epochs"),
        "no sizes": (unimax_of(sizes={}), "unimax: sizes"),
    }
    states = {
        "losses": (loading(one, losses=[1]), "losses"),
        "calls": (loading(two, calls=-1), "calls"),
        "points": (loading(two, points={"web": [[1]]}), "points.web"),
        "mean": (loading(two, mean={"web": math.nan}), "mean.web"),
        "others": (loading(two, credit={"code": 1}), "over code, and this one over web"),
        "no state": (lambda: two.load_state_dict(None), "the state of a policy"),
    }
    check_refusals(
        {name: (call, ConfigError, *words) for name, (call, *words) in rows.items()}
        | {name: (call, StateError, *words) for name, (call, *words) in states.items()}
    )


@given(sizes=SIZES, budget=st.integers(1, 10**7), epochs=st.integers(1, 8))
def test_law_of_unimax(sizes, budget, epochs):
    """No source is read more often than asked, and none that is read less gets less than another
    one: the most even shares there are.
    """
    shares = unimax(sizes, budget, epochs)
    assert math.isclose(sum(shares.values()), 1)
    total = min(budget, epochs * sum(sizes.values()))
    caps = {name: epochs * size / total for name, size in sizes.items()}
    for name, share in shares.items():
        assert share <= caps[name] * (1 + 1e-9)
        if share < caps[name] * (1 - 1e-9):
            assert all(share >= other * (1 - 1e-9) for other in shares.values())


def test_unimax_of_the_paper():
    """The algorithm as its pseudocode has it, and a table worked out by hand."""
    shares = unimax({"en": 500, "de": 100, "fy": 10, "sw": 1}, budget=400, max_epochs=4)
    assert shares == pytest.approx({"en": 178 / 400, "de": 178 / 400, "fy": 0.1, "sw": 0.01})


@given(
    least=st.floats(0.1, 4), scale=st.floats(0.5, 20), exponent=st.floats(0.1, 1.2),
    noise=st.floats(0, 0.01),
)  # fmt: skip
def test_law_of_fits(least, scale, exponent, noise):
    """The speed of learning is found again from the curve's points, though they are noisy."""
    n = np.arange(200, 4000, 100)
    draw = np.random.default_rng(1).normal(size=len(n))
    curve = least + scale * n**-exponent
    found = fitted(list(zip(n, curve + noise * scale * n[-1] ** -exponent * draw, strict=True)))
    true = exponent * scale * 2000.0 ** (-exponent - 1)
    assert abs(found.speed(2000) / true - 1) < 0.25
    assert found.least >= 0
    assert found.scale >= 0


def test_no_loss_is_forecast_below_zero():
    """A line has no bend, so its best curve would end far below."""
    points = [(n, 2 - n / 1000) for n in range(100, 1900, 100)]
    curve = fitted(points)
    assert curve.least == 0
    assert sum((curve.scale * n**-curve.exponent - loss) ** 2 for n, loss in points) < 1.4


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
