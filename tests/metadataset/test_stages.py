"""Stages in a split of a metadataset: the same run as in a stage file or in Python."""

from __future__ import annotations

import logging

import pytest

from energize import MetadatasetError
from energize.experimental import StagedDataset, read_stages
from energize.metadataset import Stages, resolve
from tests.support.metadatasets import beside_folders
from tests.support.staged_files import build, writer_beside


@pytest.fixture(scope="module")
def examples(tmp_path_factory):
    return beside_folders(tmp_path_factory.mktemp("staged"))


@pytest.fixture
def mix(examples, request):
    return writer_beside(examples, request)


# The same run


def test_a_split_is_chosen_and_may_come_from_another_file(mix):
    mix(
        "tuning: {stages: [{name: one, start_step: 0, path: {A}, split_part: train,"
        " subflavors: {x: 1, y: 1}}]}\n"
        "train: {path: {B}}\n",
        "inner.yaml",
    )
    outer = mix("train: {path: inner.yaml, split_part: tuning, subflavors: {x: 2}}")
    assert isinstance(resolve(outer, "train"), Stages)
    (stage,) = read_stages(outer).stages
    assert stage.dataset.subflavors == {"x": 2, "y": 1}
    inner = outer.parent / "inner.yaml"
    assert build(outer).at(range(5)) == build(inner, split_part="tuning").at(range(5))
    assert not isinstance(build(inner), StagedDataset)
    with pytest.raises(MetadatasetError, match="the split 'train' has no stages"):
        read_stages(inner)


# Running it


def test_the_log_has_the_plan_and_each_transition(examples, caplog):
    caplog.set_level(logging.INFO, logger="energize")
    assert len(list(build(examples / "curriculum.yaml"))) == 250
    assert "data stages: 3, 150 steps" in caplog.text
    assert "step 50: 'default' -> 'classes'" in caplog.text
    assert "step 100: 'classes' -> 'long'" in caplog.text
