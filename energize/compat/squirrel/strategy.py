"""Multiplexing strategies, and which sources take part in them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from energize.errors import ConfigError, WeightError, nearest
from energize.order.weights import checked_weight

__all__ = ["MultiplexingStrategy", "Survivors", "checked_strategy", "survivors"]

_log = logging.getLogger("energize")


class MultiplexingStrategy(Enum):
    """How a `Multiplexer` chooses the source of the next sample."""

    ROUND_ROBIN = "RoundRobin"
    """One source after another; one that is over is left out; each sample comes exactly once."""

    SAMPLING = "sampling"
    """Independent draws with the sampling probabilities."""

    UNIFORM_WITH_REPLACEMENT = "uniform_with_replacement"
    """Independent draws, every source equally likely."""


@dataclass(frozen=True)
class Survivors:
    """The sources that take part: their numbers among those given, and their probabilities."""

    numbers: tuple[int, ...]
    probas: tuple[float, ...]


def checked_strategy(strategy: object) -> MultiplexingStrategy:
    """A strategy given as itself or by its value."""
    if isinstance(strategy, MultiplexingStrategy):
        return strategy
    known = [each.value for each in MultiplexingStrategy]
    if strategy not in known:
        raise ConfigError(
            f"Multiplexer: unknown mux_strategy {strategy!r}{nearest(str(strategy), known) or '.'} "
            f"Known: {', '.join(map(str, MultiplexingStrategy))}"
        )
    return MultiplexingStrategy(strategy)


def survivors(
    names: Sequence[str],
    strategy: MultiplexingStrategy,
    probas: Sequence[float] | Mapping[str, float] | None,
    threshold: float,
) -> Survivors:
    """The sources whose probability is above `threshold`; those left out are logged by name.

    Probabilities need not sum to 1, and are divided by the sum of those left. Round robin takes
    every source; uniform draws take those that would be drawn at all. Raises `WeightError` for
    probabilities that are missing, not one per source, negative, not finite, or all too small.
    """
    everyone = Survivors(tuple(range(len(names))), (1 / len(names),) * len(names))
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
    given = _one_each(names, probas)
    kept = tuple(i for i, value in enumerate(given) if value > threshold)
    if not kept:
        raise WeightError(
            f"Multiplexer: no sampling probability is above proba_threshold {threshold}: "
            f"{dict(zip(names, given, strict=True))}; nothing could ever be drawn"
        )
    left_out = [f"{names[i]!r} ({given[i]:g})" for i in range(len(names)) if i not in kept]
    if left_out:
        _log.warning(
            "Multiplexer: left out, as proba_threshold is %g: %s", threshold, ", ".join(left_out)
        )
    total = sum(given[i] for i in kept)
    return Survivors(kept, tuple(given[i] / total for i in kept))


def _one_each(names: Sequence[str], probas: Sequence[float] | Mapping[str, float]) -> list[float]:
    if isinstance(probas, Mapping):
        missing = [name for name in names if name not in probas]
        extra = [str(name) for name in probas if name not in names]
        if missing or extra:
            raise WeightError(
                f"Multiplexer: sampling_probas and sources do not match: missing "
                f"{missing or 'none'}, extra {extra or 'none'}"
            )
        probas = [probas[name] for name in names]
    if not isinstance(probas, Iterable) or isinstance(probas, str):
        raise WeightError(
            "Multiplexer: sampling_probas is a list of numbers, or numbers by name in a dict; got "
            f"{probas!r}"
        )
    listed = list(probas)
    if len(listed) != len(names):
        raise WeightError(
            f"Multiplexer: sampling_probas has {len(listed)} entries for {len(names)} sources "
            f"({', '.join(names)}); give one for each"
        )
    return [
        checked_weight(value, f"Multiplexer: sampling_probas of {name!r}")
        for name, value in zip(names, listed, strict=True)
    ]
