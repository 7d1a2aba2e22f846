"""What weights ask for along a run, against what the same mixes give."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from energize import (
    BatchDataset,
    BlendDataset,
    ConcatDataset,
    LimitDataset,
    ListSource,
    Schedule,
    ShuffleDataset,
)
from energize.experimental import Stage, StagedDataset, StagePlan
from energize.report import simulate
from energize.report.forecast import requested_between

_SLOTS = 3.4
"""By which the shares of one blend may be off at any two places together, see
`Apportionment`."""


def source(number, count=50):
    return ShuffleDataset(ListSource(range(count), name=f"s{number}"))


def weights():
    numbers = st.integers(1, 9)
    points = st.lists(st.integers(0, 9), min_size=2, max_size=3).filter(any)
    schedules = st.builds(
        lambda values, step, kind: Schedule(
            [(i * step, v) for i, v in enumerate(values)], kind
        ),
        points,
        st.integers(1, 300),
        st.sampled_from(["step", "linear", "cosine"]),
    )
    return st.one_of(numbers, schedules)


def blended(parts, scheme):
    pairs = [(source(100), 1), *parts]  # something to give at every step
    return BlendDataset(*pairs, scheme=scheme)


trees = st.recursive(
    st.builds(source, st.integers(0, 9), st.integers(1, 60)),
    lambda inner: st.builds(
        blended,
        st.lists(st.tuples(inner, weights()), min_size=1, max_size=3),
        st.sampled_from(["even", "exact"]),
    ),
    max_leaves=6,
)


def depth(dataset):
    inner = max((depth(each) for each in dataset.inputs), default=0)
    return inner + isinstance(dataset, BlendDataset)


@given(tree=trees, start=st.integers(0, 400), length=st.integers(1, 400))
def test_orders_that_keep_shares_give_what_is_asked_for(tree, start, length):
    points = np.array([start, start + length])
    [asked] = requested_between(tree, points)
    assert asked.sum() == pytest.approx(1, abs=1e-6)
    drawn = tree.consumed(start + length) - tree.consumed(start)
    # Shares of an inner blend are those of its own slots, which are as many more or
    # fewer.
    assert np.abs(asked * length - drawn).max() <= 2 * _SLOTS * max(depth(tree), 1)


@given(
    first=trees, then=trees, border=st.integers(1, 60), batch=st.integers(1, 7),
    cuts=st.integers(1, 12),
)  # fmt: skip
def test_stages_ask_one_after_the_other(first, then, border, batch, cuts):
    plan = StagePlan([
        Stage("a", 0, border, dataset=BatchDataset(first, batch, list)),
        Stage("b", border, 120, dataset=BatchDataset(then, batch, list)),
    ])  # fmt: skip
    run = simulate(StagedDataset(plan), 120, intervals=cuts)
    assert [(each.name, each.start, each.stop) for each in run.stages] == [
        ("a", 0, border), ("b", border, 120),
    ]  # fmt: skip
    assert border in run.points
    assert np.allclose(run.requested.sum(axis=1), 1, atol=1e-6)
    off = 2 * _SLOTS * (depth(first) + depth(then) + 1)
    for each in run.sources:
        assert each.requested * run.samples == pytest.approx(each.drawn, abs=2 * off)


def test_what_weights_do_not_say_is_not_asked_for():
    concat = ConcatDataset(source(0), source(1))
    assert np.isnan(requested_between(concat, np.array([0, 50, 100]))).all()
    inner = BlendDataset((LimitDataset(concat, 60), 1), (source(2), 3))
    [asked] = requested_between(inner, np.array([0, 400]))
    assert np.isnan(asked[:2]).all()
    assert asked[2] == 0.75
    run = simulate(inner, 400)
    assert [each.requested for each in run.sources] == [None, None, 0.75]


def test_whole_batches_of_two_sizes_are_shares_of_their_samples():
    small = BatchDataset(source(0, 60), 2, list)
    large = BatchDataset(source(1, 60), 6, list)
    run = simulate(BlendDataset((small, 1), (large, 1)), 1000)
    assert run.unit == "whole batches"
    assert [each.share for each in run.sources] == pytest.approx([0.25, 0.75], abs=0.01)
    assert [each.requested for each in run.sources] == pytest.approx(
        [0.25, 0.75], abs=0.01
    )


def long_and_short(seed, scale, count=300):
    lengths = 1 + np.random.default_rng(seed).integers(0, 2 * scale, count)
    return ShuffleDataset(
        ListSource(
            range(count), name=f"of {scale}", columns={"tokens": lengths.tolist()}
        )
    )


@given(
    shares=st.lists(st.integers(1, 9), min_size=2, max_size=3),
    steps=st.integers(20, 300),
)
def test_shares_of_tokens_are_those_of_tokens(shares, steps):
    parts = [
        long_and_short(i, scale) for i, scale in enumerate((5, 50, 20)[: len(shares)])
    ]
    blend = BlendDataset(*zip(parts, shares, strict=True), unit="tokens")
    batches = BatchDataset(blend, 4, list)
    run = simulate(batches, steps, intervals=5)
    assert run.unit == "tokens"
    refs = batches.refs(np.arange(steps))
    spent = np.zeros(len(parts))
    for number, part in enumerate(parts):
        index = refs.index[refs.source == number]
        spent[number] = part.sources[0].column("tokens").values[index].sum()
    assert run.spent[-1].tolist() == pytest.approx(spent.tolist())
    for each, share, weight in zip(
        run.sources, spent / spent.sum(), shares, strict=True
    ):
        assert each.share == pytest.approx(share)
        assert each.requested == pytest.approx(weight / sum(shares), abs=1e-6)
        assert abs(each.share - each.requested) * spent.sum() < 300


def test_stages_that_count_different_things_have_shares_of_samples():
    parts = [(long_and_short(0, 5), 1), (long_and_short(1, 50), 1)]
    tokens = BatchDataset(BlendDataset(*parts, unit="tokens"), 4, list)
    samples = BatchDataset(BlendDataset(*parts), 4, list)
    stages = [
        Stage("tokens", 0, 50, dataset=tokens),
        Stage("samples", 50, 90, dataset=samples),
    ]
    run = simulate(StagedDataset(StagePlan(stages)), 90, intervals=9)
    assert run.unit == "tokens and samples"
    assert run.spent is None
    assert np.isnan(run.requested[:5]).all()
    assert (run.requested[-4:] == 0.5).all()
    assert [each.requested for each in run.sources] == [None, None]
    both = simulate(StagedDataset(StagePlan([stages[0]])), 50)
    assert both.unit == "tokens"
    assert [each.requested for each in both.sources] == [0.5, 0.5]
    assert [each.share for each in both.sources] == pytest.approx([0.5, 0.5], abs=0.05)
