"""Questions with their passages: the pattern of Golden Retriever. Its loader counts nested
batches and builds the state itself, from the start of the epoch.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from energize.compat.streaming.base.dataloader import StreamingDataLoader
from energize.compat.streaming.base.dataset import StreamingDataset
from energize.compat.streaming.base.world import World
from tests.support.mds import write_mds

PEER = "streaming"
GLOBAL_BATCH = 8
COUNT = 90


def prepare(folder):
    samples = [
        {"question": f"what is {k}", "passages": [f"{k} is a number"] * (1 + k % 3)}
        for k in range(COUNT)
    ]
    columns = {"question": "str", "passages": "json"}
    write_mds(folder / "train", samples, columns, compression="gz")


def tokens(texts):
    rows = [(list(text.encode()) + [0] * 20)[:20] for text in texts]
    return {"input_ids": torch.tensor(rows)}


class GoldenRetrieverStreamingDataset(StreamingDataset):
    def __init__(self, name, question_tokenizer, **kwargs):
        super().__init__(**kwargs)
        self.name = name
        self.question_tokenizer = question_tokenizer

    def __getitem__(self, at):
        sample = super().__getitem__(at)
        sample["sample_idx"] = int(at)
        sample["length"] = len(self.question_tokenizer(sample["question"]))
        return sample


def collate(samples):
    return {
        "questions": tokens([sample["question"] for sample in samples]),
        "passages": tokens([text for each in samples for text in each["passages"]]),
        "sample_idx": [sample["sample_idx"] for sample in samples],
    }


class GoldenStreamingDataLoader(StreamingDataLoader):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.num_samples_yielded = 0

    def _get_batch_size(self, batch):
        if isinstance(batch, Sequence):
            return len(batch)
        return batch["questions"]["input_ids"].shape[0]

    def state_dict(self):
        if not isinstance(self.dataset, StreamingDataset):
            return None
        num_samples = self.num_samples_yielded * World.detect().num_ranks
        if self.dataset.replication is not None:
            num_samples = num_samples // self.dataset.replication
        return self.dataset.state_dict(num_samples, True)

    def load_state_dict(self, obj):
        if isinstance(self.dataset, StreamingDataset):
            self.dataset.load_state_dict(obj)

    def __del__(self):
        if self._iterator is not None:
            self._iterator._shutdown_workers()


def loader(folder):
    batch_size = GLOBAL_BATCH // int(os.environ["WORLD_SIZE"])
    dataset = GoldenRetrieverStreamingDataset(
        "train",
        str.split,
        local=str(folder),
        split="train",
        batch_size=batch_size,
        shuffle=True,
        shuffle_seed=42,
        num_canonical_nodes=128,
    )
    return GoldenStreamingDataLoader(
        dataset,
        batch_size=batch_size,
        collate_fn=collate,
        num_workers=2,
        persistent_workers=True,
    )


def ids(batch):
    assert len(batch["passages"]["input_ids"]) >= len(batch["sample_idx"])
    return batch["sample_idx"]


def check(ranks):
    first = [number for rank in ranks for batch in rank[:12] for number in batch]
    assert sorted(first) == list(range(COUNT))
