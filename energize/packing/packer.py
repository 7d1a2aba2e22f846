"""Packing samples by how long they are."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np

from energize.core.arrays import Int64Array
from energize.core.checks import real_number, whole_number
from energize.errors import ConfigError, SampleError, nearest
from energize.packing.balancing import balanced
from energize.packing.fitting import best_fit, first_fit
from energize.packing.lengths import named, said_of
from energize.packing.sizes import MOST, Capacity, checked_capacity

T = TypeVar("T")

Length: TypeAlias = Callable[[Any], int] | str
"""How long a sample is: a function of it, or the name of its field that says so."""

METHODS = ("first_fit", "best_fit", "balanced")

_log = logging.getLogger("energize")


@dataclass(frozen=True)
class Packer:
    """Called with samples, gives lists of them that fit together: each list is to be one pack.

    `length` says how long a sample is: a function of it that gives a whole number, or the name of
    a field, which is a whole number itself, or a tensor or list that is so long. For several
    `capacity`s, of tokens and image tiles for example, it is a tuple with one for each. `method` is
    `first_fit`, which keeps most of the order; `best_fit`, which makes the fewest packs; or
    `balanced`, which makes as few that cost about the same, by `cost(sample)` or else by
    `attention_cost` of the first length. Samples keep their order in a list, and each is in one.

    A sample that is longer than a capacity is a `SampleError` that names it, or, with
    `too_long="skip"`, left out, and a warning says so the first time.

    It goes where a function that selects samples to pack is expected: `pre_packer` of a
    `PackingDataset`, or `select_samples_to_pack` of a task encoder, which returns what it gives.

    Raises `ConfigError` for arguments that cannot be used, and for a length that is no whole
    number.

    >>> packer = Packer(length=len, capacity=8)
    >>> packer(["a cat", "two dogs", "a", "hi"])
    [['a cat', 'a', 'hi'], ['two dogs']]
    >>> packer = Packer(length=("tokens", "images"), capacity=(2048, 2), method="balanced")
    >>> packer([{"tokens": 900, "images": ["A"]}, {"tokens": 50, "images": ["B", "C"]}])
    [[{'tokens': 900, 'images': ['A']}], [{'tokens': 50, 'images': ['B', 'C']}]]
    """

    length: Length | Sequence[Length]
    capacity: Capacity
    method: Literal["first_fit", "best_fit", "balanced"] = "best_fit"
    too_long: Literal["error", "skip"] = "error"
    cost: Callable[[Any], float] | None = None

    def __post_init__(self) -> None:
        for name in ("length", "capacity"):  # lists would not be frozen
            if isinstance(getattr(self, name), list):
                object.__setattr__(self, name, tuple(getattr(self, name)))
        capacities = checked_capacity(self.capacity, "Packer")
        if len(self._lengths) != len(capacities):
            raise ConfigError(
                f"Packer: {len(self._lengths)} lengths and {len(capacities)} capacities; give one "
                "length for each capacity"
            )
        for length in self._lengths:
            if not callable(length) and not isinstance(length, str):
                raise ConfigError(
                    "Packer: length is a function of a sample or the name of a field; got "
                    f"{length!r}"
                )
        for name, options in (("method", METHODS), ("too_long", ("error", "skip"))):
            value = getattr(self, name)
            if value not in options:
                raise ConfigError(
                    f"Packer: {name}={value!r} is not one of {', '.join(options)}"
                    f"{nearest(str(value), options)}"
                )
        if self.cost is not None and (self.method != "balanced" or not callable(self.cost)):
            raise ConfigError("Packer: cost is a function of a sample, for method='balanced' only")

    def __call__(self, samples: Sequence[T]) -> list[list[T]]:
        capacities = checked_capacity(self.capacity, "Packer")
        shape = len(samples), len(capacities)
        given = [
            [_length(sample, i, each) for each in self._lengths] for i, sample in enumerate(samples)
        ]
        lengths = np.array(given, dtype=np.int64).reshape(shape)
        fitting = np.flatnonzero((lengths <= capacities).all(axis=1))
        if len(fitting) < len(samples):
            self._too_long(samples, lengths)
        chosen = [samples[i] for i in fitting.tolist()]
        packs = self._packed(chosen, lengths[fitting], capacities)
        return [[chosen[i] for i in pack] for pack in packs]

    @property
    def _lengths(self) -> tuple[Length, ...]:
        if isinstance(self.length, str) or callable(self.length):
            return (self.length,)
        return tuple(self.length) if isinstance(self.length, Sequence) else (self.length,)

    def _packed(
        self, samples: Sequence[Any], lengths: Int64Array, capacities: tuple[int, ...]
    ) -> list[list[int]]:
        if self.method == "first_fit":
            return first_fit(lengths, capacities)
        if self.method == "best_fit":
            return best_fit(lengths, capacities)
        costs = None
        if self.cost is not None:
            costs = np.array([_cost(sample, i, self.cost) for i, sample in enumerate(samples)])
        return balanced(lengths, capacities, costs=costs)

    def _too_long(self, samples: Sequence[Any], lengths: Int64Array) -> None:
        """The error about samples that no pack can hold, or the first warning."""
        capacities = checked_capacity(self.capacity, "Packer")
        long = np.flatnonzero((lengths > capacities).any(axis=1))
        first = int(long[0])
        shown = [
            row[0] if len(row) == 1 else tuple(row) for row in (lengths[first].tolist(), capacities)
        ]
        what = f"{_named(samples[first], first)} has length {shown[0]}, and a pack holds {shown[1]}"
        if self.too_long == "error":
            raise SampleError(
                f"Packer: {what}; cut it in the hook before, raise the capacity, or leave such "
                "samples out with too_long='skip'"
            )
        if not getattr(self, "_warned", False):
            object.__setattr__(self, "_warned", True)
            _log.warning(
                "Packer: %d of %d samples are too long and left out, as others will be: %s",
                len(long),
                len(samples),
                what,
            )


def _length(sample: Any, number: int, length: Length) -> int:
    given = said_of(sample, length, _named(sample, number), "Packer")
    found = whole_number(given, 0)
    if found is None:
        raise ConfigError(
            f"Packer: length {length!r} of {_named(sample, number)} is a whole number, 0 or more; "
            f"got {str(given)[:80]} ({type(given).__name__})"
        )
    return min(found, MOST)


def _cost(sample: Any, number: int, cost: Callable[[Any], float]) -> float:
    given = cost(sample)
    found = real_number(given)
    if found is None:
        raise ConfigError(f"Packer: cost of {_named(sample, number)} is a number; got {given!r}")
    return float(found)


def _named(sample: Any, number: int) -> str:
    return named(sample, f"sample {number} of the list")
