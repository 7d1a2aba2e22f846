"""Mixing by what samples are: exact shares, one folder or several, states that know the split."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energize import (
    BatchDataset,
    BlendDataset,
    ConcatDataset,
    LimitDataset,
    ListSource,
    MapDataset,
    RepeatDataset,
    ShuffleDataset,
    StateMismatchError,
    by_property,
)
from energize.errors import ColumnError, ConfigError, WeightError
from energize.testing import check_topology
from tests.support.loading import loader_of, take

KINDS = ("high", "low", "low", None, "low")


def rows(count, name="rows", kinds=KINDS):
    samples = [(name, kinds[i % len(kinds)], i) for i in range(count)]
    columns = {"kind": [kind for _, kind, _ in samples], "n": range(count)}
    return ListSource(samples, name=name, columns=columns)


def shuffled(count, name="rows", kinds=KINDS):
    return ShuffleDataset(rows(count, name, kinds))


def kinds(items):
    return Counter(kind for _, kind, _ in items)


def test_several_datasets_are_mixed_by_how_many_samples_they_have():
    both = [shuffled(50, "a"), shuffled(25, "b")]
    mix = by_property(both, "kind", {"high": 1, "low": 1}, other=0)
    assert mix.names == ("high/a", "high/b", "low/a", "low/b", "other/a", "other/b")
    found = Counter((name, kind) for name, kind, _ in mix.at(range(6000)))
    assert found == {(n, k): c for n, c in (("a", 2000), ("b", 1000)) for k in ("high", "low")}
    joined = by_property(ConcatDataset(*both), "kind", {"high": 1, "low": 1}, other=0)
    assert kinds(joined.at(range(600))) == {"high": 300, "low": 300}


def test_a_mix_that_ends_reads_each_sample_once():
    both = [shuffled(50, "a"), shuffled(25, "b")]
    mix = by_property(both, "kind", {"high": 5, "low": 1}, other=1, stop="all_exhausted")
    assert mix.size == 75
    for epoch in range(3):
        items = mix.at(range(75 * epoch, 75 * epoch + 75))
        assert len(set(items)) == 75
    most = {"high": 2, "low": 1}
    some = by_property(both, "kind", {"high": 1, "low": 1}, other=0, max_epochs=most)
    assert kinds(some.at(range(some.size))) == {"high": 30, "low": 45}


def saved(dataset, steps=7):
    with loader_of(BatchDataset(dataset, 2, list)) as loader:
        take(loader, steps)
        return loader.state_dict()


def test_a_state_of_another_split_is_refused_by_name():
    weights = {"high": 3, "low": 1}
    state = saved(by_property(shuffled(50), "kind", weights, other=0))
    anew = shuffled(50, kinds=("high", "low", "high", None, "low"))
    other = BatchDataset(by_property(anew, "kind", weights, other=0), 2, list)
    with loader_of(other) as loader, pytest.raises(StateMismatchError) as error:
        loader.load_state_dict(state)
    assert "'rows/high': count was 10, is 20" in str(error.value)
    assert "'rows/low': samples was " in str(error.value)
    assert "rows/other" not in str(error.value)
    relabelled = ListSource(
        rows(50).samples, name="rows", columns={"kind": rows(50).columns["kind"], "n": [0] * 50}
    )
    same = by_property(ShuffleDataset(relabelled), "kind", weights, other=0)
    with loader_of(BatchDataset(same, 2, list)) as loader:
        loader.load_state_dict(state)


@pytest.mark.parametrize(
    ("dataset", "told"),
    [
        (BatchDataset(shuffled(9), 2, list), "a BatchDataset are not taken one by one"),
        (RepeatDataset(shuffled(9)), "split what it reads from .*give the mix to RepeatDataset"),
        (MapDataset(LimitDataset(shuffled(9), 3), str), "a LimitDataset are not taken one by one"),
        (BlendDataset((shuffled(9), 1), (shuffled(9, "b"), 2)), "a BlendDataset are not"),
        ([[1, 2]], "is no dataset; a list becomes one in ListSource"),
        ([1, 2], "'1' is no dataset"),
        ([], "there are no datasets to mix"),
    ],
)
def test_what_cannot_be_split_is_told(dataset, told):
    with pytest.raises(ConfigError, match=told):
        by_property(dataset, "kind", {"high": 1})


@pytest.mark.parametrize(
    ("weights", "other", "error", "told"),
    [
        ({"high": 1}, None, ColumnError, "values without a weight: low: 30, .no value.: 10"),
        ({"high": 1, "lo": 1}, 1, ColumnError, "the value 'lo'; did you mean 'low'"),
        ({}, 1, WeightError, "there are no weights"),
        ({"high": -1, "low": 1}, 0, WeightError, "dataset 'high'"),
        ({"high": float("nan"), "low": 1}, 0, WeightError, "dataset 'high'"),
        ({"high": 0, "low": 0}, 0, WeightError, "all 3 weights are 0"),
    ],
)
def test_wrong_weights_are_told(weights, other, error, told):
    with pytest.raises(error, match=told):
        by_property(shuffled(50), "kind", weights, other=other)


def test_a_column_that_is_not_known_is_told():
    with pytest.raises(ColumnError, match="rows has no column 'knd'; did you mean 'kind'"):
        by_property(shuffled(50), "knd", {"high": 1})


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.sampled_from(["a", "b", "c", None]), min_size=4, max_size=30),
    st.lists(st.integers(0, 5), min_size=3, max_size=3),
    st.integers(1, 3),
    st.sampled_from(["even", "exact", "block"]),
)
def test_any_labels_give_the_shares_that_were_asked(labels, weights, folders, scheme):
    there = sorted({label for label in labels if label})
    asked = dict(zip("abc", weights, strict=True))
    asked = {label: asked[label] for label in there}
    if not any(asked.values()):
        return
    size = -(-len(labels) // folders)
    parts = [
        ShuffleDataset(
            ListSource(
                list(enumerate(labels))[start : start + size],
                name=f"f{start}",
                columns={"x": [label or "" for label in labels[start : start + size]]},
            )
        )
        for start in range(0, len(labels), size)
    ]
    mix = by_property(
        parts,
        "x",
        asked,
        other=0,
        scheme=scheme,
        **({"block_size": 10} if scheme == "block" else {}),
    )
    total = sum(asked.values())
    for n in (20 * total, 20 * total * len(labels)):
        found = Counter(label for _, label in mix.at(range(n)))
        for label, weight in asked.items():
            assert abs(found[label] - n * weight / total) <= 2 * folders + 1
    check_topology(mix, world_sizes=(1, 3), num_workers=(0,), items=20)
    assert np.array_equal(
        mix.consumed(50), np.bincount(mix.refs(np.arange(50)).source, minlength=len(mix.sources))
    )
