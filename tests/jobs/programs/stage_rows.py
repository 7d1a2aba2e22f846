"""Stages of a trainer's file whose data are rows: texts of Hugging Face, then packed
token ids."""

from __future__ import annotations

import datasets
import numpy as np

from energize import WorkerConfig, get_loader
from energize.experimental import get_staged_train_dataset

STAGES = """
[training]
steps = 1000
[[training.data_stages]]
name = "texts"
start_step = 0
dataset_type = "huggingface"
dataset = "texts"
dataset_path = "texts"
seq_len = 4
[[training.data_stages]]
name = "tokens"
start_step = 11
dataset_type = "packed_memmap"
dataset_path = "tokens.npy"
seq_len = 4
"""


def prepare(folder):
    folder.mkdir(parents=True)
    rows = {"input_ids": [[i] * 4 for i in range(29)]}
    datasets.Dataset.from_dict(rows).save_to_disk(folder / "texts")
    np.save(folder / "tokens.npy", np.repeat(np.arange(100, 135, dtype=np.uint16), 4))
    (folder / "run.toml").write_text(STAGES)


def loader(folder):
    dataset = get_staged_train_dataset(folder / "run.toml", batch_size=3)
    return get_loader(dataset, worker_config=WorkerConfig(num_workers=2))


def ids(batch):
    return [int(row[0]) for row in batch["input_ids"]]


def check(ranks):
    first = [max(map(max, batches)) < 100 for batches in zip(*ranks, strict=True)]
    assert first == sorted(first, reverse=True)
    assert True in first
    assert False in first
