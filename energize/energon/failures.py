"""Failures as Megatron-Energon handles them: a function of its config decides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from energize.core.checks import failed_allocation
from energize.core.failures import Failed, FailurePolicy, is_program_fault
from energize.core.records import sources_of
from energize.errors import ConfigError, EncoderError, FatalSampleError

ErrorHandler = Callable[[Exception, Any, Any], None]
"""Called with what a function raised, what it was called with, and the sources
of that, or None. It raises, or returns to have the sample left out as a failed one."""

_PROGRAM_ERRORS = (
    ImportError,
    NameError,
    RecursionError,
    ReferenceError,
    StopAsyncIteration,
    StopIteration,
    SyntaxError,
    SystemError,
)
"""Exceptions that the next sample would raise too."""


@dataclass(frozen=True)
class HandlerPolicy(FailurePolicy):
    """Has a handler decide about exceptions, with the defaults of Megatron-Energon.

    Args:
        handler: Called with each exception of a function, and with each damaged sample.
            None leaves the decision to `on_error`.

    Raises:
        ConfigError: If both `on_error` and `handler` are to decide.

    Example:
        >>> from energize import ListSource, MapDataset, get_loader
        >>> from energize.errors import log_exception
        >>> inverse = MapDataset(ListSource([1, 0, 2]), lambda number: 1 / number)
        >>> policy = HandlerPolicy(handler=log_exception)
        >>> len(list(get_loader(inverse, failures=policy)))
        3
    """

    budget: int | None = None
    tolerance: int | None = 100
    check_functions: str = "warn"
    handler: ErrorHandler | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.handler is not None and self.on_error != "raise":
            raise ConfigError(
                f"both on_error={self.on_error!r} and global_error_handler of the "
                "worker config are set. Set one of the two"
            )

    def check(self, failed: Failed) -> None:
        """Call the handler with a damaged sample.

        Args:
            failed: The sample that failed.
        """
        if self.handler is not None and not isinstance(failed.reason, EncoderError):
            self.handler(failed.reason, failed.where, ())

    def decide(self, error: EncoderError) -> None:
        """Return the decision of the handler about a failure."""
        cause = error.__cause__
        if self.handler is None or isinstance(cause, FatalSampleError):
            super().decide(error)
            return
        if is_program_fault(cause) or not isinstance(cause, Exception):
            raise error
        if isinstance(cause, _PROGRAM_ERRORS) or failed_allocation(cause) is not None:
            raise FatalSampleError(
                f"{error}\n  (a {type(cause).__name__} is not a fault of a sample, so "
                "no handler was called)"
            ) from cause
        try:
            self.handler(cause, error.sample, sources_of(error.sample))
        except Exception as raised:
            if raised is cause:
                cause.add_note(str(error))
            raise
