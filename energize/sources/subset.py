"""Parts of datasets, by numbers of samples and by ratios."""

from __future__ import annotations

from dataclasses import dataclass

from energize.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Subset:
    """A run of neighbouring samples: those from one number on, up to another, and of these a part.

    `samples` are the numbers, the second None for all that follow; `ratios` the part, each from 0
    to 1. Bounds are whole: `int(number * ratio)` in floating point, as in Energon, so that one file
    means the same samples in both. Neighbouring ranges share no sample and leave none out.

    >>> Subset(ratios=(0.5, 1.0)).bounds(7)
    (3, 7)
    >>> Subset(samples=(2, 6)).within(Subset(ratios=(0.0, 0.5))).bounds(7)
    (2, 4)
    """

    samples: tuple[int, int | None] | None = None
    ratios: tuple[float, float] = (0.0, 1.0)

    def bounds(self, total: int) -> tuple[int, int]:
        """The first of `total` samples that belongs to it, and the one after the last.

        Raises `ConfigError` when it asks for more samples than there are.
        """
        start, end = self.samples or (0, None)
        if end is None:
            end = total
        if end > total or start > end:
            raise ConfigError(
                f"subset: the range [{start}, {end}] is asked for, but there are {total} samples; "
                "give numbers up to that, or 'end' for the last one"
            )
        first, last = self.ratios
        return start + int((end - start) * first), start + int((end - start) * last)

    def within(self, outer: Subset) -> Subset:
        """What `outer` takes of this one; `outer` gives ratios only."""
        first, last = self.ratios
        size = last - first
        ratios = tuple(first + ratio * size for ratio in outer.ratios)
        return Subset(self.samples, (ratios[0], ratios[1]))

    def __str__(self) -> str:
        parts = []
        if self.samples is not None:
            start, end = self.samples
            parts.append(f"[{start}, {'end' if end is None else end}]")
        if self.ratios != (0.0, 1.0) or not parts:
            parts.append(f"[{100 * self.ratios[0]:g}%, {100 * self.ratios[1]:g}%]")
        return " of ".join(reversed(parts))


def nested(inner: Subset | None, outer: Subset | None) -> Subset | None:
    """Of two subsets, the one that is meant by both together."""
    if inner is None or outer is None:
        return inner or outer
    return inner.within(outer)
