"""Batches of samples that belong together."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeVar, cast

from energize.core.call import Call
from energize.core.checks import (
    checked_batch_size,
    checked_flag,
    checked_function,
    whole_number,
)
from energize.core.dataset import Dataset
from energize.core.description import function_name, generates
from energize.core.failures import Failed
from energize.core.lanes import WorkerConfig
from energize.core.loss_weights import carried
from energize.core.node import NodeTraits, Origin, StreamTraits
from energize.core.padding import with_marks
from energize.core.stream import (
    LaneReader,
    LaneStream,
    Opening,
    State,
    by_keys,
    counter_field,
    ended_early,
    most_in_vain,
    sample_keys_of,
    state_field,
)
from energize.core.trace import (
    ReadContext,
)
from energize.datasets.rounds import FoundDataset, keyed_by, nothing_made, origins_of
from energize.errors import ConfigError, EncoderError

T_in = TypeVar("T_in")
T = TypeVar("T")
T_batch_co = TypeVar("T_batch_co", covariant=True)


class GroupBatchDataset(FoundDataset[T_batch_co]):
    """`batcher(samples)` for samples of one group: images of one size, texts of about
    one length.

    `sample_group_key(sample)` is `(group, batch_size)`: anything hashable, and how many
    samples of it make a batch, None where `fixed_batch_size` says it for all groups. A
    batch comes as soon as it is full; what is left at the end of a pass comes as
    batches that are not, in the order in which their first samples came, unless
    `drop_last`.

    This is a stream: in a loader each lane groups its own part of the input. A state
    holds, for each sample that waits for its batch, where it was read, and it is read
    again; so a run resumes after any batch, and no sample is lost or comes twice.

    Raises `ConfigError` for a batch size below 1; `EncoderError` when the function
    returns anything else.

    >>> from energize import ListSource
    >>> words = ListSource(["a", "bb", "c", "dd", "e"])
    >>> list(GroupBatchDataset(words, 2, lambda word: (len(word), None), "+".join))
    ['a+c', 'bb+dd', 'e']
    """

    order_name = "GroupBatchDataset"

    fixed_batch_size: int | None
    sample_group_key: Callable[[Any], tuple[Hashable, int | None]]
    batcher: Callable[[list[Any]], T_batch_co]
    drop_last: bool

    def __init__(
        self,
        dataset: Dataset[T_in],
        fixed_batch_size: int | None,
        sample_group_key: Callable[[T_in], tuple[Hashable, int | None]],
        batcher: Callable[[list[T_in]], T_batch_co],
        *,
        drop_last: bool = False,
        worker_config: WorkerConfig | None = None,
        **ignored: Any,
    ) -> None:
        owner = "GroupBatchDataset"
        checked_function(sample_group_key, f"{owner}: sample_group_key")
        if generates(checked_function(batcher, f"{owner}: batcher")):
            raise ConfigError(
                f"{owner}: batcher {function_name(batcher)} is a generator function, "
                "and may not yield: a group gives one batch. To make several of one, "
                "put a MapDataset over it"
            )
        if fixed_batch_size is not None:
            fixed_batch_size = checked_batch_size(
                fixed_batch_size, f"{owner}: fixed_batch_size"
            )
        self.freeze(
            [dataset],
            worker_config,
            ignored,
            fixed_batch_size=fixed_batch_size,
            sample_group_key=sample_group_key,
            batcher=batcher,
            drop_last=checked_flag(drop_last, "drop_last", owner),
        )

    @cached_property
    def traits(self) -> NodeTraits:
        # The number of groups is unknown.
        buffered = 64 * (self.fixed_batch_size or 64)
        return NodeTraits(
            members=None,
            gives_batches=True,
            stream=StreamTraits(by_reading=True, buffered=buffered),
        )

    @cached_property
    def _key_call(self) -> Call:
        return Call(self.sample_group_key, 0, tolerance=self.failure_tolerance())

    @cached_property
    def batch_call(self) -> Call:
        return Call(self.batcher, 0, carried, tolerance=self.failure_tolerance())

    def group_of(
        self, sample: Any, origin: tuple[Origin, ...], number: int, reading: ReadContext
    ) -> tuple[Hashable, int] | Failed:
        """Return the group of a sample, which has this number in the run, and its batch
        size.
        """
        word = partial(keyed_by, self, "group", *origin)
        found = self._key_call.one(sample, word, number, reading, by_keys(sample))
        if isinstance(found, Failed):
            return found
        pair = (
            isinstance(found, tuple)
            and len(found) == 2
            and isinstance(found[0], Hashable)
        )
        sizes = (found[1], self.fixed_batch_size) if pair else ()
        given = [each for each in sizes if each is not None]
        if len(given) != 1 or whole_number(given[0], 1) is None:
            raise EncoderError(
                f"{function_name(self.sample_group_key)} returns (group, batch size) "
                "of a sample, where the size is a whole number from 1, or None if the "
                "dataset has a batch size for all groups; batch_size is "
                f"{self.fixed_batch_size}, and it returned {str(found)[:80]}\n"
                f"  at {sample_keys_of(sample)}"
            )
        return found[0], given[0]

    def open_pass(self, opening: Opening) -> LaneStream[T_batch_co]:
        return _GroupStream(self, opening)


class _Waiting(NamedTuple):
    """A sample that waits for its batch: what it is made of, and where it was read,
    after how many of its lane.
    """

    sample: Any
    origin: tuple[Origin, ...]
    before: State
    read: int


class _GroupStream(LaneStream[T]):
    def __init__(self, dataset: GroupBatchDataset[T], opening: Opening) -> None:
        self._dataset = dataset
        self._opening = opening
        self._lane, state, self._reading, _ = opening
        self._over = bool(opening.counter("over"))
        self._made, self._read = opening.counter("made"), opening.counter("read")
        self._most = most_in_vain(dataset.inputs[0], self._lane)
        self._in_vain = 0
        self._groups: dict[Hashable, list[_Waiting]] = {}
        # Samples that wait are read again with the first batch, not by who only opens a
        # state.
        self._saved: deque[tuple[LaneReader[Any], int]] = deque()
        for each in [] if state is None else state_field(state, "waiting", list):
            reader = self._opened(state_field(each, "before", dict))
            self._saved.append((reader, counter_field(each, "read")))
        self._input = self._opened(opening.inner.state)

    def _opened(self, state: State | None) -> LaneReader[Any]:
        opening = self._opening._replace(state=state, endless=False)
        return LaneReader(self._dataset.inputs[0], opening)

    def _read_saved(self) -> None:
        """Read the samples again that waited when the state was saved."""
        while self._saved:
            reader, read = self._saved[0]
            before = reader.state()
            try:
                sample, _ = with_marks(reader.read())
            except StopIteration:
                raise ended_early(self._dataset) from None
            self._saved.popleft()
            reader.close()
            self._take_up(_Waiting(sample, reader.origin, before, read))

    def at(self, position: int, attempt: int = 0) -> T:
        self._read_saved()
        while True:
            samples = self._left() if self._over else self._full()
            if samples is None:
                continue
            made = self._batch(samples)
            if not isinstance(made, Failed):
                self.origin = origins_of(samples)
                self._in_vain = 0
                return made
            self._left_out(made, samples)

    def _full(self) -> list[_Waiting] | None:
        """Read until a group is full; None at the end of the pass."""
        while True:
            before = self._input.state()
            try:
                sample, _ = with_marks(self._input.read())
            except StopIteration:
                self._over = True
                return None
            self._read += 1
            full = self._take_up(
                _Waiting(sample, self._input.origin, before, self._read - 1)
            )
            if full is not None:
                return full

    def _take_up(self, waiting: _Waiting) -> list[_Waiting] | None:
        """Put a sample to its group, which is given when it is full."""
        number = self._lane.index + self._lane.count * waiting.read
        dataset = self._dataset
        found = dataset.group_of(waiting.sample, waiting.origin, number, self._reading)
        if isinstance(found, Failed):
            self._left_out(found, [waiting])
            return None
        group, size = found
        members = self._groups.setdefault(group, [])
        members.append(waiting)
        return self._groups.pop(group) if len(members) >= size else None

    def _left_out(self, failed: Failed, samples: list[_Waiting]) -> None:
        self._reading.leave_out(failed, self._dataset, origins_of(samples))
        self._in_vain += len(samples)
        if self._in_vain >= self._most:
            raise nothing_made(self._dataset, self._in_vain)

    def _left(self) -> list[_Waiting]:
        """Return the next of the groups that are left at the end of a pass."""
        if self._dataset.drop_last:
            self._groups.clear()
        if not self._groups:
            self._over = False
            raise StopIteration
        return self._groups.pop(next(iter(self._groups)))

    def _batch(self, samples: list[_Waiting]) -> T | Failed:
        dataset = self._dataset
        word = partial(keyed_by, dataset, "batch", *origins_of(samples))
        members = [each.sample for each in samples]
        number = self._lane.index + self._lane.count * self._made
        self._made += 1
        call = dataset.batch_call
        where = by_keys(members)
        return cast("T | Failed", call.one(members, word, number, self._reading, where))

    def state(self) -> State:
        held = [each for members in self._groups.values() for each in members]
        waiting = [{"before": each.before, "read": each.read} for each in held]
        waiting += [
            {"before": reader.state(), "read": read} for reader, read in self._saved
        ]
        return {
            "input": self._input.state(),
            "waiting": waiting,
            "over": int(self._over),
            "made": self._made,
            "read": self._read,
        }

    def close(self) -> None:
        self._groups.clear()
        for reader, _ in self._saved:
            reader.close()
        self._saved.clear()
        super().close()
