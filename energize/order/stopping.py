"""The end of a mix of finite sources."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from energize.core.arrays import Int64Array
from energize.core.checks import checked_choice, checked_whole
from energize.core.node import INFINITE
from energize.order.scheme import FARTHEST, RepeatedScheme, Scheme, first_where
from energize.order.timeline import MixingScheme

STOP_RULES = ("restart", "first_exhausted", "all_exhausted")


def slot_limits(
    sizes: Sequence[int], stop: str, max_epochs: Sequence[int | None]
) -> Int64Array:
    """Return how many slots each source may take: `max_epochs` times its size, or
    `INFINITE`.

    Where `max_epochs` is None, it is without limit under `restart`, and one epoch
    otherwise. Raises `ConfigError` for an unknown rule or an epoch count below 1.

    >>> slot_limits([10, 30], "all_exhausted", [None, 2]).tolist()
    [10, 60]
    """
    checked_choice(stop, "stop", STOP_RULES)
    limits = []
    for number, (size, epochs) in enumerate(zip(sizes, max_epochs, strict=True)):
        default = INFINITE if stop == "restart" else size
        where = f"max_epochs, dataset {number}: a number of epochs"
        limits.append(
            default if epochs is None else size * checked_whole(epochs, where, 1)
        )
    return np.array([min(limit, INFINITE) for limit in limits], dtype=np.int64)


def stopped_scheme(scheme: Scheme, limits: Int64Array, stop: str) -> tuple[Scheme, int]:
    """Return `scheme` ended by a stop rule where sources have had their `limits`, and
    its size.

    `first_exhausted` ends before the first slot that asks a source for more than its
    limit. Under the other rules a source that has reached its limit drops out and its
    slots go to those that are left, by weight; it ends when no source with a weight is
    left, so every source takes its limit exactly, unless its weight reaches 0. The size
    is `INFINITE` if that never comes. After the end the same slots come again, and
    every source goes on where it was.

    Sources that can never be drawn, of weight 0, count for nothing. Only schemes that
    `make_scheme` made can leave out sources.

    >>> from energize.order import make_scheme
    >>> halves = make_scheme("exact", [0.5, 0.5])
    >>> scheme, size = stopped_scheme(halves, np.array([10, 30]), "all_exhausted")
    >>> size, scheme.counts(20).tolist(), scheme.counts(30).tolist()
    (40, [10, 10], [10, 20])
    """
    guess = 1.0
    if isinstance(scheme, MixingScheme):
        drawn = np.any([era.drawn for era in scheme.eras], axis=0)
        wanted = np.where(drawn, limits, 0)
        size = min(sum(wanted.tolist()), INFINITE)
        if stop != "first_exhausted":
            if not size or (wanted[drawn] == INFINITE).all():
                return scheme, size
            ended = scheme.limited(wanted)
            if scheme.varies:  # a weight may reach 0 before its source is exhausted
                size = ended.reach(min(size, FARTHEST))
            if size >= FARTHEST:
                return ended, INFINITE
            return RepeatedScheme(ended, ended.counts(size)), size
        limits = np.where(drawn, limits, INFINITE)
        guess = float((limits / np.maximum(scheme.shares(), 1e-18)).min())

    def beyond(slots: int) -> bool:
        return bool((scheme.counts(slots) > limits).any())

    end = FARTHEST
    if not (limits == INFINITE).all():
        end = first_where(beyond, FARTHEST, guess)
    if end == FARTHEST:
        return scheme, INFINITE
    return RepeatedScheme(scheme, scheme.counts(end - 1)), end - 1
