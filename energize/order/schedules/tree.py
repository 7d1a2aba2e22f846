"""A binary tree with sources as leaves, the heavy ones near the root."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from energize.arrays import Int64Array

__all__ = ["Nodes", "SourceTree"]


_HALF_OCTAVE = 181 / 128
_FINEST = 40


class Nodes(NamedTuple):
    """Nodes of one level: the leaves from `low` up to `high`, those up to `middle` left."""

    level: int
    low: Int64Array
    middle: Int64Array
    high: Int64Array

    @property
    def leaf(self) -> npt.NDArray[np.bool_]:
        """Whether each is one leaf."""
        leaf: npt.NDArray[np.bool_] = self.high - self.low == 1
        return leaf

    def among(self, chosen: npt.NDArray[np.bool_] | Int64Array) -> Nodes:
        """Those chosen by a flag for each, or by number."""
        return Nodes(self.level, self.low[chosen], self.middle[chosen], self.high[chosen])


class SourceTree:
    """A tree over sources of these weights, ceil(log2(n)) levels deep at most; `order` has the
    source of each leaf.

    Each node is cut so that both children weigh about the same, as far as its leaves then still
    find room. Weights count by their powers of two only: nearly equal ones have the same, on every
    machine.

    >>> tree = SourceTree(np.array([1, 1, 6, 1]))
    >>> tree.order.tolist(), tree.root().middle.tolist()
    ([2, 0, 1, 3], [2])
    """

    def __init__(self, weights: Int64Array) -> None:
        # Edges between powers are at odd places, for round weights to be away from them.
        _, power = np.frexp(weights * _HALF_OCTAVE)
        power = np.clip(power - power.max() + _FINEST, 0, None).astype(np.int64)
        self.order = np.argsort(-power, kind="stable")
        self._before = np.append(0, np.cumsum(1 << power[self.order]))
        self._levels = (len(weights) - 1).bit_length()

    def root(self) -> Nodes:
        return self._nodes(0, np.array([0]), np.array([len(self.order)]))

    def children(self, nodes: Nodes) -> Nodes:
        """Left and right child of each."""
        low = np.stack([nodes.low, nodes.middle], axis=1).ravel()
        return self._nodes(nodes.level + 1, low, np.stack([nodes.middle, nodes.high], 1).ravel())

    def _nodes(self, level: int, low: Int64Array, high: Int64Array) -> Nodes:
        half = (self._before[low] + self._before[high]) // 2
        middle = np.searchsorted(self._before, half)
        middle -= half - self._before[middle - 1] <= self._before[middle] - half
        room = 1 << max(self._levels - level - 1, 0)
        least, most = np.maximum(low + 1, high - room), np.minimum(high - 1, low + room)
        return Nodes(level, low, np.clip(middle, least, most), high)
