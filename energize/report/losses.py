"""Losses that a trainer reports of what it was given: summed by source, and outliers by name."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np

from energize.core.arrays import FloatArray, rows_by_value
from energize.core.checks import real_number
from energize.errors import ConfigError, nearest, some
from energize.report.ledger import Book
from energize.report.levels import Made
from energize.report.table import Outlier

_KEPT = 256
"""Steps in which outliers are looked for."""

_FAR, _FEWEST, _SHOWN = 4.0, 20, 8
"""Standard deviations from which on a loss is an outlier, the losses of its source that it takes to
tell, and how many are told."""

_NAMED = 3
"""Losses that are no number and are told in the log."""

_log = logging.getLogger("energize")


@dataclass(frozen=True, slots=True)
class Delivered:
    """An item that was given to a rank at a step, and the losses that were recorded of it."""

    made: Made
    step: int
    rank: int
    world_size: int
    losses: Sequence[float | None] = ()
    time: float = 0.0

    def line(self, losses: Sequence[float | None]) -> dict[str, Any]:
        """As a file has it: what the item is made of, and the losses of its samples, in order."""
        told = [short_loss(each) for each in losses]
        made = self.made if isinstance(self.made, int) else list(self.made)
        of = {"step": self.step, "rank": self.rank, "world_size": self.world_size}
        return {**of, "made": made, "losses": told, "time": round(time.time(), 3)}


class Losses:
    """The losses of the last steps of a rank; what all sum up to is counted in the `book`."""

    def __init__(self) -> None:
        self._last: deque[FloatArray] = deque(maxlen=_KEPT)
        self._named = 0

    def record(self, book: Book, item: Delivered, losses: Any) -> list[float | None]:
        """Count the losses of an item, and return those of its samples, None for those of which
        nothing is said; `ConfigError` for others than it has samples or sources.
        """
        found = book.found(item.made)
        given = f"record_losses (rank {item.rank}, step {item.step})"
        if isinstance(losses, Mapping):
            of = _by_row(losses, book.names, given)
            told: list[float | None] = [of.get(row) for row in found.row.tolist()]
        else:
            told = _of_samples(losses, len(found.row), given)
        at = [number for number, loss in enumerate(told) if loss is not None]
        rows, samples = found.row[at], found.sample[at]
        values = np.array([told[number] for number in at], dtype=np.float64)
        book.count_losses(rows, values)
        steps = np.full(len(at), item.step, dtype=np.float64)
        self._last.append(np.stack([steps, rows, samples, values]))
        for number in np.flatnonzero(~np.isfinite(values)).tolist():
            self._named += 1
            if self._named <= _NAMED:
                more = "; more are counted in loader.report()" if self._named == _NAMED else ""
                where = book.where(int(rows[number]), int(samples[number]))
                text = "rank %d, step %d: the loss of %s is %s%s"
                _log.warning(text, item.rank, item.step, where, values[number], more)
        return told

    def outliers(self, book: Book, rank: int) -> list[Outlier]:
        """Return the samples of the last steps whose losses stand out of those of their source."""
        if not self._last:
            return []
        *numbers, values = np.concatenate(self._last, axis=1)
        steps, rows, samples = (each.astype(np.int64) for each in numbers)
        far = np.where(np.isfinite(values), 0.0, np.inf)
        for _, at in rows_by_value(rows):
            known = at[np.isfinite(values[at])]
            mean, spread = values[known].mean(), values[known].std()
            if len(known) >= _FEWEST and spread > 0:
                far[known] = np.abs(values[known] - mean) / spread
        worst = np.argsort(-far, kind="stable")[:_SHOWN].tolist()
        worst = [each for each in worst if far[each] >= _FAR]
        where = [book.where(int(rows[each]), int(samples[each])) for each in worst]
        columns = (steps, rows, values, far)
        of = zip(*(each[worst].tolist() for each in columns), where, strict=True)
        return [Outlier(step, rank, book.names[row], *rest) for step, row, *rest in of]


def short_loss(loss: float | None) -> float | str | None:
    """Return a loss as JSON has it: NaN and infinity as texts."""
    return loss if loss is None else float(f"{loss:.6g}") if isfinite(loss) else str(loss)


def _of_samples(losses: Any, samples: int, given: str) -> list[float | None]:
    told = losses.detach().tolist() if hasattr(losses, "detach") else losses
    try:
        values: Any = np.asarray(told, dtype=np.float64)
    except (TypeError, ValueError):
        raise ConfigError(
            f"{given}: losses are a tensor or a list of numbers, one for each sample, or a dict by "
            f"source; got {str(losses)[:80]!r}"
        ) from None
    if values.size != samples or not values.ndim:
        one = "; one number is a mean over samples: compute losses with reduction='none'"
        raise ConfigError(
            f"{given}: got {values.size} losses for an item that is made of "
            f"{samples} samples; give one for each, in the order of the item"
            f"{'' if values.ndim else one}"
        )
    numbers: list[float | None] = values.reshape(-1).tolist()
    return numbers


def _by_row(losses: Mapping[str, Any], names: Sequence[str], given: str) -> dict[int, float]:
    found = {}
    for name, loss in losses.items():
        value = real_number(loss)
        if name not in names:
            raise ConfigError(
                f"{given}: no source is called {str(name)[:80]!r}{nearest(str(name), names)}; "
                f"sources are {some(names)}"
            )
        if value is None:
            raise ConfigError(f"{given}: the loss of {name!r} is no number: {str(loss)[:80]!r}")
        found[names.index(name)] = float(value)
    return found
