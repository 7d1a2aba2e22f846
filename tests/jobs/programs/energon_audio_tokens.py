"""Audio tokens in `.pyd` parts, in dataclasses that are not Energon's samples and have
no defaults: as a small trainer of audio models."""

from __future__ import annotations

import dataclasses
import pickle
from dataclasses import dataclass

import torch
from energize.energon.task_encoder.base import stateless
from torch import distributed

from energize import prepare as prepare_folder
from energize.energon import (
    Batch,
    Cooker,
    DefaultTaskEncoder,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
)
from tests.support.shards import packed


def prepare(folder):
    files = [
        (f"clips/{number}.audio_ids.pyd", pickle.dumps([number] * 12))
        for number in range(64)
    ]
    folder.mkdir(parents=True)
    (folder / "clips.tar").write_bytes(packed(files))
    prepare_folder(folder, split_ratios={"train": 1}, sample_type="CrudeWebdataset")


@dataclass
class AudioSample:
    __key__: int
    __restore_key__: str
    audio_ids: torch.Tensor


@dataclass
class AudioBatch(Batch):
    __key__: list
    __restore_key__: list
    audio_ids: torch.Tensor


@stateless
def cook_audio(sample: dict) -> AudioSample:
    return AudioSample(
        __key__=int(sample["__key__"].strip("/").split("/")[-1]),
        audio_ids=torch.tensor(sample["audio_ids.pyd"]),
        __restore_key__=sample["__restore_key__"],
    )


class Encoder(DefaultTaskEncoder[AudioSample, AudioSample, AudioBatch, dict]):
    cookers = [Cooker(cook_audio)]  # noqa: RUF012 - as programs write it

    @stateless
    def encode_sample(self, sample: AudioSample) -> AudioSample:
        return AudioSample(
            __key__=sample.__key__,
            __restore_key__=sample.__restore_key__,
            audio_ids=sample.audio_ids,
        )

    def batch(self, samples: list[AudioSample]) -> AudioBatch:
        return AudioBatch(
            __key__=[sample.__key__ for sample in samples],
            __restore_key__=[sample.__restore_key__ for sample in samples],
            audio_ids=torch.stack([sample.audio_ids for sample in samples]),
        )

    def encode_batch(self, batch: AudioBatch) -> dict:
        return dataclasses.asdict(batch)


def loader(folder):
    config = WorkerConfig(
        rank=distributed.get_rank(),
        world_size=distributed.get_world_size(),
        num_workers=2,
    )
    dataset = get_train_dataset(
        str(folder),
        batch_size=4,
        shuffle_buffer_size=1000,
        max_samples_per_sequence=100,
        worker_config=config,
        task_encoder=Encoder(),
        trust_code=[folder],
    )
    return get_savable_loader(dataset)


def ids(batch):
    assert batch["audio_ids"][:, 0].tolist() == batch["__key__"]
    return batch["__key__"]


def check(ranks):
    keys = [key for rank in ranks for batch in rank[:8] for key in batch]
    assert sorted(keys) == list(range(64))
