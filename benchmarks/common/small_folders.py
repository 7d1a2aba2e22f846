"""Many prepared folders of a few small photographs each, and the metadataset that mixes
them.
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image

from energize import prepare, write_shards

__all__ = ["small_mix"]

_SAMPLES = 64
_SIDE = 16


def small_mix(root: Path, sources: int) -> Path:
    """A metadataset file of so many folders below `root`, made when they are not there
    yet.
    """
    names = [f"folder-{number:05d}" for number in range(sources)]
    for number, name in enumerate(names):
        if not (root / name / ".nv-meta" / ".info.json").exists():
            _write(root / name, number)
    entries = "".join(
        f"        - path: {name}\n          weight: {1 + number * 7919 % 97}\n"
        for number, name in enumerate(names)
    )
    kind = "__module__: megatron.energon\n__class__: MetadatasetV2\n"
    path = root / f"mix-{sources}.yaml"
    path.write_text(f"{kind}splits:\n    train:\n      blend:\n{entries}")
    return path


def _write(folder: Path, number: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    write_shards(_samples(number), folder)
    prepare(folder, split_ratios={"train": 1}, sample_type="CaptioningSample")


def _samples(number: int) -> Iterator[dict[str, Any]]:
    random = np.random.default_rng(number)
    for sample in range(_SAMPLES):
        pixels = random.integers(0, 256, (_SIDE, _SIDE, 3), dtype=np.uint8)
        buffer = io.BytesIO()
        PIL.Image.fromarray(pixels).save(buffer, "JPEG")
        caption = f"photograph {sample} of folder {number}"
        yield {"__key__": f"{sample:05d}", "jpg": buffer.getvalue(), "txt": caption}
