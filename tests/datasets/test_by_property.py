"""Mixing by what samples are: exact shares, one folder or several, states that know the
split."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energize import (
    BatchDataset,
    BlendDataset,
    LimitDataset,
    ListSource,
    MapDataset,
    RepeatDataset,
    ShuffleDataset,
    by_property,
)
from energize.errors import ColumnError, ConfigError
from energize.testing import check_topology

KINDS = ("high", "low", "low", None, "low")


def rows(count, name="rows", kinds=KINDS):
    samples = [(name, kinds[i % len(kinds)], i) for i in range(count)]
    columns = {"kind": [kind for _, kind, _ in samples], "n": range(count)}
    return ListSource(samples, name=name, columns=columns)


def shuffled(count, name="rows", kinds=KINDS):
    return ShuffleDataset(rows(count, name, kinds))


@pytest.mark.parametrize(
    ("dataset", "told"),
    [
        (
            BatchDataset(shuffled(9), 2, list),
            "a BatchDataset cannot be read one by one",
        ),
        (
            RepeatDataset(shuffled(9)),
            "Split its inputs .*pass the mix to RepeatDataset",
        ),
        (
            MapDataset(LimitDataset(shuffled(9), 3), str),
            "a LimitDataset cannot be read one by one",
        ),
        (
            BlendDataset((shuffled(9), 1), (shuffled(9, "b"), 2)),
            "a BlendDataset cannot",
        ),
        ([[1, 2]], "is not a dataset. Wrap a list in ListSource"),
        ([1, 2], "'1' is not a dataset"),
        ([], "the list of datasets is empty"),
    ],
)
def test_what_cannot_be_split_is_told(dataset, told):
    with pytest.raises(ConfigError, match=told):
        by_property(dataset, "kind", {"high": 1})
    with pytest.raises(
        ColumnError, match="rows has no column 'knd'; did you mean 'kind'"
    ):
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
        mix.consumed(50),
        np.bincount(mix.refs(np.arange(50)).source, minlength=len(mix.sources)),
    )
