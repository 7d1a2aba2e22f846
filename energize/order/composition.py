"""Orders of epochs with fixed counts of several streams, in global batches."""

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
"""Maximum number of units that `random` shuffles together (4 to 64 batches)."""


class EpochOrder:
    """The order of an epoch with `counts[s]` units of each stream s.

    Args:
        arrangement: "in_turn": all units of the first stream, then all of the second,
            the same in every epoch. "interleaved" and "rotated": the order of the
            scheme `exact`, rearranged in every window; shuffled if "interleaved",
            rotated by a random offset if "rotated".
        counts: Units of each stream, int64, shape (num_streams,).
        window: Units of a window.
        key: Key of random choices.
    """

    def __init__(
        self, arrangement: str, counts: Int64Array, window: int, key: int
    ) -> None:
        self._kind = arrangement
        self._total = int(counts.sum())
        self._window = min(window, self._total)
        self._windows = -(-self._total // self._window)
        self._key = derive(key, arrangement)
        starts = np.cumsum(counts) - counts
        self._scheme: Scheme = SuccessionScheme(starts)
        if arrangement != "in_turn":
            self._scheme = make_scheme("exact", counts.tolist())
        self._layout = lru_cache(maxsize=4)(self._shuffled)

    def locate(
        self, epoch: Int64Array, at: Int64Array
    ) -> tuple[Int64Array, Int64Array]:
        """Return the stream of each unit, and its number within the stream.

        Args:
            epoch: The epoch of each unit, int64, shape (n,).
            at: The position of each unit in its epoch, int64, shape (n,).
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
        """Return the units of each stream among the first `n` of an epoch.

        Args:
            epoch: The epoch.
            n: Number of units, from 0 to the size of an epoch.
        """
        if self._kind == "in_turn":
            return self._scheme.counts(n)
        start = n // self._window * self._window
        earlier = self._scheme.counts(start)
        at = np.arange(start, n, dtype=np.int64)
        streams, _ = self.locate(np.full_like(at, epoch), at)
        return earlier + np.bincount(streams, minlength=len(earlier))

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
    """Compose the samples of an epoch into global batches and device batches.

    A global batch is `global_batch_size` consecutive samples, in
    global_batch_size / batch_size consecutive device batches. Methods:

    - `random`: each sample is of a random stream; shares hold over some tens of
      batches.
    - `in_turn`: one stream after the other; a batch can contain several.
    - `stratified`: after k global batches, every stream is within 1.68 samples of its
      share, and its samples are distributed over the batch. A stream with a share of
      less than a sample is in some batches only, distributed over the epoch.
    - `per_stream`: a global batch is of one random stream.
    - `device_per_stream`: a device batch is of one stream; the device batches of k
      global batches hold the shares within 1.68 device batches.

    Global batches are full. With the first three methods, the remaining samples of an
    epoch form a shorter one, unless `drop_last`; the sizes of its device batches differ
    by at most one, and some can be empty. Global batches do not depend on `batch_size`,
    except for `device_per_stream`.

    Attributes:
        totals: Samples of each stream in an epoch, int64, shape (num_streams,).
        size: Samples of an epoch.
        batches: Device batches of an epoch; the same number for every device.

    Args:
        requested: Requested samples of each stream, int64, shape (num_streams,).
        method: One of `BATCHING_METHODS`.
        batch_size: Samples of a device batch.
        global_batch_size: Samples of a global batch.
        key: Key of random choices.
        drop_last: Whether a short last global batch is dropped.
        label: Returns the name of a stream, for messages.

    Raises:
        ConfigError: For an unknown method, sizes that do not divide, epochs without a
            global batch, and streams that cannot fill a batch of their own.

    Example:
        >>> import numpy as np
        >>> mixed = BatchComposition(np.array([6, 2]), "stratified", 2, 4, key=1)
        >>> stream, _ = mixed.locate(np.zeros(4, dtype=np.int64), np.arange(4))
        >>> sorted(stream.tolist())
        [0, 0, 0, 1]
    """

    def __init__(
        self,
        requested: Int64Array,
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
                f"a global batch of {global_batch_size} samples is not a multiple of "
                f"batch_size={batch_size}. Use a multiple"
            )
        self.requested = requested
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
        """Streams with less than half a sample in a `stratified` global batch."""
        if self.method != "stratified":
            return []
        few = 2 * self.requested.astype(object) * self.global_batch_size < int(
            self.requested.sum()
        )
        return np.flatnonzero(few & (self.requested > 0)).tolist()

    def locate(
        self, epoch: Int64Array, at: Int64Array
    ) -> tuple[Int64Array, Int64Array]:
        """Return the stream of each sample, and its number within the stream.

        Args:
            epoch: The epoch of each sample, int64, shape (n,).
            at: The position of each sample in its epoch, int64, shape (n,).
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
        """Return the range of samples of each device batch of an epoch.

        Args:
            batch: Numbers of device batches, int64, shape (n,).

        Returns:
            First and end (exclusive) sample of each batch, int64, shape (n,) each.
        """
        start, length, device = self._divided(batch)
        first = start + device * length // self.devices
        return first, start + (device + 1) * length // self.devices

    def padding_samples(self, batch: Int64Array) -> Int64Array:
        """Return the sample that pads each device batch of an epoch if it is empty.

        For device d of a global batch of r samples, this is sample d mod r.

        Args:
            batch: Numbers of device batches, int64, shape (n,).
        """
        start, length, device = self._divided(batch)
        return start + device % length

    def _divided(self, batch: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Return start and length of the global batch of each batch, and its device."""
        batches, device = np.divmod(batch, self.devices)
        start = batches * self.global_batch_size
        return start, np.minimum(self.size - start, self.global_batch_size), device

    def _samples(self, drop_last: bool) -> tuple[int, Int64Array]:
        """Return samples as units: all, or as many as fill global batches."""
        total = int(self.requested.sum())
        whole = self.global_batch_size
        if total < whole and (drop_last or self.method == "stratified"):
            raise ConfigError(
                f"the {total} samples of an epoch cannot fill one global batch of "
                f"{whole}. Use a global batch of at most {total}, or larger quotas"
            )
        samples = total - total % whole if drop_last else total
        if samples == total:
            return 1, self.requested
        if (
            self.method == "stratified"
        ):  # the first samples of the whole epoch, so shares hold
            return 1, make_scheme("exact", self.requested.tolist()).counts(samples)
        return 1, largest_remainder(self.requested.tolist(), samples)

    def _of_one_stream(self) -> tuple[int, Int64Array]:
        """Return batches of one stream as units.

        Units are global batches, or device batches in the ratio of the streams'
        samples, as many for every device.
        """
        batch = (
            self.global_batch_size if self.method == "per_stream" else self.batch_size
        )
        least = int(self.requested.argmin())
        if self.requested[least] < batch:
            raise ConfigError(
                f"{self.label(least)} gives {self.requested[least]} samples to an "
                f"epoch and cannot fill one batch of {batch}, which {self.method!r} "
                "fills from one stream. Remove it, or use batches of at most "
                f"{self.requested[least]}"
            )
        most = self.requested // batch
        if self.method == "per_stream":
            return batch, most
        wanted = int(most.sum()) // self.devices * self.devices
        weights = self.requested.astype(object) * wanted
        total = int(self.requested.sum())
        units = (weights // total).astype(np.int64)
        by_remainder = np.argsort(-(weights % total), kind="stable")
        while missing := wanted - int(units.sum()):
            units[by_remainder[(units < most)[by_remainder]][:missing]] += 1
        if not units.all():
            none = int(units.argmin())
            raise ConfigError(
                f"{self.label(none)} fills {most[none]} of {most.sum()} device "
                f"batches, but gets none of the {wanted} that {self.devices} devices "
                "share evenly. Use a smaller batch_size, or a larger quota"
            )
        return batch, units

    def _ordered(self, units: Int64Array, key: int) -> EpochOrder:
        batch = self.global_batch_size
        if self.method == "random":
            return EpochOrder(
                "interleaved", units, min(max(_WINDOW // batch, 4), 64) * batch, key
            )
        if self.method in {"in_turn", "per_stream"}:
            arrangement = "in_turn" if self.method == "in_turn" else "interleaved"
            return EpochOrder(arrangement, units, 64, key)
        whole = self.requested if self.method == "stratified" else units
        return EpochOrder("rotated", whole, batch // self._unit, key)
