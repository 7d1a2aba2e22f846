"""A function whose last results are kept, and which is pickled without them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Remembered(Generic[T]):
    """`compute`, a pure function of hashable arguments, with its last `size` results at hand.

    Results are shared: they must not be changed.
    """

    def __init__(self, compute: Callable[..., T], size: int) -> None:
        self._compute = compute
        self._size = size
        self._cached = lru_cache(maxsize=size)(compute)

    def __call__(self, *arguments: Hashable) -> T:
        return self._cached(*arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._compute, self._size)
