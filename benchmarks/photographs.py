"""A prepared folder of captioned JPEG photographs, made once and kept."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import webdataset
from skimage import data

from energize import prepare

__all__ = ["SIDE", "prepared_folder", "shard_paths"]

SIDE = 256
"""Width and height of the photographs: equal, so that they stack without being resized."""

_PHOTOGRAPHS = ("astronaut", "coffee", "chelsea", "rocket", "hubble_deep_field")
_SHARDS = 8
_SMALLEST_CROP = 160
_QUALITY = 85


def prepared_folder(root: Path, samples: int) -> Path:
    """The folder of `samples` photographs below `root`; it is made when it is not there yet."""
    folder = root / f"photographs-{samples}"
    if not (folder / ".nv-meta").exists():
        folder.mkdir(parents=True, exist_ok=True)
        _write_shards(folder, samples)
        prepare(folder, split_ratios={"train": 1}, sample_type="CaptioningSample", overwrite=True)
    return folder


def shard_paths(folder: Path) -> list[str]:
    """The shards of a prepared folder, in order."""
    return sorted(map(str, folder.glob("*.tar")))


def _write_shards(folder: Path, samples: int) -> None:
    per_shard = -(-samples // _SHARDS)
    crops = _crops(samples)
    for shard in range(_SHARDS):
        with webdataset.TarWriter(str(folder / f"{shard:02d}.tar")) as tar:
            for number in range(shard * per_shard, min(samples, (shard + 1) * per_shard)):
                name, jpeg = next(crops)
                caption = f"photograph {number}: a part of {name}"
                tar.write({"__key__": f"{number:08d}", "jpg": jpeg, "txt": caption})


def _crops(samples: int) -> Iterator[tuple[str, bytes]]:
    """Random parts of photographs at random scales, mirrored or not, as JPEG."""
    photographs = {name: getattr(data, name)() for name in _PHOTOGRAPHS}
    random = np.random.default_rng(0)
    for _ in range(samples):
        name = _PHOTOGRAPHS[random.integers(len(_PHOTOGRAPHS))]
        yield name, _jpeg(_crop(photographs[name], random))


def _crop(photograph: np.ndarray[Any, Any], random: np.random.Generator) -> PIL.Image.Image:
    height, width = photograph.shape[:2]
    side = int(random.integers(_SMALLEST_CROP, min(height, width) + 1))
    top, left = random.integers(height - side + 1), random.integers(width - side + 1)
    pixels = photograph[top : top + side, left : left + side]
    if random.integers(2):
        pixels = pixels[:, ::-1]
    return PIL.Image.fromarray(np.ascontiguousarray(pixels)).resize((SIDE, SIDE))


def _jpeg(image: PIL.Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=_QUALITY)
    return buffer.getvalue()
