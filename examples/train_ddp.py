"""Train a captioner on images and plain text: several ranks, evaluation, resume.

`torchrun --nproc-per-node=2 examples/train_ddp.py OUT`, or `python
examples/train_ddp.py OUT` for one process. Run it again to resume. OUT gets small
data if it has none.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from PIL import Image
from torch.nn.functional import cross_entropy, interpolate
from torch.nn.parallel import DistributedDataParallel

from energize import (
    Batch,
    CaptioningSample,
    DefaultTaskEncoder,
    Loader,
    Sample,
    TextSample,
    get_loader,
    get_train_dataset,
    get_val_dataset,
    is_padding,
)

BATCH_SIZE = 4
EVALUATE_EVERY = 10
COLORS = ["red", "green", "blue", "orange", "purple"]

MIX = """\
__module__: energize
__class__: MetadatasetV2
splits:
  train:
    blend:
      - {path: photos, split_part: train, subset: {range: [0%, 90%]}, weight: 1}
      - {path: texts.jsonl, split_part: train, weight: 7}
  val:
    {path: photos, split_part: train, subset: {range: [90%, 100%]}}
"""
"""One sample in eight has an image, so every second batch of four is text alone."""


@dataclass(kw_only=True, slots=True)
class Tokens(Sample):
    """Token IDs of a text, int64 (length,), and its image (3, 32, 32), if any."""

    ids: torch.Tensor
    image: torch.Tensor | None


@dataclass(kw_only=True, slots=True)
class TokenBatch(Batch):
    """A padded batch of texts, with the images of some of them.

    Args:
        ids: Token IDs, int64 (batch, length); 0 is padding.
        images: Images of all samples, float32 (images, 3, 32, 32).
        rows: The row of `ids` of each image, int64 (images,).
    """

    ids: torch.Tensor
    images: torch.Tensor
    rows: torch.Tensor


class Encoder(DefaultTaskEncoder[Sample, Tokens, TokenBatch, TokenBatch]):
    """Encode captions and plain text as bytes, with or without an image."""

    def encode_sample(self, sample: Sample) -> Tokens:
        """Return the token IDs and the image of a sample."""
        image = None
        if isinstance(sample, CaptioningSample):
            text = sample.caption
            image = interpolate(sample.image[None], (32, 32))[0]
        elif isinstance(sample, TextSample):
            text = sample.text
        else:
            raise TypeError(f"{type(sample).__name__} is not supported")
        ids = torch.tensor(list(text.encode()))
        return Tokens.derive_from(sample, ids=ids, image=image)

    def batch(self, samples: list[Tokens]) -> TokenBatch:
        """Pad the texts and stack the images that exist."""
        images = [sample.image for sample in samples if sample.image is not None]
        rows = [row for row, sample in enumerate(samples) if sample.image is not None]
        return TokenBatch(
            __key__=[sample.__key__ for sample in samples],
            ids=torch.nn.utils.rnn.pad_sequence(
                [sample.ids for sample in samples], batch_first=True
            ),
            images=torch.stack(images) if images else torch.empty(0, 3, 32, 32),
            rows=torch.tensor(rows, dtype=torch.int64),
        )


class Captioner(torch.nn.Module):
    """Predict the next byte of a text, from its start and its image."""

    def __init__(self) -> None:
        super().__init__()
        self.vision = torch.nn.Linear(3, 64)
        self.embedding = torch.nn.Embedding(256, 64)
        self.text = torch.nn.GRU(64, 64, batch_first=True)
        self.head = torch.nn.Linear(64, 256)

    def forward(self, batch: TokenBatch) -> torch.Tensor:
        """Return the mean loss of a token."""
        start = torch.zeros(1, len(batch.ids), 64, device=batch.ids.device)
        if len(batch.rows) > 0:  # a batch of text alone does not use `vision`
            colors = self.vision(batch.images.mean((2, 3)))
            start = start.index_copy(1, batch.rows, colors[None])
        states, _ = self.text(self.embedding(batch.ids[:, :-1]), start)
        logits = self.head(states).flatten(0, 1)
        return cross_entropy(logits, batch.ids[:, 1:].flatten(), ignore_index=0)


@torch.no_grad()
def evaluate(
    model: torch.nn.Module, loader: Loader[TokenBatch], device: torch.device
) -> float:
    """Return the mean loss of all validation samples, the same on every rank."""
    total = torch.zeros(2, device=device)
    for batch in loader:
        if not is_padding(batch):
            loss = model(batch.to(device)) * len(batch.ids)
            total += torch.stack([loss, loss.new_tensor(len(batch.ids))])
    dist.all_reduce(total)
    return float(total[0] / total[1])


def draw_data(folder: Path) -> None:
    """Write 100 images with captions, 200 texts and the mix of both."""
    (folder / "photos").mkdir(parents=True)
    with (folder / "photos" / "metadata.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["file_name", "text"])
        for number in range(100):
            color = COLORS[number % 5]
            Image.new("RGB", (48, 48), color).save(folder / f"photos/{number:03}.png")
            table.writerow([f"{number:03}.png", f"a {color} square"])
    lines = [{"text": f"text {number}, without images"} for number in range(200)]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "texts.jsonl").write_text(text)
    (folder / "mix.yaml").write_text(MIX)  # last: it marks the data as complete


def train(out: Path, steps: int) -> None:
    """Train up to a step, from the last checkpoint if there is one."""
    rank = dist.get_rank()
    if rank == 0 and not (out / "mix.yaml").exists():
        draw_data(out)
    dist.barrier()

    has_gpu = torch.cuda.is_available()
    device = torch.device("cuda", torch.cuda.current_device()) if has_gpu else None
    device = device or torch.device("cpu")
    torch.manual_seed(0)
    model = Captioner().to(device)
    ddp = DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)

    mix = out / "mix.yaml"
    train_set = get_train_dataset(mix, batch_size=BATCH_SIZE, task_encoder=Encoder())
    val_set = get_val_dataset(mix, batch_size=BATCH_SIZE, task_encoder=Encoder())
    train_loader: Loader[TokenBatch] = get_loader(train_set)
    val_loader: Loader[TokenBatch] = get_loader(val_set)

    step = 0
    checkpoint = out / "checkpoint.pt"
    if checkpoint.exists():
        saved = torch.load(checkpoint, map_location=device, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        train_loader.load_state_dict(saved["loader"])
        step = saved["step"]

    with train_loader, val_loader:
        for batch in train_loader:
            if step >= steps:
                break
            loss = ddp(batch.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % EVALUATE_EVERY > 0:
                continue
            val_loss = evaluate(model, val_loader, device)
            saved = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "loader": train_loader.state_dict(),  # call it on all ranks
                "step": step,
            }
            if rank == 0:
                print(f"step {step}: loss {loss.item():.4f}, validation {val_loss:.4f}")
                torch.save(saved, out / "checkpoint.tmp")
                os.replace(out / "checkpoint.tmp", checkpoint)


def main() -> None:
    """Start the process group and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="folder of data and checkpoint")
    parser.add_argument("--steps", type=int, default=40)
    arguments = parser.parse_args()
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    for name, value in (alone | {"MASTER_PORT": "29500"}).items():
        os.environ.setdefault(name, value)
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    train(arguments.out, arguments.steps)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
