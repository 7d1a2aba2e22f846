"""Steps of merged transforms, with the arguments that torchvision's transforms of these names have.

For programs without torchvision; `MergeTransform` takes its transforms just as well. Sizes are
(height, width), angles degrees.
"""

from __future__ import annotations

from dataclasses import dataclass

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
