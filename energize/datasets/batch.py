"""Batches of a stream that cost the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from functools import cached_property, lru_cache, partial
from itertools import islice
from typing import Any, ClassVar, Protocol, Self, TypeVar, cast

import numpy as np

from energize.core.arrays import FloatArray, Int64Array, rows_by_value
from energize.core.call import (
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
from energize.core.checks import checked_batch_size, checked_flag, checked_whole, raised_as
from energize.core.config import Outline
from energize.core.costs import ColumnCost, Cost
from energize.core.dataset import (
    Dataset,
    IndexedDataset,
    RoutedDataset,
    consumed_in_epochs,
    indexed_inputs,
)
from energize.core.description import described
from energize.core.ignored import accepted
from energize.core.lanes import Lane, WorkerConfig
from energize.core.loss_weights import Keep, carried, carried_one_by_one
from energize.core.reading import MAX_ATTEMPTS, Failed, Reading, read_items
from energize.core.refs import Refs
from energize.core.rng import hash_positions
from energize.core.stream import (
    INFINITE,
    EndlessStream,
    Origin,
    Part,
    State,
    Stream,
    counter_field,
    state_field,
)
from energize.datasets.item_cost import ItemCost
from energize.datasets.rounds import (
    Origins,
    RoundsDataset,
    Step,
    Taken,
    alone,
    keyed_by,
    origins_of,
)
from energize.errors import ConfigError, NotIndexedError, SubstitutionError
from energize.order.level import levelled

T_co = TypeVar("T_co", covariant=True)


class LevelBufferDataset(RoundsDataset[T_co]):
    """The items of each `size` in a row in another order, so that every `batch_size` of them in a
    row cost about the same: for streams, of packs for example.

    `cost` is a function of an item, or the name of its field that says it, see `ItemCost`. A
    `BatchDataset` of `batch_size` on top then has batches that cost about `batch_size` times the
    mean of the `size` items that they were chosen among. In a loader each lane levels its own part
    of the input, so the batches that ranks have in one step differ as such means do: the less, the
    larger `size` is. What has random access is better levelled by `LevelDataset`, in whole global
    batches.

    A state holds where the buffer began and how many of its items were given; they are read again.
    At the end of a pass what fills no batch stays last. An item is left out for which `cost` raises
    `SkipSample`.

    Raises `ConfigError` for sizes below 1 and a `size` that is not a whole number of batches;
    reading raises `EncoderError`, with the key of the sample, for a cost that is not above 0 and
    finite.

    >>> from energize import ListSource
    >>> list(LevelBufferDataset(ListSource(["aaaaaa", "bbbbb", "c", "dd"]), 4, 2, len))
    ['aaaaaa', 'c', 'bbbbb', 'dd']
    """

    buffer_size: int
    batch_size: int
    cost: ItemCost

    def __init__(
        self,
        dataset: Dataset[T_co],
        size: int,
        batch_size: int,
        cost: str | Callable[[T_co], Any] | ItemCost,
        *,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        whole = checked_whole(size, "LevelBufferDataset: size", 1)
        group = checked_batch_size(batch_size, "LevelBufferDataset: batch_size")
        if whole % group:
            raise ConfigError(
                f"LevelBufferDataset: {whole} items are not a whole number of batches of {group}; "
                f"use a size of {max(whole // group, 1) * group}, for example"
            )
        self._freeze(
            inputs=[dataset],
            worker_config=worker_config,
            buffer_size=whole,
            batch_size=group,
            cost=cost if isinstance(cost, ItemCost) else ItemCost(cost),
        )

    def round(self, items: Iterator[Taken], reading: Reading) -> Iterator[Step[T_co]]:
        buffer: list[Taken] = []
        costs: list[float] = []
        with keyed_calls(self.cost.of, reading, Seeding.NONE) as call:
            for taken in items:
                cost = call(taken.item, 0, partial(sample_keys_of, taken.item))
                if not isinstance(cost, Failed):
                    buffer.append(taken)
                    costs.append(cost)
                    if len(buffer) == self.buffer_size:
                        break
                elif not cost.skipped:
                    reading.report(cost)
        for place in levelled(np.array(costs), self.batch_size).tolist():
            yield partial(alone, buffer[place])


# Micro batches of one global batch that cost the same.

_KEPT = 8
"""Global batches whose order is kept: micro batches of one are mostly read one after another."""

_LOOKED_UP = 2**13
"""Items whose costs are looked up at a time."""

_MOST = 2**24
"""Samples of a global batch."""

_FAR = 2**40
"""What is asked for at such distances is not looked up ahead: positions have an end."""


class LevelDataset(RoutedDataset[T_co]):
    """The same items in another order: of each `global_batch_size` in a row, so that every
    `batch_size` in a row cost about the same.

    Batched by `batch_size`, the ranks' micro batches of one global batch are then of level cost,
    and no rank waits for the one that drew the large images or the long texts. Which samples a
    global batch holds does not change, nor what functions below make of them, so training is the
    same but for rounding. What is delivered depends on no rank or worker. See `BatchDataset`, whose
    `level` puts this below it.

    `cost` is the name of a column of the sources, such as "tokens", or a function of columns, see
    `ColumnCost`: `lambda width, height: width * height / 196`, or `attention_cost`. A parameter
    with a default is a column that a source may lack. Nothing is read. Each sample, the dearest
    first, goes to the cheapest micro batch that has room. A micro batch costs at least what its
    dearest sample does, so one that alone is dearer than the others together stays so.

    A global batch that an epoch's end makes short is levelled as it is. The samples that then fill
    no micro batch stay the last ones, whatever they cost: they are those of the plain order.

    After a state that was saved between two global batches `cost` may be another one; inside of one
    it may not, nor may the columns be measured anew, as samples would come twice.

    Raises `ConfigError` for sizes that do not divide, `ColumnError` for columns that a source does
    not have, and `NotIndexedError` for a stream, which `LevelBufferDataset` levels.

    >>> from energize import ListSource
    >>> texts = ListSource(["aaaaaa", "bbbbb", "c", "dd"], columns={"tokens": [6, 5, 1, 2]})
    >>> list(LevelDataset(texts, 2, global_batch_size=4, cost="tokens"))
    ['aaaaaa', 'c', 'bbbbb', 'dd']
    """

    batch_size: int
    global_batch_size: int
    cost: ColumnCost

    def __init__(
        self,
        dataset: Dataset[T_co],
        batch_size: int,
        *,
        global_batch_size: int,
        cost: Cost | ColumnCost,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        micro = checked_batch_size(batch_size, "LevelDataset: batch_size")
        whole = checked_batch_size(global_batch_size, "LevelDataset: global_batch_size")
        if whole > _MOST:
            raise ConfigError(
                f"LevelDataset: a global batch is ordered as a whole, so it has at most {_MOST} "
                f"samples; got global_batch_size={whole}"
            )
        if whole % micro:
            raise ConfigError(
                f"LevelDataset: a global batch of {whole} samples is not a whole number of micro "
                f"batches of {micro}; change global_batch_size or batch_size"
            )
        self._freeze(
            inputs=[dataset],
            worker_config=worker_config,
            batch_size=micro,
            global_batch_size=whole,
            cost=cost if isinstance(cost, ColumnCost) else ColumnCost(cost),
        )
        if not dataset.indexed:
            raise NotIndexedError(
                f"LevelDataset: {dataset._streaming_input()} is read as a stream, and what its "
                "items cost is not known before they are read; LevelBufferDataset levels streams, "
                "some items at a time, and so does get_train_dataset(level=ItemCost(...))"
            )
        for source in self.sources:
            self.cost.check(source)

    @cached_property
    def size(self) -> int:
        return indexed_inputs(self)[0].size

    def route(self, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        begun, inside = self._global_batches(positions)
        routed = np.empty_like(positions)
        for start, rows in rows_by_value(begun):
            routed[rows] = start + self._order(start)[inside[rows]]
        return np.zeros_like(positions), routed

    def _global_batches(self, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Where the global batch of each position begins, and its place in it."""
        inside = positions if self.size == INFINITE else positions % self.size
        inside = inside % self.global_batch_size
        return positions - inside, inside

    @cached_property
    def _order(self) -> Callable[[int], Int64Array]:
        """The places of a global batch's items, by its first position, in the order of delivery."""
        return lru_cache(_KEPT)(self._levelled)

    def _levelled(self, start: int) -> Int64Array:
        return levelled(self._costs(start), self.batch_size)

    @cached_property
    def _costs(self) -> Callable[[int], FloatArray]:
        """What the items of a global batch cost, by its first position."""
        return _Costs(self._looked_up, _LOOKED_UP // self.global_batch_size)

    def _looked_up(self, starts: Sequence[int]) -> list[FloatArray]:
        """What the items of the global batches at some positions cost."""
        begun = [self._begun(start) for start in starts]
        spans = [np.arange(each, self._end(each), dtype=np.int64) for each in begun]
        costs = self.cost.of(indexed_inputs(self)[0], np.concatenate(spans))
        return np.split(costs, np.cumsum([len(span) for span in spans])[:-1])

    def _end(self, start: int) -> int:
        """The end of the global batch that begins at a position."""
        if self.size == INFINITE:
            return start + self.global_batch_size
        return start + min(self.global_batch_size, self.size - start % self.size)

    def _begun(self, n: int) -> int:
        """The beginning of the global batch of item `n`."""
        inside = n if self.size == INFINITE else n % max(self.size, 1)
        return n - inside % self.global_batch_size

    def reached(self, n: int) -> list[int]:
        """To the end of the global batch that is begun: what it holds is settled."""
        begun = self._begun(n)
        return [n if begun == n else self._end(begun)]

    def consumed(self, n: int) -> Int64Array:
        if self.one_each:
            return np.array([n], dtype=np.int64)
        begun = self._begun(n)
        return indexed_inputs(self)[0].consumed(begun) + self._counted(begun, n)

    def settings(self) -> dict[str, Any]:
        """With the name of a function that says the cost: it decides which samples come when."""
        told, cost = super().settings(), self.cost.cost
        if not isinstance(cost, str):
            told["cost"] = {**told["cost"], "function": described(cost)}
        return told

    def settings_until(
        self, items: int, saved: Outline, later: list[str]
    ) -> tuple[Outline, list[str]]:
        cost = self.settings()["cost"]
        if saved.get("cost") == cost or self._begun(items) != items:
            return saved, []
        later.append("what levels global batches")
        return {**saved, "cost": cost}, []


class _Costs:
    """Looks up several global batches at once where they are asked for at equal distances, as one
    of several workers does: that takes little longer than for one.
    """

    def __init__(self, look_up: Callable[[Sequence[int]], list[FloatArray]], most: int) -> None:
        self._look_up = look_up
        self._most = max(most, 1)
        self._known: dict[int, FloatArray] = {}
        self._last, self._distance = 0, 0

    def __call__(self, start: int) -> FloatArray:
        distance, self._last = start - self._last, start
        regular, self._distance = 0 < distance == self._distance < _FAR, distance
        known = self._known
        if start not in known:
            starts = [start + i * distance for i in range(self._most if regular else 1)]
            self._known = known = dict(zip(starts, self._look_up(starts), strict=True))
        return known[start]


def with_level(
    dataset: Dataset[T_co],
    batch_size: int,
    level: Cost | ColumnCost | None,
    global_batch_size: int | None,
    owner: str,
) -> LevelDataset[T_co]:
    """A dataset for batches that are level; `ConfigError` where one of the two is not given."""
    if level is None or global_batch_size is None:
        given, missing = "level", "global_batch_size"
        if level is None:
            given, missing = missing, given
        raise ConfigError(
            f"{owner}: {given} is given, and {missing} is not: level says what samples cost, and "
            "global_batch_size among how many of them those of a batch are chosen. (For gradient "
            "accumulation alone, give global_batch_size to get_loader)"
        )
    with raised_as(owner, "LevelDataset"):
        return LevelDataset(dataset, batch_size, global_batch_size=global_batch_size, cost=level)


def level_below(dataset: Dataset[Any]) -> LevelDataset[Any] | None:
    """What levels global batches of a dataset, whose items pass through unmoved above it."""
    below = _below_maps(dataset)
    return below if isinstance(below, LevelDataset) else None


def check_batches(dataset: Dataset[Any], batch_size: int, owner: str, *, several: bool) -> None:
    """Raise `ConfigError` for batches of a levelled dataset that are not those that it levels;
    `several` is for a batcher that makes several of one.
    """
    below = _below_maps(dataset)
    if not isinstance(below, LevelDataset | LevelBufferDataset):
        return
    if batch_size != below.batch_size:
        raise ConfigError(
            f"{owner}: batches have {batch_size} items, and {type(below).__name__} below levels "
            f"batches of {below.batch_size}; give both one batch_size"
        )
    if several:
        raise ConfigError(
            f"{owner}: a batcher that yields makes any number of batches of some items, and reads "
            "them in parts of its own, so what is levelled below it is not what ranks get; return "
            "one batch, or do not level"
        )


def _below_maps(dataset: Dataset[Any]) -> Dataset[Any]:
    while dataset.passes_on:
        dataset = dataset.inputs[0]
    return dataset


# Batches of a stream, as they are read in one lane.

T = TypeVar("T")


class Batches(Protocol[T_co]):
    """What `BatchStream` makes batches as: a `BatchDataset`."""

    inputs: tuple[Dataset[Any], ...]
    batch_size: int
    drop_last: bool

    @property
    def batcher(self) -> Any: ...

    @property
    def keep(self) -> Keep: ...

    @property
    def seeding(self) -> Seeding: ...

    @property
    def key(self) -> int: ...

    @property
    def sized(self) -> bool: ...

    @property
    def size(self) -> int: ...


class BatchStream(Stream[T]):
    """Batch k is made of the items of the stream that it would be made of if that were indexed.

    Where the length of the stream is not known, a lane takes whole batches as its part of them,
    and a pass ends with the first batch that is not full.
    """

    def __init__(
        self,
        dataset: Batches[T],
        lane: Lane,
        state: State | None,
        reading: Reading,
        *,
        rotating: bool,
    ) -> None:
        self._dataset = dataset
        self._lane = lane
        self._reading = reading
        self._called = counter_field(state, "called")
        self._over = bool(counter_field(state, "over")) if not dataset.sized else False
        inner = None if state is None else state_field(state, "input", dict)
        self._part = None
        if dataset.sized:
            self._input = dataset.inputs[0].stream(lane, inner, reading, endless=True)
        else:
            part = None if state is None else state_field(state, "part", dict)
            self._part = Part(None, lane, part, rotating=rotating)
            self._input = dataset.inputs[0].addressed(lane, inner, reading, endless=False)
            if part is not None and not self._over:
                last = self._part.last
                end = None if last is None else (last + 1) * dataset.batch_size - 1
                self._input.check_after(end, exact=True)

    def ahead(self, positions: Int64Array) -> None:
        if self._part is None and len(positions):
            members = [np.arange(*self._bounds(position)) for position in positions.tolist()]
            self._input.ahead(np.concatenate(members))

    def at(self, position: int, attempt: int = 0) -> T:
        for tries in range(attempt, attempt + MAX_ATTEMPTS):
            samples = self._samples(position, tries)
            called = self._lane.index + self._lane.count * self._called
            word = int(hash_positions(self._dataset.key, np.array([called]))[0])
            self._called += 1
            index_of_call.set(called)
            batcher, seeding = self._dataset.batcher, self._dataset.seeding
            with keyed_calls(batcher, self._reading, seeding, self._dataset.keep) as call:
                made: T | Failed = call(samples, word, partial(sample_keys_of, samples))
            if type(made) is not Failed:
                return made  # type: ignore[return-value]  # mypy does not follow `type(made) is not`
            self._reading.leave_out(made, self._dataset, self.origin)
        raise SubstitutionError(
            f"{type(self._dataset).__name__}: {function_name(self._dataset.batcher)} left out "
            f"{MAX_ATTEMPTS} batches in a row; check its condition"
        )

    def _samples(self, position: int, attempt: int) -> list[Any]:
        """The samples of the batch at a position; fewer at the end of a pass."""
        if self._over:
            self._end_pass()
            raise StopIteration
        samples: list[Any] = []
        origin: list[Origin] = []
        if self._part is not None:
            position, attempt = self._part.next(_unannounced), 0
        try:
            for member in range(*self._bounds(position)):
                samples.append(self._input.at(member, attempt))
                origin += self._input.origin
        except StopIteration:
            self._over = True
            if not samples or self._dataset.drop_last:
                self._end_pass()
                raise
        self.origin = tuple(origin)
        return samples

    def check_after(self, last: int | None, *, exact: bool) -> None:
        if self._part is None and last is not None:
            self._input.check_after(self._bounds(last)[1] - 1, exact=False)

    def _bounds(self, position: int) -> tuple[int, int]:
        """The first member of a batch, and the end of its members."""
        length = self._dataset.batch_size
        if self._part is not None or self._dataset.size == INFINITE:
            return position * length, (position + 1) * length
        size = self._dataset.inputs[0].size
        epoch, at = divmod(position, self._dataset.size)
        return epoch * size + at * length, epoch * size + min((at + 1) * length, size)

    def _end_pass(self) -> None:
        self._over = False
        if self._part is not None:
            self._part.end_pass()

    def state(self) -> State:
        state: State = {"called": self._called, "input": self._input.state()}
        if self._part is not None:
            state |= {"over": int(self._over), "part": self._part.state()}
        return state

    def close(self) -> None:
        self._input.close()


def _unannounced(_: Int64Array) -> None:
    """What comes next is not worth telling an input that is read one by one."""


# Batches of a fixed size.

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
        return carried

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
        index, keep = members[0].number, carried_one_by_one
        for made in keyed_items(
            self.batcher, samples, word, where, reading, index=index, keep=keep
        ):
            yield made, origins
