"""Samples of text and images in turn."""

from __future__ import annotations

from dataclasses import dataclass

from energize.late import torch
from energize.samples.sample import Sample


@dataclass(kw_only=True, slots=True)
class InterleavedSample(Sample):
    """Texts and images in the order in which they are read; an image is a tensor, a text a str."""

    sequence: list[torch.Tensor | str]


@dataclass(kw_only=True, slots=True)
class SimilarityInterleavedSample(Sample):
    """Images and sentences of one document, of which it is not settled which belong together.

    `similarity_matrix` is float (images, texts), how well each image fits each text;
    `matched_text_indices` has for each image the number of the text that it was matched to.
    """

    images: list[torch.Tensor]
    texts: list[str]
    audio: list[torch.Tensor] | None = None
    video: list[torch.Tensor] | None = None
    similarity_matrix: torch.Tensor | None = None
    matched_text_indices: list[int] | None = None
