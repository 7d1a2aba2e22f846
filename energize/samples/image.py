"""Samples of one image, alone or with what is said of it.

An `image` is what the decoder makes of it: by default a float32 tensor (3, H, W) from 0 to 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from energize.late import torch
from energize.samples.sample import Sample


@dataclass(kw_only=True, slots=True)
class ImageSample(Sample):
    """An image."""

    image: torch.Tensor


@dataclass(kw_only=True, slots=True)
class CaptioningSample(Sample):
    """An image and a text that describes it."""

    image: torch.Tensor
    caption: str


@dataclass(kw_only=True, slots=True)
class ImageClassificationSample(Sample):
    """An image and its class, as a number, a name or both."""

    image: torch.Tensor
    label: int | None = None
    label_name: str | None = None
