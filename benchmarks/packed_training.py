"""Tokens per second of a training with padded batches and with packs.

    python -m benchmarks.packed_training [--samples 4000] [--rounds 6] [--steps 20]

A small causal transformer is trained on texts of log-normal lengths from a JSONL file,
read by a loader with one worker, in four ways:

- `fixed`: batches of 9 samples, padded to the longest one.
- `budget`: `batch_budget`, samples of similar length up to 2,048 tokens with padding.
- `streamed`: packs of 2,048 tokens, chosen by `Packer` from a buffer of 1,000 samples.
- `planned`: packs of 2,048 tokens, planned from the column `tokens`.

Packs are padded to 2,048 tokens. The model is the same: attention is computed for each
sample of a pack, and for each padded row of a batch. The ways take turns of `--steps`
steps, on one thread. `real` is the share of tokens that are not padding; tokens per
second count real tokens only, by time and by CPU time of the training process.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from energize import (
    DefaultTaskEncoder,
    WorkerConfig,
    get_loader,
    get_train_dataset,
    stateless,
)
from energize.packing import Packer

__all__ = ["Speed", "main", "trained"]

CAPACITY = 2048
"""Tokens of a pack, and of a batch with a budget."""

_BATCH = 9
"""Samples of a fixed batch: as many real tokens as in a pack, about."""

_BUFFER = 1000
_MEDIAN = 150
_SIGMA = 0.9
_WIDTH = 128
_HEADS = 4
_LAYERS = 2
_IGNORED = -100
"""The label of padding."""

WAYS: dict[str, dict[str, Any]] = {
    "fixed": {"batch_size": _BATCH},
    "budget": {"batch_budget": {"tokens": CAPACITY}},
    "streamed": {"batch_size": None, "packing_buffer_size": _BUFFER},
    "planned": {
        "batch_size": None,
        "packing": {"length": "tokens", "capacity": CAPACITY},
    },
}
"""Arguments of `get_train_dataset`."""


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Speed of one way: real tokens, and seconds of the training process."""

    way: str
    real_tokens: int
    all_tokens: int
    seconds: float
    cpu_seconds: float


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the table, and write it to the JSON file if there is one."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0] if __doc__ else None
    )
    parser.add_argument("--samples", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=20, help="of each round")
    parser.add_argument("--json", type=Path, help="a file for the numbers")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        texts = written(Path(folder) / "texts.jsonl", options.samples)
        speeds = trained(texts, options.rounds, options.steps)
    fixed = speeds[0]
    print(f"{'':<9} {'real':>6} {'tokens/s':>9} {'ratio':>6} ", end="")
    print(f"{'by CPU':>9} {'ratio':>6}")
    for speed in speeds:
        line = [f"{speed.way:<9} {speed.real_tokens / speed.all_tokens:>6.3f}"]
        for mine, first in (
            (speed.seconds, fixed.seconds),
            (speed.cpu_seconds, fixed.cpu_seconds),
        ):
            per_second = speed.real_tokens / mine
            ratio = per_second * first / fixed.real_tokens
            line.append(f"{per_second:>9,.0f} {ratio:>6.2f}")
        print(*line)
    if options.json:
        options.json.write_text(json.dumps(list(map(asdict, speeds)), indent=1) + "\n")


def written(path: Path, samples: int) -> Path:
    """Write texts of log-normal lengths with the column "tokens", one byte a token."""
    rng = np.random.default_rng(0)
    drawn = rng.lognormal(np.log(_MEDIAN), _SIGMA, samples)
    with path.open("w") as file:
        for tokens in np.clip(drawn, 8, CAPACITY).astype(int).tolist():
            letters = rng.integers(97, 123, tokens, dtype=np.uint8)
            text = letters.tobytes().decode()
            file.write(json.dumps({"text": text, "tokens": tokens}) + "\n")
    return path


def length_of(sample: Any) -> int:
    """Return the tokens of an encoded sample."""
    return len(sample["ids"])


class Encoder(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Makes flat batches: ids, labels and the bounds of rows or samples."""

    packer = Packer(length_of, CAPACITY)

    @stateless
    def encode_sample(self, sample: Any) -> dict[str, torch.Tensor]:
        """Return the bytes of a text."""
        data = np.frombuffer(sample.text.encode(), dtype=np.uint8)
        return {"ids": torch.from_numpy(data.astype(np.int64))}

    def batch(self, samples: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        """Return samples padded to the longest one."""
        return _flat(samples, [max(map(length_of, samples))] * len(samples))

    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        """Return the samples of each pack."""
        return self.packer(samples)

    @stateless
    def pack_selected_samples(
        self, samples: list[dict[str, torch.Tensor]]
    ) -> dict[str, torch.Tensor]:
        """Return a pack, padded to the capacity by a row of its own."""
        lengths = list(map(length_of, samples))
        rest = CAPACITY - sum(lengths)
        if rest:
            empty = {"ids": torch.zeros(0, dtype=torch.int64)}
            return _flat([*samples, empty], [*lengths, rest])
        return _flat(samples, lengths)


def _flat(
    samples: list[dict[str, torch.Tensor]], lengths: list[int]
) -> dict[str, torch.Tensor]:
    """Return the rows of samples, padded to lengths, one after another."""
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    ids = torch.zeros(int(bounds[-1]), dtype=torch.int64)
    labels = torch.full_like(ids, _IGNORED)
    for sample, start in zip(samples, bounds.tolist(), strict=False):
        end = start + length_of(sample)
        ids[start:end] = sample["ids"]
        labels[start:end] = sample["ids"]
    return {"ids": ids, "labels": labels, "bounds": torch.from_numpy(bounds)}


class Transformer(nn.Module):
    """A causal transformer over rows of a flat batch."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, _WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(_LAYERS))
        self.head = nn.Linear(_WIDTH, 256)

    def forward(self, ids: torch.Tensor, bounds: torch.Tensor) -> torch.Tensor:
        """Return logits, shape (num_tokens, 256)."""
        states = self.embedding(ids)
        rows = list(pairwise(bounds.tolist()))
        for layer in self.layers:
            states = layer(states, rows)
        logits: torch.Tensor = self.head(states)
        return logits


class Layer(nn.Module):
    """Attention within rows, and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.LayerNorm(_WIDTH)
        self.attention = nn.Linear(_WIDTH, 3 * _WIDTH)
        self.out = nn.Linear(_WIDTH, _WIDTH)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(_WIDTH),
            nn.Linear(_WIDTH, 4 * _WIDTH),
            nn.GELU(),
            nn.Linear(4 * _WIDTH, _WIDTH),
        )

    def forward(
        self, states: torch.Tensor, rows: list[tuple[int, int]]
    ) -> torch.Tensor:
        """Return new states, shape (num_tokens, width)."""
        heads = self.attention(self.before(states)).view(-1, 3, _HEADS, 32)
        mixed = []
        for start, end in rows:
            query, key, value = heads[start:end].permute(1, 2, 0, 3)[:, None]
            attended = functional.scaled_dot_product_attention(
                query, key, value, is_causal=True
            )
            mixed.append(attended[0].permute(1, 0, 2).reshape(end - start, _WIDTH))
        states = states + self.out(torch.cat(mixed))
        fed: torch.Tensor = states + self.feed_forward(states)
        return fed


def trained(texts: Path, rounds: int, steps: int) -> list[Speed]:
    """Train in all ways in turn, and return their speeds."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Transformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    turns: dict[str, list[list[float]]] = {way: [] for way in WAYS}
    with ExitStack() as stack:
        loaders = {}
        for way, arguments in WAYS.items():
            dataset: Any = get_train_dataset(texts, task_encoder=Encoder(), **arguments)
            config = WorkerConfig(rank=0, world_size=1, num_workers=1)
            loader = stack.enter_context(get_loader(dataset, worker_config=config))
            loaders[way] = iter(loader)
            _turn(model, optimizer, loaders[way], 3)
        for _ in range(rounds):
            for way, batches in loaders.items():
                turns[way].append(_turn(model, optimizer, batches, steps))
    torch.set_num_threads(threads)
    speeds = []
    for way, rows in turns.items():
        real, every, seconds, cpu = np.sum(rows, axis=0).tolist()
        speed = Speed(
            way=way,
            real_tokens=int(real),
            all_tokens=int(every),
            seconds=seconds,
            cpu_seconds=cpu,
        )
        speeds.append(speed)
    return speeds


def _turn(
    model: nn.Module, optimizer: Any, batches: Iterator[Any], steps: int
) -> list[float]:
    """Train some steps: real tokens, all tokens, seconds and CPU seconds."""
    real = every = 0
    wall = time.perf_counter()
    cpu = time.process_time()
    for _ in range(steps):
        batch = next(batches)
        logits = model(batch["ids"], batch["bounds"])
        loss = functional.cross_entropy(logits, batch["labels"], ignore_index=_IGNORED)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        real += int((batch["labels"] != _IGNORED).sum())
        every += len(batch["ids"])
    return [real, every, time.perf_counter() - wall, time.process_time() - cpu]


if __name__ == "__main__":
    main()
