"""Chains and multiplexer with the interface of squirrel, over datasets of energize.

A `Composable` is a stream with chained functions. A `Multiplexer` mixes sources of
unknown lengths, by the node in `energize.compat.multiplexing`.
"""

from __future__ import annotations

import copy
import logging
import random
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import chain, islice, repeat, zip_longest
from typing import Any, Self

import numpy as np
import torch.utils.data

from energize.compat.multiplexing import EpochEnd, LegacyDraws, MultiplexedDataset
from energize.core.checks import checked_choice, checked_whole
from energize.core.costs import ItemCost
from energize.core.dataset import Dataset
from energize.core.ignored import log_once
from energize.core.lanes import Lane, WorkerConfig
from energize.core.lazy import is_instance_of
from energize.core.reader import DatasetReader
from energize.core.rng import derive
from energize.core.stream import State
from energize.core.validation import short
from energize.data.memory import as_dataset
from energize.errors import ConfigError, WeightError
from energize.integrations.torch_data import SharedTable
from energize.loader.loader import open_loaders
from energize.loader.state import packed_state, unpacked_state
from energize.order import Scheme, make_scheme
from energize.order.weights import checked_weight, describe_differences

__all__ = [
    "Composable",
    "IterableSource",
    "Multiplexer",
    "MultiplexingStrategy",
    "MuxIterator",
]

_log = logging.getLogger("energize")

Scope = str
_SCOPES: tuple[Scope, ...] = ("rank", "worker")
"""Groups of processes that a stream can be divided among."""

_REPORT_INTERVAL = 64
"""Samples between two reports of a worker to the process of its DataLoader."""

_MOST_WORKERS = 64
"""Workers that `_WorkerCounts` has room for; further ones do not report."""


def _index_and_count(scope: Scope) -> tuple[int, int]:
    """Return the index of this process in its scope, and the number of processes."""
    if scope == "rank":
        ranks = WorkerConfig().ranks()
        return ranks.rank, ranks.world_size
    info = torch.utils.data.get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)


class Composable(torch.utils.data.IterableDataset[Any]):
    """A stream of items that can be chained: every method returns another stream.

    A subclass may define `__iter__` over `self.source`; `compose` adds it to a chain.

    Args:
        source: The stream or iterable that is read.

    Example:
        >>> odd = IterableSource(range(6)).filter(lambda n: n % 2)
        >>> odd.map(str).batched(2).collect()
        [['1', '3']]
    """

    order_name = "Composable"

    divided: frozenset[Scope] = frozenset()
    """Scopes ("rank", "worker") that this link of the chain is divided among."""

    def __init__(self, source: Any = None) -> None:
        self.source = source

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError

    def to(self, f: Callable[..., Iterator[Any]], *args: Any, **kw: Any) -> Composable:
        """Return the stream of `f(iterator, ...)`, over an iterator of this stream."""
        return _Chained(self, partial(_called, f, args, kw))

    def compose(
        self, constructor: Callable[..., Composable], *args: Any, **kw: Any
    ) -> Composable:
        """Return `constructor(...)` with this stream as its source."""
        stream = constructor(*args, **kw)
        stream.source = self
        return stream

    def map(self, callback: Callable[..., Any], **kw: Any) -> Composable:
        """Return a stream of `callback(item)`."""
        return _Chained(self, partial(map, partial(callback, **kw)))

    def async_map(self, callback: Callable[..., Any], **kw: Any) -> Composable:
        """Return a stream of `callback(item)`, like `map`.

        Use the workers of a DataLoader to overlap it with training.
        """
        options = {"buffer", "max_workers", "executor"} & kw.keys()
        return self.map(
            callback, **{name: kw[name] for name in kw if name not in options}
        )

    def filter(self, predicate: Callable[[Any], Any]) -> Composable:
        """Return a stream of the items for which `predicate(item)` is true."""
        return _Chained(self, partial(filter, predicate))

    def batched(
        self,
        batchsize: int,
        collation_fn: Callable[[list[Any]], Any] | None = None,
        drop_last_if_not_full: bool = True,
    ) -> Composable:
        """Return a stream of batches of `batchsize` items.

        Args:
            batchsize: Items per batch.
            collation_fn: Converts the list of items of a batch; None keeps the list.
            drop_last_if_not_full: Whether a last, smaller batch is dropped.
        """
        size = checked_whole(batchsize, "batched: batchsize", 1)
        return self.to(partial(_batched, size, collation_fn, drop_last_if_not_full))

    def flatten(self) -> Composable:
        """Return a stream of the items in every item."""
        return self.to(chain.from_iterable)

    def take(self, n: int | None) -> Composable:
        """Return a stream of the first `n` items; None for all."""
        return self if n is None else self.to(islice, n)

    def shuffle(
        self, size: int | None = 1000, *, seed: Any = None, **kw: Any
    ) -> Composable:
        """Return a stream in random order, by a buffer of `size` items.

        Args:
            size: Items in the buffer; None is 1,000.
            seed: Seed of the draws; None differs from run to run.
            **kw: Has no use.
        """
        return self.to(partial(_shuffled, 1000 if size is None else size, seed))

    def loop(self, n: int | None = None) -> Composable:
        """Return a stream of `n` passes over this one; None repeats without end.

        A pass without items ends the stream.
        """
        return _Chained(self, partial(_looped, n))

    def collect(self) -> list[Any]:
        """Return all items."""
        return list(self)

    def join(self) -> None:
        """Iterate over all items and discard them."""
        for _ in self:
            pass

    def split_by_rank_pytorch(self, torch_dist_group: Any = None) -> Composable:
        """Return a stream of the items of this rank, every world-size-th item."""
        return _Chained(self.marked_divided("rank"), partial(_strided, "rank"))

    def split_by_worker_pytorch(self) -> Composable:
        """Return a stream of the items of this DataLoader worker."""
        return _Chained(self.marked_divided("worker"), partial(_strided, "worker"))

    def to_torch_iterable(
        self, enforce_rank_check: bool = True, enforce_worker_check: bool = True
    ) -> Composable:
        """Return this stream, which is an iterable torch dataset already.

        Args:
            enforce_rank_check: False if the sources already divide their items among
                ranks; a multiplexer then does not divide them again.
            enforce_worker_check: The same for the workers of a DataLoader.
        """
        stream = self if enforce_rank_check else self.marked_divided("rank")
        return stream if enforce_worker_check else stream.marked_divided("worker")

    def marked_divided(self, scope: Scope) -> Self:
        """Return a copy of the chain that is marked as divided among `scope`."""
        chain_copy = copy.copy(self)
        chain_copy.divided = self.divided | {scope}
        if isinstance(chain_copy.source, Composable):
            chain_copy.source = chain_copy.source.marked_divided(scope)
        return chain_copy

    def divided_among(self) -> frozenset[Scope]:
        """Return the scopes that the whole chain is divided among."""
        if isinstance(self.source, Composable):
            return self.divided | self.source.divided_among()
        return self.divided


class ComposableSource(Composable):
    """A stream over an iterable, or over the result of a function.

    Every iteration starts at the first item. squirrel's name is `IterableSource`.

    Args:
        source: An iterable, or a function without arguments that returns one.

    Example:
        >>> IterableSource([1, 2, 3]).take(2).collect()
        [1, 2]
    """

    order_name = "IterableSource"

    def __iter__(self) -> Iterator[Any]:
        return iter(self.source() if callable(self.source) else self.source)


IterableSource = ComposableSource


class _Chained(Composable):
    """A function applied to the iterator of a stream."""

    order_name = "_Chained"

    def __init__(self, source: Composable, function: Callable[[Any], Any]) -> None:
        super().__init__(source)
        self._function = function

    def __iter__(self) -> Iterator[Any]:
        return iter(self._function(self.source))


def _called(
    f: Callable[..., Any],
    args: tuple[Any, ...],
    kw: dict[str, Any],
    items: Iterable[Any],
) -> Any:
    return f(iter(items), *args, **kw)


def _looped(times: int | None, items: Iterable[Any]) -> Iterator[Any]:
    for _ in repeat(None) if times is None else range(times):
        empty = True
        for item in items:
            empty = False
            yield item
        if empty:
            return


def _strided(scope: Scope, items: Iterable[Any]) -> Iterator[Any]:
    index, count = _index_and_count(scope)
    return islice(items, index, None, count)


def _batched(
    size: int,
    collate: Callable[[list[Any]], Any] | None,
    drop_last: bool,
    items: Iterator[Any],
) -> Iterator[Any]:
    while batch := list(islice(items, size)):
        if len(batch) == size or not drop_last:
            yield batch if collate is None else collate(batch)


def _shuffled(size: int, seed: Any, items: Iterator[Any]) -> Iterator[Any]:
    rng = random.Random(seed)  # noqa: S311 - of samples, not of secrets
    buffer = list(islice(items, max(size, 1)))
    for item in items:
        slot = rng.randrange(len(buffer))
        yield buffer[slot]
        buffer[slot] = item
    rng.shuffle(buffer)
    yield from buffer


_SPLITS: dict[Scope, str] = {"rank": "SplitByRank", "worker": "SplitByWorker"}
"""squirrel's class that divides a chain, by scope."""


def _has_split(stream: Any, split: str) -> bool:
    """Return whether a chain of squirrel itself contains a split."""
    if is_instance_of(stream, "squirrel.iterstream.torch_composables", split):
        return True
    if not is_instance_of(stream, "squirrel.iterstream", "Composable"):
        return False
    source = stream.source
    if isinstance(source, list | tuple):  # of a multiplexer of squirrel itself
        return bool(source) and all(_has_split(entry, split) for entry in source)
    return _has_split(source, split)


def _is_divided(source: object, scope: Scope) -> bool | None:
    """Return whether a source is divided among `scope`.

    None if it is unknown: an arbitrary iterable may query its rank or worker itself.
    """
    if isinstance(source, Composable):
        return scope in source.divided_among()
    if is_instance_of(source, "squirrel.iterstream", "Composable"):
        return _has_split(source, _SPLITS[scope]) or None
    stream = isinstance(source, Dataset) or is_instance_of(
        source, "datasets", "IterableDataset"
    )
    indexed = hasattr(source, "__len__") and hasattr(source, "__getitem__")
    return False if stream or indexed else None


class MultiplexingStrategy(Enum):
    """The order in which a `Multiplexer` reads its sources."""

    ROUND_ROBIN = "RoundRobin"
    """Sources in turn; exhausted sources are skipped; every sample is read once."""

    SAMPLING = "sampling"
    """Random order by the sampling probabilities."""

    UNIFORM_WITH_REPLACEMENT = "uniform_with_replacement"
    """Random order, all sources equally likely."""


@dataclass
class MuxIterator:
    """An open source of a multiplexer: index, iterator, and number of restarts."""

    index: int
    it: Iterator[Any]
    reinits: int


class Multiplexer(Composable):
    """One stream of samples from several sources of known or unknown length.

    ROUND_ROBIN reads the sources in turn, skips exhausted ones, and yields every
    sample once. The other strategies draw sources at random; an exhausted source
    restarts and fills its slot, so shares do not depend on lengths. An epoch ends when
    every source was exhausted at least once, or when one would be exhausted more than
    `max_reinits` times.

    Every iteration is one epoch, in an order of its own. `state_dict()` is exact after
    any sample. In the workers of a DataLoader and on several ranks every process reads
    all sources and yields its part of the samples; together the parts are the whole
    epoch. Sources that already divide their samples are not divided again: declare
    that with `to_torch_iterable(False, False)`, or divide with
    `split_by_rank_pytorch()` and `split_by_worker_pytorch()`. Use
    `persistent_workers=True` or `energize.get_loader(mux.dataset)`: workers that
    restart every epoch repeat the first one.

    Args:
        composables: Sources, as a list or a mapping by name. A source is an iterable
            that can be read repeatedly, a function that returns one, an object with
            `get_iter` (a driver), a `Composable`, or an energize dataset.
        mux_strategy: Order of the sources.
        sampling_probas: Probabilities, as a list or by name; they need not sum to 1.
        max_reinits: Restarts of a source before the epoch ends; None is unlimited.
        seed: Seed of the order; None draws one and logs it.
        proba_threshold: Sources with at most this probability are dropped, with a
            warning; `dropped` lists them.
        unit: Cost of an item, for example `len` of a text; shares are then shares of
            cost. None counts items.
        order: "squirrel" repeats the draws of squirrel-core 0.20, including their bias
            towards long sources.
        **unknown: Ignored, with a warning.

    Raises:
        ConfigError: For arguments that cannot be used, or if only some sources are
            divided among ranks or workers.
        WeightError: For probabilities that cannot be used.
        EmptyDatasetError: If a source without samples has to restart.

    Example:
        >>> from energize.compat.squirrel import Multiplexer, MultiplexingStrategy
        >>> mux = Multiplexer(
        ...     {"a": [1, 2], "b": [-1, -2, -3]}, MultiplexingStrategy.ROUND_ROBIN
        ... )
        >>> list(mux), mux.num_samples_by_name
        ([1, -1, 2, -2, -3], {'a': 2, 'b': 3})
    """

    order_name = "Multiplexer"

    def __init__(
        self,
        composables: Sequence[Any] | Mapping[str, Any],
        mux_strategy: MultiplexingStrategy = MultiplexingStrategy.ROUND_ROBIN,
        sampling_probas: Sequence[float] | Mapping[str, float] | None = None,
        max_reinits: int | None = None,
        seed: int | None = None,
        proba_threshold: float = 1e-3,
        *,
        unit: Callable[[Any], float] | ItemCost | None = None,
        order: str = "energize",
        **unknown: Any,
    ) -> None:
        for name, value in unknown.items():
            log_once(
                "Multiplexer", name, f"{name}={value!r} has no effect", logging.WARNING
            )
        checked_choice(order, "Multiplexer: order", ("energize", "squirrel"))
        by_name = _named_sources(composables, mux_strategy)
        if max_reinits is not None:
            max_reinits = checked_whole(max_reinits, "Multiplexer: max_reinits", 1)
        self.names = tuple(by_name)
        self.mux_strategy = mux_strategy
        self._in_turn = mux_strategy is MultiplexingStrategy.ROUND_ROBIN
        self._uniform = mux_strategy is MultiplexingStrategy.UNIFORM_WITH_REPLACEMENT
        threshold = checked_weight(proba_threshold, "Multiplexer", "proba_threshold")
        weights = self._weights(sampling_probas, threshold)
        self._sampled_names = tuple(weights)
        sources = {name: by_name[name] for name in weights}
        super().__init__(list(sources.values()))
        if callable(unit) and not isinstance(unit, ItemCost):
            unit = ItemCost(unit)
        self.dataset: MultiplexedDataset[Any] = MultiplexedDataset(
            [
                as_dataset(getattr(source, "get_iter", source), name)
                for name, source in sources.items()
            ],
            self._sampled_names,
            self._slots(weights, seed, legacy=order == "squirrel"),
            EpochEnd(
                "leave_out" if self._in_turn else "all_seen",
                (1 if self._in_turn else max_reinits,) * len(weights),
                slots_anew=self._in_turn,
            ),
            unit=unit,
        )
        self._start: State | None = None
        """State at the start of the epoch, or the loaded state."""
        self._cursor: DatasetReader[Any] | None = None
        self._counts = _WorkerCounts(len(weights))

    def _weights(self, probas: Any, threshold: float) -> dict[str, float]:
        """Return the weights of the sources that are read, by name."""
        if self._in_turn and probas is not None:
            _log.warning(
                "Multiplexer: round robin reads every source; sampling_probas are "
                "ignored"
            )
        if self._in_turn or (self._uniform and probas is None):
            return dict.fromkeys(self.names, 1.0)
        return _above_threshold(_checked_probas(self.names, probas), threshold)

    def _slots(
        self, probas: Mapping[str, float], seed: int | None, *, legacy: bool
    ) -> Scheme:
        if self._in_turn:
            return make_scheme("round_robin", probas)
        seed = checked_seed(seed, "Multiplexer")
        if legacy:
            return LegacyDraws(tuple(probas.values()), self._uniform, seed)
        key = derive("multiplexer", seed, *probas)
        return make_scheme("uniform" if self._uniform else "random", probas, key=key)

    def __iter__(self) -> Iterator[Any]:
        self._cursor = self.dataset.open(state=self._start)
        return self._deliver(self._cursor)

    def _deliver(self, cursor: DatasetReader[Any]) -> Iterator[Any]:
        lane = self._lane()
        in_worker = torch.utils.data.get_worker_info() is not None
        for number, item in enumerate(cursor, sum(self._cursor_counts("given"))):
            if in_worker and number % _REPORT_INTERVAL == 0:
                self._report_counts()
            if number % lane.count == lane.index:
                yield item
        if in_worker:
            self._report_counts()
        self._start = cursor.state()

    def _report_counts(self) -> None:
        self._counts.report(
            self._cursor_counts("given") + self._cursor_counts("passes")
        )

    def _lane(self) -> Lane:
        """Return the part of the samples that this process yields."""
        rank, ranks = _index_and_count("rank") if self._divides("rank") else (0, 1)
        worker = 0
        workers = 1
        if self._divides("worker"):
            worker, workers = _index_and_count("worker")
        return Lane(rank + ranks * worker, ranks * workers)

    def _divides(self, scope: Scope) -> bool:
        """Return whether the multiplexer divides its samples among `scope`."""
        index, count = _index_and_count(scope)
        divided = [_is_divided(source, scope) for source in self.source]
        if scope in self.divided or count == 1 or all(divided):
            return False
        if all(state is False for state in divided):
            return True
        pairs = zip(self._sampled_names, divided, strict=True)
        unclear = ", ".join(repr(name) for name, state in pairs if state is not False)
        remedy = (
            f"If every source yields all its samples in every {scope}, call "
            f"mux.split_by_{scope}_pytorch(); if all sources are divided already, "
            "call mux.to_torch_iterable(False, False)"
        )
        if False in divided:
            raise ConfigError(
                f"Multiplexer: with {count} {scope}s, {unclear} may yield a different "
                f"part in each {scope}, and other sources do not. {remedy}"
            )
        if index == 0:
            text = (
                f"there are {count} {scope}s, and it is unknown whether {unclear} "
                f"yield a different part in each {scope}. They are read as they are, "
                f"as squirrel does. {remedy}"
            )
            log_once("Multiplexer", f"divided by {scope}", text, logging.WARNING)
        return False

    def divided_among(self) -> frozenset[Scope]:
        """Return the scopes that the samples are divided among."""
        by_sources = {
            scope
            for scope in _SCOPES
            if all(_is_divided(source, scope) for source in self.source)
        }
        return self.divided | by_sources

    @property
    def dropped(self) -> tuple[str, ...]:
        """Names of the sources with a probability of at most `proba_threshold`."""
        return tuple(name for name in self.names if name not in self._sampled_names)

    @property
    def num_samples(self) -> list[int]:
        """Samples read from each source in the latest iteration, without `dropped`.

        Includes loaders and the workers of a DataLoader; workers report their last
        samples when they end.
        """
        return self._counted("given")

    @property
    def num_samples_by_name(self) -> dict[str, int]:
        """`num_samples` by name; 0 for dropped sources."""
        return self._by_name(self.num_samples)

    @property
    def reinit_counts(self) -> list[int]:
        """How often each source was exhausted in the latest iteration.

        Empty for round robin, which restarts no source.
        """
        return [] if self._in_turn else self._counted("passes")

    @property
    def reinit_counts_by_name(self) -> dict[str, int]:
        """`reinit_counts` by name; 0 for all others."""
        return self._by_name(self.reinit_counts)

    def _counted(self, field: str) -> list[int]:
        """Return the counts "given" or "passes", as in states, of an iteration."""
        sources = len(self._sampled_names)
        if self._cursor is None and (lanes := _lanes_of(self.dataset)):
            return list(max((lane[field] for lane in lanes), key=sum))
        reported = self._counts.read(add_up="worker" in self.divided_among())
        if reported is None:
            return self._cursor_counts(field)
        if field == "given":
            return reported[:sources]
        return reported[sources:]

    def _cursor_counts(self, field: str) -> list[int]:
        stream = getattr(self._cursor, "stream", None)
        attribute = "delivered" if field == "given" else field
        return list(getattr(stream, attribute, [0] * len(self._sampled_names)))

    def _by_name(self, counts: list[int]) -> dict[str, int]:
        return dict.fromkeys(self.names, 0) | dict(
            zip(self._sampled_names, counts, strict=False)
        )

    def state_dict(self) -> State:
        """Return the state after the last sample; JSON-able, of constant size."""
        cursor = self._cursor or self.dataset.open(state=self._start)
        return packed_state(self.dataset, cursor.state())

    def load_state_dict(self, state_dict: State) -> None:
        """Resume from a state in the next iteration.

        Args:
            state_dict: A result of `state_dict`.

        Raises:
            StateMismatchError: If the state belongs to another multiplexer; the message
                names the difference.
            StateError: If the state cannot be used.
        """
        resume = unpacked_state(self.dataset, state_dict)
        self._cursor = self.dataset.open(state=resume)  # raises for unusable states
        self._start = resume


def _named_sources(composables: Any, strategy: object) -> Mapping[str, Any]:
    """Return the sources by name; raise for anything but sources and a strategy."""
    sources: Mapping[str, Any] = composables
    if not isinstance(composables, Mapping):
        sources = {str(number): source for number, source in enumerate(composables)}
    if sources and isinstance(strategy, MultiplexingStrategy):
        return sources
    raise ConfigError(
        "Multiplexer: expected a list of sources, or a mapping by name, and a "
        f"MultiplexingStrategy, got {short(composables)} and {short(strategy)}"
    )


def _checked_probas(names: Sequence[str], probas: Any) -> dict[str, float]:
    """Return the sampling probabilities by name."""
    if not isinstance(probas, Mapping):
        values = [] if probas is None else probas
        probas = dict(zip_longest(names, values, fillvalue=""))
    difference = describe_differences(names, probas)
    if difference:
        raise WeightError(f"Multiplexer: sampling_probas and sources: {difference}")
    return {
        name: checked_weight(probas[name], f"Multiplexer: sampling_probas of {name!r}")
        for name in names
    }


def _above_threshold(probas: dict[str, float], threshold: float) -> dict[str, float]:
    """Return the sources above `threshold`; log the others."""
    sampled = {name: value for name, value in probas.items() if value > threshold}
    if not sampled:
        raise WeightError(
            "Multiplexer: no sampling probability is above proba_threshold "
            f"{threshold}: {probas}. Lower proba_threshold or raise a probability"
        )
    dropped = [name for name in probas if name not in sampled]
    if dropped:
        names = ", ".join(f"{name!r} ({probas[name]:g})" for name in dropped)
        _log.warning(
            "Multiplexer: dropped, as proba_threshold is %g: %s", threshold, names
        )
    return sampled


def _lanes_of(dataset: Dataset[Any]) -> list[State]:
    """Return the states of all lanes in which open loaders read `dataset`.

    Every lane reads the whole dataset.
    """
    lanes = []
    for loader in open_loaders:
        if loader.dataset is not dataset or loader.position is None:
            continue
        for state in filter(None, loader.position.cursors.values()):
            mix = state["input"].get("input", state["input"])
            lanes.append(mix.get("ended", mix))
    return lanes


class _WorkerCounts(SharedTable):
    """Counts that DataLoader workers report to the process that started them."""

    def __init__(self, sources: int) -> None:
        self._width = 2 * sources
        super().__init__([0] * (_MOST_WORKERS * (1 + self._width)))

    def report(self, counts: list[int]) -> None:
        """Store the counts of this worker for the current DataLoader loop."""
        info: Any = torch.utils.data.get_worker_info()
        if info.id < _MOST_WORKERS:
            start = info.id * (1 + self._width)
            mark = (info.seed - info.id) % 2**62 + 1
            self._table[start : start + 1 + self._width] = [mark, *counts]

    def read(self, *, add_up: bool) -> list[int] | None:
        """Return the counts of the last loop; None if no worker reported.

        Args:
            add_up: Whether the workers read different samples; otherwise the counts
                are those of the worker that is farthest.
        """
        rows = np.array(self._table[:], dtype=np.int64).reshape(_MOST_WORKERS, -1)
        rows = rows[rows[:, 0] == rows[0, 0]] if rows[0, 0] else rows[:0]
        if not len(rows):
            return None
        counts = rows[:, 1:]
        totals: list[int] = (counts.sum(0) if add_up else counts.max(0)).tolist()
        return totals


def checked_seed(seed: int | None, owner: str) -> int:
    """Return `seed`, or draw and log one.

    Args:
        seed: A whole number from 0; None draws one.
        owner: Name of the caller, for messages.

    Raises:
        ConfigError: If `seed` is not a whole number from 0, or if it is None with
            several ranks: each would draw another seed and read the same data.
    """
    if seed is not None:
        return checked_whole(seed, f"{owner}: seed", 0)
    if WorkerConfig().world_size > 1:
        raise ConfigError(
            f"{owner}: seed is None with several ranks, so each rank would draw "
            "another order. Pass the same seed on all ranks"
        )
    drawn = secrets.randbits(32)
    _log.info("%s: drew seed %d. Pass it to repeat this order", owner, drawn)
    return drawn
