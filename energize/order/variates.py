"""Binomial and hypergeometric numbers that are pure functions of a key and a number.

Numpy does not promise that its generators draw the same numbers in every version. These are made of
hashed words and of additions, multiplications, divisions and square roots, which give the same bits
on every machine; logarithms too.

Both laws are log-concave, and are drawn by rejection from one envelope, a plateau with exponential
tails, which is valid for any law of that kind whose largest probability is at least that of its
plateau. Probabilities are compared through their ratio to the largest one; for up to 2**40 trials
its logarithm is right to about 1e-8.

Sources: Devroye, "A simple generator for discrete log-concave distributions", Computing 39, 1987;
Bobkov, Marsiglietti, Melbourne, "Concentration functions and entropy bounds for discrete
log-concave distributions", 2022 (the largest probability is at least 1 / sqrt(1 + 12 variance)).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from energize.rng import hash_positions

__all__ = ["binomial", "hypergeometric"]

Int64Array = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

_MOST_ATTEMPTS = 2**12
_SMALL = 128
_LN2 = 0.6931471805599453


@dataclass(frozen=True, slots=True)
class _Law:
    """Laws of integers, one per entry: where they lie, and `log_ratio(rows, d)`, the logarithm of
    the probability of `mode + d` over that of `mode`, for each of `rows` and columns of d.
    """

    low: Int64Array
    high: Int64Array
    mode: Int64Array
    variance: FloatArray
    log_ratio: Callable[[Int64Array, FloatArray], FloatArray]


def binomial(
    key: int, numbers: Int64Array, trials: Int64Array, yes: Int64Array, no: Int64Array
) -> Int64Array:
    """For each of `numbers`, how many of `trials` (up to 2**40) succeed when each does so with
    probability `yes / (yes + no)`; `yes + no` is below 2**53. With both 0 there are no trials.
    """
    share = yes / np.maximum(yes + no, 1)
    low, high = np.where(no > 0, 0, trials), np.where(yes > 0, trials, 0)
    mode = np.clip(np.floor((trials + 1) * share).astype(np.int64), low, high)
    odds = _log(np.maximum(yes, 1).astype(np.float64), np.maximum(no, 1).astype(np.float64))
    parts = np.stack([mode, trials - mode])
    signs = np.array([1.0, -1.0])

    def log_ratio(rows: Int64Array, d: FloatArray) -> FloatArray:
        ratio: FloatArray = d * odds[rows, None] - _log_factorial_ratios(parts[:, rows], signs, d)
        return ratio

    law = _Law(low, high, mode, trials * share * (1 - share), log_ratio)
    return _drawn(key, numbers, law)


def hypergeometric(
    key: int, numbers: Int64Array, good: Int64Array, bad: Int64Array, taken: Int64Array
) -> Int64Array:
    """For each of `numbers`, how many are good among `taken` of `good + bad` (up to 2**40) things,
    drawn without replacement.
    """
    total = np.maximum(good + bad, 2)
    low, high = np.maximum(0, taken - bad), np.minimum(good, taken)
    share = taken / total
    mode = np.floor((good + 1.0) * (taken + 1.0) / (total + 2.0)).astype(np.int64)
    mode = np.clip(mode, low, high)
    variance = share * good * (bad / total) * ((total - taken) / (total - 1))
    parts = np.stack([mode, good - mode, taken - mode, bad - taken + mode])
    signs = np.array([1.0, -1.0, -1.0, 1.0])

    def log_ratio(rows: Int64Array, d: FloatArray) -> FloatArray:
        return -_log_factorial_ratios(parts[:, rows], signs, d)

    return _drawn(key, numbers, _Law(low, high, mode, variance, log_ratio))


def _drawn(key: int, numbers: Int64Array, law: _Law) -> Int64Array:
    """A number of each law. Attempts are numbered and the first that is accepted counts, so how
    many are made at once decides nothing.
    """
    values = law.mode.copy()
    height = 1 / np.sqrt(1 + 12 * law.variance)
    pending = np.flatnonzero(law.high > law.low)
    first = 0
    while pending.size:
        tries = 8 if pending.size <= 64 else 2
        attempts = numbers[pending, None] * _MOST_ATTEMPTS + first + np.arange(tries)
        distance, envelope = _proposed(hash_positions(key, attempts), height[pending, None])
        at = law.mode[pending, None] + distance
        inside = (at >= law.low[pending, None]) & (at <= law.high[pending, None])
        ratio = law.log_ratio(pending, np.where(inside, distance, 0.0))
        chance = _log(_unit(hash_positions(key, attempts, salt=1)), _ONE)
        accepted = inside & (chance + envelope <= ratio)
        done = accepted.any(axis=1)
        chosen = accepted.argmax(axis=1)[done]
        values[pending[done]] = at[done, chosen].astype(np.int64)
        pending = pending[~done]
        first += tries
    return values


def _proposed(words: npt.NDArray[np.uint64], height: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Whole distances from the mode, and the logarithm of the envelope where they were drawn: 1 up
    to `1 / height + 1 / 2`, exponential beyond, when the mode has a probability of `height`.
    """
    width = 1 + height / 2
    area = _unit(words) * (1 + width)
    envelope = _log(np.where(area > width, area - width, 1.0), _ONE)
    distance = np.floor((np.minimum(area, width) - envelope) / height + 0.5)
    return np.where(words & np.uint64(1), distance, -distance), envelope


def _unit(words: npt.NDArray[np.uint64]) -> FloatArray:
    """Words as multiples of 2**-53, above 0 and up to 1."""
    return ((words >> np.uint64(11)) + np.uint64(1)).astype(np.float64) * 2.0**-53


def _log_factorial_ratios(parts: Int64Array, signs: FloatArray, d: FloatArray) -> FloatArray:
    """The sum over k of log((z + s d)! / z!) with z = parts[k, row], s = signs[k]; d has columns.

    Differences of Stirling's series, so that no large logarithms cancel; a table where all are
    small.
    """
    old = np.broadcast_to(parts[:, :, None].astype(np.float64), (len(parts), *d.shape))
    change = signs[:, None, None] * d
    new = old + change
    small = np.maximum(old, new) < _SMALL
    z, x = np.maximum(old, 1.0), np.maximum(new, 1.0)
    terms = (x + 0.5) * _log(x, z) + change * (_log(z, _ONE) - 1) + _stirling(x) - _stirling(z)
    if small.any():
        i, j = new[small].astype(np.int64), old[small].astype(np.int64)
        terms[small] = _LOG_FACTORIALS[i] - _LOG_FACTORIALS[j]
    total: FloatArray = terms.sum(axis=0)
    return total


def _stirling(z: FloatArray) -> FloatArray:
    """What Stirling's formula leaves out of log(z!); right to 1e-17 for z >= 128."""
    inverse = 1 / z
    square = inverse * inverse
    series: FloatArray = inverse * (1 / 12 - square * (1 / 360 - square / 1260))
    return series


def _log(above: FloatArray, below: FloatArray) -> FloatArray:
    """log(above / below) of positive numbers, with a small relative error also near 0.

    The ratio is brought near 1 by a power of two, and then log r = 2 artanh((r - 1) / (r + 1)).
    """
    mantissa, exponent = np.frexp(above / below)
    exponent = exponent - (mantissa < 0.7071067811865476)
    near = np.ldexp(above, -exponent)
    s = (near - below) / (near + below)
    square = s * s
    series = np.full_like(s, 1 / 23)
    for odd in range(21, 0, -2):
        series = series * square + 1 / odd
    log: FloatArray = 2 * s * series + exponent * _LN2
    return log


_ONE = np.ones(1)
_LOG_FACTORIALS = np.concatenate(
    [[0.0], np.cumsum(_log(np.arange(1.0, _SMALL), np.ones(_SMALL - 1)))]
)
"""log(n!) for n below `_SMALL`."""
