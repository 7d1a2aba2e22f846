"""Samples of an image of text, alone or with a question about it."""

from __future__ import annotations

from dataclasses import dataclass

from energize.late import torch
from energize.samples.sample import Sample


@dataclass(kw_only=True, slots=True)
class OCRSample(Sample):
    """An image and the text in it, whole or by blocks, lines, words and characters.

    Boxes are float (N, 4), or (N, 5) with a confidence: x, y, width, height in pixels. The texts
    that belong to them are N strings.
    """

    image: torch.Tensor
    text: str
    block_boxes: torch.Tensor | None = None
    block_classes: torch.Tensor | list[str] | None = None
    block_text: list[str] | None = None
    lines_boxes: torch.Tensor | None = None
    lines_text: list[str] | None = None
    words_boxes: torch.Tensor | None = None
    words_text: list[str] | None = None
    chars_boxes: torch.Tensor | None = None
    chars_text: list[str] | None = None


@dataclass(kw_only=True, slots=True)
class VQAOCRSample(Sample):
    """A question about an image of text, its accepted answers, and the text in the image.

    Boxes are as those of `OCRSample`; there is a weight for each answer.
    """

    image: torch.Tensor
    context: str
    text: str
    answers: list[str] | None = None
    answer_weights: torch.Tensor | None = None
    words_boxes: torch.Tensor | None = None
    words_text: list[str] | None = None
