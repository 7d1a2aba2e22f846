"""The end of a mix of finite sources."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from energize.core.arrays import Int64Array
from energize.core.checks import checked_choice, checked_whole
from energize.core.node import INFINITE
from energize.order.scheme import FARTHEST, RepeatedScheme, Scheme, first_true
from energize.order.timeline import MixingScheme

STOP_RULES = ("restart", "first_exhausted", "all_exhausted")


def slot_limits(
    sizes: Sequence[int], stop: str, max_epochs: Sequence[int | None]
) -> Int64Array:
    """Return how many slots each source can take.

    Args:
        sizes: Items of each source.
        stop: One of `STOP_RULES`.
        max_epochs: Epochs of each source. None for no limit with "restart", else 1.

    Returns:
        Epochs times size, or `INFINITE`, int64, shape (num_sources,).

    Raises:
        ConfigError: For an unknown rule, or a number of epochs below 1.

    Example:
        >>> slot_limits([10, 30], "all_exhausted", [None, 2]).tolist()
        [10, 60]
    """
    checked_choice(stop, "stop", STOP_RULES)
    limits = []
    for number, (size, epochs) in enumerate(zip(sizes, max_epochs, strict=True)):
        default = INFINITE if stop == "restart" else size
        label = f"max_epochs, dataset {number}: a number of epochs"
        limits.append(
            default if epochs is None else size * checked_whole(epochs, label, 1)
        )
    return np.array([min(limit, INFINITE) for limit in limits], dtype=np.int64)


def stopped_scheme(scheme: Scheme, limits: Int64Array, stop: str) -> tuple[Scheme, int]:
    """Return a scheme with an end, set by a stop rule and the limits of sources.

    "first_exhausted" ends before the first slot that would exceed the limit of a
    source. With the other rules, a source at its limit is left out, its slots go to the
    other sources by weight, and the scheme ends when no source with a weight is left.
    After the end, the same slots are repeated, and sources continue. Sources with
    weight 0 are ignored.

    Args:
        scheme: The scheme; only those of `make_scheme` can leave out sources.
        limits: Slots that each source can take, int64, shape (num_sources,).
        stop: One of `STOP_RULES`.

    Returns:
        The scheme, and the slots of an epoch, or `INFINITE`.

    Example:
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
        end = first_true(beyond, FARTHEST, guess)
    if end == FARTHEST:
        return scheme, INFINITE
    return RepeatedScheme(scheme, scheme.counts(end - 1)), end - 1
