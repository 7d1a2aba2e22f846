"""A training script as one writes it for Megatron-Energon, with only its imports
changed.

It prepares raw photographs, captions and documents, mixes them by a nested metadataset
with a join and a subset, cooks crude samples, cuts documents into pieces with a
generator, packs samples to a fixed length, trains a small model, saves, restores in a
fresh loader and goes on. The same file runs with `megatron.energon` in place of
`energize.energon` in its imports (the tests do both).

    python -m examples.energon_training --data demo-energon
"""

from __future__ import annotations

import argparse
import io
import json
import tarfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from energize.energon.epathlib import EPath  # type: ignore[import-not-found]
from PIL import Image

from energize.energon import (
    BaseWebdatasetFactory,
    Batch,
    Cooker,
    DefaultTaskEncoder,
    Sample,
    SkipSample,
    WorkerConfig,
    basic_sample_keys,
    edataclass,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    prepare_metadataset,
    stateless,
)

WORDS = [
    "a",
    "an",
    "the",
    "cat",
    "dog",
    "boat",
    "hill",
    "tree",
    "red",
    "blue",
    "small",
    "large",
]
PACK_LENGTH = 64
PATCH = 8

MIX = """\
__module__: megatron.energon
__class__: MetadatasetV2
splits:
  train:
    blend:
      - path: pairs.yaml
        weight: 3
      - path: documents
        weight: 1
        subset: {range: ["0%", "75%"]}
        subflavors: {kind: document}
  val:
    path: documents
    subset: {range: ["75%", "100%"]}
    split_part: train
    subflavors: {kind: document}
"""

PAIRS = """\
__module__: megatron.energon
__class__: MetadatasetV2
splits:
  train:
    join:
      - path: photographs
        split_part: train
      - path: captions
        split_part: train
        nonmatch: skip
    joiner:
      __module__: __main__
      __class__: Pair
"""


@edataclass
class Photograph(Sample):
    """A photograph, as it is stored."""

    image: torch.Tensor


@edataclass
class Caption(Sample):
    """What is written about one."""

    text: str


@edataclass
class Pair(Sample):
    """A photograph with its caption."""

    image: torch.Tensor
    text: str

    @classmethod
    def from_joined(cls, photograph: Photograph, caption: Caption) -> Pair:
        """The two as one sample."""
        return cls.derive_from(photograph, image=photograph.image, text=caption.text)


@edataclass
class Piece(Sample):
    """Tokens, and the patches of an image if there is one."""

    tokens: torch.Tensor
    patches: torch.Tensor


@edataclass
class Pack(Sample):
    """Several pieces in a row; `lengths` says where they end."""

    tokens: torch.Tensor
    lengths: torch.Tensor
    patches: torch.Tensor


@edataclass
class PackBatch(Batch):
    """Packs, padded to one length."""

    tokens: torch.Tensor
    mask: torch.Tensor
    patches: torch.Tensor


@stateless
def cook_document(sample: dict[str, Any]) -> Pair:
    """A document: a part of JSON, with no photograph."""
    return Pair(
        **basic_sample_keys(sample),
        image=torch.zeros(3, 0, 0),
        text=sample["json"]["text"],
    )


class PackingEncoder(DefaultTaskEncoder[Pair, Any, PackBatch, PackBatch]):
    """Photographs to patches, texts to tokens, both to packs of a fixed length."""

    cookers = [Cooker(cook_document, has_subflavors={"kind": "document"})]  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()

    @stateless
    def preencode_sample(self, sample: Pair) -> Iterator[Piece]:
        """A photograph is one piece, a long text several."""
        words = sample.text.split()
        if not words:
            raise SkipSample
        patches = torch.zeros(0, 3 * PATCH * PATCH)
        if sample.image.numel():
            squares = sample.image.unfold(1, PATCH, PATCH).unfold(2, PATCH, PATCH)
            patches = squares.permute(1, 2, 0, 3, 4).reshape(-1, 3 * PATCH * PATCH)
        for start in range(0, len(words), PACK_LENGTH // 2):
            some = words[start : start + PACK_LENGTH // 2]
            tokens = torch.tensor([WORDS.index(word) + 1 for word in some])
            yield Piece.derive_from(
                sample, tokens=tokens, patches=patches if not start else patches[:0]
            )

    def select_samples_to_pack(self, samples: list[Piece]) -> list[list[Piece]]:
        """The longest first, each into the first pack that has room."""
        packs: list[list[Piece]] = []
        rooms: list[int] = []
        for sample in sorted(samples, key=lambda each: -len(each.tokens)):
            length = len(sample.tokens)
            at = next((i for i, room in enumerate(rooms) if room >= length), None)
            if at is None:
                packs.append([sample])
                rooms.append(PACK_LENGTH - length)
            else:
                packs[at].append(sample)
                rooms[at] -= length
        return packs

    @stateless
    def pack_selected_samples(self, samples: list[Piece]) -> Pack:
        """Pieces in a row."""
        return Pack.derive_from(
            samples[0],
            tokens=torch.cat([each.tokens for each in samples]),
            lengths=torch.tensor([len(each.tokens) for each in samples]),
            patches=torch.cat([each.patches for each in samples]),
        )

    @stateless
    def batch(self, samples: list[Pack]) -> PackBatch:
        """Packs of one length, with a mask of what is no padding."""
        tokens = torch.zeros(len(samples), PACK_LENGTH, dtype=torch.int64)
        for row, sample in enumerate(samples):
            tokens[row, : len(sample.tokens)] = sample.tokens
        patches = torch.cat([sample.patches for sample in samples])
        return PackBatch.from_samples(
            samples, tokens=tokens, mask=tokens > 0, patches=patches
        )

    def encode_batch(self, batch: PackBatch) -> PackBatch:
        """Pixels from 0 to 1, as they come from the decoder, around 0."""
        batch.patches = batch.patches - 0.5
        return batch


class Model(torch.nn.Module):
    """Guesses the next token; patches shift the guess."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(len(WORDS) + 1, 16)
        self.see = torch.nn.Linear(3 * PATCH * PATCH, 16)
        self.guess = torch.nn.Linear(16, len(WORDS) + 1)

    def forward(self, batch: PackBatch) -> torch.Tensor:
        """The loss of a batch."""
        seen = self.see(batch.patches).mean(0) if len(batch.patches) else 0.0
        guesses = self.guess(self.embed(batch.tokens[:, :-1]) + seen)
        losses = torch.nn.functional.cross_entropy(
            guesses.flatten(0, 1), batch.tokens[:, 1:].flatten(), reduction="none"
        )
        kept = batch.mask[:, 1:].flatten()
        return (losses * kept).sum() / kept.sum()


def write(path: Path, samples: Iterator[dict[str, Any]], per_shard: int) -> None:
    """Tar shards of samples, as any tool writes them."""
    path.mkdir(parents=True)
    for shard, some in enumerate(iter(lambda: list(islice(samples, per_shard)), [])):
        with tarfile.open(path / f"shard-{shard}.tar", "w") as tar:
            for sample in some:
                for part, data in sample.items():
                    if part != "key":
                        info = tarfile.TarInfo(f"{sample['key']}.{part}")
                        info.size = len(data)
                        tar.addfile(info, io.BytesIO(data))


def text(random: np.random.Generator, length: int) -> str:
    """So many words."""
    return " ".join(random.choice(WORDS, length))


def make_data(data: Path) -> None:
    """Photographs, captions of most of them, and documents; prepared."""
    random = np.random.default_rng(7)

    def png(size: int) -> bytes:
        buffer = io.BytesIO()
        pixels = random.integers(0, 255, (size, size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(buffer, "PNG")
        return buffer.getvalue()

    photographs = (
        {"key": f"{n:04d}", "png": png(16 + 8 * (n % 3))} for n in range(120)
    )
    captions = (
        {"key": f"{n:04d}", "txt": text(random, 3 + n % 17).encode()}
        for n in range(120)
        if n % 6
    )
    documents = (
        {
            "key": f"d{n:04d}",
            "json": json.dumps({"text": text(random, 20 + n % 90)}).encode(),
        }
        for n in range(80)
    )
    types = {
        "photographs": ("Photograph", {"image": "png"}),
        "captions": ("Caption", {"text": "txt"}),
        "documents": None,
    }
    for name, samples in (
        ("photographs", photographs),
        ("captions", captions),
        ("documents", documents),
    ):
        write(data / name, samples, 20)
        BaseWebdatasetFactory.prepare_dataset(
            EPath(data / name),
            sorted(shard.name for shard in (data / name).glob("*.tar")),
            split_parts_ratio=[("train", 1.0)],
            shuffle_seed=None,
            workers=1,
        )
        kind = types[name]
        described = (
            "__module__: megatron.energon\n__class__: CrudeWebdataset\n"
            if kind is None
            else f"sample_type: {{__module__: __main__, __class__: {kind[0]}}}\n"
            f"field_map: {json.dumps(kind[1])}\n"
        )
        (data / name / ".nv-meta" / "dataset.yaml").write_text(described)
    (data / "mix.yaml").write_text(MIX)
    (data / "pairs.yaml").write_text(PAIRS)
    prepare_metadataset(EPath(data / "pairs.yaml"))


def fingerprint(batch: PackBatch) -> tuple[int, int, float]:
    """What two equal batches have in common."""
    return (
        int(batch.tokens.sum()),
        int(batch.mask.sum()),
        round(float(batch.patches.sum()), 2),
    )


def main() -> None:
    """Make the data, train, stop, restore, go on."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("demo-energon"))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    if not given.data.exists():
        make_data(given.data)
    torch.manual_seed(0)
    config = WorkerConfig(rank=0, world_size=1, num_workers=given.workers)

    def loader_of() -> Any:
        dataset = get_train_dataset(
            given.data / "mix.yaml",
            worker_config=config,
            batch_size=4,
            shuffle_buffer_size=10,
            max_samples_per_sequence=20,
            packing_buffer_size=24,
            task_encoder=PackingEncoder(),
        )
        return get_savable_loader(dataset, checkpoint_every_sec=0, prefetch_factor=2)

    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = loader_of()
    state = None
    seen = []
    for step, batch in enumerate(islice(loader, given.steps)):
        optimizer.zero_grad()
        loss = model(batch)
        loss.backward()
        optimizer.step()
        if step == 0 or step + 1 == given.steps:
            print(
                f"step {step}: loss {loss.item():.3f}, {int(batch.mask.sum())} tokens"
            )
        if step + 1 == given.steps // 2:
            state = loader.save_state_rank()
        if step >= given.steps // 2:
            seen.append(fingerprint(batch))

    again = loader_of()
    again.restore_state_rank(state)
    restored = [fingerprint(batch) for batch in islice(again, len(seen))]
    equal = sum(a == b for a, b in zip(seen, restored, strict=True))
    print(f"after restoring: {equal} of {len(seen)} batches are equal")

    validation = get_val_dataset(
        given.data / "mix.yaml",
        worker_config=config,
        batch_size=4,
        packing_buffer_size=24,
        task_encoder=PackingEncoder(),
    )
    with torch.no_grad():
        losses = [float(model(batch)) for batch in get_loader(validation)]
    print(f"validation: {len(losses)} batches, loss {np.mean(losses):.3f}")


if __name__ == "__main__":
    main()
