"""Staged datasets: what comes in each step, and what carries over between stages."""

from __future__ import annotations

import pytest

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
