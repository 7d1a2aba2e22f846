"""A small model with two heads: one names the photograph, one writes the caption."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import nn

from energize import Batch
from examples.encoders import (
    END,
    PADDING,
    SIDE,
    START,
    CaptionBatch,
    ImageBatch,
    vocabulary,
)
from examples.photographs import PHOTOGRAPHS

NO_LABEL = -1

_WIDTH = 96


@dataclass(kw_only=True, slots=True)
class MixedBatch(Batch):
    """Both tasks in one batch: label NO_LABEL, or tokens all PADDING, where a sample
    has none.
    """

    image: torch.Tensor
    label: torch.Tensor
    tokens: torch.Tensor


AnyBatch = ImageBatch | CaptionBatch | MixedBatch


@dataclass(frozen=True, slots=True)
class Outcome:
    """For each sample its loss, and the share of its labels or words that were right:
    (n,).
    """

    losses: torch.Tensor
    correct: torch.Tensor


class Model(nn.Module):
    """Convolutions for the image, a linear head for its class, a recurrent one for its
    caption.
    """

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * (SIDE // 8) ** 2, _WIDTH),
            nn.ReLU(),
        )
        tokens = END + 1 + len(vocabulary())
        self.label = nn.Linear(_WIDTH, len(PHOTOGRAPHS))
        self.embedding = nn.Embedding(tokens, _WIDTH)
        self.caption = nn.GRU(_WIDTH, _WIDTH, batch_first=True)
        self.word = nn.Linear(_WIDTH, tokens)

    def forward(self, batch: AnyBatch) -> Outcome:
        """The outcome for any of the batch types."""
        features = self.image(4 * batch.image - 2)
        if isinstance(batch, ImageBatch):
            return self._named(features, batch.label)
        if isinstance(batch, CaptionBatch):
            return self._captioned(features, batch.tokens)
        named = self._named(features, batch.label)
        captioned = self._captioned(features, batch.tokens)
        return Outcome(
            named.losses + captioned.losses, named.correct + captioned.correct
        )

    def _named(self, features: torch.Tensor, label: torch.Tensor) -> Outcome:
        """0 for samples without a label."""
        logits = self.label(features)
        losses = F.cross_entropy(logits, label, ignore_index=NO_LABEL, reduction="none")
        return Outcome(losses, (logits.argmax(1) == label).float())

    def _captioned(self, features: torch.Tensor, tokens: torch.Tensor) -> Outcome:
        """Means over the words of each caption, every word given those before; 0
        without words.
        """
        before = F.pad(tokens[:, :-1], (1, 0), value=START)
        hidden, _ = self.caption(self.embedding(before), features[None])
        logits = self.word(hidden).transpose(1, 2)
        losses = F.cross_entropy(logits, tokens, ignore_index=PADDING, reduction="none")
        is_word = tokens != PADDING
        right = (logits.argmax(1) == tokens) & is_word
        count = is_word.sum(1).clamp(min=1)
        return Outcome(losses.sum(1) / count, right.sum(1) / count)


def new_model(seed: int = 0) -> tuple[Model, torch.optim.Optimizer]:
    """An untrained model, the same for the same seed, and its optimizer."""
    torch.manual_seed(seed)
    model = Model()
    return model, torch.optim.AdamW(model.parameters(), lr=2e-3)


def loaded_model(path: Path) -> Model:
    """The model that `train_blend --save` has saved."""
    model = Model()
    model.load_state_dict(torch.load(path, weights_only=True))
    return model
