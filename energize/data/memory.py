"""Samples that are in memory, or in an object with `__len__` and `__getitem__`."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import islice
from typing import Any, Protocol, Self, TypeVar, cast

from energize.core.arrays import Int64Array
from energize.core.columns import Column
from energize.core.dataset import Dataset
from energize.core.lanes import SINGLE_LANE
from energize.core.lazy import is_instance_of, torch
from energize.core.rng import derive
from energize.core.samples import fields_of, is_record
from energize.core.stream import Opening, State, Stream, counter_field, state_field
from energize.core.trace import Failed, Origin, stop_raised
from energize.data.rows import FieldSource, Row
from energize.errors import (
    ColumnError,
    ConfigError,
    DataError,
    DatasetError,
    EnergizeError,
    SkipSample,
)

T_co = TypeVar("T_co", covariant=True)


class SupportsGetItem(Protocol[T_co]):
    """What has a length and gives a sample for each index below it."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> T_co: ...


class SequenceSource(FieldSource[T_co]):
    """The samples of any object with `__len__` and `__getitem__`, a torch map-style dataset say.

    `columns` are what is known of each sample without reading it, by name: one value each, numbers
    or words. Of samples in a list or a tuple that have fields (dataclasses, named tuples or dicts),
    each field that holds such values is a column, too.

    `name` tells sources of one kind apart in reports and in their orders: two sources of different
    names are visited in different orders. The object is read in the processes that deliver, so it
    is shared with or pickled to workers; `__getitem__` may raise `SkipSample` or `DataError`.

    Raise `ConfigError` if the object has no `__len__` or no `__getitem__`.

    >>> SequenceSource(["a", "b", "c"], name="letters")[1]
    'b'
    """

    samples: SupportsGetItem[T_co]
    given_name: str
    columns: Mapping[str, Column]

    def __init__(
        self,
        samples: SupportsGetItem[T_co],
        *,
        name: str = "",
        columns: Mapping[str, Iterable[Any]] | None = None,
        seed: int = 0,
        occurrence: int = 0,
    ) -> None:
        for method in ("__len__", "__getitem__"):
            if not hasattr(samples, method):
                raise ConfigError(
                    f"SequenceSource needs an object with __len__ and __getitem__; "
                    f"{type(samples).__name__} has no {method}"
                )
        called = name or type(samples).__name__
        known: dict[str, Column] = {}
        for key, each in (columns or {}).items():
            known[key] = each if isinstance(each, Column) else Column.of(each, key)
            if (values := len(known[key])) != (count := len(samples)):
                raise ColumnError(
                    f"{called}: column {key!r} has {values} values for {count} samples"
                )
        self._freeze(
            samples=samples, given_name=called, columns=known, seed=seed, occurrence=occurrence
        )

    @property
    def name(self) -> str:
        return self.given_name

    @property
    def count(self) -> int:
        return len(self.samples)

    @property
    def identity(self) -> str:
        return f"{self.given_name}:{self.count}"

    @property
    def column_names(self) -> tuple[str, ...]:
        listed = isinstance(self.samples, list | tuple)  # so that looking at all costs little
        first = self.samples[0] if listed and self.count else None
        fields = fields_of(first) if is_record(first) else {}
        return tuple(dict.fromkeys([*self.columns, *fields]))

    def _values(self, name: str) -> Iterable[Any]:
        return (fields_of(sample).get(name) for sample in cast("Iterable[Any]", self.samples))

    def _column(self, name: str) -> Column:
        return self.columns[name] if name in self.columns else super()._column(name)

    def _how_to_index(self, name: str) -> str:
        return f"Give it where the source is made: columns={{{name!r}: [...]}}"

    def read(self, indices: Int64Array) -> list[T_co | Failed]:
        samples: Any = self.samples
        read: list[T_co | Failed] = []
        for index in indices.tolist():
            try:
                read.append(samples[index])
            except (SkipSample, DataError) as reason:
                read.append(Failed(reason, f"{self.name}, sample {index}"))
        return read

    def _compared(self) -> tuple[Any, ...]:
        """Samples are compared as objects: comparing contents may cost all they cost to read."""
        return id(self.samples), self.given_name, self.seed, self.occurrence


class ListSource(SequenceSource[T_co]):
    """Samples given outright, copied into a tuple.

    >>> list(ListSource([1, 2, 3]))
    [1, 2, 3]
    """

    def __init__(
        self,
        samples: Iterable[T_co],
        *,
        name: str = "list",
        columns: Mapping[str, Iterable[Any]] | None = None,
        seed: int = 0,
        occurrence: int = 0,
    ) -> None:
        super().__init__(
            tuple(samples), name=name, columns=columns, seed=seed, occurrence=occurrence
        )


class HuggingFaceSource(SequenceSource[Row]):
    """The rows of a `datasets.Dataset` as dicts, in its format, read when they are asked for.

    Orders depend on `name` and on the number of rows, not on the fingerprint of the dataset, which
    is not the same on every machine. A streaming dataset is read by `IterableSource`.

    Raise `ConfigError` for anything else than a `datasets.Dataset`.

    >>> import datasets
    >>> rows = datasets.Dataset.from_dict({"text": ["one", "two"]})
    >>> HuggingFaceSource(rows, name="numbers")[1]
    {'text': 'two'}
    """

    def __init__(
        self, rows: Any, *, name: str = "hugging face", seed: int = 0, occurrence: int = 0
    ) -> None:
        if not is_instance_of(rows, "datasets", "Dataset"):
            remedy = "read a streaming dataset by IterableSource"
            if is_instance_of(rows, "datasets", "DatasetDict"):
                remedy = f"choose one of its splits: {', '.join(map(str, rows))}"
            kind = type(rows).__name__
            raise ConfigError(f"{name!r} is a {kind}, and no datasets.Dataset; {remedy}")
        super().__init__(rows, name=name, seed=seed, occurrence=occurrence)

    @property
    def rows(self) -> Any:
        """The dataset."""
        return self.samples

    @property
    def column_names(self) -> tuple[str, ...]:
        """Those of the dataset."""
        return tuple(self.rows.column_names)

    def _values(self, name: str) -> Iterable[Any]:
        """The column alone is read, whatever the format of the dataset."""
        values: Iterable[Any] = self.rows.with_format(None).select_columns([name])[:][name]
        return values

    def read(self, indices: Int64Array) -> list[Row | Failed]:
        found: list[Row | Failed] = self.rows.__getitems__(indices.tolist())
        return found

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"columns": list(self.column_names)}


# Samples that can only be read from the front, as often as wanted.

T = TypeVar("T")


class IterableSource(Dataset[T_co]):
    """A stream over anything that can be iterated over again and again.

    `samples` is a re-iterable object (a list, a Hugging Face `IterableDataset`, an object with
    `__iter__`), or a function without arguments that makes one pass, a generator function say. A
    pass is an epoch. A Hugging Face dataset is copied, never changed; pass p is its epoch p, so
    that one that shuffles gives another order in each.

    Resuming is exact: a Hugging Face dataset goes on from its own state; anything else, and one
    that holds samples in a shuffle buffer, is read from the front of the pass up to the place. In
    lane i of n come the samples i, i + n, ... of a pass; the others are read and left out.

    Raise `ConfigError` for what cannot be iterated over, and for an iterator, which yields its
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
        if isinstance(samples, Iterator):
            raise ConfigError(
                f"{name} is an iterator ({type(samples).__name__}): it yields its samples only "
                "once, so it can be neither restarted nor resumed. Give the function that makes "
                "it, or a list"
            )
        if not callable(samples) and not isinstance(samples, Iterable):
            raise ConfigError(
                f"{name!r} is no dataset, nor can it be iterated over, nor is it a function that "
                f"makes what can be; got {str(samples)[:80]!r}"
            )
        self._freeze(samples=samples, name=name, seed=seed, occurrence=occurrence)

    @cached_property
    def indexed(self) -> bool:
        return False

    @cached_property
    def key(self) -> int:
        return derive("iterable", self.name, self.seed, self.occurrence)

    def reseeded(self, seed: int) -> Self:
        return self._replace(seed=seed)

    def _distinguished(self, occurrence: int) -> Self:
        return self._replace(occurrence=derive(self.occurrence, occurrence) % 2**62)

    def _settings(self) -> dict[str, Any]:
        return {"name": self.name, "seed": self.seed, "occurrence": self.occurrence}

    _divisible = False

    @cached_property
    def sources(self) -> tuple[Any, ...]:
        """Itself, though it has no random access."""
        return (self,)

    def where(self, index: int) -> str:
        """Return where a sample is, for messages."""
        return f"{self.name}, sample {index}"

    def _open_stream(self, opening: Opening) -> Stream[T_co]:
        return super()._open_stream(opening._replace(lane=SINGLE_LANE))

    def _open_pass(self, opening: Opening) -> Stream[T_co]:
        return _IterableStream(self, opening.state)

    def _compared(self) -> tuple[Any, ...]:
        """Samples are compared as objects: reading them to compare may cost a whole pass."""
        return id(self.samples), self.name, self.seed, self.occurrence

    def begun(self, number: int) -> Iterable[T_co]:
        """Pass `number`, not read from yet; of a Hugging Face dataset a copy that keeps a state."""
        if not is_instance_of(self.samples, "datasets", "IterableDataset"):
            if isinstance(self.samples, Iterable):
                return self.samples
            try:
                return self.samples()
            except StopIteration as stopped:
                raise stop_raised(self) from stopped
        # The library's file systems are shared: copying them makes one for each new thread, in the
        # very dict that is being copied.
        shared = getattr(self.samples, "_IterableDataset__hffs_cache", None)
        dataset: Any = copy.deepcopy(self.samples, {id(shared): shared})
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

    def state(self) -> State:
        if self._stateful is not None:
            self._inner = json.dumps(self._stateful.state_dict())
        return {"pass": self._pass, "read": self._read, "inner": self._inner}

    def close(self) -> None:
        self.state()
        self._iterator = self._stateful = None


def _undivided(dataset: Any, name: str) -> Iterator[Any]:
    """Yield all samples of a Hugging Face dataset, also in a torch worker, where it would divide
    itself.

    Who divides here is the mix that it is part of. Raise `DatasetError` for damaged files.
    """
    try:
        if torch.utils.data.get_worker_info() is None:
            yield from dataset
            return
        for batch in dataset.iter(batch_size=1):
            plain = isinstance(batch, Mapping)
            yield {name: column[0] for name, column in batch.items()} if plain else batch
    except EnergizeError:
        raise
    except (OSError, ValueError) as error:  # what its readers of files raise
        raise DatasetError(
            f"{name}: the Hugging Face dataset cannot be read on: {type(error).__name__}: {error}; "
            "the library's own log may name the file"
        ) from error


def _has_buffer(dataset: Any) -> bool:
    """Return whether a Hugging Face dataset holds samples in a shuffle buffer, which its state
    leaves out.

    Its own state would then lose samples, so that the pass is read again up to the place instead.
    """
    waiting = [getattr(dataset, "_ex_iterable", None)]
    for node in waiting:
        inner = *(getattr(node, "ex_iterables", None) or ()), getattr(node, "ex_iterable", None)
        waiting += [each for each in inner if each is not None]
    return "BufferShuffledExamplesIterable" in (type(node).__name__ for node in waiting)


# Any collection of samples as a dataset.


def as_dataset(samples: Any, name: str) -> Dataset[Any]:
    """Return `samples` as a dataset called `name`: with random access if they have it, or a stream.

    Takes energize datasets as they are, also those inside a torch dataset of `energize.compat`;
    Hugging Face datasets of both kinds, objects with `__len__` and `__getitem__`, anything that can
    be iterated over again and again, and functions that make an iterable. Raise `ConfigError` for
    anything else, an iterator for example.

    >>> as_dataset([1, 2], "numbers").indexed, as_dataset({1, 2}, "numbers").indexed
    (True, False)
    """
    if isinstance(samples, Dataset):
        return samples
    if isinstance(samples, Mapping | str | bytes):
        raise ConfigError(
            f"{name!r} is a {type(samples).__name__}, which is not a collection of samples: "
            f"{str(samples)[:80]!r}"
        )
    if isinstance(samples, torch.utils.data.IterableDataset):
        inside = getattr(samples, "dataset", None)
        return inside if isinstance(inside, Dataset) else IterableSource(samples, name=name)
    if is_instance_of(samples, "datasets", "Dataset"):
        return HuggingFaceSource(samples, name=name)
    streaming = is_instance_of(samples, "datasets", "IterableDataset")
    if not streaming and hasattr(samples, "__len__") and hasattr(samples, "__getitem__"):
        return SequenceSource(samples, name=name)
    return IterableSource(samples, name=name)
