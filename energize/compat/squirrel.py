"""squirrel's words for mixing streams whose lengths nobody knows."""

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
from energize.core.ignored import said_once
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
from energize.order.weights import checked_weight, names_apart

__all__ = [
    "Composable",
    "IterableSource",
    "Multiplexer",
    "MultiplexingStrategy",
    "MuxIterator",
]

_log = logging.getLogger("energize")

Kind = str
_KINDS: tuple[Kind, ...] = ("rank", "worker")
"""What a stream is divided among."""

_FLUSHED = 64
"""After so many samples a worker tells the process of its DataLoader how many it has
read."""

_MOST_WORKERS = 64


def _places(kind: Kind) -> tuple[int, int]:
    """Return which one this process is, and how many there are."""
    if kind == "rank":
        ranks = WorkerConfig().ranks()
        return ranks.rank, ranks.world_size
    info = torch.utils.data.get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)


class Composable(torch.utils.data.IterableDataset[Any]):
    """A stream over `source`, after which functions are chained: each returns another
    one.

    A subclass may define `__iter__` over `self.source`, and stand in a chain by
    `compose`.

    >>> IterableSource(range(6)).filter(lambda n: n % 2).map(str).batched(2).collect()
    [['1', '3']]
    """

    order_name = "Composable"

    _divided: frozenset[Kind] = frozenset()

    def __init__(self, source: Any = None) -> None:
        self.source = source

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError

    def to(self, f: Callable[..., Iterator[Any]], *args: Any, **kw: Any) -> Composable:
        """Return the stream that `f(iterator, ...)` makes of an iterator over this
        one.
        """
        return _Chained(self, partial(_called, f, args, kw))

    def compose(
        self, constructor: Callable[..., Composable], *args: Any, **kw: Any
    ) -> Composable:
        """Return `constructor(...)` with this stream as its source."""
        made = constructor(*args, **kw)
        made.source = self
        return made

    def map(self, callback: Callable[..., Any], **kw: Any) -> Composable:
        """Return a stream of `callback(item)`."""
        return _Chained(self, partial(map, partial(callback, **kw)))

    def async_map(self, callback: Callable[..., Any], **kw: Any) -> Composable:
        """As `map`: workers of a DataLoader do it beside the training."""
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
        """Return a stream of lists of `batchsize` items, or of what `collation_fn`
        makes of these.
        """
        size = checked_whole(batchsize, "batched: batchsize", 1)
        return self.to(partial(_batched, size, collation_fn, drop_last_if_not_full))

    def flatten(self) -> Composable:
        """Return a stream of the items of items."""
        return self.to(chain.from_iterable)

    def take(self, n: int | None) -> Composable:
        """Return a stream of the first `n` items; None for all."""
        return self if n is None else self.to(islice, n)

    def shuffle(
        self, size: int | None = 1000, *, seed: Any = None, **kw: Any
    ) -> Composable:
        """Return a stream in which each item is drawn at random from the next
        `size`.
        """
        return self.to(partial(_shuffled, 1000 if size is None else size, seed))

    def loop(self, n: int | None = None) -> Composable:
        """Return a stream that goes over this one `n` times, or for ever."""
        return _Chained(self, partial(_looped, n))

    def collect(self) -> list[Any]:
        """Return all items."""
        return list(self)

    def join(self) -> None:
        """Go over all items."""
        for _ in self:
            pass

    def split_by_rank_pytorch(self, torch_dist_group: Any = None) -> Composable:
        """Return a stream of this rank's items: every so many-th."""
        return _Chained(self._told("rank"), partial(_part, "rank"))

    def split_by_worker_pytorch(self) -> Composable:
        """Return a stream of the items of this worker of a DataLoader: every so
        many-th.
        """
        return _Chained(self._told("worker"), partial(_part, "worker"))

    def to_torch_iterable(
        self, enforce_rank_check: bool = True, enforce_worker_check: bool = True
    ) -> Composable:
        """Return the same stream, which is an iterable torch dataset as it is.

        False says that the sources give every rank, or every worker, a part of their
        own already, so that the multiplexer does not divide among these again.
        """
        told = self if enforce_rank_check else self._told("rank")
        return told if enforce_worker_check else told._told("worker")

    def _told(self, kind: Kind) -> Self:
        """Return the same chain, which knows that it is divided among these without
        it.
        """
        other = copy.copy(self)
        other._divided = self._divided | {kind}
        if isinstance(other.source, Composable):
            other.source = other.source._told(kind)
        return other

    def _split(self) -> frozenset[Kind]:
        """Return what the stream is divided among."""
        before = (
            self.source._split() if isinstance(self.source, Composable) else frozenset()
        )
        return self._divided | before


class ComposableSource(Composable):
    """A stream over an iterable, or over what a function returns.

    squirrel calls it `IterableSource`. The iterable is read from its beginning in every
    iteration.

    Example:
        >>> IterableSource([1, 2, 3]).take(2).collect()
        [1, 2]
    """

    order_name = "IterableSource"

    def __iter__(self) -> Iterator[Any]:
        return iter(self.source() if callable(self.source) else self.source)


IterableSource = ComposableSource


class _Chained(Composable):
    """What a function makes of the items of a stream."""

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
        yield from items


def _part(kind: Kind, items: Iterable[Any]) -> Iterator[Any]:
    number, count = _places(kind)
    return islice(items, number, None, count)


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
    held = list(islice(items, max(size, 1)))
    for item in items:
        at = rng.randrange(len(held))
        yield held[at]
        held[at] = item
    rng.shuffle(held)
    yield from held


def _is_divided(source: object, kind: Kind) -> bool | None:
    """Return whether a source is divided already; None where it may be, unseen, by
    asking for the worker itself.
    """
    if isinstance(source, Composable):
        return kind in source._split()
    stream = isinstance(source, Dataset) or is_instance_of(
        source, "datasets", "IterableDataset"
    )
    indexed = hasattr(source, "__len__") and hasattr(source, "__getitem__")
    return False if stream or indexed else None


class MultiplexingStrategy(Enum):
    """How a `Multiplexer` chooses the source of the next sample."""

    ROUND_ROBIN = "RoundRobin"
    """One source after another; an exhausted one is left out; each sample comes exactly
    once."""

    SAMPLING = "sampling"
    """Random order by the sampling probabilities."""

    UNIFORM_WITH_REPLACEMENT = "uniform_with_replacement"
    """Random order, every source equally likely."""


@dataclass
class MuxIterator:
    """A source that is read: its number, its iterator, and how often it has begun
    again.
    """

    index: int
    it: Iterator[Any]
    reinits: int


class Multiplexer(Composable):
    """One stream of samples of several sources, whose lengths need not be known.

    `composables`: a list of sources, or a mapping of names to them. A source is
    anything that can be iterated over again and again, a function that makes an
    iterable, an object with `get_iter` (a driver), a `Composable`, or an energize
    dataset. `sampling_probas`: a list, or a mapping by name; they need not sum to 1.
    Sources with one of at most `proba_threshold` are left out, and named in the log and
    in `dropped`.

    ROUND_ROBIN, the default, takes the sources in turn, leaves out exhausted ones, and
    yields each sample once. The others mix them in random order; an exhausted one
    starts again and fills the slot, so shares do not depend on lengths. They end when
    every source was exhausted at least once, or when one was `max_reinits` times: that
    shows when it is drawn once more.

    `seed` decides the order; None draws one, which the log tells.

    `unit`: what an item costs, a function or an `ItemCost`, len of a text say: shares
    are then those of what items cost. `order="squirrel"` repeats the draws of
    squirrel-core 0.20, with their bias towards long sources.

    Iterating starts an epoch; when one has ended the next iteration is the next epoch,
    in another order. `state_dict()` is exact after any sample. In torch workers and on
    several ranks each process reads all sources and yields its part of the samples, all
    parts together being the whole epoch; unless the sources are divided among them
    already. Where a source may divide itself, which nobody can see, that has to be
    said: `split_by_rank_pytorch()` and `split_by_worker_pytorch()` divide here,
    `to_torch_iterable(False, False)` does not. Workers that are started anew for every
    epoch know no earlier epochs and repeat the first: use `persistent_workers=True`, or
    `energize.get_loader(mux.dataset)`.

    Raises `ConfigError` or `WeightError` for what cannot be used, and for sources of
    which nobody can know whether they are divided; `EmptyDatasetError` naming a source
    that is to start again and has no samples.

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
            said_once(
                "Multiplexer", name, f"{name}={value!r} has no effect", logging.WARNING
            )
        checked_choice(order, "Multiplexer: order", ("energize", "squirrel"))
        if not isinstance(composables, Mapping):
            composables = {str(number): each for number, each in enumerate(composables)}
        if not composables or not isinstance(mux_strategy, MultiplexingStrategy):
            raise ConfigError(
                "Multiplexer: give a list of sources, or a mapping of names to them, "
                f"and a MultiplexingStrategy; got {short(composables)} and "
                f"{short(mux_strategy)}"
            )
        if max_reinits is not None:
            max_reinits = checked_whole(max_reinits, "Multiplexer: max_reinits", 1)
        self.names = tuple(composables)
        self.mux_strategy = mux_strategy
        self._in_turn = mux_strategy is MultiplexingStrategy.ROUND_ROBIN
        self._uniform = mux_strategy is MultiplexingStrategy.UNIFORM_WITH_REPLACEMENT
        threshold = checked_weight(proba_threshold, "Multiplexer", "proba_threshold")
        kept = self._drawn_from(sampling_probas, threshold)
        self._kept = tuple(kept)
        sources = {name: composables[name] for name in kept}
        super().__init__(list(sources.values()))
        self.dataset: MultiplexedDataset[Any] = MultiplexedDataset(
            [
                as_dataset(getattr(each, "get_iter", each), name)
                for name, each in sources.items()
            ],
            self._kept,
            self._slots(kept, seed, legacy=order == "squirrel"),
            EpochEnd(
                "leave_out" if self._in_turn else "all_seen",
                (1 if self._in_turn else max_reinits,) * len(kept),
                slots_anew=self._in_turn,
            ),
            unit=ItemCost(unit)
            if callable(unit) and not isinstance(unit, ItemCost)
            else unit,
        )
        self._start: State | None = None  # of this epoch, or what was loaded
        self._cursor: DatasetReader[Any] | None = None
        self._counts = _Counts(len(kept))

    def _drawn_from(self, probas: Any, threshold: float) -> dict[str, float]:
        """Return the sources that are drawn from, with their probabilities: those above
        `threshold`.

        Round robin takes every source; uniform draws take those that would be drawn at
        all.
        """
        if self._in_turn and probas is not None:
            _log.warning(
                "Multiplexer: round robin takes every source; sampling_probas are "
                "ignored"
            )
        if self._in_turn or (self._uniform and probas is None):
            return dict.fromkeys(self.names, 1.0)
        if not isinstance(probas, Mapping):
            probas = dict(
                zip_longest(self.names, [] if probas is None else probas, fillvalue="")
            )
        difference = names_apart(self.names, probas)
        if difference:
            raise WeightError(f"Multiplexer: sampling_probas and sources: {difference}")
        given = {
            name: checked_weight(
                probas[name], f"Multiplexer: sampling_probas of {name!r}"
            )
            for name in self.names
        }
        kept = {name: value for name, value in given.items() if value > threshold}
        if not kept:
            raise WeightError(
                "Multiplexer: no sampling probability is above proba_threshold "
                f"{threshold}: "
                f"{given}; nothing could ever be drawn"
            )
        if len(kept) < len(given):
            told = ", ".join(
                f"{each!r} ({given[each]:g})" for each in given if each not in kept
            )
            _log.warning(
                "Multiplexer: left out, as proba_threshold is %g: %s", threshold, told
            )
        return kept

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
        return self._given(self._cursor)

    def _given(self, cursor: DatasetReader[Any]) -> Iterator[Any]:
        lane = self._lane()
        tell = torch.utils.data.get_worker_info() is not None
        for number, item in enumerate(cursor, sum(self._of_cursor("given"))):
            if tell and number % _FLUSHED == 0:
                self._tell()
            if number % lane.count == lane.index:
                yield item
        if tell:
            self._tell()
        self._start = cursor.state()

    def _tell(self) -> None:
        self._counts.tell(self._of_cursor("given") + self._of_cursor("passes"))

    def _lane(self) -> Lane:
        """Return the part of the samples that this process yields."""
        rank, ranks = _places("rank") if self._divides("rank") else (0, 1)
        worker, workers = _places("worker") if self._divides("worker") else (0, 1)
        return Lane(rank + ranks * worker, ranks * workers)

    def _divides(self, kind: Kind) -> bool:
        """Return whether samples are divided here, among ranks or workers."""
        place, count = _places(kind)
        found = [_is_divided(each, kind) for each in self.source]
        if kind in self._divided or count == 1 or all(found):
            return False
        if all(each is False for each in found):
            return True
        pairs = zip(self._kept, found, strict=True)
        named = ", ".join(repr(name) for name, each in pairs if each is not False)
        remedy = (
            f"Where every source gives all its samples everywhere, say "
            f"mux.split_by_{kind}_pytorch(); where all of them are divided already, "
            "mux.to_torch_iterable(False, False)"
        )
        if False in found:
            raise ConfigError(
                f"Multiplexer: there are {count} {kind}s, and {named} give each {kind} "
                "a part of their own, or may do so unseen, and other sources do not. "
                f"{remedy}"
            )
        if place == 0:
            text = (
                f"there are {count} {kind}s, and nothing shows whether {named} give "
                f"each {kind} a part of their own. They are read as they are, as "
                "squirrel does. "
                f"{remedy}"
            )
            said_once("Multiplexer", f"divided by {kind}", text, logging.WARNING)
        return False

    def _split(self) -> frozenset[Kind]:
        found = {
            kind
            for kind in _KINDS
            if all(_is_divided(each, kind) for each in self.source)
        }
        return self._divided | found

    @property
    def dropped(self) -> tuple[str, ...]:
        """The sources left out because their probability is at most
        `proba_threshold`.
        """
        return tuple(name for name in self.names if name not in self._kept)

    @property
    def num_samples(self) -> list[int]:
        """Samples of each source that is drawn from, in the latest iteration, by a
        loader and by workers of a DataLoader, too: of these, some of the last samples
        only when they have ended.
        """
        return self._counted("given")

    @property
    def num_samples_by_name(self) -> dict[str, int]:
        """The same by name, with 0 for sources that are left out."""
        return self._by_name(self.num_samples)

    @property
    def reinit_counts(self) -> list[int]:
        """How often each source that is drawn from was exhausted, in the latest
        iteration. Empty for round robin, which starts no source again.
        """
        return [] if self._in_turn else self._counted("passes")

    @property
    def reinit_counts_by_name(self) -> dict[str, int]:
        """The same by name, with 0 for all others."""
        return self._by_name(self.reinit_counts)

    def _counted(self, what: str) -> list[int]:
        own = self._of_cursor(what)
        sources = len(self._kept)
        if self._cursor is None and (lanes := _lanes_of(self.dataset)):
            return list(max((each[what] for each in lanes), key=sum))
        told = self._counts.told(together="worker" in self._split())
        if told is None:
            return own
        if what == "given":
            return told[:sources]
        return told[sources:]

    def _of_cursor(self, what: str) -> list[int]:
        stream = getattr(self._cursor, "stream", None)
        return list(getattr(stream, what, [0] * len(self._kept)))

    def _by_name(self, counts: list[int]) -> dict[str, int]:
        return dict.fromkeys(self.names, 0) | dict(
            zip(self._kept, counts, strict=False)
        )

    def state_dict(self) -> State:
        """Return the state after the last sample: JSON-able, of constant size."""
        cursor = self._cursor or self.dataset.open(state=self._start)
        return packed_state(self.dataset, cursor.state())

    def load_state_dict(self, state_dict: State) -> None:
        """Go on from a state in the next iteration.

        Raise `StateMismatchError` naming what differs when it is of another
        multiplexer, and `StateError` when it cannot be used.
        """
        resume = unpacked_state(self.dataset, state_dict)
        self._cursor = self.dataset.open(state=resume)  # what is wrong shows here
        self._start = resume


def _lanes_of(dataset: Dataset[Any]) -> list[State]:
    """Return the states of the lanes in which loaders read a dataset; each reads all of
    it.
    """
    found = []
    for loader in open_loaders:
        place = loader.position if loader.dataset is dataset else None
        for state in filter(None, () if place is None else place.cursors.values()):
            mix = state["input"].get("input", state["input"])
            found.append(mix.get("ended", mix))
    return found


class _Counts(SharedTable):
    """What workers of a DataLoader say of themselves to the process that started
    them.
    """

    def __init__(self, sources: int) -> None:
        self._width = 2 * sources
        super().__init__([0] * (_MOST_WORKERS * (1 + self._width)))

    def tell(self, counts: list[int]) -> None:
        """Write down the counts of this worker, in this loop over its DataLoader."""
        info: Any = torch.utils.data.get_worker_info()
        if info.id < _MOST_WORKERS:
            start = info.id * (1 + self._width)
            mark = (info.seed - info.id) % 2**62 + 1
            self._table[start : start + 1 + self._width] = [mark, *counts]

    def told(self, *, together: bool) -> list[int] | None:
        """Return the counts of the workers of the last loop: `together` where each has
        read its own samples, else those of the farthest; None where no worker said any.
        """
        rows = np.array(self._table[:], dtype=np.int64).reshape(_MOST_WORKERS, -1)
        rows = rows[rows[:, 0] == rows[0, 0]] if rows[0, 0] else rows[:0]
        if not len(rows):
            return None
        found: list[int] = (
            rows[:, 1:].sum(0) if together else rows[:, 1:].max(0)
        ).tolist()
        return found


def checked_seed(seed: int | None, owner: str) -> int:
    """Return `seed`, or for None one that is drawn and logged.

    Raise `ConfigError` for what is no whole number from 0, and for None where there are
    several ranks: each would draw another seed, and they would read the same data.
    """
    if seed is not None:
        return checked_whole(seed, f"{owner}: seed", 0)
    if WorkerConfig().world_size > 1:
        raise ConfigError(
            f"{owner}: there are several ranks, and without a seed each would draw an "
            "order of its own; give all of them the same seed"
        )
    drawn = secrets.randbits(32)
    _log.info("%s: seed %d was drawn; give it to repeat this order", owner, drawn)
    return drawn
