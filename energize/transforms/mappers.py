"""The steps that are known, from what transforms say of themselves.

Random numbers are drawn from torch's global generator, in the order in which torchvision's
transforms draw theirs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from energize.errors import ConfigError
from energize.late import torch
from energize.transforms.base import Fill, Matrix, Size, TransformMapper

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
