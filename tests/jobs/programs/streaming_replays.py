"""Windows of replays: the pattern of hal. The loader reads a dataset around the streaming
one; its state is that of the streaming one, counted by a hook for its own batches.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
import torch
from torch.utils.data import IterableDataset

from energize.compat.streaming import Stream, StreamingDataLoader, StreamingDataset
from energize.compat.streaming.base.world import World
from tests.support.mds import write_mds

PEER = "streaming"
GLOBAL_BATCH = 8
WINDOW = 3


def prepare(folder):
    for first, name in enumerate(("ranked", "casual")):
        samples = [
            {
                "frame": np.arange(6 + k % 5, dtype="float32"),
                "number": 100 * first + k,
            }
            for k in range(60)
        ]
        columns = {"frame": "ndarray:float32", "number": "int"}
        write_mds(folder / name / "train", samples, columns, per_shard=7)


@dataclass
class TrainBatch:
    context: torch.Tensor
    target: torch.Tensor
    numbers: list[int]


class WindowDataset(IterableDataset):
    """A window of every replay, drawn by the seed, the epoch and the replay."""

    def __init__(self, rows, seed):
        self.rows = rows
        self.seed = seed
        self.epoch = 0

    def resume_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        epoch = self.epoch
        self.epoch += 1
        for sample in self.rows:
            rng = np.random.default_rng((self.seed, epoch, int(sample["number"])))
            start = int(rng.integers(len(sample["frame"]) - WINDOW))
            window = sample["frame"][start : start + WINDOW]
            yield torch.from_numpy(window), int(sample["number"])


def collate(items):
    windows = torch.stack([window for window, _ in items])
    return TrainBatch(windows[:, :-1], windows[:, -1:], [number for _, number in items])


class ResumableStreamingDataLoader(StreamingDataLoader):
    def __init__(self, *args, streaming_dataset, window_dataset, **kwargs):
        super().__init__(*args, **kwargs)
        self.streaming_dataset = streaming_dataset
        self.window_dataset = window_dataset

    def _get_batch_size(self, batch):
        target = getattr(batch, "target", None)
        if isinstance(target, torch.Tensor):
            return len(target)
        return super()._get_batch_size(batch)

    def state_dict(self):
        num_samples = self.num_samples_yielded * World.detect().num_ranks
        if self.streaming_dataset.replication is not None:
            num_samples //= self.streaming_dataset.replication
        state = self.streaming_dataset.state_dict(num_samples, from_beginning=False)
        return {"schema": 1, "mds": state}

    def load_state_dict(self, obj):
        state = obj["mds"] if obj.get("schema") == 1 else obj
        epoch = state.get("epoch")
        if not isinstance(epoch, int):
            raise TypeError("'epoch' must be an int")
        self.streaming_dataset.load_state_dict(state)
        self.window_dataset.resume_epoch(epoch)


def loader(folder):
    batch_size = GLOBAL_BATCH // int(os.environ["WORLD_SIZE"])
    streams = [
        Stream(
            remote=None,
            local=str(folder / name),
            split="train",
            proportion=weight,
            download_retry=8,
        )
        for name, weight in {"ranked": 0.8, "casual": 0.2}.items()
    ]
    dataset = StreamingDataset(
        streams=streams,
        cache_limit=None,
        predownload=None,
        batch_size=batch_size,
        epoch_size=104,
        shuffle=True,
        shuffle_seed=7,
        shuffle_block_size=2000,
    )
    windows = WindowDataset(dataset, seed=3)
    return ResumableStreamingDataLoader(
        windows,
        streaming_dataset=dataset,
        window_dataset=windows,
        batch_size=batch_size,
        num_workers=2,
        collate_fn=collate,
        persistent_workers=True,
        prefetch_factor=4,
        generator=torch.Generator().manual_seed(3),
    )


def ids(batch):
    assert batch.context.shape == (len(batch.numbers), WINDOW - 1)
    starts = batch.context[:, 0].int().tolist()
    return [list(pair) for pair in zip(batch.numbers, starts, strict=True)]


def check(ranks):
    first = [pair for rank in ranks for batch in rank[:13] for pair in batch]
    assert len(first) == 104
    assert sum(number < 100 for number, _ in first) == 83
