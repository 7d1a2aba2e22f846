"""Samples that are in memory, or in an object with `__len__` and `__getitem__`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, TypeVar

from energize.arrays import Int64Array
from energize.errors import ConfigError, DataError, SkipSample
from energize.reading import Failed
from energize.sources.base import Source

T_co = TypeVar("T_co", covariant=True)


class SupportsGetItem(Protocol[T_co]):
    """What has a length and gives a sample for each index below it."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> T_co: ...


class SequenceSource(Source[T_co]):
    """The samples of any object with `__len__` and `__getitem__`, a torch map-style dataset say.

    `name` tells sources of one kind apart in reports and in their orders: two sources of different
    names are visited in different orders. The object is read in the processes that deliver, so it
    is shared with or pickled to workers; `__getitem__` may raise `SkipSample` or `DataError`.

    Raises `ConfigError` when the object has no `__len__` or no `__getitem__`.

    >>> SequenceSource(["a", "b", "c"], name="letters")[1]
    'b'
    """

    samples: SupportsGetItem[T_co]

    def __init__(
        self, samples: SupportsGetItem[T_co], *, name: str = "", seed: int = 0, occurrence: int = 0
    ) -> None:
        for method in ("__len__", "__getitem__"):
            if not hasattr(samples, method):
                raise ConfigError(
                    f"SequenceSource needs an object with __len__ and __getitem__; "
                    f"{type(samples).__name__} has no {method}"
                )
        self._freeze(
            samples=samples,
            given_name=name or type(samples).__name__,
            seed=seed,
            occurrence=occurrence,
        )

    given_name: str

    @property
    def name(self) -> str:
        return self.given_name

    @property
    def count(self) -> int:
        return len(self.samples)

    @property
    def identity(self) -> str:
        return f"{self.given_name}:{self.count}"

    def read(self, indices: Int64Array) -> list[T_co | Failed]:
        return [self._read(index) for index in indices.tolist()]

    def _read(self, index: int) -> T_co | Failed:
        try:
            return self.samples[index]
        except (SkipSample, DataError) as reason:
            return Failed(reason, f"{self.name}, sample {index}")

    def _compared(self) -> tuple[Any, ...]:
        """Samples are compared as objects: comparing contents may cost all they cost to read."""
        return id(self.samples), self.given_name, self.seed, self.occurrence


class ListSource(SequenceSource[T_co]):
    """Samples given outright, copied into a tuple.

    >>> list(ListSource([1, 2, 3]))
    [1, 2, 3]
    """

    def __init__(
        self, samples: Iterable[T_co], *, name: str = "list", seed: int = 0, occurrence: int = 0
    ) -> None:
        super().__init__(tuple(samples), name=name, seed=seed, occurrence=occurrence)
