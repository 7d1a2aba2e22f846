"""What means something else in Megatron-Energon than in energize, as it is meant there.

A program that imports from `energize.energon` gives its datasets this `WorkerConfig`,
and by it they say what Energon's say: a length is that of this rank, and `for item in
dataset` gives this rank's share, or that of a worker of torch's DataLoader. The stream
is the one of energize.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

import torch
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    default_convert,
    get_worker_info,
)

from energize.core import lanes, tree
from energize.core.call import index_of_call
from energize.core.checks import checked_function
from energize.core.config import leaves
from energize.core.dataset import Dataset
from energize.core.failures import FailurePolicy
from energize.core.ignored import said_once
from energize.core.lanes import Lane
from energize.core.loss_weights import STORED_KEY
from energize.core.os_errors import is_url
from energize.core.restoring import restore_sample
from energize.core.stream import State
from energize.data.files import path_of
from energize.data.source import ShardedSource
from energize.energon.failures import ErrorHandler, HandlerPolicy
from energize.errors import (
    ConfigError,
    NotIndexedError,
    StateError,
    StateMismatchError,
    log_exception,
    reraise_exception,
)
from energize.loader import loader as loaders
from energize.loader.run import Run
from energize.loader.state import tree_of

T = TypeVar("T")

_log = logging.getLogger("energize")

IterableDataset.register(Dataset)


class _Active:
    def __get__(self, instance: Any, kind: type[WorkerConfig]) -> WorkerConfig | None:
        activated = kind._activated
        found: WorkerConfig | None = (
            activated[0] if activated else index_of_call.get((0, None))[1]
        )
        return found


@dataclass(frozen=True, init=False, repr=False, eq=False)
class WorkerConfig(lanes.WorkerConfig):
    """As `energize.WorkerConfig`, in the meaning of Megatron-Energon: lengths and
    limits count what this rank has, iterating over a dataset gives this rank's share of
    it, and a sample for which a function raises is logged and left out, unless
    `global_error_handler` says else.

    >>> from energize import ListSource, MapDataset
    >>> config = WorkerConfig(rank=1, world_size=2, num_workers=0)
    >>> letters = MapDataset(ListSource("abcdef"), str.upper, worker_config=config)
    >>> len(letters), list(letters)
    (3, ['B', 'D', 'F'])
    """

    active_worker_config: ClassVar[Any] = _Active()
    """The config between `worker_activate` and `worker_deactivate`; else that of the
    loader for which a function of the user is, or was last, called here, or None."""

    _activated: ClassVar[list[WorkerConfig]] = []

    _numbers: ClassVar[list[int]] = []

    global_error_handler: ErrorHandler | None
    restore_error_handler: ErrorHandler | None
    worker_debug_path: str | None
    worker_log_level: int

    def __init__(
        self,
        rank: int | None = None,
        world_size: int | None = None,
        num_workers: int = 0,
        data_parallel_group: Any = None,
        seed_offset: int = 0,
        *,
        worker_debug_path: str | None = None,
        worker_log_level: int = 0,
        global_error_handler: ErrorHandler | None = log_exception,
        restore_error_handler: ErrorHandler | None = reraise_exception,
    ) -> None:
        super().__init__(
            rank,
            world_size,
            num_workers,
            data_parallel_group,
            seed_offset,
        )
        for name, handler in (
            ("global_error_handler", global_error_handler),
            ("restore_error_handler", restore_error_handler),
        ):
            if handler is not None:
                checked_function(handler, f"WorkerConfig: {name}")
            object.__setattr__(self, name, handler)
        if is_url(worker_debug_path):
            raise ConfigError(
                f"worker_debug_path: {path_of(str(worker_debug_path))} is in a store, "
                "which has no "
                "files to append lines to; name a file of this machine"
            )
        object.__setattr__(self, "worker_debug_path", worker_debug_path)
        object.__setattr__(self, "worker_log_level", worker_log_level)

    def __reduce__(self) -> tuple[Any, ...]:
        """In another process the ranks of torch.distributed are numbers, too."""
        make, arguments = super().__reduce__()
        if arguments[0] is None and self.ranks().group is not None:
            arguments = (self.rank, self.world_size, *arguments[2:])
        options: dict[str, Any] = {
            "worker_debug_path": self.worker_debug_path,
            "worker_log_level": self.worker_log_level,
            "global_error_handler": self.global_error_handler,
            "restore_error_handler": self.restore_error_handler,
        }
        return partial(make, **options), arguments

    @property
    def failures(self) -> FailurePolicy:
        """The policy by which `global_error_handler` decides."""
        return HandlerPolicy(handler=self.global_error_handler)

    # What datasets that carry it ask.

    def over_ranks(self, count: int) -> int:
        return count * self.world_size

    def of_calls(self) -> WorkerConfig:
        return self

    def length(self, dataset: Dataset[Any]) -> int:
        steps = tree.steps_per_loop(dataset)
        if steps is not None:
            return steps
        return len(range(self.rank, _length(dataset), self.world_size))

    def iterate(self, dataset: Dataset[T]) -> Iterator[T]:
        """Go on in this rank's share of a dataset, or a worker's, where it was left or
        restored.
        """
        cursor = dataset.open(self.lane(), _saved(dataset))
        _running(dataset)["cursor"] = cursor
        return cursor

    def method(self, dataset: Dataset[Any], name: str) -> Callable[..., Any] | None:
        function = _METHODS.get(name)
        return None if function is None else partial(function, dataset)

    def lane(self, worker: int | None = None) -> Lane:
        """Return the share of this process: of a worker of torch's DataLoader, or of
        the rank; or of a worker of this rank.
        """
        info = get_worker_info()
        if worker is None:
            worker, many = (0, 1) if info is None else (info.id, info.num_workers)
        else:
            many = max(self.num_workers, 1)
        return Lane(worker * self.world_size + self.rank, many * self.world_size)

    # What Energon's has.

    def worker_activate(
        self,
        sample_index: int,
        override_global_rank: int | None = None,
        cache_pool: Any = None,
    ) -> None:
        """Make it the `active_worker_config`; nothing here needs that to be read."""
        self._activated[:] = [self]
        WorkerConfig._numbers[:] = [sample_index]

    def worker_push_sample_index(self, sample_index: int) -> None:
        """Count in what is below from now on."""
        self._numbers.append(sample_index)

    def worker_pop_sample_index(self) -> int:
        """Return to what was counted before."""
        return self._numbers.pop()

    def worker_deactivate(self) -> None:
        """End what `worker_activate` began."""
        self._activated.clear()
        self._numbers.clear()

    @property
    def active_worker_sample_index(self) -> int:
        """The number of the sample, which no other worker of this rank has."""
        return self._numbers[-1] * max(self.num_workers, 1) + self.rank_worker_id()

    @property
    def active_worker_batch_index(self) -> int:
        """The number of the batch, which no other worker of this rank has."""
        return self._numbers[0] * max(self.num_workers, 1) + self.rank_worker_id()

    def global_rank(self) -> int:
        """Return the rank in the world, where `rank` is that in the data parallel
        group.
        """
        group = self.data_parallel_group
        return (
            self.rank
            if group is None
            else torch.distributed.get_global_rank(group, self.rank)
        )

    def rank_worker_id(self) -> int:
        """Return the number of this worker of torch's DataLoader; 0 outside of one."""
        info = get_worker_info()
        return 0 if info is None else info.id

    def assert_worker(self) -> None:
        """Nothing has to be so: a dataset can be read in any process."""

    def global_worker_id(self, override_local_worker_id: int | None = None) -> int:
        """Return `rank * num_workers` and the number of this worker, or of another
        one.
        """
        own = self.rank_worker_id() if override_local_worker_id is None else 0
        return self.rank * self.num_workers + (override_local_worker_id or own)

    def worker_seed(self, override_local_worker_id: int | None = None) -> int:
        """Return Energon's seed of a worker, for code that draws by it: the last 32
        bits of the SHA-1 of "global worker, seed_offset". Nothing here is seeded by it.
        """
        worker = (
            self.global_worker_id(override_local_worker_id)
            if self.num_workers
            else self.rank
        )
        text = f"{worker},{self.seed_offset}"
        digest = hashlib.sha1(text.encode(), usedforsecurity=False).digest()
        return int.from_bytes(digest[-4:], "big")

    def config(self) -> dict[str, Any]:
        """Return rank, world size, workers, and the size of the group, if there is
        one.
        """
        group = self.data_parallel_group
        return {
            "rank": self.rank,
            "world_size": self.world_size,
            "num_workers": self.num_workers,
            "data_parallel_group": None if group is None else group.size(),
        }

    def should_log(self, level: int) -> bool:
        """Return whether `worker_log_level` asks for what is logged at a level."""
        return level <= self.worker_log_level

    def worker_log(self, data: dict[str, Any]) -> None:
        """Print a line of JSON, or append it to the file `worker_debug_path`, in which
        {worker_id} and {pid} stand for the numbers of this worker and process.
        """
        line = json.dumps(data)
        if self.worker_debug_path is None:
            print(line, flush=True)
            return
        worker = self.rank * (self.num_workers + 1) + (self.rank_worker_id())
        worker += get_worker_info() is not None
        path = Path(self.worker_debug_path.format(worker_id=worker, pid=os.getpid()))
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(line + "\n")


def _length(dataset: Dataset[Any]) -> int:
    """Return the items of a pass on all ranks; where only reading tells, an estimate:
    as many as the input has, which filters make fewer, and packs more.
    """
    try:
        return tree.pass_length(dataset)
    except NotIndexedError:
        text = "its length is an estimate: only reading tells how many items it gives"
        said_once(type(dataset).__name__, "length", text, logging.WARNING)
        total = sum(_length(each) for each in dataset.inputs)
        return math.ceil(total / (getattr(dataset, "batch_size", 1) or 1))


# What Energon's datasets are asked for: here a cursor moves, and the dataset remembers
# its last.


def _running(dataset: Dataset[Any]) -> dict[str, Any]:
    return cast("dict[str, Any]", dataset.__dict__.setdefault("_running", {}))


def _saved(dataset: Dataset[Any]) -> State | None:
    running = _running(dataset)
    return running["cursor"].state() if "cursor" in running else running.get("state")


def _restore_state(dataset: Dataset[Any], state: State | None) -> None:
    running = _running(dataset)
    running.clear()
    if state:
        running["state"] = dict(state)


def _len_worker(dataset: Dataset[Any], worker_idx: int | None = None) -> int:
    config = cast("WorkerConfig", dataset.worker_config)
    lane = config.lane(worker_idx)
    return len(range(lane.index, _length(dataset), lane.count))


_METHODS: dict[str, Callable[..., Any]] = {
    "save_state": lambda dataset: _saved(dataset) or {},
    "restore_state": _restore_state,
    "reset_state_own": partial(_restore_state, state=None),
    "reset_state_deep": partial(_restore_state, state=None),
    "len_rank": len,
    "len_worker": _len_worker,
    "worker_has_samples": lambda dataset: _len_worker(dataset) > 0,
    "can_restore_sample": lambda _: True,
    "assert_can_restore": lambda _: True,
    "restore_sample": restore_sample,
    "config": Dataset.describe,
}
"""The methods of a `SavableDataset` there."""


class SavableDataLoader(loaders.SavableDataLoader[T], DataLoader[T]):  # type: ignore[misc]
    """As `energize.SavableDataLoader`, and to `isinstance` a DataLoader of torch, as
    Energon's.

    Failed samples are not counted against a budget, unless `failures` says so; and a
    state of a mix that was changed is loaded as far as that goes, with a warning:
    see `Loader.load_state_dict`, `on_mismatch="remap"`.
    """

    order_name = "SavableDataLoader"

    batch_size = None
    drop_last = False
    _goes_on = True

    def __init__(
        self,
        dataset: Dataset[T],
        *,
        worker_config: WorkerConfig | None = None,
        **options: Any,
    ) -> None:
        config = getattr(dataset, "worker_config", None)
        if worker_config is not None:
            config = worker_config
        has_policy = config is not None and config.failures is not None
        if not has_policy and "failures" not in options:
            on_error = options.pop("on_error", None) or "raise"
            options["failures"] = FailurePolicy(on_error=on_error, budget=None)
        super().__init__(dataset, worker_config=worker_config, **options)

    def restore_sample(self, restore_key: tuple[Any, ...], **options: Any) -> T:
        """Restore an item; `restore_error_handler` decides about samples that fail."""
        handler = getattr(self.worker_config, "restore_error_handler", None)
        if handler is not None:
            options.setdefault("failures", HandlerPolicy(handler=handler))
        return super().restore_sample(restore_key, **options)

    def __iter__(self) -> Iterator[T]:  # type: ignore[override]
        """Numpy arrays in batches that are dicts, lists or tuples come as tensors, as
        from torch's DataLoader.
        """
        return map(_converted, super().__iter__())

    @property
    def num_workers(self) -> int:  # type: ignore[override]
        """The workers of this rank."""
        return self.worker_config.num_workers

    def __len__(self) -> int:
        """Steps of a loop on this rank; an estimate where only reading tells, of packs
        say.
        """
        try:
            return super().__len__()
        except NotIndexedError:
            return math.ceil(_length(self.dataset) / self.worker_config.world_size)

    def load_state_dict(
        self,
        state_dict: State | None,
        strict: bool = True,
        *,
        on_mismatch: str = "remap",
    ) -> None:
        """As `Loader.load_state_dict`; None begins at the beginning, as there."""
        if state_dict is None:
            return
        try:
            super().load_state_dict(state_dict, strict)
        except StateMismatchError as mismatch:
            if on_mismatch != "remap":
                raise
            self._take_names_of(state_dict)
            try:
                super().load_state_dict(state_dict, strict, on_mismatch="remap")
            except StateError:
                raise mismatch from None
            told = str(mismatch).partition("\nBuild ")[
                0
            ]  # what to do instead is done here
            _log.warning("the state goes on in a mix that was changed: %s", told)

    restore_state_rank = load_state_dict

    def _take_names_of(self, state: State) -> None:
        """Know folders that were renamed by the names that they have in a state."""
        named = {
            leaf.get("name"): leaf.get("identity") for leaf in leaves(tree_of(state))
        }
        dataset = _under_names(self.dataset, named)
        if dataset != self.dataset:
            self.dataset = dataset
            workers = self.worker_config.num_workers
            self._run = Run(dataset, self._settings, self._context, workers)


def _converted(item: Any) -> Any:
    if type(item) is dict:
        item.pop(
            STORED_KEY, None
        )  # the loader's own copy, and a key that nobody asked for
    return default_convert(item)  # type: ignore[no-untyped-call]


def _under_names(node: Any, named: Mapping[Any, Any]) -> Any:
    """Return a dataset whose folders are called as in a state, found there by what they
    hold.
    """
    if node.inputs:
        return node.with_inputs([_under_names(each, named) for each in node.inputs])
    if isinstance(node, ShardedSource) and node.name not in named:
        for name, identity in named.items():
            other = node.called(str(name))
            if identity and other.identity.startswith(identity):
                text = "the folder %s goes on as %r, which it was called"
                _log.warning(text, node.location, name)
                return other
    return node


BasicDataLoader = get_savable_loader = get_loader = SavableDataLoader


# What runs around a fork.


class WeakCallbacks:
    """Functions that others keep alive, called together; of an object the last method
    added.
    """

    def __init__(self) -> None:
        self._hooks: dict[int, Callable[[], Callable[..., None] | None]] = {}

    def add_hook(
        self,
        callable: Callable[..., None],  # noqa: A002
        make_persistent: bool = False,
    ) -> None:
        """Add a function or a method; it is kept alive here if `make_persistent`."""
        kept_by = getattr(callable, "__self__", callable)
        key = id(kept_by)
        kind: Any = weakref.ref if kept_by is callable else weakref.WeakMethod
        ended = partial(self._hooks.pop, key)
        self._hooks[key] = (
            (lambda: callable) if make_persistent else kind(callable, ended)
        )

    def run(self, *args: Any, **kwargs: Any) -> None:
        """Call all that are still there."""
        for hook in [found() for found in list(self._hooks.values())]:
            if hook is not None:
                hook(*args, **kwargs)


_before = WeakCallbacks()
_in_parent = WeakCallbacks()
_in_child = WeakCallbacks()
os.register_at_fork(
    before=_before.run, after_in_parent=_in_parent.run, after_in_child=_in_child.run
)


before_fork_hook = _before.add_hook
"""Calls a function before each fork of this process; it is kept alive if
`make_persistent`."""
after_in_parent_fork_hook = _in_parent.add_hook
"""Calls a function in this process after each fork of it."""
after_in_child_fork_hook = _in_child.add_hook
"""Calls a function in each process that is forked off this one."""


class ForkMixin:
    """Has its methods called around each fork, for as long as it lives."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.__post_init__()

    def __post_init__(self) -> None:
        """Register the methods; a dataclass calls it by itself."""
        before_fork_hook(self.__before_fork__)
        after_in_parent_fork_hook(self.__after_in_parent_fork__)
        after_in_child_fork_hook(self.__after_in_child_fork__)

    def __before_fork__(self) -> None:
        """Act before a fork."""

    def __after_in_parent_fork__(self) -> None:
        """Act in the parent after a fork."""

    def __after_in_child_fork__(self) -> None:
        """Act in the child after a fork."""


DataclassForkMixin = ForkMixin
