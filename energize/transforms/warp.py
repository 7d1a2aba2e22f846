"""Putting the pixels of an image where a matrix leads them, once."""

from __future__ import annotations

from typing import Any

import numpy as np
import PIL.Image

from energize.errors import ConfigError
from energize.late import torch
from energize.transforms.base import Fill, Matrix

_TINY = 1e-9  # pixels
_PIL = {
    "nearest": PIL.Image.Resampling.NEAREST,
    "bilinear": PIL.Image.Resampling.BILINEAR,
    "bicubic": PIL.Image.Resampling.BICUBIC,
}


def warp_image(
    image: PIL.Image.Image, matrix: Matrix, size: tuple[int, int], interpolation: str, fill: Fill
) -> PIL.Image.Image:
    """A PIL image of `size` (height, width) with the pixels of `image` led there by `matrix`."""
    if interpolation != "nearest":
        width, height = _smaller(matrix, image.width, image.height)
        if (width, height) != image.size:
            matrix = matrix @ _scaling(image.width / width, image.height / height)
            image = image.resize((width, height), _PIL[interpolation])
    back = inverse(matrix)
    affine = np.allclose(back[2, :2], 0, atol=1e-12)
    kind = PIL.Image.Transform.AFFINE if affine else PIL.Image.Transform.PERSPECTIVE
    return image.transform(
        size[::-1],
        kind,
        tuple(back.flatten()[: 6 if affine else 8].tolist()),
        _PIL[interpolation],
        fillcolor=_color(fill, image),
    )


def warp_tensor(
    image: torch.Tensor, matrix: Matrix, size: tuple[int, int], interpolation: str, fill: Fill
) -> torch.Tensor:
    """As `warp_image`, of any type, for (..., channels, height, width) or (height, width)."""
    height, width = image.shape[-2:]
    flat = image.reshape(-1, image.shape[-3] if image.ndim > 2 else 1, height, width)
    floating = flat if flat.is_floating_point() else flat.to(torch.float32)
    if interpolation != "nearest":
        new_width, new_height = _smaller(matrix, width, height)
        if (new_width, new_height) != (width, height):
            matrix = matrix @ _scaling(width / new_width, height / new_height)
            floating = torch.nn.functional.interpolate(
                floating, (new_height, new_width), mode=interpolation, antialias=True
            )
    x, y = _sources(inverse(matrix), size)
    sampled = _sampled(floating, x, y, interpolation)
    high, wide = floating.shape[-2:]
    outside = torch.from_numpy((x < 0) | (y < 0) | (x >= wide) | (y >= high)).to(image.device)
    filled = torch.where(outside, _filling(fill, sampled), sampled)
    if not image.is_floating_point():
        limits = torch.iinfo(image.dtype) if image.dtype != torch.bool else None
        low, top = (0, 1) if limits is None else (limits.min, limits.max)
        filled = filled.round().clamp(low, top)
    return filled.to(image.dtype).reshape(*image.shape[:-2], *size)


def inverse(matrix: Matrix) -> Matrix:
    """The matrix back, scaled so that its last entry is 1; `ConfigError` where there is none."""
    try:
        back = np.linalg.inv(matrix)
    except np.linalg.LinAlgError as error:
        raise ConfigError(f"the merged transform leaves nothing of the image: {matrix}") from error
    back = back / back[2, 2]
    # What rounding has made of whole numbers would blur, or take the pixel before.
    whole = np.round(back)
    exact: Matrix = np.where(np.abs(back - whole) < _TINY, whole, back)
    return exact


def _smaller(matrix: Matrix, width: int, height: int) -> tuple[int, int]:
    """The size to shrink an image to first, so that no pixel of it is passed over.

    Sampling alone takes the pixels next to a point, and so leaves out others where many become one.
    """
    middle = matrix @ np.array([width / 2, height / 2, 1.0])
    moves = (matrix[:2, :2] - np.outer(middle[:2] / middle[2], matrix[2, :2])) / middle[2]
    across, down = np.linalg.norm(moves, axis=0)
    return (
        max(1, round(width * min(1.0, across))),
        max(1, round(height * min(1.0, down))),
    )


def _scaling(x: float, y: float) -> Matrix:
    return np.diag([x, y, 1.0])


def _sources(back: Matrix, size: tuple[int, int]) -> tuple[Any, Any]:
    """For the middle of each pixel, where in the image it comes from: x and y, (height, width)."""
    ys, xs = np.mgrid[0 : size[0], 0 : size[1]] + 0.5
    x, y, depth = np.tensordot(back, np.stack([xs, ys, np.ones_like(xs)]), axes=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        x, y = x / depth, y / depth
    # What is behind the eye has no place.
    behind = depth <= 0
    return np.where(behind, -1.0, x), np.where(behind, -1.0, y)


def _sampled(images: torch.Tensor, x: Any, y: Any, interpolation: str) -> torch.Tensor:
    height, width = images.shape[-2:]
    if interpolation == "nearest":
        column = torch.from_numpy(np.clip(np.floor(x + _TINY), 0, width - 1).astype(np.int64))
        row = torch.from_numpy(np.clip(np.floor(y + _TINY), 0, height - 1).astype(np.int64))
        return images[..., row, column]
    grid = np.stack([2 * x / width - 1, 2 * y / height - 1], axis=-1)
    places = torch.from_numpy(grid).to(images).expand(len(images), -1, -1, -1)
    return torch.nn.functional.grid_sample(
        images, places, mode=interpolation, padding_mode="border", align_corners=False
    )


def _color(fill: Fill, image: PIL.Image.Image) -> Any:
    bands = len(image.getbands())
    if fill is None:
        return None
    values = _checked(fill, bands) if isinstance(fill, tuple) else [fill] * bands
    colors = tuple(value if image.mode == "F" else int(value) for value in values)
    return colors[0] if bands == 1 else colors


def _filling(fill: Fill, images: torch.Tensor) -> torch.Tensor:
    if not isinstance(fill, tuple):
        return torch.tensor(float(fill or 0)).to(images)
    values = [float(value) for value in _checked(fill, images.shape[-3])]
    return torch.tensor(values).to(images)[:, None, None]


def _checked(fill: tuple[float, ...], channels: int) -> tuple[float, ...]:
    if len(fill) not in (1, channels):
        raise ConfigError(f"fill={fill!r} has {len(fill)} values, the image {channels} channels")
    return fill * channels if len(fill) == 1 else fill
