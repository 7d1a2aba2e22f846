"""The door to all schemes: which source each slot of a mix belongs to."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Self, TypeAlias, TypeVar

import numpy as np

from energize.arrays import BoolArray, Int64Array
from energize.describing import described
from energize.errors import ConfigError, WeightError
from energize.numbers import whole_number
from energize.order.arrangement import WEIGHTLESS, Arrangement, check_options
from energize.order.protocol import CheckedScheme
from energize.order.schedule import Schedule, WeightScheduler, names_apart
from energize.order.timeline import Timeline
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
from energize.order.weighing import Weighing
from energize.order.weights import exact_weight, integer_weights, listed_weights, names_of

T = TypeVar("T")

GivenWeights: TypeAlias = Sequence[Weight] | Mapping[str, Weight] | WeightScheduler
"""A weight for each source: by position, by name in the order of the mapping, or over steps."""


def make_scheme(name: str, weights: GivenWeights, *, key: int = 0, **options: Any) -> MixingScheme:
    """The scheme called `name` over sources with these `weights`, which need not sum to 1.

    Weights are given by position, or by name in a mapping; sources are numbered in its order, and
    one of weight 0 keeps its number. A weight is a number or a `Schedule`; a `WeightScheduler` has
    those of all sources. `key` is what random choices depend on. `options` are the scheme's own:
    `block_size` of `block`.

    | name | promise |
    |---|---|
    | `even` | exact shares in every prefix, within 3.36 slots; the order is drawn |
    | `exact` | exact shares in every prefix, within 1.68 slots; no draws |
    | `block` | the counts of `exact` at the ends of blocks of `block_size`, random order inside |
    | `random` | random order in windows of 65,536 slots, whose ends have the counts of `exact` |
    | `uniform` | as `random`, all sources alike |
    | `round_robin` | all sources in turn |
    | `greedy` | the order of Megatron's blending index |

    Under schedules, sources are due the integral of their shares. What a source is owed at a point
    is carried on, so roundings do not add up; where shares are interpolated, up to 8 million slots
    from point to point, each of up to 512 sources is within another 0.4 slots of the integral. Any
    slot before a point of a schedule that changes in steps, or before a change of weights
    (`with_weights_from`), is where it is without it.

    Raises `WeightError` for weights that cannot be used, also where all are 0 at some slot, and
    `ConfigError` for an unknown name or option, and for schedules that the scheme cannot follow.

    >>> scheme = make_scheme("block", {"code": 3, "text": 1}, block_size=4)
    >>> scheme.names, scheme.counts(8).tolist()
    (('code', 'text'), [6, 2])
    """
    given = weights.schedules() if isinstance(weights, WeightScheduler) else weights
    named = listed_weights(given)
    return MixingScheme(name, _checked(named), names_of(given), key, options)


class MixingScheme(CheckedScheme):
    """A scheme by name; see `make_scheme`."""

    def __init__(
        self,
        name: str,
        weights: Sequence[Weight],
        names: tuple[str, ...] | None,
        key: int,
        options: Mapping[str, Any],
    ) -> None:
        check_options(name, options)
        number = whole_number(key)
        if number is None:
            raise ConfigError(f"the key of a scheme is a whole number, got {key!r}")
        self.names = names
        self._name, self._key, self._options = name, number, dict(options)
        self._arrangement = Arrangement(name, number, **options)
        self._weights = tuple(weights)
        self.changes: tuple[tuple[int, tuple[Weight, ...]], ...] = ()
        _ = self._timeline  # whatever is wrong shows here

    def with_weights_from(self, slot: int, weights: GivenWeights) -> Self:
        """The same scheme with other weights from a slot on; all slots before it stay as they are.

        Weights are given as those of the scheme are: of all sources, by name where they have names.
        Raises `ConfigError` for a slot before that of an earlier change.

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
        other.changes = (*self.changes, (at, tuple(_checked(self._in_order(given)))))
        _ = other._timeline
        return other

    def as_described(
        self, weights: Sequence[Any], changes: Sequence[Sequence[Any]]
    ) -> MixingScheme:
        """The same scheme with weights as `described` tells them, and (slot, weights) of changes.

        Raises `KeyError`, `TypeError` or `ValueError` for what was not told so.
        """
        given = [weight_as_described(each) for each in weights]
        scheme = MixingScheme(self._name, given, self.names, self._key, self._options)
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

        >>> scheme = make_scheme("exact", {"code": 3, "text": 1})
        >>> scheme.by_name(scheme.counts(8)), scheme.by_name(scheme.shares())
        ({'code': 6, 'text': 2}, {'code': 0.75, 'text': 0.25})
        """
        listed: list[T] = values.tolist() if isinstance(values, np.ndarray) else list(values)
        names = self.names or tuple(map(str, range(len(listed))))
        return dict(zip(names, listed, strict=True))

    def timeline(self, limits: Int64Array | None = None) -> Timeline:
        """The same slots, with sources that end at `limits`; see `Timeline`."""
        weighings = [self._weighing(weights, start) for start, weights in self._eras]
        return Timeline(weighings, self._arrangement, limits)

    def describe(self) -> dict[str, Any]:
        changes = [[slot, self._described(weights)] for slot, weights in self.changes]
        return {
            "scheme": self._name,
            "weights": self._described(self._weights),
            **({"changes": changes} if changes else {}),
            "key": self._key,
            **described(self._options),
        }

    @cached_property
    def drawn(self) -> BoolArray:
        """Whether each source ever has a weight above 0."""
        eras = [[ever_positive(each) for each in weights] for _, weights in self._eras]
        return np.asarray(np.any(eras, axis=0))

    def __getstate__(self) -> dict[str, Any]:
        """What is copied and pickled: not what was computed."""
        return {k: v for k, v in self.__dict__.items() if k not in ("_timeline", "drawn")}

    @property
    def _eras(self) -> list[tuple[int, tuple[Weight, ...]]]:
        return [(0, self._weights), *self.changes]

    @cached_property
    def _timeline(self) -> Timeline:
        return self.timeline()

    def _counts(self, n: int) -> Int64Array:
        return self._timeline.counts(n)

    def _locate(self, ks: Int64Array) -> tuple[Int64Array, Int64Array]:
        return self._timeline.locate(ks)

    def _weighing(self, weights: Sequence[Weight], start: int) -> Weighing:
        schedules = [each for weight in weights for each in schedules_in(weight)]
        if schedules:
            self._arrangement.check_follows(each.interpolation for each in schedules)
        if self._name in WEIGHTLESS:
            weights = [float(ever_positive(each)) for each in _with_some(weights)]
        size = self._arrangement.block_size
        change = _common({each.change for each in schedules}) if size > 1 else "sample"
        block = 1 if change == "sample" else size
        return Weighing(weights, start, block_size=block, by_first_slot=change == "block_start")

    def _described(self, weights: Sequence[Weight]) -> Any:
        whole = not any(isinstance(each, Schedule | Share | Product | Sum) for each in weights)
        told = integer_weights(weights).tolist() if whole else described(list(weights))  # type: ignore[arg-type]
        return told if self.names is None else dict(zip(self.names, told, strict=True))

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


def _checked(named: Sequence[tuple[str | int, Any]]) -> list[Weight]:
    return [
        weight
        if isinstance(weight, Schedule | Share | Product | Sum)
        else exact_weight(weight, f"weight {which!r}")
        for which, weight in named
    ]


def _with_some(weights: Sequence[Weight]) -> Sequence[Weight]:
    """The weights, if they are of any use; `WeightError` otherwise."""
    integer_weights(weights)  # type: ignore[arg-type]  # schedules have been refused
    return weights


def _common(changes: set[str]) -> str:
    if len(changes) > 1:
        raise ConfigError(
            f"the schedules of a mix have different values of change: {sorted(changes)}; use one"
        )
    return next(iter(changes), "block")
