"""Texts for a language model, tokenised as they are read: MosaicML Streaming, as LLM
Foundry uses it.
"""

from __future__ import annotations

import os
from functools import partial

import numpy as np
import torch

from energize.compat.streaming import Stream, StreamingDataLoader, StreamingDataset
from tests.support.mds import write_mds

PEER = "streaming"
LENGTH = 8
GLOBAL_BATCH = 8
EPOCH = 99  # which 2 ranks with batches of 4 do not divide; it ends after the state was saved
SIZES = {"web": 211, "code": 90}


def prepare(folder):
    for number, (name, size) in enumerate(SIZES.items()):
        samples = [
            {"text": f"{name} {k}", "number": 1000 * number + k} for k in range(size)
        ]
        columns = {"text": "str", "number": "int"}
        write_mds(folder / name / "train", samples, columns, compression="zstd")


def tokenize(text: str) -> np.ndarray:
    ids = list(text.encode())[:LENGTH]
    return np.array(ids + [0] * (LENGTH - len(ids)), dtype=np.int64)


class StreamingTextDataset(StreamingDataset):
    """Adds tokens to what it streams."""

    def __init__(
        self, *, tokenizer, max_seq_len: int, token_encoding_type="int64", **kwargs
    ):
        super().__init__(**kwargs)
        self.tokenizer = tokenizer
        self.max_seq_len = max_seq_len
        self.token_encoding_type = token_encoding_type

    def __getitem__(self, idx):
        sample = super().__getitem__(idx)
        if "text" not in sample:
            raise RuntimeError("only samples with text")
        tokens = torch.from_numpy(self.tokenizer(sample["text"]))
        return {"input_ids": tokens[: self.max_seq_len], "number": sample["number"]}


def collate(examples, pad_token_id):
    ids = torch.stack([each["input_ids"] for each in examples])
    return {
        "input_ids": ids,
        "attention_mask": ids.ne(pad_token_id),
        "labels": ids.masked_fill(ids == pad_token_id, -100),
        "numbers": [each["number"] for each in examples],
    }


def loader(folder):
    batch_size = GLOBAL_BATCH // int(os.environ["WORLD_SIZE"])
    streams = [
        Stream(
            remote=None,
            local=str(folder / name),
            split="train",
            proportion=proportion,
            download_retry=2,
            download_timeout=60,
            validate_hash=None,
            keep_zip=False,
        )
        for name, proportion in {"web": 0.75, "code": 0.25}.items()
    ]
    dataset = StreamingTextDataset(
        tokenizer=tokenize,
        max_seq_len=LENGTH,
        streams=streams,
        epoch_size=EPOCH,
        predownload=100_000,
        cache_limit=None,
        partition_algo="relaxed",
        num_canonical_nodes=2,
        batch_size=batch_size,
        shuffle=True,
        shuffle_algo="py1e",
        shuffle_seed=9176,
        shuffle_block_size=1 << 18,
        sampling_method="balanced",
        sampling_granularity=1,
        batching_method="random",
        replication=None,
    )
    return StreamingDataLoader(
        dataset,
        collate_fn=partial(collate, pad_token_id=0),
        batch_size=batch_size,
        drop_last=False,
        num_workers=2,
        pin_memory=False,
        prefetch_factor=2,
        persistent_workers=True,
    )


def ids(batch):
    assert (
        batch["labels"].shape
        == batch["input_ids"].shape
        == (len(batch["numbers"]), LENGTH)
    )
    return [int(number) for number in batch["numbers"]]


def check(ranks):
    epoch = [number for rank in ranks for batch in rank[:13] for number in batch]
    assert len(epoch) == EPOCH
    taken = [number for rank in ranks for batch in rank for number in batch]
    assert len(taken) == len(set(taken))
    assert abs(sum(number >= 1000 for number in taken) / len(taken) - 0.25) < 0.1
