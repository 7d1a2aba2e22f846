"""Slots in windows: laid out at once, in order or shuffled."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np

from energize.core.arrays import FloatArray, Int32Array, Int64Array, rows_by_value
from energize.core.checks import whole_number
from energize.core.rng import derive, shuffled
from energize.errors import ConfigError, nearest
from energize.order.apportionment import Apportionment, Glide, Remembered

_AHEAD = 8192
"""Slots that are laid out at once: enough that calls of numpy cost little beside their work."""

_AHEAD_AT_FIRST = 1024
"""The same of the first slots of a run, of which no more may ever be asked for."""

_DENSE = 8
"""Where one slot of so many is asked for, laying out all costs less than finding it alone."""


class Run(Protocol):
    """Slots 0, 1, 2, ... given to some sources."""

    def counts(self, slots: Int64Array) -> Int64Array:
        """The slots of each source (columns) among the first of all, for numbers of them (rows)."""

    def locate(self, slots: Int64Array) -> tuple[Int64Array, Int64Array]:
        """For each slot its source, and how many slots before it went to that source."""


class _Layout(NamedTuple):
    source: Int32Array
    nth: Int64Array


class WindowsAhead:
    """A run as it is, up to its `end`, laid out ahead where it is read on, so that each slot costs
    little.
    """

    def __init__(self, run: Run, end: int | None = None) -> None:
        self._run, self._end = run, end
        self._layout = Remembered(self._laid_out, 4)
        self._last = (0, 0)
        """Where the last call's slots began, and how many they were."""

    def counts(self, slots: Int64Array) -> Int64Array:
        return self._run.counts(slots)

    def locate(self, slots: Int64Array) -> tuple[Int64Array, Int64Array]:
        if not len(slots):
            return self._run.locate(slots)
        start, stop = int(slots.min()), int(slots.max()) + 1
        if not self._reads_on(start, stop, len(slots)):
            return self._run.locate(slots)
        many = stop > _AHEAD or len(slots) * _DENSE >= _AHEAD
        size = _AHEAD if many else _AHEAD_AT_FIRST
        windows = slots // size
        return _placed(partial(self._layout, size), windows, slots - windows * size)

    def _reads_on(self, start: int, stop: int, number: int) -> bool:
        """Whether slots are asked for that lie close together: at once, or by one call after
        another. A rank of many has slots that lie far apart.
        """
        before, last = self._last
        self._last = (start, number)
        if abs(start - before) <= last * _DENSE:
            return True
        return stop - start <= number * _DENSE and number * _DENSE >= _AHEAD

    def _laid_out(self, size: int, window: int) -> _Layout:
        end = (window + 1) * size
        slots = np.arange(window * size, end if self._end is None else min(end, self._end))
        source, nth = self._run.locate(slots)
        return _Layout(source.astype(np.int32), nth)


class ShuffledWindows:
    """A run's slots in windows of `size`, each shuffled by itself: at window ends sources have what
    the run gives them. A window that the run's `end` cuts off is shorter.
    """

    def __init__(self, run: Run, size: int, key: int, sources: int, end: int | None = None) -> None:
        self._run, self._size, self._key, self._end = run, size, key, end
        self._sources = sources
        self._layout = Remembered(self._laid_out, 4)

    def counts(self, slots: Int64Array) -> Int64Array:
        windows, within = np.divmod(slots, self._size)
        counts = self._run.counts(slots - within)
        for row in np.flatnonzero(within).tolist():
            source = self._layout(int(windows[row])).source[: within[row]]
            counts[row] += np.bincount(source, minlength=self._sources)
        return counts

    def locate(self, slots: Int64Array) -> tuple[Int64Array, Int64Array]:
        windows, within = np.divmod(slots, self._size)
        return _placed(self._layout, windows, within)

    def _laid_out(self, window: int) -> _Layout:
        start = window * self._size
        end = start + self._size if self._end is None else min(start + self._size, self._end)
        source, nth = self._ordered(start, end)
        placed = source[shuffled(self._key, window, end - start)]
        placed_nth = np.empty_like(nth)
        placed_nth[by_source(placed, self._sources)] = nth
        return _Layout(placed, placed_nth)

    def _ordered(self, start: int, end: int) -> tuple[Int32Array, Int64Array]:
        """The source of each slot, sources in order, and that source's slots before it."""
        if self._sources > end - start:
            source, nth = self._run.locate(np.arange(start, end))
            order = by_source(source.astype(np.int32), self._sources)
            return source[order].astype(np.int32), nth[order]
        first, last = self._run.counts(np.array([start, end]))
        ordered: Int32Array = np.repeat(np.arange(self._sources, dtype=np.int32), last - first)
        before: Int64Array = (last - np.cumsum(last - first))[ordered]
        return ordered, before + np.arange(end - start)


def _placed(
    layout: Callable[[int], _Layout], windows: Int64Array, within: Int64Array
) -> tuple[Int64Array, Int64Array]:
    if len(windows) and (windows == windows[0]).all():  # mostly
        found = layout(int(windows[0]))
        return found.source[within].astype(np.int64), found.nth[within]
    source, nth = np.empty((2, len(windows)), dtype=np.int64)
    for window, rows in rows_by_value(windows):
        found = layout(window)
        source[rows], nth[rows] = found.source[within[rows]], found.nth[within[rows]]
    return source, nth


def by_source(source: Int32Array, count: int) -> Int64Array:
    """The slots of the first of `count` sources, then those of the second, ..., each in order."""
    # Numpy sorts 16-bit integers by radix, several times as fast as longer ones.
    order = np.argsort(source.astype(np.uint16), kind="stable")
    if count > 2**16:
        order = order[np.argsort((source >> 16).astype(np.uint16)[order], kind="stable")]
    return order


# Orders that no apportionment of slots makes: sources in turn, and Megatron's greedy one.

_LONGEST_PERIOD = 2**20


class Turns:
    """The sources in turn, from source `first` on, over and over."""

    def __init__(self, sources: int, first: int) -> None:
        self._sources, self._first = sources, first

    def counts(self, slots: Int64Array) -> Int64Array:
        turns = np.arange(self._sources) - self._first
        return (slots[:, np.newaxis] - turns % self._sources - 1) // self._sources + 1

    def locate(self, slots: Int64Array) -> tuple[Int64Array, Int64Array]:
        return (slots + self._first) % self._sources, slots // self._sources


class Greedy:
    """The order of Megatron's blending index: slot t goes to the source with the largest
    `w * max(t, 1) - count`, ties to the first.

    Integers take the place of Megatron's floats, which break ties by rounding errors. The order
    repeats after as many slots as the weights sum to (only the first round begins differently), and
    a table of two rounds is made, at about 1 us per slot. `ConfigError` when the sum is above
    2**20.

    >>> Greedy(np.array([1, 5, 3, 1])).locate(np.arange(10))[0].tolist()
    [1, 2, 0, 1, 3, 1, 2, 1, 2, 1]
    """

    def __init__(self, weights: Int64Array) -> None:
        self._weights = weights
        self._period = int(weights.sum())
        if self._period > _LONGEST_PERIOD:
            raise ConfigError(
                "the scheme 'greedy' makes a table of one period, and these weights repeat only "
                f"after {reprlib.repr(self._period)} slots, more than {_LONGEST_PERIOD}: round "
                "them to fewer digits, or use the scheme 'exact', which needs no table"
            )
        self._sources = _greedy_order(weights, 2 * self._period)
        self._nth = np.empty(len(self._sources), dtype=np.int64)
        starts = np.repeat(2 * (np.cumsum(weights) - weights), 2 * weights)
        self._nth[np.argsort(self._sources, kind="stable")] = np.arange(len(starts)) - starts

    def counts(self, slots: Int64Array) -> Int64Array:
        rounds, places = self._placed(slots)
        tables = [np.bincount(self._sources[:p], minlength=len(self._weights)) for p in places]
        return np.stack(tables) + rounds[:, np.newaxis] * self._weights

    def locate(self, slots: Int64Array) -> tuple[Int64Array, Int64Array]:
        rounds, places = self._placed(slots)
        source = self._sources[places].astype(np.int64)
        return source, self._nth[places] + self._weights[source] * rounds

    def _placed(self, slots: Int64Array) -> tuple[Int64Array, Int64Array]:
        """How many rounds before a slot are not in the table, and its place in the table: in the
        first round for its own slots, in the second for all later ones.
        """
        rounds = np.maximum(slots // self._period - 1, 0)
        return rounds, slots - rounds * self._period


def _greedy_order(weights: Int64Array, slots: int) -> Int32Array:
    """The source of each of the first slots. What a source is owed is kept times the sum of the
    weights, so that it is an integer.
    """
    total, owed = int(weights.sum()), weights.copy()
    chosen = np.empty(slots, dtype=np.int32)
    for slot in range(slots):
        if slot > 1:
            owed += weights
        first = int(owed.argmax())
        chosen[slot] = first
        owed[first] -= total
    return chosen


# Schemes by their names: how the slots that shares give to sources are arranged.

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
