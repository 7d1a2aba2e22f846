"""What a step of a merged transform is, and the matrices it is made of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import numpy.typing as npt

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
