"""A recipe and the metadataset that `convert-recipe` writes give one stream."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from energize import get_train_dataset, get_val_dataset
from energize.cli.main import app
from energize.errors import MetadatasetError, ShardError
from energize.metadataset.documents import read_metadataset
from tests.recipes.files import (
    Answers,
    annotations,
    eagle,
    internvl,
    llama_factory,
    llava,
    qwen,
    trl,
)


@pytest.mark.parametrize("recipe", [llava, internvl, eagle, qwen, llama_factory, trl])
def test_the_converted_file_gives_the_identical_stream(tmp_path, recipe):
    for name in ("a.json", "b.jsonl"):
        annotations(tmp_path / name, 21, images=tmp_path / "images")
    file, options = recipe(tmp_path)
    mix = tmp_path / "elsewhere" / "mix.yaml"
    mix.parent.mkdir()
    given = [f"--option={name}={value}" for name, value in options.items()]
    command = ["convert-recipe", str(file), "-o", str(mix), *given]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    makers = [get_train_dataset]
    if "val" in read_metadataset(mix).splits:
        makers.append(get_val_dataset)
    encoding = {"batch_size": 2, "task_encoder": Answers()}
    for make in makers:
        written = make(mix, **encoding)
        original = make(file, **encoding, recipe=options)
        assert written.key == original.key
        numbers = range(30 if make is get_train_dataset else len(original))
        assert list(written.at(numbers)) == list(original.at(numbers))
    assert mix.read_text().startswith(f"# From {file}, a recipe of")


def test_a_metadataset_is_not_a_recipe(tmp_path):
    mix = tmp_path / "mix.yaml"
    mix.write_text("""
        {__module__: energize, __class__: MetadatasetV2, splits: {train: {path: x}}}
    """)
    done = CliRunner().invoke(app, ["convert-recipe", str(mix)])
    assert done.exit_code != 0
    assert "is a metadataset already" in done.output


def test_rows_by_key_with_names_of_images_are_data(tmp_path):
    annotations(tmp_path / "a.json", 3, images=tmp_path)
    rows = {
        f"row{number}": {"file_name": f"a_{number}.jpg", "caption": f"text {number}"}
        for number in range(3)
    }
    file = tmp_path / "captions.json"
    file.write_text(json.dumps(rows))
    dataset = get_train_dataset(file, batch_size=None)
    assert sorted(dataset[i].caption for i in range(3)) == [
        "text 0",
        "text 1",
        "text 2",
    ]


@pytest.mark.parametrize("name", ["packs.json", "packs.jsonl"])
def test_ready_made_packs_are_named(tmp_path, name):
    rows = annotations(tmp_path / "a.json", 6, images=tmp_path)
    packs = [rows[:3], rows[3:]]
    lines = "\n".join(map(json.dumps, packs))
    text = lines if name.endswith("l") else json.dumps(packs)
    (tmp_path / name).write_text(text)
    with pytest.raises(ShardError, match=f"{name} has lists of samples, ready-made"):
        get_train_dataset(tmp_path / name, batch_size=2)


def test_a_file_with_misspelt_keys_is_neither_kind(tmp_path):
    file = tmp_path / "recipe.yaml"
    file.write_text("datasets: [{json_pth: a.json}]")
    with pytest.raises(MetadatasetError, match="nor a known mixture file") as raised:
        get_train_dataset(file, batch_size=2)
    assert "recipe.yaml:1: neither a metadataset" in str(raised.value)
    assert "Correct its keys ('datasets')" in str(raised.value)
