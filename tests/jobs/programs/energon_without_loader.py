"""A dataset that is iterated over without a loader of Energon, in a trainer's own: as
VeOmni."""

from __future__ import annotations

import torch
from torch import distributed
from torch.utils.data import IterableDataset

from energize.energon import (
    DefaultTaskEncoder,
    SavableDataset,
    WorkerConfig,
    get_train_dataset,
)
from tests.support.prepared import captions

PEER = "energon"


def prepare(folder):
    captions(folder, 77)


class Encoder(DefaultTaskEncoder):
    def encode_sample(self, sample):
        return {"key": sample.__key__, "image": sample.image[:, :2, :2]}

    def batch(self, samples):
        return {
            "keys": [each["key"] for each in samples],
            "images": torch.stack([each["image"] for each in samples]),
        }


class EnergonIterable(IterableDataset):
    """Wraps a dataset of Energon in the trainer's kind of dataset, with its kind of
    state."""

    def __init__(self, dataset: SavableDataset, worker_config: WorkerConfig):
        assert isinstance(dataset, SavableDataset)
        assert isinstance(dataset, IterableDataset)
        self.dataset, self.worker_config = dataset, worker_config
        self.taken = 0

    def __iter__(self):
        iterator = iter(self.dataset)
        while True:
            self.worker_config.worker_activate(self.taken)
            try:
                batch = next(iterator)
            except StopIteration:
                return
            finally:
                self.worker_config.worker_deactivate()
            self.taken += 1
            yield batch

    def state_dict(self):
        return {"dataset": self.dataset.save_state(), "taken": self.taken}

    def load_state_dict(self, state):
        self.dataset.restore_state(state["dataset"])
        self.taken = state["taken"]


def loader(folder):
    config = WorkerConfig(
        rank=distributed.get_rank(),
        world_size=distributed.get_world_size(),
        num_workers=0,
    )
    dataset = get_train_dataset(
        folder,
        worker_config=config,
        batch_size=2,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        task_encoder=Encoder(),
    )
    assert dataset.worker_has_samples()
    assert len(dataset) > 10
    return EnergonIterable(dataset, config)


SAME_RANKS = True  # a state of a dataset is that of the share that was read


def save(loader):
    states = [None] * distributed.get_world_size()
    distributed.all_gather_object(states, loader.state_dict())
    return states


def restore(loader, states):
    loader.load_state_dict(states[distributed.get_rank()])


def ids(batch):
    return batch["keys"]


def check(ranks):
    keys = [key for rank in ranks for batch in rank[:10] for key in batch]
    assert len(set(keys)) == 40
