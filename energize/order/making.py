"""The door to all schemes: which source each slot of a mix belongs to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from energize.arrays import Int64Array
from energize.describing import described
from energize.order.protocol import CheckedScheme, NamedScheme, Scheme
from energize.order.schedules.schedule import Schedule, WeightScheduler
from energize.order.schedules.scheduled import mixing_scheme
from energize.order.schedules.varying import Product, Share, Sum, Weight
from energize.order.schemes.plain import plain_scheme
from energize.order.weights import checked_weight, listed_weights, names_of

__all__ = ["GivenWeights", "make_scheme"]


GivenWeights: TypeAlias = Sequence[Weight] | Mapping[str, Weight] | WeightScheduler
"""A weight for each source: by position, by name in the order of the mapping, or over steps."""


def make_scheme(name: str, weights: GivenWeights, *, key: int = 0, **options: Any) -> NamedScheme:
    """The scheme called `name` over sources with these `weights`, which need not sum to 1.

    Weights are given by position, or by name in a mapping; sources are numbered in its order, and
    one of weight 0 keeps its number. A weight is a number or a `Schedule`; a `WeightScheduler` has
    those of all sources (see `mixing_scheme` for what schemes make of weights that change). `key`
    is what random choices depend on. `options` are the scheme's own: `block_size` of `block`.

    | name | promise |
    |---|---|
    | `block` | exact shares in every block of `block_size` slots, random order inside it |
    | `exact` | exact shares in every prefix, within 1 slot while weights do not change |
    | `random` | independent draws |
    | `uniform` | independent draws, all sources alike |
    | `round_robin` | all sources in turn |
    | `greedy` | the order of Megatron's blending index |

    Raises `WeightError` for weights that cannot be used, and `ConfigError` for an unknown name or
    option, and for schedules that the scheme cannot follow.

    >>> scheme = make_scheme("block", {"code": 3, "text": 1}, block_size=4)
    >>> scheme.names, scheme.counts(8).tolist()
    (('code', 'text'), [6, 2])
    """
    given = weights.schedules() if isinstance(weights, WeightScheduler) else weights
    named = listed_weights(given)
    if not any(isinstance(weight, Schedule | Share | Product | Sum) for _, weight in named):
        numbers: Any = dict(named) if names_of(given) else [weight for _, weight in named]
        return plain_scheme(name, numbers, key=key, **options)
    return _ScheduledScheme(name, named, names_of(given), key, options)


class _ScheduledScheme(CheckedScheme):
    """A scheme whose weights change with the slot, and what it was made from."""

    def __init__(
        self,
        name: str,
        weights: Sequence[tuple[str | int, Any]],
        names: tuple[str, ...] | None,
        key: int,
        options: Mapping[str, Any],
    ) -> None:
        self.names = names
        self._name, self._key, self._options = name, key, dict(options)
        self._weights = [_checked(weight, f"weight {which!r}") for which, weight in weights]
        self._scheme: Scheme = mixing_scheme(name, self._weights, key=key, **options)

    def describe(self) -> dict[str, Any]:
        weights = described(self._weights)
        by_name = None if self.names is None else dict(zip(self.names, weights, strict=True))
        return {
            "scheme": self._name,
            "weights": by_name or weights,
            "key": self._key,
            **described(self._options),
        }

    def _counts(self, n: int) -> Int64Array:
        return self._scheme.counts(n)

    def _locate(self, ks: Int64Array) -> tuple[Int64Array, Int64Array]:
        return self._scheme.locate(ks)


def _checked(weight: object, where: str) -> Weight:
    if isinstance(weight, Schedule | Share | Product | Sum):
        return weight
    return checked_weight(weight, where)
