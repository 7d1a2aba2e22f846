"""Any dataset under torch's own DataLoader, and torchdata's StatefulDataLoader."""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing.context import get_spawning_popen
from pathlib import Path
from typing import Annotated, Any, Generic, TypeAlias, TypeVar

from pydantic import Field, NonNegativeInt, TypeAdapter
from torch.utils.data import IterableDataset, get_worker_info

from energize.core import tree
from energize.core.checks import checked_whole
from energize.core.dataset import Dataset
from energize.core.failures import FailurePolicy, OnError
from energize.core.lanes import WorkerConfig
from energize.core.node import INFINITE
from energize.core.restoring import without_loops
from energize.core.stream import State, counter_field
from energize.core.validation import Model, validated
from energize.datasets.order import EpochizeDataset
from energize.errors import ConfigError, EnergizeError, LoaderError, StateError
from energize.loader import Loader
from energize.loader.epochs import plan_epoch
from energize.loader.settings import (
    LoaderSettings,
    checked_failures,
    checked_settings,
    configured,
)
from energize.loader.state import checked_state, packed_state, unpacked_state

T = TypeVar("T")

Place: TypeAlias = tuple[int, int]
"""The start of a loop: position and step in an indexed dataset; the number of the loop
and 0 for a stream."""

_UNREAD = (-1, 0)
"""The start of a share that has not begun."""

_NO_END = 2**60
"""Steps of a loop that ends where the steps of all workers are counted."""

_NO_SEED = -1
_OWNER, _SEED, _BEGUN, _JOINED, _SET, _START = range(6)

_log = logging.getLogger("energize")


def _shared_array(numbers: list[int]) -> Any:
    # Spawned workers can take over locks of this context only, forked ones any.
    return multiprocessing.get_context("spawn").Array("q", numbers)


class SharedTable:
    """Integers in memory that a process shares with the processes that it starts.

    Other copies have a table of their own, which begins with the entries from
    `_first_copied` on.
    """

    _first_copied = 0

    def __init__(self, numbers: list[int]) -> None:
        self._table: Any = self._shared(numbers)

    @staticmethod
    def _shared(numbers: list[int]) -> Any:
        return _shared_array(numbers)

    def __getstate__(self) -> dict[str, Any]:
        table = (
            self._table
            if get_spawning_popen()
            else list(self._table[self._first_copied :])
        )
        return {**self.__dict__, "_table": table}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if isinstance(self._table, list):
            self._table = self._shared(self._table)


class SharedPlace(SharedTable):
    """The start of the next loop, shared by a process and the workers of its
    DataLoaders.

    A DataLoader makes an iterator in each of its workers, which do not know each other.
    The first worker advances the place, and the others of the same loop join it.
    """

    _first_copied = _SET

    def __init__(self) -> None:
        super().__init__([1, 0, 0])
        self._begun = 0

    @staticmethod
    def _shared(numbers: list[int]) -> Any:
        return _shared_array([_process(os.getpid()), _NO_SEED, 0, 0, *numbers])

    def begin(
        self, following: Callable[[Place], Place], at: Place | None = None
    ) -> Place | None:
        """Begin a loop, or join the loop that another worker has begun.

        Args:
            following: Returns the start of the loop after the one at a start. If it
                raises, the place is unchanged.
            at: The start of the loop. By default the value of `set`, else `following`.

        Returns:
            The start of the loop; None if the loop was left before this worker joined
            it, and the next one has begun.
        """
        info = get_worker_info()
        seed = _NO_SEED if info is None else info.seed - info.id
        self._begun += 1
        with self._owned() as table:
            begun = table[_BEGUN] if table[_SEED] == seed else 0
            # Loops of equal seeds are told apart by their workers, who are all there by
            # then.
            all_joined = info is not None and table[_JOINED] >= info.num_workers
            start = table[_START], table[_START + 1]
            if self._begun > begun or all_joined:
                start = at or (start if table[_SET] else following(start))
                table[_SEED:] = [seed, self._begun, 0, 0, *start]
            elif self._begun < begun:
                return None
            table[_JOINED] += 1
            return start

    def set(self, place: Place) -> None:
        """Set the start of the next loop."""
        with self._owned() as table:
            # A worker that is slow to join the loop before is still known by its seed.
            table[_JOINED:] = [0, 1, *place]

    @property
    def start(self) -> Place:
        """The start of the last loop; before it, of the first one."""
        with self._owned() as table:
            return table[_START], table[_START + 1]

    @property
    def waiting(self) -> bool:
        """Whether no loop has begun since the start was set."""
        with self._owned() as table:
            return bool(table[_SET])

    @property
    def in_workers(self) -> bool:
        """Whether the last loop is one of DataLoader's workers."""
        with self._owned() as table:
            return not table[_SET] and table[_SEED] != _NO_SEED

    @contextmanager
    def _owned(self) -> Iterator[Any]:
        """Lock the table. A process that was started with it makes its own."""
        parent = None if get_worker_info() is None else multiprocessing.parent_process()
        if self._table[_OWNER] != _process(parent.pid or 0 if parent else os.getpid()):
            if parent is not None:
                raise LoaderError(
                    "a dataset for DataLoader was made by another process than the "
                    "one that reads it. Call as_torch_dataset in the process of each "
                    "rank"
                )
            self._table = self._shared(self._table[_SET:])
        with self._table:
            yield self._table


def _process(pid: int) -> int:
    """Return a number of a process that is not reused, unlike its id."""
    with suppress(OSError):
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        return pid << 40 | int(stat.rpartition(b")")[2].split()[19])  # when it began
    return pid  # of systems without /proc


def as_torch_dataset(
    dataset: Dataset[T],
    *,
    worker_config: WorkerConfig | None = None,
    uneven: str = "pad",
    lanes: int | None = None,
    on_error: str | OnError | None = None,
    failures: FailurePolicy | None = None,
) -> TorchDataset[T]:
    """Return an `IterableDataset` for a DataLoader with any number of workers.

    It has the items that `get_loader` delivers on this rank, in the same order. Batch
    them in the dataset (`BatchDataset`), and pass `batch_size=None` to the DataLoader;
    otherwise it makes each batch of the items of one worker. Each `for` over the
    DataLoader is the next epoch, or the next loop of `EpochizeDataset`. See
    `TorchDataset` for states.

    Args:
        dataset: The dataset to read.
        worker_config: Rank and world size, as for `get_loader`. Under Accelerate with
            several ranks this is required: it states which of the two divides the data.
        uneven: As for `get_loader`.
        lanes: As for `get_loader`.
        on_error: As for `get_loader`.
        failures: As for `get_loader`.

    Raises:
        ConfigError: If an argument cannot be used.

    Example:
        >>> from torch.utils.data import DataLoader
        >>> from energize.data.memory import ListSource
        >>> loader = DataLoader(as_torch_dataset(ListSource("abc")), batch_size=None)
        >>> list(loader), len(loader)
        (['a', 'b', 'c'], 3)
    """
    if not isinstance(dataset, Dataset):
        got = type(dataset).__name__
        raise ConfigError(f"as_torch_dataset needs an energize Dataset, got {got}")
    dataset, config = configured(dataset, worker_config)
    policy = checked_failures(failures, on_error)
    settings = checked_settings(uneven=uneven, lanes=lanes, failures=policy)
    return TorchDataset(
        dataset, config, settings, ranks_stated=worker_config is not None
    )


class TorchDataset(IterableDataset[T], Generic[T]):
    """The steps of this rank, divided among the workers of a DataLoader.

    `as_torch_dataset` creates these datasets. Worker k of N delivers the steps k, k +
    N, ... of each loop: it has a `Loader` that reads as rank r + W * k of W * N ranks.

    **State.** `state_dict(steps)` is the state of a `Loader` after this number of steps
    in the loop. It resumes with any number of ranks and workers, also in `get_loader`.
    The state of a stream is known in its workers only: use `StatefulDataLoader`, which
    collects it, and resume with the same number of ranks and workers.

    **Streams** that N workers read need loops of a number of steps that N divides. Only
    live workers continue from loop to loop: without `persistent_workers=True` new
    workers read earlier loops again, with a warning. If the length of an epoch is
    unknown, each worker reads all of it, and steps are padded as for W * N ranks.

    Args:
        dataset: The dataset to read.
        worker_config: Rank and world size.
        settings: The other arguments.
        ranks_stated: Whether the user passed `worker_config`.
    """

    order_name = "TorchDataset"

    def __init__(
        self,
        dataset: Dataset[T],
        worker_config: WorkerConfig,
        settings: LoaderSettings,
        *,
        ranks_stated: bool = False,
    ) -> None:
        self.dataset = dataset
        self.worker_config = worker_config
        self.ranks_stated = ranks_stated
        self._settings = settings
        self.place = SharedPlace()
        self._resumed: _ShareState | None = None
        self._share: _Share[T] | None = None

    def __getstate__(self) -> dict[str, Any]:
        self._check_divided_once()
        return {**self.__dict__, "_share": None}

    def __len__(self) -> int:
        """Return the number of steps of a loop on this rank."""
        return len(self._loader())

    def __iter__(self) -> Iterator[T]:
        """Begin the next loop."""
        try:
            return self._next_loop()
        except EnergizeError as error:
            return _raising(
                error
            )  # a worker of DataLoader that raises here dies without a word

    def _check_divided_once(self) -> None:
        """Raise `ConfigError` if Accelerate may divide the data among ranks as well."""
        accelerate: Any = sys.modules.get("accelerate.state")
        if self.ranks_stated or accelerate is None or not accelerate.is_initialized():
            return
        ranks = self.worker_config.ranks().world_size
        if ranks > 1:
            raise ConfigError(
                f"as_torch_dataset divides the data among {ranks} ranks, and so does "
                "Accelerate for a DataLoader that it prepares: most of the data would "
                "never be read. If Accelerate or the Trainer of transformers prepares "
                "the DataLoader, use as_torch_dataset(dataset, "
                "worker_config=WorkerConfig(rank=0, world_size=1)), else "
                "worker_config=WorkerConfig()"
            )

    def _loader(self) -> Loader[T]:
        return Loader(self.dataset, self.worker_config, self._settings)

    def _next_loop(self) -> Iterator[T]:
        ranks = self.worker_config.ranks()
        info = get_worker_info()
        self._check_divided_once()
        turn = (0, 1) if info is None else (info.id, info.num_workers)
        mark = [ranks.rank, ranks.world_size, *turn]
        saved = self._resumed
        self._resumed = None
        if saved is not None and saved.share != mark:
            self._check_fits_any_rank(saved, mark)
            self.load_state_dict(saved.reader)  # that of any rank is that of all
            self._share = None
            saved = None
        share = self._share
        if share is None or share.mark != mark:
            share = _Share(self.dataset, mark, self._settings)
        at = None if saved is None else (saved.place[0], saved.place[1])
        start = self.place.begin(self._following, at)
        if start is None:
            return iter(())
        if saved is not None:
            share.begin(start, saved.reader, saved.made, over=saved.over)
        elif self.dataset.indexed:
            share.begin(start, _state_at(share.dataset, (start[0], 0)))
        else:
            share.go_on(start)
        self._share = share
        return share

    def _check_fits_any_rank(self, saved: _ShareState, mark: list[int]) -> None:
        """Raise `StateError` for a state that only the same worker can resume from."""
        workers = max(saved.share[3], mark[3])
        if not self.dataset.indexed or workers > 1:
            raise StateError(
                f"the state is of rank, world size, worker, workers {saved.share}, "
                f"this is {mark}. Resume a worker's state with the same numbers, or "
                "save state_dict(steps) outside of workers, which resumes with any "
                "number"
            )

    def _following(self, start: Place) -> Place:
        """Return the start of the loop after the one at `start`."""
        dataset = self.dataset
        (position, step) = start
        loop = tree.steps_per_loop(dataset)
        if loop is None and dataset.sized and dataset.size == INFINITE:
            raise LoaderError(
                "the dataset never ends, so the start of a second loop is unknown. Set "
                "the number of steps in a loop (EpochizeDataset, "
                "virtual_epoch_length), or load state_dict(steps) before it"
            )
        if not dataset.indexed:
            return position + 1, 0
        if loop is not None:
            return position + (loop - step) * self.worker_config.ranks().world_size, 0
        return (position // dataset.size + 1) * dataset.size, 0

    def state_dict(self, steps: int | None = None) -> State:
        """Return a state of this rank.

        Args:
            steps: Number of steps since the start of the loop, or since the loaded
                state. By default the steps that this process has delivered, as
                `StatefulDataLoader` requires it.

        Raises:
            StateError: If the position is unknown in this process.
        """
        if steps is None and self._share is not None:
            return self._share.state()
        if steps is None and self.place.in_workers:
            raise StateError(
                "the number of steps that DataLoader's workers have delivered is "
                "unknown here. Count them and call state_dict(steps)"
            )
        if not self.dataset.indexed:
            raise StateError(
                "the position of a stream is known in the workers that read it only. "
                "Use torchdata's StatefulDataLoader, or energize.get_loader"
            )
        steps = checked_whole(steps or 0, "state_dict: steps")
        place = position, step = self.place.start
        loop = tree.steps_per_loop(self.dataset)
        world = self.worker_config.ranks().world_size
        reached = position + steps * world, step + steps * (loop is not None)
        endless = loop is None and self.dataset.size == INFINITE
        return _state_at(
            self.dataset, reached if endless else min(reached, self._following(place))
        )

    def load_state_dict(self, state_dict: State, strict: bool = True) -> None:
        """Resume from a state in the next loop; see `Loader.load_state_dict`.

        Args:
            state_dict: The state, also one of a `Loader`.
            strict: As for `Loader.load_state_dict`.
        """
        if isinstance(state_dict, dict) and "share" in state_dict:
            saved = validated(_SHARE_STATE, state_dict, StateError, "the saved state")
            checked_state(saved.reader)
            self._resumed = saved
            return
        if not self.dataset.indexed:
            raise StateError(
                "the state of a Loader over a stream cannot be divided among "
                "DataLoader's workers. Load it with energize.get_loader"
            )
        loader = self._loader()
        loader.load_state_dict(state_dict, strict)
        state = unpacked_state(self.dataset, loader.state_dict())
        self._share = None
        self._resumed = None
        step = counter_field(state, "step") if "step" in state else 0
        self.place.set((counter_field(state, "position"), step))


class _ShareState(Model):
    """The state of a worker's share: its rank and worker, its loop, and its items."""

    share: Annotated[list[NonNegativeInt], Field(min_length=4, max_length=4)]
    place: Annotated[list[NonNegativeInt], Field(min_length=2, max_length=2)]
    made: NonNegativeInt
    over: bool
    reader: dict[str, Any]


_SHARE_STATE = TypeAdapter(_ShareState)


def _state_at(dataset: Dataset[Any], place: Place) -> State:
    """Return the state of a run over an indexed dataset at the start of a loop."""
    state = tree.state_at(dataset, place[0])
    counted = tree.steps_per_loop(dataset) is not None
    return packed_state(dataset, state | {"step": place[1]} if counted else state)


def _raising(error: EnergizeError) -> Iterator[Any]:
    raise error
    yield


class _Share(Iterator[T]):
    """The steps of a rank that one process delivers.

    Args:
        dataset: The dataset to read.
        mark: Rank, world size, worker, workers.
        settings: The settings of its loader.
    """

    def __init__(
        self, dataset: Dataset[T], mark: list[int], settings: LoaderSettings
    ) -> None:
        self._dataset = dataset
        self.mark = mark
        self._settings = settings
        rank, world_size, worker, workers = mark
        loop = tree.steps_per_loop(dataset)
        uneven = settings.delivery.uneven
        if loop is not None:
            dataset = EpochizeDataset(without_loops(dataset), _NO_END)
            if loop % workers and not dataset.indexed:
                raise ConfigError(
                    f"a loop of {loop} steps over a stream cannot be divided among "
                    f"{workers} workers of a DataLoader. Use a number of workers that "
                    "divides it"
                )
        if (
            loop is not None or dataset.sized
        ):  # what is too much is cut where the rank's loop ends
            uneven = "repeat" if uneven == "repeat" else "pad"
        config = WorkerConfig(
            rank=rank + world_size * worker, world_size=world_size * workers
        )
        self.dataset = dataset
        delivery = replace(settings.delivery, uneven=uneven, standalone=True)
        self._loader = Loader(dataset, config, replace(settings, delivery=delivery))
        self._items: Iterator[T] = iter(())
        self._place: Place = _UNREAD
        self._made = self._own = 0

    def begin(
        self,
        place: Place,
        state: State | None,
        delivered: int = 0,
        *,
        over: bool = False,
    ) -> None:
        """Begin a loop, or resume in it.

        Args:
            place: The start of the loop.
            state: The state of the reader; None to continue.
            delivered: Number of items that the share has delivered in the loop.
            over: Whether the share is at the end of the loop.
        """
        if state is not None:
            self._loader.load_state_dict(state)
        self._place = place
        self._made = delivered
        self._own = delivered
        if not over:
            self._items = iter(self._loader)
            (*_, worker, workers) = self.mark
            steps = self._steps(*place)
            self._own = (
                INFINITE if steps == INFINITE else len(range(worker, steps, workers))
            )

    def _steps(self, position: int, step: int) -> int:
        """Return the steps of the rank in this loop, or `INFINITE` if unknown."""
        dataset = self._dataset
        loop = tree.steps_per_loop(self._dataset)
        if loop is not None:
            return loop - step
        if not dataset.sized or dataset.size == INFINITE:
            return INFINITE
        ranks = WorkerConfig(rank=self.mark[0], world_size=self.mark[1]).ranks()
        start = position if dataset.indexed else 0
        uneven = self._settings.delivery.uneven
        return plan_epoch(
            ranks, start, dataset.size, uneven=uneven, global_items=None
        ).steps

    def go_on(self, place: Place) -> None:
        """Begin a loop over a stream, after earlier loops were read to their ends."""
        if self._place == _UNREAD:
            self.begin((0, 0), None)
            if place[0] and not self.mark[2]:
                text = (
                    "new workers of a DataLoader find where loop %d over a stream "
                    "starts by "
                )
                text += "reading those before; set persistent_workers=True"
                _log.warning(text, place[0])
        while self._place < place:
            deque(self, maxlen=0)
            self.begin((self._place[0] + 1, 0), None)

    def __next__(self) -> T:
        if not self._ended():
            for item in self._items:
                self._made += 1
                return item
            self._own = self._made
        raise StopIteration

    def _ended(self) -> bool:
        """Return whether the loop has ended. The reader then has padding only."""
        ended = self._made >= self._own
        if (
            ended
            and not self._dataset.indexed
            and tree.steps_per_loop(self._dataset) is None
        ):
            deque(self._items, maxlen=0)
        return ended

    def state(self) -> State:
        """Return the state to resume this share from."""
        return {
            "share": self.mark,
            "place": list(self._place),
            "made": self._made,
            "over": self._ended(),
            "reader": self._loader.state_dict(),
        }
