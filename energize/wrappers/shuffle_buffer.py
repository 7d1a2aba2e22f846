"""Shuffling a stream, as it comes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from energize.dataset import Dataset
from energize.ignored import accepted
from energize.numbers import checked_whole
from energize.reading import Reading
from energize.rng import shuffled
from energize.topology import WorkerConfig
from energize.wrappers.rounds import RoundsDataset, Step, Taken, alone, keyed_by

T_co = TypeVar("T_co", covariant=True)


class ShuffleBufferDataset(RoundsDataset[T_co]):
    """The items of each `size` in a row in a random order: for streams.

    In a loader each lane shuffles its own part of the input. A state holds where the buffer began
    and how many of it were given, not the items; they are read again. For a dataset with random
    access `ShuffleDataset` shuffles all of it, and holds no buffer.

    Raises `ConfigError` for a size below 1.

    >>> from energize import ListSource
    >>> sorted(ShuffleBufferDataset(ListSource("abcde"), 2))
    ['a', 'b', 'c', 'd', 'e']
    """

    buffer_size: int

    def __init__(
        self,
        dataset: Dataset[T_co],
        size: int,
        *,
        worker_config: WorkerConfig | None = None,
        **ignored: Any,
    ) -> None:
        accepted("ShuffleBufferDataset", **ignored)
        self._freeze(
            inputs=[dataset],
            worker_config=worker_config,
            buffer_size=checked_whole(size, "ShuffleBufferDataset: size", 1),
        )

    def round(self, items: Iterator[Taken], reading: Reading) -> Iterator[Step[T_co]]:
        buffer = list(islice(items, self.buffer_size))
        if buffer:
            order = shuffled(keyed_by(self, "shuffle", *buffer[0].origin), 0, len(buffer))
            for place in order.tolist():
                yield partial(alone, buffer[place])
