"""Multiplexing strategies, and which sources they draw from."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

from energize.errors import WeightError
from energize.order.schedule import names_apart
from energize.order.weights import checked_weight

_log = logging.getLogger("energize")


class MultiplexingStrategy(Enum):
    """How a `Multiplexer` chooses the source of the next sample."""

    ROUND_ROBIN = "RoundRobin"
    """One source after another; an exhausted one is left out; each sample comes exactly once."""

    SAMPLING = "sampling"
    """Random order by the sampling probabilities."""

    UNIFORM_WITH_REPLACEMENT = "uniform_with_replacement"
    """Random order, every source equally likely."""


def survivors(
    names: tuple[str, ...], strategy: MultiplexingStrategy, probas: object, threshold: float
) -> dict[str, float]:
    """The sources that are drawn from, with their probabilities: those above `threshold`. Those
    left out are logged by name.

    Round robin takes every source; uniform draws take those that would be drawn at all. Raises
    `WeightError` for probabilities that are missing, not one per source, negative, not finite, or
    all too small.
    """
    everyone = dict.fromkeys(names, 1.0)
    if strategy is MultiplexingStrategy.ROUND_ROBIN:
        if probas is not None:
            _log.warning("Multiplexer: round robin takes every source; sampling_probas are ignored")
        return everyone
    if probas is None:
        if strategy is MultiplexingStrategy.SAMPLING:
            raise WeightError(
                f"Multiplexer: SAMPLING needs sampling_probas, one for each of {', '.join(names)}"
            )
        return everyone
    given = {
        name: checked_weight(value, f"Multiplexer: sampling_probas of {name!r}")
        for name, value in _by_name(names, probas).items()
    }
    kept = {name: value for name, value in given.items() if value > threshold}
    if not kept:
        raise WeightError(
            f"Multiplexer: no sampling probability is above proba_threshold {threshold}: {given}; "
            "nothing could ever be drawn"
        )
    left_out = [f"{name!r} ({given[name]:g})" for name in names if name not in kept]
    if left_out:
        _log.warning(
            "Multiplexer: left out, as proba_threshold is %g: %s", threshold, ", ".join(left_out)
        )
    return kept


def _by_name(names: tuple[str, ...], probas: Any) -> dict[str, Any]:
    owner = "Multiplexer: sampling_probas"
    if not isinstance(probas, Iterable) or isinstance(probas, str):
        raise WeightError(
            f"{owner} is a list of numbers, or numbers by name in a dict; got {probas!r}"
        )
    if not isinstance(probas, Mapping):
        listed = list(probas)
        if len(listed) != len(names):
            raise WeightError(
                f"{owner} has {len(listed)} entries for {len(names)} sources "
                f"({', '.join(names)}); give one for each"
            )
        return dict(zip(names, listed, strict=True))
    difference = names_apart(names, probas)
    if difference:
        raise WeightError(f"{owner} and sources do not match: {difference}")
    return {name: probas[name] for name in names}
