"""Long documents of several domains, sorted by length within an optimizer step: the
pattern of ProLong. Its trainer counts samples from the start and saves them as JSON.
"""

from __future__ import annotations

import json
import os
from itertools import islice

import torch
from torch.utils.data import DataLoader

from energize.compat.streaming import Stream, StreamingDataset
from tests.support.mds import write_mds

PEER = "streaming"
SAME_RANKS = True  # the lengths are sorted among the samples of a worker
BATCH, ACCUMULATION, WORKERS, MAX_STEPS = 2, 4, 2, 6
DOMAINS = {"books": "@0.7", "code": "@0.3"}
FIELDS = ("epoch", "sample_in_epoch", "num_canonical_nodes", "shuffle_seed")


def prepare(folder):
    for first, name in enumerate(DOMAINS):
        samples = [
            {"input_ids": bytes(1 + (7 * k) % 23), "number": 1000 * first + k}
            for k in range(90)
        ]
        columns = {"input_ids": "bytes", "number": "int"}
        write_mds(folder / name, samples, columns, compression="zstd")


class SafeStream(Stream):
    """Would unpack to a file of its own first."""

    def _decompress_shard_part(self, zip_info, zip_filename, raw_filename, compression):
        unique = f"{raw_filename}-{os.getpid()}"
        super()._decompress_shard_part(zip_info, zip_filename, unique, compression)
        os.rename(unique, raw_filename)


class SortByLengthDataset(StreamingDataset):
    def __init__(self, *args, sort_by_length_size=1, **kwargs):
        super().__init__(*args, **kwargs)
        self.sort_by_length_size = sort_by_length_size

    def __iter__(self):
        iterator = super().__iter__()
        while block := list(islice(iterator, self.sort_by_length_size)):
            yield from sorted(block, key=lambda item: -(len(item["input_ids"]) ** 2))


def stream(folder, name, share):
    path = str(folder / name)
    if share.startswith("@"):
        return SafeStream(remote=path, local=path, proportion=float(share[1:]))
    return SafeStream(remote=path, local=path, repeat=float(share[1:]))


class Trainer:
    """Knows how many optimizer steps it made, and nothing of samples."""

    def __init__(self, dataset, world_size):
        self.train_dataset = dataset
        self.world_size = world_size
        self.batches = 0

    def __iter__(self):
        for batch in DataLoader(
            self.train_dataset, batch_size=BATCH, collate_fn=list, num_workers=WORKERS
        ):
            self.batches += 1
            yield batch


def loader(folder):
    world = int(os.environ["WORLD_SIZE"])
    step = BATCH * ACCUMULATION
    dataset = SortByLengthDataset(
        streams=[stream(folder, name, share) for name, share in DOMAINS.items()],
        shuffle=True,
        shuffle_seed=42,
        batch_size=BATCH,
        epoch_size=world * MAX_STEPS * step,
        sort_by_length_size=step // WORKERS,
        replication=1,
    )
    return Trainer(dataset, world)


def save(trainer):
    global_step = trainer.batches // ACCUMULATION
    taken = global_step * BATCH * trainer.world_size * ACCUMULATION
    state = trainer.train_dataset.state_dict(
        taken // trainer.train_dataset.replication, True
    )
    return {"global_step": global_step, "streaming_dataset_state": json.dumps(state)}


def restore(trainer, saved):
    state = json.loads(saved["streaming_dataset_state"])
    assert isinstance(trainer.train_dataset, StreamingDataset)
    assert state["sample_in_epoch"] == saved["global_step"] * 16
    assert all(isinstance(state[field], int) for field in FIELDS)
    trainer.batches = saved["global_step"] * ACCUMULATION
    trainer.train_dataset.load_state_dict(state)


def ids(batch):
    lengths = torch.tensor([len(item["input_ids"]) for item in batch])
    assert bool((lengths.diff() <= 0).all())
    return [int(item["number"]) for item in batch]


def check(ranks):
    taken = [number for rank in ranks for batch in rank for number in batch]
    assert len(taken) == len(set(taken))
    assert abs(sum(number < 1000 for number in taken) / len(taken) - 0.7) < 0.12
