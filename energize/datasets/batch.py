"""Batches of a fixed size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, partial
from itertools import chain, islice
from types import MappingProxyType
from typing import Any, ClassVar, Self, TypeVar, cast

import numpy as np

from energize.core import tree
from energize.core.arrays import Int64Array
from energize.core.call import Call
from energize.core.call_context import call_context, leave_call
from energize.core.checks import (
    check_names,
    checked_batch_size,
    checked_flag,
    checked_function,
    raised_as,
)
from energize.core.costs import ColumnCost, Cost
from energize.core.dataset import Dataset, IndexedDataset
from energize.core.description import function_name, generates
from energize.core.failures import Failed
from energize.core.lanes import WorkerConfig
from energize.core.loss_weights import Keep, carried, carried_one_by_one, joined
from energize.core.node import INFINITE, NodeTraits, Origin, Routes, StreamTraits
from energize.core.padding import Padded, has_padding
from energize.core.stream import (
    ContentStream,
    LaneShare,
    LaneStream,
    Opening,
    State,
    by_keys,
    open_input,
    open_stream,
    state_field,
)
from energize.core.trace import (
    MAX_ATTEMPTS,
    ReadContext,
    Request,
)
from energize.datasets.blend import BlendDataset
from energize.datasets.level import LevelBufferDataset, LevelDataset
from energize.datasets.mix_args import PairOf
from energize.datasets.order import cut_epochs
from energize.datasets.rounds import (
    Origins,
    RoundsDataset,
    Step,
    Taken,
    keyed_by,
    origins_of,
)
from energize.errors import ConfigError
from energize.order.timeline import option_names

T = TypeVar("T")
T_in = TypeVar("T_in")
T_batch_co = TypeVar("T_batch_co", covariant=True)


class BatchDataset(IndexedDataset[T_batch_co]):
    """`batcher(samples)` for every `batch_size` consecutive items.

    A batch is always full: a sample that is skipped or fails is substituted from its
    source. Only the last batch of an epoch may be short, unless `drop_last`. No batch
    reaches over the end of an epoch. Over a stream of unknown length, each lane makes
    batches of its own items, and has a last batch of its own.

    With `level`, of each `global_batch_size` items in a row those that a batch holds
    are chosen so that batches cost about the same, by a column of the sources or a
    function of columns: see `LevelDataset`. What a global batch holds does not change,
    and `get_loader` knows its size.

    A batch gets the weights of its samples in the loss as `sample_weights`, where they
    have any and `batcher` says none itself; it needs a place for them.

    Raises `ConfigError` for a batch size below 1, and when `drop_last` leaves no batch;
    with `level` what `LevelDataset` raises.

    >>> from energize import ListSource
    >>> list(BatchDataset(ListSource("abcde"), 2, "".join))
    ['ab', 'cd', 'e']
    """

    order_name = "BatchDataset"

    carry_weights: ClassVar[Keep] = staticmethod(carried)
    """Function that gives a batch the loss weights of its samples."""

    batch_size: int
    batcher: Callable[[list[Any]], Any]
    drop_last: bool

    def __new__(cls, *inputs: Any, **options: Any) -> Self:
        """Return a `FlatBatchDataset` if the batcher is a generator function."""
        batcher = inputs[2] if len(inputs) > 2 else options.get("batcher")
        if cls is BatchDataset and generates(batcher):
            return cast("Self", super().__new__(FlatBatchDataset))
        return super().__new__(cls)

    def __init__(
        self,
        dataset: Dataset[T_in],
        batch_size: int,
        batcher: Callable[[list[T_in]], T_batch_co | Iterator[T_batch_co]],
        *,
        drop_last: bool = False,
        level: Cost | ColumnCost | None = None,
        global_batch_size: int | None = None,
        worker_config: WorkerConfig | None = None,
        **ignored: Any,
    ) -> None:
        if level is not None and global_batch_size is not None:
            whole = global_batch_size
            with raised_as("BatchDataset", "LevelDataset"):
                dataset = LevelDataset(
                    dataset, batch_size, global_batch_size=whole, cost=level
                )
        elif level is not None or global_batch_size is not None:
            names = ("level", "global_batch_size")
            given, missing = names if level is not None else names[::-1]
            raise ConfigError(
                f"BatchDataset: {given} is given, and {missing} is not: level says "
                "what samples cost, and global_batch_size among how many of them "
                "those of a batch are chosen. (For gradient accumulation alone, give "
                "global_batch_size to get_loader)"
            )
        self._set_up(
            dataset,
            batch_size,
            batcher,
            drop_last=drop_last,
            worker_config=worker_config,
            ignored=ignored,
        )

    def _set_up(
        self,
        dataset: Dataset[Any],
        batch_size: int,
        batcher: Callable[[list[Any]], Any],
        *,
        drop_last: bool,
        worker_config: WorkerConfig | None = None,
        ignored: Mapping[str, object] = MappingProxyType({}),
        **parameters: Any,
    ) -> None:
        """Check and set the parameters, those of a subclass too."""
        owner = type(self).__name__
        checked_function(batcher, f"{owner}: batcher")
        if generates(batcher) and not isinstance(self, FlatBatchDataset):
            raise ConfigError(
                f"{owner}: the batcher {function_name(batcher)} is a generator "
                "function, and may not yield here: each batch has its place in an "
                "epoch"
            )
        self.freeze(
            [dataset],
            worker_config,
            ignored,
            batch_size=checked_batch_size(batch_size, f"{owner}: batch_size"),
            batcher=batcher,
            drop_last=checked_flag(drop_last, "drop_last", owner),
            **parameters,
        )
        below = _below_maps(dataset)
        several = isinstance(self, FlatBatchDataset)
        if isinstance(below, LevelDataset | LevelBufferDataset) and (
            several or self.batch_size != below.batch_size
        ):
            raise ConfigError(
                f"{owner}: {type(below).__name__} below levels batches of "
                f"{below.batch_size}, and what is made here are others, of "
                f"{batch_size}; give both one batch_size, and no batcher that yields"
            )
        if self.sized and self.size == 0 and dataset.size:
            raise ConfigError(
                f"{owner}: the {dataset.size} items of an epoch cannot fill one batch "
                f"of {batch_size}, and drop_last leaves it out; use a smaller "
                "batch_size, or drop_last=False"
            )

    @property
    def global_batch_size(self) -> int | None:
        """Samples of a global batch, where its micro batches are level; else None."""
        below = _below_maps(self.inputs[0])
        return below.global_batch_size if isinstance(below, LevelDataset) else None

    @cached_property
    def traits(self) -> NodeTraits:
        return NodeTraits(makes=True, members=self.batch_size, gives_batches=True)

    @cached_property
    def _call(self) -> Call:
        return Call(
            self.batcher,
            self.key,
            type(self).carry_weights,
            tolerance=self.failure_tolerance(),
        )

    @cached_property
    def size(self) -> int:
        inner = self.inputs[0].size
        if inner == INFINITE:
            return INFINITE
        return (
            inner // self.batch_size if self.drop_last else -(-inner // self.batch_size)
        )

    def member_bounds(self, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return the range of input positions of each batch, as two arrays.

        Args:
            positions: Positions of batches, int64, shape (n,).

        Returns:
            First positions and end positions (exclusive), int64, shape (n,) each.
        """
        inner = self.inputs[0].size
        if inner == INFINITE:
            first = positions * self.batch_size
            return first, first + self.batch_size
        epoch, at = np.divmod(positions, self.size)
        first = at * self.batch_size
        start = epoch * inner
        return start + first, start + np.minimum(first + self.batch_size, inner)

    def route(self, positions: Int64Array) -> Routes:
        return members_between(*self.member_bounds(positions))

    def batch_of(self, member: int) -> int:
        """Return the position of the batch that an item of the input stands in."""
        epoch, at = divmod(member, self.inputs[0].size)
        return (epoch * self.size if epoch else 0) + at // self.batch_size

    def make(self, items: list[Any], request: Request) -> list[T_batch_co | Failed]:
        def of_batch(row: int) -> str:
            return f"a batch of {len(items[row])} that begins with {request.where(row)}"

        return self._call.each(items, request._replace(where=of_batch))

    def taken(self, n: int) -> list[int] | None:
        inner = self.inputs[0].size
        if self.drop_last and inner != INFINITE and inner % self.batch_size:
            return None
        epochs, rest = divmod(n, max(self.size, 1))
        return [(epochs * inner if epochs else 0) + min(rest * self.batch_size, inner)]

    def spans(self, n: int) -> tuple[Any, int]:
        if self.taken(n) is not None:
            return super().spans(n)
        length = self.batch_size
        inner = self.inputs[0].size
        spans, _ = cut_epochs(self, n * length, self.size * length, inner)
        return spans, n

    def open_pass(self, opening: Opening) -> LaneStream[T_batch_co]:
        return _BatchStream(self, opening)


def members_between(first: Int64Array, end: Int64Array) -> Routes:
    """Return the routes of items made of those of the input from `first` to before
    `end`.
    """
    lengths = end - first
    owner = np.repeat(np.arange(len(first)), lengths)
    offset = np.arange(len(owner)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return Routes(first[owner] + offset, owner=owner)


class _BatchStream(ContentStream[Any]):
    """Batch k is made of the items of the stream that it would be made of if that were
    indexed.

    Where the length of the stream is not known, a lane takes whole batches as its share
    of them, and a pass ends with the first batch that is not full.
    """

    _counted = "batches"

    def __init__(self, node: BatchDataset[T_batch_co], opening: Opening) -> None:
        self._node = node
        self._draws = True
        self._most = MAX_ATTEMPTS
        self._lane, state, self._reading, _ = opening
        self._called = opening.counter("called")
        self._over = False
        self._share = None
        inside = opening.inner._replace(endless=node.sized)
        if node.sized:
            self._input = open_input(node.inputs[0], inside)
        else:
            self._over = bool(opening.counter("over"))
            share = None if state is None else state_field(state, "share", dict)
            self._share = LaneShare(None, opening._replace(state=share))
            self._input = open_stream(node.inputs[0], inside)

    def ahead(self, positions: Int64Array) -> None:
        if self._share is None and len(positions):
            self._input.ahead(self._node.route(positions).position)

    def _weight(self) -> int:
        return 1

    def _taken(self, position: int, attempt: int) -> list[Any] | Padded:
        """Return the samples of the batch at a position; fewer at the end of a pass."""
        if self._over:
            self._end_pass()
            raise StopIteration
        samples: list[Any] = []
        origins: list[tuple[Origin, ...]] = []
        length = self._node.batch_size
        if self._share is None:
            bounds = self._node.member_bounds(np.array([position], dtype=np.int64))
            first, end = (int(each[0]) for each in bounds)
        else:
            # What comes next is not worth telling an input that is read one by one.
            first = self._share.next(lambda _: None) * length
            end = first + length
            attempt = 0
        outer = call_context.get()
        batch = self._lane.index + self._lane.count * self._called
        call_context.set(outer._replace(batch=batch))
        try:
            for member in range(first, end):
                samples.append(self._input.at(member, attempt))
                origins.append(self._input.origin)
        except StopIteration:
            self._over = True
            if not samples or self._node.drop_last:
                self._end_pass()
                raise
        finally:
            leave_call(outer, self._reading.config)
        self.origin = tuple(chain.from_iterable(origins))
        if not has_padding(samples):
            return samples
        return Padded.of_members(
            samples, map(len, map(self._node.inputs[0].refs_of, origins))
        )

    def _end_pass(self) -> None:
        self._over = False
        if self._share is not None:
            self._share.end_pass()

    def state(self) -> State:
        state: State = {"called": self._called, "input": self._input.state()}
        if self._share is not None:
            state |= {"over": int(self._over), "share": self._share.state()}
        return state


class FlatBatchDataset(RoundsDataset[T_batch_co], BatchDataset[T_batch_co]):
    """What a generator function yields of every `batch_size` items: any number of
    batches.

    A stream, whose lanes each take batches of their own part of the input; it resumes
    between any two of what is yielded. `BatchDataset` and `MixBatchDataset` make it of
    such a function.
    """

    order_name = "FlatBatchDataset"

    traits = NodeTraits(
        members=None, gives_batches=True, stream=StreamTraits(by_reading=True)
    )

    @cached_property
    def _call(self) -> Call:
        return Call(
            self.batcher, 0, carried_one_by_one, tolerance=self.failure_tolerance()
        )

    def round(
        self, items: Iterator[Taken], reading: ReadContext
    ) -> Iterator[Step[T_batch_co]]:
        members = list(islice(items, self.batch_size))
        if members and not (self.drop_last and len(members) < self.batch_size):
            yield partial(self._yielded, members, reading)

    def _yielded(
        self, members: list[Taken], reading: ReadContext
    ) -> Iterator[tuple[T_batch_co, Origins]]:
        samples = [each.item for each in members]
        origins = origins_of(members)
        word = partial(keyed_by, self, "batch", *origins)
        index = members[0].number
        where = by_keys(samples)
        of = (self, origins)
        for made in self._call.items(samples, word, index, reading, where, made=of):
            yield made, origins


class MixBatchDataset(BatchDataset[T_batch_co]):
    """Batches whose samples are drawn one by one from several datasets.

    Each batch is `batch_mix_fn` of a list of `batch_size` items, drawn from a
    `BlendDataset` of the pairs. Datasets usually give batches of one sample, which
    functions like `homogeneous_concat_mix` put together; inner batches of k samples
    give batches of `batch_size * k`. By default the list itself is the batch. Weights,
    `scheme`, `stop` and the other parameters of a blend are passed to it; in one that
    ends, the last batch may be short, unless `drop_last`. The `sample_weights` of inner
    batches are joined, with 1 for samples of those without.

    Raises what `BlendDataset` and `BatchDataset` raise, and `ConfigError` for unknown
    parameters.

    >>> from energize import ListSource
    >>> mix = MixBatchDataset(
    ...     (ListSource("a"), 6),
    ...     (ListSource("b"), 4),
    ...     batch_size=1000,
    ...     batch_mix_fn="".join,
    ... )
    >>> mix[0].count("a")
    600
    """

    order_name = "MixBatchDataset"

    carry_weights: ClassVar[Keep] = staticmethod(joined)

    def __new__(cls, *inputs: Any, **options: Any) -> Self:
        """Return a stream if the function is a generator function."""
        if cls is MixBatchDataset and generates(options.get("batch_mix_fn")):
            return cast("Self", super().__new__(FlatMixBatchDataset))
        return super().__new__(cls)

    def __init__(
        self,
        *pairs: PairOf[T_in] | Iterable[PairOf[T_in]] | Mapping[str, Dataset[T_in]],
        batch_size: int,
        batch_mix_fn: Callable[[list[T_in]], T_batch_co | Iterator[T_batch_co]]
        | None = None,
        drop_last: bool = False,
        worker_config: WorkerConfig | None = None,
        **blend: Any,
    ) -> None:
        mix_fn: Callable[[list[T_in]], Any] = (
            same if batch_mix_fn is None else batch_mix_fn
        )
        with raised_as(type(self).__name__, "BlendDataset"):
            checked_function(mix_fn, "batch_mix_fn")
            scheme = blend.get("scheme") or "block"  # a block_size names it, too
            options = option_names(scheme) if isinstance(scheme, str) else list(blend)
            check_names(blend, options, MixBatchDataset, BlendDataset)
            mix = BlendDataset(*pairs, worker_config=worker_config, **blend)
            super().__init__(mix, batch_size, mix_fn, drop_last=drop_last)


def same(items: list[T_in]) -> list[T_in]:
    """Return the items as they are."""
    return items


class FlatMixBatchDataset(FlatBatchDataset[T_batch_co], MixBatchDataset[T_batch_co]):
    """What a generator function yields of every `batch_size` items of a mix."""

    order_name = "FlatMixBatchDataset"


def _below_maps(dataset: Dataset[Any]) -> Dataset[Any]:
    """Return the first dataset whose items do not pass through, each at its place."""
    below: Dataset[Any] = tree.unwrap(dataset, tree.CONTENT_ONLY)
    return below
