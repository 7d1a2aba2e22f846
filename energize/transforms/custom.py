"""Steps of one's own."""

from __future__ import annotations

from typing import Any

from energize.transforms.base import TransformMapper


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
