"""Reading samples that lie in several files: file by file, each from front to back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from energize.arrays import Int64Array

T = TypeVar("T")


def read_by_file(
    stored: Int64Array,
    located: Callable[[Int64Array], tuple[Int64Array, Int64Array]],
    read: Callable[[int, list[int]], Sequence[T]],
) -> list[T]:
    """The samples at `stored`, in that order, though they are read in the order in which they lie.

    `located` gives for ascending positions their files and their numbers in these; `read` the
    samples of one file, numbers ascending.

    >>> def located(positions):
    ...     return np.divmod(positions, 10)
    >>> def read(file, numbers):
    ...     return [f"{file}/{number}" for number in numbers]
    >>> read_by_file(np.array([21, 3, 20]), located, read)
    ['2/1', '0/3', '2/0']
    """
    order = np.argsort(stored, kind="stable")
    files, numbers = located(stored[order])
    cuts = [0, *(np.flatnonzero(np.diff(files)) + 1).tolist(), len(order)]
    samples: list[Any] = [None] * len(order)
    for first, last in pairwise(cuts):
        if first < last:
            found = read(int(files[first]), numbers[first:last].tolist())
            for row, sample in zip(order[first:last].tolist(), found, strict=True):
                samples[row] = sample
    return samples
