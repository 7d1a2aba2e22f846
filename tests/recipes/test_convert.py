"""A recipe and the metadataset that `convert-recipe` writes give one stream."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from energize import get_train_dataset
from energize.cli.main import app
from tests.recipes.files import Answers, annotations, eagle, internvl, llava, qwen


@pytest.mark.parametrize("recipe", [llava, internvl, eagle, qwen])
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
    written = get_train_dataset(mix, batch_size=2, task_encoder=Answers())
    original = get_train_dataset(
        file, batch_size=2, task_encoder=Answers(), recipe=options
    )
    assert written.key == original.key
    assert [written[i] for i in range(30)] == [original[i] for i in range(30)]
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
