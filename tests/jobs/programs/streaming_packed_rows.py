"""Rows of a mix of datasets, packed without padding: the pattern of trainers that replace
unusable rows by their neighbours, found by the shard and the stream of a sample.
"""

from __future__ import annotations

import os
import random

import torch

from energize.compat.streaming import Stream, StreamingDataLoader, StreamingDataset
from energize.compat.streaming.base.util import clean_stale_shared_memory
from tests.support.mds import write_mds

PEER = "streaming"
GLOBAL_BATCH = 8
SPECS = {"speech": {"choose": 60}, "music": {"repeat": 1.5}}
SIZES = {"speech": 100, "music": 40}
EPOCH = 120
TRIES = 4


def prepare(folder):
    for first, (name, size) in enumerate(SIZES.items()):
        samples = [
            {"text": "x" * (1 + k % 6), "number": 1000 * first + k} for k in range(size)
        ]
        write_mds(folder / name, samples, {"text": "str", "number": "int"}, per_shard=9)


class OmniStreamingDataset(StreamingDataset):
    def stream_of(self, sample_id):
        shard_id, _ = self.spanner[sample_id]
        return int(self.stream_per_shard[shard_id])

    def sample_rng(self, sample_id):
        epoch = max(0, self.next_epoch - 1)
        return random.Random(f"{self.shuffle_seed}-{epoch}-{sample_id}")

    def make_row(self, sample_id):
        raw = super().get_item(sample_id)
        if int(raw["number"]) % 13 == 0:
            return None
        prompt = self.sample_rng(sample_id).choice(("hear", "listen", "what"))
        name = list(SPECS)[self.stream_of(sample_id)]
        return {
            "tokens": list(f"{prompt} {raw['text']}".encode()),
            "name": name,
            "number": int(raw["number"]),
        }

    def get_item(self, sample_id, retry=7):
        for number in range(TRIES):
            row = self.make_row((sample_id + number) % self.num_samples)
            if row is not None:
                return row
        raise RuntimeError(f"unusable samples from {sample_id}")


class OmniStreamingDataLoader(StreamingDataLoader):
    """Its batches have a single row, whatever they hold."""

    def _get_batch_size(self, batch):
        return self.batch_size


def collate(rows):
    tokens = [token for row in rows for token in row["tokens"]]
    return {
        "input_ids": torch.tensor([tokens]),
        "rows": [[row["name"], row["number"], len(row["tokens"])] for row in rows],
    }


def loader(folder):
    clean_stale_shared_memory()
    batch_size = GLOBAL_BATCH // int(os.environ["WORLD_SIZE"])
    streams = [
        Stream(remote=str(folder / name), local=str(folder / "cache" / name), **spec)
        for name, spec in SPECS.items()
    ]
    dataset = OmniStreamingDataset(
        streams=streams,
        batch_size=batch_size,
        shuffle=True,
        shuffle_algo="py1e",
        shuffle_seed=9176,
        shuffle_block_size=1_500_000,
        num_canonical_nodes=1,
        cache_limit="600gb",
        predownload=None,
        sampling_method="balanced",
    )
    assert dataset.batch_size == batch_size
    return OmniStreamingDataLoader(
        dataset,
        batch_size=batch_size,
        collate_fn=collate,
        num_workers=2,
        drop_last=True,
        prefetch_factor=2,
        persistent_workers=True,
    )


def ids(batch):
    assert batch["input_ids"].shape == (1, sum(row[2] for row in batch["rows"]))
    return batch["rows"]


def check(ranks):
    rows = [row for rank in ranks for batch in rank[:15] for row in batch]
    assert len(rows) == EPOCH
    assert all((number >= 1000) == (name == "music") for name, number, _ in rows)
    assert not any(number % 13 == 0 for _, number, _ in rows)
    assert abs(sum(name == "speech" for name, _, _ in rows) - EPOCH // 2) <= 2
