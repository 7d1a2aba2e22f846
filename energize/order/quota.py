"""Quotas: how many samples each stream gives to an epoch, and which."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from decimal import Decimal
from fractions import Fraction

import numpy as np

from energize.core.arrays import Int64Array
from energize.core.checks import whole_number
from energize.core.rng import Permutation, WindowedPermutation, derive
from energize.errors import ConfigError, EmptyDatasetError, WeightError
from energize.order.weights import (
    as_fraction,
    checked_weight,
    integer_weights,
    largest_remainder,
)

_MOST_SAMPLES = 2**62
"""An epoch is smaller than this, so that positions fit in int64."""

_UNITS = {"k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}

_BLOCK = 1024
"""Samples of a block, from which a partial pass draws its part at random."""

_NARROW = 2**31
"""Products of two numbers up to this one fit in int64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """The samples of a stream in an epoch.

    At most one field is set. Without any, each sample is read once; if the size of the
    epoch is set, samples are in proportion to the size of the stream.

    Args:
        proportion: Part of the epoch, relative to the proportions of the other streams,
            which must all have one.
        repeat: Number of passes, such as 3 or 0.25.
        choose: Number of samples, such as 250 or "10k".

    Raises:
        WeightError: If a number is negative or not finite, `choose` is not a whole
            number, or several fields are set.

    Example:
        >>> Quota(repeat=3)
        Quota(proportion=None, repeat=3.0, choose=None)
    """

    proportion: float | None = None
    repeat: float | None = None
    choose: int | str | None = None

    def __post_init__(self) -> None:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        values = {name: value for name, value in values.items() if value is not None}
        if len(values) > 1:
            shown = ", ".join(f"{name}={value!r}" for name, value in values.items())
            raise WeightError(
                "a stream must have exactly one of proportion, repeat and choose, "
                f"got {shown}"
            )
        for name, value in values.items():
            checked = (
                _chosen(value)
                if name == "choose"
                else checked_weight(value, "a quota", name)
            )
            object.__setattr__(self, name, checked)

    @property
    def kind(self) -> str | None:
        """The name of the field that is set; None if none is."""
        return next(
            (f.name for f in fields(self) if getattr(self, f.name) is not None), None
        )


def epoch_size_in_samples(value: int | str) -> int:
    """Parse a number of samples such as 10_000, "10k", "64M" or "1.5b".

    Args:
        value: The number, 1 or more.

    Raises:
        ConfigError: For other values.

    Example:
        >>> epoch_size_in_samples("64M")
        64000000
    """
    samples = _counted(value)
    if samples is None or not 1 <= samples < _MOST_SAMPLES:
        raise ConfigError(
            "epoch_size must be a number of samples from 1 to 2**62, or a text like "
            f"'10k' or '64M', got {value!r}"
        )
    return samples


def _chosen(value: object) -> int:
    """Return `choose` as a whole number; a float with a whole value is accepted."""
    samples = _counted(
        int(value) if isinstance(value, float) and value.is_integer() else value
    )
    if samples is None or samples < 0:
        raise WeightError(
            "choose must be a whole number >= 0 or a text like '10k', got "
            f"{value!r}. Use repeat for a part of a stream"
        )
    return samples


def _counted(value: object) -> int | None:
    """Return a whole number, or a text like "10k" as one; None for anything else."""
    if not isinstance(value, str):
        return whole_number(value)
    digits = value.strip().lower()
    unit = _UNITS.get(digits[-1:], 1)
    try:
        number = Decimal(digits if unit == 1 else digits[:-1]) * unit
        return int(number) if abs(number) < 2**63 and number == int(number) else None
    except ArithmeticError:  # no number, or far too large a one
        return None


def epoch_counts(
    sizes: Sequence[int],
    quotas: Sequence[Quota],
    epoch_size: int | None = None,
    *,
    label: Callable[[int], str] = "stream {}".format,
) -> Int64Array:
    """Return the number of samples of each stream in every epoch.

    Proportions divide `epoch_size` by largest remainder: within 1 of exact, ties to the
    first stream. Repeats are rounded to the nearest number of samples, halves down.
    Floats are read as the decimals that they print as.

    Args:
        sizes: Samples of each stream.
        quotas: The quota of each stream.
        epoch_size: Samples of an epoch. None for the sum of the sizes.
        label: Returns the name of a stream, for messages.

    Returns:
        Samples of each stream, int64, shape (num_streams,).

    Raises:
        WeightError: If only some streams have a proportion, or all counts are 0.
        ConfigError: If `epoch_size` is combined with `repeat` or `choose`.
        EmptyDatasetError: If samples of an empty stream are requested.

    Example:
        >>> quotas = [Quota(proportion=0.25), Quota(proportion=0.75)]
        >>> epoch_counts([100, 200], quotas).tolist()
        [75, 225]
    """
    counts = _epoch_counts(sizes, quotas, epoch_size, label)
    for stream, (size, count) in enumerate(zip(sizes, counts.tolist(), strict=True)):
        if size == 0 and (count or quotas[stream].kind is None):
            raise EmptyDatasetError(
                f"{label(stream)} has no samples, but its quota is {count or 'all'} "
                "samples. Remove it, or set repeat=0"
            )
    if not counts.any():
        raise WeightError(f"the quotas are 0 for all {len(sizes)} streams")
    return counts


def _epoch_counts(
    sizes: Sequence[int],
    quotas: Sequence[Quota],
    epoch_size: int | None,
    label: Callable[[int], str],
) -> Int64Array:
    kinds = [quota.kind for quota in quotas]
    if "proportion" in kinds:
        _check_proportions(kinds, label)
        weights = [quota.proportion or 0.0 for quota in quotas]
        return largest_remainder(integer_weights(weights), epoch_size or sum(sizes))
    if epoch_size is None:
        return _absolute_counts(sizes, quotas)
    for stream, quota_kind in enumerate(kinds):
        if quota_kind is not None:
            raise ConfigError(
                f"epoch_size={epoch_size} and {quota_kind} of {label(stream)} "
                "contradict each other. Use proportion, or remove epoch_size"
            )
    return largest_remainder(integer_weights(sizes), epoch_size)


def _check_proportions(
    kinds: Sequence[str | None], label: Callable[[int], str]
) -> None:
    """Raise `WeightError` if a stream has no proportion."""
    for stream, quota_kind in enumerate(kinds):
        if quota_kind != "proportion":
            raise WeightError(
                f"{label(kinds.index('proportion'))} has a proportion, but "
                f"{label(stream)} has {quota_kind or 'no quota'}. Set a proportion "
                "for all streams or for none"
            )


def _absolute_counts(sizes: Sequence[int], quotas: Sequence[Quota]) -> Int64Array:
    counts = []
    for size, quota in zip(sizes, quotas, strict=True):
        passes = as_fraction(1 if quota.repeat is None else quota.repeat)
        nearest = -int((Fraction(1, 2) - size * passes) // 1)
        counts.append(nearest if quota.choose is None else int(quota.choose))
    if sum(counts) >= _MOST_SAMPLES:
        raise ConfigError(
            f"an epoch of {sum(counts)} samples is too long, the maximum is 2**62"
        )
    return np.array(counts, dtype=np.int64)


class EpochDraws:
    """Draws of a stream in each epoch: complete passes, then a part of one.

    Every epoch draws each sample floor(count / size) or ceil(count / size) times, and
    no sample is repeated before its pass has ended. Unless `fixed`, partial passes
    contain different samples, so that after e epochs a sample was drawn within 1 of
    e * count / size times. Any draw costs the same.

    Args:
        size: Samples of the stream.
        count: Draws in an epoch.
        key: Key of random choices.
        shuffle: Whether each pass has a random order. False keeps the stored order.
        fixed: Whether partial passes contain the same samples in every epoch.

    Example:
        >>> import numpy as np
        >>> draws = EpochDraws(4, 6, key=1)
        >>> (draws.locate(np.zeros(6, dtype=np.int64), np.arange(6))[:4] % 4).tolist()
        [0, 1, 2, 3]
    """

    def __init__(
        self,
        size: int,
        count: int,
        key: int,
        *,
        shuffle: bool = False,
        fixed: bool = False,
    ) -> None:
        self._samples = size
        self._shuffle = shuffle
        self._fixed = fixed
        self._whole, self._part = divmod(count, size)
        self._passes = self._whole + (self._part > 0)
        self._in_pass = Permutation(size, derive(key, "whole pass"))
        self._in_part = Permutation(self._part, derive(key, "part of a pass"))
        keys = derive(key, "block"), derive(key, "last block")
        self._scattered = WindowedPermutation(size, _BLOCK, *keys)

    def locate(self, epoch: Int64Array, nth: Int64Array) -> Int64Array:
        """Return the position in the stream of each draw.

        Args:
            epoch: The epoch of each draw, int64, shape (n,).
            nth: The number of each draw in its epoch, 0 <= nth < count, int64, shape
                (n,).

        Returns:
            pass * size + sample, with passes counted from the first epoch, int64, shape
            (n,).
        """
        number, within = np.divmod(nth, self._samples)
        passes = epoch * self._passes + number
        sample = within.copy()
        partial = number == self._whole
        if self._shuffle:
            sample[~partial] = self._in_pass(within[~partial], passes[~partial])
        if partial.any():
            sample[partial] = self._chosen(epoch[partial], within[partial])
        return passes * self._samples + sample

    def _chosen(self, epoch: Int64Array, nth: Int64Array) -> Int64Array:
        """Return the sample of each draw of partial passes."""
        turn = np.zeros_like(epoch) if self._fixed else epoch % self._samples
        if not self._shuffle:
            return self._in_order(turn, nth)
        return self._scattered(self._place(turn, self._in_part(nth, epoch)))

    # A partial pass of turn t takes place x when t + x + 1 reaches a new multiple of
    # size / part. So places are evenly spread, and so are the turns that take one
    # place. What lies at a place is random within its block: data may have a rhythm of
    # their own.

    def _place(self, turn: Int64Array, nth: Int64Array) -> Int64Array:
        """Return the place of draw `nth` of a partial pass."""
        size = self._samples
        part = self._part
        wide = (
            np.int64 if size < _NARROW else object
        )  # Python's integers cannot overflow
        turn = turn.astype(wide)
        nth = nth.astype(wide)
        reached = nth + 1 + turn * part // size
        return (-(-reached * size // part) - 1 - turn).astype(np.int64)

    def _in_order(self, turn: Int64Array, nth: Int64Array) -> Int64Array:
        """Return the samples of `_scattered`, ascending within their pass."""
        out = np.empty_like(nth)
        size = self._samples
        part = self._part
        blocks = np.stack([turn, self._place(turn, nth) // _BLOCK])
        touched, inverse = np.unique(blocks, axis=1, return_inverse=True)
        for number, (at, block) in enumerate(touched.T.tolist()):
            rows = np.flatnonzero(inverse.reshape(-1) == number)
            ends = block * _BLOCK, min((block + 1) * _BLOCK, size)
            first, last = (
                (at + end) * part // size - at * part // size for end in ends
            )
            numbers = np.arange(first, last, dtype=np.int64)
            samples = np.sort(
                self._scattered(self._place(np.full_like(numbers, at), numbers))
            )
            out[rows] = samples[nth[rows] - first]
        return out
