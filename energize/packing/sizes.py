"""What packers are given: how long samples are, and what a pack can hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from energize.core.arrays import FloatArray, Int64Array
from energize.core.checks import checked_whole
from energize.errors import ConfigError

Lengths: TypeAlias = Sequence[int] | Sequence[Sequence[int]] | Int64Array
"""A length for each sample; or a row of them, one for each of several capacities."""

Capacity: TypeAlias = int | Sequence[int]
"""What a pack can hold; or several numbers, of tokens and of image tiles for example."""


MOST = 2**40
"""Lengths are below this, so that sums of many are exact."""


def checked_capacity(capacity: Capacity, owner: str) -> tuple[int, ...]:
    """The capacities, each a whole number of at least 1; `ConfigError` otherwise."""
    several = capacity if isinstance(capacity, list | tuple) else (capacity,)
    if not several:
        raise ConfigError(f"{owner}: capacity is empty; give one number, or one for each length")
    capacities = tuple(checked_whole(each, f"{owner}: capacity", 1) for each in several)
    if max(capacities) >= MOST:
        raise ConfigError(f"{owner}: capacity is below 2**40; got {max(capacities)}")
    return capacities


def checked_lengths(
    lengths: Lengths, capacity: Capacity, owner: str
) -> tuple[Int64Array, Int64Array]:
    """Lengths in rows, one for each sample, and the capacities, one for each column.

    Raises `ConfigError` for lengths that are no whole numbers or negative, that are not as many as
    the capacities, or that are more than a pack can hold.
    """
    capacities = np.array(checked_capacity(capacity, owner), dtype=np.int64)
    try:
        given = np.asarray(lengths)
    except ValueError as error:
        raise ConfigError(f"{owner}: samples have different numbers of lengths: {error}") from None
    if given.size == 0:
        return np.zeros((0, len(capacities)), dtype=np.int64), capacities
    if given.dtype.kind not in "iu":
        raise ConfigError(f"{owner}: lengths are whole numbers; got {given.dtype} like {given[:3]}")
    rows = given.reshape(-1, 1) if given.ndim == 1 else given
    if rows.ndim != 2 or rows.shape[1] != len(capacities):
        raise ConfigError(
            f"{owner}: lengths of shape {given.shape} do not go with {len(capacities)} capacities; "
            "give a length for each sample, or for several capacities a row of as many"
        )
    wrong = (rows < 0) | (rows > capacities)
    if wrong.any():
        sample, column = (int(each[0]) for each in np.nonzero(wrong))
        raise ConfigError(
            f"{owner}: sample {sample} has length {rows[sample, column]}; a pack holds 0 to "
            f"{capacities[column]}. Cut it, leave it out, or raise the capacity"
        )
    return rows.astype(np.int64), capacities


def checked_costs(costs: Sequence[float] | FloatArray, samples: int, owner: str) -> FloatArray:
    """What each sample costs; `ConfigError` unless these are `samples` finite numbers from 0 on."""
    given = np.asarray(costs)
    if given.shape != (samples,) or (samples and given.dtype.kind not in "iuf"):
        raise ConfigError(
            f"{owner}: costs are one number for each of {samples} samples; got {given.dtype} of "
            f"shape {given.shape}"
        )
    numbers = given.astype(np.float64)
    wrong = ~(np.isfinite(numbers) & (numbers >= 0))
    if wrong.any():
        sample = int(wrong.argmax())
        raise ConfigError(f"{owner}: sample {sample} costs {numbers[sample]}; costs are 0 or more")
    return numbers


def in_order_of_arrival(packs: Sequence[list[int]]) -> list[list[int]]:
    """The same packs, samples ascending in each, packs by their first samples, empty ones last."""
    return sorted(map(sorted, packs), key=lambda pack: (not pack, pack))
