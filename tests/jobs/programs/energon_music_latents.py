"""Latents and pickled text embeddings, with a task drawn for each sample: as a music
diffusion recipe on Megatron-Bridge. The program trusts its folder."""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch
from energize.energon.task_encoder.base import stateless
from energize.energon.task_encoder.cooking import Cooker, basic_sample_keys
from torch import distributed

from energize import prepare as prepare_folder
from energize import write_shards
from energize.energon import (
    DefaultTaskEncoder,
    SkipSample,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
)

TASKS = ("text2music", "continuation", "inpaint", "cover")


def prepare(folder):
    rows = []
    for number in range(70):
        latents = io.BytesIO()
        torch.save({"mixture": torch.full((number % 5 + 2, 4), float(number))}, latents)
        rows.append(
            {
                "__key__": f"song{number:03d}",
                "pth": latents.getvalue(),
                "pickle": pickle.dumps(torch.full((3, 2), float(number)).numpy()),
                "json": {"seconds": number % 9},
            }
        )
    write_shards(rows, folder, samples_per_shard=35)
    prepare_folder(folder, split_ratios={"train": 1}, sample_type="CrudeWebdataset")


@stateless
def cook_music(sample: dict) -> dict:
    text = sample[".pickle"] if ".pickle" in sample else sample["pickle"]
    return dict(
        **basic_sample_keys(sample),
        latent_bank=sample["pth"],
        text=text,
        json=sample["json"],
    )


class Encoder(DefaultTaskEncoder):
    cookers = [Cooker(cook_music)]  # noqa: RUF012 - as programs write it

    def __init__(self, *args, task_weights=(2.0, 1.0, 1.0, 0.5), **kwargs):
        super().__init__(*args, **kwargs)
        self.task_weights = torch.tensor(task_weights)

    @stateless(restore_seeds=True)
    def encode_sample(self, sample: dict[str, Any]) -> dict[str, Any]:
        if sample["json"]["seconds"] == 8:
            raise SkipSample
        latents = sample["latent_bank"]["mixture"]
        task = int(torch.multinomial(self.task_weights, 1))
        noisy = latents + torch.randn_like(latents)
        return {
            "__key__": sample["__key__"],
            "__restore_key__": sample["__restore_key__"],
            "latents": latents,
            "noisy": noisy,
            "text": torch.as_tensor(sample["text"]),
            "task": TASKS[task],
        }

    def batch(self, samples: list[dict]) -> dict:
        return {
            "keys": [sample["__key__"] for sample in samples],
            "tasks": [sample["task"] for sample in samples],
            "noise": [
                round(float(sample["noisy"].sum() - sample["latents"].sum()), 3)
                for sample in samples
            ],
            "text": torch.stack([sample["text"] for sample in samples]),
        }


def loader(folder):
    config = WorkerConfig(
        rank=distributed.get_rank(),
        world_size=distributed.get_world_size(),
        num_workers=2,
    )
    dataset = get_train_dataset(
        folder,
        split_part="train",
        worker_config=config,
        batch_size=2,
        shuffle_buffer_size=100,
        max_samples_per_sequence=None,
        task_encoder=Encoder(),
        trust_code=[folder],
    )
    return get_savable_loader(dataset)


def ids(batch):
    for key, text in zip(batch["keys"], batch["text"], strict=True):
        assert text.unique().tolist() == [float(key.removeprefix("song"))]
    return [
        list(row)
        for row in zip(batch["keys"], batch["tasks"], batch["noise"], strict=True)
    ]


def check(ranks):
    rows = [row for rank in ranks for batch in rank for row in batch]
    assert {task for _, task, _ in rows} == set(TASKS)
    assert not [key for key, _, _ in rows if int(key.removeprefix("song")) % 9 == 8]
    assert len({noise for _, _, noise in rows}) > len(rows) * 0.9
