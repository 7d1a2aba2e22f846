"""Marks that task encoders of Megatron-Energon carry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

from energize.ignored import accepted

F = TypeVar("F", bound=Callable[..., Any])


@overload
def stateless(fn: F) -> F: ...


@overload
def stateless(
    fn: None = None, *, restore_seeds: bool = False, failure_tolerance: int | None = None
) -> Callable[[F], F]: ...


def stateless(
    fn: F | None = None, *, restore_seeds: bool = False, failure_tolerance: int | None = None
) -> F | Callable[[F], F]:
    """Marks a hook as a function of its argument; accepted so that encoders of Energon run as is.

    It changes nothing. Every call is seeded by its position, as `restore_seeds` asks for, so every
    sample can be restored. Failures are counted for the whole loader by its `failure_budget`, not
    for one hook by `failure_tolerance`, of which a word in the log says so.

    >>> from energize import TaskEncoder
    >>> class Encoder(TaskEncoder):
    ...     @stateless(restore_seeds=True)
    ...     def encode_sample(self, sample):
    ...         return sample
    """
    accepted("stateless", failure_tolerance=failure_tolerance)
    return (lambda marked: marked) if fn is None else fn


def get_stateless(fn: Callable[..., Any]) -> bool:
    """Whether what `fn` makes of a sample can be made again: here always, marked or not."""
    return True
