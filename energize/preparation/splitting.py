"""Which shards belong to train, val and test."""

from __future__ import annotations

import math
import random
import re
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
    """The shards of each part, by exactly one of `ratios` and `patterns`.

    Raises `ConfigError` for wrong parameters, `PrepareError` for a part that is left without a
    shard.
    """
    if ratios is not None and patterns is None:
        return _by_ratios(shards, ratios, shuffle_seed)
    if patterns is not None and ratios is None:
        return _by_patterns(shards, patterns)
    raise ConfigError(
        "give either split_ratios (--split-ratio 8,1,1) or split_patterns "
        f"(--split-parts 'train:train-.*'), got {'neither' if ratios is None else 'both'}"
    )


def _check_ratios(ratios: Mapping[str, float]) -> None:
    """Raises `ConfigError` unless the ratios are finite, not negative, and not all zero."""
    for part, ratio in ratios.items():
        if not math.isfinite(ratio) or ratio < 0:
            raise ConfigError(f"the split ratio of {part!r} must be 0 or more, got {ratio}")
    if not any(ratios.values()):
        raise ConfigError(f"at least one split ratio must be above 0, got {dict(ratios)}")


def _by_ratios(
    shards: Sequence[str], ratios: Mapping[str, float], shuffle_seed: int | None = None
) -> Parts:
    """Cuts the shards, in their order or shuffled, where the cumulative ratios say.

    Part i ends before shard floor(n * (ratio 0 + ... + ratio i) / sum). The arithmetic is exact,
    so that every shard is in a part; Energon's floats lose the last of 10 shards at 7,2,1.

    Raises `PrepareError` when a part of a ratio above zero is left without a shard.
    """
    _check_ratios(ratios)
    shards = list(shards)
    if shuffle_seed is not None:
        # The generator of Energon, so that the same seed cuts the same way.
        random.Random(shuffle_seed).shuffle(shards)  # noqa: S311
    exact = {part: Fraction(str(ratio)) for part, ratio in ratios.items()}
    total = sum(exact.values())
    parts: Parts = {}
    start, cumulative = 0, Fraction(0)
    for part, ratio in exact.items():
        cumulative += ratio
        end = len(shards) * cumulative // total
        parts[part] = tuple(shards[start:end])
        start = end
    empty = [part for part, ratio in ratios.items() if ratio > 0 and not parts[part]]
    if empty:
        raise PrepareError(
            f"{_plural(len(shards), 'shard')} cannot be cut {_shown(ratios)}: whole shards go "
            f"into a split, and none is left for {', '.join(empty)}. Give other ratios (0 for a "
            "split without shards), name the shards of each split with --split-parts, or write "
            "the samples into more and smaller shards"
        )
    return parts


def _compiled(patterns: Mapping[str, Sequence[str]]) -> dict[str, list[re.Pattern[str]]]:
    """The compiled patterns; `ConfigError` names one that is no regular expression."""
    compiled: dict[str, list[re.Pattern[str]]] = {}
    for part, given in patterns.items():
        compiled[part] = []
        for pattern in given:
            try:
                # A backslash belongs to the regular expression, so it escapes no brace.
                expanded = list(braceexpand(pattern, escape=False))
                compiled[part] += [re.compile(each) for each in expanded]
            except (re.error, ValueError) as reason:
                raise ConfigError(
                    f"the pattern {pattern!r} of split {part!r} is not a regular expression "
                    f"(with brace patterns): {reason}"
                ) from reason
    return compiled


def _by_patterns(shards: Sequence[str], patterns: Mapping[str, Sequence[str]]) -> Parts:
    """The shards whose name, from its start, matches one of the part's regular expressions.

    Brace patterns such as `train-{000..099}` are expanded first. Raises `PrepareError` when
    nothing matches for a part.
    """
    compiled = _compiled(patterns)
    parts = {
        part: tuple(shard for shard in shards if any(each.match(shard) for each in expressions))
        for part, expressions in compiled.items()
    }
    for part, matching in parts.items():
        if not matching:
            raise PrepareError(
                f"split {part!r}: no shard matches {' or '.join(patterns[part])}. Patterns are "
                f"regular expressions (.* for anything), compared with names from their start, "
                f"like {shards[0]}"
            )
    return parts


def split_notes(shards: Sequence[str], parts: Parts) -> list[str]:
    """What is likely a mistake in a split: shards in no part, shards in several."""
    notes = []
    times = dict.fromkeys(shards, 0)
    for matching in parts.values():
        for shard in matching:
            times[shard] += 1
    unused = [shard for shard, count in times.items() if count == 0]
    shared = [shard for shard, count in times.items() if count > 1]
    if unused:
        notes.append(f"{_plural(len(unused), 'shard')} in no split, {unused[0]} for example")
    if shared:
        inside = [part for part, matching in parts.items() if shared[0] in matching]
        notes.append(
            f"{_plural(len(shared), 'shard')} in several splits: {shared[0]} for example is in "
            f"{' and '.join(inside)}, so the splits share samples"
        )
    return notes


def _shown(ratios: Mapping[str, float]) -> str:
    return ", ".join(f"{part}={ratio:g}" for part, ratio in ratios.items())


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
