"""Writing down which samples were read."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from energize.arrays import Int64Array
from energize.cursor import State
from energize.dataset import Dataset
from energize.errors import ConfigError
from energize.passing import PassingDataset, PassingStream
from energize.reading import Failed, Reading
from energize.streaming import Stream
from energize.topology import Lane, WorkerConfig
from energize.wrappers.routed import RoutedDataset

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_log = logging.getLogger("energize.samples")


class LogSampleDataset(PassingDataset[T_co], RoutedDataset[T_co]):
    """Passes items through and logs each as a line of JSON, on the logger `energize.samples`
    (INFO).

    A line has `mode` (whatever you call this loader), `position` and `keys`: what
    `get_keys_fn(item)` returns, by default the item's `__key__` or `__keys__`. A line is written by
    the process that reads the item, when it reads it: with prefetching that is before it is
    delivered.

    >>> from energize import ListSource
    >>> list(LogSampleDataset(ListSource("ab"), "train", get_keys_fn=lambda item: [item]))
    ['a', 'b']
    """

    passes_on = True

    mode: str
    get_keys_fn: Callable[[Any], Any]

    def __init__(
        self,
        dataset: Dataset[T_co],
        mode: str = "train",
        *,
        get_keys_fn: Callable[[T_co], Any] | None = None,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        keys_fn = default_keys if get_keys_fn is None else get_keys_fn
        if not callable(keys_fn):
            raise ConfigError(
                f"LogSampleDataset: get_keys_fn is a function of an item; got {keys_fn!r}"
            )
        self._freeze(inputs=[dataset], worker_config=worker_config, mode=mode, get_keys_fn=keys_fn)

    def route(self, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        return np.zeros_like(positions), positions

    def taken(self, n: int) -> Sequence[int]:
        return [n]

    def fetch(self, positions: Int64Array, reading: Reading) -> list[T_co | Failed]:
        items = super().fetch(positions, reading)
        for position, item in zip(positions.tolist(), items, strict=True):
            if not isinstance(item, Failed):
                self.log(item, position)
        return items

    def log(self, item: Any, position: int) -> None:
        """Write the line of an item."""
        line = {"mode": self.mode, "position": position, "keys": self.get_keys_fn(item)}
        _log.info("%s", json.dumps(line, default=str))

    def _stream(
        self, lane: Lane, state: State | None, reading: Reading, endless: bool
    ) -> Stream[T_co]:
        return _LoggedStream(self, self.inputs[0].stream(lane, state, reading, endless=endless))


class _LoggedStream(PassingStream[T]):
    def __init__(self, dataset: LogSampleDataset[T], stream: Stream[T]) -> None:
        super().__init__(stream)
        self._dataset = dataset

    def passed(self, item: T, position: int) -> T:
        self._dataset.log(item, position)
        return item


def default_keys(item: Any) -> Any:
    """The keys that samples and batches carry."""
    for name in ("__key__", "__keys__"):
        keys = item.get(name) if isinstance(item, dict) else getattr(item, name, None)
        if keys is not None:
            return keys
    return None
