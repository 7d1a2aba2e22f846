"""Batches of samples of one group, such as images of one size."""

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
from energize.datasets.rounds import (
    StreamDataset,
    keyed_by,
    no_result_error,
    origins_of,
)
from energize.errors import ConfigError, EncoderError

T_in = TypeVar("T_in")
T = TypeVar("T")
T_batch_co = TypeVar("T_batch_co", covariant=True)


class GroupBatchDataset(StreamDataset[T_batch_co]):
    """Batch samples by group, such as images of one size or texts of similar length.

    A batch is delivered as soon as its group is full. At the end of a pass, incomplete
    groups are delivered in the order of their first samples, unless `drop_last`.

    This is a stream: in a loader, each lane groups its own part of the input. A state
    contains the positions of the samples that wait for their batch; they are read again
    on resume, so no sample is lost or duplicated.

    Args:
        dataset: The dataset to read.
        fixed_batch_size: Samples of a batch, for all groups. None if
            `sample_group_key` returns the batch size.
        sample_group_key: Returns `(group, batch_size)` of a sample. `group` is any
            hashable; `batch_size` is None if `fixed_batch_size` is set.
        batcher: Makes a batch of a list of samples of one group.
        drop_last: Whether incomplete batches are dropped at the end of a pass.
        worker_config: Seeds the order by its `seed_offset`; passed to `get_loader`.
        **ignored: Arguments of Megatron-Energon without effect; they are logged.

    Raises:
        ConfigError: If the batch size is below 1, or `batcher` is a generator function.
        EncoderError: While reading, if `sample_group_key` returns another value.

    Example:
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
                f"{owner}: batcher {function_name(batcher)} must not be a generator "
                "function, as a group makes one batch. Use a MapDataset above it to "
                "make several samples of one"
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
        """The call of `batcher`."""
        return Call(self.batcher, 0, carried, tolerance=self.failure_tolerance())

    def group_of(
        self, sample: Any, origin: tuple[Origin, ...], number: int, reading: ReadContext
    ) -> tuple[Hashable, int] | Failed:
        """Return the group of a sample and the batch size of the group.

        Args:
            sample: The sample.
            origin: The positions that the sample is made of.
            number: The number of the sample in the run.
            reading: The context of the read.
        """
        word = partial(keyed_by, self, "group", *origin)
        result = self._key_call.one(sample, word, number, reading, by_keys(sample))
        if isinstance(result, Failed):
            return result
        pair = (
            isinstance(result, tuple)
            and len(result) == 2
            and isinstance(result[0], Hashable)
        )
        sizes = (result[1], self.fixed_batch_size) if pair else ()
        valid_sizes = [size for size in sizes if size is not None]
        if len(valid_sizes) != 1 or whole_number(valid_sizes[0], 1) is None:
            raise EncoderError(
                f"{function_name(self.sample_group_key)} must return (group, batch "
                "size) of a sample, with a whole number >= 1 as the size, or None if "
                "the dataset has a batch_size; batch_size is "
                f"{self.fixed_batch_size}, got {str(result)[:80]}\n  at "
                f"{sample_keys_of(sample)}"
            )
        return result[0], valid_sizes[0]

    def open_pass(self, opening: Opening) -> LaneStream[T_batch_co]:
        return _GroupStream(self, opening)


class _Waiting(NamedTuple):
    """A sample that waits for its batch.

    Attributes:
        sample: The sample.
        origin: The positions that the sample is made of.
        before: The state of the input before the sample.
        read: How many samples of the lane were read before it.
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
        self._batches, self._read = opening.counter("made"), opening.counter("read")
        self._most = most_in_vain(dataset.inputs[0], self._lane)
        self._in_vain = 0
        self._groups: dict[Hashable, list[_Waiting]] = {}
        # Samples that wait are read again with the first batch, not by who only opens a
        # state.
        self._saved: deque[tuple[LaneReader[Any], int]] = deque()
        for saved in [] if state is None else state_field(state, "waiting", list):
            reader = self._opened(state_field(saved, "before", dict))
            self._saved.append((reader, counter_field(saved, "read")))
        self._input = self._opened(opening.inner.state)

    def _opened(self, state: State | None) -> LaneReader[Any]:
        opening = self._opening._replace(state=state, endless=False)
        return LaneReader(self._dataset.inputs[0], opening)

    def _read_saved(self) -> None:
        """Read the samples again that were waiting in the saved state."""
        while self._saved:
            reader, read = self._saved[0]
            previous = reader.state()
            try:
                sample, _ = with_marks(reader.read())
            except StopIteration:
                raise ended_early(self._dataset) from None
            self._saved.popleft()
            reader.close()
            self._take_up(_Waiting(sample, reader.origin, previous, read))

    def at(self, position: int, attempt: int = 0) -> T:
        self._read_saved()
        while True:
            samples = self._left() if self._over else self._full()
            if samples is None:
                continue
            batch = self._batch(samples)
            if not isinstance(batch, Failed):
                self.origin = origins_of(samples)
                self._in_vain = 0
                return batch
            self._left_out(batch, samples)

    def _full(self) -> list[_Waiting] | None:
        """Read until a group is full; return None at the end of the pass."""
        while True:
            previous = self._input.state()
            try:
                sample, _ = with_marks(self._input.read())
            except StopIteration:
                self._over = True
                return None
            self._read += 1
            full = self._take_up(
                _Waiting(sample, self._input.origin, previous, self._read - 1)
            )
            if full is not None:
                return full

    def _take_up(self, waiting: _Waiting) -> list[_Waiting] | None:
        """Add a sample to its group; return the group if it is full."""
        number = self._lane.index + self._lane.count * waiting.read
        dataset = self._dataset
        result = dataset.group_of(waiting.sample, waiting.origin, number, self._reading)
        if isinstance(result, Failed):
            self._left_out(result, [waiting])
            return None
        group, size = result
        members = self._groups.setdefault(group, [])
        members.append(waiting)
        return self._groups.pop(group) if len(members) >= size else None

    def _left_out(self, failed: Failed, samples: list[_Waiting]) -> None:
        self._reading.leave_out(failed, self._dataset, origins_of(samples))
        self._in_vain += len(samples)
        if self._in_vain >= self._most:
            raise no_result_error(self._dataset, self._in_vain)

    def _left(self) -> list[_Waiting]:
        """Return the next incomplete group at the end of a pass."""
        if self._dataset.drop_last:
            self._groups.clear()
        if not self._groups:
            self._over = False
            raise StopIteration
        return self._groups.pop(next(iter(self._groups)))

    def _batch(self, samples: list[_Waiting]) -> T | Failed:
        dataset = self._dataset
        word = partial(keyed_by, dataset, "batch", *origins_of(samples))
        members = [sample.sample for sample in samples]
        number = self._lane.index + self._lane.count * self._batches
        self._batches += 1
        call = dataset.batch_call
        locate = by_keys(members)
        return cast(
            "T | Failed", call.one(members, word, number, self._reading, locate)
        )

    def state(self) -> State:
        held = [sample for members in self._groups.values() for sample in members]
        waiting = [{"before": sample.before, "read": sample.read} for sample in held]
        waiting += [
            {"before": reader.state(), "read": read} for reader, read in self._saved
        ]
        return {
            "input": self._input.state(),
            "waiting": waiting,
            "over": int(self._over),
            "made": self._batches,
            "read": self._read,
        }

    def close(self) -> None:
        self._groups.clear()
        for reader, _ in self._saved:
            reader.close()
        self._saved.clear()
        super().close()
