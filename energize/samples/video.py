"""Samples of a video and what is asked about it."""

from __future__ import annotations

from dataclasses import dataclass

from energize.av.decoder import AVDecoder
from energize.late import torch
from energize.samples.sample import Sample


@dataclass(kw_only=True, slots=True)
class VidQASample(Sample):
    """A question about a video and its accepted answers, with a weight for each answer.

    The `video` is not decoded yet: its methods give the frames and sounds that are wanted.
    """

    video: AVDecoder
    context: str
    answers: list[str] | None = None
    answer_weights: torch.Tensor | None = None
