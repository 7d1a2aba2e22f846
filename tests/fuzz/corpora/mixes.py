"""Metadatasets and stage files of every kind, over small folders with columns."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

from energize import (
    Cooker,
    TextSample,
    basic_sample_keys,
    get_staged_train_dataset,
    prepare,
    prepare_columns,
    write_shards,
)
from energize.preparation.jsonl import prepare_jsonl
from tests.fuzz.corpora.reading import AsTheyAre, delivered, trained
from tests.fuzz.formats import Corpus, Format, Seen
from tests.support.joining import Pair
from tests.support.rows import write_lines

_HEAD = "__module__: energize\n__class__: MetadatasetV2\nsplits:\n  train:\n"
_STEPS = 6

_ = Pair  # the joiner that a mix names, imported by the program
MIXES: dict[str, str] = {
    "blend": """
    temperature: 0.7
    stop: all_exhausted
    blend:
      - {path: a, weight: 3, subflavors: {of: a}, max_epochs: 2, sample_weight: 0.5}
      - weight: 1
        scheme: block
        block_size: 8
        blend:
          - {path: ./b, weight: 0.25, min_share: 0.1, max_share: 0.9}
          - {path: "./c.jsonl", weight: 0.75}
""",
    "scheduled": """
    scheme: exact
    blend:
      - path: a
        weight: {interpolation: linear, slots_per_step: 2, points: {0: 0.8, 10: 0.5}}
      - {path: b, weight: {interpolation: step, points: {0: 1, 5: 0, 9: 2}}}
""",
    "unit": """
    unit: tokens
    blend:
      - {path: a, weight: 3}
      - {path: b, weight: 1}
""",
    "by": """
    by: quality
    weights: {high: 3, low: 1}
    other: 0.5
    blend: [{path: a}, {path: b}]
""",
    "targets": """
    max_correction: 4
    blend:
      - {path: a, weight: 1, target_weight: 2}
      - {path: b, weight: 1, target_weight: 1}
""",
    "blend_epochized": """
    blend_epochized:
      - {path: a, repetitions: 1.5}
      - {path: b, repetitions: 2, subset: {range: [10%, end]}}
""",
    "concat": """
    concat:
      - {path: a, subset: {range: [0, 5]}}
      - {path: b}
""",
    "quotas": """
    epoch_size: 16
    sampling_method: fixed
    composition: {method: stratified, global_batch_size: 4}
    blend:
      - {path: a, proportion: 3}
      - {path: b, proportion: 1}
""",
    "level": """
    level: {cost: tokens, global_batch_size: 4}
    blend: [{path: a}, {path: b}]
""",
    "join": """
    joiner: {__module__: tests.support.joining, __class__: Pair}
    join:
      text: {path: a}
      note: {path: b, nonmatch: none}
""",
    "aux": """
    path: crude
    aux: {notes: b, files: "filesystem://files", lines: ./c.jsonl}
    split_part: train
    dataset_config: dataset.yaml
    split_config: split.yaml
    shuffle_over_epochs_multiplier: 2
""",
    "stages": """
    steps: 12
    seq_len: 128
    stages:
      - {name: one, start_step: 0, path: a, seed: 3}
      - name: two
        start_step: 3
        blend: [{path: a, weight: 1}, {path: "${DATA:-b}", weight: 2}]
        batch: {batch_size: 3}
""",
    "other file": """
    blend:
      - {path: by.yaml, weight: 1}
      - {path: "${DATA:-a}", weight: 1}
      - {path: energon.yaml, weight: 1}
""",
}
_ENERGON = """__module__: megatron.energon
__class__: MetadatasetV2
splits:
  train:
    blend:
      - {path: a, weight: 4, split_part: train, subflavors: {language: en}}
      - {path: b}
"""
_OLDER = """__module__: megatron.energon
__class__: Metadataset
splits:
  train:
    datasets:
      - {weight: 2, path: a, subflavor: plain}
      - {weight: 1, path: b, split_part: train}
"""
_STAGE_FILE = """[training]
steps = 12
dataset_type = "energize"
dataset_path = "blend.yaml"
seq_len = 512
[[training.data_stages]]
name = "ablation"
start_step = 3
dataset_type = "nanoset"
dataset_folders = ["a", "b"]
dataset_weights = [0.25, 0.75]
dataset_random_seed = 9
seq_len = 1024
"""


def _cooked(sample: Any, notes: Any, files: Any, lines: Any) -> TextSample:
    beside = [notes.get("001.txt", sample), files.get("x.txt", sample), lines.get("1", sample)]
    return TextSample(**basic_sample_keys(sample), text=f"{sample['txt']} {beside}")


class _Cooks(AsTheyAre):
    """Reads beside each crude sample what `aux` names."""

    cookers = (Cooker(_cooked),)


def _folder(folder: Path, count: int) -> None:
    samples = (
        {
            "__key__": f"{number:03d}",
            "txt": f"{folder.name} {number}",
            "json": {"quality": ["high", "low", "mixed"][number % 3], "n": number},
        }
        for number in range(count)
    )
    write_shards(samples, folder, samples_per_shard=5)
    prepare(
        folder,
        split_ratios={"train": 1},
        sample_type="TextSample",
        field_map={"text": "txt"},
        sqlite=True,
        workers=1,
    )
    prepare_columns(folder, {"quality": "json[quality]", "tokens": "size:txt"}, workers=1)


def write(folder: Path) -> None:
    """The folders, and a file for each kind of mix."""
    _folder(folder / "a", 9)
    _folder(folder / "b", 7)
    crude = ({"__key__": str(number), "txt": f"crude {number}"} for number in range(5))
    write_shards(crude, folder / "crude")
    prepare(folder / "crude", split_ratios={"train": 1}, sample_type="CrudeWebdataset")
    (folder / "files").mkdir()
    (folder / "files" / "x.txt").write_text("x")
    prepare_jsonl(write_lines(folder / "c.jsonl", [{"text": f"c {n}"} for n in range(5)]))
    for name, text in MIXES.items():
        (folder / f"{name}.yaml").write_text(_HEAD + text)
    (folder / "energon.yaml").write_text(_ENERGON)
    (folder / "older.yaml").write_text(_OLDER)
    (folder / "run.toml").write_text(_STAGE_FILE)
    run = {"steps": 9, "dataset_type": "energize", "dataset_path": "older.yaml", "seq_len": 5}
    (folder / "run.yaml").write_text(json.dumps({"training": run}))


def _mix(name: str) -> Corpus:
    encoder = _Cooks() if name == "aux.yaml" else AsTheyAre()
    return Corpus("mixes", write, lambda folder: trained(folder / name, encoder, steps=_STEPS))


def _staged(folder: Path, name: str) -> Seen:
    dataset = get_staged_train_dataset(
        folder / name, batch_size=2, task_encoder=AsTheyAre(), carry_over=True
    )
    return delivered(dataset, _STEPS)


def _stages(name: str) -> Corpus:
    return Corpus("mixes", write, partial(_staged, name=name))


_FILES = [*(f"{name}.yaml" for name in MIXES), "energon.yaml", "older.yaml"]

FORMATS = [
    *(Format(f"mix {name}", _mix(name), name, "yaml", describes=True, cost=2) for name in _FILES),
    Format("stages .toml", _stages("run.toml"), "run.toml", "toml", describes=True, cost=2),
    Format("stages .yaml", _stages("run.yaml"), "run.yaml", "yaml", describes=True, cost=2),
    Format("columns.json", _mix("by.yaml"), "a/.nv-meta/columns/columns.json", "json", cost=2),
    Format("columns .npy", _mix("unit.yaml"), "*/.nv-meta/columns/*.npy", cost=2),
    Format("index.sqlite", _mix("join.yaml"), "*/.nv-meta/index.sqlite", cost=2),
]
