"""Batches for libraries whose samples have JPEG bytes: decoded by Pillow, as their
users do.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import PIL.Image
import torch

__all__ = ["collate", "endless"]


def collate(image_decode: str | None) -> Callable[[list[Any]], tuple[Any, Any]]:
    """Return a function of samples; `torchrgb8` decodes images, None keeps bytes."""
    return _raw if image_decode is None else partial(_decoded, image_decode)


def endless(loader: Iterable[Any]) -> Iterator[Any]:
    """Yield batches, epoch after epoch."""
    while True:
        yield from loader


def _raw(samples: list[Any]) -> tuple[Any, Any]:
    # litData gives views, which no worker can send.
    images = [bytes(sample["jpg"]) for sample in samples]
    return images, [sample["txt"] for sample in samples]


def _decoded(image_decode: str, samples: list[Any]) -> tuple[Any, Any]:
    images = []
    for sample in samples:
        picture = PIL.Image.open(io.BytesIO(sample["jpg"])).convert("RGB")
        pixels = np.asarray(picture).transpose(2, 0, 1)
        if image_decode == "torchrgb":
            pixels = pixels.astype(np.float32) / 255
        images.append(torch.from_numpy(pixels.copy()))
    return torch.stack(images), [sample["txt"] for sample in samples]
