"""The door to all schemes: which source each slot of a mix belongs to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Self

from energize.arrays import Int64Array
from energize.describing import described
from energize.errors import ConfigError
from energize.numbers import whole_number
from energize.order.arrangement import WEIGHTLESS, Arrangement, check_options
from energize.order.schedule import WeightScheduler
from energize.order.timeline import Timeline
from energize.order.varying import Weight, ever_positive, schedules_in
from energize.order.weighing import Weighing
from energize.order.weighted import GivenWeights, WeightedScheme, checked_weights
from energize.order.weights import integer_weights, listed_weights, names_of


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
    return MixingScheme(name, checked_weights(named), names_of(given), key, options)


class MixingScheme(WeightedScheme):
    """A scheme by name; see `make_scheme`."""

    _computed = ("_timeline",)

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
        self._begin()

    def timeline(self, limits: Int64Array | None = None) -> Timeline:
        """The same slots, with sources that end at `limits`; see `Timeline`."""
        weighings = [self._weighing(weights, start) for start, weights in self._eras]
        return Timeline(weighings, self._arrangement, limits)

    def first_difference(self, other: Self, end: int) -> int | None:
        """See `WeightedScheme`."""
        return self.timeline().first_difference(other.timeline(), end)

    def describe(self) -> dict[str, Any]:
        return {
            "scheme": self._name,
            "weights": self._described(self._weights),
            **self._changes_described(),
            "key": self._key,
            **described(self._options),
        }

    @cached_property
    def _timeline(self) -> Timeline:
        return self.timeline()

    def _begin(self) -> None:
        _ = self._timeline

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
