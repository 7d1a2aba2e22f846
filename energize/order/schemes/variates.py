"""Binomial numbers that are pure functions of a key and a number.

Numpy does not promise that its generators draw the same numbers in every version. These are made of
hashed words and of additions, multiplications, divisions and square roots, which give the same bits
on every machine; logarithms too.

They are drawn by the ratio of uniforms: a point (u, v) of the rectangle 0 < u <= 1, |v| <= s stands
for the number floor(mean + 1/2 + v / u), and is accepted when u * u is at most the probability of
that number over the largest one. `s = sqrt(2/e) sqrt(variance + 1/2) + 3/2 - sqrt(3/e)` leaves
nothing out. Probabilities are compared by logarithms that are right to about 1e-8, for up to 2**40
trials.

Sources: Kinderman, Monahan, "Computer generation of random variables using the ratio of uniform
deviates", ACM TOMS 3, 1977; Stadlober, "The ratio of uniforms approach for generating discrete
random variates", J. Comput. Appl. Math. 31, 1990.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from energize.arrays import BoolArray, FloatArray, Int64Array
from energize.rng import hash_positions

__all__ = ["binomial"]


_MOST_ATTEMPTS = 2**12
_TABULATED = 2**16
_SERIES_FROM = 128
_LN2 = 0.6931471805599453
_HALF_LN_TAU = 0.9189385332046727
_SLOPE = 0.8577638849607068  # sqrt(2 / e)
_MARGIN = 0.4494580810294493  # 3/2 - sqrt(3 / e)


def binomial(
    key: int, numbers: Int64Array, trials: Int64Array, yes: Int64Array, no: Int64Array
) -> Int64Array:
    """For each of `numbers`, how many of `trials` (up to 2**40) succeed when each does so with
    probability `yes / (yes + no)`; `yes + no` is below 2**53. With both 0 there are no trials.
    """
    values = np.where(no > 0, 0, trials)
    open_ = (trials > 0) & (yes > 0) & (no > 0)
    small = trials < _TABULATED
    for rows in (np.flatnonzero(open_ & small), np.flatnonzero(open_ & ~small)):
        if rows.size:
            laws = _laws(trials[rows], yes[rows].astype(np.float64), no[rows].astype(np.float64))
            values[rows] = _drawn(key, numbers[rows], laws)
    return values


@dataclass(frozen=True, slots=True)
class _Laws:
    """Binomial laws, one for each entry; all of less than `_TABULATED` trials, or none."""

    trials: Int64Array
    mode: Int64Array
    centre: FloatArray
    spread: FloatArray
    odds: FloatArray
    """log(p / (1 - p))."""

    def of(self, rows: Int64Array) -> _Laws:
        return _Laws(
            self.trials[rows],
            self.mode[rows],
            self.centre[rows],
            self.spread[rows],
            self.odds[rows],
        )


def _laws(trials: Int64Array, yes: FloatArray, no: FloatArray) -> _Laws:
    share = yes / (yes + no)
    mean = trials * share
    mode = np.minimum((mean + share).astype(np.int64), trials)
    spread = _SLOPE * np.sqrt(mean * (1 - share) + 0.5) + _MARGIN
    return _Laws(trials, mode, mean + 0.5, spread, _log(yes, no))


def _drawn(key: int, numbers: Int64Array, laws: _Laws) -> Int64Array:
    """A number of each law. Attempts are numbered and the first that is accepted counts, so how
    many are made at once decides nothing.
    """
    values = laws.mode.copy()
    pending, first = np.arange(len(values)), 0
    while pending.size:
        tries = 1 if pending.size > 4096 else 3 if pending.size > 256 else 8
        attempts = numbers * _MOST_ATTEMPTS + np.arange(first, first + tries)[:, None]
        u, v = _point(key, attempts)
        at = laws.centre + v * laws.spread / u
        inside = (at >= 0) & (at < laws.trials + 1)
        whole = np.where(inside, at, laws.mode).astype(np.int64)
        accepted = inside & _below(u, _log_ratios(laws, whole))
        done = accepted.any(axis=0)
        values[pending[done]] = whole[accepted.argmax(axis=0)[done], np.flatnonzero(done)]
        left = np.flatnonzero(~done)
        pending, numbers, laws = pending[left], numbers[left], laws.of(left)
        first += tries
    return values


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


def _log_ratios(laws: _Laws, at: Int64Array) -> FloatArray:
    """The logarithm of the probability of `at` over that of the mode."""
    trials, mode = laws.trials, laws.mode
    ratios: FloatArray = (at - mode) * laws.odds
    if trials[0] < _TABULATED:
        table = _log_factorials()
        ratios += table[mode] + table[trials - mode] - table[at] - table[trials - at]
    else:
        old, new = np.stack([mode, trials - mode]), np.stack([at, trials - at])
        ratios -= _log_factorial_ratios(old[:, None], new).sum(axis=0)
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
