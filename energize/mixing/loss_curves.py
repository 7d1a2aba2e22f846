"""More of what the model learns fastest from, by the loss curve of each source."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from energize.core.checks import checked_whole
from energize.errors import ConfigError, StateError
from energize.mixing.policy import (
    checked_floor,
    checked_loss,
    checked_positive,
    floored,
    is_finite,
    numbers_of,
)

_MOST_POINTS = 64
"""Points of a curve that are kept; when there are more, every second one."""

_EXPONENTS = np.geomspace(0.02, 2.0, 60)


class LossCurve(NamedTuple):
    """The loss after n samples, `least + scale * n ** -exponent`."""

    least: float
    scale: float
    exponent: float

    def speed(self, n: float) -> float:
        """How much the loss falls by one more sample: -dL/dn."""
        return float(self.exponent * self.scale * n ** (-self.exponent - 1))


def fitted(points: Sequence[tuple[float, float]]) -> LossCurve:
    """The curve of least squares through (n, loss), with no negative part.

    Of an exponent, the two others are a linear fit; the exponent is the best of a grid.

    >>> curve = fitted([(n, 1.5 + 3 * n**-0.5) for n in range(100, 2000, 100)])
    >>> round(curve.least, 1), round(curve.exponent, 1)
    (1.5, 0.5)
    """
    n, loss = np.array(points, dtype=np.float64).T
    best, least_error = LossCurve(float(loss.mean()), 0.0, 1.0), math.inf
    for exponent in _EXPONENTS:
        way = n**-exponent
        centred = way - way.mean()
        scale = max(0.0, float(centred @ loss) / max(float(centred @ centred), 1e-300))
        least = float(loss.mean() - scale * way.mean())
        if least < 0:  # no loss falls below 0
            least, scale = 0.0, max(0.0, float(way @ loss) / float(way @ way))
        error = float(((least + scale * way - loss) ** 2).sum())
        if error < least_error:
            best, least_error = LossCurve(least, scale, float(exponent)), error
    return best


class LossCurves:
    """Weights by how fast the model learns from each source now, forecast by a power law of its own
    loss: after Adaptive Data Optimization (Jiang et al. 2024, arXiv:2410.11820).

    A curve `e + b * n ** -a` is fitted to the losses of each source, n being the samples of all
    sources so far. What a source is preferred by is

        prior * credit ** credit_exponent * speed,    speed = -dL/dn = a * b * n ** (-a - 1)

    where `credit` is a moving average of the weights it had: a loss that falls is credited to what
    was read. The weights are `adaptation` parts preference and `1 - adaptation` parts the mean of
    all weights before, with `floor` as the least share of each. `prior` are the weights of the mix
    as it is written. Before `warm_up` calls there are no weights.

    It differs from the paper in what is not of the idea: the fit is least squares over a grid of
    exponents, not Huber loss by L-BFGS, and it is made at every call, over up to 64 points.

    Raises `ConfigError` for values out of range and losses of sources without a prior.

    >>> policy = LossCurves({"web": 1, "code": 1}, warm_up=3, adaptation=1.0, floor=0.05)
    >>> for step in range(100, 600, 100):
    ...     losses = {"web": 3 + 4 / step, "code": 1 + 90 / step}
    ...     weights = policy.observe(step, losses, {"web": 100, "code": 100})
    >>> weights["code"] > 0.9
    True
    """

    def __init__(
        self,
        prior: Mapping[str, float],
        *,
        warm_up: int = 10,
        adaptation: float = 0.1,
        credit_exponent: float = 0.5,
        credit_memory: float = 0.9,
        floor: float = 0.01,
    ) -> None:
        if not isinstance(prior, Mapping) or not prior:
            raise ConfigError(f"LossCurves: prior has a weight by source; got {prior!r}")
        weights = {
            str(name): checked_positive(weight, f"LossCurves: the prior of {name!r}")
            for name, weight in prior.items()
        }
        total = sum(weights.values())
        self.prior = {name: weight / total for name, weight in weights.items()}
        self.warm_up = checked_whole(warm_up, "LossCurves: warm_up", 2)
        self.adaptation = _part(adaptation, "adaptation")
        self.credit_exponent = _part(credit_exponent, "credit_exponent")
        self.credit_memory = _part(credit_memory, "credit_memory")
        self.floor = checked_floor(floor, "LossCurves", len(self.prior))
        self._points: dict[str, list[tuple[float, float]]] = {name: [] for name in self.prior}
        self._credit, self._mean = dict(self.prior), dict(self.prior)
        self._samples = self._calls = 0

    def observe(
        self, step: int, losses: Mapping[str, float], counts: Mapping[str, int]
    ) -> dict[str, float] | None:
        """The weights of all sources, which sum to 1; None while too little is known."""
        unknown = [name for name in losses if name not in self.prior]
        if unknown:
            raise ConfigError(f"LossCurves: {unknown[0]!r} has no prior weight")
        self._samples += sum(counts.values())
        self._calls += 1
        for name, loss in losses.items():
            points = self._points[name]
            points.append((float(max(self._samples, 1)), checked_loss(loss, name)))
            if len(points) > _MOST_POINTS:
                self._points[name] = points[1::2]
        if self._calls < self.warm_up or min(map(len, self._points.values())) < 2:
            return None
        return self._weights()

    def _weights(self) -> dict[str, float]:
        preferred = {
            name: share
            * self._credit[name] ** self.credit_exponent
            * fitted(self._points[name]).speed(self._samples)
            for name, share in self.prior.items()
        }
        total = sum(preferred.values())
        if not (total > 0 and math.isfinite(total)):  # nothing falls any more
            preferred, total = dict(self.prior), 1.0
        new = self.adaptation
        weights = floored(
            {n: new * preferred[n] / total + (1 - new) * mean for n, mean in self._mean.items()},
            self.floor,
        )
        kept, calls = self.credit_memory, self._calls
        self._credit = {n: kept * c + (1 - kept) * weights[n] for n, c in self._credit.items()}
        self._mean = {n: mean + (weights[n] - mean) / calls for n, mean in self._mean.items()}
        return weights

    def curves(self) -> dict[str, LossCurve]:
        """The curve of each source that has two losses or more."""
        return {name: fitted(points) for name, points in self._points.items() if len(points) > 1}

    def state_dict(self) -> dict[str, Any]:
        """The points of the curves, and the weights it has given, on average."""
        return {
            "points": {name: [list(p) for p in points] for name, points in self._points.items()},
            "credit": dict(self._credit),
            "mean": dict(self._mean),
            "samples": self._samples,
            "calls": self._calls,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from them; `StateError` for what is no such state, or is over other sources."""
        names = list(self.prior)
        credit = numbers_of(state_dict, "credit", names)
        mean = numbers_of(state_dict, "mean", names)
        try:
            points = {
                name: [(float(n), float(loss)) for n, loss in state_dict["points"][name]]
                for name in names
            }
            samples, calls = int(state_dict["samples"]), int(state_dict["calls"])
            each = [number for points_ in points.values() for pair in points_ for number in pair]
            if not all(map(is_finite, [*each, samples, calls])) or min(samples, calls) < 0:
                raise ValueError("a number that is none")
        except (KeyError, TypeError, ValueError, OverflowError) as reason:
            raise StateError(f"the state of LossCurves is damaged: {str(reason)[:80]}") from reason
        self._credit, self._mean, self._points = credit, mean, points
        self._samples, self._calls = samples, calls


def _part(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ConfigError(f"LossCurves: {name} lies in 0 .. 1; got {value!r}")
    return float(value)
