"""Nodes that process single items: maps, filters, logs and weights.

They keep the order of their input. `MapDataset` keeps the number of items, too;
filters and generators are streams.
"""

from __future__ import annotations

import gc
import json
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import islice
from typing import Any, Self, TypeVar, cast

from energize.core.call import Call
from energize.core.checks import checked_function, checked_whole
from energize.core.dataset import Dataset, PassingDataset
from energize.core.description import described, generates
from energize.core.failures import Failed
from energize.core.ignored import accepted
from energize.core.lanes import WorkerConfig
from energize.core.loss_weights import (
    Passed,
    carried,
    carried_one_by_one,
    checked_factor,
    weighed,
)
from energize.core.node import NodeTraits, Origin, StreamTraits
from energize.core.randomness import current_window, defer
from energize.core.rng import derive
from energize.core.stream import by_keys
from energize.core.trace import (
    ReadContext,
    Request,
)
from energize.datasets.rounds import (
    Origins,
    RoundItem,
    RoundsDataset,
    Step,
    alone,
    keyed_by,
)
from energize.errors import WeightError

T = TypeVar("T")
T_in = TypeVar("T_in")
T_out_co = TypeVar("T_out_co", covariant=True)
T_co = TypeVar("T_co", covariant=True)


class MapDataset(PassingDataset[T_out_co]):
    """Apply a function to each item.

    The order and the number of items stay the same. The function can raise
    `SkipSample` to leave an item out, and `DataError` for damaged data; a substitute
    from the same source replaces the item (in a stream, the next item). Other
    exceptions are raised as `EncoderError` with the location of the sample.

    Random numbers are reproducible: for any number of workers, and after a resume. A
    parameter named `rng` receives a `numpy.random.Generator` keyed by (seed, position).
    If the function draws from the global generators of random, numpy or torch, they are
    seeded in the same way for each call, and restored afterwards.

    The first calls are repeated and compared: a function that keeps state between calls
    raises `NotRepeatableError` (see `FailurePolicy.check_functions`). If `map_fn` is a
    generator function, the result is a `FlatMapDataset`.

    Args:
        dataset: The dataset to read.
        map_fn: Returns the new item.
        seeded: Whether calls are seeded and checked. False calls the function as it is.
        worker_config: Seeds the order by its `seed_offset`; passed to `get_loader`.
        **ignored: Arguments of Megatron-Energon. Failure tolerances apply; others have
            no effect, and are logged.

    Raises:
        ConfigError: If `map_fn` is not callable.

    Example:
        >>> from energize import ListSource
        >>> list(MapDataset(ListSource([1, 2, 3]), lambda x: x * x))
        [1, 4, 9]
    """

    order_name = "MapDataset"

    traits = NodeTraits(makes=True, content_only=True, draws=True)

    map_fn: Callable[[Any], Any]
    seeded: bool

    def __new__(cls, *inputs: Any, **options: Any) -> Self:
        """Return a `FlatMapDataset` if the function is a generator function."""
        map_fn = inputs[1] if len(inputs) > 1 else options.get("map_fn")
        if cls is MapDataset and generates(map_fn):
            return cast("Self", super().__new__(FlatMapDataset))
        return super().__new__(cls)

    def __init__(
        self,
        dataset: Dataset[T_in],
        map_fn: Callable[[T_in], T_out_co | Iterator[T_out_co]],
        *,
        seeded: bool = True,
        worker_config: WorkerConfig | None = None,
        **ignored: Any,
    ) -> None:
        if not callable(map_fn):
            checked_function(map_fn, "MapDataset: map_fn")
        self.freeze([dataset], worker_config, ignored, map_fn=map_fn, seeded=seeded)

    @cached_property
    def seed_key(self) -> int:
        """Key of the random draws; nested maps have different keys."""
        below = self.inputs[0]
        key = below.seed_key if isinstance(below, MapDataset) else self.key
        return derive(key, "map") if self.traits.draws else key

    @cached_property
    def _call(self) -> Call:
        keep = None if getattr(self.map_fn, "loads_stored", False) else carried
        return Call(
            self.map_fn,
            self.call_key,
            keep,
            seeded=self.seeded,
            tolerance=self.failure_tolerance(),
        )

    @property
    def call_key(self) -> int:
        """Key of the random draws of this map's own function."""
        return self.seed_key

    def make(self, items: list[Any], request: Request) -> list[T_out_co | Failed]:
        return self._call.map(items, request)


class FlatMapDataset(RoundsDataset[T_out_co], MapDataset[T_out_co]):
    """Yield any number of items for each item, by a generator function.

    The number of items depends on the data, so this is a stream: in a loader, each lane
    reads its own part of the input. A run resumes after any item: the function is
    called again for the same input item, with the same random numbers, and the items
    that were delivered are skipped. `MapDataset` returns this class for a generator
    function.

    Example:
        >>> from energize import ListSource
        >>> texts = ListSource(["ab", "", "c"])
        >>> list(MapDataset(texts, lambda text: (yield from text)))
        ['a', 'b', 'c']
    """

    order_name = "FlatMapDataset"

    traits = NodeTraits(
        draws=True,
        members=None,
        gives_batches=False,
        stream=StreamTraits(by_reading=True),
    )

    @cached_property
    def _call(self) -> Call:
        return Call(
            self.map_fn,
            0,
            carried_one_by_one,
            seeded=self.seeded,
            tolerance=self.failure_tolerance(),
        )

    def round(
        self, items: Iterator[RoundItem], reading: ReadContext
    ) -> Iterator[Step[T_out_co]]:
        for entry in islice(items, 1):
            yield partial(self._yielded, entry, reading)

    def _yielded(
        self, entry: RoundItem, reading: ReadContext
    ) -> Iterator[tuple[T_out_co, Origins]]:
        word = partial(keyed_by, self, "map", *entry.origin)
        locate = by_keys(entry.item)
        of = (self, entry.origin)
        for item in self._call.items(
            entry.item, word, entry.number, reading, locate, origin=of
        ):
            yield item, entry.origin


class FilterDataset(RoundsDataset[T_co]):
    """Keep the items for which a function returns true.

    The number of items depends on the data, so this is a stream without length and
    random access: in a loader, each lane filters its own part of the input. To keep the
    dataset indexed, raise `SkipSample` in an encoder instead; a substitute then
    replaces the sample.

    Args:
        dataset: The dataset to read.
        filter_fn: Returns whether an item is kept. A parameter named `rng` receives a
            `numpy.random.Generator` keyed by the item.
        worker_config: Seeds the order by its `seed_offset`; passed to `get_loader`.
        **ignored: Arguments of Megatron-Energon. Failure tolerances apply; others have
            no effect, and are logged.

    Raises:
        ConfigError: If `filter_fn` is not callable.
        EmptyDatasetError: While reading, if no item is kept in some passes over the
            input, or in a million items.

    Example:
        >>> from energize import ListSource
        >>> list(FilterDataset(ListSource(range(6)), lambda x: x % 2 == 0))
        [0, 2, 4]
    """

    order_name = "FilterDataset"

    traits = NodeTraits(stream=StreamTraits(by_reading=True, filters=True))

    filter_fn: Callable[[Any], bool]

    def __init__(
        self,
        dataset: Dataset[T_co],
        filter_fn: Callable[[T_co], bool],
        *,
        worker_config: WorkerConfig | None = None,
        **ignored: Any,
    ) -> None:
        self.freeze(
            [dataset],
            worker_config,
            ignored,
            filter_fn=checked_function(filter_fn, "FilterDataset: filter_fn"),
        )

    @cached_property
    def _call(self) -> Call:
        return Call(self.filter_fn, 0, tolerance=self.failure_tolerance())

    def round(
        self, items: Iterator[RoundItem], reading: ReadContext
    ) -> Iterator[Step[T_co]]:
        for entry in islice(items, 1):
            word = partial(keyed_by, self, "filter", *entry.origin)
            passes = self._call.one(
                entry.item, word, entry.number, reading, by_keys(entry.item)
            )
            if isinstance(passes, Failed):
                reading.leave_out(passes, self, entry.origin)
            elif passes:
                yield partial(alone, entry)


class IterMapDataset(RoundsDataset[T_out_co]):
    """Apply a generator function to an iterator over items.

    The function is called once for each `segment_length` items of a lane, so that a run
    can resume without reading everything again. Its iterator ends with the segment, and
    the function must then yield the items that it still holds. A run resumes after any
    item: the segment is read again, and the items that were delivered are skipped.

    If the function raises `SkipSample` or `DataError`, or any exception with
    `get_loader(on_error="skip")`, it is called again for the rest of the segment; the
    items that it held are lost, and reported.

    If samples have loss weights, the function must set them on its items, as
    `__sample_weight__` (see `derive_from`) or as `sample_weights` of a batch.

    Args:
        dataset: The dataset to read.
        iter_map_fn: Yields items for an iterator over items.
        len_map_fn: Returns the approximate length for the length of the input, for
            progress bars. None for no length.
        segment_length: Items that are passed to one call.
        worker_config: Seeds the order by its `seed_offset`; passed to `get_loader`.
        **ignored: Arguments of Megatron-Energon. Failure tolerances apply; others have
            no effect, and are logged.

    Raises:
        ConfigError: If `segment_length` is below 1, or a function is not callable.

    Example:
        >>> from energize import ListSource
        >>> def pairs(items):
        ...     for item in items:
        ...         yield item + next(items, "")
        >>> list(IterMapDataset(ListSource("abcde"), pairs))
        ['ab', 'cd', 'e']
    """

    order_name = "IterMapDataset"

    iter_map_fn: Callable[[Iterator[Any]], Iterator[T_out_co]]
    len_map_fn: Callable[[int], int] | None
    segment_length: int

    def __init__(
        self,
        dataset: Dataset[T_in],
        iter_map_fn: Callable[[Iterator[T_in]], Iterator[T_out_co]],
        *,
        len_map_fn: Callable[[int], int] | None = None,
        segment_length: int = 1000,
        worker_config: WorkerConfig | None = None,
        **ignored: Any,
    ) -> None:
        if len_map_fn is not None:
            checked_function(len_map_fn, "IterMapDataset: len_map_fn")
        self.freeze(
            [dataset],
            worker_config,
            ignored,
            iter_map_fn=checked_function(iter_map_fn, "IterMapDataset: iter_map_fn"),
            len_map_fn=len_map_fn,
            segment_length=checked_whole(
                segment_length, "IterMapDataset: segment_length", 1
            ),
        )

    @cached_property
    def traits(self) -> NodeTraits:
        return NodeTraits(
            members=None,
            gives_batches=False,
            stream=StreamTraits(
                by_reading=True,
                buffered=self.segment_length,
                pass_length=self.len_map_fn,
            ),
        )

    def round(
        self, items: Iterator[RoundItem], reading: ReadContext
    ) -> Iterator[Step[T_out_co]]:
        yield partial(self._call_segment, islice(items, self.segment_length), reading)

    def _call_segment(
        self, segment: Iterator[RoundItem], reading: ReadContext
    ) -> Iterator[tuple[T_out_co, Origins]]:
        """Yield the results for a segment, each with the items read since the last."""
        for (
            first
        ) in segment:  # one call, and another one for what is left after a failure
            read: list[Origin] = list(first.origin)
            passed = Passed()

            def items(
                first: RoundItem = first,
                read: list[Origin] = read,
                passed: Passed = passed,
            ) -> Iterator[Any]:
                passed.take(first.item)
                yield first.item
                while (entry := _next_for_call(segment)) is not None:
                    read.extend(entry.origin)
                    passed.take(entry.item)
                    yield entry.item

            word = partial(keyed_by, self, "segment", *first.origin)
            call = Call(
                self.iter_map_fn, 0, passed.carry, tolerance=self.failure_tolerance()
            )
            of = self, first.origin
            for result in call.items(
                items(), word, first.number, reading, self._segment, origin=of
            ):
                yield result, tuple(read)
                read.clear()

    def _segment(self, _: int) -> str:
        return f"a segment of {type(self).__name__}"


def _next_for_call(items: Iterator[RoundItem]) -> RoundItem | None:
    """Return the next item for the running call; None at the end."""
    window = current_window()
    if window is None:
        return next(items, None)
    read: Callable[[], RoundItem | None] = partial(next, items, None)
    return window.read_for_call(read)


_log = logging.getLogger("energize.samples")


class LogSampleDataset(PassingDataset[T_co]):
    """Log the keys of each item as a line of JSON.

    Lines are written to the logger `energize.samples` at INFO, with `mode`, `position`
    and `keys`. The process that reads an item writes its line while reading; with
    prefetching, this is before the item is delivered.

    Args:
        dataset: The dataset to read.
        mode: A name for the loader in the log.
        get_keys_fn: Returns the keys of an item. None uses `__key__` or `__keys__` of
            the item.
        worker_config: Seeds the order by its `seed_offset`; passed to `get_loader`.

    Raises:
        ConfigError: If `get_keys_fn` is not callable.

    Example:
        >>> from energize import ListSource
        >>> letters = ListSource("ab")
        >>> list(LogSampleDataset(letters, "train", get_keys_fn=lambda item: [item]))
        ['a', 'b']
    """

    order_name = "LogSampleDataset"

    traits = NodeTraits(makes=True, content_only=True)

    mode: str
    get_keys_fn: Callable[[Any], Any]

    def __init__(
        self,
        dataset: Dataset[T_co],
        mode: str = "train",
        *,
        get_keys_fn: Callable[[T_co], Any] | None = None,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        keys_fn = default_keys if get_keys_fn is None else get_keys_fn
        checked_function(keys_fn, "LogSampleDataset: get_keys_fn")
        self.freeze([dataset], worker_config, mode=mode, get_keys_fn=keys_fn)

    @cached_property
    def _call(self) -> Call:
        return Call(self.get_keys_fn, derive(self.key, "log"))

    def make(self, items: list[Any], request: Request) -> list[T_co | Failed]:
        keys_of_items = self._call.map(items, request)
        for position, keys in zip(
            request.positions.tolist(), keys_of_items, strict=True
        ):
            if type(keys) is not Failed:
                line = {"mode": self.mode, "position": position, "keys": keys}
                defer(partial(_log.info, "%s", json.dumps(line, default=str)))
        return items


def default_keys(item: Any) -> Any:
    """Return the keys of a sample or a batch; None if it has none."""
    for name in ("__key__", "__keys__"):
        keys = item.get(name) if isinstance(item, dict) else getattr(item, name, None)
        if keys is not None:
            return keys
    return None


class SampleWeightDataset(MapDataset[T]):
    """Multiply the loss weight of items.

    Weights multiply: with other datasets of this class, weights in a metadataset, and
    weights that the encoder sets. A batch contains them as `sample_weights`, float32 of
    shape (batch,). For a dataset of batches or packs, the weight applies to every
    sample. Weights change neither the order nor random numbers, and can be changed when
    a run resumes.

    Args:
        dataset: The dataset to read.
        weight: The weight, 0 or more; or a function that returns the weight of an item.
        worker_config: Seeds the order by its `seed_offset`; passed to `get_loader`.

    Raises:
        WeightError: If the weight is negative or not finite; while reading, also if an
            item is of a type that cannot have a weight.

    Example:
        >>> from energize import ListSource
        >>> texts = ListSource([{"text": "a"}, {"text": "b"}])
        >>> SampleWeightDataset(texts, 0.5)[1]
        {'text': 'b', '__sample_weight__': 0.5}
        >>> by_length = SampleWeightDataset(
        ...     texts, lambda sample: len(sample["text"]) / 2
        ... )
    """

    order_name = "SampleWeightDataset"

    traits = NodeTraits(makes=True, content_only=True)
    has_loss_weights = True

    def __init__(
        self,
        dataset: Dataset[T],
        weight: float | Callable[[T], float],
        *,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        checked = weight
        if not callable(weight):
            checked = checked_factor(weight, "SampleWeightDataset: weight")
        weighing = Weighing(
            checked, isinstance(dataset, Dataset) and gives_batches(dataset)
        )
        super().__init__(dataset, weighing, worker_config=worker_config)

    @cached_property
    def call_key(self) -> int:
        below = self.inputs[0]
        key = (
            below.call_key if isinstance(below, SampleWeightDataset) else self.seed_key
        )
        return derive(key, "weight")

    @property
    def weight(self) -> float | Callable[[Any], float]:
        """The weight, or the function that returns it."""
        weighing = cast("Weighing", self.map_fn)
        return weighing.weight


def without_weights(
    dataset: Dataset[T],
) -> tuple[Dataset[T], Callable[[Dataset[T]], Dataset[T]]]:
    """Separate a dataset from the `SampleWeightDataset` nodes around it.

    Returns:
        The dataset below these nodes, and a function that adds the same weights to
        another dataset.
    """
    weights: list[Any] = []
    while isinstance(dataset, SampleWeightDataset):
        weights.append(dataset.weight)
        dataset = dataset.inputs[0]

    def weighed_so(other: Dataset[T]) -> Dataset[T]:
        for weight in reversed(weights):
            other = SampleWeightDataset(other, weight)
        return other

    return dataset, weighed_so


def with_equal_weighing(datasets: Iterable[Dataset[T]]) -> list[Dataset[T]]:
    """Return the inputs of a mix with loss weights in all inputs or in none.

    If one input has loss weights, items of the others get 1, so that all items of the
    mix have the same keys.
    """
    inputs = list(datasets)
    # None: not a dataset, which the mix rejects.
    weighted = [getattr(item, "has_loss_weights", None) for item in inputs]
    if not any(weighted):
        return inputs
    return [
        _weighed_once(dataset) if has_weights is False else dataset
        for dataset, has_weights in zip(inputs, weighted, strict=True)
    ]


def _weighed_once(dataset: Dataset[T]) -> Dataset[T]:
    weighing = Weighing(1.0, gives_batches(dataset), optional=True)
    return SampleWeightDataset(dataset, 1.0).replace(map_fn=weighing, seeded=False)


@dataclass(frozen=True)
class Weighing:
    """Callable that sets the loss weight of an item.

    Attributes:
        weight: The weight, or a function of an item.
        batched: Whether items are batches.
        optional: Whether items of types that cannot have a weight stay unchanged.
    """

    weight: float | Callable[[Any], float]
    batched: bool = False
    optional: bool = False

    def __call__(self, item: Any) -> Any:
        weight = self.weight
        if callable(weight):
            key = getattr(item, "__key__", None) or (
                isinstance(item, dict) and item.get("__key__")
            )
            of = f" of sample {key!r}" if isinstance(key, str) else ""
            weight = checked_factor(
                weight(item), f"the weight{of} by SampleWeightDataset"
            )
        try:
            return weighed(item, weight, batched=self.batched)
        except WeightError:
            if self.optional:
                return item
            raise

    def describe(self) -> str:
        """Return the weight for descriptions of datasets."""
        return f"sample_weight={described(self.weight)}"


def gives_batches(dataset: Dataset[Any]) -> bool:
    """Return whether items are batches, according to the traits of the tree."""
    stated = dataset.traits.gives_batches
    if stated is not None:
        return stated
    return bool(dataset.inputs) and all(
        gives_batches(child) for child in dataset.inputs
    )


class GcDataset(MapDataset[T]):
    """Run the garbage collector after every `every_n_iter` items.

    Items pass through unchanged. Each process counts the items that it reads. Useful if
    samples contain reference cycles, as their memory would accumulate. The node can be
    added or removed when a run resumes.

    Args:
        dataset: The dataset to read.
        worker_config: Seeds the order by its `seed_offset`; passed to `get_loader`.
        every_n_iter: Items between two collections.
        freeze: Without effect; for compatibility with Megatron-Energon.

    Raises:
        ConfigError: If `every_n_iter` is below 1.

    Example:
        >>> from energize import ListSource
        >>> list(GcDataset(ListSource("ab"), every_n_iter=1))
        ['a', 'b']
    """

    order_name = "GcDataset"

    def __init__(
        self,
        dataset: Dataset[T],
        *,
        worker_config: WorkerConfig | None = None,
        every_n_iter: int = 10,
        freeze: bool | None = None,
    ) -> None:
        accepted("GcDataset", freeze=freeze)
        collecting = _Collecting(
            checked_whole(every_n_iter, "GcDataset: every_n_iter", 1)
        )
        super().__init__(dataset, collecting, worker_config=worker_config)


@dataclass
class _Collecting:
    """Return items unchanged, and collect garbage after every few calls."""

    every: int
    given: int = field(default=0, compare=False)

    def __call__(self, item: Any) -> Any:
        self.given += 1
        if self.given % self.every == 0:
            gc.collect()
        return item


class WatchdogDataset(MapDataset[T]):
    """Pass items through unchanged; for compatibility with Megatron-Energon.

    Time-outs are arguments of the loader: `warn_after` and `timeout` of `get_loader`.

    Args:
        dataset: The dataset to read.
        worker_config: Seeds the order by its `seed_offset`; passed to `get_loader`.
        timeout_seconds: Without effect; logged.
        initial_timeout_seconds: Without effect; logged.
        fail_on_timeout: Without effect; logged.

    Example:
        >>> from energize import ListSource
        >>> list(WatchdogDataset(ListSource("ab")))
        ['a', 'b']
    """

    order_name = "WatchdogDataset"

    def __init__(
        self,
        dataset: Dataset[T],
        worker_config: WorkerConfig | None = None,
        timeout_seconds: float | None = None,
        initial_timeout_seconds: float | None = None,
        fail_on_timeout: bool | None = None,
    ) -> None:
        accepted(
            "WatchdogDataset",
            timeout_seconds=timeout_seconds,
            initial_timeout_seconds=initial_timeout_seconds,
            fail_on_timeout=fail_on_timeout,
        )
        super().__init__(dataset, _itself, worker_config=worker_config)


def _itself(item: Any) -> Any:
    return item
