"""What a loader is told beside the dataset and the ranks, checked."""

from __future__ import annotations

import logging
import multiprocessing
import sys
from collections.abc import Callable
from dataclasses import dataclass

from energize.errors import ConfigError, EncoderError
from energize.loader.ahead import DEFAULT_BYTES
from energize.loader.epochs import checked_uneven
from energize.numbers import checked_whole
from energize.reading import raise_error

DEFAULT_TIMEOUT = 300.0
"""Seconds: less than the collectives of other ranks wait before they give up (NCCL's 600)."""

OnError = Callable[[EncoderError], None]

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
        if not isinstance(self.asked_ahead, bool):
            raise ConfigError(f"asked_ahead is True or False; got {self.asked_ahead!r}")
        timeout = self.timeout
        number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
        if timeout is not None and not (number and timeout > 0):
            raise ConfigError(f"timeout is a number of seconds above 0, or None; got {timeout!r}")
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
    def decide(self) -> OnError:
        """What decides about exceptions of users' functions."""
        if callable(self.on_error):
            return self.on_error
        return leave_out if self.on_error == "skip" else raise_error


def leave_out(error: EncoderError) -> None:
    """Every sample that makes a user's function raise is left out, and counted as failed."""
