"""What a loader is told beside the dataset and the ranks, checked."""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from energize.core.checks import checked_whole
from energize.errors import ConfigError
from energize.ledger import Ledger
from energize.loader.ahead import DEFAULT_BYTES
from energize.loader.deciding import OnError
from energize.loader.epochs import checked_uneven
from energize.loader.watching import Patience

DEFAULT_TIMEOUT = 300.0
"""Seconds: less than the collectives of other ranks wait before they give up (NCCL's 600)."""

WATCH_SECONDS = 60.0
"""Seconds without an item after which it is said what is busy, and with what."""

ListPath = str | os.PathLike[str]

_log = logging.getLogger("energize")


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
        checked_uneven(self.uneven)
        for name, least in (
            ("lanes", 1),
            ("global_batch_size", 1),
            ("micro_batch_size", 1),
            ("prefetch_factor", 1),
            ("failure_budget", 0),
            ("prefetch_bytes", 1),
        ):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, checked_whole(getattr(self, name), name, least))
        for name in ("asked_ahead", "fail_on_timeout"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} is True or False; got {getattr(self, name)!r}")
        for name in ("timeout", "watchdog_timeout_seconds", "watchdog_initial_timeout_seconds"):
            _check_seconds(getattr(self, name), name)
        if self.cache_pool is not None and not callable(getattr(self.cache_pool, "close", None)):
            raise ConfigError(f"cache_pool is a CachePool, or None; got {self.cache_pool!r}")
        if not isinstance(self.ledger, Ledger | bool):
            raise ConfigError(
                "ledger is a Ledger, which says what to count beside samples, True, or False for "
                f"none; got {self.ledger!r}"
            )
        if not isinstance(self.quarantine, str | os.PathLike | None):
            raise ConfigError(f"quarantine is the path of a file, or None; got {self.quarantine!r}")
        if self.on_error not in ("raise", "skip") and not callable(self.on_error):
            raise ConfigError(
                "on_error is 'raise', 'skip', or a function that is given the EncoderError and "
                f"raises it, or returns to have the sample left out; got {self.on_error!r}"
            )
        known = multiprocessing.get_all_start_methods()
        if self.multiprocessing_context not in (None, *known):
            raise ConfigError(
                f"multiprocessing_context is one of {', '.join(known)} here, or None; got "
                f"{self.multiprocessing_context!r}"
            )

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


def _check_seconds(value: object, name: str) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is not None and not (number and value > 0):  # type: ignore[operator]  # a number
        raise ConfigError(f"{name} is a number of seconds above 0, or None; got {value!r}")
