"""Whole pipelines: prepared folders of images to typed batches, and what bad input gets."""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from energize import (
    CaptioningSample,
    DefaultTaskEncoder,
    ImageClassificationSample,
    get_loader,
    get_train_dataset,
    get_val_dataset,
)
from energize.testing import check_laws
from tests.support.prepared import captions, classes


@dataclass
class Images:
    __key__: list[str]
    image: torch.Tensor
    label: torch.Tensor


@dataclass
class Texts:
    __key__: list[str]
    image: torch.Tensor
    caption: list[str]


class ImageTask(DefaultTaskEncoder):
    def __init__(self):
        super().__init__(batch_type=Images)

    def encode_sample(self, sample):
        """A random crop: what it draws has to be a function of the position."""
        left = random.randrange(8)
        return replace(sample, image=sample.image[:, :, left : left + 16])


class TextTask(DefaultTaskEncoder):
    def __init__(self):
        super().__init__(batch_type=Texts)


ENCODERS = {ImageClassificationSample: ImageTask(), CaptioningSample: TextTask()}


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("data")
    classes(root / "images", 40)
    captions(root / "one", 40)
    captions(root / "two", 40, start=1000)
    (root / "mix.yaml").write_text(
        """
        __module__: energize
        __class__: MetadatasetV2
        splits:
          train:
            blend:
              - {path: images, weight: 2}
              - weight: 1
                blend:
                  - {path: one, weight: 3}
                  - {path: two, weight: 1}
          val:
            blend:
              - {path: images}
              - {path: one}
        """
    )
    return root


def train(path: Path, encoders=None, **options):
    return get_train_dataset(path, batch_size=4, task_encoder=encoders or ENCODERS, **options)


class TestLaws:
    def test_training_from_a_metadataset(self, root):
        check_laws(train(root / "mix.yaml", virtual_epoch_length=10), epochs=1)

    def test_validation(self, root):
        check_laws(get_val_dataset(root / "mix.yaml", batch_size=3, task_encoder=ENCODERS))


class TestBadInput:
    def test_an_undecodable_image_is_reported_and_substituted(self, tmp_path, caplog):
        data = damaged(tmp_path / "data", {3})
        loader = get_loader(train(data, repeat=False))
        with caplog.at_level(logging.WARNING, logger="energize"):
            keys = [key for batch in loader for key in batch.__key__]
        assert len(keys) == 12
        assert "000003" not in keys
        assert "shard-000.tar" in caplog.text
        assert "000003" in caplog.text


def damaged(folder: Path, numbers: set[int]) -> Path:
    """A prepared folder in which some images are cut off inside; tar and index agree."""
    data = captions(folder, 12, shards=1)
    tar = bytearray((data / "shard-000.tar").read_bytes())
    for number in numbers:
        header = tar.index(f"{number:06d}.jpg".encode())
        tar[header + 512 : header + 1024] = bytes(512)
    (data / "shard-000.tar").write_bytes(tar)
    return data
