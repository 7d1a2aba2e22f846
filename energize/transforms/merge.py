"""Several changes of an image's geometry as one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import PIL.Image
import torch

from energize.errors import ConfigError, nearest
from energize.transforms.base import Fill, Matrix, Size, TransformMapper
from energize.transforms.mappers import MAPPERS
from energize.transforms.warp import warp_image, warp_tensor


class MergeTransform(torch.nn.Module):
    """Resizes, crops, flips, turns and distorts an image in one step, whatever the list is long.

    Each transform of the list changes a matrix; the pixels are then put in place once. So an image
    is blurred once, and what a step would cut off and a later one brings back into view is there.
    Where images become smaller, and interpolation is not "nearest", pixels are averaged first
    (antialiasing). Of "interpolation" and of "fill" all transforms that have one must agree.

    Transforms are those of `energize.transforms` (`Resize`, `RandomCrop`, `RandomRotation`, ...),
    `CustomTransform`s, and torchvision's of the same names, both versions, and `Compose`s of them:
    they are known by the names and the attributes of their classes, and torchvision is not needed.
    Random ones draw from torch's global generator.

    Images are PIL images or tensors (..., channels, height, width) of any type, and stay what they
    are. Raises `ConfigError` for other transforms, for those that do not agree, and for sizes that
    are not there.

    >>> from energize.transforms import CenterCrop, Resize
    >>> transform = MergeTransform([Resize((20, 40)), CenterCrop(10)])
    >>> transform(torch.zeros(3, 100, 100)).shape
    torch.Size([3, 10, 10])
    """

    def __init__(self, transforms: Sequence[Any]) -> None:
        super().__init__()
        self.transforms: list[TransformMapper[Any]] = [_mapper(each) for each in _flat(transforms)]
        self.interpolation: str = (
            _agreed("interpolation", [each.interpolation() for each in self.transforms])
            or "bilinear"
        )
        self.fill_value: Fill = _agreed("fill", [_plain(each.fill()) for each in self.transforms])

    def merged(self, height: int, width: int) -> tuple[Matrix, tuple[int, int], list[Any]]:
        """For an image of this size: the matrix that leads its points (x, y, 1) to where they come
        to lie, for boxes and keypoints too, the new (height, width), and what each step drew.
        """
        matrix: Matrix = np.eye(3)
        size: Size = np.array((height, width), dtype=np.int64)
        drawn = []
        for transform in self.transforms:
            matrix, size, values = transform.apply_transform(matrix, np.array(size))
            drawn.append(values)
        new = int(size[0]), int(size[1])
        if min(new) < 1:
            raise ConfigError(f"the merged transform makes of {height} x {width} an image of {new}")
        return np.asarray(matrix, dtype=np.float64), new, drawn

    def forward(self, image: Any) -> Any:
        """The image after all transforms."""
        if isinstance(image, PIL.Image.Image):
            matrix, size, _ = self.merged(image.height, image.width)
            return warp_image(image, matrix, size, self.interpolation, self.fill_value)
        if isinstance(image, torch.Tensor) and image.ndim >= 2:
            matrix, size, _ = self.merged(image.shape[-2], image.shape[-1])
            return warp_tensor(image, matrix, size, self.interpolation, self.fill_value)
        raise ConfigError(
            "MergeTransform takes PIL images and tensors (..., channels, height, width), got "
            + (f"a tensor {tuple(image.shape)}" if isinstance(image, torch.Tensor) else repr(image))
        )


def _flat(transforms: Sequence[Any]) -> Iterator[Any]:
    for each in transforms:
        if type(each).__name__ == "Compose":
            yield from _flat(each.transforms)
        else:
            yield each


def _mapper(transform: Any) -> TransformMapper[Any]:
    """The step that an object is, or describes by its class or one that it extends."""
    if isinstance(transform, TransformMapper):
        return transform
    for kind in type(transform).__mro__:
        mapper = MAPPERS.get(kind.__name__)
        if mapper is not None:
            return mapper(transform)
    name = type(transform).__name__
    raise ConfigError(
        f"{name} cannot be merged{nearest(name, list(MAPPERS))}; known are {', '.join(MAPPERS)}. "
        "Apply it before or after MergeTransform, or extend CustomTransform"
    )


def _agreed(name: str, values: Sequence[Any]) -> Any:
    """The one value that there is among those that are not None."""
    found = [value for value in dict.fromkeys(values) if value is not None]
    if len(found) > 1:
        raise ConfigError(
            f"transforms that are merged need one {name}, got {' and '.join(map(repr, found))}"
        )
    return found[0] if found else None


def _plain(fill: Fill) -> Fill:
    """A color of equal values as one number, so that 0 and (0, 0, 0) agree."""
    if isinstance(fill, tuple) and len(set(fill)) == 1:
        return fill[0]
    return fill
