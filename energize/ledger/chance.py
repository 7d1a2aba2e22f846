"""Whether the difference between what was asked for and what came is more than chance."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from energize.core.arrays import FloatArray
from energize.core.lazy import torch

ALPHA = 1e-3
"""A difference that chance brings about less often than this is told as one."""

_EXPECTED = 5.0
"""What each source has to be expected for the chi-square distribution to hold (Cochran 1954)."""

_CELLS, _FEWEST, _MOST = 2_000_000, 1_000, 10_000
"""How many draws are compared with, where that does not hold: by the cells of their table."""


def chance_of(counts: npt.ArrayLike, shares: npt.ArrayLike) -> float | None:
    """How likely independent draws by `shares` differ from them at least as much as `counts` do.

    Pearson's chi-square test: the upper tail of the distribution with one degree of freedom fewer
    than there are shares above 0; or, where one of them is expected fewer than five times, the part
    of some thousand multinomial draws of the same length, always the same ones, that lie as far
    off. 0 where something came that has no share. None where there is nothing to compare.

    The order of a mix is not drawn so: it keeps shares far closer, and the chance is then near 1. A
    small one says that something else than the weights decided.

    >>> round(chance_of([48, 52], [0.5, 0.5]), 3), chance_of([900, 100], [0.5, 0.5]) < 1e-9
    (0.689, True)
    """
    observed = np.asarray(counts, dtype=np.float64)
    asked = np.asarray(shares, dtype=np.float64)
    drawn = asked > 0
    total = float(observed.sum())
    if total <= 0 or drawn.sum() < 1:
        return None
    if observed[~drawn].any():
        return 0.0
    if drawn.sum() < 2:
        return None
    observed, asked = observed[drawn], asked[drawn] / asked[drawn].sum()
    found = _distance(observed, total * asked)
    if float(asked.min()) * total >= _EXPECTED:
        freedom = torch.tensor((len(asked) - 1) / 2, dtype=torch.float64)
        half = torch.tensor(float(found) / 2, dtype=torch.float64)
        return float(torch.special.gammaincc(freedom, half))
    return _among_draws(float(found), round(total), asked)


def _distance(observed: FloatArray, expected: FloatArray) -> FloatArray:
    return np.asarray(((observed - expected) ** 2 / expected).sum(axis=-1))


def _among_draws(found: float, total: int, asked: FloatArray) -> float | None:
    if not total:
        return None
    draws = max(_FEWEST, min(_MOST, _CELLS // len(asked)))
    generator = np.random.Generator(np.random.Philox(total))
    drawn = generator.multinomial(total, asked, size=draws).astype(np.float64)
    as_far = int((_distance(drawn, total * asked) >= found - 1e-9).sum())
    return (1 + as_far) / (1 + draws)


def kish(weights: float, squares: float) -> float:
    """Kish's effective sample size of loss weights, by their sum and that of their squares.

    (sum of w)^2 / (sum of w^2): as many samples of equal weight tell as much (Kish, Survey
    Sampling, 1965). 0 where nothing has a weight.

    >>> kish(4.0, 4.0), kish(10.0, 100.0)
    (4.0, 1.0)
    """
    return weights * weights / squares if squares > 0 else 0.0
