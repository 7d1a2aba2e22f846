"""Quotas: how many samples each stream gives to an epoch."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from functools import lru_cache
from heapq import heappop, heapreplace
from types import MappingProxyType
from typing import Protocol

import numpy as np

from energize.core.arrays import FloatArray, Int64Array, rows_by_value
from energize.core.checks import whole_number
from energize.core.rng import derive, hash_positions, shuffled
from energize.errors import ConfigError, EmptyDatasetError, WeightError, nearest
from energize.order.shuffle import Permutation, WindowedPermutation
from energize.order.timeline import make_scheme
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


# Which samples a stream gives to an epoch when its quota is not a whole number of passes.

_BLOCK = 1024
"""Samples among which a partial pass chooses at random; from each block it takes its part."""

_NARROW = 2**31
"""Products of two numbers up to this one fit in int64."""


class EpochDraws:
    """`count` draws per epoch from a stream of `size` samples: whole passes, then a part of one.

    Every epoch draws each sample floor(count / size) or ceil(count / size) times. The part takes
    the same samples in every epoch when it is `fixed`; otherwise others, so that after any number
    of epochs a sample has been drawn within 1 of e * count / size times.

    Each pass is in the stream's order, or with `shuffle` in a random one of its own; no sample
    comes again before its pass has ended. Any draw of any epoch costs the same.

    >>> import numpy as np
    >>> draws = EpochDraws(4, 6, key=1)
    >>> (draws.locate(np.zeros(6, dtype=np.int64), np.arange(6))[:4] % 4).tolist()
    [0, 1, 2, 3]
    """

    def __init__(
        self, size: int, count: int, key: int, *, shuffle: bool = False, fixed: bool = False
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
        """For draw `nth`, 0 <= nth < count, of an epoch: the pass it belongs to, counted from the
        first epoch on, times `size`, plus the sample.
        """
        number, within = np.divmod(nth, self._samples)
        passes = epoch * self._passes + number
        sample = within.copy()
        partial = number == self._whole
        if self._shuffle:
            sample[~partial] = self._in_pass(within[~partial], passes[~partial])
        if partial.any():
            sample[partial] = self._chosen(epoch[partial], within[partial])
        located: Int64Array = passes * self._samples + sample
        return located

    def _chosen(self, epoch: Int64Array, nth: Int64Array) -> Int64Array:
        """The sample of each draw of partial passes."""
        turn = np.zeros_like(epoch) if self._fixed else epoch % self._samples
        if not self._shuffle:
            return self._in_order(turn, nth)
        return self._scattered(self._place(turn, self._in_part(nth, epoch)))

    # A partial pass of turn t takes place x when t + x + 1 reaches a new multiple of size / part.
    # So places are evenly spread, and so are the turns that take one place. What lies at a place is
    # random within its block: data may have a rhythm of their own.

    def _place(self, turn: Int64Array, nth: Int64Array) -> Int64Array:
        """The place that is taken as number `nth`."""
        size, part = self._samples, self._part
        turn, nth = self._wide(turn), self._wide(nth)
        reached = nth + 1 + turn * part // size
        place: Int64Array = (-(-reached * size // part) - 1 - turn).astype(np.int64)
        return place

    def _taken_before(self, turn: Int64Array, place: Int64Array) -> Int64Array:
        """How many places before `place` are taken."""
        size, part = self._samples, self._part
        turn, place = self._wide(turn), self._wide(place)
        taken: Int64Array = ((turn + place) * part // size - turn * part // size).astype(np.int64)
        return taken

    def _wide(self, values: Int64Array) -> Int64Array:
        """Values whose products cannot overflow: Python's integers for huge streams."""
        return values if self._samples < _NARROW else values.astype(object)

    def _in_order(self, turn: Int64Array, nth: Int64Array) -> Int64Array:
        """The samples that `_scattered` gives, ascending within their pass."""
        out = np.empty_like(nth)
        blocks = np.stack([turn, self._place(turn, nth) // _BLOCK])
        touched, which = np.unique(blocks, axis=1, return_inverse=True)
        for number, (at, block) in enumerate(touched.T.tolist()):
            rows = np.flatnonzero(which.reshape(-1) == number)
            ends = np.array([block * _BLOCK, min((block + 1) * _BLOCK, self._samples)])
            first, last = self._taken_before(np.array([at, at]), ends).tolist()
            numbers = np.arange(first, last, dtype=np.int64)
            taken = np.sort(self._scattered(self._place(np.full_like(numbers, at), numbers)))
            out[rows] = taken[nth[rows] - first]
        return out


# Orders in which the units of several streams, given by their counts, follow one another.


class EpochOrder(Protocol):
    """An epoch of sum(counts) units, of which stream s has counts[s]; every epoch has its own."""

    def locate(self, epoch: Int64Array, at: Int64Array) -> tuple[Int64Array, Int64Array]:
        """For each unit of an epoch its stream, and its number among those of the stream."""

    def counts(self, epoch: int, n: int) -> Int64Array:
        """Units of each stream among the first `n`, 0 <= n <= sum(counts), of an epoch."""


class InTurn:
    """All units of the first stream, then all of the second, ..."""

    def __init__(self, counts: Int64Array) -> None:
        self._ends = np.cumsum(counts)
        self._starts = self._ends - counts

    def locate(self, epoch: Int64Array, at: Int64Array) -> tuple[Int64Array, Int64Array]:
        stream = np.searchsorted(self._ends, at, side="right")
        return stream, at - self._starts[stream]

    def counts(self, epoch: int, n: int) -> Int64Array:
        counts: Int64Array = np.clip(n, self._starts, self._ends) - self._starts
        return counts


class _Windowed(ABC):
    """The order of the scheme `exact`, in which shares are exact, arranged anew in every window of
    `window` units.
    """

    def __init__(self, counts: Int64Array, window: int, key: int) -> None:
        self._total = int(counts.sum())
        self._window = min(window, self._total)
        self._windows = -(-self._total // self._window)
        self._key = derive(key, type(self).__name__.lower())
        self._scheme = make_scheme("exact", counts.tolist())

    @abstractmethod
    def locate(self, epoch: Int64Array, at: Int64Array) -> tuple[Int64Array, Int64Array]: ...

    def counts(self, epoch: int, n: int) -> Int64Array:
        start = n // self._window * self._window
        before = self._scheme.counts(start)
        at = np.arange(start, n, dtype=np.int64)
        streams, _ = self.locate(np.full_like(at, epoch), at)
        return before + np.bincount(streams, minlength=len(before))


class Interleaved(_Windowed):
    """Streams in random order, each in its own: windows hold the exact shares (within 2 units), and
    are shuffled inside.
    """

    def __init__(self, counts: Int64Array, window: int, key: int) -> None:
        super().__init__(counts, window, key)
        self._layout = lru_cache(maxsize=4)(self._shuffled)

    def locate(self, epoch: Int64Array, at: Int64Array) -> tuple[Int64Array, Int64Array]:
        number, offset = np.divmod(at, self._window)
        number = number + epoch * self._windows
        stream, nth = np.empty_like(at), np.empty_like(at)
        for each, rows in rows_by_value(number):
            streams, nths = self._layout(each)
            stream[rows], nth[rows] = streams[offset[rows]], nths[offset[rows]]
        return stream, nth

    def _shuffled(self, number: int) -> tuple[Int64Array, Int64Array]:
        first = number % self._windows * self._window
        slots = np.arange(first, min(first + self._window, self._total), dtype=np.int64)
        stream, nth = self._scheme.locate(slots)
        placed = stream[shuffled(self._key, number, len(slots))]
        ordered = np.empty_like(placed)
        ordered[np.argsort(placed, kind="stable")] = nth[np.argsort(stream, kind="stable")]
        return placed, ordered


class Rotated(_Windowed):
    """Streams in even order: each window is turned by a random number of places, so that no place
    of it is always a certain stream's.
    """

    def locate(self, epoch: Int64Array, at: Int64Array) -> tuple[Int64Array, Int64Array]:
        number, offset = np.divmod(at, self._window)
        first = number * self._window
        length = np.minimum(self._total - first, self._window)
        words = hash_positions(self._key, number + epoch * self._windows)
        turned = (words % length.astype(np.uint64)).astype(np.int64)
        return self._scheme.locate(first + (offset + turned) % length)


# What global batches, and the device batches they consist of, are made of.

_WINDOW = 2**16
"""Units that `random` shuffles together, at most; but at least 4 batches, and at most 64."""


class Composition:
    """An epoch of `asked[s]` samples of each stream s, put together into global batches.

    A global batch is `global_batch_size` consecutive samples, and global_batch_size / batch_size
    consecutive device batches. `method`:

    - `random`: each sample's stream is random; shares hold over some tens of batches.
    - `in_turn`: one stream after the other, in batches that do not care for streams.
    - `stratified`: after k global batches every stream has given its share of k *
      global_batch_size samples within 1.68, and its samples are spread over the batch. One whose
      share is less than a sample is in some batches only, which are spread over the epoch, and
      gives as many samples to it as asked.
    - `per_stream`: a global batch is of one stream, which is random.
    - `device_per_stream`: a device batch is of one stream; the device batches of k global batches
      hold the shares within 1.68 device batches.

    Every global batch is full; except that with the first three methods, the samples that are left
    at the end of an epoch make a shorter one, unless `drop_last`. Its device batches differ by one
    sample at most; with fewer samples than devices, `idle` device batches hold none. All methods
    but the last make the same global batches however these are divided.

    `totals` are the samples of each stream that do come, `size` their sum, and `batches` the device
    batches of an epoch, as many for each device. `label` is what errors call a stream.

    Raises `ConfigError` when `batch_size` does not divide `global_batch_size`, for an unknown
    method, when an epoch fills no global batch, and when batches are of one stream and a stream
    cannot fill one in an epoch.

    >>> import numpy as np
    >>> mixed = Composition(np.array([6, 2]), "stratified", 2, 4, key=1)
    >>> stream, _ = mixed.locate(np.zeros(4, dtype=np.int64), np.arange(4))
    >>> sorted(stream.tolist())
    [0, 0, 0, 1]
    """

    def __init__(
        self,
        asked: Int64Array,
        method: str,
        batch_size: int,
        global_batch_size: int,
        *,
        key: int,
        drop_last: bool = False,
        label: Callable[[int], str] = "stream {}".format,
    ) -> None:
        if method not in list(BATCHING_METHODS):  # a list takes what cannot be hashed, too
            raise ConfigError(
                f"batching_method={method!r} is not one of {', '.join(BATCHING_METHODS)}"
                f"{nearest(str(method), list(BATCHING_METHODS))}"
            )
        if global_batch_size % batch_size:
            raise ConfigError(
                f"a global batch of {global_batch_size} samples cannot be divided into device "
                f"batches of {batch_size}; global_batch_size is a multiple of batch_size"
            )
        self.asked = asked
        self.method = method
        self.batch_size = batch_size
        self.global_batch_size = global_batch_size
        self.devices = global_batch_size // batch_size
        self.label = label
        _check_places(self, drop_last)
        self._unit, units = BATCHING_METHODS[method](self, drop_last)
        self.totals = units * self._unit
        self.size = int(self.totals.sum())
        self.batches = -(-self.size // global_batch_size) * self.devices
        self.idle = max(0, self.devices - self.remainder) if self.remainder else 0
        self._arrangement = self._arranged(units, key)

    @property
    def remainder(self) -> int:
        """Samples of the shorter last global batch of an epoch; 0 where all are full."""
        return self.size % self.global_batch_size

    @property
    def rare(self) -> list[int]:
        """Streams of which a `stratified` global batch holds less than half a sample, but which
        have some in an epoch.
        """
        if self.method != "stratified":
            return []
        few = 2 * self.asked.astype(object) * self.global_batch_size < int(self.asked.sum())
        return np.flatnonzero(few & (self.asked > 0)).tolist()

    @property
    def early(self) -> int:
        """A stream's samples come in the order of their numbers, or fewer than so many early."""
        return self.global_batch_size if isinstance(self._arrangement, Rotated) else 0

    def locate(self, epoch: Int64Array, at: Int64Array) -> tuple[Int64Array, Int64Array]:
        """For each sample of an epoch its stream, and its number among those of the stream."""
        unit, offset = np.divmod(at, self._unit)
        stream, nth = self._arrangement.locate(epoch, unit)
        return stream, nth * self._unit + offset

    def counts(self, epoch: int, n: int) -> Int64Array:
        """Samples of each stream among the first `n` of an epoch."""
        units, rest = divmod(n, self._unit)
        counts = self._arrangement.counts(epoch, units) * self._unit
        if rest:
            stream, _ = self._arrangement.locate(*np.array([[epoch], [units]], dtype=np.int64))
            counts[stream] += rest
        return counts

    def bounds(self, batch: Int64Array) -> tuple[Int64Array, Int64Array]:
        """For each device batch of an epoch its first sample, and the one after its last."""
        start, length, device = self._divided(batch)
        first = start + device * length // self.devices
        return first, start + (device + 1) * length // self.devices

    def lent(self, batch: Int64Array) -> Int64Array:
        """For each device batch of an epoch the sample of its global batch to read where it holds
        none: to device d of a global batch of r samples, sample d mod r.
        """
        start, length, device = self._divided(batch)
        return start + device % length

    def _divided(self, batch: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
        """For each device batch the first sample of its global batch and the number of samples
        there, and the device.
        """
        which, device = np.divmod(batch, self.devices)
        start = which * self.global_batch_size
        return start, np.minimum(self.size - start, self.global_batch_size), device

    def _arranged(self, units: Int64Array, key: int) -> EpochOrder:
        if self.method == "in_turn":
            return InTurn(units)
        if self.method == "random":
            together = min(max(_WINDOW // self.global_batch_size, 4), 64)
            return Interleaved(units, together * self.global_batch_size, key)
        if self.method == "per_stream":
            return Interleaved(units, 64, key)
        whole = self.asked if self.method == "stratified" else units
        return Rotated(whole, self.global_batch_size // self._unit, key)


def _check_places(mixed: Composition, drop_last: bool) -> None:
    """Whether an epoch fills a global batch, and batches of one stream can be of each."""
    total, method = int(mixed.asked.sum()), mixed.method
    if total < mixed.global_batch_size and (drop_last or method not in ("random", "in_turn")):
        raise ConfigError(
            f"the {total} samples of an epoch cannot fill one global batch of "
            f"{mixed.global_batch_size}; use a global batch of at most {total}, or larger quotas"
        )
    if method in ("per_stream", "device_per_stream") and not mixed.asked.all():
        raise ConfigError(
            f"{mixed.label(int(mixed.asked.argmin()))} gives no samples to an epoch, so it has no "
            f"place in the batches of {method!r}; leave it out, or use batching_method='random'"
        )


def _composition_samples(mixed: Composition, drop_last: bool) -> tuple[int, Int64Array]:
    """Samples as units: all of them, or as many as fill global batches."""
    total = int(mixed.asked.sum())
    left_out = total % mixed.global_batch_size if drop_last else 0
    if not left_out:
        return 1, mixed.asked
    if mixed.method == "stratified":  # the first samples of the whole epoch, so shares hold
        return 1, make_scheme("exact", mixed.asked.tolist()).counts(total - left_out)
    return 1, largest_remainder(mixed.asked, total - left_out)


def _global_batches(mixed: Composition, drop_last: bool) -> tuple[int, Int64Array]:
    """Global batches as units, each of one stream."""
    _check_full(mixed, mixed.global_batch_size, "global batch")
    return mixed.global_batch_size, mixed.asked // mixed.global_batch_size


def _device_batches(mixed: Composition, drop_last: bool) -> tuple[int, Int64Array]:
    """Device batches as units: as many for each device, in the ratio of the streams' samples."""
    _check_full(mixed, mixed.batch_size, "device batch")
    most = mixed.asked // mixed.batch_size
    wanted = int(most.sum()) // mixed.devices * mixed.devices
    if not wanted:
        raise ConfigError(
            f"the {most.sum()} full device batches of {mixed.batch_size} samples in an epoch are "
            f"fewer than the {mixed.devices} of one global batch; use a smaller batch, or larger "
            "quotas"
        )
    weights = mixed.asked.astype(object) * wanted
    total = int(mixed.asked.sum())
    units = (weights // total).astype(np.int64)
    by_remainder = np.argsort(-(weights % total), kind="stable")
    while missing := wanted - int(units.sum()):
        units[by_remainder[(units < most)[by_remainder]][:missing]] += 1
    if not units.all():
        raise ConfigError(
            f"{mixed.label(int(units.argmin()))} fills {most[units.argmin()]} of {most.sum()} "
            f"device batches, and of the {wanted} that can be shared out evenly among "
            f"{mixed.devices} devices it gets none; use a smaller batch_size, or a larger quota"
        )
    return mixed.batch_size, units


def _check_full(mixed: Composition, batch: int, kind: str) -> None:
    least = int(mixed.asked.min())
    if least < batch:
        stream = mixed.label(int(mixed.asked.argmin()))
        raise ConfigError(
            f"{stream} gives {least} samples to an epoch and cannot fill one {kind} of {batch}, "
            f"which {mixed.method!r} makes of one stream; use batches of at most {least}, or a "
            "larger quota"
        )


BATCHING_METHODS: Mapping[str, Callable[[Composition, bool], tuple[int, Int64Array]]] = (
    MappingProxyType(
        {
            "random": _composition_samples,
            "in_turn": _composition_samples,
            "stratified": _composition_samples,
            "per_stream": _global_batches,
            "device_per_stream": _device_batches,
        }
    )
)
"""How each method divides an epoch: samples per unit, and units of each stream."""


# The order of items in which every few in a row cost about the same.

_DEAREST = 2**32
"""The dearest item is counted as so much, and others in proportion."""

_LEVEL = 1.01
"""A group that costs no more than this part of the mean is level."""

_ROUNDS = 8
"""How often items of dear and cheap groups are swapped; more were not seen to help."""

_COMPARED = 2**20
"""Pairs of items that are compared at a time."""


def levelled(costs: FloatArray, group: int) -> Int64Array:
    """Items by their numbers, so that each `group` of them in a row costs about the same.

    The dearest items come first, each into the cheapest group that has room; then the dearest
    groups swap an item each with the cheapest ones, as long as that brings two closer. Groups come
    in the order of their first items, the items of a group in their own order, so that nobody can
    say where the dearest group is. What fills no group stays where it is, at the end.

    No group can cost less than the dearest item with the `group` - 1 cheapest ones. n items take
    n log n steps, all on whole numbers, so equal costs give one order on every machine.

    >>> levelled(np.array([9.0, 8.0, 1.0, 2.0, 5.0]), 2).tolist()
    [0, 2, 1, 3, 4]
    """
    groups = len(costs) // group
    full = groups * group
    if groups < 2:
        return np.arange(len(costs), dtype=np.int64)
    prices = np.rint(costs[:full] * (_DEAREST / costs[:full].max())).astype(np.int64)
    members = _dealt(prices, groups)
    _swap(members, prices)
    members.sort(axis=1)
    order = members[np.argsort(members[:, 0])]
    return np.concatenate([order.ravel(), np.arange(full, len(costs), dtype=np.int64)])


def _dealt(prices: Int64Array, groups: int) -> Int64Array:
    """A row of items for each group: the dearest first, each where it is cheapest; of equal groups
    in the first one.
    """
    order = np.argsort(-prices, kind="stable")
    room = [len(prices) // groups] * groups
    cheapest = list(range(groups))  # of each group its total, and the group: in one number
    chosen = []
    for price in (prices[order] * groups).tolist():
        cheap = cheapest[0]
        group = cheap % groups
        chosen.append(group)
        room[group] -= 1
        if room[group]:
            heapreplace(cheapest, cheap + price)
        else:
            heappop(cheapest)
    return order[np.argsort(chosen, kind="stable")].reshape(groups, -1)


def _swap(members: Int64Array, prices: Int64Array) -> None:
    """Bring groups that cost more than the others closer to these, in place.

    Of a dear and a cheap group those two items change places after which the groups differ least.
    """
    groups, group = members.shape
    held = prices[members]
    level = int(_LEVEL * prices.sum() / groups)
    for _ in range(_ROUNDS):
        totals = held.sum(axis=1)
        order = np.argsort(totals, kind="stable")
        dear = min(int((totals > level).sum()), groups // 2, _COMPARED // group**2)
        low, high = order[:dear], order[::-1][:dear]
        gap = totals[high] - totals[low]
        moved = held[high][:, :, None] - held[low][:, None, :]
        left = np.abs(2 * moved - gap[:, None, None]).reshape(dear, group**2)
        best = left.argmin(axis=1)
        rows = np.flatnonzero(left[np.arange(dear), best] < gap)
        if not len(rows):
            return
        one = high[rows], best[rows] // group
        other = low[rows], best[rows] % group
        for each in (members, held):
            each[one], each[other] = each[other], each[one]
