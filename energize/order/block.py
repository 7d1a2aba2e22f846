"""The block scheme: exact shares in every block, in random order inside it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from energize.errors import ConfigError
from energize.order.exact import ExactScheme
from energize.order.pieces import Piece, by_source, locate_in_pieces
from energize.order.remembered import Remembered
from energize.order.weights import Weights
from energize.rng import shuffled

__all__ = ["BlockScheme"]

Int64Array = npt.NDArray[np.int64]


class BlockScheme:
    """Slots in blocks of `block_size`, each with the slots that the scheme `exact` has there, in
    random order.

    At every block boundary each source is within `bound` slots (see `ExactScheme`) of its exact
    share: what rounding owes a source in one block it gets in the next, nothing drifts, and a block
    in which all shares are whole numbers holds exactly those. Any block is computed alone.

    `weights` need not sum to 1; ties go to the first, and a weight of 0 never receives a slot.
    Raises `WeightError` or `ConfigError`.

    >>> scheme = BlockScheme([0.5, 0.3, 0.2], block_size=10, key=1)
    >>> scheme.counts(10).tolist(), scheme.counts(10**12).tolist()
    ([5, 3, 2], [500000000000, 300000000000, 200000000000])
    """

    def __init__(self, weights: Weights, *, block_size: int = 1000, key: int = 0) -> None:
        if isinstance(block_size, bool) or not isinstance(block_size, int) or block_size < 1:
            raise ConfigError(f"block_size counts slots, 1 or more; got {block_size!r}")
        self.block_size = block_size
        self._key = key
        self._ordered = ExactScheme(weights)
        self.names, self.bound = self._ordered.names, self._ordered.bound
        self._count = len(self._ordered.counts(0))
        self._layout = Remembered(self._shuffled, 4)

    def describe(self) -> dict[str, Any]:
        return {"scheme": "block", "block_size": self.block_size}

    def counts(self, n: int) -> Int64Array:
        block, rest = divmod(n, self.block_size)
        counts = self._ordered.counts(block * self.block_size)
        if rest:
            counts += np.bincount(self._layout(block).source[:rest], minlength=len(counts))
        return counts

    def locate(self, ks: Int64Array) -> tuple[Int64Array, Int64Array]:
        return locate_in_pieces(ks, self.block_size, self._layout)

    def _shuffled(self, block: int) -> Piece:
        slots = np.arange(self.block_size, dtype=np.int64) + block * self.block_size
        ordered, nth = self._ordered.locate(slots)
        grouped = by_source(ordered.astype(np.int32), self._count)
        placed = ordered[grouped][shuffled(self._key, block, self.block_size)].astype(np.int32)
        ranks = np.empty_like(nth)
        ranks[by_source(placed, self._count)] = nth[grouped]
        return Piece(placed, ranks)
