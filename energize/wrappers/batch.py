"""Batches of a fixed size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from functools import cached_property, partial
from itertools import islice
from typing import Any, ClassVar, Self, TypeVar, cast

import numpy as np

from energize.arrays import Int64Array
from energize.costs import ColumnCost, Cost
from energize.cursor import State
from energize.dataset import INFINITE, Dataset, IndexedDataset
from energize.errors import ConfigError
from energize.ignored import accepted
from energize.numbers import checked_batch_size
from energize.reading import MAX_ATTEMPTS, Failed, Reading, read_items
from energize.refs import Refs
from energize.rng import hash_positions
from energize.sample_weights import Keep, gathered, gathered_one_by_one
from energize.streaming import EndlessStream, Stream
from energize.topology import Lane, WorkerConfig
from energize.wrappers.batch_stream import BatchStream
from energize.wrappers.calling import (
    Call,
    Seeding,
    function_name,
    generates,
    index_of_call,
    keyed_calls,
    keyed_items,
    sample_keys_of,
    seeding_of,
)
from energize.wrappers.checks import checked_flag
from energize.wrappers.level import check_batches, level_below, with_level
from energize.wrappers.rounds import (
    Origins,
    RoundsDataset,
    Step,
    Taken,
    keyed_by,
    origins_of,
)
from energize.wrappers.routed import consumed_in_epochs, indexed_inputs

T_in = TypeVar("T_in")
T_batch_co = TypeVar("T_batch_co", covariant=True)


batches_read: ContextVar[BatchDataset[Any]] = ContextVar("batches_read")
"""Whose members are being read."""


class BatchDataset(IndexedDataset[T_batch_co]):
    """`batcher(samples)` for every `batch_size` consecutive items.

    A batch is always full: a sample that is skipped or fails is substituted from its source. Only
    the last batch of an epoch may be short, unless `drop_last`. No batch reaches over the end of an
    epoch. Over a stream of unknown length, each lane makes batches of its own items, and has a last
    batch of its own.

    With `level`, of each `global_batch_size` items in a row those that a batch holds are chosen so
    that batches cost about the same, by a column of the sources or a function of columns: see
    `LevelDataset`. What a global batch holds does not change, and `get_loader` knows its size.

    A batch gets the weights of its samples in the loss as `sample_weights`, where they have any and
    `batcher` says none itself; it needs a place for them.

    Raises `ConfigError` for a batch size below 1, and when `drop_last` leaves no batch; with
    `level` what `LevelDataset` raises.

    >>> from energize import ListSource
    >>> list(BatchDataset(ListSource("abcde"), 2, "".join))
    ['ab', 'cd', 'e']
    """

    gives_batches: ClassVar[bool] = True

    batch_size: int
    batcher: Callable[[list[Any]], Any]
    drop_last: bool

    def __new__(cls, *inputs: Any, **options: Any) -> Self:
        """A `FlatBatchDataset` where the batcher is a generator function."""
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
        accepted("BatchDataset", **ignored)
        if level is not None or global_batch_size is not None:
            dataset = with_level(dataset, batch_size, level, global_batch_size, "BatchDataset")
        self._set_up(dataset, batch_size, batcher, drop_last, worker_config)

    def _set_up(
        self,
        dataset: Dataset[Any],
        batch_size: int,
        batcher: Callable[[list[Any]], Any],
        drop_last: bool,
        worker_config: WorkerConfig | None = None,
        **parameters: Any,
    ) -> None:
        """Check and set the parameters, those of a subclass too."""
        owner = type(self).__name__
        if not callable(batcher):
            raise ConfigError(f"{owner}: batcher is a function of a list; got {batcher!r}")
        if generates(batcher) and not isinstance(self, FlatBatchDataset):
            raise ConfigError(
                f"{owner}: the batcher {function_name(batcher)} is a generator function, and may "
                "not yield here: each batch has its place in an epoch"
            )
        self._freeze(
            inputs=[dataset],
            worker_config=worker_config,
            batch_size=checked_batch_size(batch_size, f"{owner}: batch_size"),
            batcher=batcher,
            drop_last=checked_flag(drop_last, "drop_last", owner),
            **parameters,
        )
        flat = isinstance(self, FlatBatchDataset)
        check_batches(dataset, self.batch_size, owner, several=flat)
        if self.sized and self.size == 0 and dataset.size:
            raise ConfigError(
                f"{owner}: the {dataset.size} items of an epoch cannot fill one batch of "
                f"{batch_size}, and drop_last leaves it out; use a smaller batch_size, or "
                "drop_last=False"
            )

    @property
    def global_batch_size(self) -> int | None:
        """Samples of a global batch, where its micro batches are level; else None."""
        level = level_below(self.inputs[0])
        return None if level is None else level.global_batch_size

    @cached_property
    def seeding(self) -> Seeding:
        """Where `batcher` draws its random numbers from."""
        return seeding_of(self.batcher)

    @property
    def keep(self) -> Keep:
        """What gives a batch the weights of its samples."""
        return gathered

    @cached_property
    def sized(self) -> bool:
        return self.inputs[0].sized

    @cached_property
    def size(self) -> int:
        inner = self.inputs[0].size
        if inner == INFINITE:
            return INFINITE
        return inner // self.batch_size if self.drop_last else -(-inner // self.batch_size)

    @cached_property
    def pass_length(self) -> int:
        """Batches in one pass over what is read."""
        finite = self.sized and self.size != INFINITE
        return self.size if finite else -(-self.inputs[0].pass_length // self.batch_size)

    @property
    def read_ahead(self) -> int:
        return max(1, super().read_ahead // self.batch_size)

    def _members(self, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        """The positions of all members of the batches at `positions`, and the batch of each."""
        inner = indexed_inputs(self)[0].size
        epoch, at = np.divmod(positions, self.size)
        first = at * self.batch_size
        lengths = np.minimum(inner - first, self.batch_size)
        start = first if inner == INFINITE else epoch * inner + first
        batch = np.repeat(np.arange(len(positions)), lengths)
        offset = np.arange(len(batch)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return start[batch] + offset, batch

    def batch_of(self, member: int) -> int:
        """The position of the batch that the item at a position of the input stands in."""
        inner = indexed_inputs(self)[0].size
        epoch, at = divmod(member, inner)
        return (epoch * self.size if epoch else 0) + at // self.batch_size

    def fetch(self, positions: Int64Array, reading: Reading) -> list[T_batch_co | Failed]:
        members, batch = self._members(positions)
        of_members = reading.again(reading.attempt * MAX_ATTEMPTS)
        token = batches_read.set(self)
        try:
            samples: list[Any] = read_items(indexed_inputs(self)[0], members, of_members)
        finally:
            batches_read.reset(token)
        bounds = np.searchsorted(batch, np.arange(len(positions) + 1)).tolist()
        words = hash_positions(self.key, positions, reading.attempt).tolist()
        out: list[T_batch_co | Failed] = []
        with keyed_calls(self.batcher, reading, self.seeding, self.keep) as call:
            for i, position in enumerate(positions.tolist()):
                members_of = samples[bounds[i] : bounds[i + 1]]
                index_of_call.set(position)
                out.append(self._made(call, members_of, words[i], position, reading))
        return out

    def taken(self, n: int) -> Sequence[int] | None:
        inner = indexed_inputs(self)[0].size
        if self.drop_last and inner != INFINITE and inner % self.batch_size:
            return None
        epochs, rest = divmod(n, max(self.size, 1))
        return [(epochs * inner if epochs else 0) + min(rest * self.batch_size, inner)]

    def consumed(self, n: int) -> Int64Array:
        if self.taken(n) is not None:
            return super().consumed(n)
        inner, length = indexed_inputs(self)[0], self.batch_size
        return consumed_in_epochs(inner, n * length, self.size * length, inner.size)

    def refs(self, positions: Int64Array, attempt: int = 0) -> Refs:
        members, batch = self._members(positions)
        return indexed_inputs(self)[0].refs(members, attempt * MAX_ATTEMPTS).grouped(batch)

    def passes(self, positions: Int64Array) -> Refs:
        if type(self).refs is not BatchDataset.refs:
            return super().passes(positions)
        members, batch = self._members(positions)
        return indexed_inputs(self)[0].passes(members).grouped(batch)

    def _made(
        self, call: Call, samples: list[Any], word: int, position: int, reading: Reading
    ) -> T_batch_co | Failed:
        """The batch of `samples` at a position."""

        def where() -> str:
            return f"a batch of {len(samples)} that begins with " + self.where(
                position, reading.attempt
            )

        made: T_batch_co | Failed = call(samples, word, where)
        return made

    def _stream(
        self, lane: Lane, state: State | None, reading: Reading, endless: bool
    ) -> Stream[T_batch_co]:
        def open_pass(at: State | None) -> Stream[T_batch_co]:
            return BatchStream(self, lane, at, reading, rotating=endless)

        if not endless or self.sized:
            return open_pass(state)
        return EndlessStream(open_pass, state, lane, type(self).__name__)


class FlatBatchDataset(RoundsDataset[T_batch_co], BatchDataset[T_batch_co]):
    """What a generator function yields of every `batch_size` items: any number of batches.

    A stream, whose lanes each take batches of their own part of the input; it resumes between any
    two of what is yielded. `BatchDataset` and `MixBatchDataset` make it of such a function.
    """

    def round(self, items: Iterator[Taken], reading: Reading) -> Iterator[Step[T_batch_co]]:
        members = list(islice(items, self.batch_size))
        if members and not (self.drop_last and len(members) < self.batch_size):
            yield partial(self._yielded, members, reading)

    def _yielded(
        self, members: list[Taken], reading: Reading
    ) -> Iterator[tuple[T_batch_co, Origins]]:
        samples = [each.item for each in members]
        origins = origins_of(members)
        word, where = keyed_by(self, "batch", *origins), partial(sample_keys_of, samples)
        index, keep = members[0].number, gathered_one_by_one
        for made in keyed_items(
            self.batcher, samples, word, where, reading, index=index, keep=keep
        ):
            yield made, origins
