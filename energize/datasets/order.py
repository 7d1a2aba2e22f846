"""One dataset after another: what validation reads."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Sequence
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from energize.core.arrays import Int64Array
from energize.core.checks import checked_whole
from energize.core.dataset import Dataset, RoutedDataset, consumed_in_epochs, indexed_inputs
from energize.core.ignored import accepted
from energize.core.lanes import Lane, WorkerConfig
from energize.core.reading import Reading
from energize.core.refs import Refs
from energize.core.stream import (
    INFINITE,
    EndlessStream,
    PartReader,
    State,
    Stream,
    check_agrees,
    check_count,
    counter_field,
    state_field,
    states_of,
)
from energize.errors import ConfigError, NotIndexedError
from energize.order.shuffle import ShuffleOrder

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class ConcatDataset(RoutedDataset[T_co]):
    """All items of the first dataset, then all of the second, ...: the same in every run.

    It resumes at any item, and delivers in the same order on any number of ranks and workers. With
    a stream of unknown length among the datasets, each lane reads its part of the first, then its
    part of the second, and so on. Only the last dataset may be endless. Raises `ConfigError`
    without datasets, or when one that never ends has others after it.

    >>> from energize import ListSource
    >>> list(ConcatDataset(ListSource("ab"), ListSource("c")))
    ['a', 'b', 'c']
    """

    def __init__(self, *datasets: Dataset[T_co], worker_config: WorkerConfig | None = None) -> None:
        if not datasets:
            raise ConfigError("ConcatDataset: there are no datasets to concatenate")
        self._freeze(inputs=datasets, worker_config=worker_config)
        for number, (each, _) in enumerate(pairwise(self.inputs)):
            if each.sized and each.size == INFINITE:
                raise ConfigError(
                    f"ConcatDataset: dataset {number} ({type(each).__name__}) never ends, so "
                    "the ones after it are never reached; pass repeat=False, or cut it with "
                    "LimitDataset"
                )

    @cached_property
    def _ends(self) -> Int64Array:
        sizes = [each.size for each in self.inputs]
        ends = [min(sum(sizes[: i + 1]), INFINITE) for i in range(len(sizes))]
        return np.array(ends, dtype=np.int64)

    @cached_property
    def sized(self) -> bool:
        return all(each.sized for each in self.inputs)

    @cached_property
    def size(self) -> int:
        return int(self._ends[-1])

    def route(self, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        epoch, at = np.divmod(positions, self.size)
        which = np.searchsorted(self._ends, at, side="right")
        starts = np.concatenate([[0], self._ends[:-1]])[which]
        return which, epoch * (self._ends[which] - starts) + at - starts

    def taken(self, n: int) -> Sequence[int]:
        epochs, rest = divmod(n, max(self.size, 1))
        lengths = np.diff(self._ends, prepend=0)
        begun = np.clip(rest - (self._ends - lengths), 0, lengths)
        return [int(count) for count in epochs * lengths + begun]

    def _stream(
        self, lane: Lane, state: State | None, reading: Reading, endless: bool
    ) -> Stream[T_co]:
        if self.sized:
            return super()._stream(lane, state, reading, endless)

        def open_pass(at: State | None) -> Stream[T_co]:
            return _ConcatStream(self.inputs, lane, at, reading)

        if not endless:
            return open_pass(state)
        return EndlessStream(open_pass, state, lane, type(self).__name__)


class _ConcatStream(Stream[T]):
    """Reads a lane's part of each dataset; those read already are left at their next pass."""

    def __init__(
        self,
        inputs: Sequence[Dataset[Any]],
        lane: Lane,
        state: State | None,
        reading: Reading,
    ) -> None:
        self._current = counter_field(state, "current")
        self._inputs = [
            PartReader(each, lane, at, reading, endless=False)
            for each, at in zip(inputs, states_of(state, len(inputs)), strict=True)
        ]
        self._check()
        self._parts_before = np.cumsum([0, *(len(each.parts) for each in inputs)]).tolist()

    def _check(self) -> None:
        """Those before the one that is read are at the beginning of their next pass."""
        places = [each.part.place for each in self._inputs]
        check_agrees(
            self._current < len(places)
            and all(
                number == self._current or place == (places[-1][0] + (number < self._current), 0)
                for number, place in enumerate(places)
            )
            and places[self._current][0] == places[-1][0],
            f"{self._current} of {len(places)} datasets in a row are over, and their passes and "
            f"rounds are {str(places)[:80]}",
        )

    def at(self, position: int, attempt: int = 0) -> T:
        while self._current < len(self._inputs):
            reader: PartReader[T] = self._inputs[self._current]
            try:
                item = reader.read()
            except StopIteration:
                self._current += 1
            else:
                before = self._parts_before[self._current]
                self.origin = tuple(
                    each._replace(part=each.part + before) for each in reader.origin
                )
                return item
        self._current = 0
        raise StopIteration

    def state(self) -> State:
        return {"current": self._current, "inputs": [each.state() for each in self._inputs]}

    def close(self) -> None:
        for each in self._inputs:
            each.close()


# Only the first items of every epoch.


class LimitDataset(RoutedDataset[T_co]):
    """The first `length` items of each epoch of a dataset, or all of them when it has fewer.

    The limit says what is read: it counts the items of all ranks together. Unlike that of
    `EpochizeDataset`, the next epoch does not go on after the limit: it takes the first items of
    the input's next epoch, and those of its only epoch again when the input never ends or is a
    stream. A stream of unknown length is read from the front in each lane, up to the limit.

    Raises `ConfigError` for a length below 1.

    >>> from energize import ListSource
    >>> list(LimitDataset(ListSource("abc"), 2))
    ['a', 'b']
    """

    length: int

    def __init__(
        self,
        dataset: Dataset[T_co],
        length: int,
        *,
        worker_config: WorkerConfig | None = None,
        **ignored: Any,
    ) -> None:
        accepted("LimitDataset", **ignored)
        self._freeze(
            inputs=[dataset],
            worker_config=worker_config,
            length=checked_whole(length, "LimitDataset: length", 1),
        )

    @cached_property
    def sized(self) -> bool:
        return self.inputs[0].sized

    @cached_property
    def size(self) -> int:
        return min(self.length, self.inputs[0].size)

    @property
    def divisible(self) -> bool:
        """Only where the length of the input is known: else its end may come before the limit."""
        return self.sized

    def route(self, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        epoch, at = np.divmod(positions, self.size)
        whole = indexed_inputs(self)[0].size
        inner = at if whole == INFINITE else epoch * whole + at
        return np.zeros_like(positions), inner

    def consumed(self, n: int) -> Int64Array:
        inner = indexed_inputs(self)[0]
        return consumed_in_epochs(inner, n, self.size, 0 if inner.size == INFINITE else inner.size)

    def _stream(
        self, lane: Lane, state: State | None, reading: Reading, endless: bool
    ) -> Stream[T_co]:
        if self.sized:
            return _LimitStream(self, lane, state, reading)

        def open_pass(at: State | None) -> Stream[T_co]:
            return _FirstItems(self, lane, at, reading)

        if not endless:
            return open_pass(state)
        return EndlessStream(open_pass, state, lane, type(self).__name__)


class _LimitStream(Stream[T]):
    """Reads a stream anew in every epoch; where each ends is known."""

    def __init__(
        self, dataset: LimitDataset[T], lane: Lane, state: State | None, reading: Reading
    ) -> None:
        self._size = dataset.size
        self._input = dataset.inputs[0]
        self._lane, self._reading = lane, reading
        self._epoch = counter_field(state, "epoch")
        self._open(None if state is None else state_field(state, "input", dict))

    def _open(self, state: State | None) -> None:
        self._stream: Stream[T] = self._input.stream(self._lane, state, self._reading, endless=True)

    def at(self, position: int, attempt: int = 0) -> T:
        epoch, place = divmod(position, self._size)
        if epoch != self._epoch:
            self._stream.close()
            self._epoch = epoch
            self._open(None)
        item = self._stream.at(place, attempt)
        self.origin = self._stream.origin
        return item

    def ahead(self, positions: Int64Array) -> None:
        places = positions - self._epoch * self._size
        self._stream.ahead(places[places < self._size])

    def state(self) -> State:
        return {"epoch": self._epoch, "input": self._stream.state()}

    def check_after(self, last: int | None, *, exact: bool) -> None:
        epoch, place = divmod(0 if last is None else last, self._size)
        check_agrees(
            epoch == self._epoch, f"it is in epoch {self._epoch} of a limit, and was in {epoch}"
        )
        self._stream.check_after(None if last is None else place, exact=exact)

    def close(self) -> None:
        self._stream.close()


class _FirstItems(Stream[T]):
    """The first items of one pass of a stream that is read as a whole."""

    def __init__(
        self, dataset: LimitDataset[T], lane: Lane, state: State | None, reading: Reading
    ) -> None:
        self._length = dataset.length
        self._taken = counter_field(state, "taken")
        check_agrees(
            self._taken <= self._length, f"{self._taken} of the first {self._length} items came"
        )
        inner = None if state is None or not self._taken else state_field(state, "input", dict)
        self._input = dataset.inputs[0].stream(lane, inner, reading, endless=False)

    def at(self, position: int, attempt: int = 0) -> T:
        try:
            if self._taken == self._length:
                raise StopIteration
            item: T = self._input.at(self._taken, attempt)
        except StopIteration:
            self._taken = 0  # the next pass reads the same items again
            raise
        self._taken += 1
        self.origin = self._input.origin
        return item

    def state(self) -> State:
        return {"taken": self._taken, "input": self._input.state()}

    def check_after(self, last: int | None, *, exact: bool) -> None:
        check_count(self._taken, last, exact=exact, what="items of a limit came")
        self._input.check_after(self._taken - 1 if self._taken else None, exact=exact)

    def close(self) -> None:
        self._input.close()


# Several passes in one epoch, or passes without end.


class RepeatDataset(RoutedDataset[T_co]):
    """`repeats` passes over a dataset in every epoch, 2.5 say; without end when it is None.

    Every epoch has round(repeats * size) items and visits each sample floor(repeats) or
    ceil(repeats) times. Each pass over a shuffled input is in a new order; so the samples that a
    fractional pass takes, the first of its order, are others in every epoch.

    A stream is repeated as a whole: `repeats` is a whole number, or None. Raises `ConfigError` for
    `repeats` that are not a number above 0, or that leave no item, and `NotIndexedError` for a
    fraction of a stream.

    >>> from energize import ListSource
    >>> list(RepeatDataset(ListSource("abcd"), 1.5))
    ['a', 'b', 'c', 'd', 'a', 'b']
    """

    repeats: float | None

    def __init__(
        self,
        dataset: Dataset[T_co],
        repeats: float | None = None,
        *,
        worker_config: WorkerConfig | None = None,
        **ignored: Any,
    ) -> None:
        accepted("RepeatDataset", **ignored)
        number = isinstance(repeats, int | float) and not isinstance(repeats, bool)
        if repeats is not None and not (number and math.isfinite(repeats) and repeats > 0):
            raise ConfigError(
                f"RepeatDataset: repeats is a number above 0, or None for ever; got {repeats!r}"
            )
        self._freeze(inputs=[dataset], worker_config=worker_config, repeats=repeats)
        if not dataset.indexed and repeats is not None and repeats != int(repeats):
            raise NotIndexedError(
                f"RepeatDataset: {repeats} passes over a stream end within a pass, whose length is "
                "not known; give a whole number of passes, or none to repeat it for ever"
            )
        if dataset.indexed and self.size == 0:
            raise ConfigError(
                f"RepeatDataset: {repeats} passes over {indexed_inputs(self)[0].size} items leave "
                "no item"
            )

    @cached_property
    def sized(self) -> bool:
        return self.repeats is None or self.inputs[0].sized

    @cached_property
    def size(self) -> int:
        if self.repeats is None or self.inputs[0].size == INFINITE:
            return INFINITE
        inner = self.inputs[0].size
        return math.floor(Fraction(repr(self.repeats)) * inner + Fraction(1, 2))

    def route(self, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        if self.size == INFINITE:
            return np.zeros_like(positions), positions
        epoch, at = np.divmod(positions, self.size)
        inner = self.inputs[0].size
        return np.zeros_like(positions), epoch * math.ceil(self.size / inner) * inner + at

    def taken(self, n: int) -> Sequence[int] | None:
        whole = self.size == INFINITE or self.size % indexed_inputs(self)[0].size == 0
        return [n] if whole else None

    def consumed(self, n: int) -> Int64Array:
        if self.taken(n) is not None:
            return super().consumed(n)
        inner = indexed_inputs(self)[0]
        stride = math.ceil(self.size / inner.size) * inner.size
        return consumed_in_epochs(inner, n, self.size, stride)

    def _stream(
        self, lane: Lane, state: State | None, reading: Reading, endless: bool
    ) -> Stream[T_co]:
        if self.sized:
            return super()._stream(lane, state, reading, endless)

        def open_epoch(at: State | None) -> Stream[T_co]:
            return _RepeatStream(self, lane, at, reading)

        if not endless:
            return open_epoch(state)
        return EndlessStream(open_epoch, state, lane, type(self).__name__)


class _RepeatStream(Stream[T]):
    """Some passes over a lane's part of a stream of unknown length."""

    def __init__(
        self, dataset: RepeatDataset[T], lane: Lane, state: State | None, reading: Reading
    ) -> None:
        self._repeats = int(dataset.repeats or 1)
        self._passed = counter_field(state, "passed")
        inner = None if state is None else state_field(state, "input", dict)
        self._input: PartReader[T] = PartReader(
            dataset.inputs[0], lane, inner, reading, endless=False
        )
        passes, _ = self._input.part.place
        check_agrees(
            self._passed == passes % self._repeats,
            f"{self._passed} of {self._repeats} passes are over, and {passes} of all",
        )

    def at(self, position: int, attempt: int = 0) -> T:
        while self._passed < self._repeats:
            try:
                item = self._input.read()
            except StopIteration:
                self._passed += 1
            else:
                self.origin = self._input.origin
                return item
        self._passed = 0
        raise StopIteration

    def state(self) -> State:
        return {"passed": self._passed, "input": self._input.state()}

    def close(self) -> None:
        self._input.close()


# Visiting a finite dataset in random order.


class ShuffleDataset(RoutedDataset[T_co]):
    """Every epoch of a finite indexed dataset in a random order of its own, without a buffer.

    Each epoch visits every item exactly once. The order is keyed by the seed and the sources, so
    two datasets of equal size are visited in different orders.

    `max_samples_per_sequence` and `shuffle_buffer_size` keep reading local, as in loaders that read
    shards in sequence: runs of at most the former many neighbours are put in random order, then
    items are shuffled within windows of the latter. Both unset: a full permutation. With only the
    buffer size set, runs are as long as the source's shards.

    `over_epochs` epochs may be shuffled together: each sample comes that many times in them, and
    may come twice in one. -1 draws samples independently, with replacement.

    Raises `ConfigError` for numbers below 1 and for an input that never ends, `NotIndexedError` for
    a stream.

    >>> from energize import ListSource
    >>> letters = ShuffleDataset(ListSource("abcd"))
    >>> sorted(letters)
    ['a', 'b', 'c', 'd']
    """

    shuffle_buffer_size: int | None
    max_samples_per_sequence: int | None
    over_epochs: int

    def __init__(
        self,
        dataset: Dataset[T_co],
        *,
        shuffle_buffer_size: int | None = None,
        max_samples_per_sequence: int | None = None,
        over_epochs: int = 1,
    ) -> None:
        for name, value in (
            ("shuffle_buffer_size", shuffle_buffer_size),
            ("max_samples_per_sequence", max_samples_per_sequence),
        ):
            if value is not None:
                checked_whole(value, f"ShuffleDataset: {name}", 1)
        self._freeze(
            inputs=[dataset],
            shuffle_buffer_size=shuffle_buffer_size,
            max_samples_per_sequence=max_samples_per_sequence,
            over_epochs=(
                -1
                if over_epochs == -1
                else checked_whole(over_epochs, "ShuffleDataset: over_epochs", 1)
            ),
        )
        if not dataset.indexed:
            raise NotIndexedError(
                f"ShuffleDataset needs random access to its input, and {self._streaming_input()} "
                "can only be read as a stream; shuffle what it reads instead"
            )
        if self.size == INFINITE:
            raise ConfigError(
                "ShuffleDataset: the input never ends, and an endless dataset cannot be permuted; "
                "shuffle its finite parts before they are repeated or blended"
            )
        if self.size * max(over_epochs, 1) >= INFINITE // 2:
            raise ConfigError(
                f"ShuffleDataset: over_epochs={reprlib.repr(over_epochs)} of {self.size} samples "
                "are more than can be counted; shuffle fewer epochs together"
            )

    @cached_property
    def size(self) -> int:
        return indexed_inputs(self)[0].size

    @cached_property
    def _order(self) -> ShuffleOrder:
        run = self.max_samples_per_sequence
        if run is None and self.shuffle_buffer_size is not None:
            lengths = [each.run_length or self.size for each in self.sources]
            run = max(1, min(lengths))
        return ShuffleOrder(self.size, self.key, run, self.shuffle_buffer_size, self.over_epochs)

    def route(self, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        epoch = positions // self.size
        return np.zeros_like(positions), epoch * self.size + self._order.locate(positions)

    def passes(self, positions: Int64Array) -> Refs:
        if not self.one_each or self.over_epochs != 1:
            return super().passes(positions)
        nobody = np.full(len(positions), -1, dtype=np.int64)
        return Refs.of_source(nobody, positions // self.size)

    def consumed(self, n: int) -> Int64Array:
        if self.one_each or self.over_epochs != 1:
            return super().consumed(n)
        whole = n - n % max(self.size, 1)
        return indexed_inputs(self)[0].consumed(whole) + self._counted(whole, n)


# Cutting a dataset into epochs of a chosen length.


class EpochizeDataset(RoutedDataset[T_co]):
    """Epochs of `length` items each, without end: an epoch goes on where the last one stopped.

    A finite input starts its next pass when one has ended, so every epoch is full. As the outermost
    dataset of a loader it says where a loop ends, not what is read: `length` counts the steps that
    each rank makes, as in Energon (see `Loader`). `LimitDataset` says what is read.

    Instead of a length, `num_epochs` makes one epoch of that many passes, over all ranks: of an
    endless dataset, passes as `len` of it counts them.

    Raises `ConfigError` unless exactly one of the two is given, or for a number below 1, and
    `NotIndexedError` for `num_epochs` of a stream of unknown length.

    >>> from energize import ListSource
    >>> epochs = EpochizeDataset(ListSource("abc"), 2)
    >>> cursor = epochs.open()
    >>> list(cursor), list(epochs.open(state=cursor.state()))
    (['a', 'b'], ['c', 'a'])
    """

    ends_loops = True

    length: int
    num_epochs: int | None

    def __init__(
        self,
        dataset: Dataset[T_co],
        length: int | None = None,
        *,
        num_epochs: int | None = None,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        if (length is None) == (num_epochs is None):
            raise ConfigError(
                "EpochizeDataset: give either length (items per epoch) or num_epochs (passes over "
                f"the dataset); got length={length!r}, num_epochs={num_epochs!r}"
            )
        if num_epochs is not None:
            length = len(dataset) * checked_whole(num_epochs, "EpochizeDataset: num_epochs", 1)
        self._freeze(
            inputs=[dataset],
            worker_config=worker_config,
            length=checked_whole(length, "EpochizeDataset: length", 1),
            num_epochs=num_epochs,
        )

    @cached_property
    def key(self) -> int:
        """That of the input: where epochs end changes no order."""
        return self.inputs[0].key

    @cached_property
    def sized(self) -> bool:
        return True

    @cached_property
    def size(self) -> int:
        return self.length

    @property
    def steps_per_epoch(self) -> int | None:
        return self.length if self.num_epochs is None else None

    def route(self, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        return np.zeros_like(positions), positions

    def taken(self, n: int) -> Sequence[int]:
        return [n]
