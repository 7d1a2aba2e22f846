"""A prepared folder of captioned JPEG photographs, made once and kept."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
from skimage import data

from energize import prepare, write_shards

__all__ = ["SIDE", "prepared_folder", "shard_paths"]

SIDE = 256
"""Width and height of the photographs: equal, so that they stack without being
resized."""

_PHOTOGRAPHS = ("astronaut", "coffee", "chelsea", "rocket", "hubble_deep_field")
_SHARDS = 8
_SMALLEST_CROP = 160
_QUALITY = 85
_SMALL = 160
"""Bytes in place of a photograph: with its caption, a sample has about 200."""


def prepared_folder(
    root: Path, samples: int, side: int = SIDE, height: int | None = None
) -> Path:
    """Return the folder of `samples` photographs; make it if it is missing.

    Args:
        root: Folder of all such folders.
        samples: Number of photographs.
        side: Their width, and their height without `height`; 0 for `_SMALL` random
            bytes in place of a photograph.
        height: Their height.
    """
    size = (side, height or side)
    name = str(side) if size[0] == size[1] else f"{side}x{height}"
    folder = root / (f"photographs-{samples}" + f"-{name}" * (size != (SIDE, SIDE)))
    if not (folder / ".nv-meta").exists():
        shutil.rmtree(folder, ignore_errors=True)
        write_shards(
            _samples(samples, size), folder, samples_per_shard=-(-samples // _SHARDS)
        )
        prepare(
            folder,
            split_ratios={"train": 1},
            sample_type="CaptioningSample",
            overwrite=True,
        )
    return folder


def shard_paths(folder: Path) -> list[str]:
    """The shards of a prepared folder, in order."""
    return sorted(map(str, folder.glob("*.tar")))


def _samples(count: int, size: tuple[int, int]) -> Iterator[dict[str, Any]]:
    """Random parts of photographs at random scales, mirrored or not, as JPEG."""
    photographs = {name: getattr(data, name)() for name in _PHOTOGRAPHS}
    random = np.random.default_rng(0)
    for number in range(count):
        name = _PHOTOGRAPHS[random.integers(len(_PHOTOGRAPHS))]
        if size[0]:
            jpeg = _jpeg(_crop(photographs[name], random, size))
        else:
            jpeg = random.bytes(_SMALL)
        caption = f"photograph {number}: a part of {name}"
        yield {"__key__": f"{number:08d}", "jpg": jpeg, "txt": caption}


def _crop(
    photograph: np.ndarray[Any, Any], random: np.random.Generator, size: tuple[int, int]
) -> PIL.Image.Image:
    height, width = photograph.shape[:2]
    side = int(random.integers(_SMALLEST_CROP, min(height, width) + 1))
    top = random.integers(height - side + 1)
    left = random.integers(width - side + 1)
    pixels = photograph[top : top + side, left : left + side]
    if random.integers(2):
        pixels = pixels[:, ::-1]
    return PIL.Image.fromarray(np.ascontiguousarray(pixels)).resize(size)


def _jpeg(image: PIL.Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=_QUALITY)
    return buffer.getvalue()
