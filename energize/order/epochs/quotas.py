"""Quotas: how many samples each stream gives to an epoch."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction

import numpy as np

from energize.arrays import Int64Array
from energize.errors import ConfigError, EmptyDatasetError, WeightError
from energize.numbers import whole_number
from energize.order.weights import checked_weight, integer_weights, largest_remainder

MOST_SAMPLES = 2**62
"""An epoch is smaller than this, so that positions fit in int64."""

_LONGEST = 60
_LARGE_POWER = re.compile(r"e[-+]?[0-9_]{3}")
_UNITS = {"k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """What a stream gives to an epoch; at most one of the three, none for what is natural.

    `proportion`: its part of the epoch, relative to the proportions of the other streams, which
    then need one too. `repeat`: passes over it, 0.25 for a quarter of its samples. `choose`: so
    many samples, 250 or "10k". Without any, each of its samples once; or, when the epoch has a
    given size, a part of it in proportion to the stream's size.

    Raises `WeightError` for numbers that are negative or not finite, for a `choose` that is not
    whole, and for two kinds at once.

    >>> Quota(repeat=3)
    Quota(proportion=None, repeat=3.0, choose=None)
    """

    proportion: float | None = None
    repeat: float | None = None
    choose: int | str | None = None

    def __post_init__(self) -> None:
        given = {f.name: getattr(self, f.name) for f in fields(self)}
        given = {name: value for name, value in given.items() if value is not None}
        if len(given) > 1:
            shown = ", ".join(f"{name}={value!r}" for name, value in given.items())
            raise WeightError(
                f"a stream has one quota, proportion or repeat or choose; got {shown}"
            )
        for name, value in given.items():
            chosen = name == "choose"
            checked = _samples(value) if chosen else checked_weight(value, "a quota", name)
            object.__setattr__(self, name, checked)

    @property
    def kind(self) -> str | None:
        """The name of the one that is given."""
        return next((f.name for f in fields(self) if getattr(self, f.name) is not None), None)


def epoch_size_in_samples(value: int | str) -> int:
    """`value` as a number of samples: 1 or more, in digits or like "10k", "64M", "1.5b", "1t".

    Raises `ConfigError` for anything else.

    >>> epoch_size_in_samples("64M")
    64000000
    """
    samples = _counted(value)
    if samples is None or not 1 <= samples < MOST_SAMPLES:
        raise ConfigError(
            "epoch_size counts samples: a whole number from 1 to 2**62, or a text like '10k', "
            f"'64M', '77b'; got {value!r}. Leave it out for the natural size"
        )
    return samples


def _samples(value: object) -> int:
    """What `choose` asks for; a float will do when it is whole."""
    samples = _counted(int(value) if isinstance(value, float) and value.is_integer() else value)
    if samples is None or samples < 0:
        raise WeightError(
            "choose counts samples, as '10k' or as a whole number, 0 or more; got "
            f"{value!r}. A part of a stream is asked for with repeat"
        )
    return samples


def _counted(value: object) -> int | None:
    """A whole number, or a text like "10k" as one; None when it is neither."""
    if not isinstance(value, str):
        return whole_number(value)
    digits = value.strip().lower()
    if len(digits) > _LONGEST or _LARGE_POWER.search(digits):  # which would take for ever
        return None
    unit = _UNITS.get(digits[-1:], 1)
    try:
        number = Fraction(digits if unit == 1 else digits[:-1]) * unit
    except (ValueError, ZeroDivisionError):
        return None
    return int(number) if number.denominator == 1 else None


def epoch_counts(
    sizes: Sequence[int],
    quotas: Sequence[Quota],
    epoch_size: int | None = None,
    *,
    label: Callable[[int], str] = "stream {}".format,
) -> Int64Array:
    """Samples that each stream gives to every epoch: int64, one per stream.

    `sizes` are those of the streams. Proportions share out `epoch_size`, by default the sum of the
    sizes, by largest remainder: within 1 of exact, ties to the first, 0 gets nothing. Repeats give
    the nearest whole number of samples, halves the lower one. All numbers are taken as the decimals
    they print as. `label` is what errors call a stream.

    Raises `WeightError` for proportions beside other quotas, and when nothing is asked of any
    stream; `ConfigError` for an `epoch_size` beside repeat or choose; `EmptyDatasetError` for
    samples asked of an empty stream.

    >>> epoch_counts([100, 200], [Quota(proportion=0.25), Quota(proportion=0.75)]).tolist()
    [75, 225]
    """
    kinds = [quota.kind for quota in quotas]
    _check_together(kinds, epoch_size, label)
    if "proportion" in kinds:
        weights = [quota.proportion or 0.0 for quota in quotas]
        counts = largest_remainder(integer_weights(weights), epoch_size or sum(sizes))
    elif epoch_size is not None:
        counts = largest_remainder(integer_weights(sizes), epoch_size)
    else:
        counts = _absolute_counts(sizes, quotas)
    for stream, (size, count) in enumerate(zip(sizes, counts.tolist(), strict=True)):
        if size == 0 and (count or kinds[stream] is None):
            raise EmptyDatasetError(
                f"{label(stream)} has no samples, but {count or 'all of its'} samples are asked of "
                "it; remove it, or give it repeat=0"
            )
    if not counts.any():
        raise WeightError(f"the quotas ask for no sample of any of the {len(sizes)} streams")
    return counts


def _check_together(
    kinds: Sequence[str | None], epoch_size: int | None, label: Callable[[int], str]
) -> None:
    """Proportions are for all streams or for none; a size of the epoch does not go with counts."""
    relative = [kind == "proportion" for kind in kinds]
    if any(relative) and not all(relative):
        other = relative.index(False)
        raise WeightError(
            f"{label(relative.index(True))} has a proportion, but {label(other)} has "
            f"{kinds[other] or 'no quota'}: proportions are given to all streams or to none"
        )
    absolute = [i for i, kind in enumerate(kinds) if kind in ("repeat", "choose")]
    if epoch_size is not None and absolute:
        raise ConfigError(
            f"epoch_size={epoch_size} and {kinds[absolute[0]]} of {label(absolute[0])} contradict "
            "each other: with repeat and choose the epoch is as long as what they give. Use "
            "proportion, or leave epoch_size out"
        )


def _absolute_counts(sizes: Sequence[int], quotas: Sequence[Quota]) -> Int64Array:
    counts = [
        _passes(size, 1.0 if quota.repeat is None else quota.repeat)
        if quota.choose is None
        else int(quota.choose)
        for size, quota in zip(sizes, quotas, strict=True)
    ]
    if sum(counts) >= MOST_SAMPLES:
        raise ConfigError(
            f"an epoch of {sum(counts)} samples is too long: quotas may ask for 2**62 in all"
        )
    return np.array(counts, dtype=np.int64)


def _passes(size: int, repeat: float) -> int:
    """The whole number nearest to size * repeat, of two equally near ones the lower."""
    return -int((Fraction(1, 2) - size * Fraction(repr(repeat))) // 1)
