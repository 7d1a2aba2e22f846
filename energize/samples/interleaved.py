"""Samples of text and images in turn."""

from __future__ import annotations

from dataclasses import dataclass

from energize.late import torch
from energize.samples.sample import Sample


@dataclass(kw_only=True, slots=True)
class InterleavedSample(Sample):
    """Texts and images in the order in which they are read; an image is a tensor, a text a str."""

    sequence: list[torch.Tensor | str]
