"""Several samples made of one, numbered by what the run says of itself, with pickled
parts."""

from __future__ import annotations

import pickle

from torch import distributed

from energize import prepare as prepare_folder
from energize import write_shards
from energize.energon import (
    Cooker,
    DefaultTaskEncoder,
    TextSample,
    WorkerConfig,
    basic_sample_keys,
    get_savable_loader,
    get_train_dataset,
    stateless,
)


def prepare(folder):
    rows = (
        {"__key__": f"{i:03d}", "pickle": pickle.dumps({"number": i})}
        for i in range(67)
    )
    write_shards(rows, folder, samples_per_shard=20)
    prepare_folder(folder, split_ratios={"train": 1}, sample_type="CrudeWebdataset")


def cook(sample: dict) -> TextSample:
    return TextSample(**basic_sample_keys(sample), text=str(sample["pickle"]["number"]))


class Encoder(DefaultTaskEncoder):
    cookers = (Cooker(cook),)

    @stateless(failure_tolerance=5)
    def encode_sample(self, sample: TextSample):
        number = int(sample.text)
        if number % 20 == 13:
            raise ValueError(f"bad sample {number}")
        yield sample
        if number % 5 == 0:
            yield TextSample.derive_from(sample, text=str(1000 + number))

    def encode_batch(self, batch) -> dict:
        config = WorkerConfig.active_worker_config
        assert config.num_workers == 2
        place = (config.rank, config.world_size)
        return {
            "numbers": [int(text) for text in batch.text],
            "of": (*place, self.current_batch_index),
        }


def loader(folder):
    config = WorkerConfig.default_worker_config(num_workers=2)
    dataset = get_train_dataset(
        folder,
        batch_size=3,
        worker_config=config,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        task_encoder=Encoder(),
        trust_code=[folder],
    )
    return get_savable_loader(dataset, worker_config=config)


def save(loader):
    return loader.save_state_rank()


def restore(loader, state):
    loader.restore_state_rank(state)


def ids(batch):
    rank, world_size, number = batch["of"]
    assert (rank, world_size) == (distributed.get_rank(), distributed.get_world_size())
    assert number == ids.next.setdefault(id(ids), number), (number, ids.next)
    ids.next[id(ids)] = number + 1
    return batch["numbers"]


ids.next = {}


def check(ranks):
    numbers = [number for rank in ranks for batch in rank for number in batch]
    assert not [number for number in numbers if number % 20 == 13]
    assert [number for number in numbers if number >= 1000]
