"""Records of an agent in an indexed JSONL file, with screenshots in a folder beside: as
the computer-use recipe of Megatron-Bridge."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from energize.energon.flavors import CrudeJsonlDatasetFactory
from energize.energon.task_encoder.base import stateless
from energize.energon.task_encoder.cooking import Cooker, basic_sample_keys
from PIL import Image
from torch import distributed

from energize.energon import (
    DefaultTaskEncoder,
    SkipSample,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
)

ROLES = {"human": "user", "observation": "tool", "gpt": "assistant"}


def prepare(folder):
    folder.mkdir(parents=True)
    lines = []
    for number in range(60):
        Image.new("RGB", (8, 6), (number, 0, 0)).save(folder / f"{number}.png")
        turns = [
            {"from": "human", "value": f"task {number}"},
            {"from": "observation", "value": "<image>"},
            {"from": "gpt", "value": f"click {number}" if number % 10 else ""},
        ]
        record = {"id": number, "images": [f"{number}.png"], "conversations": turns}
        lines.append(json.dumps(record))
    (folder / "records.jsonl").write_text("\n".join(lines))
    assert CrudeJsonlDatasetFactory.prepare_dataset(folder / "records.jsonl") == 60


@stateless
def cook_record(sample: dict[str, Any]) -> dict[str, Any]:
    return {**basic_sample_keys(sample), "json": sample["json"]}


@dataclass
class ChatSample:
    __key__: str
    __subflavors__: dict[str, Any] | None
    conversation: str
    imgs: list[np.ndarray]


class Encoder(DefaultTaskEncoder):
    cookers = [Cooker(cook_record)]  # noqa: RUF012 - as programs write it

    def __init__(self, *args, image_root: str, **kwargs):
        super().__init__(*args, **kwargs)
        self.image_root = Path(image_root)

    def encode_sample(self, sample):
        record = sample["json"]
        turns = [
            {"role": ROLES[turn["from"]], "content": turn["value"]}
            for turn in record["conversations"]
        ]
        if not turns[-1]["content"]:
            raise SkipSample
        images = [Image.open(self.image_root / name) for name in record["images"]]
        return ChatSample(
            __key__=sample["__key__"],
            __subflavors__=sample["__subflavors__"],
            conversation=json.dumps(turns),
            imgs=[np.asarray(image.convert("RGB")) for image in images],
        )

    def batch(self, samples):
        return {
            "numbers": [int(sample.imgs[0][0, 0, 0]) for sample in samples],
            "texts": [sample.conversation for sample in samples],
        }


def loader(folder):
    config = WorkerConfig(
        rank=distributed.get_rank(),
        world_size=distributed.get_world_size(),
        num_workers=2,
    )
    dataset = get_train_dataset(
        folder / "records.jsonl",
        worker_config=config,
        batch_size=3,
        shuffle_buffer_size=100,
        max_samples_per_sequence=None,
        task_encoder=Encoder(image_root=str(folder)),
    )
    return get_savable_loader(dataset)


def ids(batch):
    for number, text in zip(batch["numbers"], batch["texts"], strict=True):
        assert f"click {number}" in text
    return batch["numbers"]


def check(ranks):
    """Skipped records are replaced by others of the file."""
    numbers = [number for rank in ranks for batch in rank for number in batch]
    assert not [number for number in numbers if number % 10 == 0]
    assert len(set(numbers)) == 54
