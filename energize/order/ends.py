"""Where a mix of finite sources ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from energize.arrays import Int64Array
from energize.cursor import INFINITE
from energize.errors import ConfigError, nearest
from energize.numbers import whole_number
from energize.order.making import MixingScheme
from energize.order.protocol import Scheme
from energize.order.searching import first_where
from energize.order.timeline import FARTHEST, Timeline

STOP_RULES = ("restart", "first_exhausted", "all_exhausted")


def slot_limits(sizes: Sequence[int], stop: str, max_epochs: Sequence[int | None]) -> Int64Array:
    """How many slots each source may take: `max_epochs` times its size, or `INFINITE`.

    Where `max_epochs` is None, it is without limit under `restart`, and one epoch otherwise.
    Raises `ConfigError` for an unknown rule or an epoch count below 1.

    >>> slot_limits([10, 30], "all_exhausted", [None, 2]).tolist()
    [10, 60]
    """
    if stop not in STOP_RULES:
        raise ConfigError(
            f"unknown stop rule {stop!r}{nearest(str(stop), STOP_RULES) or '.'} "
            f"Known: {', '.join(STOP_RULES)}"
        )
    limits = []
    for number, (size, epochs) in enumerate(zip(sizes, max_epochs, strict=True)):
        if epochs is None:
            limits.append(INFINITE if stop == "restart" else size)
            continue
        passes = whole_number(epochs)
        if passes is None or passes < 1:
            raise ConfigError(
                f"max_epochs, dataset {number}: a whole number of epochs, 1 or more, or None for "
                f"no limit; got {epochs!r}. Give a dataset that shall not be read the weight 0"
            )
        limits.append(min(size * passes, INFINITE))
    return np.array(limits, dtype=np.int64)


def stopped_scheme(scheme: Scheme, limits: Int64Array, stop: str) -> tuple[Scheme, int]:
    """`scheme` ended by a stop rule where sources have had their `limits`; and its size.

    `first_exhausted` ends before the first slot that asks a source for more than its limit. Under
    the other rules a source that has reached its limit drops out and its slots go to those that are
    left, by weight; it ends when no source is left, so every source takes its limit exactly. The
    size is `INFINITE` when that never comes. After the end the same slots come again, and every
    source goes on where it was.

    Sources that can never be drawn, of weight 0, count for nothing. Only schemes that `make_scheme`
    made can leave out sources.

    >>> from energize.order.making import make_scheme
    >>> halves = make_scheme("exact", [0.5, 0.5])
    >>> scheme, size = stopped_scheme(halves, np.array([10, 30]), "all_exhausted")
    >>> size, scheme.counts(20).tolist(), scheme.counts(30).tolist()
    (40, [10, 10], [10, 20])
    """
    drawn = scheme.drawn if isinstance(scheme, MixingScheme) else np.ones(len(limits), np.bool_)
    if stop == "first_exhausted" or not isinstance(scheme, MixingScheme):
        end = _first_beyond(scheme, np.where(drawn, limits, INFINITE))
        if end is None:
            return scheme, INFINITE
        return _Epochs(scheme, scheme, scheme.counts(end)), end
    wanted = np.where(drawn, limits, 0)
    size = min(sum(wanted.tolist()), INFINITE)
    if not size or (wanted[drawn] == INFINITE).all():
        return scheme, size
    timeline = scheme.timeline(wanted)
    if size >= FARTHEST:
        return _Epochs(scheme, timeline, np.full(len(limits), INFINITE)), INFINITE
    return _Epochs(scheme, timeline, wanted), size


def _first_beyond(scheme: Scheme, limits: Int64Array) -> int | None:
    """The first slot that a source has beyond its limit; None when there is none."""
    if isinstance(scheme, MixingScheme):
        return scheme.timeline().first_beyond(limits)

    def beyond(slots: int) -> bool:
        return bool((scheme.counts(slots) > limits).any())

    end = 1
    while not beyond(end):
        if end >= FARTHEST:
            return None
        end *= 2
    return first_where(beyond, above=end // 2, upto=end) - 1


class _Epochs:
    """The first slots of a scheme over and over, `each` of every source, as `slots` has them."""

    def __init__(self, scheme: Scheme, slots: Scheme | Timeline, each: Int64Array) -> None:
        self._scheme, self._slots, self._each = scheme, slots, each
        self._size = min(sum(each.tolist()), INFINITE)

    def describe(self) -> dict[str, Any]:
        return {**self._scheme.describe(), "size": self._size}

    def counts(self, n: int) -> Int64Array:
        epochs, rest = divmod(n, self._size)
        counts = self._slots.counts(rest)
        return counts + self._each * epochs if epochs else counts

    def locate(self, ks: Int64Array) -> tuple[Int64Array, Int64Array]:
        epochs, at = np.divmod(ks, self._size)
        source, nth = self._slots.locate(at)
        before: Int64Array = epochs * self._each[source]
        return source, nth + before
