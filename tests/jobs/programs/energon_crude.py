"""Crude samples of two folders, cooked by what a metadataset says of them, with files
beside."""

from __future__ import annotations

import json
from dataclasses import dataclass

import torch
from energize.energon.task_encoder.base import Batch
from torch import distributed

from energize import prepare as prepare_folder
from energize import write_shards
from energize.energon import (
    Cooker,
    DefaultTaskEncoder,
    FileStore,
    Sample,
    WorkerConfig,
    basic_sample_keys,
    cooker,
    edataclass,
    get_savable_loader,
    get_train_dataset,
    stateless,
)

PEER = "energon"
MIX = """
__module__: megatron.energon
__class__: MetadatasetV2
splits:
  train:
    blend:
      - {path: texts, weight: 3, subflavors: {crude_type: text}, aux: {answers: answers}}
      - {path: chats, weight: 1, subflavors: {crude_type: chat}}
"""


def prepare(folder):
    def written(name, count, parts):
        samples = [{"__key__": f"{name}{k:03d}", **parts(k)} for k in range(count)]
        write_shards(samples, folder / name, samples_per_shard=20)
        prepare_folder(
            folder / name,
            split_ratios={"train": 1},
            sample_type="CrudeWebdataset",
            sqlite=True,
        )

    written("texts", 61, lambda k: {"txt": f"question {k}"})
    written("answers", 61, lambda k: {"json": {"answer": k * k}})
    written(
        "chats", 25, lambda k: {"json": [{"role": "user", "content": f"hello {k}"}]}
    )
    (folder / "mix.yaml").write_text(MIX)


@edataclass
class ChatSample(Sample):
    prompt: str
    answer: str


@edataclass
class EncodedSample(Sample):
    tokens: torch.Tensor
    mask: torch.Tensor


@dataclass
class TextBatch(Batch):
    tokens: torch.Tensor
    mask: torch.Tensor
    names: list[str]


@stateless
def cook_text(sample: dict, answers: FileStore) -> ChatSample:
    key = sample["__key__"].replace("texts", "answers")
    data = answers.get(f"{key}.json", sample)
    answer = json.loads(data)["answer"] if isinstance(data, bytes) else data["answer"]
    return ChatSample(
        **basic_sample_keys(sample), prompt=sample["txt"], answer=str(answer)
    )


@stateless
@cooker(need_cache=False)
def cook_chat(sample: dict) -> ChatSample:
    return ChatSample(
        **basic_sample_keys(sample), prompt=sample["json"][0]["content"], answer="hi"
    )


class ChatEncoder(DefaultTaskEncoder[ChatSample, EncodedSample, TextBatch, TextBatch]):
    cookers = [  # noqa: RUF012 - as everybody writes it
        Cooker(cook_text, has_subflavors={"crude_type": "text"}),
        Cooker(cook_chat, has_subflavors={"crude_type": "chat"}),
    ]

    @stateless
    def encode_sample(self, sample: ChatSample) -> EncodedSample:
        text = f"{sample.prompt}: {sample.answer}".encode()[:24].ljust(24)
        tokens = torch.tensor(list(text))
        return EncodedSample.derive_from(sample, tokens=tokens, mask=tokens != 32)

    @stateless
    def batch(self, samples: list[EncodedSample]) -> TextBatch:
        return TextBatch.from_samples(
            samples,
            tokens=torch.stack([each.tokens for each in samples]),
            mask=torch.stack([each.mask for each in samples]),
            names=[bytes(each.tokens.tolist()).decode().strip() for each in samples],
        )


def loader(folder):
    config = WorkerConfig(
        rank=distributed.get_rank(),
        world_size=distributed.get_world_size(),
        num_workers=2,
    )
    dataset = get_train_dataset(
        str(folder / "mix.yaml"),
        worker_config=config,
        batch_size=4,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        task_encoder=ChatEncoder(),
    )
    return get_savable_loader(
        dataset,
        worker_config=config,
        checkpoint_every_sec=60,
        checkpoint_every_min_n_samples=None,
        n_checkpoints=5,
    )


def ids(batch):
    assert batch.tokens.shape == batch.mask.shape == (4, 24)
    return [
        f"{key} {name}" for key, name in zip(batch.__key__, batch.names, strict=True)
    ]


def check(ranks):
    names = [each for rank in ranks for batch in rank for each in batch]
    assert sum(each.startswith("chats") for each in names) == len(names) // 4
    assert all(
        f": {int(each[5:8]) ** 2}" in each for each in names if each.startswith("texts")
    )
