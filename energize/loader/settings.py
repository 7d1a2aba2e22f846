"""What a loader is told beside the dataset and the ranks, checked."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from energize.core.checks import checked_whole
from energize.core.dataset import Dataset
from energize.core.lanes import WorkerConfig
from energize.errors import ConfigError, nearest
from energize.loader.failures import OnError
from energize.loader.feeds import UNEVEN
from energize.loader.watchdog import Patience
from energize.report import Ledger

T = TypeVar("T")

DEFAULT_BYTES = 2**29
"""Bytes that one rank's workers read ahead together: 40 photographs of 2000 x 2000 pixels."""

DEFAULT_TIMEOUT = 300.0
"""Seconds: less than the collectives of other ranks wait before they give up (NCCL's 600)."""

WATCH_SECONDS = 60.0
"""Seconds without an item after which it is said what is busy, and with what."""

ListPath = str | os.PathLike[str]


def _is_seconds(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return value is None or (number and value > 0)


_COUNTS = {
    "lanes": 1,
    "global_batch_size": 1,
    "micro_batch_size": 1,
    "prefetch_factor": 1,
    "failure_budget": 0,
    "prefetch_bytes": 1,
}
"""Whole numbers, and the least that each may be."""

_FLAG = (lambda value: isinstance(value, bool)), "True or False"
_SECONDS = _is_seconds, "a number of seconds above 0, or None"
_METHODS = (None, *multiprocessing.get_all_start_methods())

_CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "uneven": (lambda value: value in UNEVEN, f"one of {', '.join(UNEVEN)}"),
    "asked_ahead": _FLAG,
    "fail_on_timeout": _FLAG,
    "timeout": _SECONDS,
    "watchdog_timeout_seconds": _SECONDS,
    "watchdog_initial_timeout_seconds": _SECONDS,
    "cache_pool": (
        lambda value: value is None or callable(getattr(value, "close", None)),
        "a CachePool, or None",
    ),
    "ledger": (
        lambda value: isinstance(value, Ledger | bool),
        "a Ledger, which says what to count beside samples, True, or False for none",
    ),
    "quarantine": (
        lambda value: isinstance(value, str | os.PathLike | None),
        "the path of a file, or None",
    ),
    "on_error": (
        lambda value: value in ("raise", "skip") or callable(value),
        "'raise', 'skip', or a function that is given the EncoderError and raises it, or returns "
        "to have the sample left out",
    ),
    "multiprocessing_context": (
        lambda value: value in _METHODS,
        f"one of {', '.join(map(str, _METHODS[1:]))} here, or None",
    ),
}
"""What else is checked: whether a value fits, and what does."""


@dataclass(frozen=True)
class LoaderSettings:
    """The arguments of `get_loader`; `ConfigError` for a value that cannot be used."""

    uneven: str = "pad"
    lanes: int | None = None
    global_batch_size: int | None = None
    micro_batch_size: int | None = None
    prefetch_factor: int | None = None
    prefetch_bytes: int = DEFAULT_BYTES
    pin_memory: bool | None = None
    failure_budget: int | None = 100
    on_error: str | OnError = "raise"
    multiprocessing_context: str | None = None
    timeout: float | None = DEFAULT_TIMEOUT
    asked_ahead: bool = False
    cache_pool: Any = None
    quarantine: ListPath | None = None
    skip_listed: ListPath | Sequence[ListPath] = ()
    watchdog_timeout_seconds: float | None = WATCH_SECONDS
    watchdog_initial_timeout_seconds: float | None = None
    fail_on_timeout: bool = False
    ledger: Ledger | bool = True
    apart: bool = False
    """Whether a loader has no others to talk with; its state is then good for itself only."""

    def __post_init__(self) -> None:
        for name, least in _COUNTS.items():
            if getattr(self, name) is not None:
                object.__setattr__(self, name, checked_whole(getattr(self, name), name, least))
        for name, (fits, what) in _CHECKS.items():
            value = getattr(self, name)
            if not fits(value):
                known = nearest(value, UNEVEN) if name == "uneven" and type(value) is str else ""
                raise ConfigError(f"{name} is {what}; got {value!r}{known}")

    @property
    def start_method(self) -> str:
        """How workers start."""
        default = "fork" if sys.platform == "linux" else "spawn"
        return self.multiprocessing_context or default

    @property
    def patience(self) -> Patience:
        """When to say that no item comes."""
        return Patience(
            self.watchdog_timeout_seconds,
            self.watchdog_initial_timeout_seconds,
            self.fail_on_timeout,
        )

    @property
    def silence(self) -> float | None:
        """Seconds after which another worker takes the place of a silent one: `timeout`, and where
        nobody gave one, not before the watchdog has spoken.
        """
        limits = (self.watchdog_timeout_seconds, self.watchdog_initial_timeout_seconds)
        if self.timeout != DEFAULT_TIMEOUT:
            return self.timeout
        return max([DEFAULT_TIMEOUT, *(2 * each for each in limits if each is not None)])

    @property
    def lists(self) -> tuple[str, ...]:
        """The paths of lists of samples to leave out."""
        given = self.skip_listed
        paths = (given,) if isinstance(given, str | os.PathLike) else tuple(given)
        return tuple(os.fspath(each) for each in paths)


def configured(dataset: Dataset[T], given: WorkerConfig | None) -> tuple[Dataset[T], WorkerConfig]:
    """The dataset and the config that it is read with; see `get_loader`."""
    carried = dataset.worker_config
    config = given or carried or WorkerConfig()
    if carried is None:
        return dataset.reseeded(config.seed_offset) if config.seed_offset else dataset, config
    if carried.seed_offset != config.seed_offset:
        raise ConfigError(
            f"the loader's worker config has seed_offset {config.seed_offset}, the dataset was "
            f"built with seed_offset {carried.seed_offset}: they name different orders. Build the "
            "dataset with the loader's worker config, or use one seed_offset for both"
        )
    return dataset, config
