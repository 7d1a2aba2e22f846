"""A ready task encoder for the classification of images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image

from energize.core.checks import checked_whole
from energize.core.samples import ImageClassificationSample, Sample
from energize.errors import ConfigError, DataError, nearest
from energize.task.decode import SampleDecoder
from energize.task.encoder import TaskEncoder
from energize.task.hooks import Batch


@dataclass(kw_only=True, slots=True)
class ImageClassificationBatch(Batch):
    """A batch of images and classes.

    Args:
        pixel_values: Normalised images, float32 of shape (samples, 3, size, size).
        labels: Classes, int64 of shape (samples,).
    """

    pixel_values: torch.Tensor
    labels: torch.Tensor


@dataclass(kw_only=True, slots=True)
class _Classified(Sample):
    pixel_values: torch.Tensor
    labels: int


class ImageClassificationTaskEncoder(TaskEncoder[Any, Any, Any, Any]):
    """Encode images with a class as normalised tensors of one size.

    For training, a random part of 8 to 100 % of an image, of a ratio from 3:4 to 4:3,
    is scaled to `size`, and half of the images are mirrored. The random values depend
    on the position of a sample in the run, so they are the same with any number of
    workers and after a resume. For validation, the central square is used, without an
    eighth of the shorter side.

    Args:
        size: Width and height of the tensors.
        mean: Mean of each channel, for values from 0 to 1; by default of ImageNet.
        std: Standard deviation of each channel; by default of ImageNet.
        augment: Whether training draws random parts; False uses the central square.
        classes: Names of the classes by number, for labels that are names.

    Raises:
        ConfigError: For a size below 1. Calls raise it for samples of other types and
            unknown names of classes, and `DataError` for a missing label.

    Example:
        >>> ImageClassificationTaskEncoder(size=32, classes=["cat", "dog"]).size
        32
    """

    decoder = SampleDecoder(image_decode="pilrgb", orient=True)

    def __init__(
        self,
        size: int = 224,
        *,
        mean: Sequence[float] = (0.485, 0.456, 0.406),
        std: Sequence[float] = (0.229, 0.224, 0.225),
        augment: bool = True,
        classes: Sequence[str] = (),
    ) -> None:
        checked_whole(size, "ImageClassificationTaskEncoder: size", 1)
        self.classes = list(classes)
        self.size = size
        self.augment = augment
        self.mean, self.std = (
            torch.tensor(values).view(3, 1, 1) for values in (mean, std)
        )

    def encode_sample(  # type: ignore[override]  # a hook may ask for a generator
        self, sample: ImageClassificationSample, rng: np.random.Generator
    ) -> _Classified:
        """Return an image as a tensor, and its class."""
        if not isinstance(sample, ImageClassificationSample):
            raise ConfigError(
                f"a {type(sample).__name__} has no 'label', the number of its class, "
                "or its name. Set its column or part with "
                "sample_type='ImageClassificationSample' and field_map={'image': "
                "..., 'label': ...}"
            )
        label = self._label(sample)
        augmented = self.augment and self.training
        image: Image.Image = sample.image  # type: ignore[assignment]
        box = _random_box(*image.size, rng) if augmented else _central_box(*image.size)
        image = image.resize((self.size, self.size), Image.Resampling.BILINEAR, box=box)
        if augmented and rng.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255
        pixels = (pixels - self.mean) / self.std
        return _Classified.derive_from(sample, pixel_values=pixels, labels=label)

    def _label(self, sample: ImageClassificationSample) -> int:
        """Return the number of the class of a sample."""
        label: Any = sample.label_name if sample.label is None else sample.label
        if label is None:
            raise DataError("the sample has no label")
        if isinstance(label, str):
            if label not in self.classes:
                names = ", ".join(self.classes) or "none"
                raise ConfigError(
                    f"the class {label!r} is not in classes={names}"
                    f"{nearest(label, self.classes) or '.'} Pass the names of all "
                    "classes, by number, to "
                    "ImageClassificationTaskEncoder(classes=[...])"
                )
            label = self.classes.index(label)
        if label != int(label) or not 0 <= label < (len(self.classes) or math.inf):
            raise DataError(f"the label {label!r} is not the number of a class (>= 0)")
        return int(label)

    def batch(self, samples: list[_Classified]) -> ImageClassificationBatch:
        """Return images and classes as tensors."""
        return ImageClassificationBatch.from_samples(samples)


Box = tuple[float, float, float, float]


def _central_box(width: int, height: int) -> Box:
    side = min(width, height) * 0.875
    left = (width - side) / 2
    top = (height - side) / 2
    return left, top, left + side, top + side


def _random_box(width: int, height: int, rng: np.random.Generator) -> Box:
    """Return a box of 8 to 100 % of an image, of a ratio from 3:4 to 4:3."""
    area = rng.uniform(0.08, 1) * width * height
    ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
    wide = min(math.sqrt(area * ratio), width)
    high = min(math.sqrt(area / ratio), height)
    left = rng.uniform(0, 1) * (width - wide)
    top = rng.uniform(0, 1) * (height - high)
    return left, top, left + wide, top + high
