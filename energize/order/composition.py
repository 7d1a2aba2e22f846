"""Orders of epochs to which several streams give fixed numbers of samples, and global
batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from energize.core.arrays import Int64Array, Rows, pairs_by_value, rows_by_value
from energize.core.checks import checked_choice
from energize.core.rng import derive, hash_positions, shuffled
from energize.errors import ConfigError
from energize.order.quota import EpochDraws
from energize.order.runs import rearranged
from energize.order.scheme import Scheme, SuccessionScheme
from energize.order.timeline import make_scheme
from energize.order.weights import largest_remainder

BATCHING_METHODS = (
    "random",
    "in_turn",
    "stratified",
    "per_stream",
    "device_per_stream",
)

_WINDOW = 2**16
"""Units that `random` shuffles together, at most; but at least 4 batches, and at most
64."""


class EpochOrder:
    """An epoch of counts[s] units of each stream s, in another order in every epoch.

    `kind`: "in_turn", all units of the first stream, then all of the second, ..., the
    same in all epochs. Else that of the scheme `exact`, in which shares are exact,
    arranged anew in every window of `window` units: shuffled if "interleaved"; if
    "rotated", turned by a random number of places, so that no place of it is always a
    certain stream's.
    """

    def __init__(self, kind: str, counts: Int64Array, window: int, key: int) -> None:
        self._kind = kind
        self._total = int(counts.sum())
        self._window = min(window, self._total)
        self._windows = -(-self._total // self._window)
        self._key = derive(key, kind)
        starts = np.cumsum(counts) - counts
        self._scheme: Scheme = SuccessionScheme(starts)
        if kind != "in_turn":
            self._scheme = make_scheme("exact", counts.tolist())
        self._layout = lru_cache(maxsize=4)(self._shuffled)

    def locate(
        self, epoch: Int64Array, at: Int64Array
    ) -> tuple[Int64Array, Int64Array]:
        """Return for each unit of an epoch its stream, and its number among those of
        the stream.
        """
        if self._kind == "in_turn":
            return self._scheme.locate(at)
        number, offset = np.divmod(at, self._window)
        windows = number + epoch * self._windows
        if self._kind == "rotated":
            first = number * self._window
            length = np.minimum(self._total - first, self._window)
            words = hash_positions(self._key, windows)
            turned = (words % length.astype(np.uint64)).astype(np.int64)
            return self._scheme.locate(first + (offset + turned) % length)

        def in_window(window: int, rows: Rows) -> tuple[Int64Array, Int64Array]:
            stream, nth = self._layout(window)
            return stream[offset[rows]], nth[offset[rows]]

        return pairs_by_value(windows, in_window)

    def counts(self, epoch: int, n: int) -> Int64Array:
        """Return the units of each stream among the first `n`, 0 <= n <= sum(counts),
        of an epoch.
        """
        if self._kind == "in_turn":
            return self._scheme.counts(n)
        start = n // self._window * self._window
        before = self._scheme.counts(start)
        at = np.arange(start, n, dtype=np.int64)
        streams, _ = self.locate(np.full_like(at, epoch), at)
        return before + np.bincount(streams, minlength=len(before))

    def _shuffled(self, window: int) -> tuple[Int64Array, Int64Array]:
        first = window % self._windows * self._window
        slots = np.arange(first, min(first + self._window, self._total), dtype=np.int64)
        return rearranged(
            *self._scheme.locate(slots), shuffled(self._key, window, len(slots))
        )


class EpochScheme:
    """Epochs to which every source gives a fixed number of items.

    Args:
        arrangement: The source of each item of an epoch.
        epoch_counts: The items of each source in an epoch.
        draws: For each source which of its items they are.
    """

    def __init__(
        self,
        arrangement: EpochOrder | BatchComposition,
        epoch_counts: Int64Array,
        draws: Sequence[EpochDraws],
    ) -> None:
        self._arrangement = arrangement
        self._epoch_counts = epoch_counts
        self._draws = draws
        self._size = int(epoch_counts.sum())

    def counts(self, n: int) -> Int64Array:
        """Return the items of each source among the first `n`."""
        epochs, rest = divmod(n, self._size)
        counts = self._arrangement.counts(epochs, rest)
        return epochs * self._epoch_counts + counts

    def locate(self, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return the source of each position, and which of its items is there."""
        epoch, within = np.divmod(positions, self._size)
        source, nth = self._arrangement.locate(epoch, within)
        item = np.empty_like(positions)
        for number, rows in rows_by_value(source):
            item[rows] = self._draws[number].locate(epoch[rows], nth[rows])
        return source, item


class BatchComposition:
    """An epoch of `asked[s]` samples of each stream s, put together into global
    batches.

    A global batch is `global_batch_size` consecutive samples, and global_batch_size /
    batch_size consecutive device batches. `method`:

    - `random`: each sample's stream is random; shares hold over some tens of batches.
    - `in_turn`: one stream after the other, in batches that do not care for streams.
    - `stratified`: after k global batches every stream has given its share of k *
      global_batch_size samples within 1.68, and its samples are spread over the batch.
      One whose share is less than a sample is in some batches only, which are spread
      over the epoch, and gives as many samples to it as asked.
    - `per_stream`: a global batch is of one stream, which is random.
    - `device_per_stream`: a device batch is of one stream; the device batches of k
      global batches hold the shares within 1.68 device batches.

    Every global batch is full; except that with the first three methods, the samples
    that are left at the end of an epoch make a shorter one, unless `drop_last`. Its
    device batches differ by one sample at most; with fewer samples than devices, some
    device batches hold none. All methods but the last make the same global batches
    however these are divided.

    `totals` are the samples of each stream that do come, `size` their sum, and
    `batches` the device batches of an epoch, as many for each device. `label` is what
    errors call a stream.

    Raises `ConfigError` when `batch_size` does not divide `global_batch_size`, for an
    unknown method, when an epoch fills no global batch, and when batches are of one
    stream and a stream cannot fill one in an epoch.

    >>> import numpy as np
    >>> mixed = BatchComposition(np.array([6, 2]), "stratified", 2, 4, key=1)
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
        checked_choice(method, "batching_method", BATCHING_METHODS)
        if global_batch_size % batch_size:
            raise ConfigError(
                f"a global batch of {global_batch_size} samples cannot be divided into "
                f"device batches of {batch_size}; use a multiple"
            )
        self.asked = asked
        self.method = method
        self.label = label
        self.batch_size = batch_size
        self.global_batch_size = global_batch_size
        self.devices = global_batch_size // batch_size
        self._unit, units = (
            self._of_one_stream() if "per" in method else self._samples(drop_last)
        )
        self.totals = units * self._unit
        self.size = int(self.totals.sum())
        self.batches = -(-self.size // global_batch_size) * self.devices
        self._order = self._ordered(units, key)

    @property
    def rare(self) -> list[int]:
        """Streams of which a `stratified` global batch holds less than half a sample,
        but which have some in an epoch.
        """
        if self.method != "stratified":
            return []
        few = 2 * self.asked.astype(object) * self.global_batch_size < int(
            self.asked.sum()
        )
        return np.flatnonzero(few & (self.asked > 0)).tolist()

    def locate(
        self, epoch: Int64Array, at: Int64Array
    ) -> tuple[Int64Array, Int64Array]:
        """Return for each sample of an epoch its stream, and its number among those of
        the stream.
        """
        unit, offset = np.divmod(at, self._unit)
        stream, nth = self._order.locate(epoch, unit)
        return stream, nth * self._unit + offset

    def counts(self, epoch: int, n: int) -> Int64Array:
        """Return the samples of each stream among the first `n` of an epoch."""
        units, rest = divmod(n, self._unit)
        counts = self._order.counts(epoch, units) * self._unit
        if rest:
            stream, _ = self._order.locate(
                *np.array([[epoch], [units]], dtype=np.int64)
            )
            counts[stream] += rest
        return counts

    def bounds(self, batch: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return for each device batch of an epoch its first sample, and the one after
        its last.
        """
        start, length, device = self._divided(batch)
        first = start + device * length // self.devices
        return first, start + (device + 1) * length // self.devices

    def lent(self, batch: Int64Array) -> Int64Array:
        """Return for each device batch of an epoch the sample of its global batch to
        read where it holds none: for device d of a global batch of r samples, sample d
        mod r.
        """
        start, length, device = self._divided(batch)
        return start + device % length

    def _divided(self, batch: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Return for each device batch the first sample of its global batch and the
        number of samples there, and the device.
        """
        batches, device = np.divmod(batch, self.devices)
        start = batches * self.global_batch_size
        return start, np.minimum(self.size - start, self.global_batch_size), device

    def _samples(self, drop_last: bool) -> tuple[int, Int64Array]:
        """Return samples as units: all of them, or as many as fill global batches."""
        total = int(self.asked.sum())
        whole = self.global_batch_size
        if total < whole and (drop_last or self.method == "stratified"):
            raise ConfigError(
                f"the {total} samples of an epoch cannot fill one global batch of "
                f"{whole}; use one of at most {total}, or larger quotas"
            )
        samples = total - total % whole if drop_last else total
        if samples == total:
            return 1, self.asked
        if (
            self.method == "stratified"
        ):  # the first samples of the whole epoch, so shares hold
            return 1, make_scheme("exact", self.asked.tolist()).counts(samples)
        return 1, largest_remainder(self.asked.tolist(), samples)

    def _of_one_stream(self) -> tuple[int, Int64Array]:
        """Return batches as units, each of one stream: global batches, or as many
        device batches for each device, in the ratio of the streams' samples.
        """
        batch = (
            self.global_batch_size if self.method == "per_stream" else self.batch_size
        )
        least = int(self.asked.argmin())
        if self.asked[least] < batch:
            raise ConfigError(
                f"{self.label(least)} gives {self.asked[least]} samples to an epoch "
                f"and cannot fill one batch of {batch}, which {self.method!r} makes of "
                "one stream; leave it out, or use batches of at most "
                f"{self.asked[least]}"
            )
        most = self.asked // batch
        if self.method == "per_stream":
            return batch, most
        wanted = int(most.sum()) // self.devices * self.devices
        weights = self.asked.astype(object) * wanted
        total = int(self.asked.sum())
        units = (weights // total).astype(np.int64)
        by_remainder = np.argsort(-(weights % total), kind="stable")
        while missing := wanted - int(units.sum()):
            units[by_remainder[(units < most)[by_remainder]][:missing]] += 1
        if not units.all():
            none = int(units.argmin())
            raise ConfigError(
                f"{self.label(none)} fills {most[none]} of {most.sum()} device "
                f"batches, and of the {wanted} that can be shared out evenly among "
                f"{self.devices} devices it gets none; use a smaller batch_size, or a "
                "larger quota"
            )
        return batch, units

    def _ordered(self, units: Int64Array, key: int) -> EpochOrder:
        batch = self.global_batch_size
        if self.method == "random":
            return EpochOrder(
                "interleaved", units, min(max(_WINDOW // batch, 4), 64) * batch, key
            )
        if self.method in {"in_turn", "per_stream"}:
            kind = "in_turn" if self.method == "in_turn" else "interleaved"
            return EpochOrder(kind, units, 64, key)
        whole = self.asked if self.method == "stratified" else units
        return EpochOrder("rotated", whole, batch // self._unit, key)
