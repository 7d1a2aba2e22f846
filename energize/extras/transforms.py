"""Geometric transforms of images, merged into one warp."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import namedtuple
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import PIL.Image
import torch

from energize.errors import ConfigError, nearest

Matrix = npt.NDArray[np.float64]
"""3 x 3: maps a point (x, y, 1) of the image to where it comes to lie. Units are
pixels, from the upper left corner; the middle of the first pixel is (0.5, 0.5)."""
Size = npt.NDArray[np.int64]
"""(height, width)."""
Fill = int | float | tuple[float, ...] | None
Numbers = tuple[float, float]
Step = tuple[Matrix, tuple[int, int], Any]
"""The matrix of one step, the (height, width) after it, and what was drawn for it."""
T = TypeVar("T")

_INTERPOLATIONS = ("nearest", "bilinear", "bicubic")
_ALIASES = {"nearest-exact": "nearest", 0: "nearest", 2: "bilinear", 3: "bicubic"}
_TINY = 1e-9  # pixels


class MergeTransform(torch.nn.Module):
    """Resizes, crops, flips, rotates and distorts an image in one step, however long
    the list is.

    Each transform of the list changes a matrix; the pixels are then put in place once.
    So an image is blurred once, and what a step would cut off and a later one brings
    back into view is there. If images become smaller, and interpolation is not
    "nearest", pixels are averaged first (antialiasing). All transforms that have an
    interpolation, or a fill, must agree on it.

    Transforms are those of this module (`Resize`, `RandomCrop`, `RandomRotation`, ...),
    `CustomTransform`s, and torchvision's of the same names, both versions, and
    `Compose`s of them: they are known by the names and attributes of their classes, and
    torchvision is not needed. Random ones draw from torch's global generator.

    Images are PIL images or tensors (..., channels, height, width) of any type, and
    stay what they are. Raise `ConfigError` for other transforms, for those that do not
    agree, and for sizes that do not fit.

    >>> transform = MergeTransform([Resize((20, 40)), CenterCrop(10)])
    >>> transform(torch.zeros(3, 100, 100)).shape
    torch.Size([3, 10, 10])
    """

    def __init__(self, transforms: Sequence[Any]) -> None:
        super().__init__()
        self.transforms: list[TransformMapper[Any]] = [
            _mapper(transform) for transform in _flat(transforms)
        ]
        interpolations = [transform.interpolation() for transform in self.transforms]
        self.interpolation: str = _agreed("interpolation", interpolations) or "bilinear"
        self.fill_value: Fill = _agreed(
            "fill", [_plain(transform.fill()) for transform in self.transforms]
        )

    def merged(
        self, height: int, width: int
    ) -> tuple[Matrix, tuple[int, int], list[Any]]:
        """Return the matrix for an image of this size, the new (height, width), and
        what was drawn.

        The matrix maps points (x, y, 1), of boxes and keypoints too, to where they come
        to lie.
        """
        matrix: Matrix = np.eye(3)
        size: Size = np.array((height, width), dtype=np.int64)
        drawn = []
        for transform in self.transforms:
            matrix, size, values = transform.apply_transform(matrix, np.array(size))
            drawn.append(values)
        new = int(size[0]), int(size[1])
        if min(new) < 1:
            raise ConfigError(
                f"the merged transform turns an image of {height} x {width} into one "
                f"of {new}"
            )
        return np.asarray(matrix, dtype=np.float64), new, drawn

    def forward(self, image: Any) -> Any:
        """Return the image after all transforms."""
        return self.with_matrix(image)[0]

    def with_matrix(self, image: Any) -> tuple[Any, Matrix]:
        """Return the image after all transforms, and the matrix that moved its points.

        Args:
            image: A PIL image or tensor.
        """
        if isinstance(image, PIL.Image.Image):
            matrix, size, _ = self.merged(image.height, image.width)
            warped = _warp_image(
                image, matrix, size, self.interpolation, self.fill_value
            )
            return warped, matrix
        if isinstance(image, torch.Tensor) and image.ndim >= 2:
            matrix, size, _ = self.merged(image.shape[-2], image.shape[-1])
            return _warp_tensor(
                image, matrix, size, self.interpolation, self.fill_value
            ), matrix
        raise ConfigError(
            (
                "MergeTransform takes PIL images and tensors (..., channels, height, "
                "width), got "
            )
            + (
                f"a tensor {tuple(image.shape)}"
                if isinstance(image, torch.Tensor)
                else repr(image)
            )
        )


def _flat(transforms: Sequence[Any]) -> Iterator[Any]:
    for transform in transforms:
        yield from (
            _flat(transform.transforms)
            if type(transform).__name__ == "Compose"
            else [transform]
        )


def _mapper(transform: Any) -> TransformMapper[Any]:
    """Return the step that an object is, or describes by its class or one that it
    extends.
    """
    if isinstance(transform, TransformMapper):
        return transform
    for kind in type(transform).__mro__:
        if kind.__name__ in _MAPPERS:
            return _MAPPERS[kind.__name__](transform)
    name = type(transform).__name__
    raise ConfigError(
        f"{name} cannot be merged (supported: "
        f"{', '.join(_MAPPERS)}){nearest(name, list(_MAPPERS)) or '.'} Apply it "
        "before or after MergeTransform, or extend CustomTransform"
    )


def _agreed(name: str, values: Sequence[Any]) -> Any:
    """Return the one value among those that are not None."""
    distinct = [value for value in dict.fromkeys(values) if value is not None]
    if len(distinct) > 1:
        raise ConfigError(
            f"merged transforms must have the same {name}, got "
            f"{' and '.join(map(repr, distinct))}"
        )
    return distinct[0] if distinct else None


def _plain(fill: Fill) -> Fill:
    """Return a color of equal values as one number, so that 0 and (0, 0, 0) agree."""
    return fill[0] if isinstance(fill, tuple) and len(set(fill)) == 1 else fill


# The warp.


def _warp_image(
    image: PIL.Image.Image,
    matrix: Matrix,
    size: tuple[int, int],
    interpolation: str,
    fill: Fill,
) -> PIL.Image.Image:
    """Return a PIL image of `size` (height, width) with the pixels of `image` moved by
    `matrix`.
    """
    sampling = PIL.Image.Resampling[interpolation.upper()]
    smaller, matrix = _shrunk(matrix, image.width, image.height, interpolation)
    if smaller != image.size:
        image = image.resize(smaller, sampling)
    back = _inverse(matrix)
    affine = np.allclose(back[2, :2], 0, atol=1e-12)
    kind = PIL.Image.Transform.AFFINE if affine else PIL.Image.Transform.PERSPECTIVE
    data = tuple(back.flatten()[: 6 if affine else 8].tolist())
    color: Any = fill
    if fill is not None:
        bands = len(image.getbands())
        values = [
            value if image.mode == "F" else int(value) for value in _color(fill, bands)
        ]
        color = values[0] if bands == 1 else tuple(values)
    return image.transform(size[::-1], kind, data, sampling, fillcolor=color)


def _warp_tensor(
    image: torch.Tensor,
    matrix: Matrix,
    size: tuple[int, int],
    interpolation: str,
    fill: Fill,
) -> torch.Tensor:
    """Return the same of (..., channels, height, width) or (height, width), of any
    type.
    """
    height, width = image.shape[-2:]
    pixels = image.reshape(-1, image.shape[-3] if image.ndim > 2 else 1, height, width)
    if not pixels.is_floating_point():
        pixels = pixels.to(torch.float32)
    smaller, matrix = _shrunk(matrix, width, height, interpolation)
    if smaller != (width, height):
        pixels = torch.nn.functional.interpolate(
            pixels, smaller[::-1], mode=interpolation, antialias=True
        )
    height, width = pixels.shape[-2:]
    # For the middle of each new pixel, where in the image it comes from.
    ys, xs = np.mgrid[0 : size[0], 0 : size[1]] + 0.5
    x, y, depth = np.tensordot(
        _inverse(matrix), np.stack([xs, ys, np.ones_like(xs)]), axes=1
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        x, y = (
            np.where(depth <= 0, -1.0, axis / depth) for axis in (x, y)
        )  # behind the eye
    if interpolation == "nearest":
        column, row = (
            torch.from_numpy(
                np.clip(np.floor(at + _TINY), 0, most - 1).astype(np.int64)
            )
            for at, most in ((x, width), (y, height))
        )
        sampled = pixels[..., row, column]
    else:
        grid = torch.from_numpy(
            np.stack([2 * x / width - 1, 2 * y / height - 1], axis=-1)
        )
        places = grid.to(pixels).expand(len(pixels), -1, -1, -1)
        sampled = torch.nn.functional.grid_sample(
            pixels,
            places,
            mode=interpolation,
            padding_mode="border",
            align_corners=False,
        )
    outside = torch.from_numpy((x < 0) | (y < 0) | (x >= width) | (y >= height)).to(
        image.device
    )
    color = torch.tensor(_color(fill or 0, sampled.shape[-3])).to(sampled)[
        :, None, None
    ]
    filled = torch.where(outside, color, sampled)
    pixels = _as_dtype(filled, image.dtype)
    return pixels.reshape(*image.shape[:-2], *size)


def _as_dtype(pixels: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Convert pixels; integers are rounded and clamped to the range of the dtype."""
    if not dtype.is_floating_point:
        limits = torch.iinfo(torch.uint8 if dtype == torch.bool else dtype)
        top = 1 if dtype == torch.bool else limits.max
        pixels = pixels.round().clamp(limits.min, top)
    return pixels.to(dtype)


def _inverse(matrix: Matrix) -> Matrix:
    """Return the matrix back, scaled so that its last entry is 1."""
    try:
        back = np.linalg.inv(matrix)
    except np.linalg.LinAlgError as error:
        raise ConfigError(
            f"the merged transform makes the image empty: {matrix}"
        ) from error
    back = back / back[2, 2]
    # What rounding has made of whole numbers would blur, or take the pixel before.
    whole = np.round(back)
    exact: Matrix = np.where(np.abs(back - whole) < _TINY, whole, back)
    return exact


def _shrunk(
    matrix: Matrix, width: int, height: int, interpolation: str
) -> tuple[tuple[int, int], Matrix]:
    """Return the (width, height) to shrink an image to first, and the matrix from
    there.

    Sampling alone takes the pixels next to a point, and so leaves out others if many
    become one.
    """
    if interpolation == "nearest":
        return (width, height), matrix
    middle = matrix @ np.array([width / 2, height / 2, 1.0])
    moves = (matrix[:2, :2] - np.outer(middle[:2] / middle[2], matrix[2, :2])) / middle[
        2
    ]
    across, down = np.minimum(1.0, np.linalg.norm(moves, axis=0))
    smaller = max(1, round(width * across)), max(1, round(height * down))
    return smaller, matrix @ np.diag([width / smaller[0], height / smaller[1], 1.0])


def _color(fill: float | tuple[float, ...], channels: int) -> list[float]:
    values = [float(value) for value in (fill if isinstance(fill, tuple) else (fill,))]
    if len(values) not in (1, channels):
        raise ConfigError(
            f"fill={fill!r} has {len(values)} values, the image has {channels} channels"
        )
    return values * channels if len(values) == 1 else values


# Transforms, with the arguments and attributes that torchvision's of these names have.

# To (height, width); or, of one number, the shorter edge to it and the longer in
# proportion, but not beyond `max_size`.
Resize = namedtuple(
    "Resize", "size interpolation max_size", defaults=("bilinear", None)
)

# The middle; black around an image that is smaller.
CenterCrop = namedtuple("CenterCrop", "size")

# A part anywhere, after `padding` (all, or left and top, or left, top, right, bottom)
# has been added with `fill`; with `pad_if_needed` as much more as an image lacks.
RandomCrop = namedtuple(
    "RandomCrop",
    "size padding pad_if_needed fill padding_mode",
    defaults=(None, False, 0, "constant"),
)

# A part of a random share `scale` of the area and aspect `ratio`, resized.
RandomResizedCrop = namedtuple(
    "RandomResizedCrop",
    "size scale ratio interpolation",
    defaults=((0.08, 1.0), (3 / 4, 4 / 3), "bilinear"),
)

# Left to right, or top to bottom, with probability `p`.
RandomHorizontalFlip = namedtuple("RandomHorizontalFlip", "p", defaults=(0.5,))
RandomVerticalFlip = namedtuple("RandomVerticalFlip", "p", defaults=(0.5,))

# Counter-clockwise by an angle out of `degrees` (one number: from -degrees to degrees),
# around the middle or `center` (x, y); with `expand` the image grows to hold all of it.
RandomRotation = namedtuple(
    "RandomRotation",
    "degrees interpolation expand center fill",
    defaults=("nearest", False, None, 0),
)

# Seen from elsewhere with probability `p`; a corner moves by up to half of
# `distortion_scale` of width and height.
RandomPerspective = namedtuple(
    "RandomPerspective",
    "distortion_scale p interpolation fill",
    defaults=(0.5, 0.5, "bilinear", 0),
)


# Steps: what transforms do to the matrix.


class TransformMapper(ABC, Generic[T]):
    """One step: changes the matrix and the size of an image, and touches no pixel.

    `transform` is the object that describes the step.
    """

    source_name: ClassVar[str] = ""
    """The name of the class that describes the step."""

    transform: T

    def __init__(self, transform: T) -> None:
        self.transform = transform

    @abstractmethod
    def apply_transform(
        self, matrix: Matrix, dst_size: Size
    ) -> tuple[Matrix, Size, Any]:
        """Return the matrix and the size after this step, and what was drawn, for
        information.
        """

    def fill(self) -> Fill:
        """Return what is put where there is no image; None if it makes no
        difference.
        """
        return None

    def interpolation(self) -> str | None:
        """Return how pixels are sampled; None if it makes no difference."""
        return None

    @staticmethod
    def translate(x: float, y: float) -> Matrix:
        """To the right by x and down by y."""
        return np.array([[1.0, 0.0, x], [0.0, 1.0, y], [0.0, 0.0, 1.0]])

    @staticmethod
    def rotate(angle: float) -> Matrix:
        """Counter-clockwise by `angle` radians around the upper left corner."""
        cos = np.cos(angle)
        sin = np.sin(angle)
        return np.array([[cos, sin, 0.0], [-sin, cos, 0.0], [0.0, 0.0, 1.0]])

    @staticmethod
    def scale(x: float, y: float) -> Matrix:
        """Wider by the factor x and higher by the factor y."""
        return np.diag([x, y, 1.0])

    @staticmethod
    def shear(x: float, y: float) -> Matrix:
        """Moves points right by x times their height, and down by y times their
        distance.
        """
        return np.array([[1.0, x, 0.0], [y, 1.0, 0.0], [0.0, 0.0, 1.0]])

    @staticmethod
    def hflip() -> Matrix:
        """Left to right, around the left edge."""
        return np.diag([-1.0, 1.0, 1.0])

    @staticmethod
    def vflip() -> Matrix:
        """Top to bottom, around the upper edge."""
        return np.diag([1.0, -1.0, 1.0])


class CustomTransform(TransformMapper[Any]):
    """Base of steps of one's own: override `apply_transform`, and `fill` if there may
    be no image.

    >>> class Shift(CustomTransform):
    ...     def apply_transform(self, matrix, dst_size):
    ...         return self.translate(5, 5) @ matrix, dst_size, ("Shift", (5, 5))
    >>> Shift().apply_transform(np.eye(3), np.array([10, 20]))[0][:2, 2].tolist()
    [5.0, 5.0]
    """

    def __init__(self, transform: Any = None) -> None:
        super().__init__(transform)


_MAPPERS: dict[str, type[_Described]] = {}
"""By the names of the classes that describe them."""


class _Described(TransformMapper[Any]):
    """A step that the attributes of an object describe, of a class named as this
    one.
    """

    def __init_subclass__(cls) -> None:
        cls.source_name = cls.__name__.removesuffix("Mapper")
        _MAPPERS[cls.source_name] = cls

    @abstractmethod
    def _step(self, height: int, width: int) -> Step:
        """Return the step over an image of this size."""

    def apply_transform(
        self, matrix: Matrix, dst_size: Size
    ) -> tuple[Matrix, Size, Any]:
        step, size, drawn = self._step(int(dst_size[0]), int(dst_size[1]))
        return step @ matrix, np.array(size, dtype=np.int64), (self.source_name, drawn)

    def fill(self) -> Fill:
        value = getattr(self.transform, "fill", None)
        if isinstance(value, dict):
            raise ConfigError(
                f"{self.transform!r}: fill={value!r} has a value for each type. Pass "
                "one color"
            )
        return tuple(value) if isinstance(value, list) else value

    def interpolation(self) -> str | None:
        mode = getattr(self.transform, "interpolation", None)
        value = getattr(mode, "value", mode)
        name = _ALIASES.get(value, value)
        if name not in (None, *_INTERPOLATIONS):
            names = ", ".join(_INTERPOLATIONS)
            raise ConfigError(
                f"interpolation={mode!r} cannot be merged. Use one of {names}"
            )
        return name

    def _size(self) -> tuple[int, int]:
        """Return the output size (height, width)."""
        sizes = _several(self.transform.size)
        return int(sizes[0]), int(sizes[-1])


class ResizeMapper(_Described):
    """`Resize`."""

    def _step(self, height: int, width: int) -> Step:
        new = self._size()
        if len(_several(self.transform.size)) == 1:
            short = new[0]
            long = int(new[0] * max(height, width) / min(height, width))
            largest = getattr(self.transform, "max_size", None)
            if largest is not None and largest <= short:
                raise ConfigError(
                    f"{self.transform!r}: max_size={largest} must be > size={short}"
                )
            if largest is not None and long > largest:
                short = int(largest * short / long)
                long = largest
            new = (short, long) if height <= width else (long, short)
        return self.scale(new[1] / width, new[0] / height), new, new


class CenterCropMapper(_Described):
    """`CenterCrop`."""

    def _step(self, height: int, width: int) -> Step:
        size = self._size()
        down, right = (
            (new - old) // 2 if new > old else -round((old - new) / 2)
            for new, old in zip(size, (height, width), strict=True)
        )
        return self.translate(right, down), size, (down, right, *size)


class RandomCropMapper(_Described):
    """`RandomCrop`."""

    def _padding_sides(self, padding: Any) -> tuple[int, int, int, int]:
        """Return the padding left, top, right and bottom."""
        sides = [int(side) for side in _several(padding or 0)]
        if len(sides) not in (1, 2, 4):
            raise ConfigError(
                f"padding must be one number, two or four, got {padding!r}"
            )
        left, top, right, bottom = (sides * 4)[:4]
        # torchvision's second version keeps left, right, top, bottom.
        classes = type(self.transform).__mro__
        is_v2 = any(".v2" in ancestor.__module__ for ancestor in classes)
        if is_v2 and isinstance(padding, list):
            return left, right, top, bottom
        return left, top, right, bottom

    def _step(self, height: int, width: int) -> Step:
        if getattr(self.transform, "padding_mode", "constant") != "constant":
            raise ConfigError(
                f"{self.transform!r}: only padding_mode='constant' can be merged"
            )
        size = self._size()
        padding = getattr(self.transform, "padding", None)
        left, top, right, bottom = self._padding_sides(padding)
        height = height + top + bottom
        width = width + left + right
        if self.transform.pad_if_needed:
            more_down = max(0, size[0] - height)
            more_aside = max(0, size[1] - width)
            top = top + more_down
            height = height + 2 * more_down
            left = left + more_aside
            width = width + 2 * more_aside
        if height < size[0] or width < size[1]:
            raise ConfigError(
                f"{self.transform!r} is larger than the image, {height} x {width}. Set "
                "pad_if_needed=True to pad it"
            )
        down = _below(height - size[0] + 1)
        aside = _below(width - size[1] + 1)
        return self.translate(left - aside, top - down), size, (aside, down, *size)


class RandomResizedCropMapper(_Described):
    """`RandomResizedCrop`."""

    def _step(self, height: int, width: int) -> Step:
        size = self._size()
        top, left, part_height, part_width = part = self._part(height, width)
        resized = self.scale(size[1] / part_width, size[0] / part_height)
        return resized @ self.translate(-left, -top), size, part

    def _part(self, height: int, width: int) -> tuple[int, int, int, int]:
        """Return (top, left, height, width) of the part that is taken."""
        low, high = torch.log(torch.tensor(self.transform.ratio)).tolist()
        for _ in range(10):
            area = height * width * _uniform(*self.transform.scale)
            ratio = math.exp(_uniform(low, high))
            part_width = round(math.sqrt(area * ratio))
            part_height = round(math.sqrt(area / ratio))
            if 0 < part_width <= width and 0 < part_height <= height:
                top = _below(height - part_height + 1)
                left = _below(width - part_width + 1)
                return top, left, part_height, part_width
        narrow = min(self.transform.ratio)
        wide = max(self.transform.ratio)
        part_height = round(width / narrow) if width / height < narrow else height
        part_width = round(height * wide) if width / height > wide else width
        return (
            (height - part_height) // 2,
            (width - part_width) // 2,
            part_height,
            part_width,
        )


class RandomHorizontalFlipMapper(_Described):
    """`RandomHorizontalFlip`."""

    def _step(self, height: int, width: int) -> Step:
        flipped = bool(torch.rand(1) < self.transform.p)
        return (
            self._flip(height, width) if flipped else np.eye(3),
            (height, width),
            flipped,
        )

    def _flip(self, height: int, width: int) -> Matrix:
        return self.translate(width, 0) @ self.hflip()


class RandomVerticalFlipMapper(RandomHorizontalFlipMapper):
    """`RandomVerticalFlip`."""

    def _flip(self, height: int, width: int) -> Matrix:
        return self.translate(0, height) @ self.vflip()


class RandomRotationMapper(_Described):
    """`RandomRotation`."""

    def _step(self, height: int, width: int) -> Step:
        angle = self.transform.degrees
        center = getattr(self.transform, "center", None)
        degrees = _uniform(*(angle if isinstance(angle, Sequence) else (-angle, angle)))
        angle = math.radians(degrees)
        x, y = (width / 2, height / 2) if center is None else center
        high = height
        wide = width
        if self.transform.expand:
            if center is not None:
                raise ConfigError(
                    f"{self.transform!r}: center cannot be set with expand=True"
                )
            sin = abs(math.sin(angle))
            cos = abs(math.cos(angle))
            spans = (
                (height, sin * width + cos * height),
                (width, cos * width + sin * height),
            )
            # In whole pixels around the middle.
            high, wide = (
                math.ceil(round((old + new) / 2, 9))
                - math.floor(round((old - new) / 2, 9))
                for old, new in spans
            )
        to_middle = self.translate(x + (wide - width) / 2, y + (high - height) / 2)
        return (
            to_middle @ self.rotate(angle) @ self.translate(-x, -y),
            (high, wide),
            degrees,
        )


class RandomPerspectiveMapper(_Described):
    """`RandomPerspective`."""

    def _step(self, height: int, width: int) -> Step:
        size = height, width
        if (
            torch.rand(1) >= self.transform.p or min(size) < 2
        ):  # a line looks the same everywhere
            return np.eye(3), size, None
        corners = [(0, 0), (width - 1, 0), (width - 1, height - 1), (0, height - 1)]
        across = int(self.transform.distortion_scale * (width // 2))
        down = int(self.transform.distortion_scale * (height // 2))
        moved = []
        for x, y in corners:
            new_x = (width - across - 1 if x else 0) + _below(across + 1)
            new_y = (height - down - 1 if y else 0) + _below(down + 1)
            moved.append((new_x, new_y))
        return homography(corners, moved), size, (corners, moved)


def homography(start: Sequence[Numbers], end: Sequence[Numbers]) -> Matrix:
    """Return the matrix that maps four points to four others.

    >>> square = [(0, 0), (1, 0), (1, 1), (0, 1)]
    >>> bool(np.allclose(homography(square, square), np.eye(3)))
    True
    """
    rows = []
    values = []
    for (x, y), (u, v) in zip(start, end, strict=True):
        rows += [[x, y, 1, 0, 0, 0, -u * x, -u * y], [0, 0, 0, x, y, 1, -v * x, -v * y]]
        values += [u, v]
    solved, *_ = np.linalg.lstsq(
        np.array(rows, dtype=np.float64), np.array(values), rcond=None
    )
    return np.append(solved, 1.0).reshape(3, 3)


def _several(value: Any) -> Sequence[Any]:
    return value if isinstance(value, Sequence) else (value,)


def _uniform(low: float, high: float) -> float:
    return torch.empty(1).uniform_(float(low), float(high)).item()


def _below(high: int) -> int:
    """Return a random whole number from 0 on, below `high`."""
    return int(torch.randint(0, high, size=(1,)).item())
