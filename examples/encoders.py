"""Two tasks: what their batches are, and how samples become them.

How much samples count in the loss is not for encoders to say here: the metadataset
does, and batches have it as `sample_weights`.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from energize import (
    Batch,
    CaptioningSample,
    DataError,
    DefaultTaskEncoder,
    ImageClassificationSample,
    Sample,
)
from examples.photographs import COLUMNS, PHOTOGRAPHS, RECIPES, ROWS

SIDE = 48
"""Pixels a side of the images that the model sees."""

PADDING, START, END = range(3)
"""Tokens that are no words."""


def words(text: str) -> list[str]:
    """The words of a caption."""
    return re.findall(r"[a-z]+", text.lower())


def vocabulary() -> dict[str, int]:
    """The token of each word that occurs in captions."""
    texts = [*PHOTOGRAPHS, *ROWS, *COLUMNS]
    texts += [
        re.sub(r"{\w+}", "", recipe.caption) for recipe in RECIPES if recipe.caption
    ]
    known = sorted({word for text in texts for word in words(text)})
    return {word: token for token, word in enumerate(known, END + 1)}


@dataclass(kw_only=True, slots=True)
class EncodedImage(Sample):
    """An image (3, SIDE, SIDE) with its class, int64."""

    image: torch.Tensor
    label: torch.Tensor


@dataclass(kw_only=True, slots=True)
class ImageBatch(Batch):
    """Images (n, 3, SIDE, SIDE), float32 in 0..1; labels (n,)."""

    image: torch.Tensor
    label: torch.Tensor


@dataclass(kw_only=True, slots=True)
class EncodedCaption(Sample):
    """An image (3, SIDE, SIDE) with its caption as int64 tokens."""

    image: torch.Tensor
    tokens: torch.Tensor


@dataclass(kw_only=True, slots=True)
class CaptionBatch(Batch):
    """Images (n, 3, SIDE, SIDE); tokens (n, longest), padded, int64."""

    image: torch.Tensor
    tokens: torch.Tensor


class ImageTask(
    DefaultTaskEncoder[ImageClassificationSample, EncodedImage, ImageBatch, ImageBatch]
):
    """Which photograph is it? To train on, images are cropped and flipped at random."""

    def __init__(self) -> None:
        super().__init__(batch_type=ImageBatch)

    def encode_sample(self, sample: ImageClassificationSample) -> EncodedImage:
        """An image of SIDE pixels with its class."""
        if sample.label is None:
            raise DataError("the sample has no label")
        image = random_part(sample.image) if self.training else sample.image
        if self.training and random.random() < 0.5:
            image = image.flip(-1)
        return EncodedImage.derive_from(
            sample,
            image=resized(image),
            label=torch.tensor(sample.label),
        )


class CaptioningTask(
    DefaultTaskEncoder[CaptioningSample, EncodedCaption, CaptionBatch, CaptionBatch]
):
    """What is seen, and where? Captions say left and right, so nothing is flipped
    here.
    """

    def __init__(self) -> None:
        super().__init__(batch_type=CaptionBatch)
        self.vocabulary = vocabulary()

    def encode_sample(self, sample: CaptioningSample) -> EncodedCaption:
        """An image of SIDE pixels with its caption as tokens."""
        found = words(sample.caption)
        unknown = [word for word in found if word not in self.vocabulary]
        if unknown:
            raise DataError(
                f"caption {sample.caption!r} has unknown words: {', '.join(unknown)}"
            )
        return EncodedCaption.derive_from(
            sample,
            image=resized(random_part(sample.image) if self.training else sample.image),
            tokens=torch.tensor([*(self.vocabulary[word] for word in found), END]),
        )


def random_part(image: torch.Tensor) -> torch.Tensor:
    """A square of the image, at least 0.8 of its height and width.

    `random` is seeded for each sample, so the part is the same on any number of workers
    and after a resume.
    """
    height, width = image.shape[-2:]
    side = int(min(height, width) * random.uniform(0.8, 1.0))
    top = random.randint(0, height - side)
    left = random.randint(0, width - side)
    return image[:, top : top + side, left : left + side]


def resized(image: torch.Tensor) -> torch.Tensor:
    """The image with SIDE pixels a side."""
    return F.interpolate(
        image[None], (SIDE, SIDE), mode="bilinear", align_corners=False
    )[0]
