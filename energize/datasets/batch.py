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
from energize.core.costs import LevelCost
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
    RoundItem,
    RoundsDataset,
    Step,
    keyed_by,
    origins_of,
)
from energize.errors import ConfigError
from energize.order.timeline import option_names

T = TypeVar("T")
T_in = TypeVar("T_in")
T_batch_co = TypeVar("T_batch_co", covariant=True)


class BatchDataset(IndexedDataset[T_batch_co]):
    """Combine every `batch_size` consecutive items into a batch.

    Batch k of an epoch is `batcher(items[k * batch_size : (k + 1) * batch_size])`. A
    skipped or failed sample is replaced by a substitute from the same source, so only
    the last batch of an epoch can be short. Batches never cross the end of an epoch.
    For a stream of unknown length, each lane batches its own items, and its last batch
    can be short.

    If samples have loss weights, the batch gets them as `sample_weights`, unless
    `batcher` sets them. If `batcher` is a generator function, the result is a
    `FlatBatchDataset`.

    Args:
        dataset: The dataset to read.
        batch_size: Samples of a batch.
        batcher: Makes a batch of a list of samples.
        drop_last: Whether a short last batch is dropped.
        level: Cost of a sample: a column of the sources or a function of columns, or
            several costs as a list or a dict with the importance of each. Within each
            global batch, samples are distributed so that batches cost about the same,
            see `LevelDataset`. Requires `global_batch_size`.
        global_batch_size: Samples of a global batch. Only with `level`; for gradient
            accumulation alone, use the argument of `get_loader`.
        worker_config: Seeds the order by its `seed_offset`; passed to `get_loader`.
        **ignored: Arguments of Megatron-Energon without effect; they are logged.

    Raises:
        ConfigError: If `batch_size` is below 1, if `drop_last` leaves no batch, or if
            only one of `level` and `global_batch_size` is set.
        ColumnError: If a source lacks a column of `level`.
        NotIndexedError: If `level` is set for a stream.

    Example:
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
        level: LevelCost | None = None,
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
            argument, missing = names if level is not None else names[::-1]
            raise ConfigError(
                f"BatchDataset: {argument} needs {missing}. Set both to level "
                "batches within global batches. Use "
                "get_loader(global_batch_size=...) for gradient accumulation alone"
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
                f"{owner}: the batcher {function_name(batcher)} must not be a "
                "generator function, as each batch has a fixed place in an epoch. "
                "Return one batch"
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
        below = below_maps(dataset)
        several = isinstance(self, FlatBatchDataset)
        if isinstance(below, LevelDataset | LevelBufferDataset) and (
            several or self.batch_size != below.batch_size
        ):
            raise ConfigError(
                f"{owner}: {type(below).__name__} below levels batches of "
                f"{below.batch_size}, but the batches here have {batch_size}. Set "
                "one batch_size for both, and use no batcher that yields"
            )
        if self.sized and self.size == 0 and dataset.size:
            raise ConfigError(
                f"{owner}: the {dataset.size} items of an epoch cannot fill one "
                f"batch of {batch_size}. Use a smaller batch_size, or drop_last=False"
            )

    @property
    def global_batch_size(self) -> int | None:
        """Samples of a global batch if micro batches are level; else None."""
        below = below_maps(self.inputs[0])
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
        """Return the position of the batch that contains an item of the input.

        Args:
            member: Position of the item in the input.
        """
        epoch, at = divmod(member, self.inputs[0].size)
        return (epoch * self.size if epoch else 0) + at // self.batch_size

    def make(self, items: list[Any], request: Request) -> list[T_batch_co | Failed]:
        def of_batch(row: int) -> str:
            return f"a batch of {len(items[row])} that begins with {request.where(row)}"

        return self._call.map(items, request._replace(where=of_batch))

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
    """Return the routes of items that are made of ranges of the input.

    Args:
        first: First input position of each item, int64, shape (n,).
        end: End (exclusive) of each range, int64, shape (n,).
    """
    lengths = end - first
    owner = np.repeat(np.arange(len(first)), lengths)
    offset = np.arange(len(owner)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return Routes(first[owner] + offset, owner=owner)


class _BatchStream(ContentStream[Any]):
    """Reads the batches of a stream, in the order that `BatchDataset.route` defines.

    If the length of the input is unknown, a lane reads whole batches as its share, and
    a pass ends with the first short batch.
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

    def _read_input(self, position: int, attempt: int) -> list[Any] | Padded:
        """Return the samples of the batch at a position; fewer at the end of a pass."""
        if self._over:
            self._end_pass()
            raise StopIteration
        samples: list[Any] = []
        origins: list[tuple[Origin, ...]] = []
        length = self._node.batch_size
        if self._share is None:
            bounds = self._node.member_bounds(np.array([position], dtype=np.int64))
            first, end = (int(bound[0]) for bound in bounds)
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
    """Batches that a generator function yields for every `batch_size` items.

    The function can yield any number of batches, so the result is a stream. Each lane
    batches its own part of the input, and a run resumes after any batch. `BatchDataset`
    and `MixBatchDataset` return this class if their function is a generator function.
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
        self, items: Iterator[RoundItem], reading: ReadContext
    ) -> Iterator[Step[T_batch_co]]:
        members = list(islice(items, self.batch_size))
        if members and not (self.drop_last and len(members) < self.batch_size):
            yield partial(self._yielded, members, reading)

    def _yielded(
        self, members: list[RoundItem], reading: ReadContext
    ) -> Iterator[tuple[T_batch_co, Origins]]:
        samples = [member.item for member in members]
        origins = origins_of(members)
        word = partial(keyed_by, self, "batch", *origins)
        index = members[0].number
        locate = by_keys(samples)
        of = (self, origins)
        for batch in self._call.items(samples, word, index, reading, locate, origin=of):
            yield batch, origins


class MixBatchDataset(BatchDataset[T_batch_co]):
    """Draw the samples of each batch from several datasets by weight.

    A batch is `batch_mix_fn(items)` for `batch_size` items of a `BlendDataset` of the
    pairs. The datasets usually contain batches of one sample, which functions such as
    `homogeneous_concat_mix` join; with inner batches of k samples, a batch has
    `batch_size * k`. Loss weights of inner batches are joined, with 1 for samples
    without one.

    Args:
        *pairs: The datasets and their weights, as for `BlendDataset`.
        batch_size: Items of a batch.
        batch_mix_fn: Makes a batch of a list of items. None returns the list.
        drop_last: Whether a short last batch is dropped, if the blend ends.
        worker_config: Seeds the order by its `seed_offset`; passed to `get_loader`.
        **blend: Further arguments of `BlendDataset`, such as `weights` and `stop`.

    Raises:
        ConfigError: For unknown arguments, and as for `BatchDataset`.
        WeightError: For invalid weights.
        EmptyDatasetError: If a dataset with a weight has no items.

    Example:
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
    """Mixed batches that a generator function yields for every `batch_size` items."""

    order_name = "FlatMixBatchDataset"


def below_maps(dataset: Dataset[Any]) -> Dataset[Any]:
    """Return the first node below that does more than change single items."""
    below: Dataset[Any] = tree.unwrap(dataset, tree.CONTENT_ONLY)
    return below
