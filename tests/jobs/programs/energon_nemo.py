"""A data module with an encoder for each sample type, and global states: as NeMo's
multimodal."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from energize.energon.flavors.base_dataset import Sample
from torch import distributed

from energize.energon import (
    Batch,
    CaptioningSample,
    DefaultTaskEncoder,
    SavableDataLoader,
    WorkerConfig,
    batch_list,
    batch_pad_stack,
    get_savable_loader,
    get_train_dataset,
)
from tests.support.prepared import captions

PEER = "energon"


def prepare(folder):
    captions(folder, 101)


@dataclass
class ImageToken:
    token_str: str = "<image>"
    token_id: int = -200


@dataclass
class ImageTextSample(Sample):
    images: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    tokens: torch.Tensor = field(
        default_factory=lambda: torch.empty(0, dtype=torch.long)
    )
    labels: torch.Tensor = field(
        default_factory=lambda: torch.empty(0, dtype=torch.long)
    )
    loss_mask: torch.Tensor = field(
        default_factory=lambda: torch.empty(0, dtype=torch.float)
    )
    num_image_tiles: int = None


@dataclass
class ImageTextRawBatch(Batch):
    images: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    tokens: torch.Tensor = field(
        default_factory=lambda: torch.empty(0, dtype=torch.long)
    )
    labels: torch.Tensor = field(
        default_factory=lambda: torch.empty(0, dtype=torch.long)
    )
    loss_mask: torch.Tensor = field(
        default_factory=lambda: torch.empty(0, dtype=torch.float)
    )


class CaptioningEncoder:
    def __init__(self, image_token: ImageToken):
        self.image_token = image_token

    def encode(self, input_sample: CaptioningSample, output_sample: ImageTextSample):
        tokens = torch.tensor(
            [self.image_token.token_id, *input_sample.caption.encode()]
        )
        output_sample.__key__ = input_sample.__key__
        output_sample.images = input_sample.image[:, :2, :2]
        output_sample.tokens, output_sample.labels = tokens[:-1], tokens[1:]
        output_sample.loss_mask = (tokens[1:] > 0).float()
        return output_sample


class MultiModalTaskEncoder(
    DefaultTaskEncoder[CaptioningSample, ImageTextSample, ImageTextRawBatch, dict]
):
    def __init__(self, token: ImageToken):
        self.encoders: dict[str, CaptioningEncoder] = {
            "CaptioningSample": CaptioningEncoder(token)
        }
        super().__init__()

    def encode_sample(self, sample: CaptioningSample) -> ImageTextSample:
        encoder = self.encoders.get(type(sample).__name__)
        if not encoder:
            raise NotImplementedError(
                f"Sample type {type(sample).__name__} not supported"
            )
        return encoder.encode(sample, ImageTextSample.derive_from(sample))

    def batch(self, samples: list[ImageTextSample]) -> ImageTextRawBatch:
        keys, images, tokens, labels, loss_mask = [], [], [], [], []
        for sample in samples:
            keys.append(sample.__key__)
            images.append(sample.images)
            tokens.append(sample.tokens)
            labels.append(sample.labels)
            loss_mask.append(sample.loss_mask)
        return ImageTextRawBatch(
            __key__=batch_list(keys),
            __restore_key__=[],
            images=batch_pad_stack(images),
            tokens=batch_pad_stack(tokens),
            labels=batch_pad_stack(labels),
            loss_mask=batch_pad_stack(loss_mask),
        )

    def encode_batch(self, batch_data: ImageTextRawBatch) -> dict:
        batch = dict(batch_data.__dict__)
        batch["position_ids"] = torch.arange(batch_data.tokens.size(1)).expand_as(
            batch_data.tokens
        )
        batch["attention_mask"] = None
        batch["keys"] = batch_data.__key__
        return batch


class EnergonMultiModalDataModule:
    def __init__(self, path, micro_batch_size=2, num_workers=2):
        self.path, self.micro_batch_size, self.num_workers = (
            path,
            micro_batch_size,
            num_workers,
        )
        self.task_encoder = MultiModalTaskEncoder(ImageToken())
        self.train_dataloader_object: SavableDataLoader = None

    def datasets_provider(self, worker_config, split="train"):
        return get_train_dataset(
            self.path,
            batch_size=self.micro_batch_size,
            task_encoder=self.task_encoder,
            worker_config=worker_config,
            packing_buffer_size=None,
            split_part=split,
            shuffle_buffer_size=100,
            max_samples_per_sequence=None,
        )

    def train_dataloader(self):
        worker_config = WorkerConfig(
            rank=distributed.get_rank(),
            world_size=distributed.get_world_size(),
            num_workers=self.num_workers,
            data_parallel_group=distributed.new_group(),
        )
        dataset = self.datasets_provider(worker_config)
        self.train_dataloader_object = get_savable_loader(
            dataset, worker_config=worker_config
        )
        return self.train_dataloader_object


def loader(folder):
    return EnergonMultiModalDataModule(folder).train_dataloader()


def save(loader):
    return loader.save_state_global(global_dst_rank=0)


def restore(loader, state):
    loader.restore_state_global(state)


def ids(batch):
    assert not {"sample_weights", "__sample_weight__", "__stored_key__"} & batch.keys()
    assert batch["tokens"].shape == batch["labels"].shape == batch["position_ids"].shape
    return batch["keys"]


def check(ranks):
    keys = [key for rank in ranks for batch in rank[:10] for key in batch]
    assert len(set(keys)) == 40  # of one epoch
