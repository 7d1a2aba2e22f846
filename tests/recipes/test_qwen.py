"""Qwen-VL's data_dict: the samples of `dataset_use`, against the rules of its loader."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from energize import get_train_dataset
from energize.errors import MetadatasetError
from tests.recipes.files import Answers, annotations, answers, epoch


@pytest.fixture
def data_dict(tmp_path):
    """Return a file of two datasets, and their rows."""
    images = tmp_path / "media"
    names = {"cambrian": "cambrian.json", "mp_doc": "mp_doc.jsonl"}
    rows = {
        name: annotations(tmp_path / file, count, images=images)
        for (name, file), count in zip(names.items(), (21, 10), strict=True)
    }
    entries = {
        name: {"annotation_path": f"{tmp_path}/{file}", "data_path": str(images)}
        for name, file in names.items()
    }
    file = tmp_path / "data_dict.yaml"
    file.write_text(yaml.safe_dump(entries))
    return file, rows


def read(file, use):
    recipe = {"dataset_use": use}
    return get_train_dataset(file, batch_size=1, task_encoder=Answers(), recipe=recipe)


@pytest.mark.parametrize("use", ["cambrian%50,mp_doc", "mp_doc%100", "cambrian%7"])
def test_an_epoch_has_as_many_samples_as_qwen_draws(data_dict, use):
    file, rows = data_dict
    expected = {}
    for text in use.split(","):
        match = re.search(r"%(\d+)$", text)
        rate = int(match.group(1)) / 100.0 if match else 1.0
        name = re.sub(r"%(\d+)$", "", text)
        whole = len(rows[name])
        expected[name] = int(whole * rate) if rate < 1.0 else whole
    got = epoch(read(file, use), sum(expected.values()))
    assert len(set(got)) == len(got)
    for name, count in expected.items():
        part = [answer for answer in got if answer.startswith(name)]
        assert len(part) == count
        assert set(part) <= set(answers(rows[name]))


def test_names_of_no_dataset_are_a_fault(data_dict):
    with pytest.raises(MetadatasetError, match="did you mean 'cambrian'"):
        read(data_dict[0], "cambrain%50")


def test_ready_made_packs_are_a_fault(data_dict, tmp_path):
    file, rows = data_dict
    packs = [rows["cambrian"][:3], rows["cambrian"][3:]]
    (tmp_path / "cambrian.json").write_text(json.dumps(packs))
    with pytest.raises(MetadatasetError, match="ready-made packs") as raised:
        read(file, "cambrian")
    assert "data_dict.yaml:2 (cambrian.annotation_path)" in str(raised.value)
