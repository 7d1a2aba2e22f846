"""Images in batches of one shape, samples that fail left out: as trainers of images and
videos."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import distributed

from energize.energon import (
    CaptioningSample,
    DefaultTaskEncoder,
    Sample,
    SkipSample,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
)
from tests.support.prepared import captions

PEER = "energon"


def prepare(folder):
    captions(folder, 131)


@dataclass
class EncodedSample(Sample):
    image: torch.Tensor
    number: int


@dataclass
class RawBatch:
    images: torch.Tensor
    numbers: list[int]
    keys: list[str]


class Encoder(DefaultTaskEncoder[CaptioningSample, EncodedSample, RawBatch, dict]):
    def encode_sample(self, sample: CaptioningSample) -> EncodedSample:
        number = int(sample.caption.split()[1])
        if number % 10 == 3:
            raise SkipSample
        if number % 10 == 7:
            raise ValueError(f"bad sample {number}")
        width = 2 + 2 * (number % 2)
        return EncodedSample.derive_from(
            sample, image=sample.image[:, :2, :width], number=number
        )

    def batch_group_criterion(self, sample: EncodedSample):
        return tuple(sample.image.shape), 3

    def batch(self, samples: list[EncodedSample]) -> RawBatch:
        return RawBatch(
            images=torch.stack([each.image for each in samples]),
            numbers=[each.number for each in samples],
            keys=[each.__key__ for each in samples],
        )

    def encode_batch(self, batch: RawBatch) -> dict:
        return {"images": batch.images, "numbers": batch.numbers}


def loader(folder):
    config = WorkerConfig(
        rank=distributed.get_rank(),
        world_size=distributed.get_world_size(),
        num_workers=2,
    )
    dataset = get_train_dataset(
        folder,
        batch_size=None,
        worker_config=config,
        shuffle_buffer_size=50,
        max_samples_per_sequence=50,
        task_encoder=Encoder(),
    )
    return get_savable_loader(dataset, worker_config=config)


def save(loader):
    return loader.save_state_rank()


def restore(loader, state):
    loader.restore_state_rank(state)


SAME_RANKS = True


def ids(batch):
    assert len({number % 2 for number in batch["numbers"]}) == 1
    return batch["numbers"]


def check(ranks):
    numbers = [number for rank in ranks for batch in rank for number in batch]
    assert not [number for number in numbers if number % 10 in (3, 7)]
