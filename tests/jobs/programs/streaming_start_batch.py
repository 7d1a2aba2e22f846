"""Texts from a batch on: the pattern of trainers that save the number of their batches
only, and write the state of the loader by hand.
"""

from __future__ import annotations

import os

import numpy as np

from energize.compat.streaming import StreamingDataLoader, StreamingDataset
from tests.support.mds import numbered_mds

PEER = "streaming"
GLOBAL_BATCH = 8
COUNT = 72


def prepare(folder):
    numbered_mds(folder / "c4", COUNT, per_shard=11)


def numpy_collate(batch):
    return {name: np.array([sample[name] for sample in batch]) for name in batch[0]}


class FromBatch:
    def __init__(self, batches, world_size):
        self.batches = batches
        self.world_size = world_size
        self.count = 0

    def __iter__(self):
        for batch in self.batches:
            self.count += 1
            yield batch


def loader(folder):
    world_size = int(os.environ["WORLD_SIZE"])
    batch_size = GLOBAL_BATCH // world_size
    dataset = StreamingDataset(
        local=str(folder),
        split="c4",
        shuffle=True,
        shuffle_seed=11,
        num_canonical_nodes=1,
        batch_size=batch_size,
    )
    batches = StreamingDataLoader(
        dataset,
        drop_last=True,
        batch_size=batch_size,
        num_workers=2,
        prefetch_factor=2,
        collate_fn=numpy_collate,
    )
    return FromBatch(batches, world_size)


def save(loader):
    return {"start_batch": loader.count}


def restore(loader, saved):
    current_epoch, remaining = divmod(saved["start_batch"], len(loader.batches))
    loader.batches.load_state_dict(
        {
            "epoch": current_epoch,
            "sample_in_epoch": remaining * GLOBAL_BATCH,
            "num_canonical_nodes": 1,
            "shuffle_seed": 11,
            "initial_physical_nodes": 1,
        }
    )


def ids(batch):
    return batch["number"].tolist()


def check(ranks):
    epochs = [
        sorted(n for rank in ranks for batch in rank[9 * k : 9 * k + 9] for n in batch)
        for k in range(2)
    ]
    assert epochs == [list(range(COUNT))] * 2
