"""What a step of a merged transform is, and the matrices it is made of."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import PIL.Image
import torch

from energize.errors import ConfigError, nearest

__all__ = [
    "CenterCrop",
    "CenterCropMapper",
    "CustomTransform",
    "MergeTransform",
    "RandomAffine",
    "RandomAffineMapper",
    "RandomCrop",
    "RandomCropMapper",
    "RandomHorizontalFlip",
    "RandomHorizontalFlipMapper",
    "RandomPerspective",
    "RandomPerspectiveMapper",
    "RandomResizedCrop",
    "RandomResizedCropMapper",
    "RandomRotation",
    "RandomRotationMapper",
    "RandomVerticalFlip",
    "RandomVerticalFlipMapper",
    "Resize",
    "ResizeMapper",
    "TransformMapper",
]


Matrix = npt.NDArray[np.float64]
"""3 x 3: leads a point (x, y, 1) of the image to where it comes to lie. Units are pixels, from the
upper left corner; the middle of the first pixel is (0.5, 0.5)."""
Size = npt.NDArray[np.int64]
"""(height, width)."""
Fill = int | float | tuple[float, ...] | None

T = TypeVar("T")


class TransformMapper(ABC, Generic[T]):
    """One step: changes the matrix and the size of an image, and touches no pixel.

    `transform` is the object that the step is described by.
    """

    source_name: ClassVar[str] = ""
    """The name of the class that describes the step."""

    transform: T

    def __init__(self, transform: T) -> None:
        self.transform = transform

    @abstractmethod
    def apply_transform(self, matrix: Matrix, dst_size: Size) -> tuple[Matrix, Size, Any]:
        """The matrix and the size after this step, and what was drawn for it, for information."""

    def fill(self) -> Fill:
        """What is put where there is no image; None if that never happens, or is all the same."""
        return None

    def interpolation(self) -> str | None:
        """How pixels are made of those of the image; None if all the same to this step."""
        return None

    @staticmethod
    def translate(x: float, y: float) -> Matrix:
        """To the right by x and down by y."""
        return np.array([[1.0, 0.0, x], [0.0, 1.0, y], [0.0, 0.0, 1.0]])

    @staticmethod
    def rotate(angle: float) -> Matrix:
        """Counter-clockwise by `angle` radians around the upper left corner."""
        cos, sin = np.cos(angle), np.sin(angle)
        return np.array([[cos, sin, 0.0], [-sin, cos, 0.0], [0.0, 0.0, 1.0]])

    @staticmethod
    def scale(x: float, y: float) -> Matrix:
        """Wider by the factor x and higher by the factor y."""
        return np.diag([x, y, 1.0])

    @staticmethod
    def shear(x: float, y: float) -> Matrix:
        """Moves points right by x times their height, and down by y times their distance."""
        return np.array([[1.0, x, 0.0], [y, 1.0, 0.0], [0.0, 0.0, 1.0]])

    @staticmethod
    def hflip() -> Matrix:
        """Left to right, around the left edge."""
        return np.diag([-1.0, 1.0, 1.0])

    @staticmethod
    def vflip() -> Matrix:
        """Top to bottom, around the upper edge."""
        return np.diag([1.0, -1.0, 1.0])


# Putting the pixels of an image where a matrix leads them, once.

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


# Steps of one's own.


class CustomTransform(TransformMapper[Any]):
    """Base of steps of one's own: override `apply_transform`, and `fill` if there may be no image.

    >>> import numpy as np
    >>> class Shift(CustomTransform):
    ...     def apply_transform(self, matrix, dst_size):
    ...         return self.translate(5, 5) @ matrix, dst_size, ("Shift", (5, 5))
    >>> Shift().apply_transform(np.eye(3), np.array([10, 20]))[0][:2, 2].tolist()
    [5.0, 5.0]
    """

    def __init__(self, transform: Any = None) -> None:
        super().__init__(transform)


# Steps of merged transforms, with the arguments that torchvision's transforms of these names have.

Numbers = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Resize:
    """To (height, width); or, of one number, the shorter edge to it and the longer in proportion,
    but not beyond `max_size`.
    """

    size: int | tuple[int, ...]
    interpolation: str = "bilinear"
    max_size: int | None = None


@dataclass(frozen=True, slots=True)
class CenterCrop:
    """The middle; black around an image that is smaller."""

    size: int | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RandomCrop:
    """A part anywhere, after `padding` (all, or left and top, or left, top, right, bottom) has been
    added with `fill`; with `pad_if_needed` as much more as an image lacks.
    """

    size: int | tuple[int, ...]
    padding: int | tuple[int, ...] | None = None
    pad_if_needed: bool = False
    fill: float | tuple[float, ...] = 0
    padding_mode: str = "constant"


@dataclass(frozen=True, slots=True)
class RandomResizedCrop:
    """A part of a random share `scale` of the area and aspect `ratio`, resized."""

    size: int | tuple[int, ...]
    scale: Numbers = (0.08, 1.0)
    ratio: Numbers = (3 / 4, 4 / 3)
    interpolation: str = "bilinear"


@dataclass(frozen=True, slots=True)
class RandomHorizontalFlip:
    """Left to right with probability `p`."""

    p: float = 0.5


@dataclass(frozen=True, slots=True)
class RandomVerticalFlip:
    """Top to bottom with probability `p`."""

    p: float = 0.5


@dataclass(frozen=True, slots=True)
class RandomRotation:
    """Counter-clockwise by an angle out of `degrees` (one number: from -degrees to degrees), around
    the middle or `center` (x, y); with `expand` the image grows to hold all of it.
    """

    degrees: float | Numbers
    interpolation: str = "nearest"
    expand: bool = False
    center: Numbers | None = None
    fill: float | tuple[float, ...] = 0


@dataclass(frozen=True, slots=True)
class RandomAffine:
    """Turned clockwise by an angle out of `degrees`, moved by up to the shares `translate` of width
    and height, scaled by a factor out of `scale`, and sheared by angles out of `shear` (one number,
    two for x, or four for x and y), around the middle or `center` (x, y).
    """

    degrees: float | Numbers
    translate: Numbers | None = None
    scale: Numbers | None = None
    shear: float | tuple[float, ...] | None = None
    interpolation: str = "nearest"
    fill: float | tuple[float, ...] = 0
    center: Numbers | None = None


@dataclass(frozen=True, slots=True)
class RandomPerspective:
    """Seen from elsewhere with probability `p`; a corner moves by up to half of `distortion_scale`
    of width and height.
    """

    distortion_scale: float = 0.5
    p: float = 0.5
    interpolation: str = "bilinear"
    fill: float | tuple[float, ...] = 0


# The steps that are known, from what transforms say of themselves.

Applied = tuple[Matrix, Size, Any]


class _Described(TransformMapper[Any]):
    """A step that another object describes by attributes."""

    def fill(self) -> Fill:
        value = getattr(self.transform, "fill", None)
        if isinstance(value, dict):
            raise ConfigError(
                f"{self.transform!r}: fill={value!r} has a value for each type; give one color"
            )
        return tuple(value) if isinstance(value, list) else value

    def interpolation(self) -> str | None:
        return interpolation_name(getattr(self.transform, "interpolation", None))

    def _size(self) -> tuple[int, int]:
        """The (height, width) that it asks for."""
        sizes = _several(self.transform.size)
        return int(sizes[0]), int(sizes[-1])


class ResizeMapper(_Described):
    """`Resize`."""

    source_name = "Resize"

    def apply_transform(self, matrix: Matrix, dst_size: Size) -> Applied:
        height, width = (int(each) for each in dst_size)
        asked = _several(self.transform.size)
        if len(asked) == 1:
            new = self._in_proportion(height, width, int(asked[0]))
        else:
            new = int(asked[0]), int(asked[1])
        if min(new) < 1:
            raise ConfigError(f"{self.transform!r} makes of {height} x {width} nothing: {new}")
        return (
            self.scale(new[1] / width, new[0] / height) @ matrix,
            np.array(new, dtype=np.int64),
            (self.source_name, new),
        )

    def _in_proportion(self, height: int, width: int, short: int) -> tuple[int, int]:
        long = int(short * max(height, width) / min(height, width))
        largest = getattr(self.transform, "max_size", None)
        if largest is not None:
            if largest <= short:
                raise ConfigError(
                    f"{self.transform!r}: max_size={largest} is not above size={short}"
                )
            if long > largest:
                short, long = int(largest * short / long), largest
        return (short, long) if height <= width else (long, short)


class CenterCropMapper(_Described):
    """`CenterCrop`."""

    source_name = "CenterCrop"

    def fill(self) -> Fill:
        return None

    def apply_transform(self, matrix: Matrix, dst_size: Size) -> Applied:
        size = self._size()
        down, right = (
            (new - old) // 2 if new > old else -round((old - new) / 2)
            for new, old in zip(size, (int(each) for each in dst_size), strict=True)
        )
        moved = self.translate(right, down) @ matrix
        return moved, np.array(size, dtype=np.int64), (self.source_name, (down, right, *size))


class RandomCropMapper(_Described):
    """`RandomCrop`."""

    source_name = "RandomCrop"

    def apply_transform(self, matrix: Matrix, dst_size: Size) -> Applied:
        mode = getattr(self.transform, "padding_mode", "constant")
        if mode != "constant":
            raise ConfigError(f"{self.transform!r}: of padding_mode only 'constant' can be merged")
        height, width = self._size()
        newer = self._newer()
        left, top, right, bottom = _padding(getattr(self.transform, "padding", None))
        if newer and isinstance(self.transform.padding, list):  # it keeps left, right, top, bottom
            top, right = right, top
        full_height, full_width = int(dst_size[0]) + top + bottom, int(dst_size[1]) + left + right
        if self.transform.pad_if_needed:
            more_width, more_height = max(0, width - full_width), max(0, height - full_height)
            left, full_width = left + more_width, full_width + 2 * more_width
            top, full_height = top + more_height, full_height + 2 * more_height
        if full_height < height or full_width < width:
            raise ConfigError(
                f"{self.transform!r} is larger than the image, {full_height} x {full_width}; "
                "pad_if_needed=True pads it"
            )
        choice = (full_height, full_width) != (height, width)
        down = aside = 0
        if choice and not (newer and full_height == height):
            down = _below(full_height - height + 1)
        if choice and not (newer and full_width == width):
            aside = _below(full_width - width + 1)
        moved = self.translate(left - aside, top - down) @ matrix
        drawn = (self.source_name, (aside, down, height, width))
        return moved, np.array((height, width), dtype=np.int64), drawn

    def _newer(self) -> bool:
        """Whether it is of torchvision's second version, which draws only where it has a choice."""
        return any(".v2" in kind.__module__ for kind in type(self.transform).__mro__)


class RandomResizedCropMapper(_Described):
    """`RandomResizedCrop`."""

    source_name = "RandomResizedCrop"

    def apply_transform(self, matrix: Matrix, dst_size: Size) -> Applied:
        size = self._size()
        top, left, height, width = self._part(int(dst_size[0]), int(dst_size[1]))
        cut = self.translate(-left, -top) @ matrix
        resized = self.scale(size[1] / width, size[0] / height) @ cut
        drawn = (self.source_name, (top, left, height, width))
        return resized, np.array(size, dtype=np.int64), drawn

    def _part(self, height: int, width: int) -> tuple[int, int, int, int]:
        """(top, left, height, width) of the part that is taken."""
        low, high = torch.log(torch.tensor(self.transform.ratio)).tolist()
        for _ in range(10):
            area = height * width * _uniform(*self.transform.scale)
            ratio = math.exp(_uniform(low, high))
            part_width, part_height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < part_width <= width and 0 < part_height <= height:
                top, left = _below(height - part_height + 1), _below(width - part_width + 1)
                return top, left, part_height, part_width
        narrow, wide = min(self.transform.ratio), max(self.transform.ratio)
        part_height = round(width / narrow) if width / height < narrow else height
        part_width = round(height * wide) if width / height > wide else width
        return (height - part_height) // 2, (width - part_width) // 2, part_height, part_width


class RandomHorizontalFlipMapper(_Described):
    """`RandomHorizontalFlip`."""

    source_name = "RandomHorizontalFlip"

    def apply_transform(self, matrix: Matrix, dst_size: Size) -> Applied:
        flipped = bool(torch.rand(1) < self.transform.p)
        if flipped:
            matrix = self.translate(float(dst_size[1]), 0) @ self.hflip() @ matrix
        return matrix, dst_size, (self.source_name, flipped)


class RandomVerticalFlipMapper(_Described):
    """`RandomVerticalFlip`."""

    source_name = "RandomVerticalFlip"

    def apply_transform(self, matrix: Matrix, dst_size: Size) -> Applied:
        flipped = bool(torch.rand(1) < self.transform.p)
        if flipped:
            matrix = self.translate(0, float(dst_size[0])) @ self.vflip() @ matrix
        return matrix, dst_size, (self.source_name, flipped)


class RandomRotationMapper(_Described):
    """`RandomRotation`."""

    source_name = "RandomRotation"

    def apply_transform(self, matrix: Matrix, dst_size: Size) -> Applied:
        degrees = _uniform(*_symmetric(self.transform.degrees))
        angle = math.radians(degrees)
        height, width = (int(each) for each in dst_size)
        center = getattr(self.transform, "center", None)
        if self.transform.expand and center is not None:
            raise ConfigError(f"{self.transform!r}: with expand=True the center is the middle")
        x, y = (width / 2, height / 2) if center is None else center
        new = self._expanded(height, width, angle) if self.transform.expand else (height, width)
        turned = (
            self.translate(x + (new[1] - width) / 2, y + (new[0] - height) / 2)
            @ self.rotate(angle)
            @ self.translate(-x, -y)
            @ matrix
        )
        return turned, np.array(new, dtype=np.int64), (self.source_name, degrees)

    @staticmethod
    def _expanded(height: int, width: int, angle: float) -> tuple[int, int]:
        """The size that holds all of the turned image, in whole pixels around its middle."""
        sin, cos = abs(math.sin(angle)), abs(math.cos(angle))
        spans = (height, sin * width + cos * height), (width, cos * width + sin * height)
        high, wide = (
            math.ceil(round((old + new) / 2, 9)) - math.floor(round((old - new) / 2, 9))
            for old, new in spans
        )
        return high, wide


class RandomAffineMapper(_Described):
    """`RandomAffine`."""

    source_name = "RandomAffine"

    def apply_transform(self, matrix: Matrix, dst_size: Size) -> Applied:
        height, width = (int(each) for each in dst_size)
        degrees = _uniform(*_symmetric(self.transform.degrees))
        right = down = 0
        if self.transform.translate is not None:
            share_x, share_y = self.transform.translate
            right = round(_uniform(-share_x * width, share_x * width))
            down = round(_uniform(-share_y * height, share_y * height))
        factor = 1.0 if self.transform.scale is None else _uniform(*self.transform.scale)
        shear_x = shear_y = 0.0
        if self.transform.shear is not None:
            shears = _symmetric(self.transform.shear)
            shear_x = _uniform(shears[0], shears[1])
            shear_y = _uniform(shears[2], shears[3]) if len(shears) == 4 else 0.0
        center = getattr(self.transform, "center", None)
        x, y = (width / 2, height / 2) if center is None else center
        changed = (
            self.translate(right + x, down + y)
            @ self.rotate(-math.radians(degrees))
            @ self.shear(0, -math.tan(math.radians(shear_y)))
            @ self.shear(-math.tan(math.radians(shear_x)), 0)
            @ self.scale(factor, factor)
            @ self.translate(-x, -y)
            @ matrix
        )
        drawn = (degrees, (right, down), factor, (shear_x, shear_y))
        return changed, dst_size, (self.source_name, drawn)


class RandomPerspectiveMapper(_Described):
    """`RandomPerspective`."""

    source_name = "RandomPerspective"

    def apply_transform(self, matrix: Matrix, dst_size: Size) -> Applied:
        if torch.rand(1) >= self.transform.p:
            return matrix, dst_size, (self.source_name, None)
        height, width = (int(each) for each in dst_size)
        if min(height, width) < 2:  # a line looks the same from everywhere
            return matrix, dst_size, (self.source_name, None)
        corners = [(0, 0), (width - 1, 0), (width - 1, height - 1), (0, height - 1)]
        across = int(self.transform.distortion_scale * (width // 2))
        down = int(self.transform.distortion_scale * (height // 2))
        moved = []
        for x, y in corners:
            new_x = _between(width - across - 1, width) if x else _between(0, across + 1)
            new_y = _between(height - down - 1, height) if y else _between(0, down + 1)
            moved.append((new_x, new_y))
        seen = homography(corners, moved) @ matrix
        return seen, dst_size, (self.source_name, (corners, moved))


def homography(start: Sequence[tuple[float, float]], end: Sequence[tuple[float, float]]) -> Matrix:
    """The matrix that leads four points to four others.

    >>> square = [(0, 0), (1, 0), (1, 1), (0, 1)]
    >>> bool(np.allclose(homography(square, square), np.eye(3)))
    True
    """
    rows, values = [], []
    for (x, y), (u, v) in zip(start, end, strict=True):
        rows += [[x, y, 1, 0, 0, 0, -u * x, -u * y], [0, 0, 0, x, y, 1, -v * x, -v * y]]
        values += [u, v]
    solved, *_ = np.linalg.lstsq(np.array(rows, dtype=np.float64), np.array(values), rcond=None)
    return np.append(solved, 1.0).reshape(3, 3)


MAPPERS = {
    mapper.source_name: mapper
    for mapper in (
        ResizeMapper,
        CenterCropMapper,
        RandomCropMapper,
        RandomResizedCropMapper,
        RandomHorizontalFlipMapper,
        RandomVerticalFlipMapper,
        RandomRotationMapper,
        RandomAffineMapper,
        RandomPerspectiveMapper,
    )
}
"""By the names of the classes that describe them."""


def interpolation_name(mode: Any) -> str | None:
    """nearest, bilinear or bicubic, from an enum of these, Pillow's numbers or None."""
    if mode is None:
        return None
    value = getattr(mode, "value", mode)
    name = _INTERPOLATIONS.get(value)
    if name is None:
        raise ConfigError(
            f"interpolation={mode!r} cannot be merged; known are 'nearest', 'bilinear', 'bicubic'"
        )
    return name


_INTERPOLATIONS = {
    **dict.fromkeys(("nearest", "nearest-exact", 0), "nearest"),
    **dict.fromkeys(("bilinear", 2), "bilinear"),
    **dict.fromkeys(("bicubic", 3), "bicubic"),
}


def _several(value: Any) -> Sequence[Any]:
    return value if isinstance(value, Sequence) else (value,)


def _symmetric(value: Any) -> Sequence[float]:
    """(from, to) of a range; a number stands for that from its negative to it."""
    return value if isinstance(value, Sequence) else (-value, value)


def _padding(value: Any) -> tuple[int, int, int, int]:
    """(left, top, right, bottom)."""
    if value is None:
        return 0, 0, 0, 0
    sides = [int(each) for each in _several(value)]
    if len(sides) not in (1, 2, 4):
        raise ConfigError(f"padding={value!r} is one number, two or four")
    left, top, right, bottom = (sides * 4)[:4]
    return left, top, right, bottom


def _uniform(low: float, high: float) -> float:
    return torch.empty(1).uniform_(float(low), float(high)).item()


def _between(low: int, high: int) -> int:
    """A whole number from `low` on, below `high`."""
    return int(torch.randint(low, high, size=(1,)).item())


def _below(high: int) -> int:
    return _between(0, high)


# Several changes of an image's geometry as one.


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
