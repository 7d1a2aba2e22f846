"""The view of one rank on a dataset: lengths, iteration and states of Megatron-Energon.

In Megatron-Energon the length of a dataset is the length on this rank, a `for` loop
reads the share of this rank, and the dataset keeps a position that can be saved. In
energize a dataset is the same on all ranks and has no position. `RankView` wraps a
dataset and adds these meanings; the wrapped dataset does not change.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Generic, TypeVar

from torch.utils.data import IterableDataset, get_worker_info

from energize.core import lanes, tree
from energize.core.dataset import Dataset, PassingDataset
from energize.core.description import as_input
from energize.core.ignored import log_once
from energize.core.lanes import Lane
from energize.core.reader import Reader
from energize.core.restoring import restore_sample
from energize.core.stream import State
from energize.datasets.transform import IterMapDataset
from energize.errors import NotIndexedError

T = TypeVar("T")
T_in = TypeVar("T_in")
T_co = TypeVar("T_co", covariant=True)


class Savable:
    """Base class for type annotations; datasets of energize hold no position."""


class SavableDataset(Generic[T_co]):
    """Base class for type annotations, and of datasets with their own `__iter__`.

    A subclass that holds another dataset and defines `__iter__` over it can be an input
    of other datasets and of loaders. It is read in segments: for `segment_length` items
    of the inner dataset, a copy of the object is iterated over, so that a run can
    resume without reading everything again. Its own methods for states are not called.

    Args:
        *args: Has no use.
        worker_config: The attribute `worker_config`.
        **kwargs: Has no use.
    """

    segment_length: ClassVar[int] = 1000
    """Items of the inner dataset that one call of `__iter__` reads."""

    def __init__(self, *args: Any, worker_config: Any = None, **kwargs: Any) -> None:
        self.worker_config = worker_config

    def to_dataset(self) -> Any:
        """Return the dataset that is read in its place; itself if it has none.

        That is an `IterMapDataset` over the only dataset among the attributes.
        """
        inner = _inner_datasets(self)
        if len(inner) != 1 or not isinstance(self, Iterable):
            return self
        return IterMapDataset(
            inner[0],
            IteratedSegment(self, inner[0], type(self).__qualname__, _settings(self)),
            len_map_fn=_same_length,
            segment_length=self.segment_length,
        )


class BaseWrapperDataset(SavableDataset[T_co], Generic[T_in, T_co]):
    """The base class of datasets over other datasets, as `SavableDataset`.

    Args:
        datasets: The inner dataset, or several.
        worker_config: The attribute `worker_config`.
    """

    def __init__(self, datasets: Any = (), *, worker_config: Any = None) -> None:
        super().__init__(worker_config=worker_config)
        is_single = isinstance(datasets, Dataset | SavableDataset)
        self.datasets = (datasets,) if is_single else tuple(datasets)

    @property
    def dataset(self) -> Any:
        """The first inner dataset."""
        if not self.datasets:
            raise AttributeError(f"{type(self).__name__} has no inner dataset")
        return self.datasets[0]


def _inner_datasets(wrapper: SavableDataset[Any]) -> list[Any]:
    """Return the datasets among the attributes of an object."""
    datasets: dict[int, Any] = {}
    for value in vars(wrapper).values():
        values = value if isinstance(value, list | tuple) else [value]
        for member in values:
            if isinstance(member, Dataset | SavableDataset):
                datasets[id(member)] = member
    return list(datasets.values())


def _settings(wrapper: SavableDataset[Any]) -> tuple[tuple[str, Any], ...]:
    """Return the attributes that are numbers, texts or None."""
    plain = (int, float, str, bool, type(None))
    items = sorted(vars(wrapper).items())
    return tuple((name, value) for name, value in items if isinstance(value, plain))


def _same_length(length: int) -> int:
    return length


@dataclass(frozen=True)
class IteratedSegment:
    """Iterates over a copy of an object, with items in place of its inner dataset.

    Attributes:
        wrapper: The object.
        inner: The inner dataset.
        name: The name of its class.
        settings: Its attributes that are numbers, texts or None.
    """

    wrapper: SavableDataset[Any] = field(compare=False)
    inner: Any = field(compare=False)
    name: str
    settings: tuple[tuple[str, Any], ...]

    def __call__(self, items: Iterator[Any]) -> Iterator[Any]:
        config = self.wrapper.worker_config
        replaced = {id(self.inner): items, id(config): config}
        fresh: Any = copy.deepcopy(self.wrapper, replaced)
        return iter(fresh)

    def describe(self) -> dict[str, Any]:
        """Return the class and the settings."""
        return {"kind": self.name, **dict(self.settings)}


class RankPosition:
    """Where a view continues: its current reader, or a state that was restored."""

    def __init__(self) -> None:
        self.reader: Reader[Any] | None = None
        self.restored: State | None = None

    def state(self) -> State | None:
        """Return the state to continue from; None starts at the first item."""
        return self.restored if self.reader is None else self.reader.state()

    def restore(self, state: State | None) -> None:
        """Continue from a state.

        Args:
            state: A state of `state()`; None starts at the first item.
        """
        self.reader = None
        self.restored = dict(state) if state else None


class RankView(
    PassingDataset[T_co], BaseWrapperDataset[Any, T_co], IterableDataset[T_co]
):
    """A dataset as one rank sees it.

    It is an `IterableDataset` of torch. `len` is the number of items that a loader
    delivers to this rank, and a `for` loop reads the share of this rank (in a worker of
    torch's `DataLoader`, the share of the worker) from where the previous loop stopped.
    As an input of other datasets and of loaders it is the wrapped dataset: same items,
    same order, same states. Attributes it does not have are those of the wrapped
    dataset.

    The position belongs to this object. It is not part of the description: it is
    neither compared, copied nor pickled.

    Args:
        dataset: The dataset to view.
        worker_config: Ranks and workers. By default the config that the dataset
            carries, else the ranks of this process.

    Example:
        >>> from energize import ListSource
        >>> from energize.energon import WorkerConfig
        >>> config = WorkerConfig(rank=1, world_size=2)
        >>> view = RankView(ListSource("abcdef"), config)
        >>> len(view), list(view)
        (3, ['b', 'd', 'f'])
    """

    order_name = "RankView"

    inputs: tuple[Dataset[T_co]]

    def __init__(
        self, dataset: Dataset[T_co], worker_config: lanes.WorkerConfig | None = None
    ) -> None:
        self.freeze([viewed(dataset)], worker_config)

    @property
    def dataset(self) -> Dataset[T_co]:
        """The dataset that is viewed."""
        return self.inputs[0]

    @property
    def datasets(self) -> tuple[Dataset[T_co]]:  # type: ignore[override]
        """The dataset that is viewed, as a tuple."""
        return self.inputs

    @cached_property
    def position(self) -> RankPosition:
        """Where the next `for` loop continues."""
        return RankPosition()

    @cached_property
    def _ranks(self) -> lanes.WorkerConfig:
        return self.worker_config or lanes.WorkerConfig()

    def __len__(self) -> int:
        """Return the items of one pass that a loader delivers to this rank.

        It is the same on all ranks: a share that is smaller is filled up. If the length
        is only known by reading, it is an estimate, with a warning: filters give fewer
        items, and packs have more samples.
        """
        steps = tree.steps_per_loop(self)
        if steps is not None:
            return steps
        return math.ceil(pass_length(self) / self._ranks.world_size)

    def __iter__(self) -> Iterator[T_co]:
        """Read the share of this rank, or of this worker, from the position on."""
        position = self.position
        position.reader = self.dataset.open(self.lane(), position.state())
        return position.reader

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "inputs":
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}"
            )
        return getattr(self.inputs[0], name)

    def __repr__(self) -> str:
        return repr(self.dataset)

    def to_dataset(self) -> Dataset[T_co]:
        """Return the dataset that is viewed."""
        return self.dataset

    def describe(self) -> dict[str, Any]:
        """Return the description of the dataset as a JSON-able tree."""
        return self.dataset.describe()

    config = describe

    def lane(self, worker: int | None = None) -> Lane:
        """Return the share of a worker of this rank.

        Args:
            worker: Number of the worker among `worker_config.num_workers`. By default
                the worker of torch's `DataLoader` in which this runs, or the whole
                rank outside of one.
        """
        config = self._ranks
        info = get_worker_info()
        workers = 1
        if worker is not None:
            workers = max(config.num_workers, 1)
        elif info is not None:
            worker = info.id
            workers = info.num_workers
        first = (worker or 0) * config.world_size
        return Lane(first + config.rank, workers * config.world_size)

    def save_state(self) -> State:
        """Return the position on this rank as a state; empty before the first item."""
        return self.position.state() or {}

    def restore_state(self, state: State | None) -> None:
        """Continue from a state at the next `for` loop.

        Args:
            state: A state of `save_state`; None or empty starts at the first item.
        """
        self.position.restore(state)

    def reset_state_own(self) -> None:
        """Start at the first item at the next `for` loop."""
        self.position.restore(None)

    reset_state_deep = reset_state_own

    def len_rank(self) -> int:
        """Return `len` of the view."""
        return len(self)

    def len_worker(self, worker_idx: int | None = None) -> int:
        """Return the items of `len` that a worker makes.

        Args:
            worker_idx: Number of the worker; see `lane`.
        """
        lane = self.lane(worker_idx)
        ranks = self._ranks.world_size
        return len(range(lane.index // ranks, len(self), lane.count // ranks))

    def worker_has_samples(self) -> bool:
        """Return whether the share of this rank or worker has items."""
        return self.lane().index < pass_length(self)

    def can_restore_sample(self) -> bool:
        """Return True: every item can be restored."""
        return True

    def assert_can_restore(self) -> None:
        """Do nothing: every item can be restored."""

    def restore_sample(self, restore_key: Any) -> T_co:
        """Return the item with a restore key.

        Args:
            restore_key: The `__restore_key__` of an item.
        """
        return restore_sample(self.dataset, restore_key)


def viewed(dataset: Any) -> Any:
    """Return the dataset behind a view or an iterated one; else the object."""
    while isinstance(dataset, RankView):
        dataset = dataset.dataset
    return as_input(dataset)


def pass_length(dataset: Dataset[Any]) -> int:
    """Return the items of one pass on all ranks.

    If the length is unknown before reading, it is an estimate, logged once: the items
    of the inputs, divided by the batch size if there is one.
    """
    dataset = viewed(dataset)
    try:
        return tree.pass_length(dataset)
    except NotIndexedError:
        text = "its length is an estimate: only reading tells how many items it gives"
        log_once(type(dataset).__name__, "length", text, logging.WARNING)
        total = sum(pass_length(source) for source in dataset.inputs)
        return math.ceil(total / (getattr(dataset, "batch_size", 1) or 1))
