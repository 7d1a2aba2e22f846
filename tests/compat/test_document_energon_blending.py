"""The code examples of Energon's page on blending run with `energize` in the imports.

The page leaves out the paths, the task encoders, and what a training script has around the code;
these are supplied here. Loaders of training data never end, so the loops stop after some batches.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Callable, Union  # noqa: UP035 - names the examples use

import pytest
import torch

import energize
from energize import CaptioningSample, DefaultTaskEncoder, ImageClassificationSample
from tests.support.prepared import captions, classes

EXAMPLES = Path(__file__).parents[1] / "documents" / "energon_blending"

MENDED = {
    # The page builds the encoder without its tokenizer, and its loop reads a field that the batch
    # does not have: neither can run in any library.
    "sample_weights.py": {
        "TaskEncoder(sample_weight": "TaskEncoder(tokenizer, sample_weight",
        "sample.image,": "sample.images,",
    },
}


@dataclass
class ImageBatch:
    __key__: list[str]
    image: torch.Tensor
    label: torch.Tensor


@dataclass
class CaptioningBatch:
    __key__: list[str]
    image: torch.Tensor
    caption: list[str]


@dataclass
class ImageWithOptionalCaptionBatch:
    images: torch.Tensor
    captions: list[list[str] | None]


class ImageTask(
    DefaultTaskEncoder[ImageClassificationSample, ImageClassificationSample, ImageBatch, ImageBatch]
):
    def __init__(self):
        super().__init__(batch_type=ImageBatch)


class CaptioningTask(
    DefaultTaskEncoder[CaptioningSample, CaptioningSample, CaptioningBatch, CaptioningBatch]
):
    def __init__(self):
        super().__init__(batch_type=CaptioningBatch)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("my_dataset")
    classes(root / "image_dataset")
    for number, name in enumerate(
        [
            "captioning_dataset",
            "captioning_dataset_1",
            "captioning_dataset_2",
            "captioning_dataset1",
            "captioning_dataset2",
        ]
    ):
        captions(root / name, start=100 * number)
    return root


def run(name: str, data: Path, batches: int = 50, **supplied) -> dict:
    """Run an example; returns its names, and `seen`: the batches that its loop went over."""
    text = (EXAMPLES / name).read_text()
    text = text.replace("from megatron.energon import", "from energize import")
    text = text.replace("'/my/dataset/", f"'{data}/")
    for written, mended in MENDED.get(name, {}).items():
        assert written in text
        text = text.replace(written, mended)
    seen: list = []

    def some(loader):
        for batch in islice(loader, batches):
            seen.append(batch)
            yield batch

    loop = "for sample in train_loader:"
    assert loop in text
    text = text.replace(loop, "for sample in some(train_loader):")
    types = [ImageBatch, CaptioningBatch, ImageWithOptionalCaptionBatch, ImageTask, CaptioningTask]
    names = {kind.__name__: kind for kind in types} | supplied
    names |= {"List": list, "Union": Union, "Callable": Callable, "some": some, "__name__": name}
    exec(compile(text, name, "exec", dont_inherit=True), names)
    return names | {"seen": seen}


@pytest.mark.jobs
def test_blend(data):
    names = run("blend.py", data, batches=1000)
    kinds = Counter(type(batch).__name__ for batch in names["seen"])
    assert kinds == {"ImageBatch": 600, "CaptioningBatch": 400}
    assert all(len(batch.__key__) == 32 and batch.image.shape[0] == 32 for batch in names["seen"])
    validated = list(names["val_loader"])
    assert [type(batch).__name__ for batch in validated] == ["ImageBatch", "CaptioningBatch"]
    assert sorted(key for batch in validated for key in batch.__key__) == sorted(
        2 * [f"{number:06d}" for number in range(60, 80)]
    )


def test_homogeneous_mix(data):
    seen = run("mix_homogeneous.py", data, batches=125)["seen"]
    assert {type(batch) for batch in seen} == {CaptioningBatch}
    assert {tuple(batch.image.shape) for batch in seen} == {(32, 3, 24, 32)}
    first = Counter(int(text.split()[1]) < 200 for batch in seen for text in batch.caption)
    assert first == {True: 2400, False: 1600}


@pytest.mark.jobs
def test_heterogeneous_mix(data):
    seen = run("mix_heterogeneous.py", data, batches=125)["seen"]
    assert {type(batch) for batch in seen} == {ImageWithOptionalCaptionBatch}
    assert {tuple(batch.images.shape) for batch in seen} == {(32, 3, 24, 32)}
    without = sum(caption is None for batch in seen for caption in batch.captions)
    assert without == 2400
    assert all(len(caption) == 1 for batch in seen for caption in batch.captions if caption)


def test_sample_weights(data):
    model = torch.nn.Linear(3, 1)

    def tokenizer(texts):
        return torch.tensor([[int(text.split()[1])] for text in texts])

    def forward_and_compute_loss(images, text):
        predicted = model(images.mean(dim=(2, 3)))
        return (predicted - text / 1000).square().mean()

    names = run(
        "sample_weights.py",
        data,
        batches=40,
        tokenizer=tokenizer,
        forward_and_compute_loss=forward_and_compute_loss,
        optimizer=torch.optim.SGD(model.parameters(), lr=1e-3),
        **{
            name: getattr(energize, name)
            for name in ("get_loader", "BlendDataset", "get_train_dataset")
        },
    )
    for batch in names["seen"]:
        assert batch.weight == (0.2 if batch.text[0] < 400 else 0.8)
        assert batch.images.shape[0] == batch.text.shape[0] == len(batch.__keys__) == 32
    assert {batch.weight for batch in names["seen"]} == {0.2, 0.8}
    assert torch.isfinite(names["loss"])
