"""`energize schema`: what it accepts is what is read."""

import json
from pathlib import Path

import jsonschema
import pytest
from typer.testing import CliRunner

from energize.cli.main import app
from energize.errors import MetadatasetError
from energize.metadataset import read_metadataset
from tests.support.metadatasets import written

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(
    file for file in (ROOT / "metadatasets").glob("*.yaml") if not file.stem.startswith("stages")
)


@pytest.fixture(scope="module")
def validator():
    printed = CliRunner().invoke(app, ["schema"])
    assert printed.exit_code == 0
    schema = json.loads(printed.stdout)
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_it_says_what_it_is(validator):
    assert validator.schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert validator.schema["title"] == "energize metadataset"
    assert validator.schema["description"]


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_examples_are_valid(validator, file):
    validator.validate(read_metadataset(file).text.data)


@pytest.mark.parametrize(
    "node",
    [
        {"pth": "x"},
        {"path": ""},
        {"blend": []},
        {"blend": [{"path": "x", "wieght": 3}]},
        {"blend": [{"path": "x", "weight": -1}]},
        {"blend": [{"path": "x", "weight": {"points": {"soon": 1}}}]},
        {"blend": [{"path": "x", "weight": {"points": {"0": 1}, "interpolate": "step"}}]},
        {"blend": [{"path": "x", "weight": {"points": {"0": -1}}}]},
        {"blend": [{"path": "x", "max_epochs": 0}]},
        {"blend": [{"path": "x", "choose": "many"}]},
        {"blend": [{"path": "x"}], "epoch_size": "10x"},
        {"blend": [{"path": "x"}], "epoch_size": 0},
        {"path": "x", "shuffle_over_epochs_multiplier": 0},
        {"blend": [{"path": "x"}], "shceme": "exact"},
        {"blend": [{"path": "x"}], "scheme": "exakt"},
        {"blend": [{"path": "x"}], "composition": {"method": "stratfied"}},
        {"blend": [{"path": "x"}], "composition": {"method": "random", "drop_last": 1}},
        {"blend": [{"blend": [{"path": "x"}], "composition": {"method": "random"}}]},
        {"path": "x", "steps": 3},
        {"stages": []},
        {"stages": [{"name": "one", "path": "x"}]},
        {"stages": [{"name": "one", "start_step": 0}]},
        {"stages": [{"name": " ", "start_step": 0, "path": "x"}]},
        {"stages": [{"name": "one", "start_step": 0, "path": "x", "sead": 3}]},
        {"stages": [{"name": "one", "start_step": 0, "path": "x", "scheme": "exact"}]},
        {"stages": [{"name": "one", "start_step": 0, "path": "x"}], "scheme": "exact"},
        {"stages": [{"name": "one", "start_step": 0, "path": "x"}], "steps": 0},
        {"blend": [{"stages": [{"name": "one", "start_step": 0, "path": "x"}]}]},
    ],
)
def test_what_is_not_read_is_not_valid(validator, tmp_path, node):
    file = written(tmp_path / "mix.yaml", node)
    with pytest.raises(MetadatasetError):
        read_metadataset(file)
    document = {"__module__": "energize", "__class__": "MetadatasetV2", "splits": {"train": node}}
    assert not validator.is_valid(document)


@pytest.mark.parametrize("size", [1, 7, "10k", " 1.5M ", "1e3k", "20 b", "+3t", "1_000"])
def test_sizes_that_are_read_are_valid(validator, tmp_path, size):
    node = {"epoch_size": size, "blend": [{"path": "x", "choose": size}]}
    data = read_metadataset(written(tmp_path / "mix.yaml", node)).text.data
    validator.validate(data)


def test_files_of_energon_have_their_own_grammar(validator):
    node = {"blend": [{"path": "x"}], "scheme": "exact"}
    document = {"__module__": "energize", "__class__": "MetadatasetV2", "splits": {"train": node}}
    assert validator.is_valid(document)
    assert validator.is_valid({"splits": {"train": {"datasets": [{"path": "x"}]}}})


def test_it_can_be_written_to_a_file(validator, tmp_path):
    file = tmp_path / "metadataset.schema.json"
    done = CliRunner().invoke(app, ["schema", "--output", str(file)])
    assert done.exit_code == 0, done.output
    assert json.loads(file.read_text()) == validator.schema
    missing = CliRunner().invoke(app, ["schema", "-o", str(tmp_path / "no" / "file.json")])
    assert missing.exit_code == 2
    assert "cannot be written (No such file or directory" in missing.output
