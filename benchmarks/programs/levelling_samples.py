"""Photographs of many sizes and texts of many lengths, and what they cost a model."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import PIL.Image
import torch
from skimage import data

from energize import DefaultTaskEncoder, prepare, write_shards
from energize.core.samples import TextSample
from energize.packing import attention_cost
from energize.task.decode import SampleDecoder

__all__ = ["PATCH", "Encoder", "operations_of", "sizes", "stored", "tokens_of"]

PATCH = 28
"""Width and height of a patch, which is a token."""

_MOST_PIXELS = 4096 * PATCH**2
"""Larger photographs are made smaller, as models have it."""

_CHARACTERS = 4
"""Of a token."""

_PHOTOGRAPHS = ("astronaut", "coffee", "chelsea", "rocket", "hubble_deep_field")
_MEASURES = {"width": "image:width", "height": "image:height", "characters": "len:txt"}

FloatArray = npt.NDArray[np.float64]


def tokens_of(
    characters: npt.ArrayLike = 0, width: npt.ArrayLike = 0, height: npt.ArrayLike = 0
) -> FloatArray:
    """Tokens of texts and patches of photographs: a linear cost."""
    rows, columns = patches_of(width, height)
    return np.asarray(rows * columns + np.ceil(np.divide(characters, _CHARACTERS)))


def patches_of(
    width: npt.ArrayLike, height: npt.ArrayLike
) -> tuple[FloatArray, FloatArray]:
    """Rows and columns of patches."""
    pixels = np.maximum(np.multiply(width, height, dtype=np.float64), 1)
    scale = np.minimum(np.sqrt(_MOST_PIXELS / pixels), 1) / PATCH
    return np.floor(np.multiply(height, scale)), np.floor(np.multiply(width, scale))


def operations_of(
    characters: npt.ArrayLike = 0, width: npt.ArrayLike = 0, height: npt.ArrayLike = 0
) -> FloatArray:
    """What a transformer computes for these, attention among the tokens of a sample
    included.
    """
    tokens: Any = tokens_of(characters, width, height)
    return np.asarray(attention_cost(tokens), dtype=np.float64)


def sizes(count: int) -> dict[str, Any]:
    """Widths and heights of photographs, and characters of texts, from small to
    large.
    """
    random = np.random.default_rng(0)
    pixels = np.clip(random.lognormal(np.log(1e6), 0.9, count), 0.03e6, 12e6)
    aspect = np.exp(np.clip(random.normal(0, 0.3, count), -0.8, 0.8))
    width = np.sqrt(pixels * aspect)
    height = np.sqrt(pixels / aspect)
    tokens = np.clip(random.lognormal(np.log(250), 1.0, count), 8, 4096)
    return {
        "width": width.astype(int),
        "height": height.astype(int),
        "characters": (_CHARACTERS * tokens).astype(int),
    }


class Encoder(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Photographs as rows of patches, texts as rows of numbers: a row for each
    token.
    """

    decoder = SampleDecoder(image_decode="pilrgb")

    def encode_sample(self, sample: Any) -> Any:
        """Float32 of shape (tokens, 3 * 28 * 28)."""
        if isinstance(sample, TextSample):
            length = -(-len(sample.text) // _CHARACTERS)
            return torch.zeros(length, 3 * PATCH * PATCH)
        image = sample.image
        rows, columns = (int(each) for each in patches_of(image.width, image.height))
        size = columns * PATCH, rows * PATCH
        if image.width * image.height > _MOST_PIXELS:
            image = image.resize(size)
        else:
            image = image.crop((0, 0, *size))
        cut = torch.from_numpy(np.array(image)).reshape(rows, PATCH, columns, PATCH, 3)
        patches = cut.permute(0, 2, 4, 1, 3).reshape(rows * columns, 3 * PATCH * PATCH)
        return patches.float().div_(255)

    def batch(self, samples: list[Any]) -> Any:
        """The tokens of all samples, end to end."""
        return torch.cat(samples)


def stored(root: Path, count: int) -> Path:
    """A metadataset of `count` photographs and as many texts; made when it is not there
    yet.
    """
    mix = root / f"levelling-{count}.yaml"
    if mix.exists():
        return mix
    drawn = sizes(count)
    folders = []
    for name, samples, kind, columns in (
        ("photographs", _photographs(drawn), "ImageSample", ("width", "height")),
        ("texts", _texts(drawn), "TextSample", ("characters",)),
    ):
        folder = root / f"{name}-{count}"
        shutil.rmtree(folder, ignore_errors=True)
        write_shards(samples, folder)
        measures = {each: _MEASURES[each] for each in columns}
        prepare(folder, split_ratios={"train": 1}, sample_type=kind, columns=measures)
        folders.append(folder.name)
    entries = "".join(f"    - {{path: {folder}, weight: 1}}\n" for folder in folders)
    head = (
        "__module__: energize\n__class__: MetadatasetV2\nsplits:\n  train:\n    "
        "blend:\n"
    )
    mix.write_text(head + entries)
    return mix


def _photographs(drawn: dict[str, Any]) -> Iterator[dict[str, Any]]:
    images = [PIL.Image.fromarray(getattr(data, name)()) for name in _PHOTOGRAPHS]
    for number, size in enumerate(zip(drawn["width"], drawn["height"], strict=True)):
        buffer = io.BytesIO()
        image = images[number % len(images)].convert("RGB").resize(size)
        image.save(buffer, "JPEG", quality=85)
        yield {"__key__": f"photograph-{number:06d}", "jpg": buffer.getvalue()}


def _texts(drawn: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for number, length in enumerate(drawn["characters"].tolist()):
        yield {
            "__key__": f"text-{number:06d}",
            "txt": "word " * (length // 5) + "." * (length % 5),
        }
