"""Schemes by their names: how the slots that shares give to sources are arranged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from energize.arrays import FloatArray, Int64Array
from energize.errors import ConfigError, nearest
from energize.numbers import whole_number
from energize.order.apportionment import Apportionment
from energize.order.glide import Glide
from energize.order.turns import Greedy, Turns
from energize.order.windows import Run, ShuffledWindows, WindowsAhead
from energize.rng import derive

SCHEMES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "even": (),
        "exact": (),
        "block": ("block_size",),
        "random": (),
        "uniform": (),
        "round_robin": (),
        "greedy": (),
    }
)
"""The names of all schemes, with their options."""

WEIGHTLESS = frozenset({"uniform", "round_robin"})
"""Schemes that treat all sources alike, whatever their weights."""

_BLOCK_SIZE, _LARGEST_BLOCK = 1000, 2**24
_RANDOM_WINDOW = 2**16


class Arrangement:
    """The scheme called `name`: makes the runs of a timeline's segments.

    Raises `ConfigError` for an unknown name or option, and for a `block_size` out of range.
    """

    def __init__(self, name: str, key: int, *, block_size: int = _BLOCK_SIZE) -> None:
        size = whole_number(block_size)
        if size is None or size < 1:
            raise ConfigError(f"block_size counts slots, 1 or more; got {block_size!r}")
        if size > _LARGEST_BLOCK:
            raise ConfigError(
                f"block_size is {size}, and a block is laid out in memory: it has {_LARGEST_BLOCK} "
                "slots at most. The scheme 'random' has no blocks"
            )
        self.name, self._key = name, derive(name, key)
        self.block_size = size if name == "block" else 1
        self._window = size if name == "block" else _RANDOM_WINDOW

    @property
    def takes_turns(self) -> bool:
        """Whether runs begin with the source after the last one."""
        return self.name == "round_robin"

    def closing(self, sources: int, part: int) -> int:
        """How many slots sources that end soon after one another may end together in."""
        return 1 if self.name in ("round_robin", "greedy") else max(sources, part, 1)

    def fixed(self, weights: Int64Array, start: int, owed: FloatArray, first: int) -> Run:
        """The run of sources of these weights that begins at slot `start` of the mix."""
        if self.takes_turns:
            return Turns(len(weights), first)
        if self.name == "greedy":
            return Greedy(weights // np.gcd.reduce(weights))
        run = Apportionment(weights, key=self._rounding_key(start), owed=owed)
        return self._arranged(run, start, len(weights), None)

    def whole(self, totals: Int64Array, start: int) -> Run:
        """A run in which sources have just these numbers of slots."""
        run = Apportionment(totals, key=self._rounding_key(start))
        return self._arranged(run, start, len(totals), int(totals.sum()))

    def gliding(
        self, edges: Int64Array, shares: FloatArray, start: int, owed: FloatArray
    ) -> tuple[Run, Glide]:
        """The run of sources of these mean shares between edges, and what they are due in it."""
        glide = Glide(edges, shares, key=self._rounding_key(start), owed=owed)
        return self._arranged(glide, start, shares.shape[1], int(edges[-1])), glide

    def check_follows(self, interpolations: Iterable[str]) -> None:
        """`ConfigError` for schedules that the scheme cannot follow."""
        if self.name in WEIGHTLESS:
            raise ConfigError(
                f"the scheme {self.name!r} takes no notice of weights, so a schedule would do "
                "nothing; use 'even', 'exact', 'block' or 'random'"
            )
        gliding = sorted(set(interpolations) - {"step"})
        if gliding and self.name == "greedy":
            raise ConfigError(
                f"the scheme 'greedy' can follow schedules that change in steps, not "
                f"{gliding[0]!r} ones; use 'even', 'exact', 'block' or 'random', or "
                "interpolation='step'"
            )

    def _rounding_key(self, start: int) -> int | None:
        return derive(self._key, start) if self.name == "even" else None

    def _arranged(self, run: Run, start: int, sources: int, end: int | None) -> Run:
        if self.name in ("even", "exact"):
            return WindowsAhead(run, end)
        return ShuffledWindows(run, self._window, derive(self._key, start), sources, end)


def default_scheme(options: Iterable[str]) -> str:
    """The scheme where none is named: `block` where a `block_size` is given, else `even`."""
    return "block" if "block_size" in options else "even"


def option_names(name: str) -> list[str]:
    """The options of the scheme called `name`; `ConfigError` when there is none.

    >>> option_names("block")
    ['block_size']
    """
    if name not in list(SCHEMES):  # a list takes names that cannot be hashed, too
        raise ConfigError(
            f"unknown scheme {name!r}{nearest(str(name), list(SCHEMES)) or '.'} "
            f"Known: {', '.join(SCHEMES)}"
        )
    return list(SCHEMES[name])


def check_options(name: str, options: Mapping[str, Any]) -> None:
    """`ConfigError` for an unknown scheme, or an option that it does not have."""
    known = option_names(name)
    for option in options:
        if option not in known:
            raise ConfigError(
                f"the scheme {name!r} has no option {option!r}{nearest(option, known) or '.'} "
                f"Known: {', '.join(known) or 'none'}"
            )
