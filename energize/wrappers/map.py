"""A function of each item."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, TypeVar

from energize.cursor import Cursor, State
from energize.dataset import Dataset, IndexedDataset, Int64Array, OnFailure
from energize.errors import ConfigError
from energize.fetching import Attempt, Failed
from energize.refs import Refs
from energize.rng import derive, hash_positions
from energize.topology import Lane, WorkerConfig
from energize.wrappers.calling import call, keyed_generators
from energize.wrappers.routed import indexed_inputs
from energize.wrappers.streams import CallingCursor

__all__ = ["MapDataset"]

T = TypeVar("T")
T_in = TypeVar("T_in")
T_out_co = TypeVar("T_out_co", covariant=True)


class MapDataset(IndexedDataset[T_out_co]):
    """`map_fn(item)` for each item; order and number stay as they are.

    The function may raise `SkipSample` to leave an item out and `DataError` for bad bytes; in an
    indexed dataset a substitute from the same source comes in its place. Any other exception is
    raised as `EncoderError` with the sample's source.

    The global generators of random, numpy and torch are seeded for each call by (seed, position),
    so random augmentations are the same for any number of workers and after a resume;
    `seeded=False` saves these microseconds for functions that draw nothing.

    >>> from energize import ListSource
    >>> list(MapDataset(ListSource([1, 2, 3]), lambda x: x * x))
    [1, 4, 9]
    """

    map_fn: Callable[[Any], T_out_co]
    seeded: bool

    def __init__(
        self,
        dataset: Dataset[T_in],
        map_fn: Callable[[T_in], T_out_co],
        *,
        seeded: bool = True,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        if not callable(map_fn):
            raise ConfigError(f"MapDataset: map_fn is a function of an item; got {map_fn!r}")
        self._freeze(inputs=[dataset], worker_config=worker_config, map_fn=map_fn, seeded=seeded)

    @cached_property
    def key(self) -> int:
        """That of the input: what is done with items must not change the order of a mix of them."""
        return self.inputs[0].key

    @cached_property
    def seed_key(self) -> int:
        """What the draws of the function are keyed by; maps on top of one another draw apart."""
        below = self.inputs[0]
        return derive(below.seed_key if isinstance(below, MapDataset) else self.key, "map")

    @cached_property
    def size(self) -> int:
        return indexed_inputs(self)[0].size

    def fetch(self, positions: Int64Array, attempt: Attempt) -> list[T_out_co | Failed]:
        items = indexed_inputs(self)[0].fetch(positions, attempt)
        seeds = hash_positions(self.seed_key, positions, attempt.number).tolist()
        out: list[T_out_co | Failed] = []
        with keyed_generators(self.seeded) as seed:
            for i, item in enumerate(items):
                if type(item) is Failed:
                    out.append(item)
                    continue
                seed(seeds[i])
                out.append(self._call(item, int(positions[i]), attempt.number))
        return out

    @property
    def in_turn(self) -> bool:
        return True

    def taken(self, n: int) -> Sequence[int]:
        return [n]

    def refs(self, positions: Int64Array, attempt: int = 0) -> Refs:
        return indexed_inputs(self)[0].refs(positions, attempt)

    def _call(self, item: Any, position: int, attempt: int) -> T_out_co | Failed:
        return call(self.map_fn, item, lambda: self.where(position, attempt))

    def _open_stream(
        self, lane: Lane, state: State | None, on_failure: OnFailure
    ) -> Cursor[T_out_co]:
        return CallingCursor(
            self,
            self.map_fn,
            lane,
            state,
            on_failure,
            seed_key=self.seed_key,
            take=next,
            seeded=self.seeded,
        )
