"""Any dataset of examples as a Hugging Face iterable dataset."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from energize.core.dataset import Dataset
from energize.core.lanes import SINGLE_LANE, Lane
from energize.core.stream import Cursor
from energize.errors import ConfigError, StateError
from energize.loader.state import packed_state, unpacked_state

try:
    import datasets
    from datasets.iterable_dataset import _BaseExamplesIterable
except ImportError as missing:
    raise ImportError(
        "energize.compat.easydel works on Hugging Face datasets, which are not installed here; "
        "install them with: pip install 'energize[hf]'"
    ) from missing

_SHARDS = 2**10 * 3**2 * 5 * 7
"""Shards of an indexed dataset: a multiple of most numbers of ranks times workers."""


def to_iterable_dataset(dataset: Dataset[dict[str, Any]]) -> datasets.IterableDataset:
    """A `datasets.IterableDataset` of the examples of `dataset`, in the same order.

    It can be handed to trainers, to a torch DataLoader and to `split_dataset_by_node`: ranks and
    workers take turns in one order, and all their parts together are the whole. A stream, which can
    only be read from the front, is one shard: one worker reads it, and each rank reads it all and
    leaves out what is not its part. An indexed dataset has shards enough for any number of them.

    `state_dict()` is exact after any example; `load_state_dict` costs the same anywhere in an
    indexed dataset. Iterating raises `StateMismatchError` naming what differs when the state is of
    another dataset. The order is that of `dataset`: `shuffle` only adds a buffer, and `set_epoch`
    changes nothing.

    >>> from energize import ListSource
    >>> stream = to_iterable_dataset(ListSource([{"x": 1}, {"x": 2}]))
    >>> [example["x"] for example in stream]
    [1, 2]
    """
    return datasets.IterableDataset(_Examples(dataset, SINGLE_LANE))


class _LiveState:
    """The state of a running cursor, packed when it is copied or pickled: states are asked for
    seldom, examples often.
    """

    def __init__(self, dataset: Dataset[Any], cursor: Cursor[Any]) -> None:
        self._dataset = dataset
        self._cursor = cursor

    def packed(self) -> dict[str, Any]:
        return packed_state(self._dataset, self._cursor.state())

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        return self.packed()

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (self.packed(),)


class _Examples(_BaseExamplesIterable):  # type: ignore[misc]  # datasets has no types
    """One lane of a dataset, as Hugging Face's pipelines take it."""

    def __init__(self, dataset: Dataset[dict[str, Any]], lane: Lane) -> None:
        super().__init__()
        self._state_dict: dict[str, Any] | None = None
        self._sleep_on_threads_shutdown = False  # there are no threads to wait for
        self.dataset = dataset
        self.lane = lane

    @property
    def num_shards(self) -> int:
        return max(1, _SHARDS // self.lane.count) if self.dataset.indexed else 1

    n_shards = num_shards  # the name in older versions

    def shard_data_sources(self, num_shards: int, index: int, contiguous: bool = True) -> _Examples:
        """Every `num_shards`-th of the examples of this lane; of a stream, one shard, all."""
        if self.dataset.indexed:
            count = self.lane.count
            lane = Lane(self.lane.index + count * index, count * num_shards)
            return _Examples(self.dataset, lane)
        if index:
            raise ConfigError(
                f"part {index} of {num_shards} was asked of a mix that reads a stream, which is "
                "one shard; use split_dataset_by_node, which divides its examples"
            )
        return copy.copy(self)

    def shuffle_data_sources(self, generator: Any) -> _Examples:
        """The same: the order is the dataset's own."""
        return copy.copy(self)

    def reshard_data_sources(self) -> _Examples:
        """The same: there are parts enough."""
        return copy.copy(self)

    def _init_state_dict(self) -> dict[str, Any]:
        fresh: dict[str, Any] = {"energize": None, "lane": None, "type": type(self).__name__}
        self._state_dict = fresh
        return fresh

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any]]]:
        state = self._state_dict or {}
        saved = state.get("energize")
        if isinstance(saved, _LiveState):
            saved = saved.packed()
        here = [self.lane.index, self.lane.count]
        if saved is not None and state.get("lane") != here:
            raise StateError(
                f"the saved state is of part {state.get('lane')} (number, of how many), this is "
                f"part {here}; resume with as many ranks and workers as it was saved with, or use "
                "energize.get_loader, whose states fit any number"
            )
        start = None if saved is None else unpacked_state(self.dataset, saved)
        cursor = self.dataset.open(self.lane, start)
        if self._state_dict is not None:
            self._state_dict |= {"energize": _LiveState(self.dataset, cursor), "lane": here}
        yield from enumerate(cursor)
