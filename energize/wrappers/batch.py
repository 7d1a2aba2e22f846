"""Batches of a fixed size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import Any, TypeVar

import numpy as np

from energize.cursor import Cursor, State
from energize.dataset import INFINITE, Dataset, IndexedDataset, Int64Array, OnFailure
from energize.errors import ConfigError
from energize.fetching import MAX_ATTEMPTS, Attempt, Failed, resolve
from energize.refs import Refs
from energize.rng import hash_positions
from energize.topology import Lane, WorkerConfig
from energize.wrappers.calling import call, keyed_generators
from energize.wrappers.checks import checked_count, checked_flag
from energize.wrappers.routed import indexed_inputs, stretches_of_epochs
from energize.wrappers.streams import CallingCursor

__all__ = ["BatchDataset"]

T = TypeVar("T")
T_in = TypeVar("T_in")
T_batch_co = TypeVar("T_batch_co", covariant=True)


class BatchDataset(IndexedDataset[T_batch_co]):
    """`batcher(samples)` for every `batch_size` consecutive items.

    A batch is always full: a sample that is skipped or fails is substituted from its source. Only
    the last batch of an epoch may be short, unless `drop_last`. No batch reaches over the end of an
    epoch.

    Raises `ConfigError` for a batch size below 1, and when `drop_last` leaves no batch.

    >>> from energize import ListSource
    >>> list(BatchDataset(ListSource("abcde"), 2, "".join))
    ['ab', 'cd', 'e']
    """

    batch_size: int
    batcher: Callable[[list[Any]], T_batch_co]
    drop_last: bool

    def __init__(
        self,
        dataset: Dataset[T_in],
        batch_size: int,
        batcher: Callable[[list[T_in]], T_batch_co],
        *,
        drop_last: bool = False,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        self._set_up(dataset, batch_size, batcher, drop_last, worker_config)

    def _set_up(
        self,
        dataset: Dataset[Any],
        batch_size: int,
        batcher: Callable[[list[Any]], T_batch_co],
        drop_last: bool,
        worker_config: WorkerConfig | None = None,
        **parameters: Any,
    ) -> None:
        """Check and set the parameters, those of a subclass too."""
        owner = type(self).__name__
        if not callable(batcher):
            raise ConfigError(f"{owner}: batcher is a function of a list; got {batcher!r}")
        self._freeze(
            inputs=[dataset],
            worker_config=worker_config,
            batch_size=checked_count(batch_size, "batch_size", owner),
            batcher=batcher,
            drop_last=checked_flag(drop_last, "drop_last", owner),
            **parameters,
        )
        if dataset.indexed and self.size == 0 and indexed_inputs(self)[0].size:
            raise ConfigError(
                f"{owner}: the {indexed_inputs(self)[0].size} items of an epoch cannot fill "
                f"one batch of {batch_size}, and drop_last leaves it out; use a smaller "
                "batch_size, or drop_last=False"
            )

    @cached_property
    def size(self) -> int:
        inner = indexed_inputs(self)[0].size
        if inner == INFINITE:
            return INFINITE
        return inner // self.batch_size if self.drop_last else -(-inner // self.batch_size)

    @property
    def read_ahead(self) -> int:
        return max(1, super().read_ahead // self.batch_size)

    def _members(self, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        """The positions of all members of the batches at `positions`, and the batch of each."""
        inner = indexed_inputs(self)[0].size
        epoch, at = np.divmod(positions, self.size)
        first = at * self.batch_size
        lengths = np.minimum(inner - first, self.batch_size)
        start = first if inner == INFINITE else epoch * inner + first
        batch = np.repeat(np.arange(len(positions)), lengths)
        offset = np.arange(len(batch)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return start[batch] + offset, batch

    def fetch(self, positions: Int64Array, attempt: Attempt) -> list[T_batch_co | Failed]:
        members, batch = self._members(positions)
        of_members = attempt.numbered(attempt.number * MAX_ATTEMPTS)
        samples: list[Any] = resolve(indexed_inputs(self)[0], members, of_members)
        bounds = np.searchsorted(batch, np.arange(len(positions) + 1)).tolist()
        seeds = hash_positions(self.key, positions, attempt.number).tolist()
        out: list[T_batch_co | Failed] = []
        with keyed_generators(enabled=True) as seed:
            for i, position in enumerate(positions.tolist()):
                seed(seeds[i])
                out.append(self._call(samples[bounds[i] : bounds[i + 1]], position, attempt.number))
        return out

    @property
    def in_turn(self) -> bool:
        inner = indexed_inputs(self)[0].size
        return not self.drop_last or inner == INFINITE or inner % self.batch_size == 0

    def taken(self, n: int) -> Sequence[int]:
        epochs, rest = divmod(n, max(self.size, 1))
        inner = indexed_inputs(self)[0].size
        whole = min(inner, self.size * self.batch_size) if epochs else 0
        return [epochs * whole + min(rest * self.batch_size, inner)]

    def stretches(self, start: int, stop: int) -> Iterator[tuple[int, int, int]] | None:
        if self.in_turn:
            return super().stretches(start, stop)
        stride = indexed_inputs(self)[0].size
        return stretches_of_epochs(start, stop, self.size, stride, self.batch_size)

    def refs(self, positions: Int64Array, attempt: int = 0) -> Refs:
        members, batch = self._members(positions)
        return indexed_inputs(self)[0].refs(members, attempt * MAX_ATTEMPTS).grouped(batch)

    def _call(self, samples: list[Any], position: int, attempt: int) -> T_batch_co | Failed:
        return call(
            self.batcher,
            samples,
            lambda: f"a batch of {len(samples)} that begins with {self.where(position, attempt)}",
        )

    def _open_stream(
        self, lane: Lane, state: State | None, on_failure: OnFailure
    ) -> Cursor[T_batch_co]:
        return CallingCursor(
            self,
            self.batcher,
            lane,
            state,
            on_failure,
            seed_key=self.key,
            take=self._next_batch,
        )

    def _next_batch(self, cursor: Cursor[Any]) -> list[Any]:
        """The samples of the next batch of a stream."""
        samples = list(islice(cursor, self.batch_size))
        if not samples or (self.drop_last and len(samples) < self.batch_size):
            raise StopIteration
        return samples
