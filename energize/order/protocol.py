"""What every scheme answers, and the checks of what it is asked."""

from __future__ import annotations

import reprlib
from abc import ABC, abstractmethod
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from energize.arrays import Int64Array
from energize.errors import ConfigError
from energize.numbers import whole_number

_MOST_SLOTS = 2**62


class Scheme(Protocol):
    """Slots 0, 1, 2, ... given to sources 0 .. n-1; positions only, nothing is read."""

    def counts(self, n: int) -> Int64Array:
        """Slots given to each source among the first `n`: int64, sums to `n`, monotone in `n`."""

    def locate(self, ks: Int64Array) -> tuple[Int64Array, Int64Array]:
        """For each slot its source, and how many slots before it went to that source."""

    def describe(self) -> dict[str, Any]:
        """Name and parameters as JSON: what a saved state is checked against."""


class CheckedScheme(ABC):
    """A scheme that checks what it is asked; two of equal descriptions are equal.

    Slots are whole numbers from 0, below 2**62, in an array of one dimension or a list. Raises
    `ConfigError` for others.
    """

    names: tuple[str, ...] | None

    def counts(self, n: int) -> Int64Array:
        """Slots given to each source among the first `n`: int64, sums to `n`, monotone in `n`."""
        slots = whole_number(n)
        if slots is None or not 0 <= slots <= _MOST_SLOTS:
            raise ConfigError(f"counts(n): n is a number of slots, from 0 to 2**62; got {n!r}")
        return self._counts(slots)

    def locate(self, ks: npt.ArrayLike) -> tuple[Int64Array, Int64Array]:
        """For each slot its source, and how many slots before it went to that source."""
        return self._locate(_checked_slots(ks))

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Name and parameters as JSON: what a saved state is checked against."""

    @abstractmethod
    def _counts(self, n: int) -> Int64Array: ...

    @abstractmethod
    def _locate(self, ks: Int64Array) -> tuple[Int64Array, Int64Array]: ...

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CheckedScheme):
            return NotImplemented
        return self is other or self.describe() == other.describe()

    def __hash__(self) -> int:
        return hash((type(self).__name__, self.names))

    def __repr__(self) -> str:
        shown = [f"{name}={reprlib.repr(value)}" for name, value in self.describe().items()]
        return f"{type(self).__name__}({', '.join(shown)})"


def _checked_slots(ks: npt.ArrayLike) -> Int64Array:
    slots = np.asarray(ks)
    if slots.dtype != np.int64:
        if slots.size and slots.dtype.kind not in "iu":
            raise ConfigError(
                f"locate(ks): slots are an array of whole numbers; got {slots.dtype} in {ks!r}"
            )
        slots = slots.astype(np.int64)
    if slots.ndim != 1:
        raise ConfigError(
            "locate(ks): slots are an array of one dimension, for one slot [k]; got "
            f"{reprlib.repr(ks)}"
        )
    # Seen as unsigned, negative numbers are too large as well.
    if slots.size and slots.view(np.uint64).max() >= _MOST_SLOTS:
        wrong = slots[slots.view(np.uint64) >= _MOST_SLOTS]
        raise ConfigError(f"locate(ks): slots are from 0 to 2**62 - 1; got {wrong[0]}")
    return slots
