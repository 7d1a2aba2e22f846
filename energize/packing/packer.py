"""Packing samples by how long they are: which ones share a pack, by numbers, and of
samples.
"""

from __future__ import annotations

import logging
import reprlib
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np

from energize.core.arrays import FloatArray, Int64Array
from energize.core.checks import (
    checked_choice,
    checked_whole,
    real_number,
    whole_number,
)
from energize.core.costs import named, said_of
from energize.core.ignored import said_once
from energize.errors import ConfigError, SampleError

T = TypeVar("T")

Lengths: TypeAlias = Sequence[int] | Sequence[Sequence[int]] | Int64Array
"""A length for each sample; or a row of them, one for each of several capacities."""

Capacity: TypeAlias = int | Sequence[int]
"""What a pack can hold; or several numbers, of tokens and of image tiles for
example."""

MOST = 2**40
"""Lengths are below this, so that sums of many are exact."""

HIDDEN_SIZE = 4096

_ALIKE = 1.01
"""Packs that cost so much of their mean, or less, are even enough."""


def checked_capacity(capacity: Capacity, owner: str) -> tuple[int, ...]:
    """Return the capacities, each a whole number of at least 1; raise `ConfigError`
    otherwise.
    """
    several = capacity if isinstance(capacity, list | tuple) else (capacity,)
    if not several:
        raise ConfigError(
            f"{owner}: capacity is empty; give one number, or one for each length"
        )
    capacities = tuple(checked_whole(each, f"{owner}: capacity", 1) for each in several)
    if max(capacities) >= MOST:
        raise ConfigError(f"{owner}: capacity is below 2**40; got {max(capacities)}")
    return capacities


def _checked_lengths(
    lengths: Lengths, capacity: Capacity, owner: str
) -> tuple[Int64Array, Int64Array]:
    """Lengths in rows, one for each sample, and the capacities, one for each column."""
    capacities = np.array(checked_capacity(capacity, owner), dtype=np.int64)
    try:
        given = np.asarray(lengths)
    except ValueError as error:
        raise ConfigError(
            f"{owner}: samples have different numbers of lengths: {error}"
        ) from None
    if given.size == 0:
        return np.zeros((0, len(capacities)), dtype=np.int64), capacities
    if given.dtype.kind not in "iu":
        raise ConfigError(
            f"{owner}: lengths are whole numbers; got {given.dtype} like {given[:3]}"
        )
    rows = given.reshape(-1, 1) if given.ndim == 1 else given
    if rows.ndim != 2 or rows.shape[1] != len(capacities):
        raise ConfigError(
            f"{owner}: lengths of shape {given.shape} do not go with {len(capacities)} "
            "capacities; give as many for each sample"
        )
    wrong = np.argwhere((rows < 0) | (rows > capacities))
    for sample, column in wrong[:1].tolist():
        raise ConfigError(
            f"{owner}: sample {sample} has length {rows[sample, column]}; a pack holds "
            "0 to "
            f"{capacities[column]}. Cut it, leave it out, or raise the capacity"
        )
    return rows.astype(np.int64), capacities


def _in_order_of_arrival(packs: Sequence[list[int]]) -> list[list[int]]:
    """Return the same packs, samples ascending in each, packs by their first samples,
    empty ones last.
    """
    return sorted(map(sorted, packs), key=lambda pack: (not pack, pack))


def first_fit(lengths: Lengths, capacity: Capacity) -> list[list[int]]:
    """Return packs of samples by their numbers: each, in turn, is in the first pack
    with room.

    Every sample is in one pack, no pack holds more than `capacity`, and the numbers in
    a pack ascend. With several capacities, `lengths` has a row of as many for each
    sample. There are at most 1.7 times as many packs as the fewest that could hold one
    length of each sample. n samples take O(n packs) steps.

    Raises `ConfigError` for lengths that are negative, no whole numbers or above the
    capacity.

    >>> first_fit([7, 5, 3, 4, 1], capacity=10)
    [[0, 2], [1, 3, 4]]
    """
    sizes, capacities = _checked_lengths(lengths, capacity, "first_fit")
    rooms = np.repeat(capacities[None], len(sizes), axis=0)
    packs: list[list[int]] = []
    for sample, needs in enumerate(sizes):
        pack = int((rooms[: len(packs) + 1] >= needs).all(axis=1).argmax())
        if pack == len(packs):
            packs.append([])
        packs[pack].append(sample)
        rooms[pack] -= needs
    return packs


def best_fit(lengths: Lengths, capacity: Capacity) -> list[list[int]]:
    """Return packs of samples by their numbers: the longest sample first, each into the
    fullest pack that has room for it.

    What packs hold is what `first_fit` says. With one capacity there are at most 11/9
    times as many packs as the fewest possible, and one, and n samples take O(n log n)
    steps; with several, the sample with the largest part of any capacity comes first,
    and steps are O(n packs). Packs come in the order of their first samples, so the
    long samples are not all at the beginning.

    Raises `ConfigError` for lengths that are negative, no whole numbers or above the
    capacity.

    >>> best_fit([7, 5, 3, 4, 1], capacity=10)
    [[0, 2], [1, 3, 4]]
    >>> best_fit([[7, 1], [3, 2], [3, 1]], capacity=[10, 2])  # tokens and images
    [[0, 2], [1]]
    """
    sizes, capacities = _checked_lengths(lengths, capacity, "best_fit")
    if len(capacities) == 1:
        return _in_order_of_arrival(_best_by_length(sizes[:, 0], int(capacities[0])))
    return _in_order_of_arrival(_best_by_parts(sizes, capacities))


def _best_by_length(sizes: Int64Array, capacity: int) -> list[list[int]]:
    """`open_packs` are those with room for the shortest sample, as room * n + pack,
    ascending.
    """
    packs: list[list[int]] = []
    open_packs: list[int] = []
    count = len(sizes)
    least = int(sizes.min(initial=capacity))
    longest_first = np.argsort(-sizes, kind="stable")
    for sample, need in zip(
        longest_first.tolist(), sizes[longest_first].tolist(), strict=True
    ):
        found = bisect_left(open_packs, need * count)
        if found == len(open_packs):
            room = capacity
            pack = len(packs)
            packs.append([])
        else:
            room, pack = divmod(open_packs.pop(found), count)
        packs[pack].append(sample)
        if room - need >= least:
            insort(open_packs, (room - need) * count + pack)
    return packs


def _best_by_parts(sizes: Int64Array, capacities: Int64Array) -> list[list[int]]:
    """The fullest pack is the one with the smallest parts of its capacities left,
    together.
    """
    parts = sizes / capacities
    rooms = np.repeat(capacities[None], len(sizes), axis=0)
    left = np.full(len(sizes), float(len(capacities)))
    packs: list[list[int]] = []
    for sample in np.argsort(-parts.max(axis=1, initial=0), kind="stable").tolist():
        fitting = np.flatnonzero((rooms[: len(packs)] >= sizes[sample]).all(axis=1))
        pack = int(fitting[left[fitting].argmin()]) if len(fitting) else len(packs)
        if pack == len(packs):
            packs.append([])
        packs[pack].append(sample)
        rooms[pack] -= sizes[sample]
        left[pack] -= parts[sample].sum()
    return packs


# Packs that fit and cost the same.


def attention_cost(tokens: int, hidden_size: int = HIDDEN_SIZE) -> int:
    """Return what a transformer computes for a sequence, in units of 4 * hidden_size
    operations a layer.

    The matrices of a layer take 24 * hidden_size**2 operations for each token, and
    attention within the sequence 4 * hidden_size * tokens: together tokens * (tokens +
    6 * hidden_size) units. So two packs of the same length cost different amounts when
    one is of a few long samples and the other of many short ones.

    >>> attention_cost(2048) / (2 * attention_cost(1024))
    1.04
    """
    return tokens * (tokens + 6 * hidden_size)


def balanced(
    lengths: Lengths,
    capacity: Capacity,
    *,
    costs: Sequence[float] | FloatArray | None = None,
) -> list[list[int]]:
    """Return packs of samples by their numbers, that cost about the same: the dearest
    samples first, each into the cheapest pack that has room for it.

    What packs hold is what `first_fit` says; several capacities, as of tokens and of
    image tiles, hold together. `costs` are what samples cost, by default
    `attention_cost` of their first lengths. There are as few packs as can be found, and
    never more than `best_fit` makes. Where capacities stand in the way of even costs,
    dear packs exchange samples with others, one for one or for none, until they cost
    within a hundredth of the mean or no exchange helps.

    Without a capacity in the way, the dearest pack costs at most 4/3 of what it would
    in the best of all divisions. Packs come in the order of their first samples. n
    samples take O(n packs) steps, and exchanges, where there are any, at most O(n * n)
    times the samples of a pack.

    Raises `ConfigError` for lengths or costs that are negative or above the capacity.

    >>> balanced([7, 5, 3, 4, 1], capacity=12)
    [[0, 2], [1, 3, 4]]
    >>> balanced(
    ...     [[900, 1], [500, 6], [400, 6], [100, 1]], capacity=[2048, 7]
    ... )  # tokens and tiles
    [[0, 2], [1, 3]]
    """
    sizes, capacities = _checked_lengths(lengths, capacity, "balanced")
    if costs is None:
        tokens = sizes[:, 0].astype(np.float64)
        costs = tokens * (tokens + 6 * HIDDEN_SIZE)
    given = _Given(sizes, capacities, _checked_costs(costs, len(sizes)))
    fitted = best_fit(sizes, capacities.tolist())
    if not fitted:
        return []
    halves = int((2 * sizes > capacities).sum(axis=0).max())
    least = max(halves, int((-(-sizes.sum(axis=0) // capacities)).max()), 1)
    counts = range(least, len(fitted))
    few = least + bisect_left(
        counts, 1, key=lambda n: _cheapest_first(given, n) is not None
    )
    divided = _cheapest_first(given, few)
    if (
        divided is None or len(capacities) > 1
    ):  # one alone leaves the cheapest first its choice
        divided = divided or fitted
        _even_out(divided, given)
    return _in_order_of_arrival(divided)


class _Given(NamedTuple):
    """Samples, a row of lengths and a cost for each, and what a pack can hold."""

    sizes: Int64Array
    capacities: Int64Array
    costs: FloatArray


def _checked_costs(costs: Sequence[float] | FloatArray, samples: int) -> FloatArray:
    try:
        given = np.asarray(costs, dtype=np.float64)
    except (TypeError, ValueError):
        given = np.full(1, np.nan)
    if given.shape != (samples,) or not (np.isfinite(given) & (given >= 0)).all():
        raise ConfigError(
            f"balanced: costs are a number, 0 or more, for each of {samples} samples; "
            "got "
            f"{reprlib.repr(costs)}"
        )
    return given


def _cheapest_first(given: _Given, count: int) -> list[list[int]] | None:
    """Return `count` packs, each sample in the cheapest that has room: the dearest
    samples first, or, if one then finds no room, those that take the largest part of a
    capacity; else None.
    """
    parts = (given.sizes / given.capacities).max(axis=1, initial=0)
    orders = (np.argsort(-first, kind="stable") for first in (given.costs, parts))
    tried = (_in_turn(given, count, order) for order in orders)
    return next((packs for packs in tried if packs is not None), None)


def _in_turn(given: _Given, count: int, order: Int64Array) -> list[list[int]] | None:
    """Return packs, each sample, in this order, in the cheapest that has room; None
    without one.
    """
    rooms = np.repeat(given.capacities[:, None], count, axis=1)
    totals = np.zeros(count)
    packs: list[list[int]] = [[] for _ in range(count)]
    for sample in order.tolist():
        needs = given.sizes[sample]
        without = (rooms < needs[:, None]).any(axis=0)
        pack = int(np.where(without, np.inf, totals).argmin())
        if without[pack]:
            return None
        packs[pack].append(sample)
        totals[pack] += given.costs[sample]
        rooms[:, pack] -= needs
    return packs


def _even_out(packs: list[list[int]], given: _Given) -> None:
    """Exchange a sample of the dearest pack with one of another pack, or with none, in
    place, while that makes the dearer of the two cheaper and packs differ by more than
    `_ALIKE`.
    """
    count = len(packs)
    none = np.zeros(len(packs))
    costs = np.concatenate(
        [given.costs, none]
    )  # after the samples, for each pack none of its own
    sizes = np.concatenate(
        [given.sizes, np.outer(none, given.capacities).astype(np.int64)]
    )
    where = np.concatenate(
        [np.zeros(len(given.costs), dtype=np.int64), np.arange(count)]
    )
    for number, pack in enumerate(packs):
        where[pack] = number
    totals = np.bincount(where, costs)
    rooms = given.capacities - np.array(
        [sizes[where == pack].sum(axis=0) for pack in range(count)]
    )
    moved = False
    enough = totals.mean() * _ALIKE
    stuck = np.zeros(count, dtype=bool)
    for _ in range(
        4 * len(given.costs)
    ):  # each of few samples would be moved a few times
        dear = int(np.where(stuck, 0.0, totals).argmax())
        if stuck[dear] or totals[dear] <= enough:
            if not moved:
                break
            moved = False
            stuck[:] = False
            continue
        held = np.flatnonzero(where == dear)
        less = costs[held, None] - costs
        dearer = np.maximum(totals[dear] - less, totals[where] + less)
        for size, room in zip(sizes.T, rooms.T, strict=True):
            shorter = size[held, None] - size
            dearer[(shorter > room[where]) | (-shorter > room[dear])] = np.inf
        dearer[:, where == dear] = np.inf
        given_up, other = divmod(int(dearer.argmin()), len(costs))
        if dearer[given_up, other] >= totals[dear]:
            stuck[dear] = True
            continue
        mine = held[given_up]
        pack = where[other]
        totals[[dear, pack]] += np.array([-1, 1]) * less[given_up, other]
        rooms[[dear, pack]] += np.outer([1, -1], sizes[mine] - sizes[other])
        where[mine] = pack
        if other < len(given.costs):
            where[other] = dear
        moved = True
        stuck[[dear, pack]] = False
    _regroup(packs, where[: len(given.costs)])


def _regroup(packs: list[list[int]], pack_numbers: Int64Array) -> None:
    """Replace the samples of each pack, in place, by the pack number of each sample."""
    for number, pack in enumerate(packs):
        pack[:] = np.flatnonzero(pack_numbers == number).tolist()


# Packs of samples.

Length: TypeAlias = Callable[[Any], int] | str
"""How long a sample is: a function of it, or the name of its field that says so."""

METHODS = ("first_fit", "best_fit", "balanced")


@dataclass(frozen=True)
class Packer:
    """Called with samples, gives lists of them that fit together: each list is to be
    one pack.

    `length` says how long a sample is: a function of it that gives a whole number, or
    the name of a field, which is a whole number itself, or a tensor or list that is so
    long. For several `capacity`s, of tokens and image tiles for example, it is a tuple
    with one for each. `method` is `first_fit`, which keeps most of the order;
    `best_fit`, which makes the fewest packs; or `balanced`, which makes as few that
    cost about the same, by `cost(sample)` or else by `attention_cost` of the first
    length. Samples keep their order in a list, and each is in one.

    A sample that is longer than a capacity is a `SampleError` that names it, or, with
    `too_long="skip"`, left out, and a warning says so the first time.

    It goes where a function that selects samples to pack is expected: `pre_packer` of a
    `PackingDataset`, or `select_samples_to_pack` of a task encoder, which returns what
    it gives.

    Raises `ConfigError` for arguments that cannot be used, and for a length that is no
    whole number.

    >>> packer = Packer(length=len, capacity=8)
    >>> packer(["a cat", "two dogs", "a", "hi"])
    [['a cat', 'a', 'hi'], ['two dogs']]
    >>> packer = Packer(
    ...     length=("tokens", "images"), capacity=(2048, 2), method="balanced"
    ... )
    >>> packer([{"tokens": 900, "images": ["A"]}, {"tokens": 50, "images": ["B", "C"]}])
    [[{'tokens': 900, 'images': ['A']}], [{'tokens': 50, 'images': ['B', 'C']}]]
    """

    length: Length | Sequence[Length]
    capacity: Capacity
    method: Literal["first_fit", "best_fit", "balanced"] = "best_fit"
    too_long: Literal["error", "skip"] = "error"
    cost: Callable[[Any], float] | None = None

    def __post_init__(self) -> None:
        for name in ("length", "capacity"):  # lists would not be frozen
            if isinstance(getattr(self, name), list):
                object.__setattr__(self, name, tuple(getattr(self, name)))
        if len(self._lengths) != len(self._capacities):
            counts = (
                f"{len(self._lengths)} lengths and {len(self._capacities)} capacities"
            )
            raise ConfigError(f"Packer: {counts}; give one length for each capacity")
        for each in self._lengths:
            if not callable(each) and not isinstance(each, str):
                raise ConfigError(
                    f"Packer: length is a function, or a field's name; got {each!r}"
                )
        checked_choice(self.method, "method", METHODS, "Packer")
        checked_choice(self.too_long, "too_long", ("error", "skip"), "Packer")
        if self.cost is not None and (
            self.method != "balanced" or not callable(self.cost)
        ):
            raise ConfigError(
                "Packer: cost is a function of a sample, for method='balanced' only"
            )

    @cached_property
    def _lengths(self) -> tuple[Length, ...]:
        return self.length if isinstance(self.length, tuple) else (self.length,)

    @cached_property
    def _capacities(self) -> tuple[int, ...]:
        return checked_capacity(self.capacity, "Packer")

    def __call__(self, samples: Sequence[T]) -> list[list[T]]:
        capacities = self._capacities
        given = [
            [_length(sample, i, each) for each in self._lengths]
            for i, sample in enumerate(samples)
        ]
        lengths = np.array(given, dtype=np.int64).reshape(len(samples), len(capacities))
        fits = (lengths <= capacities).all(axis=1)
        if not fits.all():
            self._leave_out(samples, given, np.flatnonzero(~fits).tolist())
        chosen = [samples[i] for i in np.flatnonzero(fits).tolist()]
        packs = self._packs(chosen, lengths[fits])
        return [[chosen[i] for i in pack] for pack in packs]

    def _packs(self, samples: Sequence[T], lengths: Int64Array) -> list[list[int]]:
        """Return the numbers of the samples of each pack."""
        capacities = self._capacities
        if self.method != "balanced":
            fit = first_fit if self.method == "first_fit" else best_fit
            return fit(lengths, capacities)
        cost = self.cost
        costs = cost and np.array(
            [_cost(sample, i, cost) for i, sample in enumerate(samples)]
        )
        return balanced(lengths, capacities, costs=costs)

    def _leave_out(
        self, samples: Sequence[Any], lengths: list[list[int]], long: list[int]
    ) -> None:
        """Raise for samples that no pack can hold, or warn the first time."""
        sample = named(samples[long[0]], f"sample {long[0]} of the list")
        both = tuple(lengths[long[0]]), self._capacities
        length, capacity = (each if each[1:] else each[0] for each in both)
        what = f"{sample} has length {length}, and a pack holds {capacity}"
        if self.too_long == "error":
            raise SampleError(
                f"Packer: {what}; cut it in the hook before, raise the capacity, or "
                "leave such samples out with too_long='skip'"
            )
        text = (
            f"{len(long)} of {len(samples)} samples are too long and left out "
            f"(logged once): {what}"
        )
        name = f"too_long, capacity {self.capacity}"
        said_once("Packer", name, text, logging.WARNING)


def _length(sample: Any, number: int, length: Length) -> int:
    called = named(sample, f"sample {number} of the list")
    given = said_of(sample, length, called, "Packer")
    found = whole_number(given, 0)
    if found is None:
        raise ConfigError(
            f"Packer: length {length!r} of {called} is a whole number, 0 or more; got "
            f"{str(given)[:80]} ({type(given).__name__})"
        )
    return min(found, MOST)


def _cost(sample: Any, number: int, cost: Callable[[Any], float]) -> float:
    given = cost(sample)
    found = real_number(given)
    if found is None:
        called = named(sample, f"sample {number} of the list")
        raise ConfigError(f"Packer: cost of {called} is a number; got {given!r}")
    return float(found)
