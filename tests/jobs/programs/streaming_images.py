"""Images with captions for a diffusion model: MosaicML Streaming with a stream for each
source."""

from __future__ import annotations

import os

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader

from energize.compat.streaming import Stream, StreamingDataset
from tests.support.mds import write_mds

PEER = "streaming"
SOURCES = {"photos": 0, "art": 100}
PROPORTIONS = {"photos": 0.75, "art": 0.25}
EPOCH = 68


def prepare(folder):
    columns = {"jpg": "jpeg", "caption": "str", "id": "int"}
    for name, first in SOURCES.items():
        samples = [
            {
                "jpg": Image.fromarray(np.full((8 + k % 3, 9, 3), 40 + k, np.uint8)),
                "caption": f"{name} {k}",
                "id": first + k,
            }
            for k in range(51)
        ]
        write_mds(folder / name, samples, columns, per_shard=9)


class StreamingImageCaptionDataset(StreamingDataset):
    """Images of one size as tensors, and the tokens of their captions; some captions
    dropped."""

    def __init__(
        self, streams, image_size, caption_drop_prob=0.0, transform=None, **kwargs
    ):
        super().__init__(streams=streams, **kwargs)
        self.image_size = image_size
        self.caption_drop_prob = caption_drop_prob
        self.transform = transform

    def __getitem__(self, index):
        sample = super().__getitem__(index)
        image = sample["jpg"].convert("RGB").resize((self.image_size, self.image_size))
        if self.transform is not None:
            image = self.transform(image)
        caption = "" if self.caption_drop_prob > 0.5 else sample["caption"]
        tokens = torch.tensor((list(caption.encode()) + [0] * 12)[:12])
        return {"image": image, "captions": tokens, "id": sample["id"]}


def to_tensor(image):
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255


def loader(folder):
    batch_size = 6 // int(os.environ["WORLD_SIZE"])
    streams = [
        Stream(local=str(folder / name), proportion=proportion)
        for name, proportion in PROPORTIONS.items()
    ]
    dataset = StreamingImageCaptionDataset(
        streams=streams,
        image_size=8,
        transform=to_tensor,
        epoch_size=EPOCH,
        batch_size=batch_size,
        shuffle=True,
        shuffle_algo="py1br",
        batching_method="stratified",
        num_canonical_nodes=1,
        download_timeout=300,
    )
    return Resumable(
        dataset,
        DataLoader(dataset, batch_size=batch_size, num_workers=2, drop_last=False),
    )


class Resumable:
    """Counts batches, as trainers without a StreamingDataLoader do."""

    def __init__(self, dataset, batches):
        self.dataset, self.batches, self.taken = dataset, batches, 0

    def __iter__(self):
        for batch in self.batches:
            self.taken += len(batch["id"])
            yield batch
        self.taken = 0

    def state_dict(self):
        ranks = torch.distributed.get_world_size()
        return self.dataset.state_dict(
            num_samples=self.taken * ranks, from_beginning=False
        )

    def load_state_dict(self, state):
        self.dataset.load_state_dict(state)


def ids(batch):
    assert batch["image"].shape[1:] == (3, 8, 8)
    return batch["id"].tolist()


def check(ranks):
    first = [number for rank in ranks for batch in rank[:12] for number in batch]
    assert len(first) == EPOCH == len(set(first))
    assert (
        sum(number < 100 for number in first) == 51
    )  # all photos, and a third of the art
