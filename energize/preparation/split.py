"""Which shards belong to train, val and test."""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction

from braceexpand import braceexpand

from energize.errors import ConfigError, PrepareError

Parts = dict[str, tuple[str, ...]]
"""The shards of each split part."""


def split(
    shards: Sequence[str],
    ratios: Mapping[str, float] | None,
    patterns: Mapping[str, Sequence[str]] | None,
    shuffle_seed: int | None = None,
) -> Parts:
    """Return the shards of each part, by exactly one of `ratios` and `patterns`.

    Patterns are regular expressions, with braces (`train-{000..099}`), compared with names from
    their start.

    Raises `ConfigError` for wrong arguments, `PrepareError` for a part that gets no shard.
    """
    if ratios is not None and patterns is None:
        return _by_ratios(shards, ratios, shuffle_seed)
    if patterns is not None and ratios is None:
        return _by_patterns(shards, patterns)
    got = "neither" if ratios is None else "both"
    raise ConfigError(f"give split_ratios (--split-ratio) or split_patterns (--split-parts): {got}")


def _by_ratios(
    shards: Sequence[str], ratios: Mapping[str, float], shuffle_seed: int | None
) -> Parts:
    """Cut the shards, in their order or shuffled, where the cumulative ratios say.

    Part i ends before shard floor(n * (ratio 0 + ... + ratio i) / sum). The arithmetic is exact, so
    every shard is in a part; Energon's floats lose the last of 10 shards at 7,2,1.
    """
    for part, ratio in ratios.items():
        if not math.isfinite(ratio) or ratio < 0:
            raise ConfigError(f"the split ratio of {part!r} must be 0 or more, got {ratio}")
    if not any(ratios.values()):
        raise ConfigError(f"at least one split ratio must be above 0, got {dict(ratios)}")
    shards = list(shards)
    if shuffle_seed is not None:
        # The generator of Energon, so that the same seed cuts the same way.
        random.Random(shuffle_seed).shuffle(shards)  # noqa: S311
    exact = {part: Fraction(str(ratio)) for part, ratio in ratios.items()}
    total = sum(exact.values())
    parts: Parts = {}
    start, cumulative = 0, Fraction(0)
    for part, share in exact.items():
        cumulative += share
        end = len(shards) * cumulative // total
        parts[part] = tuple(shards[start:end])
        start = end
    empty = [part for part, ratio in ratios.items() if ratio > 0 and not parts[part]]
    if empty:
        shown = ", ".join(f"{part}={ratio:g}" for part, ratio in ratios.items())
        raise PrepareError(
            f"{_plural(shards)} cannot be cut {shown}: none is left for {', '.join(empty)}. Give "
            "other ratios (0 for no shards), or write the samples into more and smaller shards"
        )
    return parts


def _by_patterns(shards: Sequence[str], patterns: Mapping[str, Sequence[str]]) -> Parts:
    parts: Parts = {}
    for part, given in patterns.items():
        compiled: list[re.Pattern[str]] = []
        for pattern in given:
            try:
                # A backslash belongs to the regular expression, so it escapes no brace.
                compiled += map(re.compile, braceexpand(pattern, escape=False))
            except (re.error, ValueError) as reason:
                text = (
                    f"the pattern {pattern!r} of split {part!r} is no regular expression: {reason}"
                )
                raise ConfigError(text) from reason
        parts[part] = tuple(shard for shard in shards if any(p.match(shard) for p in compiled))
        if not parts[part]:
            raise PrepareError(
                f"split {part!r}: no shard matches {' or '.join(given)}, regular expressions that "
                f"are compared with names like {shards[0]} from their start"
            )
    return parts


def split_notes(shards: Sequence[str], parts: Parts) -> list[str]:
    """Return what is likely a mistake in a split: shards in no part, shards in several."""
    times = Counter(shard for names in parts.values() for shard in names)
    unused = [shard for shard in shards if not times[shard]]
    shared = [shard for shard in shards if times[shard] > 1]
    notes = [f"{_plural(unused)} in no split, {unused[0]} for example"] if unused else []
    if shared:
        inside = [part for part, names in parts.items() if shared[0] in names]
        notes.append(
            f"{_plural(shared)} in several splits: {shared[0]} for example is in "
            f"{' and '.join(inside)}, so the splits share samples"
        )
    return notes


def _plural(shards: Sequence[str]) -> str:
    return f"{len(shards)} shard{'' if len(shards) == 1 else 's'}"
