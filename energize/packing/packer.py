"""Packing samples by how long they are."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np

from energize.core.checks import checked_choice, real_number, whole_number
from energize.core.costs import named, said_of
from energize.errors import ConfigError, SampleError
from energize.packing.methods import MOST, Capacity, balanced, best_fit, checked_capacity, first_fit

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
        if len(self._lengths) != len(self._capacities):
            counts = f"{len(self._lengths)} lengths and {len(self._capacities)} capacities"
            raise ConfigError(f"Packer: {counts}; give one length for each capacity")
        for each in self._lengths:
            if not callable(each) and not isinstance(each, str):
                raise ConfigError(f"Packer: length is a function, or a field's name; got {each!r}")
        checked_choice(self.method, "method", METHODS, "Packer")
        checked_choice(self.too_long, "too_long", ("error", "skip"), "Packer")
        if self.cost is not None and (self.method != "balanced" or not callable(self.cost)):
            raise ConfigError("Packer: cost is a function of a sample, for method='balanced' only")

    @cached_property
    def _lengths(self) -> tuple[Length, ...]:
        return self.length if isinstance(self.length, tuple) else (self.length,)

    @cached_property
    def _capacities(self) -> tuple[int, ...]:
        return checked_capacity(self.capacity, "Packer")

    def __call__(self, samples: Sequence[T]) -> list[list[T]]:
        capacities = self._capacities
        given = [
            [_length(sample, i, each) for each in self._lengths] for i, sample in enumerate(samples)
        ]
        lengths = np.array(given, dtype=np.int64).reshape(len(samples), len(capacities))
        fits = (lengths <= capacities).all(axis=1)
        if not fits.all():
            self._leave_out(samples, given, np.flatnonzero(~fits).tolist())
        chosen = [samples[i] for i in np.flatnonzero(fits).tolist()]
        if self.method == "balanced":
            asked = self.cost
            costs = asked and np.array([_cost(each, i, asked) for i, each in enumerate(chosen)])
            packs = balanced(lengths[fits], capacities, costs=costs)
        else:
            fit = first_fit if self.method == "first_fit" else best_fit
            packs = fit(lengths[fits], capacities)
        return [[chosen[i] for i in pack] for pack in packs]

    def _leave_out(self, samples: Sequence[Any], lengths: list[list[int]], long: list[int]) -> None:
        """Raise for samples that no pack can hold, or warn the first time."""
        sample = named(samples[long[0]], f"sample {long[0]} of the list")
        both = tuple(lengths[long[0]]), self._capacities
        length, capacity = (each if each[1:] else each[0] for each in both)
        what = f"{sample} has length {length}, and a pack holds {capacity}"
        if self.too_long == "error":
            raise SampleError(
                f"Packer: {what}; cut it in the hook before, raise the capacity, or leave such "
                "samples out with too_long='skip'"
            )
        if not getattr(self, "_warned", False):
            object.__setattr__(self, "_warned", True)
            told = "samples are too long and left out, as others will be"
            _log.warning("Packer: %d of %d %s: %s", len(long), len(samples), told, what)


def _length(sample: Any, number: int, length: Length) -> int:
    called = named(sample, f"sample {number} of the list")
    given = said_of(sample, length, called, "Packer")
    found = whole_number(given, 0)
    if found is None:
        raise ConfigError(
            f"Packer: length {length!r} of {called} is a whole number, 0 or more; got "
            f"{str(given)[:80]} ({type(given).__name__})"
        )
    return min(found, MOST)


def _cost(sample: Any, number: int, cost: Callable[[Any], float]) -> float:
    given = cost(sample)
    found = real_number(given)
    if found is None:
        called = named(sample, f"sample {number} of the list")
        raise ConfigError(f"Packer: cost of {called} is a number; got {given!r}")
    return float(found)
