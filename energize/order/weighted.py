"""What schemes by weights have in common: their weights over time, and what these are called."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Self, TypeAlias, TypeVar

import numpy as np

from energize.arrays import BoolArray, Int64Array
from energize.describing import described
from energize.errors import ConfigError, WeightError
from energize.numbers import whole_number
from energize.order.protocol import CheckedScheme
from energize.order.schedule import Schedule, WeightScheduler, names_apart
from energize.order.varying import (
    Product,
    Share,
    Sum,
    Weight,
    ever_positive,
    schedules_in,
    shares_at,
    weight_as_described,
)
from energize.order.weights import exact_weight, integer_weights, listed_weights

T = TypeVar("T")

GivenWeights: TypeAlias = Sequence[Weight] | Mapping[str, Weight] | WeightScheduler
"""A weight for each source: by position, by name in the order of the mapping, or over steps."""


class WeightedScheme(CheckedScheme):
    """A scheme by `weights`, which other ones follow from some slots on: its `changes`.

    Subclasses say by `_begin` how slots are made of them, and keep what they computed in
    `_computed`, so that a copy or a pickle has none of it.
    """

    changes: tuple[tuple[int, tuple[Weight, ...]], ...] = ()
    _weights: tuple[Weight, ...]

    _computed: tuple[str, ...] = ()

    def with_weights_from(self, slot: int, weights: GivenWeights) -> Self:
        """The same scheme with other weights from a slot on; all slots before it stay as they are.

        Weights are given as those of the scheme are: of all sources, by name where they have names.
        Raises `ConfigError` for a slot before that of an earlier change.

        >>> from energize.order import make_scheme
        >>> scheme = make_scheme("exact", {"code": 1, "text": 1})
        >>> changed = scheme.with_weights_from(100, {"code": 3, "text": 1})
        >>> changed.counts(100).tolist(), changed.counts(200).tolist()
        ([50, 50], [125, 75])
        """
        at = whole_number(slot, 0)
        if at is None:
            raise ConfigError(f"weights change at a slot, a whole number from 0; got {slot!r}")
        if self.changes and at <= self.changes[-1][0]:
            raise ConfigError(
                f"weights change at slot {self.changes[-1][0]} already; give a later slot than "
                f"{at}, or begin from the scheme without that change"
            )
        given = weights.schedules() if isinstance(weights, WeightScheduler) else weights
        other = copy.copy(self)
        other.changes = (*self.changes, (at, tuple(checked_weights(self._in_order(given)))))
        other._begin()
        return other

    def as_described(self, weights: Sequence[Any], changes: Sequence[Sequence[Any]]) -> Self:
        """The same scheme with weights as `described` tells them, and (slot, weights) of changes.

        Raises `KeyError`, `TypeError` or `ValueError` for what was not told so.
        """
        scheme = copy.copy(self)
        scheme._weights = tuple(weight_as_described(each) for each in weights)
        scheme.changes = ()
        scheme._begin()
        for slot, later in changes:
            scheme = scheme.with_weights_from(slot, [weight_as_described(each) for each in later])
        return scheme

    def shares(self, slot: int = 0) -> list[float]:
        """The asked share of each source at a slot: its weight divided by the sum."""
        weights = next(w for start, w in reversed(self._eras) if start <= slot)
        shares: list[float] = shares_at(weights, [slot])[0].tolist()
        return shares

    def by_name(self, values: Sequence[T] | Int64Array) -> dict[str, T]:
        """Counts or shares with the names of the sources; by position where they have none.

        >>> from energize.order import make_scheme
        >>> scheme = make_scheme("exact", {"code": 3, "text": 1})
        >>> scheme.by_name(scheme.counts(8)), scheme.by_name(scheme.shares())
        ({'code': 6, 'text': 2}, {'code': 0.75, 'text': 0.25})
        """
        listed: list[T] = values.tolist() if isinstance(values, np.ndarray) else list(values)
        names = self.names or tuple(map(str, range(len(listed))))
        return dict(zip(names, listed, strict=True))

    @abstractmethod
    def first_difference(self, other: Self, end: int) -> int | None:
        """The first slot before `end` from which on `other`, which differs in its weights alone,
        may give slots to other sources; None when all before it are the same.
        """

    @cached_property
    def drawn(self) -> BoolArray:
        """Whether each source ever has a weight above 0."""
        eras = [[ever_positive(each) for each in weights] for _, weights in self._eras]
        return np.asarray(np.any(eras, axis=0))

    @property
    def varies(self) -> bool:
        """Whether shares are not the same at all slots."""
        return bool(self.changes) or any(True for w in self._weights for _ in schedules_in(w))

    def __getstate__(self) -> dict[str, Any]:
        """What is copied and pickled: not what was computed."""
        left_out = ("drawn", *self._computed)
        return {k: v for k, v in self.__dict__.items() if k not in left_out}

    @property
    def _eras(self) -> list[tuple[int, tuple[Weight, ...]]]:
        return [(0, self._weights), *self.changes]

    @abstractmethod
    def _begin(self) -> None:
        """Look at the weights: whatever is wrong with them shows here."""

    def _described(self, weights: Sequence[Weight]) -> Any:
        whole = not any(isinstance(each, Schedule | Share | Product | Sum) for each in weights)
        told = integer_weights(weights).tolist() if whole else described(list(weights))  # type: ignore[arg-type]
        return told if self.names is None else dict(zip(self.names, told, strict=True))

    def _changes_described(self) -> dict[str, Any]:
        changes = [[slot, self._described(weights)] for slot, weights in self.changes]
        return {"changes": changes} if changes else {}

    def _in_order(self, weights: Any) -> list[tuple[str | int, Any]]:
        """Given weights in the order of the sources."""
        named = listed_weights(weights)
        if self.names is not None and isinstance(weights, Mapping):
            difference = names_apart(self.names, weights)
            if difference:
                raise WeightError(f"the weights do not name the sources: {difference}")
            return [(name, weights[name]) for name in self.names]
        if len(named) != len(self._weights):
            raise WeightError(f"{len(named)} weights are given for {len(self._weights)} sources")
        return named


def checked_weights(named: Sequence[tuple[str | int, Any]]) -> list[Weight]:
    """The weights of a listing, numbers in their exact values; `WeightError` for what is none."""
    return [
        weight
        if isinstance(weight, Schedule | Share | Product | Sum)
        else exact_weight(weight, f"weight {which!r}")
        for which, weight in named
    ]
