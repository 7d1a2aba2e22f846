"""Binomial and hypergeometric numbers that are pure functions of a key and a number.

Numpy does not promise that its generators draw the same numbers in every version. These are made of
hashed words and of additions, multiplications, divisions and square roots, which give the same bits
on every machine; logarithms too.

Both laws are drawn by the ratio of uniforms: a point (u, v) of the rectangle 0 < u <= 1, |v| <= s
stands for the number floor(mean + 1/2 + v / u), and is accepted when u * u is at most the
probability of that number over the largest one. `s = sqrt(2/e) sqrt(variance + 1/2) + 3/2 -
sqrt(3/e)` leaves nothing out. Probabilities are compared by logarithms that are right to about
1e-8, for up to 2**40 trials.

Sources: Kinderman, Monahan, "Computer generation of random variables using the ratio of uniform
deviates", ACM TOMS 3, 1977; Stadlober, "The ratio of uniforms approach for generating discrete
random variates", J. Comput. Appl. Math. 31, 1990.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from energize.rng import hash_positions

__all__ = ["binomial", "hypergeometric"]

Int64Array = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

_MOST_ATTEMPTS = 2**12
_TABULATED = 2**16
_SERIES_FROM = 128
_LN2 = 0.6931471805599453
_HALF_LN_TAU = 0.9189385332046727
_SLOPE = 0.8577638849607068  # sqrt(2 / e)
_MARGIN = 0.4494580810294493  # 3/2 - sqrt(3 / e)


@dataclass(frozen=True, slots=True)
class _Laws:
    """Laws of whole numbers x from `low` to `high`, one for each entry. The logarithm of a
    probability is `x * tilt` less those of the factorials of `offset + sign * x`, for all parts.
    """

    low: Int64Array
    high: Int64Array
    mode: Int64Array
    mean: FloatArray
    variance: FloatArray
    parts: tuple[tuple[Int64Array, int], ...]
    """Offset and sign of each."""
    tilt: FloatArray | None
    largest: Int64Array
    """No factorial is of more than this."""


def binomial(
    key: int, numbers: Int64Array, trials: Int64Array, yes: Int64Array, no: Int64Array
) -> Int64Array:
    """For each of `numbers`, how many of `trials` (up to 2**40) succeed when each does so with
    probability `yes / (yes + no)`; `yes + no` is below 2**53. With both 0 there are no trials.
    """
    share = yes / np.maximum(yes + no, 1)
    low, high = np.where(no > 0, 0, trials), np.where(yes > 0, trials, 0)
    mean = trials * share
    mode = np.clip(np.floor(mean + share).astype(np.int64), low, high)
    odds = _log(np.maximum(yes, 1).astype(np.float64), np.maximum(no, 1).astype(np.float64))
    parts = ((np.zeros_like(trials), 1), (trials, -1))
    return _drawn(
        key, numbers, _Laws(low, high, mode, mean, mean * (1 - share), parts, odds, trials)
    )


def hypergeometric(
    key: int, numbers: Int64Array, good: Int64Array, bad: Int64Array, taken: Int64Array
) -> Int64Array:
    """For each of `numbers`, how many are good among `taken` of `good + bad` (up to 2**40) things,
    drawn without replacement.
    """
    total = np.maximum(good + bad, 2)
    low, high = np.maximum(0, taken - bad), np.minimum(good, taken)
    share = taken / total
    mean = share * good
    mode = np.floor((good + 1.0) * (taken + 1.0) / (total + 2.0)).astype(np.int64)
    mode = np.clip(mode, low, high)
    variance = mean * (bad / total) * ((total - taken) / (total - 1))
    parts = ((np.zeros_like(good), 1), (good, -1), (taken, -1), (bad - taken, 1))
    return _drawn(key, numbers, _Laws(low, high, mode, mean, variance, parts, None, total))


def _drawn(key: int, numbers: Int64Array, laws: _Laws) -> Int64Array:
    """A number of each law. Attempts are numbered and the first that is accepted counts, so how
    many are made at once decides nothing.
    """
    values = laws.mode.copy()
    centre, spread = laws.mean + 0.5, _SLOPE * np.sqrt(laws.variance + 0.5) + _MARGIN
    for rows in _alike(laws):
        pending, first = rows, 0
        while pending.size:
            tries = 1 if pending.size > 4096 else 3 if pending.size > 256 else 8
            attempts = numbers[pending] * _MOST_ATTEMPTS + np.arange(first, first + tries)[:, None]
            u, v = _point(key, attempts)
            at = centre[pending] + v * spread[pending] / u
            inside = (at >= laws.low[pending]) & (at < laws.high[pending] + 1)
            whole = np.where(inside, at, laws.mode[pending]).astype(np.int64)
            accepted = inside & _below(u, _log_ratios(laws, pending, whole))
            done = accepted.any(axis=0)
            chosen = accepted.argmax(axis=0)[done]
            values[pending[done]] = whole[chosen, np.flatnonzero(done)]
            pending = pending[~done]
            first += tries
    return values


def _alike(laws: _Laws) -> Iterator[Int64Array]:
    """The laws that leave a choice: those whose factorials are tabulated, then the others."""
    chosen = laws.high > laws.low
    tabulated = laws.largest < _TABULATED
    yield np.flatnonzero(chosen & tabulated)
    yield np.flatnonzero(chosen & ~tabulated)


def _point(key: int, attempts: Int64Array) -> tuple[FloatArray, FloatArray]:
    """The points of attempts: u above 0 and up to 1, v from -1 to 1 (as a part of s)."""
    u = ((hash_positions(key, attempts) >> np.uint64(11)) + np.uint64(1)).astype(np.float64)
    v = (hash_positions(key, attempts, salt=1) >> np.uint64(11)).astype(np.float64)
    return u * 2.0**-53, v * 2.0**-52 - 1


def _below(u: FloatArray, log_ratio: FloatArray) -> BoolArray:
    """Where 2 log(u) <= log_ratio; mostly told by u - 1/u <= 2 log(u) <= u (4 - u) - 3."""
    below: BoolArray = u * (4 - u) - 3 <= log_ratio
    open_ = ~below & (u * (u - log_ratio) < 1)
    below[open_] = 2 * _log(u[open_], _ONE) <= log_ratio[open_]
    return below


def _log_ratios(laws: _Laws, rows: Int64Array, at: Int64Array) -> FloatArray:
    """The logarithm of the probability of `at` over that of the mode, for laws that are alike."""
    mode = laws.mode[rows]
    ratios: FloatArray = np.zeros(at.shape)
    if laws.tilt is not None:
        ratios = (at - mode) * laws.tilt[rows]
    parts = [(offset[rows], sign) for offset, sign in laws.parts]
    if laws.largest[rows[0]] < _TABULATED:
        table = _log_factorials()
        for offset, sign in parts:
            ratios += table[offset + sign * mode] - table[offset + sign * at]
    else:
        old = np.stack([offset + sign * mode for offset, sign in parts])
        new = np.stack([offset + sign * at for offset, sign in parts])
        for terms in _log_factorial_ratios(old[:, None], new):
            ratios -= terms
    return ratios


def _log_factorial_ratios(old: Int64Array, new: Int64Array) -> FloatArray:
    """log(new! / old!), the rows of `new` against `old`: differences of Stirling's series, so that
    no large logarithms cancel; of a table where both are small.
    """
    z, x = np.maximum(old, 1).astype(np.float64), np.maximum(new, 1).astype(np.float64)
    terms: FloatArray = (x + 0.5) * _log(x, z) + (new - old) * (_log(z, _ONE) - 1)
    terms += _stirling(x) - _stirling(z)
    small = np.maximum(old, new) < _SERIES_FROM
    if small.any():
        before = np.broadcast_to(old, new.shape)[small]
        terms[small] = _log_factorials()[new[small]] - _log_factorials()[before]
    return terms


@cache
def _log_factorials() -> FloatArray:
    """log(n!) for n below `_TABULATED`, right to 1e-9."""
    n = np.arange(1.0, _TABULATED)
    logs = _log(n, _ONE)
    table: FloatArray = np.concatenate([[0.0], (n + 0.5) * logs - n + _HALF_LN_TAU + _stirling(n)])
    table[1:_SERIES_FROM] = np.cumsum(logs[: _SERIES_FROM - 1])
    table.setflags(write=False)
    return table


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
