"""Base classes of sources: `Source`, and `ShardedSource` for several files.

A source is a leaf of a dataset. `Source` maps positions to samples and substitutes;
`ShardedSource` adds shards, windows and excluded samples, and reads shard by shard,
each from front to back. `Subset` describes a part of a dataset by numbers or ratios.
"""

from __future__ import annotations

import errno
import os
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, Self, TypeVar

import numpy as np

from energize.core.arrays import Int64Array, rows_by_value
from energize.core.columns import Column
from energize.core.dataset import IndexedDataset
from energize.core.failures import Failed, SamplePlace
from energize.core.os_errors import again, os_error_message, os_errors_as
from energize.core.rng import derive, hash_positions
from energize.core.trace import ReadContext
from energize.data.files import files_at
from energize.data.local import Files, Ranges
from energize.errors import (
    ColumnError,
    ConfigError,
    DatasetError,
    EmptyDatasetError,
    ShardError,
    nearest,
)

# The base class of sources.

T_co = TypeVar("T_co", covariant=True)


class Source(IndexedDataset[T_co]):
    """A leaf with `count` randomly accessible samples, in storage order.

    Position k is sample k mod `count`. Later attempts return a substitute from the same
    source, drawn by (key, position, attempt).

    Subclasses implement `count`, `read`, `identity` and `name`, and pass `seed` and
    `occurrence` to `freeze` with their own parameters.
    """

    order_name = "Source"

    seed: int
    occurrence: int

    @property
    @abstractmethod
    def count(self) -> int:
        """Number of samples."""

    @abstractmethod
    def read(self, indices: Int64Array) -> list[T_co | Failed]:
        """Return the samples at `indices`.

        Args:
            indices: int64 (n,), 0 <= index < count.

        Returns:
            One item per index; `Failed` for a sample with damaged bytes.
        """

    def read_at(
        self, indices: Int64Array, positions: Int64Array, reading: ReadContext
    ) -> list[T_co | Failed]:
        """Return the samples at `indices`, read for `positions`.

        Override it instead of `read` if reading calls a user function that may draw
        random numbers: the draws differ between positions of one sample.

        Args:
            indices: int64 (n,), 0 <= index < count.
            positions: int64 (n,), the positions that the samples are read for.
            reading: The context of the read.

        Returns:
            One item per index; `Failed` for a sample with damaged bytes.
        """
        return self.read(indices)

    @property
    @abstractmethod
    def identity(self) -> str:
        """Identifies the source independently of its mount point; orders are keyed by
        it.
        """

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of the source in reports."""

    @property
    def message_name(self) -> str:
        """Name of the source in messages."""
        return self.name

    @property
    def record(self) -> str | None:
        """Digest of the prepared files; None if there is no record of them.

        It differs between files that have the same names but other contents. Orders do
        not depend on it.
        """
        return None

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names of the columns, which are indexed without reading samples."""
        return ()

    def column(self, name: str) -> Column:
        """Return an indexed column, one value per sample in storage order.

        Args:
            name: One of `column_names`.

        Returns:
            The column; it is loaded once and then cached.

        Raises:
            ColumnError: If no column has this name.
        """
        if name not in self._column_cache and name not in self.column_names:
            listed = ", ".join(self.column_names) or "none"
            raise ColumnError(
                f"{self.name} has no column {name!r}"
                f"{nearest(name, self.column_names) or '.'} Its columns are {listed}. "
                f"{self.indexing_hint(name)}"
            )
        if name not in self._column_cache:
            self._column_cache[name] = self._column(name)
        return self._column_cache[name]

    def _column(self, name: str) -> Column:
        """Load one of `column_names`."""
        raise NotImplementedError

    @cached_property
    def _column_cache(self) -> dict[str, Column]:
        return {}

    def indexing_hint(self, name: str) -> str:
        """Return the remedy for a missing column, for messages."""
        return f"Pass it to the source: columns={{{name!r}: [...]}}"

    def settings(self) -> dict[str, Any]:
        """Return the parameters as JSON."""
        return {
            "name": self.name,
            "count": self.count,
            "seed": self.seed,
            "occurrence": self.occurrence,
        }

    @property
    def run_length(self) -> int | None:
        """Number of neighbouring samples that are cheap to read together; None if any
        are.
        """
        return None

    @property
    def remote(self) -> bool:
        """Whether `expect` speeds up later reads."""
        return False

    def expect(self, indices: Int64Array) -> int:
        """Start fetching samples that will be read soon, without waiting.

        Also fetches earlier expected samples if their locations have become available.

        Args:
            indices: int64 (n,), the samples.

        Returns:
            Number of bytes with available locations.
        """
        return 0

    def byte_ranges(self, index: int) -> Iterator[tuple[str, int, int]]:
        """Yield the byte ranges that reading sample `index` needs: path, start, stop.

        Yields nothing if the ranges are only available after reading.
        """
        yield from ()

    def where(self, index: int) -> str:
        """Return where sample `index` is, for messages."""
        return f"{self.name}, sample {index}"

    @property
    def location(self) -> str:
        """Location or identity that is unique on this machine."""
        return (
            f"{self.identity}#{self.occurrence}" if self.occurrence else self.identity
        )

    def place(self, index: int) -> SamplePlace:
        """Return where sample `index` is stored; reads no more than its key."""
        return SamplePlace(self.location, None, index, source=self.identity)

    def find(self, shard: str | None, index: int) -> int | None:
        """Return the index in this source of sample `index` of a shard; None if
        missing.
        """
        return index if shard is None and 0 <= index < self.count else None

    @cached_property
    def size(self) -> int:
        return self.count

    @property
    def read_ahead(self) -> int:
        """Number of samples worth reading at once."""
        return 64

    @cached_property
    def key(self) -> int:
        return derive("source", self.identity, self.seed, self.occurrence)

    @cached_property
    def sources(self) -> tuple[Source[Any], ...]:
        return (self,)

    def reseeded(self, seed: int) -> Self:
        return self.replace(seed=seed)

    def fetch(self, positions: Int64Array, reading: ReadContext) -> list[T_co | Failed]:
        """Return the samples or substitutes at positions; `Failed` for damaged ones."""
        size = self.size
        if reading.attempt or reading.listed is not None or not size:
            return self._fetch_listed(positions, reading)
        indices = positions % size
        try:
            return self.read_at(indices, positions, reading)
        except (OSError, MemoryError) as refused:
            return self._read_again(indices, positions, reading, refused)

    def _fetch_listed(
        self, positions: Int64Array, reading: ReadContext
    ) -> list[T_co | Failed]:
        indices = self.samples_at(positions, reading.attempt)
        left_out = (
            {} if reading.listed is None else reading.listed.left_out(self, indices)
        )
        if left_out:
            included = np.array(
                [row for row in range(len(indices)) if row not in left_out], np.int64
            )
            indices = indices[included]
            positions = positions[included]
        try:
            samples = self.read_at(indices, positions, reading)
        except (OSError, MemoryError) as refused:
            samples = self._read_again(indices, positions, reading, refused)
        if left_out:
            read = iter(samples)
            samples = [
                left_out.get(row) or next(read)
                for row in range(len(samples) + len(left_out))
            ]
        return samples

    def _read_again(
        self,
        indices: Int64Array,
        positions: Int64Array,
        reading: ReadContext,
        failed: OSError | MemoryError,
    ) -> list[T_co | Failed]:
        """Retry a read that the system refused, then raise; no sample is at fault."""
        try:
            if isinstance(failed, MemoryError):
                raise failed
            with os_errors_as(ShardError, self.location):
                read = partial(self.read_at, indices, positions, reading)
                return again(read, self.location, failed)
        except MemoryError as short:
            refused = OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
            raise ShardError(os_error_message(refused, self.location)) from short

    def samples_at(self, positions: Int64Array, attempt: int) -> Int64Array:
        """Return the sample indices of positions, or of their substitutes."""
        if self.count == 0:
            raise EmptyDatasetError(f"{self.message_name} has no samples to read")
        if attempt == 0:
            return positions % self.count
        drawn = hash_positions(derive(self.key, "substitute"), positions, salt=attempt)
        return (drawn % np.uint64(self.count)).astype(np.int64)


# Windows of samples of a source.

Window = tuple[int, int]
"""Index of the first sample and of the one after the last."""


def narrowed(name: str, whole: Window, start: int, stop: int) -> Window:
    """Return the window of samples `start` to `stop` within the window `whole`.

    Args:
        name: Name of the source, for messages.
        whole: The window to narrow.
        start: First sample, counted from the start of `whole`.
        stop: Sample after the last one, counted from the start of `whole`.

    Returns:
        The narrowed window.

    Raises:
        ConfigError: If the range exceeds `whole`.
        EmptyDatasetError: If the range is empty.

    Example:
        >>> narrowed("letters", (10, 20), 2, 5)
        (12, 15)
    """
    first, last = whole
    if not 0 <= start <= stop <= last - first:
        raise ConfigError(
            f"{name} has {last - first} samples, so the part from {start} to {stop} "
            "is missing"
        )
    if start == stop:
        raise EmptyDatasetError(
            f"{name}: the part from {start} to {stop} has no samples"
        )
    return first + start, first + stop


# Subsets by numbers and ratios.


@dataclass(frozen=True, slots=True)
class Subset:
    """A contiguous range of samples, and a fraction of that range.

    Bounds are `int(number * ratio)` in floating point, as in Energon, so that a file
    selects the same samples in both. Neighbouring ranges neither overlap nor leave
    gaps.

    Attributes:
        samples: First sample and the one after the last, which may be None for all;
            None for the whole dataset.
        ratios: Start and end of the fraction, from 0 to 1.
        drawn: In place of `samples`, how many samples are drawn at random: a number, or
            a ratio as a float. The ratios are then those of the drawn samples.

    Example:
        >>> Subset(ratios=(0.5, 1.0)).bounds(7)
        (3, 7)
        >>> Subset(samples=(2, 6)).within(Subset(ratios=(0.0, 0.5))).bounds(7)
        (2, 4)
    """

    samples: tuple[int, int | None] | None = None
    ratios: tuple[float, float] = (0.0, 1.0)
    drawn: int | float | None = None

    def __post_init__(self) -> None:
        if self.drawn is not None and self.samples is not None:
            raise ConfigError(
                "a subset has either a range of samples or a number of drawn samples"
            )

    def bounds(self, total: int) -> tuple[int, int]:
        """Return the window of this subset among `total` samples.

        Args:
            total: Number of samples of the dataset.

        Returns:
            Index of the first sample and of the one after the last.

        Raises:
            ConfigError: If the subset exceeds `total`.
        """
        start, end = self.samples or (0, None)
        if end is None:
            end = total
        if end > total or start > end:
            raise ConfigError(
                f"subset: the range [{start}, {end}] exceeds the {total} samples. Use "
                "smaller numbers, or 'end' for the last sample"
            )
        first, last = self.ratios
        return start + int((end - start) * first), start + int((end - start) * last)

    def drawn_bounds(self, total: int) -> tuple[int, int]:
        """Return the window of this subset in a random order of `total` samples.

        Args:
            total: Number of samples of the dataset.

        Raises:
            ConfigError: If the subset exceeds `total`.
        """
        drawn = self.drawn or 0
        count = drawn if isinstance(drawn, int) else int(total * drawn)
        if count > total:
            raise ConfigError(
                f"subset: random has {count} of {total} samples. Use a smaller number"
            )
        first, last = self.ratios
        return int(count * first), int(count * last)

    def within(self, outer: Subset) -> Subset:
        """Return this subset reduced to the ratios of `outer`."""
        first, last = self.ratios
        size = last - first
        ratios = tuple(first + ratio * size for ratio in outer.ratios)
        return replace(self, ratios=(ratios[0], ratios[1]))

    def __str__(self) -> str:
        parts = []
        if self.samples is not None:
            start, end = self.samples
            parts.append(f"[{start}, {'end' if end is None else end}]")
        if self.drawn is not None:
            whole = isinstance(self.drawn, int)
            drawn = f"{self.drawn}" if whole else f"{100 * self.drawn:g}%"
            parts.append(f"random {drawn}")
        if self.ratios != (0.0, 1.0) or not parts:
            parts.append(f"[{100 * self.ratios[0]:g}%, {100 * self.ratios[1]:g}%]")
        return " of ".join(reversed(parts))


def nested(inner: Subset | None, outer: Subset | None) -> Subset | None:
    """Return the subset that combines two nested ones; None means no restriction."""
    if inner is None or outer is None:
        return inner or outer
    return inner.within(outer)


class ShardedSource(Source[T_co]):
    """The samples of a list of shards in order, optionally restricted to a `window`.

    Subclasses implement `shards` (unique names), `counts` (samples per shard),
    `location` (folder or file) and `read_shard`.
    """

    order_name = "ShardedSource"

    shards: Sequence[str]
    counts: Sequence[int]
    window: Window | None = None
    excluded: tuple[int, ...] = ()
    earlier_name: str | None = None
    """Name of the folder when the run began, if it has been renamed; keys the order."""

    def called(self, name: str) -> Self:
        """Return the same source under an earlier name of its folder."""
        return self.with_parameters(earlier_name=name)

    @abstractmethod
    def read_shard(self, shard: int, numbers: list[int]) -> Sequence[T_co | Failed]:
        """Return samples of one shard; `numbers` are ascending."""

    def _key(self, shard: int, number: int) -> str | None:
        """Return the key of a sample, None if it has none."""
        return None

    def part(self, start: int, stop: int) -> Self:
        """Return the same source restricted to the samples from `start` to before
        `stop`.

        Args:
            start: First sample, counted among `stored_count`.
            stop: Sample after the last one.

        Returns:
            The restricted source.

        Raises:
            ConfigError: If the range exceeds `stored_count`.
            EmptyDatasetError: If the range is empty.
        """
        return self.replace(
            window=narrowed(self.message_name, self._bounds, start, stop)
        )

    @cached_property
    def count(self) -> int:
        return self.stored_count - len(self.excluded)

    @cached_property
    def stored_count(self) -> int:
        """Number of samples, including excluded ones."""
        start, stop = self._bounds
        return stop - start

    @property
    def run_length(self) -> int:
        return max(1, self.count // max(1, len(self.counts)))

    @property
    def remote(self) -> bool:
        return self._files.remote

    def where(self, index: int) -> str:
        shards, numbers = self.locate(np.array([index]))
        return self.location_in_shard(int(shards[0]), int(numbers[0]))

    def location_in_shard(self, shard: int, number: int) -> str:
        """Return where a sample is, for messages: the file and the sample.

        Args:
            shard: Index into `shards`.
            number: Index of the sample in that shard.
        """
        return f"{self.location}/{self.shards[shard]}, sample {number}"

    def place(self, index: int) -> SamplePlace:
        located = self.locate(np.array([index], dtype=np.int64))
        shard, number = (int(values[0]) for values in located)
        name = self.shards[shard]
        key = self._key(shard, number)
        return SamplePlace(self.location, name, number, key, self.identity)

    def find(self, shard: str | None, index: int) -> int | None:
        if shard not in self.shards:
            return None
        at = self.shards.index(shard)
        if not 0 <= index < self.counts[at]:
            return None
        number = int(self.indices(np.array([at]), np.array([index]))[0])
        return None if number < 0 else number

    def byte_ranges(self, index: int) -> Iterator[tuple[str, int, int]]:
        shards, numbers = self.locate(np.array([index], dtype=np.int64))
        shard = int(shards[0])
        ranges = self.sample_ranges(shard, [int(numbers[0])])
        for path, starts, stops in ranges or self.index_ranges(shard):
            size = self._files.size(path)
            for start, stop in zip(starts or [0], stops or [0], strict=True):
                first = start + size * (start < 0)
                last = stop + size * (stop <= 0)
                yield path, max(0, first), min(size, last)

    def locate(self, indices: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return the shard and the number in the shard of each sample; reads nothing.

        Args:
            indices: int64 (n,), the samples.

        Returns:
            Indices into `shards`, and numbers within these shards, int64 (n,) each.
        """
        return self._located(self._stored(indices))

    def indices(self, shards: Int64Array, numbers: Int64Array) -> Int64Array:
        """Return the samples with these numbers in these shards; the inverse of
        `locate`.

        Args:
            shards: int64 (n,), indices into `shards`.
            numbers: int64 (n,), numbers within these shards.

        Returns:
            int64 (n,), -1 for samples outside of the window or excluded ones.
        """
        start, stop = self._bounds
        stored = self._firsts[shards] + numbers
        return np.where((stored >= start) & (stored < stop), stored - start, -1)

    def read(self, indices: Int64Array) -> list[T_co | Failed]:
        """Implement `Source.read` shard by shard, each from front to back."""
        stored = self._stored(indices)
        order = np.argsort(stored, kind="stable")
        shards, numbers = self._located(stored[order])
        cuts = [0, *(np.flatnonzero(np.diff(shards)) + 1).tolist(), len(order)]
        samples: list[Any] = [None] * len(order)
        for first, last in pairwise(cuts):
            if first < last:
                shard_samples = self.read_shard(
                    int(shards[first]), numbers[first:last].tolist()
                )
                for row, sample in zip(
                    order[first:last].tolist(), shard_samples, strict=True
                ):
                    samples[row] = sample
        return samples

    def expect(self, indices: Int64Array) -> int:
        requested, unknown = self._expected
        if not (len(indices) or unknown):
            return 0
        coming = np.concatenate([*unknown, indices])
        size = 0
        unknown[:] = []
        shards, numbers = self._located(self._stored(coming))
        for shard, rows in rows_by_value(shards):
            with suppress(OSError, DatasetError):  # raised when they are read
                if shard in requested:
                    ranges = self.sample_ranges(
                        shard, np.unique(numbers[rows]).tolist()
                    )
                    size += sum(sum(stops) - sum(starts) for _, starts, stops in ranges)
                else:
                    ranges = self.index_ranges(shard)
                    requested.add(shard)
                    unknown.append(coming[rows])
                for file_ranges in ranges:
                    self._files.plan(*file_ranges)
        return size

    def index_ranges(self, shard: int) -> Sequence[Ranges]:
        """Return the ranges to read before the locations of samples are available.

        In the format of `Files.plan`; empty if locations are only available after
        reading.
        """
        return ()

    def sample_ranges(self, shard: int, numbers: Sequence[int]) -> Sequence[Ranges]:
        """Return the ranges of samples of one shard; `numbers` are ascending.

        Empty if `index_ranges` already cover the samples.
        """
        return ()

    @cached_property
    def _files(self) -> Files:
        return files_at(self.location)

    @cached_property
    def _expected(self) -> tuple[set[int], list[Int64Array]]:
        """Requested shards, and requested samples without a location so far."""
        return set(), []

    def _stored(self, indices: Int64Array) -> Int64Array:
        """Map indices to numbers among the samples of all shards."""
        return indices + self._bounds[0] if self._bounds[0] else indices

    def _located(self, stored: Int64Array) -> tuple[Int64Array, Int64Array]:
        shards = np.searchsorted(self._firsts, stored, side="right") - 1
        return shards, stored - self._firsts[shards]

    @cached_property
    def _firsts(self) -> Int64Array:
        """Number of samples before each shard."""
        counts = np.array(self.counts, dtype=np.int64)
        return np.cumsum(counts) - counts

    @cached_property
    def _bounds(self) -> Window:
        return self.window or (0, sum(self.counts))

    def settings(self) -> dict[str, Any]:
        subset = {} if self.window is None else {"subset": list(self.window)}
        return super().settings() | {"identity": self.identity} | subset
