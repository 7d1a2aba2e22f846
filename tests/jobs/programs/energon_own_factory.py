"""Conversations with images for a vision-language model: a factory of its own in
dataset.yaml and code in the folder, as Megatron-Bridge and Pai-Megatron-Patch have
them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import torch
import yaml
from energize.energon.epathlib import EPath
from energize.energon.flavors.webdataset import DefaultDecoderWebdatasetFactory
from torch import distributed
from webdataset.autodecode import Decoder, imagehandler

from energize.energon import (
    DefaultTaskEncoder,
    Sample,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    stateless,
)
from tests.support.prepared import captions

PEER = "energon"


@dataclass
class ChatMLSample(Sample):
    imgs: list[str]
    conversation: str


class ChatMLWebdataset(DefaultDecoderWebdatasetFactory[ChatMLSample]):
    __sample_type__ = ChatMLSample

    def __init__(self, path: EPath, *, auto_decode: bool = True, **kwargs):
        super().__init__(path, **kwargs)
        if auto_decode:
            self._decoder = Decoder([imagehandler("rgb"), conversations])


def conversations(key, data):
    if key == ".txt":
        return json.dumps([{"from": "human", "value": data.decode()}])
    return None


def prepare(folder):
    captions(folder, 61, shards=3)
    config = {
        "__module__": "tests.jobs.programs.energon_own_factory",
        "__class__": "ChatMLWebdataset",
        "field_map": {"imgs": "jpg", "conversation": "txt"},
    }
    (folder / ".nv-meta" / "dataset.yaml").write_text(yaml.safe_dump(config))


@dataclass
class EncodedSample(Sample):
    image: torch.Tensor
    tokens: torch.Tensor
    labels: torch.Tensor = None


class Encoder(DefaultTaskEncoder[ChatMLSample, EncodedSample, dict, dict]):
    @stateless(restore_seeds=True)
    def encode_sample(self, sample: ChatMLSample) -> EncodedSample:
        turns = json.loads(sample.conversation)
        text = turns[0]["value"].encode()[:10].ljust(10)
        image = torch.from_numpy(sample.imgs).permute(2, 0, 1).float()
        image = image[:, :4, :4] + torch.rand(1)
        tokens = torch.tensor(list(text))
        return EncodedSample.derive_from(sample, image=image, tokens=tokens)

    def batch(self, samples: list[EncodedSample]) -> dict:
        return {
            "keys": [each.__key__ for each in samples],
            "images": torch.stack([each.image for each in samples]),
            "tokens": torch.stack([each.tokens for each in samples]),
            "noise": [float(each.image[0, 0, 0]) for each in samples],
        }


def loader(folder):
    config = WorkerConfig(
        rank=distributed.get_rank(),
        world_size=distributed.get_world_size(),
        num_workers=2,
    )
    dataset = get_train_dataset(
        folder,
        batch_size=3,
        task_encoder=Encoder(),
        worker_config=config,
        shuffle_buffer_size=100,
        max_samples_per_sequence=None,
        packing_buffer_size=None,
    )
    return get_savable_loader(dataset, worker_config=config)


def save(loader):
    return loader.save_state_rank()


def restore(loader, state):
    loader.restore_state_rank(state)


def ids(batch):
    assert batch["images"].shape == (3, 3, 4, 4)
    return list(zip(batch["keys"], batch["noise"], strict=True))


def check(ranks):
    keys = [key for rank in ranks for batch in rank[:6] for key, _ in batch]
    assert len(set(keys)) == 36  # of one epoch
