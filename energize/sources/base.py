"""What every source of samples is."""

from __future__ import annotations

import errno
import os
from abc import abstractmethod
from functools import cached_property
from typing import Any, Self, TypeVar

import numpy as np

from energize.arrays import Int64Array
from energize.columns import Column
from energize.dataset import IndexedDataset
from energize.errors import ColumnError, EmptyDatasetError, ShardError, nearest
from energize.reading import Failed, Reading, SamplePlace
from energize.refs import Refs
from energize.rng import derive, hash_positions
from energize.storage.faults import os_errors_as, patiently, told

T_co = TypeVar("T_co", covariant=True)


class Source(IndexedDataset[T_co]):
    """A leaf: `count` samples with random access, in the order in which they are stored.

    Position k is sample k mod count. A later attempt is answered with another sample of the same
    source, drawn by (key, position, attempt).

    Subclasses give `count`, `read`, `identity` and `name`, and pass `seed` and `occurrence` to
    `_freeze` with their parameters.
    """

    seed: int
    occurrence: int

    @property
    @abstractmethod
    def count(self) -> int:
        """How many samples there are."""

    @abstractmethod
    def read(self, indices: Int64Array) -> list[T_co | Failed]:
        """The samples at `indices`, 0 <= index < count; a sample with bad bytes as `Failed`."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """What tells this source from others, wherever it is mounted; orders are keyed by it."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What people call it in reports."""

    @property
    def _told_name(self) -> str:
        """What messages call it."""
        return self.name

    @property
    def record(self) -> str | None:
        """A digest of what was seen of the files when they were prepared, as far as it tells them
        from others of the same names; None where that is not known. No order depends on it.
        """
        return None

    @property
    def column_names(self) -> tuple[str, ...]:
        """What is known of every sample without reading it, by name."""
        return ()

    def column(self, name: str) -> Column:
        """One value for each sample, in the order of their numbers, as they are indexed.

        Raises `ColumnError` for a name that is not indexed.
        """
        known = ", ".join(self.column_names) or "none"
        raise ColumnError(
            f"{self.name} has no column {name!r}{nearest(name, self.column_names)}; its columns: "
            f"{known}. {self._how_to_index(name)}"
        )

    def known_column(self, name: str) -> Column:
        """The same, looked up once: some sources put theirs together of several."""
        if name not in self._known_columns:
            self._known_columns[name] = self.column(name)
        return self._known_columns[name]

    @cached_property
    def _known_columns(self) -> dict[str, Column]:
        return {}

    def _how_to_index(self, name: str) -> str:
        """What adds a column, for messages."""
        return f"Give it where the source is made: columns={{{name!r}: [...]}}"

    def settings(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "count": self.count,
            "seed": self.seed,
            "occurrence": self.occurrence,
        }

    @property
    def run_length(self) -> int | None:
        """How many neighbouring samples are cheap to read together; None when it makes no odds."""
        return None

    def where(self, position: int, attempt: int = 0) -> str:
        """Where sample `position` is, for messages."""
        index = int(self._samples(np.array([position], dtype=np.int64), attempt)[0])
        return f"{self.name}, sample {index}"

    @property
    def location(self) -> str:
        """What tells this source from all others on this machine: a path, or the identity and which
        occurrence of it this is.
        """
        return f"{self.identity}#{self.occurrence}" if self.occurrence else self.identity

    def place(self, index: int) -> SamplePlace:
        """Where sample `index` is stored; reads no more than its key."""
        return SamplePlace(self.location, None, index, source=self.identity)

    def find(self, shard: str | None, index: int) -> int | None:
        """The number here of sample `index` of a shard; None where there is no such sample."""
        return index if shard is None and 0 <= index < self.count else None

    @cached_property
    def size(self) -> int:
        return self.count

    @property
    def read_ahead(self) -> int:
        return 64

    @cached_property
    def key(self) -> int:
        return derive("source", self.identity, self.seed, self.occurrence)

    @cached_property
    def sources(self) -> tuple[Source[Any], ...]:
        return (self,)

    def reseeded(self, seed: int) -> Self:
        return self._replace(seed=seed)

    def distinguished(self, occurrence: int) -> Self:
        return self._replace(occurrence=derive(self.occurrence, occurrence) % 2**62)

    def fetch(self, positions: Int64Array, reading: Reading) -> list[T_co | Failed]:
        indices = self._samples(positions, reading.attempt)
        if reading.listed is None:
            return self._patiently(indices)
        left_out = reading.listed.left_out(self, indices)
        if not left_out:
            return self._patiently(indices)
        kept = np.array([i for i in range(len(indices)) if i not in left_out], dtype=np.int64)
        read = iter(self._patiently(indices[kept]) if len(kept) else [])
        return [left_out.get(i) or next(read) for i in range(len(indices))]

    def _patiently(self, indices: Int64Array) -> list[T_co | Failed]:
        """What the system refuses is no fault of a sample: tried again, then an error."""
        try:
            return self.read(indices)
        except OSError as error:
            return self._read_again(indices, error)
        except MemoryError as error:
            refused = OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
            raise ShardError(told(refused, self.location)) from error

    def _read_again(self, indices: Int64Array, error: OSError) -> list[T_co | Failed]:
        place = error.filename or self.location
        with os_errors_as(ShardError, self.location):
            return patiently(lambda: self.read(indices), place, error)

    def refs(self, positions: Int64Array, attempt: int = 0) -> Refs:
        return Refs.of_source(self._samples(positions, attempt), positions // self.count)

    def consumed(self, n: int) -> Int64Array:
        return np.array([n], dtype=np.int64)

    @property
    def one_each(self) -> bool:
        return True

    def _samples(self, positions: Int64Array, attempt: int) -> Int64Array:
        if self.count == 0:
            raise EmptyDatasetError(f"{self._told_name} has no samples to read")
        if attempt == 0:
            return positions % self.count
        drawn = hash_positions(derive(self.key, "substitute"), positions, salt=attempt)
        return (drawn % np.uint64(self.count)).astype(np.int64)
