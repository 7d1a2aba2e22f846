"""Metadatasets read by both libraries: the same samples, where Megatron-Energon's are right."""

from __future__ import annotations

import json
from collections import Counter

import pytest
import yaml

from energize import get_train_dataset, get_val_dataset, load_dataset
from energize.core.lanes import WorkerConfig
from energize.metadataset import DatasetBlendMode
from tests.support.joining import keys, texts
from tests.support.peers import run_energon

pytestmark = pytest.mark.energon

PROGRAM = """
import contextlib, json, sys
from collections import Counter
sys.path.insert(0, sys.argv[1])
from megatron.energon import (
    DefaultTaskEncoder, WorkerConfig, get_loader, get_train_dataset, get_val_dataset, load_dataset,
    prepare_metadataset,
)
from megatron.energon.epathlib import EPath

worker_config = WorkerConfig(rank=0, world_size=1, num_workers=0)
for file, split in json.loads(sys.argv[2]):
    with contextlib.redirect_stdout(sys.stderr):
        prepare_metadataset(EPath(file))
        common = {"split_part": split, "worker_config": worker_config, "batch_size": None}
        stored = get_val_dataset(file, **common)
        found = load_dataset(file).get_datasets(
            training=True, split_part=split, worker_config=worker_config
        )
        in_order = [[sample.__key__, sample.text] for sample in get_loader(stored)]
        epoch = None
        if found.blend_mode.value == "sample_repetitions":
            order = {"shuffle_buffer_size": None, "max_samples_per_sequence": None}
            train = get_train_dataset(file, repeat=False, **order, **common)
            epoch = Counter(sample.__key__ for sample in get_loader(train))
    print(json.dumps({
        "stored": in_order,
        "epoch": epoch,
        "mode": found.blend_mode.value,
        "numbers": [[each.weight, each.repetitions] for each in found.datasets],
    }))
"""

JOINER = """
from dataclasses import dataclass
from megatron.energon import Sample

@dataclass
class Both(Sample):
    text: str

def both(first, second):
    return Both.derive_from(first, text=f"{first.text} + {second.text}")
"""


def own_both(first, second):
    """The joiner of the peer's program, here."""
    return type(first).derive_from(first, text=f"{first.text} + {second.text}")


@pytest.fixture
def folder(tmp_path):
    """Three folders, one with excluded samples; the third has what the first has, elsewhere."""
    first = [keys(*range(10)), keys(*range(10, 17)), keys(*range(20, 25))]
    texts(tmp_path / "a", first, splits={"train": [0, 1], "val": [2]}, prefix="a ")
    second = [keys(*range(100, 111)), keys(*range(120, 128))]
    exclude = ["s0.tar/0103", "s0.tar/0104", "s1.tar/0121"]
    texts(tmp_path / "b", second, splits={"train": [0], "val": [1]}, prefix="b ", exclude=exclude)
    third = [keys(*range(30, 2, -1)), keys(2, 1, 0)]
    texts(tmp_path / "c", third, splits={"train": [0, 1], "val": [0]}, prefix="c ")
    (tmp_path / "joiners_of_energon.py").write_text(JOINER)
    return tmp_path


def written(folder, name, node, newer=True):
    kind = "MetadatasetV2" if newer else "Metadataset"
    splits = {"train": node, "val": json.loads(json.dumps(node))}  # no aliases for the peer
    document = {"__module__": "megatron.energon", "__class__": kind, "splits": splits}
    (folder / name).write_text(yaml.safe_dump(document, sort_keys=False))
    return folder / name


def by_energon(folder, *asked):
    asked = json.dumps([[str(file), split] for file, split in asked])
    return [json.loads(line) for line in run_energon(folder, asked, program=PROGRAM).splitlines()]


def stored(file, split):
    samples = get_val_dataset(file, split_part=split, batch_size=None)
    return [[each.__key__, each.text] for each in samples]


def subset(start, end):
    return {"range": [start, end]}


SUBSETS = {
    "absolute": {"path": "a", "subset": subset(2, 5)},
    "to the end": {"path": "a", "subset": subset(3, "end")},
    "percent": {"path": "a", "subset": subset("29%", "71%")},
    "of excluded ones": {"path": "b", "subset": subset("10%", "60%")},
    "fractions": {"path": "b", "subset": subset("33.3%", "66.6%")},
    "of a blend": {
        "subset": subset("25%", "75%"),
        "blend": [{"path": "a"}, {"path": "b", "subset": subset("0%", "80%")}],
    },
    "both kinds": {
        "subset": subset("50%", "100%"),
        "blend": [{"path": "a", "subset": subset(1, 5)}, {"path": "b"}],
    },
    "epochized": {
        "subset": subset("0%", "70%"),
        "blend_epochized": [{"path": "a", "repetitions": 2}, {"path": "b"}],
    },
}


def test_the_same_samples_of_subsets(folder):
    files = [written(folder, f"{i}.yaml", node) for i, node in enumerate(SUBSETS.values())]
    outer = {"subset": subset("10%", "55%"), "blend": [{"path": "5.yaml"}, {"path": "0.yaml"}]}
    files.append(written(folder, "nested.yaml", outer))
    asked = [(file, split) for file in files for split in ("train", "val")]
    answers = by_energon(folder, *asked)
    assert len(answers) == len(asked)
    for (file, split), answer in zip(asked, answers, strict=True):
        assert stored(file, split) == answer["stored"], (file.name, split)


def test_the_same_counts_per_epoch_and_the_same_numbers(folder):
    entries = [{"path": "a", "repetitions": 3}, {"path": "b", "repetitions": 2}]
    inner = written(folder, "inner.yaml", {"blend_epochized": entries})
    node = {"blend_epochized": [{"path": inner.name, "repetitions": 2}, {"path": "c"}]}
    weights = {"blend": [{"path": "a", "weight": 3}, {"path": "old.yaml", "weight": 1}]}
    old = {"datasets": [{"path": "b", "weight": 4}, {"path": "c", "subflavor": "x"}]}
    files = [
        inner,
        written(folder, "outer.yaml", node),
        written(folder, "old.yaml", old, newer=False),
        written(folder, "weights.yaml", weights),
    ]
    asked = [(file, split) for file in files for split in ("train", "val")]
    for (file, split), answer in zip(asked, by_energon(folder, *asked), strict=True):
        loaded = load_dataset(file).get_datasets(
            training=True, split_part=split, worker_config=WorkerConfig()
        )
        assert loaded.blend_mode is DatasetBlendMode(answer["mode"])
        for own, (weight, repetitions) in zip(loaded.datasets, answer["numbers"], strict=True):
            assert own.weight == (None if weight is None else pytest.approx(weight))
            assert own.repetitions == repetitions
        assert stored(file, split) == answer["stored"]
        if answer["epoch"]:
            dataset = get_train_dataset(
                file,
                split_part=split,
                batch_size=None,
                shuffle_buffer_size=None,
                max_samples_per_sequence=None,
                repeat=False,
            )
            assert Counter(sample.__key__ for sample in dataset) == answer["epoch"]


@pytest.mark.parametrize("nonmatch", ["error", "skip"])
def test_the_same_rows_of_joins(folder, nonmatch):
    entries = [{"path": "a"}, {"path": "c", "nonmatch": nonmatch}]
    names = {"__module__": "joiners_of_energon", "__function__": "both"}
    node = {"join": entries, "joiner": names}
    theirs = written(folder, "theirs.yaml", node)
    some = written(folder, "some.yaml", node | {"subset": subset("20%", "60%")})
    blend = written(folder, "blend.yaml", {"blend": [{**node, "weight": 2.0}, {"path": "b"}]})
    files = [theirs, some, blend]
    answers = by_energon(folder, *((file, "train") for file in files))
    for file, answer in zip(files, answers, strict=True):
        file.write_text(
            file.read_text()
            .replace("joiners_of_energon", __name__)
            .replace("__function__: both", "__function__: own_both")
        )
        assert stored(file, "train") == answer["stored"]


def test_what_is_wrong_there_is_right_here(folder):
    """Splits that share one file of joined samples; partners that may be missing; fractions."""
    names = {"__module__": __name__, "__function__": "own_both"}
    entries = [{"path": "a"}, {"path": "c", "split_part": "train", "nonmatch": "skip"}]
    file = written(folder, "join.yaml", {"join": entries, "joiner": names})
    load_dataset(file).prepare()
    there = set(keys(*range(31)))
    for split, wanted in (("train", keys(*range(17))), ("val", keys(*range(20, 25)))):
        assert [key for key, _ in stored(file, split)] == [k for k in wanted if k in there]
    fractions = {"blend_epochized": [{"path": "a", "repetitions": 1.5}, {"path": "c"}]}
    dataset = get_train_dataset(
        written(folder, "fractions.yaml", fractions), batch_size=None, repeat=False
    )
    epochs = [Counter(each.__key__ for each in dataset.at(range(e * 56, e * 56 + 56)))
              for e in range(2)]  # fmt: skip
    for epoch in epochs:  # each time 17 samples once or twice, and 31 once, of which 17 are both
        assert sum(epoch.values()) == 25 + 31
    once = [{key for key, count in epoch.items() if count == 3} for epoch in epochs]
    assert once[0] | once[1] != once[0]
