"""Sequences of sources that are computed in pieces of equal length."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from energize.arrays import Int32Array, Int64Array

__all__ = ["Piece", "by_source", "locate_in_pieces", "ranks_within"]


class Piece(NamedTuple):
    """For each slot of a piece its source, and its source's slots before it: all of them, or, when
    `before` gives each source's slots before the piece, those in the piece.
    """

    source: Int32Array
    rank: npt.NDArray[np.int32] | Int64Array
    before: Int64Array | None = None


def locate_in_pieces(
    ks: Int64Array, length: int, piece: Callable[[int], Piece]
) -> tuple[Int64Array, Int64Array]:
    """The source of each slot, and that source's slots before it, from the pieces they lie in."""
    number, offset = np.divmod(ks, length)
    source, nth = np.empty_like(number), np.empty_like(number)
    numbers = np.unique(number).tolist()
    for each in numbers:
        rows = slice(None) if len(numbers) == 1 else np.flatnonzero(number == each)
        found = piece(each)
        places = offset[rows]
        sources = found.source[places]
        source[rows] = sources
        nth[rows] = found.rank[places]
        if found.before is not None:
            nth[rows] += found.before[sources]
    return source, nth


def by_source(source: Int32Array, count: int) -> Int64Array:
    """The slots of the first of `count` sources, then those of the second, ..., each in order."""
    # Numpy sorts 16-bit integers by radix, several times as fast as longer ones.
    order = np.argsort(source.astype(np.uint16), kind="stable")
    if count > 2**16:
        order = order[np.argsort((source >> 16).astype(np.uint16)[order], kind="stable")]
    return order


def ranks_within(source: Int32Array, counts: Int64Array) -> Int32Array:
    """For each slot its source's slots before it, where source i has `counts[i]` slots in all."""
    ranks = np.empty(len(source), dtype=np.int32)
    starts = np.repeat(np.cumsum(counts) - counts, counts)
    ranks[by_source(source, len(counts))] = np.arange(len(source)) - starts
    return ranks
