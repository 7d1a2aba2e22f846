"""Prompts and responses, tokenised as they are read: the pattern of LLM Foundry's
finetuning. The trainer keeps the state in a JSON file and checks its fields.
"""

from __future__ import annotations

import json
import os

import torch

from energize.compat.streaming import StreamingDataLoader, StreamingDataset
from energize.compat.streaming.base.stream import Stream, streams_registry
from tests.support.mds import write_mds

PEER = "streaming"
GLOBAL_BATCH = 8
COUNT = 110
FIELDS = ("epoch", "sample_in_epoch", "num_canonical_nodes", "shuffle_seed")


class Bucket(Stream):
    """Takes the folder of a remote of its own kind."""

    def __init__(self, *, bucket, remote, local, **kwargs):
        super().__init__(remote=f"{bucket}/{remote}", local=None, **kwargs)


streams_registry.register("bucket", func=Bucket)


def prepare(folder):
    samples = [
        {"prompt": f"add {k}", "response": f"sum {k}", "number": k}
        for k in range(COUNT)
    ]
    columns = {"prompt": "str", "response": "str", "number": "int"}
    write_mds(folder / "chat" / "train", samples, columns, per_shard=13)


class StreamingFinetuningDataset(StreamingDataset):
    def __init__(self, *, tokenizer, local, remote=None, split=None, **kwargs):
        if remote is None and not os.path.isdir(local):
            raise ValueError("local is not a directory")
        super().__init__(local=local, remote=remote, split=split, **kwargs)
        self.tokenizer = tokenizer
        self.num_read = 0

    def __getitem__(self, idx):
        sample = super().__getitem__(idx)
        tokens = {name: self.tokenizer(sample[name]) for name in ("prompt", "response")}
        return {**tokens, "number": int(sample["number"])}


def collate(samples):
    rows = [sample["prompt"] + sample["response"] for sample in samples]
    longest = max(map(len, rows))
    return {
        "input_ids": torch.tensor([row + [0] * (longest - len(row)) for row in rows]),
        "number": [sample["number"] for sample in samples],
    }


def loader(folder):
    batch_size = GLOBAL_BATCH // int(os.environ["WORLD_SIZE"])
    dataset = StreamingFinetuningDataset(
        tokenizer=lambda text: list(text.encode()),
        local=str(folder / "cache"),
        remote="chat",
        split="train",
        shuffle=True,
        shuffle_algo="py1s",
        batch_size=batch_size,
        stream_name="bucket",
        stream_config={"bucket": str(folder)},
        epoch_size="0.1k",
        sampling_method="fixed",
    )
    assert dataset.num_samples == COUNT
    return StreamingDataLoader(
        dataset, batch_size=batch_size, collate_fn=collate, num_workers=2
    )


def save(loader):
    return {"file": json.dumps(loader.state_dict())}


def restore(loader, saved):
    state = json.loads(saved["file"])
    for field in FIELDS:
        assert field in state, f"{field} is missing"
    assert state["num_canonical_nodes"] == 64 * state["initial_physical_nodes"]
    loader.load_state_dict(state)


def ids(batch):
    assert bool((batch["input_ids"][:, 0] == ord("a")).all())
    return batch["number"]


def check(ranks):
    epochs = [
        sorted(n for rank in ranks for batch in rank[first : first + 13] for n in batch)
        for first in (0, 13)
    ]
    assert len(epochs[0]) == len(set(epochs[0])) == 100
    assert set(epochs[1]) <= set(epochs[0])
