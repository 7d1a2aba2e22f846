"""Metadatasets and stage files of every kind: those that are recorded, over their
folders."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from energize.experimental import get_staged_train_dataset
from tests.fuzz.corpora.reading import AsTheyAre, delivered, trained
from tests.fuzz.formats import Corpus, Format, Seen
from tests.golden.stored import SPLITS, Cooking, make_folders

_STEPS = 6
_HEAD = {"__module__": "energize", "__class__": "MetadatasetV2"}
_ENERGON = {"__module__": "megatron.energon", "__class__": "MetadatasetV2"}
_READ = (
    "blended, nested", "blended, another file", "blended, in blocks", "blended, line",
    "blended, all exhausted", "blended, limits", "blended, unit", "blended, by, of several",
    "blended, by labels", "blended, loss weights", "blended, target weights", "blended, level",
    "passes", "in turn", "subsets", "quotas of folders", "composition, stratified", "join",
    "join in a blend", "staged", "cooked",
)  # fmt: skip
_STAGE_FILE = """[training]
steps = 12
dataset_type = "energize"
dataset_path = "subsets.yaml"
seq_len = 512
[[training.data_stages]]
name = "ablation"
start_step = 3
dataset_type = "nanoset"
dataset_folders = ["web", "books"]
dataset_weights = [0.25, 0.75]
dataset_random_seed = 9
seq_len = 1024
"""


def write(folder: Path) -> None:
    """The folders, and a file for each kind of mix."""
    make_folders(folder)
    files = {name: (_HEAD, SPLITS[name]) for name in _READ} | {
        "energon": (_ENERGON, SPLITS["blended, energon"]),
        "older": (_ENERGON | {"__class__": "Metadataset"}, SPLITS["blended, older"]),
    }
    for name, (head, split) in files.items():
        text = yaml.safe_dump({**head, "splits": {"train": split}}, sort_keys=False)
        (folder / f"{name}.yaml").write_text(text)
    (folder / "run.toml").write_text(_STAGE_FILE)
    run = {
        "steps": 9,
        "dataset_type": "energize",
        "dataset_path": "older.yaml",
        "seq_len": 5,
    }
    (folder / "run.yaml").write_text(json.dumps({"training": run}))


def _mix(name: str) -> Corpus:
    encoder = Cooking() if name == "cooked" else AsTheyAre()
    read = partial(_trained, name=f"{name}.yaml", encoder=encoder)
    return Corpus("mixes", write, read)


def _trained(folder: Path, name: str, encoder: Any) -> Seen:
    return trained(folder / name, encoder, steps=_STEPS)


def _staged(folder: Path, name: str) -> Seen:
    dataset = get_staged_train_dataset(
        folder / name, batch_size=2, task_encoder=AsTheyAre(), carry_over=True
    )
    return delivered(dataset, _STEPS)


def _stages(name: str) -> Corpus:
    return Corpus("mixes", write, partial(_staged, name=name))


FORMATS = [
    *(
        Format(f"mix {name}", _mix(name), f"{name}.yaml", "yaml", describes=True, cost=3)
        for name in (*_READ, "energon", "older")
    ),
    Format("stages .toml", _stages("run.toml"), "run.toml", "text", describes=True, cost=2),
    Format("stages .yaml", _stages("run.yaml"), "run.yaml", "yaml", describes=True, cost=2),
    Format("columns.json", _mix("blended, unit"), "code/.nv-meta/columns/columns.json", "json",
           cost=2),
    Format("columns .npy", _mix("blended, unit"), "*/.nv-meta/columns/*.npy", cost=2),
    Format("index.sqlite", _mix("join"), "*/.nv-meta/index.sqlite", cost=2),
]  # fmt: skip
