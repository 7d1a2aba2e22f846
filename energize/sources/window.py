"""Runs of neighbouring samples of a source."""

from __future__ import annotations

from energize.errors import ConfigError, EmptyDatasetError

Window = tuple[int, int]
"""The first sample and the one after the last."""


def narrowed(name: str, whole: Window, start: int, stop: int) -> Window:
    """Of the samples in `whole`, those from number `start` to before `stop`.

    Raises `ConfigError` for numbers beyond them, and `EmptyDatasetError` when none is left; both
    call the source `name`.

    >>> narrowed("letters", (10, 20), 2, 5)
    (12, 15)
    """
    first, last = whole
    if not 0 <= start <= stop <= last - first:
        raise ConfigError(
            f"{name} has {last - first} samples; there is no part from {start} to {stop}"
        )
    if start == stop:
        raise EmptyDatasetError(f"{name}: the part from {start} to {stop} has no samples")
    return first + start, first + stop
