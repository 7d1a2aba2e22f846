"""Images and texts for CLIP, incomplete samples left out by the cook function, and
states of each rank in files: as NeMo's."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import distributed

from energize import prepare as prepare_folder
from energize import write_shards
from energize.energon import (
    Batch,
    Cooker,
    DefaultTaskEncoder,
    Sample,
    SkipSample,
    WorkerConfig,
    basic_sample_keys,
    batch_list,
    batch_stack,
    get_savable_loader,
    get_train_dataset,
)
from tests.support.prepared import image_bytes


def prepare(folder):
    rows = []
    for number in range(72):
        row = {"__key__": f"{number:04d}", "jpg": image_bytes(number)}
        if number % 12:
            row["txt"] = f"text {number}"
        rows.append(row)
    write_shards(rows, folder, samples_per_shard=24)
    prepare_folder(folder, split_ratios={"train": 1}, sample_type="CrudeWebdataset")


def cook_raw_images(sample: dict) -> dict:
    if "jpg" not in sample or "txt" not in sample:
        raise SkipSample
    return dict(**basic_sample_keys(sample), image=sample["jpg"], txt=sample["txt"])


@dataclass
class ClipSample(Sample):
    image: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    tokens: torch.Tensor = field(default_factory=lambda: torch.empty(0))


@dataclass
class ClipBatch(Batch):
    images: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    tokens: torch.Tensor = field(default_factory=lambda: torch.empty(0))


class Encoder(DefaultTaskEncoder[dict, ClipSample, ClipBatch, dict]):
    cookers = [Cooker(cook_raw_images)]  # noqa: RUF012 - as programs write it

    def __init__(self, max_length: int = 16):
        super().__init__()
        self.max_length = max_length

    def encode_sample(self, sample: dict) -> ClipSample:
        image = sample["image"][:, :4, :4]
        if torch.rand(1) < 0.5:
            image = image.flip(-1)
        tokens = list(sample["txt"].encode())[: self.max_length]
        tokens += [0] * (self.max_length - len(tokens))
        return ClipSample(
            __key__=sample["__key__"],
            __restore_key__=sample["__restore_key__"],
            __subflavors__=sample["__subflavors__"],
            image=image,
            tokens=torch.tensor(tokens),
        )

    def batch(self, samples: list[ClipSample]) -> ClipBatch:
        return ClipBatch(
            __key__=batch_list([sample.__key__ for sample in samples]),
            __restore_key__=[sample.__restore_key__ for sample in samples],
            images=batch_stack([sample.image for sample in samples]),
            tokens=batch_stack([sample.tokens for sample in samples]),
        )

    def encode_batch(self, batch: ClipBatch) -> dict:
        return {
            "images": batch.images,
            "captions": batch.tokens,
            "keys": batch.__key__,
        }


def loader(folder):
    config = WorkerConfig(
        rank=distributed.get_rank(),
        world_size=distributed.get_world_size(),
        num_workers=2,
        data_parallel_group=distributed.group.WORLD,
        worker_debug_path=None,
        worker_log_level=0,
    )
    dataset = get_train_dataset(
        folder,
        worker_config=config,
        batch_size=3,
        task_encoder=Encoder(),
        shuffle_buffer_size=100,
        max_samples_per_sequence=None,
        virtual_epoch_length=1_000_000_000,
        packing_buffer_size=None,
        split_part="train",
    )
    return get_savable_loader(
        dataset, checkpoint_every_sec=60, checkpoint_every_min_n_samples=4
    )


SAME_RANKS = True  # each rank has a file


def save(loader):
    states = [None] * distributed.get_world_size()
    distributed.all_gather_object(states, loader.save_state_rank())
    return states


def restore(loader, states):
    loader.restore_state_rank(states[distributed.get_rank()])


def ids(batch):
    texts = [bytes(row[row > 0].tolist()).decode() for row in batch["captions"]]
    assert texts == [f"text {int(key)}" for key in batch["keys"]]
    sums = batch["images"].sum((1, 2, 3)).tolist()
    firsts = batch["images"][:, 0, 0, 0].tolist()
    return [
        [key, round(total, 3), round(first, 3)]
        for key, total, first in zip(batch["keys"], sums, firsts, strict=True)
    ]


def check(ranks):
    keys = [int(row[0]) for rank in ranks for batch in rank for row in batch]
    assert not [key for key in keys if key % 12 == 0]
    assert len(set(keys)) == 66
