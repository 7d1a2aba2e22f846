"""Several sample types, packed, and validation on all ranks: Megatron-LM's multimodal
example."""

from __future__ import annotations

import bisect
import dataclasses
from dataclasses import dataclass

import numpy as np
import torch
from energize.energon.task_encoder.base import stateless
from torch import distributed

from energize.energon import (
    Batch,
    CaptioningSample,
    DefaultTaskEncoder,
    ImageClassificationSample,
    LimitDataset,
    RepeatDataset,
    Sample,
    WorkerConfig,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    get_val_datasets,
)
from tests.support.prepared import captions, classes

PEER = "energon"
LENGTH = 32
MIX = """
__module__: megatron.energon
__class__: Metadataset
splits:
  train:
    datasets:
      - {weight: 0.6, path: captions, subflavors: {augmentation: false}}
      - {weight: 0.4, path: classes, subflavors: {augmentation: true}}
  val:
    datasets:
      - {weight: 1.0, path: captions}
"""


def prepare(folder):
    captions(folder / "captions", 90)
    classes(folder / "classes", 50)
    (folder / "mix.yaml").write_text(MIX)


@dataclass
class ImageTaskSample(Sample):
    __key__: str
    __restore_key__: tuple
    __subflavors__: dict
    imgs: list[torch.Tensor]
    num_tiles: list[int]
    tokens: torch.Tensor
    total_len: int
    labels: torch.Tensor = None


@dataclass
class ImageTaskSamplePacked(Sample):
    __key__: str
    __restore_key__: tuple
    __subflavors__: dict
    tokens: torch.Tensor
    labels: torch.Tensor
    imgs: list[torch.Tensor]
    num_tiles: list[int]
    max_length: int
    cu_lengths: list[int]


@dataclass
class ImageTaskBatchPacked(Batch):
    __key__: list[str]
    __restore_key__: list[str]
    __subflavors__: list[dict]
    tokens: torch.Tensor
    labels: torch.Tensor
    imgs: torch.Tensor
    num_tiles: list[list[int]]
    max_lengths: list[int]
    cu_lengths: list[list[int]]


def search_for_fit(numbers: list[int], capacity: int) -> int:
    index = bisect.bisect(numbers, capacity)
    return -1 if index == 0 else index - 1


class TaskEncoder(
    DefaultTaskEncoder[CaptioningSample, ImageTaskSample, ImageTaskBatchPacked, dict]
):
    def __init__(self):
        super().__init__()
        self.is_packing_enabled = True

    @stateless(restore_seeds=True)
    def encode_sample(self, sample: CaptioningSample | ImageClassificationSample):
        if isinstance(sample, CaptioningSample):
            yield self.encode_captioning(sample)
        elif isinstance(sample, ImageClassificationSample):
            yield self.encode_any_single_turn(sample)
        else:
            raise NotImplementedError("Sample format not supported", sample)

    def encode_captioning(self, sample: CaptioningSample):
        return self._made(sample, sample.caption)

    def encode_any_single_turn(self, sample: ImageClassificationSample):
        augment = sample.__subflavors__["augmentation"]
        return self._made(
            sample, f"label {sample.label}", np.random.rand() if augment else 0.0
        )

    def _made(self, sample, text, noise=0.0):
        tokens = torch.tensor(list(text.encode())[:LENGTH])
        image = sample.image[:, :4, :4] + noise
        return ImageTaskSample(
            __key__=sample.__key__,
            __restore_key__=sample.__restore_key__,
            __subflavors__=sample.__subflavors__,
            imgs=[image],
            num_tiles=[1],
            tokens=tokens,
            total_len=len(tokens),
        )

    def select_samples_to_pack(
        self, samples: list[ImageTaskSample]
    ) -> list[list[ImageTaskSample]]:
        ordered = sorted(samples, key=lambda each: each.total_len)
        lengths, packs = [each.total_len for each in ordered], []
        while ordered:
            pack, left = [], LENGTH
            while (at := search_for_fit(lengths, left)) != -1:
                left -= lengths.pop(at)
                pack.append(ordered.pop(at))
            packs.append(pack)
        return packs

    @stateless
    def pack_selected_samples(
        self, samples: list[ImageTaskSample]
    ) -> ImageTaskSamplePacked:
        tokens = torch.cat([each.tokens for each in samples])
        lengths = np.cumsum([0] + [each.total_len for each in samples])
        return ImageTaskSamplePacked(
            __key__=",".join(each.__key__ for each in samples),
            __restore_key__=(),
            __subflavors__=samples[0].__subflavors__,
            tokens=torch.nn.functional.pad(tokens, (0, LENGTH - len(tokens))),
            labels=torch.nn.functional.pad(tokens[1:], (0, LENGTH - len(tokens) + 1)),
            imgs=[image for each in samples for image in each.imgs],
            num_tiles=[tiles for each in samples for tiles in each.num_tiles],
            max_length=max(each.total_len for each in samples),
            cu_lengths=torch.tensor(lengths, dtype=torch.int32),
        )

    def batch(
        self, samples: list[ImageTaskSample | ImageTaskSamplePacked]
    ) -> ImageTaskBatchPacked:
        return ImageTaskBatchPacked(
            __key__=[each.__key__ for each in samples],
            __restore_key__=[each.__restore_key__ for each in samples],
            __subflavors__=[each.__subflavors__ for each in samples],
            tokens=torch.stack([each.tokens for each in samples]),
            labels=torch.stack([each.labels for each in samples]),
            imgs=torch.stack([image for each in samples for image in each.imgs]),
            num_tiles=np.array(
                [sum(each.num_tiles) for each in samples], dtype=np.int32
            ),
            max_lengths=np.array([each.max_length for each in samples], dtype=np.int32),
            cu_lengths=[each.cu_lengths for each in samples],
        )

    def encode_batch(self, batch: ImageTaskBatchPacked) -> dict:
        raw = dataclasses.asdict(batch)
        raw["__subflavors__"] = [dict(each) for each in raw["__subflavors__"]]
        return raw


class EnergonDataloader:
    """Goes on for ever, and has a state, as Megatron's trainer wants it."""

    def __init__(self, dataloader):
        self._dataloader = dataloader
        self._iter = iter(cyclic_iter(dataloader))

    def __next__(self):
        return self._iter.__next__()

    def __iter__(self):
        return self._iter.__iter__()

    def save_state(self):
        return self._dataloader.save_state_rank()


def cyclic_iter(items):
    while True:
        yield from items


def worker_config(num_workers=2):
    return WorkerConfig(
        rank=distributed.get_rank(),
        world_size=distributed.get_world_size(),
        num_workers=num_workers,
        data_parallel_group=distributed.group.WORLD,
        worker_debug_path=None,
        worker_log_level=0,
    )


def loader(folder):
    check_validation(folder)
    config = worker_config()
    dataset = get_train_dataset(
        folder / "mix.yaml",
        batch_size=2,
        task_encoder=TaskEncoder(),
        virtual_epoch_length=1000,
        worker_config=config,
        packing_buffer_size=12,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        handler=print,
        image_decode="torchrgb",
    )
    return get_savable_loader(dataset, worker_config=config)


def check_validation(folder):
    """Each rank validates as many batches as it was told, and others than the other
    ranks."""
    config = worker_config(num_workers=1)
    datasets = get_val_datasets(
        folder / "mix.yaml",
        batch_size=1,
        limit=3,
        task_encoder=TaskEncoder(),
        worker_config=config,
        packing_buffer_size=4,
    )
    for dataset, source in datasets:
        assert source.path.name == "captions"
        limited = LimitDataset(
            RepeatDataset(dataset, worker_config=config),
            length=3,
            worker_config=config,
            reset_after_epoch=True,
        )
        loaded = [
            batch["__key__"] for batch in get_loader(limited, worker_config=config)
        ]
        assert len(loaded) == 3
        gathered = [None] * config.world_size
        distributed.all_gather_object(gathered, loaded)
        assert len({str(each) for each in gathered}) == config.world_size


def save(loader):
    return EnergonDataloader(loader).save_state()


def restore(loader, state):
    loader.restore_state_rank(state)


SAME_RANKS = (
    True  # packs are made in each lane, and lanes are those of ranks and workers
)


def ids(batch):
    assert batch["tokens"].shape == (2, LENGTH)
    assert isinstance(batch["num_tiles"], torch.Tensor | np.ndarray)
    return [*batch["__key__"], round(float(batch["imgs"].mean()), 6)]


def check(ranks):
    packs = [pack for rank in ranks for batch in rank for pack in batch[:2]]
    assert sum(len(pack.split(",")) for pack in packs) > 120
