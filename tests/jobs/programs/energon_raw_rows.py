"""Single samples, not batched, with images as the program decodes them: as the check of
converted BAGEL data in Megatron-LM's recipes."""

from __future__ import annotations

import io
import json
from typing import Any

from PIL import Image
from torch import distributed

from energize import prepare as prepare_folder
from energize.energon import (
    Cooker,
    CrudeSample,
    Sample,
    TaskEncoder,
    WorkerConfig,
    basic_sample_keys,
    edataclass,
    get_savable_loader,
    get_train_dataset,
    stateless,
)
from energize.energon.savable_loader import SavableDataLoader
from tests.support.prepared import image_bytes
from tests.support.shards import packed


def prepare(folder):
    files = []
    for number in range(50):
        record = {"row": number, "captions": [f"caption {number}"]}
        files.append((f"part/t2i-{number:03d}.jpg", image_bytes(number)))
        files.append((f"part/t2i-{number:03d}.json", json.dumps(record).encode()))
    folder.mkdir(parents=True)
    (folder / "rows.tar").write_bytes(packed(files))
    prepare_folder(folder, split_ratios={"train": 1}, sample_type="CrudeWebdataset")


@edataclass
class RawSample(Sample):
    image: Image.Image
    captions: list[str]
    metadata: dict[str, Any]


@stateless
def cook_raw(sample: CrudeSample) -> RawSample:
    metadata = json.loads(sample["json"])
    image = Image.open(io.BytesIO(sample["jpg"])).convert("RGB")
    return RawSample(
        **basic_sample_keys(sample),
        image=image,
        captions=metadata["captions"],
        metadata=metadata,
    )


class RawEncoder(TaskEncoder[RawSample, RawSample, RawSample, RawSample]):
    decoder = None
    cookers = [Cooker(cook_raw)]  # noqa: RUF012 - as programs write it


def loader(folder) -> SavableDataLoader[RawSample]:
    config = WorkerConfig(
        rank=distributed.get_rank(),
        world_size=distributed.get_world_size(),
        num_workers=1,
    )
    dataset = get_train_dataset(
        folder,
        split_part="train",
        worker_config=config,
        batch_size=None,
        shuffle_buffer_size=1,
        max_samples_per_sequence=10,
        task_encoder=RawEncoder(),
    )
    return get_savable_loader(dataset)


def ids(sample):
    assert sample.__key__ == f"part/t2i-{sample.metadata['row']:03d}"
    assert sample.image.size == (32, 24)
    assert sample.captions == [f"caption {sample.metadata['row']}"]
    return [sample.__key__]


def check(ranks):
    keys = [key for rank in ranks for batch in rank for key in batch]
    assert len(set(keys)) == 40
