"""Staged datasets: what comes in each step, and what carries over between stages."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import strategies as st

from energize import (
    ConfigError,
    EmptyDatasetError,
    FilterDataset,
    ListSource,
    NotIndexedError,
    Stage,
)
from tests.support.datasets import is_even, numbers
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


# Streams, and what cannot be staged


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
