"""Samples that can only be read from the front, as often as wanted."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import islice
from typing import Any, Self, TypeVar

from energize.cursor import Origin, State, counter_field, state_field
from energize.dataset import Dataset
from energize.errors import ConfigError, DatasetError, EnergizeError
from energize.late import torch
from energize.optional import is_instance_of
from energize.reading import Reading
from energize.rng import derive
from energize.streaming import EndlessStream, Stream, check_count
from energize.topology import Lane

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class IterableSource(Dataset[T_co]):
    """A stream over anything that can be iterated over again and again.

    `samples` is a re-iterable object (a list, a Hugging Face `IterableDataset`, an object with
    `__iter__`), or a function without arguments that makes one pass, a generator function say. A
    pass is an epoch. A Hugging Face dataset is copied, never changed; pass p is its epoch p, so
    that one that shuffles gives another order in each.

    Resuming is exact: a Hugging Face dataset goes on from its own state; anything else, and one
    that holds samples in a shuffle buffer, is read from the front of the pass up to the place. In
    lane i of n come the samples i, i + n, ... of a pass; the others are read and left out.

    Raises `ConfigError` for what cannot be iterated over, and for an iterator, which yields its
    samples only once.

    >>> def letters():
    ...     yield from "abc"
    >>> source = IterableSource(letters)
    >>> list(source), list(source)
    (['a', 'b', 'c'], ['a', 'b', 'c'])
    """

    samples: Iterable[T_co] | Callable[[], Iterable[T_co]]
    name: str
    seed: int
    occurrence: int

    def __init__(
        self,
        samples: Iterable[T_co] | Callable[[], Iterable[T_co]],
        *,
        name: str = "",
        seed: int = 0,
        occurrence: int = 0,
    ) -> None:
        name = name or getattr(samples, "__name__", "") or type(samples).__name__
        _check_again_and_again(samples, name)
        self._freeze(samples=samples, name=name, seed=seed, occurrence=occurrence)

    @cached_property
    def indexed(self) -> bool:
        return False

    @cached_property
    def key(self) -> int:
        return derive("iterable", self.name, self.seed, self.occurrence)

    def reseeded(self, seed: int) -> Self:
        return self._replace(seed=seed)

    def distinguished(self, occurrence: int) -> Self:
        return self._replace(occurrence=derive(self.occurrence, occurrence) % 2**62)

    def settings(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "seed": self.seed,
            "occurrence": self.occurrence,
        }

    @property
    def divisible(self) -> bool:
        return False

    @cached_property
    def sources(self) -> tuple[Any, ...]:
        """Itself, though it has no random access."""
        return (self,)

    def where(self, index: int, attempt: int = 0) -> str:
        """Where a sample is, for messages."""
        return f"{self.name}, sample {index}"

    def _stream(
        self, lane: Lane, state: State | None, reading: Reading, endless: bool
    ) -> Stream[T_co]:
        def open_pass(at: State | None) -> Stream[T_co]:
            return _IterableStream(self, at)

        return EndlessStream(open_pass, state, lane, self.name) if endless else open_pass(state)

    def _compared(self) -> tuple[Any, ...]:
        """Samples are compared as objects: reading them to compare may cost a whole pass."""
        return id(self.samples), self.name, self.seed, self.occurrence

    def begun(self, number: int) -> Iterable[T_co]:
        """Pass `number`, not read from yet; of a Hugging Face dataset a copy that keeps a state."""
        if not is_instance_of(self.samples, "datasets", "IterableDataset"):
            return self.samples if isinstance(self.samples, Iterable) else self.samples()
        dataset: Any = copy.deepcopy(self.samples)
        dataset.set_epoch(dataset.epoch + number)
        return dataset  # type: ignore[no-any-return]


class _IterableStream(Stream[T]):
    """Counts the samples read in a pass."""

    def __init__(self, source: IterableSource[T], state: State | None) -> None:
        self._source = source
        self._pass = counter_field(state, "pass")
        self._read = counter_field(state, "read")
        self._inner = "" if state is None else state_field(state, "inner", str)
        self._stateful: Any = None
        self._iterator: Iterator[T] | None = None

    def at(self, position: int, attempt: int = 0) -> T:
        if self._iterator is None:
            self._iterator = self._begin()
        try:
            item = next(self._iterator)
        except StopIteration:
            self._pass, self._read = self._pass + 1, 0
            self._iterator, self._stateful, self._inner = None, None, ""
            raise
        self.origin = (Origin(0, self._read, self._pass),)
        self._read += 1
        return item

    def _begin(self) -> Iterator[T]:
        samples = self._source.begun(self._pass)
        if not is_instance_of(samples, "datasets", "IterableDataset"):
            return islice(iter(samples), self._read, None)
        if _has_buffer(samples):
            return islice(_undivided(samples, self._source.name), self._read, None)
        self._stateful = samples
        if self._inner:
            self._stateful.load_state_dict(json.loads(self._inner))
        return _undivided(samples, self._source.name)

    def check_after(self, last: int | None, *, exact: bool) -> None:
        check_count(self._read, last, exact=exact, what=f"samples of {self._source.name} were read")

    def state(self) -> State:
        if self._stateful is not None:
            self._inner = json.dumps(self._stateful.state_dict())
        return {"pass": self._pass, "read": self._read, "inner": self._inner}

    def close(self) -> None:
        self.state()
        self._iterator = self._stateful = None


def _undivided(dataset: Any, name: str) -> Iterator[Any]:
    """All samples of a Hugging Face dataset, also in a torch worker, where it would divide itself.

    Who divides here is the mix that it is part of. Raises `DatasetError` for damaged files.
    """
    try:
        yield from _all_of(dataset)
    except EnergizeError:
        raise
    except (OSError, ValueError) as error:  # what its readers of files raise
        raise DatasetError(
            f"{name}: the Hugging Face dataset cannot be read on: {type(error).__name__}: {error}; "
            "the library's own log may name the file"
        ) from error


def _all_of(dataset: Any) -> Iterator[Any]:
    if torch.utils.data.get_worker_info() is None:
        yield from dataset
        return
    for batch in dataset.iter(batch_size=1):
        plain = isinstance(batch, Mapping)
        yield {name: column[0] for name, column in batch.items()} if plain else batch


def _has_buffer(dataset: Any) -> bool:
    """Whether a Hugging Face dataset holds samples in a shuffle buffer, which its state leaves out.

    Its own state would then lose samples, so that the pass is read again up to the place instead.
    """
    waiting = [getattr(dataset, "_ex_iterable", None)]
    while waiting:
        node = waiting.pop()
        if type(node).__name__ == "BufferShuffledExamplesIterable":
            return True
        waiting.extend(getattr(node, "ex_iterables", None) or [])
        waiting.extend(each for each in [getattr(node, "ex_iterable", None)] if each is not None)
    return False


def _check_again_and_again(samples: object, name: str) -> None:
    if isinstance(samples, Iterator):
        raise ConfigError(
            f"{name} is an iterator ({type(samples).__name__}): it yields its samples only once, "
            "so it can be neither restarted nor resumed. Give the function that makes it, or a list"
        )
    if not callable(samples) and not isinstance(samples, Iterable):
        raise ConfigError(
            f"{name}: IterableSource reads from an object that can be iterated over, or from a "
            f"function that makes one; got {str(samples)[:80]!r}"
        )
