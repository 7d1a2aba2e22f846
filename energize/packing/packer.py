"""Select the samples that share a pack, by their lengths and costs."""

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
from energize.core.costs import measure_item, named
from energize.core.description import function_name
from energize.core.ignored import log_once
from energize.errors import ConfigError, SampleError

T = TypeVar("T")

Lengths: TypeAlias = Sequence[int] | Sequence[Sequence[int]] | Int64Array
"""A length for each sample, or a row of lengths, one for each capacity."""

Capacity: TypeAlias = int | Sequence[int]
"""The capacity of a pack, or several, such as tokens and image tiles."""

MOST = 2**40
"""Bound of lengths, so that sums are exact."""

HIDDEN_SIZE = 4096

_ALIKE = 1.01
"""A pack with at most this part of the mean cost is balanced."""


def checked_capacity(capacity: Capacity, owner: str) -> tuple[int, ...]:
    """Return the capacities as a tuple.

    Args:
        capacity: One capacity or several.
        owner: The name of the caller, for messages.

    Raises:
        ConfigError: Unless capacities are whole numbers from 1 to 2**40.
    """
    several = capacity if isinstance(capacity, list | tuple) else (capacity,)
    if not several:
        raise ConfigError(
            f"{owner}: capacity is empty. Pass one number, or one for each length"
        )
    capacities = tuple(
        checked_whole(value, f"{owner}: capacity", 1) for value in several
    )
    if max(capacities) >= MOST:
        raise ConfigError(f"{owner}: capacity must be < 2**40, got {max(capacities)}")
    return capacities


def _checked_lengths(
    lengths: Lengths, capacity: Capacity, owner: str
) -> tuple[Int64Array, Int64Array]:
    """Return lengths, a row for each sample, and capacities, one for each column."""
    capacities = np.array(checked_capacity(capacity, owner), dtype=np.int64)
    try:
        array = np.asarray(lengths)
    except ValueError as error:
        raise ConfigError(
            f"{owner}: samples have different numbers of lengths: {error}"
        ) from None
    if array.size == 0:
        return np.zeros((0, len(capacities)), dtype=np.int64), capacities
    if array.dtype.kind not in "iu":
        raise ConfigError(
            f"{owner}: lengths must be whole numbers, got {array.dtype} like "
            f"{array[:3]}"
        )
    rows = array.reshape(-1, 1) if array.ndim == 1 else array
    if rows.ndim != 2 or rows.shape[1] != len(capacities):
        raise ConfigError(
            f"{owner}: lengths of shape {array.shape} do not match {len(capacities)} "
            "capacities. Pass one length for each capacity"
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
    """Return packs in the order of their first samples, empty packs last."""
    return sorted(map(sorted, packs), key=lambda pack: (not pack, pack))


def first_fit(lengths: Lengths, capacity: Capacity) -> list[list[int]]:
    """Pack samples in order, each into the first pack with room.

    Keeps most of the order. With one capacity, the number of packs is at most 1.7 times
    the optimum. Takes O(samples * packs) steps.

    Args:
        lengths: A length for each sample; with several capacities, a row of lengths.
        capacity: The capacity of a pack, or several.

    Returns:
        Sample numbers of each pack, in ascending order. Every sample is in one pack.

    Raises:
        ConfigError: If a length is negative, not a whole number, or above the capacity.

    Example:
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
    """Pack samples, longest first, each into the fullest pack with room.

    With one capacity, the number of packs is at most 11/9 times the optimum, plus one,
    in O(n log n) steps. With several, samples are ordered by their largest part of a
    capacity, in O(samples * packs) steps. Packs are in the order of their first
    samples, so long samples are not concentrated at the beginning.

    Args:
        lengths: As in `first_fit`.
        capacity: As in `first_fit`.

    Returns:
        Sample numbers of each pack, in ascending order. Every sample is in one pack.

    Raises:
        ConfigError: If a length is negative, not a whole number, or above the capacity.

    Example:
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
    """Return best-fit packs for one capacity."""
    packs: list[list[int]] = []
    open_packs: list[int] = []
    count = len(sizes)
    least = int(sizes.min(initial=capacity))
    longest_first = np.argsort(-sizes, kind="stable")
    for sample, need in zip(
        longest_first.tolist(), sizes[longest_first].tolist(), strict=True
    ):
        index = bisect_left(open_packs, need * count)
        if index == len(open_packs):
            room = capacity
            pack = len(packs)
            packs.append([])
        else:
            room, pack = divmod(open_packs.pop(index), count)
        packs[pack].append(sample)
        if room - need >= least:
            insort(open_packs, (room - need) * count + pack)
    return packs


def _best_by_parts(sizes: Int64Array, capacities: Int64Array) -> list[list[int]]:
    """Return best-fit packs for several capacities, by the sum of free parts."""
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
    """Return the relative cost of a sequence in a transformer.

    The unit is 4 * hidden_size operations in each layer. The matrices of a layer take
    24 * hidden_size**2 operations for each token, and attention takes
    4 * hidden_size * tokens. So packs of equal length cost more with few long samples
    than with many short ones.

    Args:
        tokens: Tokens of the sequence.
        hidden_size: Hidden size of the model.

    Returns:
        tokens * (tokens + 6 * hidden_size).

    Example:
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
    """Pack samples so that packs cost about the same, with as few packs as possible.

    Samples are packed in descending order of cost, each into the cheapest pack with
    room; there are never more packs than with `best_fit`. If capacities prevent even
    costs, expensive packs exchange samples with other packs until they cost at most 1 %
    more than the mean, or no exchange helps.

    If no capacity is reached, the most expensive pack costs at most 4/3 of the optimum.
    Takes O(samples * packs) steps; exchanges take up to O(samples**2) times the samples
    of a pack.

    Args:
        lengths: As in `first_fit`.
        capacity: As in `first_fit`.
        costs: The cost of each sample, 0 or more. None for `attention_cost` of the
            first length.

    Returns:
        Sample numbers of each pack, in ascending order. Every sample is in one pack.

    Raises:
        ConfigError: If a length is negative or above the capacity, or a cost is
            invalid.

    Example:
        >>> balanced([7, 5, 3, 4, 1], capacity=12)
        [[0, 2], [1, 3, 4]]
        >>> rows = [[900, 1], [500, 6], [400, 6], [100, 1]]  # tokens and image tiles
        >>> balanced(rows, capacity=[2048, 7])
        [[0, 2], [1, 3]]
    """
    sizes, capacities = _checked_lengths(lengths, capacity, "balanced")
    if costs is None:
        tokens = sizes[:, 0].astype(np.float64)
        costs = tokens * (tokens + 6 * HIDDEN_SIZE)
    samples = _Samples(sizes, capacities, _checked_costs(costs, len(sizes)))
    fitted = best_fit(sizes, capacities.tolist())
    if not fitted:
        return []
    halves = int((2 * sizes > capacities).sum(axis=0).max())
    least = max(halves, int((-(-sizes.sum(axis=0) // capacities)).max()), 1)
    counts = range(least, len(fitted))
    few = least + bisect_left(
        counts, 1, key=lambda n: _cheapest_first(samples, n) is not None
    )
    divided = _cheapest_first(samples, few)
    if (
        divided is None or len(capacities) > 1
    ):  # one alone leaves the cheapest first its choice
        divided = divided or fitted
        _even_out(divided, samples)
    return _in_order_of_arrival(divided)


class _Samples(NamedTuple):
    """The samples of `balanced`.

    Attributes:
        sizes: Lengths, int64, shape (num_samples, num_capacities).
        capacities: Capacities, int64, shape (num_capacities,).
        costs: Costs, float64, shape (num_samples,).
    """

    sizes: Int64Array
    capacities: Int64Array
    costs: FloatArray


def _checked_costs(costs: Sequence[float] | FloatArray, samples: int) -> FloatArray:
    try:
        array = np.asarray(costs, dtype=np.float64)
    except (TypeError, ValueError):
        array = np.full(1, np.nan)
    if array.shape != (samples,) or not (np.isfinite(array) & (array >= 0)).all():
        raise ConfigError(
            f"balanced: costs must have a number >= 0 for each of {samples} samples, "
            f"got {reprlib.repr(costs)}"
        )
    return array


def _cheapest_first(samples: _Samples, count: int) -> list[list[int]] | None:
    """Return `count` packs, each sample in the cheapest pack with room.

    None if impossible.

    Tries samples in descending order of cost, then of their largest part of a capacity.
    """
    parts = (samples.sizes / samples.capacities).max(axis=1, initial=0)
    orders = (np.argsort(-first, kind="stable") for first in (samples.costs, parts))
    tried = (_in_turn(samples, count, order) for order in orders)
    return next((packs for packs in tried if packs is not None), None)


def _in_turn(
    samples: _Samples, count: int, order: Int64Array
) -> list[list[int]] | None:
    """Return packs for samples in an order, each in the cheapest pack with room.

    None if a sample does not fit.
    """
    rooms = np.repeat(samples.capacities[:, None], count, axis=1)
    totals = np.zeros(count)
    packs: list[list[int]] = [[] for _ in range(count)]
    for sample in order.tolist():
        needs = samples.sizes[sample]
        without = (rooms < needs[:, None]).any(axis=0)
        pack = int(np.where(without, np.inf, totals).argmin())
        if without[pack]:
            return None
        packs[pack].append(sample)
        totals[pack] += samples.costs[sample]
        rooms[:, pack] -= needs
    return packs


def _even_out(packs: list[list[int]], samples: _Samples) -> None:
    """Exchange samples between expensive and other packs, in place.

    Stops if all packs are within `_ALIKE` of the mean, or no exchange makes the more
    expensive of two packs cheaper.
    """
    count = len(packs)
    none = np.zeros(len(packs))
    costs = np.concatenate(
        [samples.costs, none]
    )  # after the samples, for each pack none of its own
    sizes = np.concatenate(
        [samples.sizes, np.outer(none, samples.capacities).astype(np.int64)]
    )
    pack_of = np.concatenate(
        [np.zeros(len(samples.costs), dtype=np.int64), np.arange(count)]
    )
    for number, pack in enumerate(packs):
        pack_of[pack] = number
    totals = np.bincount(pack_of, costs)
    rooms = samples.capacities - np.array(
        [sizes[pack_of == pack].sum(axis=0) for pack in range(count)]
    )
    moved = False
    enough = totals.mean() * _ALIKE
    stuck = np.zeros(count, dtype=bool)
    for _ in range(
        4 * len(samples.costs)
    ):  # each of few samples would be moved a few times
        dear = int(np.where(stuck, 0.0, totals).argmax())
        if stuck[dear] or totals[dear] <= enough:
            if not moved:
                break
            moved = False
            stuck[:] = False
            continue
        held = np.flatnonzero(pack_of == dear)
        less = costs[held, None] - costs
        dearer = np.maximum(totals[dear] - less, totals[pack_of] + less)
        for size, room in zip(sizes.T, rooms.T, strict=True):
            shorter = size[held, None] - size
            dearer[(shorter > room[pack_of]) | (-shorter > room[dear])] = np.inf
        dearer[:, pack_of == dear] = np.inf
        moved_row, other = divmod(int(dearer.argmin()), len(costs))
        if dearer[moved_row, other] >= totals[dear]:
            stuck[dear] = True
            continue
        mine = held[moved_row]
        pack = pack_of[other]
        totals[[dear, pack]] += np.array([-1, 1]) * less[moved_row, other]
        rooms[[dear, pack]] += np.outer([1, -1], sizes[mine] - sizes[other])
        pack_of[mine] = pack
        if other < len(samples.costs):
            pack_of[other] = dear
        moved = True
        stuck[[dear, pack]] = False
    _regroup(packs, pack_of[: len(samples.costs)])


def _regroup(packs: list[list[int]], pack_numbers: Int64Array) -> None:
    """Replace the samples of packs, in place, by the pack number of each sample."""
    for number, pack in enumerate(packs):
        pack[:] = np.flatnonzero(pack_numbers == number).tolist()


# Packs of samples.

Length: TypeAlias = Callable[[Any], int] | str
"""A function that returns the length of a sample, or the name of a field."""

METHODS = ("first_fit", "best_fit", "balanced")


@dataclass(frozen=True)
class Packer:
    """Callable that selects the samples that share a pack.

    Use it as `pre_packer` of a `PackingDataset`, or return its result from
    `select_samples_to_pack` of a task encoder. Every sample is in one list, in the
    original order.

    Args:
        length: The length of a sample: a function, or the name of a field that is a
            whole number, a tensor or a list. A tuple for several capacities.
        capacity: The capacity of a pack, or a tuple of capacities, such as tokens and
            image tiles.
        method: "first_fit" keeps most of the order, "best_fit" makes the fewest packs,
            "balanced" makes packs of similar cost. See the functions of these names.
        too_long: "error" raises for a sample that is longer than a capacity; "skip"
            leaves it out, with one warning.
        cost: The cost of a sample, for "balanced". None for `attention_cost` of the
            first length.

    Raises:
        ConfigError: For invalid arguments; when called, for an invalid length.
        SampleError: When called, for a sample that is too long.

    Example:
        >>> packer = Packer(length=len, capacity=8)
        >>> packer(["a cat", "two dogs", "a", "hi"])
        [['a cat', 'a', 'hi'], ['two dogs']]
        >>> packer = Packer(
        ...     length=("tokens", "images"), capacity=(2048, 2), method="balanced"
        ... )
        >>> packer(
        ...     [{"tokens": 900, "images": ["A"]}, {"tokens": 50, "images": ["B", "C"]}]
        ... )
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
            raise ConfigError(f"Packer: {counts}. Pass one length for each capacity")
        for length in self._lengths:
            if not callable(length) and not isinstance(length, str):
                raise ConfigError(
                    "Packer: length must be a function or the name of a field, got "
                    f"{length!r}"
                )
        checked_choice(self.method, "method", METHODS, "Packer")
        checked_choice(self.too_long, "too_long", ("error", "skip"), "Packer")
        if self.cost is not None and (
            self.method != "balanced" or not callable(self.cost)
        ):
            raise ConfigError(
                "Packer: cost must be a function of a sample, and method must be "
                "'balanced'"
            )

    @cached_property
    def _lengths(self) -> tuple[Length, ...]:
        return self.length if isinstance(self.length, tuple) else (self.length,)

    @cached_property
    def _capacities(self) -> tuple[int, ...]:
        return checked_capacity(self.capacity, "Packer")

    def __call__(self, samples: Sequence[T]) -> list[list[T]]:
        capacities = self._capacities
        rows = [
            [
                length_of(
                    sample, length, named(sample, f"sample {i} of the list"), "Packer"
                )
                for length in self._lengths
            ]
            for i, sample in enumerate(samples)
        ]
        lengths = np.array(rows, dtype=np.int64).reshape(len(samples), len(capacities))
        fits = (lengths <= capacities).all(axis=1)
        if not fits.all():
            self._leave_out(samples, rows, np.flatnonzero(~fits).tolist())
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
        """Raise for samples that are too long, or warn once."""
        sample = named(samples[long[0]], f"sample {long[0]} of the list")
        both = tuple(lengths[long[0]]), self._capacities
        length, capacity = (values if values[1:] else values[0] for values in both)
        reason = f"{sample} has length {length}, but a pack holds {capacity}"
        if self.too_long == "error":
            raise SampleError(
                f"Packer: {reason}. Cut it in the hook before, raise the capacity, or "
                "set too_long='skip'"
            )
        text = (
            f"{len(long)} of {len(samples)} samples are too long and left out "
            f"(logged once): {reason}"
        )
        name = f"too_long, capacity {self.capacity}"
        log_once("Packer", name, text, logging.WARNING)


def length_of(sample: Any, length: Length, called: str, owner: str) -> int:
    """Return the length of a sample, at most `MOST`.

    Args:
        sample: The sample.
        length: The name of a field, or a function of the sample.
        called: The name of the sample in errors.
        owner: The name of the caller in errors.

    Raises:
        ConfigError: If the field is missing, or the length is no whole number >= 0.

    Example:
        >>> length_of({"ids": [5, 6]}, "ids", "sample 0", "Packer")
        2
    """
    value = measure_item(sample, length, called, owner)
    result = whole_number(value, 0)
    if result is None:
        label = repr(length) if isinstance(length, str) else function_name(length)
        raise ConfigError(
            f"{owner}: length {label} of {called} must be a whole number >= 0, got "
            f"{str(value)[:80]} ({type(value).__name__})"
        )
    return min(result, MOST)


def _cost(sample: Any, number: int, cost: Callable[[Any], float]) -> float:
    value = cost(sample)
    result = real_number(value)
    if result is None:
        called = named(sample, f"sample {number} of the list")
        raise ConfigError(f"Packer: cost of {called} must be a number, got {value!r}")
    return float(result)
