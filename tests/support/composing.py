"""Compositions of epochs, and what their global batches hold."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from energize.core.arrays import Int64Array
from energize.order.composition import BatchComposition


def composed(
    counts: Sequence[int], method: str, batch_size: int, ranks: int, **options: bool
) -> BatchComposition:
    """Epochs of `counts` samples of each stream, for so many ranks of one device batch
    each."""
    asked = np.array(counts, dtype=np.int64)
    return BatchComposition(
        asked, method, batch_size, batch_size * ranks, key=5, **options
    )


def epoch_of(mixed: BatchComposition, epoch: int = 0) -> tuple[Int64Array, Int64Array]:
    """The stream of each sample of an epoch, and its number there."""
    at = np.arange(mixed.size)
    return mixed.locate(np.full_like(at, epoch), at)


def global_batches(mixed: BatchComposition, epoch: int = 0) -> list[tuple[int, ...]]:
    """Samples of each stream in each global batch of an epoch."""
    stream, _ = epoch_of(mixed, epoch)
    starts = range(0, mixed.size, mixed.global_batch_size)
    return [
        tuple(
            np.bincount(
                stream[k : k + mixed.global_batch_size], minlength=len(mixed.requested)
            ).tolist()
        )
        for k in starts
    ]
