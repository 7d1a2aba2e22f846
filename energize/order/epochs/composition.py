"""What global batches, and the device batches they consist of, are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from energize.arrays import Int64Array
from energize.errors import ConfigError, nearest
from energize.order.epochs.arranging import EpochOrder, Interleaved, InTurn, Rotated
from energize.order.making import make_scheme
from energize.order.weights import largest_remainder

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


def _samples(mixed: Composition, drop_last: bool) -> tuple[int, Int64Array]:
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
            "random": _samples,
            "in_turn": _samples,
            "stratified": _samples,
            "per_stream": _global_batches,
            "device_per_stream": _device_batches,
        }
    )
)
"""How each method divides an epoch: samples per unit, and units of each stream."""
