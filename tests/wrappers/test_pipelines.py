"""Whole pipelines: prepared folders of images to typed batches, and what bad input gets."""

from __future__ import annotations

import logging
import random
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from energize import (
    BlendDataset,
    CaptioningSample,
    DefaultTaskEncoder,
    ImageClassificationSample,
    WorkerConfig,
    get_loader,
    get_train_dataset,
    get_val_dataset,
)
from energize.errors import (
    ConfigError,
    EncoderError,
    FailureBudgetError,
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


class TestMetadatasets:
    def test_whole_batches_of_each_encoder_in_the_asked_shares(self, root):
        mix = train(root / "mix.yaml")
        refs = mix.refs(range(12_000))
        names = Counter(mix.sources[source].name for source in refs.source.tolist())
        assert names == {"images": 32_000, "one": 12_000, "two": 4_000}
        batches = mix.at(range(40))
        assert {type(batch) for batch in batches} == {Images, Texts}
        assert all(len(batch.__key__) == 4 for batch in batches)

    def test_a_type_without_an_encoder(self, root):
        with pytest.raises(
            ConfigError, match=r"ImageClassificationSample.*given are for Captioning"
        ):
            train(root / "mix.yaml", {CaptioningSample: TextTask()})

    def test_an_encoder_class_instead_of_an_encoder(self, root):
        with pytest.raises(ConfigError, match="forget to call it"):
            train(root / "one", TextTask)

    def test_validation_reads_everything_once_in_order(self, root):
        batches = get_val_dataset(root / "mix.yaml", batch_size=4, task_encoder=ENCODERS)
        keys = [key for batch in batches for key in batch.__key__]
        assert keys == 2 * [f"{number:06d}" for number in range(30, 40)]

    def test_the_same_folder_twice_does_not_repeat_its_order(self, root):
        def samples():
            return get_train_dataset(root / "one", batch_size=None)

        assert len(BlendDataset((samples(), 1), (samples(), 2)).inputs) == 1  # merged
        loud, quiet = DefaultTaskEncoder(encoded_sample_type=dict), DefaultTaskEncoder()
        blend = BlendDataset(
            (get_train_dataset(root / "one", batch_size=None, task_encoder=loud), 1),
            (get_train_dataset(root / "one", batch_size=None, task_encoder=quiet), 1),
        )
        refs = blend.refs(range(1000))
        orders = [refs.index[refs.source == number][:30].tolist() for number in (0, 1)]
        assert sorted(orders[0]) == sorted(orders[1]) == list(range(30))
        assert orders[0] != orders[1]

    def test_the_order_that_a_folder_asks_for(self, tmp_path):
        data = captions(tmp_path / "data", 40, shards=1)
        settings = data / ".nv-meta" / "dataset.yaml"
        settings.write_text(settings.read_text() + "max_samples_per_sequence: 8\n")
        order = train(data, repeat=False).refs(range(10)).index.tolist()
        assert all(order[i : i + 8] == [*range(order[i], order[i] + 8)] for i in range(0, 40, 8))
        settings.write_text(settings.read_text() + "shuffle_over_epochs: null\n")
        assert train(data, repeat=False).refs(range(10)).index.tolist() == list(range(40))


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

    @pytest.mark.parametrize("num_workers", [0, 2])
    def test_too_many_undecodable_images(self, tmp_path, num_workers):
        data = damaged(tmp_path / "data", {1, 3, 5, 7})
        loader = get_loader(
            train(data, repeat=False),
            failure_budget=2,
            worker_config=WorkerConfig(num_workers=num_workers),
        )
        with pytest.raises(FailureBudgetError, match=r"shard-000\.tar"):
            list(loader)
        loader.close()

    @pytest.mark.parametrize("num_workers", [0, 1])
    def test_an_encoder_that_raises(self, root, num_workers):
        class Broken(TextTask):
            def encode_sample(self, sample):
                return sample.capshun

        loader = get_loader(
            train(root / "one", Broken()), worker_config=WorkerConfig(num_workers=num_workers)
        )
        with pytest.raises(EncoderError) as error:
            next(iter(loader))
        loader.close()
        said = "\n".join([str(error.value), *getattr(error.value, "__notes__", ())])
        said += str(error.value.__cause__)
        assert "capshun" in said
        assert "shard-" in said
        assert "Broken.encode_sample" in said


def damaged(folder: Path, numbers: set[int]) -> Path:
    """A prepared folder in which some images are cut off inside; tar and index agree."""
    data = captions(folder, 12, shards=1)
    tar = bytearray((data / "shard-000.tar").read_bytes())
    for number in numbers:
        header = tar.index(f"{number:06d}.jpg".encode())
        tar[header + 512 : header + 1024] = bytes(512)
    (data / "shard-000.tar").write_bytes(tar)
    return data
