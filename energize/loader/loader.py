"""The loader: a dataset's items, this rank's part of them, read here or by worker processes."""

from __future__ import annotations

import multiprocessing
import sys
import weakref
from collections.abc import Iterator
from types import TracebackType
from typing import Generic, Self, TypeVar, cast

from energize.cursor import Cursor, State
from energize.dataset import Dataset, IndexedDataset
from energize.errors import ConfigError, LoaderError, NotIndexedError
from energize.late import torch
from energize.loader.delivery import open_in_workers
from energize.loader.failures import FailureLog, FailureSummary
from energize.loader.pool import WorkerPool
from energize.loader.state import packed_state, unpacked_state
from energize.topology import SINGLE_LANE, Lane, WorkerConfig

__all__ = ["Loader", "get_loader", "get_savable_loader"]

T = TypeVar("T")

DEFAULT_TIMEOUT = 1800.0
"""Seconds, as long as the collectives of torch.distributed with gloo wait before they give up."""


class Loader(Generic[T]):
    """Delivers this rank's items of a dataset, epoch after epoch; made by `get_loader`.

    Rank r of W delivers the items r, r + W, r + 2W, ... of the dataset's stream. Neither W nor the
    number of workers changes the stream: the ranks' items, taken in turn, are those of
    `for item in dataset`. When W does not divide the items of an epoch, the first ranks deliver
    one more than the others; where that matters, give `EpochizeDataset` a length that W divides.

    A loader has one position, that after the last delivered item, and never goes back by itself:

    - `for item in loader` delivers up to the end of the epoch, and the next loop the next epoch.
    - After a `break`, the next loop goes on behind the last item delivered; `rewind()` goes back
      to the very first. Items that workers had read ahead are read again.
    - There is one iterator at a time. A new one, `load_state_dict`, `rewind` and `close` end the
      old one, which then raises `LoaderError` instead of giving its next item.

    Workers live from the first `iter()` to `close()`, the end of a `with` block, or the last
    reference to the loader.
    """

    def __init__(
        self,
        dataset: Dataset[T],
        worker_config: WorkerConfig,
        *,
        prefetch_factor: int,
        pin_memory: bool,
        failure_budget: int | None,
        start_method: str,
        timeout: float | None,
    ) -> None:
        self.dataset = dataset
        self.worker_config = worker_config
        self._prefetch_factor = prefetch_factor
        self._pin_memory = pin_memory
        self._start_method = start_method
        self._timeout = timeout
        self._failures = FailureLog(failure_budget)
        self._resume: State | None = None
        self._cursor: Cursor[T] | None = None
        self._pool: WorkerPool | None = None

    def __iter__(self) -> Iterator[T]:
        self._let_go()
        self._cursor = self._open()
        return self._deliver(self._cursor)

    def __len__(self) -> int:
        """Items per epoch on this rank; `NotIndexedError` when there is no such number."""
        if not isinstance(self.dataset, IndexedDataset):
            raise NotIndexedError(
                f"{type(self.dataset).__name__} is a stream: how many items come out is only known "
                "when they have been read; cut it with EpochizeDataset and count steps"
            )
        return len(range(self.worker_config.rank, len(self.dataset), self.worker_config.world_size))

    @property
    def failures(self) -> FailureSummary:
        """How many samples of this rank failed since the loader was made, and the last of them."""
        return self._failures.summary()

    def state_dict(self) -> State:
        """The state after the last delivered item, whatever has been read ahead: JSON-able, small.

        With an indexed dataset it is the same on all ranks that have made the same number of steps,
        so one rank saves it and any number of ranks and workers resumes from it. The size does not
        grow with the position, and resuming costs the same everywhere.
        """
        if self._cursor is not None:
            return packed_state(self.dataset, self._cursor.state())
        if self._resume is None:
            cursor = self.dataset.open(self._lane)
            self._resume = cursor.state()
            cursor.close()
        return packed_state(self.dataset, self._resume)

    def load_state_dict(self, state_dict: State) -> None:
        """Go on from a state at the next `iter()`; a state of an epoch's end starts the next one.

        Raises `StateMismatchError` naming what differs when it was saved over another dataset, and
        `StateError` when it cannot be used; the loader then stays where it is.
        """
        cursor_state = unpacked_state(self.dataset, state_dict)
        self.dataset.open(self._lane, cursor_state).close()
        self._let_go()
        self._resume = cursor_state

    save_state_rank = state_dict
    restore_state_rank = load_state_dict

    def rewind(self) -> None:
        """Start at the first item of the first epoch at the next `iter()`."""
        self._let_go()
        self._resume = None

    def close(self) -> None:
        """End the worker processes. The position stays; a later `iter()` starts new ones."""
        self._let_go()
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def _lane(self) -> Lane:
        return self.worker_config.lane if self.dataset.indexed else SINGLE_LANE

    def _open(self) -> Cursor[T]:
        if self.worker_config.num_workers == 0:
            return self.dataset.open(self._lane, self._resume, self._failures.add)
        if self._pool is None or self._pool.closed:
            self._pool = WorkerPool(
                self.dataset,
                self.worker_config.num_workers if self.dataset.indexed else 1,
                self._prefetch_factor,
                self._start_method,
                self._timeout,
            )
            weakref.finalize(self, self._pool.close)
        return open_in_workers(self.dataset, self._lane, self._resume, self._pool, self._failures)

    def _deliver(self, cursor: Cursor[T]) -> Iterator[T]:
        # Only by reading on does a stream learn that the item before a resume was its epoch's last.
        may_be_over = not self.dataset.indexed
        while True:
            if cursor is not self._cursor:
                raise LoaderError(
                    "this iterator has ended: the loader was iterated anew, given a state, rewound "
                    "or closed since. A loader has one position and one iterator at a time"
                )
            try:
                item = next(cursor)
            except StopIteration:
                self._let_go()
                if not may_be_over:
                    return
                self._cursor = cursor = self._open()
            else:
                yield _pinned(item) if self._pin_memory else item
            may_be_over = False

    def _let_go(self) -> None:
        """Keep the position of the running iterator, if there is one, and end it."""
        if self._cursor is not None:
            self._resume = self._cursor.state()
            self._cursor.close()
            self._cursor = None


def get_loader(
    dataset: Dataset[T],
    *,
    worker_config: WorkerConfig | None = None,
    prefetch_factor: int = 2,
    pin_memory: bool | None = None,
    failure_budget: int | None = 100,
    multiprocessing_context: str | None = None,
    timeout: float | None = DEFAULT_TIMEOUT,
) -> Loader[T]:
    """A `Loader` of this rank's items of `dataset`. No argument changes what the items are.

    `worker_config`: rank, world size and workers. When it is not given, the one that the dataset
    carries, else rank and world size of torch.distributed without workers: processes are only
    started when they were asked for. A `seed_offset` reseeds a dataset that carries no config.
    `prefetch_factor`: chunks of items that each worker has ready or in work.
    `pin_memory`: whether tensors come in page-locked memory; by default, and at most, where there
    is a CUDA device.
    `failure_budget`: how many samples of this rank may fail and be left out; None for any number.
    `multiprocessing_context`: how workers start; by default "fork" on Linux, which takes lambdas
    too, else "spawn", which needs a dataset that can be pickled.
    `timeout`: seconds to wait for workers that run but do not answer; None for ever.

    Raises `ConfigError` for a value that cannot be used, for a config that disagrees with the
    dataset's about the seed, and for a stream with more than one rank.

    >>> from energize.sources.memory import ListSource
    >>> loader = get_loader(ListSource("abc"))
    >>> list(loader), len(loader)
    (['a', 'b', 'c'], 3)
    """
    if not isinstance(dataset, Dataset):
        raise ConfigError(f"get_loader delivers an energize Dataset; got {type(dataset).__name__}")
    _check_whole("prefetch_factor", prefetch_factor, least=1)
    if failure_budget is not None:
        _check_whole("failure_budget", failure_budget, least=0)
    if timeout is not None and not timeout > 0:
        raise ConfigError(f"timeout is a number of seconds above 0, or None; got {timeout!r}")
    dataset, config = _configured(dataset, worker_config)
    return Loader(
        dataset,
        config,
        prefetch_factor=prefetch_factor,
        pin_memory=pin_memory is not False and torch.cuda.is_available(),
        failure_budget=failure_budget,
        start_method=_checked_start_method(multiprocessing_context),
        timeout=timeout,
    )


get_savable_loader = get_loader  # every loader can be saved; users know both names


def _configured(dataset: Dataset[T], given: WorkerConfig | None) -> tuple[Dataset[T], WorkerConfig]:
    carried = dataset.worker_config
    config = given or carried or WorkerConfig.default_worker_config(num_workers=0)
    if carried is None:
        dataset = dataset.reseeded(config.seed_offset) if config.seed_offset else dataset
    elif carried.seed_offset != config.seed_offset:
        raise ConfigError(
            f"the loader's worker config has seed_offset {config.seed_offset}, the dataset was "
            f"built with seed_offset {carried.seed_offset}: they name different orders. Build the "
            "dataset with the loader's worker config, or use one seed_offset for both"
        )
    if not dataset.indexed and config.world_size > 1:
        raise ConfigError(
            f"{type(dataset).__name__} reads a stream, which cannot be divided among ranks, and "
            f"world_size is {config.world_size}. To keep a dataset divisible, leave samples out by "
            "raising SkipSample in an encoder instead of using FilterDataset, or filter them out "
            "when the data are prepared"
        )
    return dataset, config


def _pinned(item: T) -> T:
    return cast("T", torch.utils.data._utils.pin_memory.pin_memory(item))  # type: ignore[no-untyped-call]


def _checked_start_method(given: str | None) -> str:
    if given is None:
        return "fork" if sys.platform == "linux" else "spawn"
    known = multiprocessing.get_all_start_methods()
    if given not in known:
        raise ConfigError(
            f"multiprocessing_context is one of {', '.join(known)} here, or None; got {given!r}"
        )
    return given


def _check_whole(name: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name} is a whole number, {least} or more; got {value!r}")
