"""Sources of one's own in shards, mixed in blocks by weights, for a trainer:
EasyDeL."""

from __future__ import annotations

import json

import torch
from torch import distributed

from energize import BatchDataset, WorkerConfig, get_loader
from energize.compat.easydel import MixedShardedSource, ShardedDataSource

PEER = "easydel"
SIZES = {"code": 120, "chat": 301}


def prepare(folder):
    for name, size in SIZES.items():
        (folder / name).mkdir(parents=True)
        for shard in range(3):
            rows = [{"text": f"{name} {k}", "number": k} for k in range(shard, size, 3)]
            (folder / name / f"{shard}.jsonl").write_text(
                "\n".join(map(json.dumps, rows))
            )


class JsonLinesSource(ShardedDataSource[dict]):
    """A shard for each file."""

    def __init__(self, folder):
        self._files = {each.name: each for each in sorted(folder.glob("*.jsonl"))}

    @property
    def shard_names(self):
        return list(self._files)

    def num_shards(self):
        return len(self._files)

    def open_shard(self, shard_name):
        with self._files[shard_name].open() as file:
            for line in file:
                yield json.loads(line)


def tokenized(example):
    return {**example, "input_ids": list(example["text"].encode())[:8]}


def collated(examples):
    rows = [each["input_ids"] + [0] * (8 - len(each["input_ids"])) for each in examples]
    return {
        "input_ids": torch.tensor(rows),
        "text": [each["text"] for each in examples],
        "source": [each["__source__"] for each in examples],
    }


def loader(folder):
    sources = {
        name: JsonLinesSource(folder / name)
        .map(tokenized)
        .rename_fields({"number": "row"})
        for name in SIZES
    }
    mixed = MixedShardedSource(
        sources=sources,
        weights={"code": 0.25, "chat": 0.75},
        block_size=16,
        seed=42,
        stop_strategy="restart",
    )
    config = WorkerConfig(
        distributed.get_rank(), distributed.get_world_size(), num_workers=2
    )
    batches = BatchDataset(mixed.dataset, 4, collated)
    return get_loader(batches, worker_config=config, lanes=4)


def ids(batch):
    assert batch["input_ids"].shape == (4, 8)
    return batch["text"]


def check(ranks):
    texts = [text for rank in ranks for batch in rank for text in batch]
    assert sum(text.startswith("code") for text in texts) == len(texts) // 4
    assert len(set(texts)) == len(texts)
