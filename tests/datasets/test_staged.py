"""Staged datasets: what comes in each step, and what carries over between stages."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from energize import (
    BatchDataset,
    BlendDataset,
    ConfigError,
    EmptyDatasetError,
    FilterDataset,
    LimitDataset,
    ListSource,
    MapDataset,
    NotIndexedError,
    RepeatDataset,
    Stage,
)
from energize.testing import check_laws
from tests.support.datasets import is_even, numbers, shuffled
from tests.support.stages import staged, web

# Counting what is consumed


def refs_of(dataset, positions, before=0):
    refs = dataset.refs(np.array(positions, dtype=np.int64))
    rows = (refs.source + before, refs.index, refs.epoch)
    return zip(*(column.tolist() for column in rows), strict=True)


# Carrying over


def visits(dataset, items):
    """How often each (source, sample, pass) is visited in the first items."""
    return Counter(refs_of(dataset, range(items)))


parts = st.tuples(st.integers(0, 2), st.integers(1, 9))
stages = st.tuples(
    st.lists(parts, min_size=1, max_size=3, unique_by=lambda part: part[0]),
    st.integers(1, 4),
    st.integers(1, 12),
    st.integers(1, 3),
)


@given(drawn=st.lists(stages, min_size=1, max_size=5))
def test_carrying_over_visits_nothing_twice_for_any_plan(drawn):
    plan, start = [], 0
    for number, (shares, batch_size, steps, items) in enumerate(drawn):
        pairs = [(shuffled(17 + 5 * i, 1000 * i), weight) for i, weight in shares]
        batches = BatchDataset(MapDataset(BlendDataset(pairs), abs), batch_size, list)
        plan.append(Stage(f"s{number}", start, dataset=batches, items_per_step=items))
        start += steps
    data = staged(*plan, total=start)
    seen = visits(data, data.size)
    assert set(seen.values()) == {1}
    for number, count in enumerate(data.consumed(data.size).tolist()):
        places = [epoch * data.sources[number].count for n, _, epoch in seen if n == number]
        assert len(places) == count
        assert max(places, default=-1) < count  # no pass begins before the one before it has ended


def test_batches_that_drop_samples_and_limits_go_on_as_they_would_alone():
    for part in (
        BatchDataset(shuffled(10), 4, list, drop_last=True),
        LimitDataset(shuffled(10), 6),
        RepeatDataset(shuffled(10), 1.5),
        LimitDataset(numbers(10), 6),
    ):
        data = staged(
            Stage("a", 0, 5, dataset=part), Stage("b", 5, 20, dataset=MapDataset(part, str))
        )
        alone = part.at(range(20))
        assert list(data) == alone[:5] + [str(each) for each in alone[5:]]


# Streams, and what cannot be staged


def test_streams_are_staged_when_nothing_carries_over():
    data = staged(
        Stage("even", 0, 4, dataset=FilterDataset(numbers(20), is_even)),
        Stage("all", 4, 7, dataset=numbers(20)),
        carry_over=False,
    )
    assert list(data) == [0, 2, 4, 6, 0, 1, 2]
    check_laws(data)


def test_streams_do_not_carry_over():
    with pytest.raises(NotIndexedError, match=r"stage 'even' is a stream.*carry_over=False"):
        staged(Stage("even", 0, dataset=FilterDataset(numbers(20), is_even)))


def test_a_stage_that_reads_from_no_dataset():
    wrong = Stage("second", 5, dataset=[1, 2], place="run.toml:7")
    with pytest.raises(ConfigError, match=r"run\.toml:7: stage 'second' .*got list '\[1, 2\]'"):
        staged(Stage("first", 0, dataset=web()), wrong)


def test_a_stage_without_items():
    with pytest.raises(EmptyDatasetError, match="stage 'a' has no items"):
        staged(Stage("a", 0, dataset=ListSource([])))
