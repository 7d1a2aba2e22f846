"""Sources of samples in memory, in map-style datasets, and in iterables.

`SequenceSource` and its subclasses have random access; `IterableSource` is a stream.
`as_dataset` chooses between them.
"""

from __future__ import annotations

import copy
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import islice
from typing import Any, Protocol, Self, TypeVar, cast

from energize.core.arrays import Int64Array
from energize.core.call import Call
from energize.core.columns import Column
from energize.core.dataset import Dataset
from energize.core.description import order_name_of
from energize.core.digests import content_digest
from energize.core.failures import Failed
from energize.core.lazy import is_instance_of, optional_module, torch
from energize.core.node import NodeTraits, Origin, StreamTraits
from energize.core.randomness import (
    PROVEN,
    DrawingIterator,
    FunctionRecord,
    ReadWindow,
    current_window,
    record_of,
)
from energize.core.records import fields_of, is_record
from energize.core.rng import derive
from energize.core.stream import LaneStream, Opening, State, counter_field, state_field
from energize.core.trace import (
    ReadContext,
    Request,
    stop_raised,
)
from energize.data.rows import FieldSource, Row
from energize.errors import (
    ColumnError,
    ConfigError,
    DatasetError,
    DatasetNotFoundError,
    EncoderError,
    EnergizeError,
    LoaderError,
    NotRepeatableError,
    SkipSample,
)

T_co = TypeVar("T_co", covariant=True)


_DIGESTED = 1024
"""Bytes of each value of a sample that enter its digest."""

_DIGESTED_SAMPLES = 32
"""Samples of a list in memory that enter its digest."""

_DIGEST_CHARACTERS = 8
"""Characters of a digest that are stored."""


class SupportsGetItem(Protocol[T_co]):
    """An object with a length and an item for each index below it."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> T_co: ...


class SequenceSource(FieldSource[T_co]):
    """The samples of an object with `__len__` and `__getitem__`.

    Torch map-style datasets are such objects. The object is read in the processes that
    deliver samples, so workers share or unpickle it. `__getitem__` may raise
    `SkipSample` or `DataError`.

    Args:
        samples: The object.
        name: Name in reports. It also keys the order: sources of different names are
            shuffled differently. Defaults to a name derived from the object.
        columns: Indexed values by column, one number or word per sample. Fields of
            dataclasses, named tuples and dicts in a list or tuple are columns, too.
        seed: Seed of the order.
        occurrence: Distinguishes several uses of equal samples.

    Raises:
        ConfigError: If the object has no `__len__` or no `__getitem__`.
        ColumnError: If a column has another number of values.

    Example:
        >>> SequenceSource(["a", "b", "c"], name="letters")[1]
        'b'
    """

    order_name = "SequenceSource"

    samples: SupportsGetItem[T_co]
    explicit_name: str
    columns: Mapping[str, Column]
    content: str
    """Digest of a few samples of a list, or the class name of other objects."""

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
                    "SequenceSource: samples must have __len__ and __getitem__, but "
                    f"{type(samples).__name__} has no {method}"
                )
        called = name or order_name_of(samples)
        indexed: dict[str, Column] = {}
        for key, column in (columns or {}).items():
            indexed[key] = (
                column if isinstance(column, Column) else Column.of(column, key)
            )
            if (values := len(indexed[key])) != (count := len(samples)):
                raise ColumnError(
                    f"{called}: column {key!r} has {values} values for {count} samples"
                )
        self.freeze(
            samples=samples,
            explicit_name=called,
            columns=indexed,
            content=_digest_of(samples),
            seed=seed,
            occurrence=occurrence,
        )

    @property
    def name(self) -> str:
        return self.explicit_name

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"content": self.content}

    @property
    def count(self) -> int:
        return len(self.samples)

    @property
    def identity(self) -> str:
        return f"{self.explicit_name}:{self.count}"

    @property
    def column_names(self) -> tuple[str, ...]:
        listed = isinstance(
            self.samples, list | tuple
        )  # reading other objects may be slow
        first = self.samples[0] if listed and self.count else None
        fields = fields_of(first) if is_record(first) else {}
        return tuple(dict.fromkeys([*self.columns, *fields]))

    def column_values(self, name: str) -> Iterable[Any]:
        return (
            fields_of(sample).get(name)
            for sample in cast("Iterable[Any]", self.samples)
        )

    def _column(self, name: str) -> Column:
        return self.columns[name] if name in self.columns else super()._column(name)

    def indexing_hint(self, name: str) -> str:
        return f"Pass it to the source: columns={{{name!r}: [...]}}"

    def read(self, indices: Int64Array) -> list[T_co | Failed]:
        return self.read_at(indices, indices, ReadContext())

    def read_at(
        self, indices: Int64Array, positions: Int64Array, reading: ReadContext
    ) -> list[T_co | Failed]:
        numbers = indices.tolist()
        if isinstance(self.samples, list | tuple):
            return [self.samples[index] for index in numbers]

        def where(row: int) -> str:
            return self.where(numbers[row])

        return self._call.map(numbers, Request(positions, reading, where))

    @cached_property
    def _call(self) -> Call:
        return Call(self.samples.__getitem__, derive(self.key, "sample"))

    def compared(self) -> tuple[Any, ...]:
        """Compare samples by object identity; comparing contents may read all."""
        return id(self.samples), self.explicit_name, self.seed, self.occurrence


def _digest_of(samples: Any) -> str:
    """Return a digest that distinguishes samples of the same name and number.

    For containers, it covers their size and a few values in order; nothing else is
    read. For other objects, it is the name of their class.
    """
    if type(samples) in (list, tuple):
        count = len(samples)
        numbers = {
            number * count // _DIGESTED_SAMPLES for number in range(_DIGESTED_SAMPLES)
        }
        values = [samples[number] for number in sorted(numbers) if number < count]
    elif type(samples) in (set, frozenset, dict):
        values = list(islice(samples, _DIGESTED_SAMPLES))
    else:
        cls = type(samples)
        return cls.__qualname__.removesuffix(cls.__name__) + order_name_of(samples)
    return content_digest([len(samples), *values], most=_DIGESTED)[:_DIGEST_CHARACTERS]


class ListSource(SequenceSource[T_co]):
    """The samples of an iterable, copied into a tuple.

    Args:
        samples: The samples.
        name: Name in reports, which also keys the order.
        columns: Indexed values by column, one per sample; see `SequenceSource`.
        seed: Seed of the order.
        occurrence: Distinguishes several uses of equal samples.

    Example:
        >>> list(ListSource([1, 2, 3]))
        [1, 2, 3]
    """

    order_name = "ListSource"

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
    """The rows of a `datasets.Dataset` as dicts, in its format, read on demand.

    Orders depend on `name` and the number of rows, not on the fingerprint of the
    dataset, which differs between machines. For streaming datasets, use
    `IterableSource`.

    Args:
        rows: The dataset.
        name: Name in reports, which also keys the order.
        seed: Seed of the order.
        occurrence: Distinguishes several uses of equal rows.

    Raises:
        ConfigError: If `rows` is not a `datasets.Dataset`.

    Example:
        >>> import datasets
        >>> rows = datasets.Dataset.from_dict({"text": ["one", "two"]})
        >>> HuggingFaceSource(rows, name="numbers")[1]
        {'text': 'two'}
    """

    order_name = "HuggingFaceSource"

    def __init__(
        self,
        rows: Any,
        *,
        name: str = "hugging face",
        seed: int = 0,
        occurrence: int = 0,
    ) -> None:
        if not is_instance_of(rows, "datasets", "Dataset"):
            remedy = "Read a streaming dataset with IterableSource"
            if is_instance_of(rows, "datasets", "DatasetDict"):
                remedy = f"Choose one of its splits: {', '.join(map(str, rows))}"
            type_name = type(rows).__name__
            raise ConfigError(
                f"{name!r} is a {type_name}, not a datasets.Dataset. {remedy}"
            )
        super().__init__(rows, name=name, seed=seed, occurrence=occurrence)

    @classmethod
    def from_hub(
        cls,
        name: str,
        *,
        split: str,
        config: str | None = None,
        seed: int = 0,
        **options: Any,
    ) -> Self:
        """Load a dataset of the Hub by its name, with `datasets.load_dataset`.

        `datasets` downloads it once to its cache. No code of the dataset is executed.

        Args:
            name: The name, such as "HuggingFaceM4/the_cauldron"; it also keys the
                order.
            split: The split, such as "train" or "train[:10%]".
            config: The configuration of the dataset.
            seed: Seed of the order.
            **options: Further arguments of `datasets.load_dataset`.

        Returns:
            The rows of the split.

        Raises:
            ConfigError: For `streaming=True`: streamed rows have no positions. Or if
                `datasets` is not installed.
            DatasetNotFoundError: If the dataset cannot be loaded.

        Example:
            >>> import tempfile
            >>> folder = tempfile.mkdtemp()
            >>> with open(f"{folder}/train.jsonl", "w") as file:
            ...     _ = file.write('{"text": "one"}')
            >>> HuggingFaceSource.from_hub(folder, split="train")[0]
            {'text': 'one'}
        """
        if options.get("streaming"):
            raise ConfigError(
                f"{name}: streamed rows cannot be read at random. Remove "
                "streaming=True, or read them with IterableSource(rows)"
            )
        datasets = optional_module("datasets", "energize[hf]", "from_hub")
        try:
            rows = datasets.load_dataset(name, config, split=split, **options)
        except (OSError, ValueError) as error:
            text = f"{type(error).__name__}: {str(error)[:300]}"
            raise DatasetNotFoundError(
                f"{name}, split {split!r}, cannot be loaded: {text}. Check the name, "
                "the split and the network"
            ) from error
        called = name if config is None else f"{name}/{config}"
        return cls(rows, name=called, seed=seed)

    @property
    def rows(self) -> Any:
        """The dataset."""
        return self.samples

    @property
    def column_names(self) -> tuple[str, ...]:
        """The columns of the dataset."""
        return tuple(self.rows.column_names)

    def column_values(self, name: str) -> Iterable[Any]:
        """Read the column alone, whatever the format of the dataset."""
        values: Iterable[Any] = self.rows.with_format(None).select_columns([name])[:][
            name
        ]
        return values

    def read_at(
        self, indices: Int64Array, positions: Int64Array, reading: ReadContext
    ) -> list[Row | Failed]:
        if self.rows.format["type"] == "custom":  # a user function makes rows
            return super().read_at(indices, positions, reading)
        rows: list[Row | Failed] = self.rows.__getitems__(indices.tolist())
        return rows

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"columns": list(self.column_names)}


# Iterables.

T = TypeVar("T")


class IterableSource(Dataset[T_co]):
    """A stream over anything that can be iterated repeatedly.

    A pass over the samples is an epoch. A Hugging Face dataset is copied, never
    changed; pass p is its epoch p, so a shuffling dataset changes its order in each
    pass.

    Resuming is exact. A Hugging Face dataset resumes from its own state. Everything
    else, and datasets with a shuffle buffer, is read again from the start of the pass.
    Lane i of n delivers the samples i, i + n, ... of a pass, and discards the others.

    Args:
        samples: A re-iterable object (a list, a Hugging Face `IterableDataset`, an
            object with `__iter__`), or a function without arguments that returns one
            pass, such as a generator function.
        name: Name in reports, which also keys the order. Defaults to a name derived
            from `samples`.
        seed: Seed of the order.
        occurrence: Distinguishes several uses of equal samples.

    Raises:
        ConfigError: If `samples` cannot be iterated, or is an iterator, which yields
            its samples only once.

    Example:
        >>> def letters():
        ...     yield from "abc"
        >>> source = IterableSource(letters)
        >>> list(source), list(source)
        (['a', 'b', 'c'], ['a', 'b', 'c'])
    """

    order_name = "IterableSource"

    samples: Iterable[T_co] | Callable[[], Iterable[T_co]]
    name: str
    content: str
    """Digest of a few samples of a container, or the class name of other objects."""
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
        name = name or getattr(samples, "__name__", "") or order_name_of(samples)
        if isinstance(samples, Iterator):
            raise ConfigError(
                f"{name} is an iterator ({type(samples).__name__}): it yields its "
                "samples only once, so it cannot be restarted or resumed. Pass the "
                "function that makes it, or a list"
            )
        if not callable(samples) and not isinstance(samples, Iterable):
            raise ConfigError(
                f"{name!r} must be a dataset, an iterable or a function that returns "
                f"an iterable, got {str(samples)[:80]!r}"
            )
        self.freeze(
            samples=samples,
            name=name,
            content=_digest_of(samples),
            seed=seed,
            occurrence=occurrence,
        )

    @cached_property
    def indexed(self) -> bool:
        return False

    @cached_property
    def key(self) -> int:
        return derive("iterable", self.name, self.seed, self.occurrence)

    def reseeded(self, seed: int) -> Self:
        return self.replace(seed=seed)

    def settings(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "content": self.content,
            "seed": self.seed,
            "occurrence": self.occurrence,
        }

    traits = NodeTraits(stream=StreamTraits(divisible=False))

    @cached_property
    def sources(self) -> tuple[Any, ...]:
        """Return the source itself, although it has no random access."""
        return (self,)

    def where(self, index: int) -> str:
        """Return where a sample is, for messages."""
        return f"{self.name}, sample {index}"

    def open_pass(self, opening: Opening) -> LaneStream[T_co]:
        return _IterableStream(self, opening)

    def compared(self) -> tuple[Any, ...]:
        """Compare samples by object identity; comparing contents may read all."""
        return id(self.samples), self.name, self.seed, self.occurrence

    @cached_property
    def function_record(self) -> FunctionRecord:
        """Observations of the function in this process, such as its use of random
        numbers.
        """
        return record_of(cast("Any", self.samples))

    def begun(self, number: int) -> Iterable[T_co]:
        """Open pass `number`; for a Hugging Face dataset, return a stateful copy."""
        if not is_instance_of(self.samples, "datasets", "IterableDataset"):
            if isinstance(self.samples, Iterable):
                return self.samples
            try:
                return self.samples()
            except StopIteration as stopped:
                raise stop_raised(self) from stopped
        # Share the library's file systems: copying them adds one per thread to the dict
        # that is being copied.
        shared = getattr(self.samples, "_IterableDataset__hffs_cache", None)
        dataset: Any = copy.deepcopy(self.samples, {id(shared): shared})
        dataset.set_epoch(dataset.epoch + number)
        return dataset  # type: ignore[no-any-return]


class _IterableStream(LaneStream[T]):
    """Counts the samples of a pass, and verifies that repeated reads are equal."""

    def __init__(self, source: IterableSource[T], opening: Opening) -> None:
        state = opening.state
        self._source = source
        self._reading = opening.reading
        self._record = source.function_record
        self._pass = counter_field(state, "pass")
        self._read = counter_field(state, "read")
        self._inner = "" if state is None else state_field(state, "inner", str)
        self._saved_digest = "" if state is None else state_field(state, "last", str)
        self._last: Any = None
        self._stateful: Any = None
        self._iterator: DrawingIterator[T] | None = None

    def at(self, position: int, attempt: int = 0) -> T:
        window = current_window()
        if window is None:
            raise LoaderError(
                f"{self._source.name} is read outside of a cursor. Open a cursor"
            )
        window.enter(self._reading.threads)
        if self._iterator is None:
            self._begin(window)
        try:
            item = self._next(window)
        except StopIteration:
            self._pass += 1
            self._read = 0
            self._inner = ""
            self._saved_digest = ""
            self._iterator = self._stateful = self._last = None
            raise
        self._saved_digest = ""
        self._last = item
        self.origin = (Origin(0, self._read, self._pass),)
        self._read += 1
        return item

    def _begin(self, window: ReadWindow) -> None:
        """Open the pass, and advance to the saved position."""
        is_hub_dataset = is_instance_of(
            self._source.samples, "datasets", "IterableDataset"
        )
        if not (is_hub_dataset or self._record.proven or window.restarting):
            self._compare_readings(window)
        samples = self._source.begun(self._pass)
        if is_hub_dataset:
            if not _has_buffer(samples):
                self._stateful = samples
                if self._inner:
                    state = json.loads(self._inner)
                    samples.load_state_dict(state)  # type: ignore[attr-defined]
            samples = _undivided(samples, self._source.name)
        self._iterator = DrawingIterator(self._record, iter(samples), self._word)
        if self._stateful is None and self._read:
            self._read_again(window)

    def _compare_readings(self, window: ReadWindow) -> None:
        """Read the first samples twice; raise `NotRepeatableError` if they differ."""
        first = self._first_digests(window, PROVEN, seconds=1.0)
        second = self._first_digests(window, len(first), seconds=math.inf)
        self._record.points = PROVEN
        for number, (digest, again) in enumerate(zip(first, second, strict=False)):
            if digest != again:
                raise self._not_repeatable(number, "differs when read again")

    def _first_digests(
        self, window: ReadWindow, most: int, *, seconds: float
    ) -> list[str]:
        """Return digests of the first samples; an empty one for the end."""
        samples = iter(self._source.begun(self._pass))
        self._iterator = DrawingIterator(self._record, samples, self._word)
        until = time.perf_counter() + seconds
        digests: list[str] = []
        while len(digests) < most and time.perf_counter() < until:
            try:
                digests.append(content_digest(self._next(window)))
            except StopIteration:
                return [*digests, ""]
        return digests

    def _read_again(self, window: ReadWindow) -> None:
        """Read the samples before the saved position, and compare the last one."""
        count = self._read
        last: Any = None
        for number in range(count):
            try:
                last = self._next(window)
            except StopIteration:
                raise self._not_repeatable(
                    number, "is missing at a second reading"
                ) from None
        if self._saved_digest not in ("", content_digest(last, most=_DIGESTED)):
            raise self._not_repeatable(
                count - 1, "differs from the one before the state was saved"
            )
        self._last = last

    def _next(self, window: ReadWindow) -> T:
        """Return the next sample of the iterator."""
        iterator = cast("DrawingIterator[T]", self._iterator)
        record = self._record
        seeded = record.draws or window.observing or not record.proven
        try:
            return iterator.next(window, seeded=seeded)
        except (StopIteration, EnergizeError, SkipSample):
            raise
        except Exception as error:
            raise EncoderError(
                f"{self._source.name} raised {type(error).__name__}: {error}\n  in "
                f"pass {self._pass}, after sample {self._read}. An iterator ends when "
                "it raises. Catch the exception inside the iterator"
            ) from error

    def _word(self) -> int:
        return derive(self._source.key, "pass", self._pass) % 2**64

    def _not_repeatable(self, number: int, fault: str) -> NotRepeatableError:
        return NotRepeatableError(
            f"{self._source.name!r}: sample {number} of pass {self._pass} {fault}. "
            "Every pass must yield the same samples in the same order, because ranks "
            "and resumed runs read it again. Leave shuffling to energize "
            "(ShuffleBufferDataset), or draw from the global generators, which are "
            "seeded for each pass"
        )

    def state(self) -> State:
        if self._stateful is not None:
            self._inner = json.dumps(self._stateful.state_dict())
        digest = self._saved_digest
        if self._last is not None and self._stateful is None:
            digest = content_digest(self._last, most=_DIGESTED)
        return {
            "pass": self._pass,
            "read": self._read,
            "inner": self._inner,
            "last": digest,
        }

    def close(self) -> None:
        self.state()
        self._iterator = None
        self._stateful = None


def _undivided(dataset: Any, name: str) -> Iterator[Any]:
    """Yield all samples of a Hugging Face dataset, even in a torch worker.

    The dataset would select a share for the worker, but lanes already do so. Raises
    `DatasetError` for damaged files.
    """
    try:
        if torch.utils.data.get_worker_info() is None:
            yield from dataset
            return
        for batch in dataset.iter(batch_size=1):
            plain = isinstance(batch, Mapping)
            yield (
                {name: column[0] for name, column in batch.items()} if plain else batch
            )
    except EnergizeError:
        raise
    except (OSError, ValueError) as error:  # errors of its file readers
        raise DatasetError(
            f"{name}: reading the Hugging Face dataset failed: "
            f"{type(error).__name__}: {error}. Check the log of the library for the "
            "file"
        ) from error


def _has_buffer(dataset: Any) -> bool:
    """Return whether the state of a Hugging Face dataset omits a shuffle buffer.

    Such a dataset is read again from the start of the pass, because its state would
    lose samples.
    """
    waiting = [getattr(dataset, "_ex_iterable", None)]
    for node in waiting:
        inner = (
            *(getattr(node, "ex_iterables", None) or ()),
            getattr(node, "ex_iterable", None),
        )
        waiting += [
            input_dataset for input_dataset in inner if input_dataset is not None
        ]
    return "BufferShuffledExamplesIterable" in (type(node).__name__ for node in waiting)


# Any collection of samples as a dataset.


def as_dataset(samples: Any, name: str) -> Dataset[Any]:
    """Return `samples` as a dataset: indexed if they have random access, or a stream.

    Args:
        samples: An energize dataset (returned unchanged, also if wrapped for torch by
            `energize.compat`), a Hugging Face dataset, an object with `__len__` and
            `__getitem__`, a re-iterable object, or a function that returns an iterable.
        name: Name of the source.

    Returns:
        The dataset.

    Raises:
        ConfigError: If `samples` is anything else, such as an iterator.

    Example:
        >>> as_dataset([1, 2], "numbers").indexed, as_dataset({1, 2}, "numbers").indexed
        (True, False)
    """
    if isinstance(samples, Dataset):
        return samples
    if isinstance(samples, Mapping | str | bytes):
        raise ConfigError(
            f"{name!r} is a {type(samples).__name__}, which is not a collection of "
            "samples: "
            f"{str(samples)[:80]!r}"
        )
    if isinstance(samples, torch.utils.data.IterableDataset):
        inside = getattr(samples, "dataset", None)
        return (
            inside
            if isinstance(inside, Dataset)
            else IterableSource(samples, name=name)
        )
    if is_instance_of(samples, "datasets", "Dataset"):
        return HuggingFaceSource(samples, name=name)
    streaming = is_instance_of(samples, "datasets", "IterableDataset")
    if (
        not streaming
        and hasattr(samples, "__len__")
        and hasattr(samples, "__getitem__")
    ):
        return SequenceSource(samples, name=name)
    return IterableSource(samples, name=name)
