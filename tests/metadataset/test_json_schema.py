"""The JSON schema for editors: what it accepts is what is read, for every kind of node."""

from __future__ import annotations

import jsonschema
import pytest

from energize.errors import MetadatasetError
from energize.metadataset import read_metadataset
from energize.metadataset.documents import json_schema
from tests.support.metadatasets import written

JOINER = {"__module__": "m", "__class__": "C"}
FOLDER = {"path": "a"}
PAIR = [FOLDER, {"path": "b", "nonmatch": "skip"}]

BOTH = {
    "join": {"join": PAIR, "joiner": JOINER},
    "join by name": {"join": {"x": FOLDER, "y": FOLDER}, "joiner": JOINER},
    "join by a function": {"join": PAIR, "joiner": {"__module__": "m", "__function__": "f"}},
    "settings of a join": {
        "join": PAIR,
        "joiner": JOINER,
        "split_part": "val",
        "subflavors": {"x": 1},
        "split_config": "half.yaml",
        "shuffle_over_epochs_multiplier": 2,
        "subset": {"range": [0, "end"]},
    },
    "join in a blend": {"blend": [{"join": PAIR, "joiner": JOINER, "weight": 2}]},
    "passes": {"blend_epochized": [{"path": "a", "repetitions": 1.5}, FOLDER]},
    "blend in passes": {"blend_epochized": [{"repetitions": 2, "blend_epochized": [FOLDER]}]},
    "subset": {"path": "a", "subset": {"range": ["12.5%", "50%"]}},
    "subset of a blend": {"blend": [FOLDER], "subset": {"range": ["0%", "end"]}},
    "aux": {"path": "a", "aux": {"images": "b", "masks": "filesystem://c"}},
}
OWN = {
    "concat": {"concat": [FOLDER, {"blend": [FOLDER]}]},
    "stages": {"stages": [{"name": "one", "start_step": 0, "join": PAIR, "joiner": JOINER}]},
    "steps around": {"stages": [{"name": "one", "start_step": 9, **FOLDER}], "concat": [FOLDER]},
}
WRONG = {
    "one to join": {"join": [FOLDER], "joiner": JOINER},
    "no joiner": {"join": PAIR},
    "half a joiner": {"join": PAIR, "joiner": {"__module__": "m"}},
    "two joiners": {"join": PAIR, "joiner": JOINER | {"__function__": "f"}},
    "weight in a join": {"join": [FOLDER, {"path": "b", "weight": 1}], "joiner": JOINER},
    "blend in a join": {"join": [FOLDER, {"blend": [FOLDER]}], "joiner": JOINER},
    "stores in a join": {"join": [FOLDER, {"path": "b", "aux": {"x": "c"}}], "joiner": JOINER},
    "nonmatch elsewhere": {"path": "a", "nonmatch": "skip"},
    "wrong nonmatch": {"join": [FOLDER, {"path": "b", "nonmatch": "drop"}], "joiner": JOINER},
    "negative": {"blend_epochized": [{"path": "a", "repetitions": -1}]},
    "repetitions in a blend": {"blend": [{"path": "a", "repetitions": 1}]},
    "weight in passes": {"blend_epochized": [{"path": "a", "weight": 1}]},
    "two kinds": {"blend": [FOLDER], "blend_epochized": [FOLDER]},
    "nothing": {"concat": []},
    "no range": {"path": "a", "subset": [0, 1]},
    "float": {"path": "a", "subset": {"range": [0.1, 0.5]}},
    "three": {"path": "a", "subset": {"range": [0, 1, 2]}},
    "no name": {"path": "a", "aux": {"a b": "c"}},
    "no reference": {"path": "a", "aux": {"x": 1}},
    "stores of a blend": {"blend": [FOLDER], "aux": {"x": "c"}},
}


@pytest.fixture(scope="module")
def validator():
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def document(node, module):
    return {"__module__": module, "__class__": "MetadatasetV2", "splits": {"train": node}}


@pytest.mark.parametrize("module", ["energize", "megatron.energon"])
@pytest.mark.parametrize("node", BOTH.values(), ids=BOTH)
def test_what_is_read_in_both_grammars(validator, tmp_path, node, module):
    assert read_metadataset(written(tmp_path / "mix.yaml", node, module)).splits
    validator.validate(document(node, module))


@pytest.mark.parametrize("node", OWN.values(), ids=OWN)
def test_what_is_read_in_ours_only(validator, tmp_path, node):
    assert read_metadataset(written(tmp_path / "mix.yaml", node)).splits
    validator.validate(document(node, "energize"))
    with pytest.raises(MetadatasetError):
        read_metadataset(written(tmp_path / "mix.yaml", node, "megatron.energon"))
    assert not validator.is_valid(document(node, "megatron.energon"))


@pytest.mark.parametrize("module", ["energize", "megatron.energon"])
@pytest.mark.parametrize("node", WRONG.values(), ids=WRONG)
def test_what_is_not_read(validator, tmp_path, node, module):
    with pytest.raises(MetadatasetError, match=r"mix\.yaml:\d+ \(splits\.train"):
        read_metadataset(written(tmp_path / "mix.yaml", node, module))
    assert not validator.is_valid(document(node, module))


def test_the_older_grammar_has_none_of_these(validator, tmp_path):
    for key, value in {"aux": {"x": "b"}, "subset": {"range": [0, 1]}}.items():
        old = {"splits": {"train": {"datasets": [{"path": "a", key: value}]}}}
        assert not validator.is_valid(old)
        (tmp_path / "old.yaml").write_text(
            f"splits: {{train: {{datasets: [{{path: a, {key}: {value}}}]}}}}".replace("'", '"')
        )
        with pytest.raises(MetadatasetError, match="it needs `__class__: MetadatasetV2`"):
            read_metadataset(tmp_path / "old.yaml")
