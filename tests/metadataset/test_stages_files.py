"""Stage files: TOML and YAML to plans, their faults, and the datasets built from them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from energize import (
    ConfigError,
    DatasetNotFoundError,
    MetadatasetError,
    build_stage,
    get_staged_train_dataset,
    get_train_dataset,
    read_stages,
)
from tests.support.prepared import captions, classes

ROOT = Path(__file__).parents[2]
DOCUMENTS = Path(__file__).parents[1] / "documents" / "data_stages"
EXAMPLES = ROOT / "metadatasets"

STAGE = {
    "name": "one",
    "start_step": 0,
    "dataset_type": "nanoset",
    "dataset_folders": ["a", "b"],
    "dataset_weights": [0.5, 0.5],
    "seq_len": 128,
}


def toml(tables):
    """A TOML file of `training` keys and stages."""
    training = {key: value for key, value in tables.items() if key != "data_stages"}
    lines = ["[training]", *(f"{key} = {written(value)}" for key, value in training.items())]
    for stage in tables.get("data_stages", []):
        lines += ["", "[[training.data_stages]]"]
        lines += [f"{key} = {written(value)}" for key, value in stage.items()]
    return "\n".join(lines)


def written(value):
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{key} = {written(each)}' for key, each in value.items())} }}"
    return json.dumps(value)


def plan_of(tmp_path, stages, name="run.toml", **training):
    file = tmp_path / name
    tables = {**training, "data_stages": stages}
    file.write_text(toml(tables) if file.suffix == ".toml" else json.dumps({"training": tables}))
    return read_stages(file)


def stage(**changed):
    return {key: value for key, value in {**STAGE, **changed}.items() if value is not ...}


FAULTS = {
    "unknown key": (
        stage(dataset_weigths=[1.0]),
        "data_stages[0].dataset_weigths): unknown key 'dataset_weigths'; did you mean "
        "'dataset_weights'?",
    ),
    "no name": (stage(name=...), "data_stages[0].name): the key 'name' is missing"),
    "blank name": (stage(name=" "), "data_stages[0].name): expected text that is not blank"),
    "no start": (stage(start_step=...), "the key 'start_step' is missing"),
    "no type": (stage(dataset_type=...), "the key 'dataset_type' is missing"),
    "no sequence length": (stage(seq_len=...), "the key 'seq_len' is missing"),
    "negative start": (
        stage(start_step=-1),
        ".start_step): expected greater than or equal to 0",
    ),
    "start no number": (
        stage(start_step="0"),
        ".start_step): expected an integer",
    ),
    "sequence length 0": (
        stage(seq_len=0),
        ".seq_len): expected greater than 0",
    ),
    "negative seed": (stage(dataset_random_seed=-1), ".dataset_random_seed): expected greater"),
    "end before start": (
        stage(start_step=5, end_step=5),
        "end_step is a whole number, 6 or more; got 5",
    ),
    "huggingface without dataset": (
        stage(dataset_type="huggingface", dataset_folders=..., dataset_weights=...),
        "a huggingface dataset is named by 'dataset'",
    ),
    "huggingface with blank dataset": (
        stage(dataset_type="huggingface", dataset="  "),
        ".dataset): expected text that is not blank; got '  '",
    ),
    "nanoset without folders": (
        stage(dataset_folders=..., dataset_weights=...),
        "a nanoset is read from 'dataset_folders'",
    ),
    "nanoset with blank folder": (
        stage(dataset_folders=["a", ""]),
        "data_stages[0].dataset_folders): expected a list of one or more folders, relative to this "
        "file; got ['a', '']",
    ),
    "no folders in the list": (stage(dataset_folders=[]), ".dataset_folders): expected a list"),
    "energize without data": (
        stage(dataset_type="energize", dataset_folders=..., dataset_weights=...),
        "energize reads 'dataset_path' or 'dataset_folders'; neither is given",
    ),
    "energize with both": (
        stage(dataset_type="energize", dataset_path="mix.yaml"),
        "energize reads 'dataset_path' or 'dataset_folders'; both are given",
    ),
    "weights empty": (stage(dataset_weights=[]), ".dataset_weights): "),
    "weight negative": (stage(dataset_weights=[-0.5, 1.0]), "[0]): expected greater than or equal"),
    "weight above 1": (stage(dataset_weights=[2, 0.5]), "less than or equal to 1; got 2"),
    "weights do not sum to 1": (stage(dataset_weights=[0.5, 0.4]), "these sum to 0.9"),
    "too few weights": (stage(dataset_weights=[1.0]), "there are 1 weights for 2 folders"),
    "weights without folders": (
        stage(dataset_type="preprocessed", dataset_folders=..., dataset_weights=[1.0]),
        "there are 1 weights for 0 folders in 'dataset_folders'",
    ),
    "batch no table": (stage(batch=3), ".batch): expected a mapping; got 3"),
}


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("kind", ["toml", "yaml"])
def test_faults_of_a_stage(tmp_path, name, kind):
    wrong, message = FAULTS[name]
    with pytest.raises(MetadatasetError) as caught:
        plan_of(tmp_path, [wrong], f"run.{kind}", steps=10)
    assert message in str(caught.value)
    assert str(tmp_path / f"run.{kind}") in str(caught.value)


def test_the_default_stage_needs_a_sequence_length(tmp_path):
    with pytest.raises(MetadatasetError, match="'seq_len' is missing, and the stage 'default'"):
        plan_of(tmp_path, [], steps=10, dataset_type="energize", dataset_path="mix.yaml")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.toml", "[training\n", "invalid TOML"),
        ("a.toml", "x = 1\n", "there is no table 'training'"),
        ("a.yaml", "training: 3\n", "there is no table 'training'"),
        ("a.toml", "[training]\ndata_stages = 3\n", "expected a list; got 3"),
        ("a.toml", "[training]\ndata_stages = [3]\n", "expected a mapping; got 3"),
        ("a.yaml", "training: {data_stages: [!!python/name:os.system x]}\n", "the tag"),
        ("a.json", "{}", "expected a .toml or .yaml file"),
    ],
)
def test_files_that_are_no_stage_files(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(MetadatasetError) as caught:
        read_stages(tmp_path / name)
    assert message in str(caught.value)


def test_a_file_that_is_not_there(tmp_path):
    for name in ("a.toml", "a.yaml"):
        with pytest.raises(DatasetNotFoundError, match="the file does not exist"):
            read_stages(tmp_path / name)


# Building datasets


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The documents and the examples beside small prepared folders."""
    root = tmp_path_factory.mktemp("stages")
    for start, name in enumerate(("photos", "charts", "pages")):
        captions(root / "data" / name, 40, shards=2, start=100 * start)
    classes(root / "demo-data" / "classification", 40, shards=2)
    for start, name in enumerate(("captions_a", "captions_b")):
        captions(root / "demo-data" / name, 40, shards=2, start=100 * start)
    shutil.copytree(EXAMPLES, root / "metadatasets")
    shutil.copytree(DOCUMENTS, root, dirs_exist_ok=True)
    return root


def test_a_misspelt_type(folder):
    file = folder / "misspelt.toml"
    file.write_text(toml({"data_stages": [stage(dataset_type="energise")]}))
    with pytest.raises(MetadatasetError, match="did you mean 'energize'"):
        get_staged_train_dataset(file, batch_size=2)


def test_a_nanoset_of_tokens_is_not_a_prepared_folder(folder):
    (folder / "tokens").mkdir(exist_ok=True)
    file = folder / "tokens.toml"
    tokens = stage(dataset_folders=["tokens"], dataset_weights=[1.0])
    file.write_text(toml({"data_stages": [tokens]}))
    with pytest.raises(MetadatasetError, match=r"tokens has no .nv-meta.*pass build="):
        get_staged_train_dataset(file, batch_size=2)


def test_a_folder_that_is_not_there(folder):
    file = folder / "missing.toml"
    file.write_text(toml({"data_stages": [stage(dataset_folders=["gone", "data/math"])]}))
    with pytest.raises(DatasetNotFoundError, match=r"stage 'one': 'gone' does not exist"):
        get_staged_train_dataset(file, batch_size=2)


def test_options_beside_build_would_have_no_effect(folder):
    with pytest.raises(ConfigError, match="batch_size would have no effect beside build"):
        get_staged_train_dataset(folder / "seeds.toml", build=build_stage, batch_size=2)


@pytest.mark.parametrize(
    ("build", "told"),
    [
        (7, "build is a function of a stage that returns its dataset; got 7"),
        (
            lambda stage: None,
            r"seeds.toml:\d+ .*: build returns the dataset of the stage; got None",
        ),
    ],
)
def test_what_is_no_build(folder, build, told):
    with pytest.raises(ConfigError, match=told):
        get_staged_train_dataset(folder / "seeds.toml", build=build)


@pytest.mark.parametrize("kind", ["toml", "yaml"])
def test_a_stage_file_is_no_metadataset(tmp_path, kind):
    plan_of(tmp_path, [stage()], f"run.{kind}", steps=5)
    with pytest.raises(MetadatasetError, match="it is read by get_staged_train_dataset"):
        get_train_dataset(tmp_path / f"run.{kind}", batch_size=2)


LINES = '''\
# A comment
title = "x"
[training] # the table
text = """
name = 3
[other]
"""
numbers = [
  1,
]
[[training.data_stages]]
name = "one"
[training.data_stages.batch]
size = {x = 1, y = [{z = 2}]}
[[training.data_stages]]
  name = 'two'
'''
