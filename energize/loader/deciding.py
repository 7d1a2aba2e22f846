"""What becomes of samples that fail while a loader reads: one mechanism for all who have a say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from energize.core.lanes import ErrorHandler
from energize.core.quarantine import Listed
from energize.core.reading import Failed, Reading, raise_error
from energize.data.files import of_machine
from energize.errors import (
    ConfigError,
    DatasetError,
    EncoderError,
    FatalSampleError,
    ReturnError,
)
from energize.ledger.left_out import LeftOut

OnError = Callable[[EncoderError], None]

_PROGRAM_ERRORS = (
    ImportError,
    MemoryError,
    NameError,
    RecursionError,
    ReferenceError,
    StopAsyncIteration,
    StopIteration,
    SyntaxError,
    SystemError,
)
"""What is wrong with the program or the machine, and would be with the next sample too."""


def leave_out(error: EncoderError) -> None:
    """Every sample that makes a user's function raise is left out, and counted as failed."""


@dataclass(frozen=True)
class ByHandler:
    """An `on_error` that asks the handler of a worker config.

    The handler is not asked about what is wrong with the program itself, which is a
    `FatalSampleError`.
    """

    handler: ErrorHandler

    def __call__(self, error: EncoderError) -> None:
        cause = error.__cause__
        if not isinstance(cause, Exception):
            raise error
        if isinstance(cause, _PROGRAM_ERRORS) or of_machine(cause):
            raise FatalSampleError(
                f"{error}\n  (a {type(cause).__name__} is no fault of a sample, so no handler was "
                "asked)"
            ) from cause
        try:
            self.handler(cause, error.sample, sources_of(error.sample))
        except Exception as raised:
            if raised is cause:
                cause.add_note(str(error))
            raise

    def told(self, failed: Failed) -> None:
        """Ask about a damaged sample, of which there is nothing to show but where it is."""
        if not isinstance(failed.reason, EncoderError):
            self.handler(failed.reason, failed.where, ())


@dataclass(frozen=True)
class Decisions:
    """Who decides about exceptions (`on_error`), whether the places of failed samples are wanted
    (`locate`), and which samples are left out unread (`listed`). It travels to workers.
    """

    on_error: OnError = raise_error
    locate: bool = False
    listed: Listed | None = None

    def reading(self, report: Callable[[Failed], None], left_out: LeftOut | None = None) -> Reading:
        """How to read by these decisions, with `report` told of what failed, and `left_out` of what
        was skipped, too.
        """
        on_error = self.on_error
        if isinstance(on_error, ByHandler):
            report = _Told(on_error, report)
        return Reading(
            report=report,
            on_error=_Fatal(on_error),
            locate=self.locate,
            listed=self.listed,
            left_out=left_out,
        )


@dataclass(frozen=True)
class _Told:
    """Reports to a handler first."""

    handler: ByHandler
    report: Callable[[Failed], None]

    def __call__(self, failed: Failed) -> None:
        self.handler.told(failed)
        self.report(failed)


@dataclass(frozen=True)
class _Fatal:
    """Decides about all but fatal errors, and those that no sample is to blame for."""

    on_error: OnError

    def __call__(self, error: EncoderError) -> None:
        if isinstance(error.__cause__, FatalSampleError):
            raise error.__cause__
        cause = error.__cause__
        if isinstance(cause, ReturnError | DatasetError) or of_machine(cause):
            raise error
        self.on_error(error)


def decided_by(on_error: str | OnError, handler: ErrorHandler | None) -> OnError:
    """What decides about exceptions of users' functions; `ConfigError` when two are to."""
    if handler is not None:
        if on_error != "raise":
            raise ConfigError(
                f"on_error={on_error!r} is given, and the worker config has a "
                "global_error_handler; give one of the two"
            )
        return ByHandler(handler)
    if callable(on_error):
        return on_error
    return leave_out if on_error == "skip" else raise_error


def sources_of(sample: Any) -> tuple[Any, ...] | None:
    """Where a sample, or the samples of a list, were read from, as far as they say so."""
    if isinstance(sample, list):
        found = [each for one in sample for each in sources_of(one) or ()]
        return tuple(found) or None
    if isinstance(sample, dict):
        named = sample.get("__sources__")
    else:
        named = getattr(sample, "__sources__", None)
    if not isinstance(named, tuple | list):
        return None
    # A batch has a tuple for each of its samples, or None.
    each_of = [one if isinstance(one, tuple | list) else [one] for one in named if one is not None]
    return tuple(source for one in each_of for source in one) or None
