"""Samples of an image and a question about it."""

from __future__ import annotations

from dataclasses import dataclass

from energize.late import torch
from energize.samples.sample import Sample


@dataclass(kw_only=True, slots=True)
class VQASample(Sample):
    """A question and its accepted answers, with a weight for each answer; no answers in a test."""

    image: torch.Tensor
    context: str
    answers: list[str] | None = None
    answer_weights: torch.Tensor | None = None


@dataclass(kw_only=True, slots=True)
class MultiChoiceVQASample(Sample):
    """A question with answers to choose from, of which `correct_choice_idx` is right."""

    image: torch.Tensor
    context: str
    choices: list[str] | None = None
    correct_choice_idx: int = 0
