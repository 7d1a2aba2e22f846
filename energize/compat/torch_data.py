"""Any dataset under torch's own DataLoader, and torchdata's StatefulDataLoader."""

from __future__ import annotations

import logging
import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.context import get_spawning_popen
from typing import Annotated, Any, Generic, TypeAlias, TypeVar, cast

from pydantic import Field, NonNegativeInt, TypeAdapter
from torch.utils.data import IterableDataset, get_worker_info

from energize.core.checks import checked_whole
from energize.core.dataset import Dataset, IndexedDataset
from energize.core.lanes import Ranks, WorkerConfig
from energize.core.restoring import without_loops
from energize.core.stream import INFINITE, State, counter_field
from energize.core.validation import Model, validated
from energize.datasets.order import EpochizeDataset
from energize.errors import ConfigError, EnergizeError, LoaderError, StateError
from energize.loader import Loader
from energize.loader.failures import OnError
from energize.loader.feeds import plan_epoch
from energize.loader.settings import LoaderSettings, checked_settings, configured
from energize.loader.state import checked_state, packed_state, unpacked_state

T = TypeVar("T")

Place: TypeAlias = tuple[int, int]
"""Where a loop starts: position and step in an indexed dataset, the number of a loop over a stream
and 0. What has no steps of its own may count there what it has given of the first item.
"""

_NEVER = (-1, -1)
"""The place at which the loop after one without end starts."""

_NO_END = 2**60
"""Steps of a loop whose end is decided where the steps of all workers are counted."""

_NO_SEED = -1
_OWNER, _SEED, _BEGUN, _JOINED, _IN_WORKERS, _START, _FOLLOWING = (*range(6), 7)


_log = logging.getLogger("energize")


class SharedPlace:
    """Where the next loop starts, as a process and the workers of its DataLoaders know it.

    A DataLoader makes an iterator in each of its workers, which do not know of each other; the
    first of them moves the place on, the others of the same loop find it moved.
    """

    def __init__(self) -> None:
        self._begun = 0
        self._table = _shared_table((0, 0, 0, 0))

    def __getstate__(self) -> dict[str, Any]:
        """A process that is being started shares the table; any other copy has one of its own."""
        table: Any = self._table if get_spawning_popen() else tuple(self._table[_START:])
        return {**self.__dict__, "_table": table}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if isinstance(self._table, tuple):
            self._table = _shared_table(self._table)

    def begin(self, following: Callable[[Place], Place], at: Place | None = None) -> Place | None:
        """Begin a loop, or join the one that another worker has begun; return where it starts.

        `following(start)` is where the loop after it starts. `at` is where this one starts, if not
        where the last one said. What either raises leaves the place as it is. None: the loop was
        left before this worker came to it, and the next one has begun.
        """
        info = get_worker_info()
        self._begun += 1
        seed = _NO_SEED if info is None else info.seed - info.id
        with self._owned() as table:
            begun = table[_BEGUN] if table[_SEED] == seed else 0
            # Loops of equal seeds are told apart by their workers, who are all there by then.
            all_there = info is not None and table[_JOINED] >= info.num_workers
            failed = self._begun == begun and table[_JOINED] < 0
            if self._begun > begun or all_there or failed:
                table[_SEED:_START] = [seed, self._begun, -1, int(info is not None)]
                start = at or _place(table, _FOLLOWING)
                table[_START:] = [*start, *following(start)]
                table[_JOINED] = 1
            elif self._begun == begun:
                table[_JOINED] += 1
            else:
                return None
            return _place(table, _START)

    def set(self, place: Place) -> None:
        """Start the next loop at `place`."""
        with self._owned() as table:
            # A worker that is slow to join the loop before is still known by its seed.
            table[_JOINED:] = [0, 0, *place, *place]

    @property
    def start(self) -> Place:
        """Where the last loop started, or the first will."""
        with self._owned() as table:
            return _place(table, _START)

    @property
    def in_workers(self) -> bool:
        """Whether the last loop is one of DataLoader's workers."""
        with self._owned() as table:
            return bool(table[_IN_WORKERS])

    @contextmanager
    def _owned(self) -> Iterator[Any]:
        """The table, locked. A process that was started with it makes one of its own."""
        in_worker = get_worker_info() is not None
        parent = multiprocessing.parent_process() if in_worker else None
        owner = os.getpid() if parent is None else parent.pid
        if self._table[_OWNER] != owner:
            if in_worker:
                raise LoaderError(
                    "a dataset for DataLoader was made by another process than the one that reads "
                    "it with workers; call as_torch_dataset in the process of each rank"
                )
            self._table = _shared_table(tuple(self._table[_START:]))
        with self._table:
            yield self._table


def _shared_table(places: tuple[int, ...]) -> Any:
    # Spawned workers can take over locks of this context only, forked ones any.
    values = [os.getpid(), _NO_SEED, 0, 0, 0, *places]
    return multiprocessing.get_context("spawn").Array("q", values)


def _place(table: Any, first: int) -> Place:
    return table[first], table[first + 1]


def as_torch_dataset(
    dataset: Dataset[T],
    *,
    worker_config: WorkerConfig | None = None,
    uneven: str = "pad",
    lanes: int | None = None,
    failure_budget: int | None = 100,
    on_error: str | OnError = "raise",
) -> TorchDataset[T]:
    """An `IterableDataset` for torch's DataLoader with any number of workers: the items that
    `get_loader` delivers on this rank, in the same order.

    `DataLoader(as_torch_dataset(dataset), batch_size=None, num_workers=4)`: batches are made in the
    dataset (`BatchDataset`), and DataLoader passes them on. One with a `batch_size` of its own
    makes each batch of the items of one worker.

    Every `for` over the DataLoader is the next epoch, or the next steps of a run whose loops count
    them (`EpochizeDataset`). The arguments are those of `get_loader`; see `TorchDataset` for states
    and streams. Raises `ConfigError` for values that cannot be used.

    >>> from torch.utils.data import DataLoader
    >>> from energize.data.memory import ListSource
    >>> loader = DataLoader(as_torch_dataset(ListSource("abc")), batch_size=None)
    >>> list(loader), len(loader)
    (['a', 'b', 'c'], 3)
    """
    if not isinstance(dataset, Dataset):
        got = type(dataset).__name__
        raise ConfigError(f"as_torch_dataset takes an energize Dataset; got {got}")
    settings = checked_settings(
        uneven=uneven, lanes=lanes, failure_budget=failure_budget, on_error=on_error
    )
    return TorchDataset(*configured(dataset, worker_config), settings)


class TorchDataset(IterableDataset[T], Generic[T]):
    """The steps of this rank, which the workers of a DataLoader take in turn; made by
    `as_torch_dataset`.

    Worker k of N delivers the rank's steps k, k + N, ... of each loop: it reads with a `Loader` of
    its own, as rank r + W * k of W * N ranks.

    **State.** `state_dict(steps)` is that of a `Loader` so many steps after the start of the loop:
    it goes on with any number of ranks and workers, and in `get_loader`. Of a stream only those who
    read it know it: use `StatefulDataLoader`, which asks each of its workers, and goes on with as
    many ranks and workers.

    **Streams** that N workers read need `lanes` that W * N divides (by default as many), and loops
    of a number of steps that N divides. From loop to loop, only live workers know where they stand;
    without `persistent_workers=True` new ones read it all again, with a warning. Where only reading
    tells how long an epoch is, each worker reads all of it, and as many steps are padded as W * N
    ranks would pad.
    """

    def __init__(
        self, dataset: Dataset[T], worker_config: WorkerConfig, settings: LoaderSettings
    ) -> None:
        self.dataset = dataset
        self.worker_config = worker_config
        self._settings = settings
        self.place = SharedPlace()
        self._resumed: _ShareState | None = None
        self._share: _Share[T] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_share": None}

    def __len__(self) -> int:
        """Steps of a loop on this rank, as those of a `Loader`."""
        return len(Loader(self.dataset, self.worker_config, self._settings))

    def __iter__(self) -> Iterator[T]:
        """The next loop."""
        try:
            return self._next_loop()
        except EnergizeError as error:
            return _raising(error)  # a worker of DataLoader that raises here dies without a word

    def _next_loop(self) -> Iterator[T]:
        ranks, info = self.worker_config.ranks(), get_worker_info()
        turn = (0, 1) if info is None else (info.id, info.num_workers)
        share, saved, self._resumed = self._share, self._resumed, None
        if share is None or share.mark != [ranks.rank, ranks.world_size, *turn]:
            share = _Share(self.dataset, ranks, *turn, self._settings)
        at = None if saved is None else share.place_of(saved)
        start = self.place.begin(lambda start: self._following(start, ranks), at)
        if start is None:
            return iter(())
        if saved is not None:
            share.begin(start, saved.reader, saved.made, over=saved.over)
        elif self.dataset.indexed:
            share.begin(start, self._state_at(start))
        else:
            share.go_on(start)
        self._share = share
        return share

    def _following(self, start: Place, ranks: Ranks) -> Place:
        """Where the loop after the one at `start` starts."""
        dataset, loop = self.dataset, self.dataset._steps_per_epoch
        if start == _NEVER:
            raise LoaderError(
                "the dataset never ends, so nobody but you knows where a second loop over it "
                "starts: say how many steps a loop has (EpochizeDataset, virtual_epoch_length), or "
                "load state_dict(steps) before it"
            )
        if loop is None and dataset.sized and dataset.size == INFINITE:
            return _NEVER
        if not dataset.indexed:
            return start[0] + 1, 0
        position, step = start
        if loop is not None:
            return position + (loop - step) * ranks.world_size, 0
        return (position // dataset.size + 1) * dataset.size, 0

    def state_dict(self, steps: int | None = None) -> State:
        """The state after so many `steps` of this rank since the loop, or what was loaded, started.

        Without `steps`, after those that this process has delivered itself: what
        `StatefulDataLoader` asks its workers for. Raises `StateError` where nobody here knows.
        """
        if steps is None and self._share is not None:
            return self._share.state()
        if steps is not None:
            steps = checked_whole(steps, "state_dict: steps")
        if steps is None and self.place.in_workers:
            raise StateError(
                "how many steps DataLoader's workers have delivered is only known where they are "
                "counted: state_dict(steps)"
            )
        if not self.dataset.indexed:
            raise StateError(
                "where a stream stands is only known to those who read it; use torchdata's "
                "StatefulDataLoader, or energize.get_loader"
            )
        return self._state_at(self._after(self.place.start, steps or 0))

    def _after(self, place: Place, steps: int) -> Place:
        """The place so many steps on, at most where the next loop starts."""
        ranks, counted = self.worker_config.ranks(), self.dataset._steps_per_epoch is not None
        following = self._following(place, ranks)
        position = place[0] + steps * ranks.world_size
        if following != _NEVER and position >= following[0]:
            return following
        return position, place[1] + steps * counted

    def _state_at(self, place: Place) -> State:
        dataset = cast("IndexedDataset[T]", self.dataset)
        state = dataset._state_at(place[0])
        counted = dataset._steps_per_epoch is not None
        return packed_state(dataset, state | {"step": place[1]} if counted else state)

    def load_state_dict(self, state_dict: State, strict: bool = True) -> None:
        """Start the next loop at a state, that of a `Loader` too; see `Loader.load_state_dict`."""
        if isinstance(state_dict, dict) and "share" in state_dict:
            saved = validated(_SHARE_STATE, state_dict, StateError, "the saved state")
            checked_state(saved.reader)
            self._resumed = saved
            return
        if not self.dataset.indexed:
            raise StateError(
                "the state of a Loader over a stream cannot be divided among DataLoader's workers; "
                "load it with energize.get_loader"
            )
        loader = Loader(self.dataset, self.worker_config, self._settings)
        loader.load_state_dict(state_dict, strict)
        state = unpacked_state(self.dataset, loader.state_dict())
        self._share, self._resumed = None, None
        step = counter_field(state, "step") if "step" in state else 0
        self.place.set((counter_field(state, "position"), step))


class _ShareState(Model):
    """The state of a worker's share: whose, in which loop, and after how many items of it."""

    share: Annotated[list[NonNegativeInt], Field(min_length=4, max_length=4)]
    place: Annotated[list[NonNegativeInt], Field(min_length=2, max_length=2)]
    made: NonNegativeInt
    over: bool
    reader: dict[str, Any]


_SHARE_STATE = TypeAdapter(_ShareState)


def _raising(error: EnergizeError) -> Iterator[Any]:
    raise error
    yield


class _Share(Iterator[T]):
    """The steps of a rank that one process delivers: those of a worker of DataLoader, or all."""

    def __init__(
        self,
        dataset: Dataset[T],
        ranks: Ranks,
        worker: int,
        workers: int,
        settings: LoaderSettings,
    ) -> None:
        self._dataset, self._ranks, self._settings = dataset, ranks, settings
        self._worker, self._workers = worker, workers
        loop = dataset._steps_per_epoch
        uneven, rank = settings.uneven, ranks.rank + ranks.world_size * worker
        if loop is not None:
            dataset = EpochizeDataset(without_loops(dataset), _NO_END)
            if loop % workers and not dataset.indexed:
                raise ConfigError(
                    f"a loop of {loop} steps over a stream cannot be shared out to {workers} "
                    "workers of a DataLoader; use a number of workers that divides it"
                )
        if loop is not None or dataset.sized:  # what is too much is cut where the rank's loop ends
            uneven = "repeat" if uneven == "repeat" else "pad"
        config = WorkerConfig(rank=rank, world_size=ranks.world_size * workers)
        self._loader = Loader(dataset, config, replace(settings, uneven=uneven, apart=True))
        self._items: Iterator[T] | None = None
        self._place: Place = _NEVER
        self._made, self._own, self._over = 0, 0, True

    @property
    def mark(self) -> list[int]:
        """Rank, world size, worker, workers."""
        return [self._ranks.rank, self._ranks.world_size, self._worker, self._workers]

    @property
    def given_before(self) -> int:
        """The second number of the place, for the worker that reads the first item of the loop."""
        return 0 if self._worker else self._place[1]

    def begin(
        self, place: Place, state: State | None, made: int = 0, *, over: bool = False
    ) -> None:
        """Begin a loop at a place, or go on in it after so many items; at its end if `over`."""
        if state is not None:
            self._loader.load_state_dict(state)
        self._place, self._made, self._over = place, made, over
        self._items = None if over else iter(self._loader)
        steps = self._steps()
        endless = steps in (None, INFINITE)
        self._own = INFINITE if endless else len(range(self._worker, steps or 0, self._workers))

    def _steps(self) -> int | None:
        """Steps of the rank in this loop, or `INFINITE`; None where only reading tells."""
        dataset, loop, (position, step) = self._dataset, self._dataset._steps_per_epoch, self._place
        if loop is not None:
            return loop - step
        if not dataset.sized or dataset.size == INFINITE:
            return INFINITE if dataset.sized else None
        start = position if dataset.indexed else 0
        uneven = self._settings.uneven
        return plan_epoch(self._ranks, start, dataset.size, uneven=uneven, global_items=None).steps

    def go_on(self, place: Place) -> None:
        """Begin a loop over a stream, once those before have been read to their ends."""
        if self._place == _NEVER:
            self.begin((0, 0), None)
            if place[0] and not self._worker:
                _log.warning(
                    "new workers of a DataLoader find where loop %d over a stream starts by reading"
                    " those before; give it persistent_workers=True",
                    place[0],
                )
        while self._place[0] < place[0]:
            deque(self, maxlen=0)
            self.begin((self._place[0] + 1, 0), None)

    def __next__(self) -> T:
        self._look_for_end()
        if self._over or self._items is None:
            raise StopIteration
        try:
            item = next(self._items)
        except StopIteration:
            self._over = True
            raise
        self._made += 1
        return item

    def _look_for_end(self) -> None:
        """Whether the rank's loop has ended; what the reader still has then is padding."""
        if not self._over and self._made >= self._own:
            self._over = True
            if not self._dataset.indexed and self._dataset._steps_per_epoch is None:
                deque(cast("Iterator[T]", self._items), maxlen=0)

    def state(self) -> State:
        """Where it stands; the same share goes on from it."""
        self._look_for_end()
        return {
            "share": self.mark,
            "place": list(self._place),
            "made": self._made,
            "over": self._over,
            "reader": self._loader.state_dict(),
        }

    def place_of(self, saved: _ShareState) -> Place:
        """Where the loop starts in which a state was taken; `StateError` for another share's."""
        if saved.share != self.mark:
            raise StateError(
                f"the state is of rank, world size, worker, workers {saved.share}, this is "
                f"{self.mark}. A worker's state goes on with as many of them; that of "
                "state_dict(steps), asked of the dataset outside of workers, with any number"
            )
        return saved.place[0], saved.place[1]
