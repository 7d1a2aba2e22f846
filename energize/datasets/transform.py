"""What is done with each item: functions, filters, logs, weights; order stays as it
is.
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
    RoundsDataset,
    Step,
    Taken,
    alone,
    keyed_by,
)
from energize.errors import WeightError

T = TypeVar("T")
T_in = TypeVar("T_in")
T_out_co = TypeVar("T_out_co", covariant=True)
T_co = TypeVar("T_co", covariant=True)


class MapDataset(PassingDataset[T_out_co]):
    """`map_fn(item)` for each item; order and number stay as they are.

    The function may raise `SkipSample` to leave an item out and `DataError` for bad
    bytes; a substitute from the same source comes in its place, from a stream the next
    item. Any other exception is raised as `EncoderError` with the sample's source.

    A function that is written with `yield` gives any number of items of each: the
    result is then a `FlatMapDataset`, a stream, which resumes between any two of them.

    A function with a parameter `rng` is given a `numpy.random.Generator` keyed by
    (seed, position). If it draws from the global generators of random, numpy or torch
    instead, they are seeded in the same way for each call and restored afterwards.
    Random augmentations are therefore the same for any number of workers and after a
    resume. With `seeded=False` the function is called as it is, and nothing is checked.
    Its first calls are made twice and compared: a function that keeps state between
    calls raises `NotRepeatableError` (see `FailurePolicy.check_functions`).

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
        return self._call.each(items, request)


class FlatMapDataset(RoundsDataset[T_out_co], MapDataset[T_out_co]):
    """What a generator function yields of each item: any number of items.

    How many come depends on the data, so this is a stream. In a loader each lane reads
    its own part of the input. A run resumes after any item: the function is called
    again for the same item, with the same random numbers, and what it has given already
    is left out. `MapDataset` makes it of such a function.

    >>> from energize import ListSource
    >>> list(MapDataset(ListSource(["ab", "", "c"]), lambda text: (yield from text)))
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
        self, items: Iterator[Taken], reading: ReadContext
    ) -> Iterator[Step[T_out_co]]:
        for taken in islice(items, 1):
            yield partial(self._yielded, taken, reading)

    def _yielded(
        self, taken: Taken, reading: ReadContext
    ) -> Iterator[tuple[T_out_co, Origins]]:
        word = partial(keyed_by, self, "map", *taken.origin)
        where = by_keys(taken.item)
        of = (self, taken.origin)
        for item in self._call.items(
            taken.item, word, taken.number, reading, where, made=of
        ):
            yield item, taken.origin


class FilterDataset(RoundsDataset[T_co]):
    """The items for which `filter_fn(item)` is true.

    How many come out depends on the data, so this is a stream: it has no length and no
    random access, and neither has what is built on it. In a loader each lane filters
    its own part of the input, so ranks and workers share the work. Where a substitute
    may take the place of a bad sample, raising `SkipSample` in an encoder keeps the
    dataset indexed. A condition with a parameter `rng` is given a
    `numpy.random.Generator` keyed by what the item is made of.

    `EmptyDatasetError` is raised when nothing is found in some passes over the input,
    or in a million items, instead of searching for ever.

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
        self, items: Iterator[Taken], reading: ReadContext
    ) -> Iterator[Step[T_co]]:
        for taken in islice(items, 1):
            word = partial(keyed_by, self, "filter", *taken.origin)
            kept = self._call.one(
                taken.item, word, taken.number, reading, by_keys(taken.item)
            )
            if isinstance(kept, Failed):
                reading.leave_out(kept, self, taken.origin)
            elif kept:
                yield partial(alone, taken)


class IterMapDataset(RoundsDataset[T_out_co]):
    """What `iter_map_fn(items)` yields, a generator function of an iterator over items.

    So that a run can resume without reading all of it again, the function is called
    anew for each `segment_length` items of a lane, and at the start of each pass: its
    iterator ends there, and it has to yield what it still holds. A run resumes after
    any item that it yields; the segment is read again then, and what it has given is
    left out.

    A function that raises is given the rest of its segment in a new call, where the
    loader goes on after errors (`get_loader(on_error="skip")`) or it raised
    `SkipSample` or `DataError`; what it held is lost then, and reported.

    What it yields of samples that have weights in the loss has to say its own, as only
    the function knows which samples it made each item of: `__sample_weight__`, which
    `derive_from` takes over, or `sample_weights` of a batch.

    `len_map_fn` says of the length of the input what `len` is, for progress bars;
    without it there is none.

    Raises `ConfigError` for a segment length below 1.

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
        self, items: Iterator[Taken], reading: ReadContext
    ) -> Iterator[Step[T_out_co]]:
        yield partial(self._made, islice(items, self.segment_length), reading)

    def _made(
        self, segment: Iterator[Taken], reading: ReadContext
    ) -> Iterator[tuple[T_out_co, Origins]]:
        """Yield what the function makes of a segment, each with what was read since the
        one before.
        """
        for (
            first
        ) in segment:  # one call, and another one for what is left after a failure
            read: list[Origin] = list(first.origin)
            passed = Passed()

            def items(
                first: Taken = first, read: list[Origin] = read, passed: Passed = passed
            ) -> Iterator[Any]:
                passed.take(first.item)
                yield first.item
                while (each := _next_for_call(segment)) is not None:
                    read.extend(each.origin)
                    passed.take(each.item)
                    yield each.item

            word = partial(keyed_by, self, "segment", *first.origin)
            call = Call(
                self.iter_map_fn, 0, passed.give, tolerance=self.failure_tolerance()
            )
            of = self, first.origin
            for made in call.items(
                items(), word, first.number, reading, self._segment, made=of
            ):
                yield made, tuple(read)
                read.clear()

    def _segment(self, _: int) -> str:
        return f"a segment of {type(self).__name__}"


def _next_for_call(items: Iterator[Taken]) -> Taken | None:
    """Return the next item for the function that is being called; None at the end."""
    window = current_window()
    if window is None:
        return next(items, None)
    read: Callable[[], Taken | None] = partial(next, items, None)
    return window.read_for_call(read)


_log = logging.getLogger("energize.samples")


class LogSampleDataset(PassingDataset[T_co]):
    """Passes items through and logs each as a line of JSON, on the logger
    `energize.samples` (INFO).

    A line has `mode` (whatever you call this loader), `position` and `keys`: what
    `get_keys_fn(item)` returns, by default the item's `__key__` or `__keys__`. A line
    is written by the process that reads the item, when it reads it: with prefetching
    that is before it is delivered.

    >>> from energize import ListSource
    >>> list(
    ...     LogSampleDataset(ListSource("ab"), "train", get_keys_fn=lambda item: [item])
    ... )
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
        keys_of_items = self._call.each(items, request)
        for position, keys in zip(
            request.positions.tolist(), keys_of_items, strict=True
        ):
            if type(keys) is not Failed:
                line = {"mode": self.mode, "position": position, "keys": keys}
                defer(partial(_log.info, "%s", json.dumps(line, default=str)))
        return items


def default_keys(item: Any) -> Any:
    """Return the keys that samples and batches carry."""
    for name in ("__key__", "__keys__"):
        keys = item.get(name) if isinstance(item, dict) else getattr(item, name, None)
        if keys is not None:
            return keys
    return None


class SampleWeightDataset(MapDataset[T]):
    """Items that count `weight` times as much in the loss; nothing else of them
    changes.

    `weight` is a number, 0 or more, or a function of an item. It multiplies with what
    is said below and above, in other datasets of this kind, in a metadataset, and by
    the encoder, and arrives in a batch as `sample_weights`, float32 of shape (batch,).
    Over batches, or packs, it is that of each of their samples. It decides no order:
    which samples come, and the random numbers that functions draw, are the same without
    it, and a resumed run may have other weights.

    Raises `WeightError` for a weight that is negative or not finite, at once or, of a
    function, naming the item; and when it is read, for items of a type without a place
    for a weight.

    >>> from energize import ListSource
    >>> texts = ListSource([{"text": "a"}, {"text": "b"}])
    >>> SampleWeightDataset(texts, 0.5)[1]
    {'text': 'b', '__sample_weight__': 0.5}
    >>> long = SampleWeightDataset(texts, lambda sample: float(len(sample["text"])))
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
        given = weight
        if not callable(weight):
            given = checked_factor(weight, "SampleWeightDataset: weight")
        weighing = Weighing(
            given, isinstance(dataset, Dataset) and gives_batches(dataset)
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
        """The weight, or the function that says it."""
        weighing = cast("Weighing", self.map_fn)
        return weighing.weight


def without_weights(
    dataset: Dataset[T],
) -> tuple[Dataset[T], Callable[[Dataset[T]], Dataset[T]]]:
    """Return what is weighed, below all datasets of this kind, and what weighs another
    dataset so.
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


def counted_alike(datasets: Iterable[Dataset[T]]) -> list[Dataset[T]]:
    """Return the inputs of a mix; if one of them has loss weights, the items of the
    others get 1.

    So all items of the mix have the same keys, whichever input they are from.
    """
    inputs = list(datasets)
    # None: not a dataset, which the mix refuses.
    weighted = [getattr(each, "has_loss_weights", None) for each in inputs]
    if not any(weighted):
        return inputs
    return [
        _counted_once(dataset) if has_weights is False else dataset
        for dataset, has_weights in zip(inputs, weighted, strict=True)
    ]


def _counted_once(dataset: Dataset[T]) -> Dataset[T]:
    weighing = Weighing(1.0, gives_batches(dataset), optional=True)
    return SampleWeightDataset(dataset, 1.0).replace(map_fn=weighing, seeded=False)


@dataclass(frozen=True)
class Weighing:
    """Gives an item its weight.

    `batched`: items are batches. `optional`: an item without a place for a weight stays
    as it is.
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
        """Return the weight, as a description has it."""
        return f"sample_weight={described(self.weight)}"


def gives_batches(dataset: Dataset[Any]) -> bool:
    """Return whether items are batches, as far as the tree says."""
    own = dataset.traits.gives_batches
    if own is not None:
        return own
    return bool(dataset.inputs) and all(gives_batches(each) for each in dataset.inputs)


class GcDataset(MapDataset[T]):
    """Passes items through, and runs the garbage collector after every `every_n_iter`
    of them.

    Each process that reads counts its own items. Loaders here add none by themselves;
    where samples refer to each other in circles, one of these keeps their memory from
    piling up. It may be added or left out in the middle of a run.

    Raises `ConfigError` for less than 1.

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
    """Hands on what it is given, and collects garbage now and then."""

    every: int
    given: int = field(default=0, compare=False)

    def __call__(self, item: Any) -> Any:
        self.given += 1
        if self.given % self.every == 0:
            gc.collect()
        return item


class WatchdogDataset(MapDataset[T]):
    """Passes items through. It is the loader that watches here:
    `warn_after` and `timeout` of `get_loader`; the arguments of
    those names have no effect.

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
