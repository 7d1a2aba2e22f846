"""The loader of Megatron-Energon: a torch DataLoader with a state."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from torch.utils.data import DataLoader, default_convert

from energize.core import lanes
from energize.core.config import leaves
from energize.core.dataset import Dataset
from energize.core.records import STORED_KEY
from energize.core.stream import State
from energize.data.source import ShardedSource
from energize.energon.failures import HandlerPolicy
from energize.energon.ranks import RankView, SavableDataset, pass_length
from energize.energon.worker import EnergonWorkerConfig
from energize.errors import NotIndexedError, StateError, StateMismatchError
from energize.loader import loader as loaders
from energize.loader.loader import SavableDataLoaderState
from energize.loader.run import Run
from energize.loader.settings import WARN_SECONDS
from energize.loader.state import tree_of

__all__ = [
    "BasicDataLoader",
    "EnergonLoader",
    "SavableDataLoader",
    "SavableDataLoaderState",
    "get_loader",
    "get_savable_loader",
]

T = TypeVar("T")

_log = logging.getLogger("energize")


class EnergonLoader(loaders.SavableDataLoader[T], DataLoader[T]):  # type: ignore[misc]
    """`energize.loader.loader.SavableDataLoader` with the defaults of Megatron-Energon.

    It is a torch `DataLoader`, and its `dataset` is a `RankView`. The default policy
    for failures is a `HandlerPolicy` with the `global_error_handler` of the worker
    config: failed samples have no budget, 100 consecutive failures of a function end
    the run, and functions with differing results cause a warning. A state of a changed
    mix is loaded as far as possible, with a warning; see `Loader.load_state_dict`.
    Numpy arrays in batches are delivered as tensors.

    Args:
        dataset: The dataset to deliver.
        worker_config: Ranks and workers; by default those that the dataset carries.
        watchdog_timeout_seconds: The `warn_after` of `energize.get_loader`.
        watchdog_initial_timeout_seconds: Seconds that the first item of a worker may
            take, if `fail_on_timeout` is set.
        fail_on_timeout: Whether a worker that exceeds the time-out is replaced, and the
            third time-out in its place raises a `LoaderError`: the `timeout` of
            `energize.get_loader`. Without workers there are only warnings.
        **options: Options of `energize.get_loader`.
    """

    order_name = "SavableDataLoader"

    batch_size = None
    drop_last = False

    def __init__(
        self,
        dataset: Dataset[T],
        *,
        worker_config: lanes.WorkerConfig | None = None,
        watchdog_timeout_seconds: float | None = WARN_SECONDS,
        watchdog_initial_timeout_seconds: float | None = None,
        fail_on_timeout: bool = False,
        **options: Any,
    ) -> None:
        options.setdefault("warn_after", watchdog_timeout_seconds)
        limits = watchdog_timeout_seconds, watchdog_initial_timeout_seconds
        if fail_on_timeout and any(limits):
            options.setdefault("timeout", max(limit or 0.0 for limit in limits))
        config = worker_config or getattr(dataset, "worker_config", None)
        handler = None
        if isinstance(config, EnergonWorkerConfig):
            handler = config.global_error_handler
            workers = options.get("num_workers")
            options["call_config"] = (
                config if workers is None else config.with_workers(workers)
            )
        options["continues_loops"] = True
        if options.get("failures") is None:
            on_error = options.pop("on_error", None) or "raise"
            options["failures"] = HandlerPolicy(on_error=on_error, handler=handler)
        if isinstance(dataset, Dataset | SavableDataset) and not isinstance(
            dataset, RankView
        ):
            dataset = RankView(dataset)
        super().__init__(dataset, worker_config=worker_config, **options)

    def restore_sample(self, restore_key: tuple[Any, ...], **options: Any) -> T:
        """Restore an item; `restore_error_handler` decides about samples that fail.

        Args:
            restore_key: The key of the item.
            **options: Options of `Loader.restore_sample`.
        """
        handler = getattr(self.worker_config, "restore_error_handler", None)
        if handler is not None:
            options.setdefault("failures", HandlerPolicy(handler=handler))
        return super().restore_sample(restore_key, **options)

    def __iter__(self) -> Iterator[T]:  # type: ignore[override]
        """Deliver batches, with tensors in place of the numpy arrays in them."""
        return map(_converted, super().__iter__())

    @property
    def num_workers(self) -> int:  # type: ignore[override]
        """The workers of this rank."""
        return self.worker_config.num_workers

    def __len__(self) -> int:
        """Return the steps of a loop on this rank; else an estimate."""
        try:
            return super().__len__()
        except NotIndexedError:
            return math.ceil(pass_length(self.dataset) / self.worker_config.world_size)

    def load_state_dict(
        self,
        state_dict: State | None,
        strict: bool = True,
        *,
        on_mismatch: str = "remap",
    ) -> None:
        """Load a state, as `Loader.load_state_dict` does.

        Args:
            state_dict: The state; None starts at the first item.
            strict: As in `Loader.load_state_dict`.
            on_mismatch: "remap" loads a state of another mix as far as possible.
        """
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
            # The remedy of the message is what was done here.
            difference = str(mismatch).partition("\nBuild ")[0]
            _log.warning("the state resumes in a changed mix: %s", difference)

    restore_state_rank = load_state_dict

    def _take_names_of(self, state: State) -> None:
        """Give renamed folders the names that they have in a state."""
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
        item.pop(STORED_KEY, None)  # an addition of the loader to its own copy
    return default_convert(item)  # type: ignore[no-untyped-call]


def _under_names(node: Any, named: Mapping[Any, Any]) -> Any:
    """Return a dataset with folders named as in a state, matched by content."""
    if node.inputs:
        return node.with_inputs([_under_names(child, named) for child in node.inputs])
    if isinstance(node, ShardedSource) and node.name not in named:
        for name, identity in named.items():
            other = node.called(str(name))
            if identity and other.identity.startswith(identity):
                text = "the folder %s resumes as %r, its earlier name"
                _log.warning(text, node.location, name)
                return other
    return node


SavableDataLoader = EnergonLoader
BasicDataLoader = EnergonLoader
get_savable_loader = EnergonLoader
get_loader = EnergonLoader
