"""Samples sorted by length in pools before they are batched, by a dataset with its own
`__iter__`: as LoongForge and LLaVA-OneVision-1.5."""

from __future__ import annotations

import random

import torch
from energize.energon.flavors.base_dataset import SavableDataset
from torch import distributed

from energize.energon import (
    DefaultTaskEncoder,
    get_savable_loader,
    get_train_dataset,
)
from energize.energon.worker import WorkerConfig
from tests.support.prepared import captions

POOL = 8


def prepare(folder):
    captions(folder, 96)


class LengthPoolSort(SavableDataset):
    """Pools in the order of a key, shuffled by a generator of its own at the end."""

    def __init__(self, dataset, *, pool_size, key_fn, worker_config):
        super().__init__(worker_config=worker_config)
        self.dataset = dataset
        self.pool_size = pool_size
        self.key_fn = key_fn
        self._rng = random.Random(getattr(worker_config, "global_seed", 1234))

    def __len__(self):
        return len(self.dataset)

    def __iter__(self):
        pool = []
        for sample in self.dataset:
            pool.append(sample)
            if len(pool) == self.pool_size:
                yield from sorted(pool, key=self.key_fn)
                pool.clear()
        self._rng.shuffle(pool)
        yield from pool

    def worker_has_samples(self):
        return self.dataset.worker_has_samples()

    def save_state(self):
        raise AssertionError("states are not taken from the object")


class Encoder(DefaultTaskEncoder):
    sorts = False

    def encode_sample(self, sample):
        tokens = torch.tensor(list(sample.caption.encode() * (1 + len(sample.caption))))
        return {"key": sample.__key__, "tokens": tokens[: int(sample.__key__) + 1]}

    def batch(self, samples):
        return {
            "keys": [sample["key"] for sample in samples],
            "lengths": [len(sample["tokens"]) for sample in samples],
        }

    def build_train_datasets(self, **options):
        self.sorts = True
        try:
            return super().build_train_datasets(**options)
        finally:
            self.sorts = False

    def build_batch(self, dataset, **options):
        if self.sorts:
            dataset = LengthPoolSort(
                dataset,
                pool_size=POOL,
                key_fn=lambda sample: len(sample["tokens"]),
                worker_config=options["worker_config"],
            )
        return super().build_batch(dataset, **options)


def loader(folder):
    config = WorkerConfig(
        rank=distributed.get_rank(),
        world_size=distributed.get_world_size(),
        num_workers=2,
    )
    dataset = get_train_dataset(
        folder,
        worker_config=config,
        batch_size=2,
        shuffle_buffer_size=100,
        max_samples_per_sequence=None,
        task_encoder=Encoder(),
    )
    return get_savable_loader(dataset, watchdog_initial_timeout_seconds=600)


def ids(batch):
    assert batch["lengths"] == sorted(batch["lengths"])
    return batch["keys"]


def check(ranks):
    """Together, the ranks read the pools of all lanes."""
    keys = [key for rank in ranks for batch in rank[:9] for key in batch]
    assert len(set(keys)) == 36
