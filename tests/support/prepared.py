"""Small prepared folders of real images, for tests of whole pipelines."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image

from energize import prepare
from tests.support.shards import packed


def image_bytes(
    number: int, size: tuple[int, int] = (24, 32), kind: str = "JPEG"
) -> bytes:
    """An image whose content tells its number: smooth colours, so that JPEG keeps
    them."""
    height, width = size
    y, x = np.mgrid[0:height, 0:width]
    pixels = (
        np.stack([x * 4 + number, y * 4, np.full_like(x, number * 7)], axis=-1) % 256
    )
    buffer = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(buffer, kind, quality=95)
    return buffer.getvalue()


def captions(folder: Path, count: int = 80, *, shards: int = 4, start: int = 0) -> Path:
    """A prepared captioning dataset; caption i is "caption i"."""
    return _prepared(
        folder,
        count,
        shards,
        lambda i: {
            "jpg": image_bytes(start + i),
            "txt": f"caption {start + i}".encode(),
        },
        sample_type="CaptioningSample",
        field_map={"image": "jpg", "caption": "txt"},
    )


def classes(
    folder: Path, count: int = 80, *, shards: int = 4, labels: int = 10
) -> Path:
    """A prepared classification dataset; the label of sample i is i mod `labels`."""
    return _prepared(
        folder,
        count,
        shards,
        lambda i: {"png": image_bytes(i, kind="PNG"), "cls": str(i % labels).encode()},
        sample_type="ImageClassificationSample",
        field_map={"image": "png", "label": "cls"},
    )


def _prepared(folder, count, shards, parts, **options) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for shard in range(shards):
        numbers = range(shard * count // shards, (shard + 1) * count // shards)
        files = [
            (f"{number:06d}.{name}", data)
            for number in numbers
            for name, data in parts(number).items()
        ]
        (folder / f"shard-{shard:03d}.tar").write_bytes(packed(files))
    ratios = {"train": shards - 1, "val": 1} if shards > 1 else {"train": 1}
    prepare(folder, split_ratios=ratios, workers=1, **options)
    return folder
