"""Weights that follow the loss: policies, which are told losses by source and answer weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple, Protocol

import numpy as np
from pydantic import BaseModel, BeforeValidator, Field, TypeAdapter

from energize.core.checks import checked_arguments, real_number
from energize.core.validation import validated
from energize.errors import ConfigError, StateError, nearest

__all__ = ["ExcessLoss", "LossCurves", "MixingPolicy", "unimax"]


class MixingPolicy(Protocol):
    """Is told losses now and then, and answers weights. `Loader.follow` takes any such object.

    It has to be a function of what it is told and of its state: every rank has one, is told the
    same, and has to answer the same.
    """

    def observe(
        self, step: int, losses: Mapping[str, float], counts: Mapping[str, int]
    ) -> Mapping[str, float] | None:
        """Return new weights by source, or None to leave them as they are.

        `losses` has the mean loss of each source since the last call, over all ranks, and `counts`
        of how many samples it is the mean; a source that gave none is not there. `step` is the next
        step of the loader.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return what it remembers, as plain JSON."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from what another one remembered."""


def _plain(value: object) -> object:
    """A number of numpy, or a tensor of one, as a float; anything else as it is."""
    number = real_number(value)
    return value if number is None else float(number)


_LARGEST = 1e300  # no sum of losses comes near it
_Number = Annotated[float, BeforeValidator(_plain), Field(strict=True, ge=-_LARGEST, le=_LARGEST)]
_Positive = Annotated[_Number, Field(gt=0)]
_Part = Annotated[_Number, Field(ge=0, le=1)]
_LessThanOne = Annotated[_Number, Field(ge=0, lt=1)]
_Losses = Annotated[dict[str, _Number], Field(min_length=1)]
_Sizes = Annotated[dict[str, _Positive], Field(min_length=1)]


def _check_losses(losses: Mapping[str, float], known: Mapping[str, float], what: str) -> None:
    """Raise `ConfigError` for losses of sources that are not known, and that are no numbers."""
    for name, loss in losses.items():
        if name not in known:
            raise ConfigError(f"{name!r} has no {what}{nearest(name, list(known))}")
        number = real_number(loss)
        if number is None or not math.isfinite(number):
            raise ConfigError(
                f"the mean loss of {name!r} is {loss!r}: weights cannot follow it. Leave out steps "
                "whose loss is not finite"
            )


def _check_floor(floor: float, sources: int) -> None:
    if floor * sources > 1:
        raise ConfigError(
            f"{sources} sources cannot all have a share of {floor:g} at least; floor is at most "
            f"{1 / sources:.4g} here"
        )


def _floored(shares: Mapping[str, float], floor: float) -> dict[str, float]:
    """Shares of 1 of which each is `floor` at least: the rest is shared out as they are."""
    left = 1.0 - floor * len(shares)
    total = sum(shares.values())
    return {name: floor + left * share / total for name, share in shares.items()}


_STATE = "the state of a policy"


# More of what the model is still worse at than it could be.


class _Seen(BaseModel):
    losses: dict[str, _Number] = {}


_SEEN = TypeAdapter(_Seen)


class ExcessLoss:
    """Weights by softmax(excess / temperature), the excess of a source being how far its loss is
    above its `reference`: the loss of a model that was trained on it alone, say, or of a smaller
    one. So sources differ by what is left to learn, and not by how hard they are by nature.

    `temperature` has the unit of the loss; the higher, the more even the weights. `floor` is the
    least share of each source. The losses are smoothed: each new mean counts `1 - memory`. No
    weights are answered before every source has had a loss. The excess loss that weights follow is
    that of DoReMi (Xie et al. 2023, arXiv:2305.10429), there with a reference model.

    Raises `ConfigError` for values out of range and for a loss of a source without a reference.

    >>> policy = ExcessLoss({"web": 2.0, "code": 1.0}, temperature=0.5, floor=0.1)
    >>> policy.observe(100, {"web": 2.5, "code": 1.0}, {"web": 50, "code": 50})
    {'web': 0.6848..., 'code': 0.3151...}
    """

    @checked_arguments
    def __init__(
        self,
        reference: _Losses,
        *,
        temperature: _Positive = 1.0,
        floor: _LessThanOne = 0.0,
        memory: _LessThanOne = 0.0,
    ) -> None:
        _check_floor(floor, len(reference))
        self.reference, self.temperature = reference, temperature
        self.floor, self.memory = floor, memory
        self._seen = _Seen()

    def observe(
        self, step: int, losses: Mapping[str, float], counts: Mapping[str, int]
    ) -> dict[str, float] | None:
        """Return the weights of all sources, which sum to 1; None while one had no loss yet."""
        _check_losses(losses, self.reference, "reference loss")
        seen = self._seen.losses
        for name, loss in losses.items():
            before = seen.get(name, loss)
            seen[name] = self.memory * before + (1 - self.memory) * float(loss)
        if len(seen) < len(self.reference):
            return None
        excess = {name: seen[name] - low for name, low in self.reference.items()}
        most = max(excess.values())
        shares = {n: math.exp((each - most) / self.temperature) for n, each in excess.items()}
        return _floored(shares, self.floor)

    def state_dict(self) -> dict[str, Any]:
        """Return the losses so far."""
        return self._seen.model_dump(mode="json")

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from them; raise `StateError` for what is no such state."""
        self._seen = validated(_SEEN, state_dict, StateError, _STATE)


# More of what the model learns fastest from, by the loss curve of each source.

_MOST_POINTS = 64
"""Points of a curve that are kept; when there are more, every second one."""

_EXPONENTS = np.geomspace(0.02, 2.0, 60)


class LossCurve(NamedTuple):
    """The loss after n samples, `least + scale * n ** -exponent`."""

    least: float
    scale: float
    exponent: float

    def speed(self, n: float) -> float:
        """Return how much the loss falls by one more sample: -dL/dn."""
        return float(self.exponent * self.scale * n ** (-self.exponent - 1))


def fitted(points: Sequence[tuple[float, float]]) -> LossCurve:
    """Return the curve of least squares through (n, loss), with no negative part.

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


_Count = Annotated[int, Field(strict=True, ge=0)]


class _Learned(BaseModel):
    """Of each source the points of its curve, and its weights: the last ones, and their mean."""

    points: dict[str, list[tuple[_Number, _Number]]]
    credit: dict[str, _Number]
    mean: dict[str, _Number]
    samples: _Count = 0
    calls: _Count = 0


_LEARNED = TypeAdapter(_Learned)


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

    @checked_arguments
    def __init__(
        self,
        prior: _Sizes,
        *,
        warm_up: Annotated[int, Field(strict=True, ge=2)] = 10,
        adaptation: _Part = 0.1,
        credit_exponent: _Part = 0.5,
        credit_memory: _Part = 0.9,
        floor: _LessThanOne = 0.01,
    ) -> None:
        _check_floor(floor, len(prior))
        total = sum(prior.values())
        self.prior = {name: weight / total for name, weight in prior.items()}
        self.warm_up, self.adaptation, self.floor = warm_up, adaptation, floor
        self.credit_exponent, self.credit_memory = credit_exponent, credit_memory
        points: dict[str, list[tuple[float, float]]] = {name: [] for name in self.prior}
        self._learned = _Learned(points=points, credit=self.prior, mean=self.prior)

    def observe(
        self, step: int, losses: Mapping[str, float], counts: Mapping[str, int]
    ) -> dict[str, float] | None:
        """Return the weights of all sources, which sum to 1; None while too little is known."""
        _check_losses(losses, self.prior, "prior weight")
        learned = self._learned
        learned.samples += sum(counts.values())
        learned.calls += 1
        for name, loss in losses.items():
            points = learned.points[name]
            points.append((float(max(learned.samples, 1)), float(loss)))
            if len(points) > _MOST_POINTS:
                learned.points[name] = points[1::2]
        if learned.calls < self.warm_up or min(map(len, learned.points.values())) < 2:
            return None
        return self._weights()

    def _weights(self) -> dict[str, float]:
        learned, new, kept = self._learned, self.adaptation, self.credit_memory
        preferred = {
            name: share
            * learned.credit[name] ** self.credit_exponent
            * fitted(learned.points[name]).speed(learned.samples)
            for name, share in self.prior.items()
        }
        total = sum(preferred.values())
        if not (total > 0 and math.isfinite(total)):  # nothing falls any more
            preferred, total = self.prior, 1.0
        mixed = {n: new * preferred[n] / total + (1 - new) * m for n, m in learned.mean.items()}
        weights = _floored(mixed, self.floor)
        learned.credit = {n: kept * c + (1 - kept) * weights[n] for n, c in learned.credit.items()}
        learned.mean = {n: m + (weights[n] - m) / learned.calls for n, m in learned.mean.items()}
        return weights

    def curves(self) -> dict[str, LossCurve]:
        """Return the curve of each source that has two losses or more."""
        curves = self._learned.points.items()
        return {name: fitted(points) for name, points in curves if len(points) > 1}

    def state_dict(self) -> dict[str, Any]:
        """Return the points of the curves, and the weights it has given, on average."""
        return self._learned.model_dump(mode="json")

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from them; raise `StateError` for what is no such state or over other sources."""
        learned = validated(_LEARNED, state_dict, StateError, _STATE)
        for found in (learned.points, learned.credit, learned.mean):
            if found.keys() != self.prior.keys():
                raise StateError(
                    f"{_STATE} is over {', '.join(found)}, and this one over "
                    f"{', '.join(self.prior)}"
                )
        self._learned = learned


# As even as sizes allow.


@checked_arguments
def unimax(sizes: _Sizes, budget: _Positive, max_epochs: _Positive) -> dict[str, float]:
    """Return the share of each source such that a `budget` is shared out as evenly as possible and
    no source is read more than `max_epochs` times: UniMax (Chung et al. 2023, arXiv:2304.09151).

    `sizes` and `budget` count the same: samples, or tokens. From the smallest source on, each gets
    an equal part of what is left, but no more than `max_epochs` of its size. The shares sum to 1;
    where the budget is larger than all caps together, every source is read `max_epochs` times, by
    its size.

    Raises `ConfigError` for sizes, a budget or epochs that are not above 0.

    >>> unimax({"en": 1000, "de": 300, "fy": 10}, budget=600, max_epochs=4)
    {'en': 0.4666..., 'de': 0.4666..., 'fy': 0.0666...}
    """
    left = budget
    given: dict[str, float] = {}
    for name in sorted(sizes, key=sizes.__getitem__):
        given[name] = min(left / (len(sizes) - len(given)), max_epochs * sizes[name])
        left -= given[name]
    total = sum(given.values())
    return {name: given[name] / total for name in sizes}
