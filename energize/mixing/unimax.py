"""As even as sizes allow."""

from __future__ import annotations

from collections.abc import Mapping

from energize.errors import ConfigError
from energize.mixing.policy import checked_positive


def unimax(sizes: Mapping[str, float], budget: float, max_epochs: float) -> dict[str, float]:
    """The share of each source such that a `budget` is shared out as evenly as possible and no
    source is read more than `max_epochs` times: UniMax (Chung et al. 2023, arXiv:2304.09151).

    `sizes` and `budget` count the same: samples, or tokens. From the smallest source on, each gets
    an equal part of what is left, but no more than `max_epochs` of its size. The shares sum to 1;
    where the budget is larger than all caps together, every source is read `max_epochs` times, by
    its size.

    Raises `ConfigError` for sizes, a budget or epochs that are not above 0.

    >>> unimax({"en": 1000, "de": 300, "fy": 10}, budget=600, max_epochs=4)
    {'en': 0.4666..., 'de': 0.4666..., 'fy': 0.0666...}
    """
    if not isinstance(sizes, Mapping) or not sizes:
        raise ConfigError(f"unimax: sizes are given by source; got {sizes!r}")
    number = {str(n): checked_positive(s, f"unimax: the size of {n!r}") for n, s in sizes.items()}
    left = checked_positive(budget, "unimax: budget")
    most = checked_positive(max_epochs, "unimax: max_epochs")
    given: dict[str, float] = {}
    for name in sorted(number, key=number.__getitem__):
        given[name] = min(left / (len(number) - len(given)), most * number[name])
        left -= given[name]
    total = sum(given.values())
    return {name: given[name] / total for name in number}
