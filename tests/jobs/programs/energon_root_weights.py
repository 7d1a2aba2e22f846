"""Conversations packed with a cook method of the encoder, each token weighted by one
over the root of the learned tokens: as an InternVL recipe on Megatron-Bridge."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import torch
from energize.energon.flavors.base_dataset import Sample
from energize.energon.task_encoder.base import stateless
from energize.energon.task_encoder.cooking import Cooker, basic_sample_keys
from torch import distributed

from energize import prepare as prepare_folder
from energize import write_shards
from energize.energon import (
    Batch,
    DefaultTaskEncoder,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
)

LENGTH = 64


def prepare(folder):
    rows = [
        {
            "__key__": f"chat{number:03d}",
            "json": {"question": "q" * (number % 7 + 1), "answer": "a" * (number % 16)},
        }
        for number in range(90)
    ]
    write_shards(rows, folder, samples_per_shard=30)
    prepare_folder(folder, split_ratios={"train": 1}, sample_type="CrudeWebdataset")


@dataclass
class ChatSample(Sample):
    question: str
    answer: str


@dataclass
class Encoded(Sample):
    tokens: torch.Tensor
    loss_mask: torch.Tensor


@dataclass
class Packed(Sample):
    tokens: torch.Tensor
    loss_mask: torch.Tensor
    cu_seqlens: list[int]
    names: list[str]


class Encoder(DefaultTaskEncoder[Any, Encoded, Batch, dict]):
    def __init__(self, seq_length: int):
        super().__init__()
        self.seq_length = seq_length
        self.cookers = [Cooker(cook=self._cook)]

    @stateless
    def _cook(self, sample: dict[str, Any]) -> ChatSample:
        record = sample["json"]
        record = json.loads(record) if isinstance(record, bytes) else record
        return ChatSample(**basic_sample_keys(sample), **record)

    @stateless(restore_seeds=True)
    def encode_sample(self, sample: ChatSample) -> Encoded:
        text = sample.question + sample.answer
        learned = len(sample.answer)
        mask = torch.tensor([0.0] * len(sample.question) + [1.0] * learned)
        return Encoded.derive_from(
            sample,
            tokens=torch.tensor(list(text.encode())),
            loss_mask=mask / max(learned, 1) ** 0.5,
        )

    def select_samples_to_pack(self, samples: list[Encoded]) -> list[list[Encoded]]:
        packs: list[list[Encoded]] = []
        for sample in sorted(samples, key=lambda sample: -len(sample.tokens)):
            for pack in packs:
                used = sum(len(member.tokens) for member in pack)
                if used + len(sample.tokens) <= self.seq_length:
                    pack.append(sample)
                    break
            else:
                packs.append([sample])
        return packs

    @stateless
    def pack_selected_samples(self, samples: list[Encoded]) -> Packed:
        ends = torch.tensor([len(sample.tokens) for sample in samples]).cumsum(0)
        return Packed(
            __key__=",".join(sample.__key__ for sample in samples),
            __restore_key__=(),
            __subflavors__=samples[0].__subflavors__,
            tokens=torch.cat([sample.tokens for sample in samples]),
            loss_mask=torch.cat([sample.loss_mask for sample in samples]),
            cu_seqlens=[0, *ends.tolist()],
            names=[sample.__key__ for sample in samples],
        )

    def batch(self, samples: list[Packed]) -> dict:
        (pack,) = samples
        return {
            "tokens": pack.tokens,
            "loss_mask": pack.loss_mask,
            "cu_seqlens": pack.cu_seqlens,
            "names": pack.names,
        }


def loader(folder):
    config = WorkerConfig(
        rank=distributed.get_rank(),
        world_size=distributed.get_world_size(),
        num_workers=2,
    )
    dataset = get_train_dataset(
        folder,
        worker_config=config,
        batch_size=1,
        packing_buffer_size=12,
        shuffle_buffer_size=100,
        max_samples_per_sequence=None,
        task_encoder=Encoder(LENGTH),
    )
    return get_savable_loader(dataset)


def ids(batch):
    assert len(batch["tokens"]) == batch["cu_seqlens"][-1] <= LENGTH
    pairs = zip(batch["cu_seqlens"], batch["cu_seqlens"][1:], strict=False)
    for first, end in pairs:
        mask = batch["loss_mask"][first:end]
        learned = int((mask > 0).sum())
        assert abs(float(mask.sum()) - learned**0.5) < 1e-4
    return batch["names"]


def check(ranks):
    names = [name for rank in ranks for batch in rank[:6] for name in batch]
    assert len(names) == len(set(names))
    assert max(len(batch) for rank in ranks for batch in rank) > 2
