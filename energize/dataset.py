"""The protocol: datasets describe, cursors move.

A `Dataset` is a frozen description of what to read and in which order. Opening it gives a `Cursor`,
the only thing that moves. An `IndexedDataset` is an endless sequence cut into epochs of `size`
items: item k is a pure function of k, and positions behind the first epoch are the next ones, each
in an order of its own. Everything about order is therefore arithmetic on positions, and everything
about content is a function of what lies at a position.
"""

from __future__ import annotations

import copy
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, cast

import numpy as np
import numpy.typing as npt

from energize.cursor import INFINITE, Counted, CountingCursor, Cursor, State, state_field
from energize.describing import described, differences, jsonable
from energize.errors import ConfigError, NotIndexedError
from energize.fetching import Attempt, Failed, resolve
from energize.refs import Refs
from energize.rng import derive
from energize.topology import SINGLE_LANE, Lane, WorkerConfig

if TYPE_CHECKING:
    from energize.sources.base import Source

__all__ = ["INFINITE", "Cursor", "Dataset", "IndexedDataset", "Int64Array", "OnFailure", "State"]

Int64Array = npt.NDArray[np.int64]
OnFailure = Callable[[Failed], None]
T_co = TypeVar("T_co", covariant=True)

_log = logging.getLogger("energize")

_COUNTED_AT_ONCE = 2**16


def log_failure(failed: Failed) -> None:
    """What happens to a failed sample where nobody asked for anything else: a warning."""
    _log.warning("%s; a substitute takes its place", failed)


class Dataset(ABC, Generic[T_co]):
    """What to read and in which order: immutable, picklable, comparable, holding nothing open.

    Two datasets are equal when they are of one class, with equal parameters and equal inputs.
    Subclasses set their parameters once, with `_freeze` in `__init__`.
    """

    inputs: tuple[Dataset[Any], ...]
    worker_config: WorkerConfig | None
    _parameters: tuple[str, ...]

    def _freeze(
        self,
        inputs: Sequence[Dataset[Any]] = (),
        worker_config: WorkerConfig | None = None,
        **parameters: Any,
    ) -> None:
        """Set inputs and parameters for good.

        Of a worker config given here, `seed_offset` seeds the inputs that carry no config yet.
        """
        for each in inputs:
            if not isinstance(each, Dataset):
                raise ConfigError(
                    f"{type(self).__name__} reads from datasets, got {type(each).__name__} "
                    f"{str(each)[:80]!r}; wrap an object that has __len__ and __getitem__ in "
                    "SequenceSource"
                )
        if worker_config is not None and worker_config.seed_offset:
            seed = worker_config.seed_offset
            inputs = [each if each.worker_config else each.reseeded(seed) for each in inputs]
        values = {
            "inputs": tuple(inputs),
            "worker_config": _common_worker_config(type(self).__name__, worker_config, inputs),
            "_parameters": tuple(parameters),
            **parameters,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @abstractmethod
    def open(
        self,
        lane: Lane = SINGLE_LANE,
        state: State | None = None,
        on_failure: OnFailure = log_failure,
    ) -> Cursor[T_co]:
        """Start reading, or go on from `state`; the only way to get something that moves.

        `on_failure` is told each sample that failed and was substituted.
        """

    @cached_property
    def indexed(self) -> bool:
        """Whether item k is a function of k alone: so for all inputs, down to the sources."""
        return all(each.indexed for each in self.inputs)

    @cached_property
    def key(self) -> int:
        """What the random choices of this node are keyed by: seed, sources and kinds on the way."""
        return derive(type(self).__name__, *(each.key for each in self.inputs))

    @cached_property
    def sources(self) -> tuple[Source[Any], ...]:
        """The sources that are read, in the order of the description; refs count in it."""
        return tuple(leaf for each in self.inputs for leaf in each.sources)

    def with_inputs(self, inputs: Sequence[Dataset[Any]]) -> Self:
        """The same description over other inputs."""
        return self._replace(inputs=tuple(inputs))

    def reseeded(self, seed: int) -> Self:
        """The same description with `seed` in all its sources: other orders, other draws."""
        return self.with_inputs([each.reseeded(seed) for each in self.inputs])

    def distinguished(self, occurrence: int) -> Self:
        """The same description with an order of its own, to stand beside itself in a mix."""
        return self.with_inputs([each.distinguished(occurrence) for each in self.inputs])

    def with_worker_config(self, worker_config: WorkerConfig | None) -> Self:
        """The same description carrying a worker config for the loader to take."""
        return self._replace(worker_config=worker_config)

    def mismatches(self, saved: dict[str, Any], state: State) -> Iterator[str]:
        """What forbids to go on here from `state` of the dataset described as `saved`, a line each.

        Every difference does, unless a subclass knows that those behind the state's position do no
        harm.
        """
        return differences(saved, jsonable(self.describe()))

    def describe(self) -> dict[str, Any]:
        """The description as a JSON-able tree: what a saved state is checked against."""
        tree: dict[str, Any] = {"kind": type(self).__name__}
        tree |= {name: described(getattr(self, name)) for name in self._parameters}
        if self.inputs:
            tree["inputs"] = [each.describe() for each in self.inputs]
        return tree

    def _replace(self, **changed: Any) -> Self:
        other = copy.copy(self)
        for name, value in changed.items():
            object.__setattr__(other, name, value)
        return other

    def __iter__(self) -> Iterator[T_co]:
        return self.open()

    def __setattr__(self, name: str, value: object) -> None:
        raise ConfigError(
            f"{type(self).__name__}.{name} cannot be changed: a dataset is a frozen description; "
            "make a new one"
        )

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return self is other or bool(self._compared() == cast("Dataset[Any]", other)._compared())

    def __hash__(self) -> int:
        return hash((type(self).__name__, self.key))

    def _compared(self) -> tuple[Any, ...]:
        return self.inputs, *((name, getattr(self, name)) for name in self._parameters)

    def __getstate__(self) -> dict[str, Any]:
        """What is copied and pickled: the description, not what was computed from it."""
        kept = ("inputs", "worker_config", "_parameters", *self._parameters)
        return {name: getattr(self, name) for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        shown = [f"{k}={v!r}" for k, v in self.describe().items() if k not in ("kind", "inputs")]
        return f"{type(self).__name__}({', '.join([*map(repr, self.inputs), *shown])})"


class IndexedDataset(Dataset[T_co]):
    """A dataset whose item k is a pure function of k: `dataset[10**9]` costs what `dataset[0]`
    does.

    A wrapper is as indexed as its inputs: over a streaming input, `indexed` is False, and what
    needs positions raises `NotIndexedError`.
    """

    @cached_property
    @abstractmethod
    def size(self) -> int:
        """Items per epoch, or `INFINITE`."""

    @property
    def read_ahead(self) -> int:
        """How many items are worth asking for at once."""
        return min((cast("IndexedDataset[Any]", i).read_ahead for i in self.inputs), default=1)

    @abstractmethod
    def fetch(self, positions: Int64Array, attempt: Attempt) -> list[T_co | Failed]:
        """The items at `positions` (int64, any order, any epoch), failed ones as `Failed`.

        What comes at a position depends on the position and `attempt.number` alone. `__getitem__`
        and cursors ask again for failed positions with higher attempts, which sources answer with
        substitutes.
        """

    @abstractmethod
    def refs(self, positions: Int64Array, attempt: int = 0) -> Refs:
        """Which samples of which sources the items at `positions` are made of; reads nothing."""

    @property
    def in_turn(self) -> bool:
        """Whether each input's items are taken one after another from its first, none left out."""
        return False

    def taken(self, n: int) -> Sequence[int] | None:
        """How many items of each of `inputs` the first `n` items are made of.

        None where that is known by counting only. A dataset that is `in_turn` knows it, at no more
        cost for a large `n` than for a small one.
        """
        return None

    def stretches(self, start: int, stop: int) -> Iterator[tuple[int, int, int]] | None:
        """The items from `start` to before `stop` as stretches of items of the inputs: each the
        number of an input, the first item and the one behind the last, in the order in which they
        are taken from that input.

        None where items are not taken in stretches.
        """
        if not self.in_turn:
            return None
        before, behind = self.taken(start) or (), self.taken(stop) or ()
        pairs = enumerate(zip(before, behind, strict=True))
        return ((number, first, end) for number, (first, end) in pairs if end > first)

    def consumed(self, n: int) -> Int64Array:
        """How many samples of each of `sources` the first `n` items are made of: int64.

        Reads nothing. Failed samples count, their substitutes do not. What takes no prefix of a mix
        costs in proportion to its epochs among the `n` items, or where not even stretches are
        known, to `n`.
        """
        inputs = [cast("IndexedDataset[Any]", each) for each in self.inputs]
        taken = self.taken(n)
        if taken is not None and (self.in_turn or all(each.one_each for each in inputs)):
            return np.concatenate([each.consumed(k) for each, k in zip(inputs, taken, strict=True)])
        stretches = self.stretches(0, n)
        if stretches is None:
            return self._counted(n)
        counts = [np.zeros(len(each.sources), dtype=np.int64) for each in inputs]
        for number, first, end in stretches:
            counts[number] += inputs[number].consumed(end) - inputs[number].consumed(first)
        return np.concatenate(counts)

    @cached_property
    def one_each(self) -> bool:
        """Whether every item is known to be one sample, all of one source."""
        single = len(self.inputs) == 1 and self.taken(1) == [1] and self.taken(2**40) == [2**40]
        return single and cast("IndexedDataset[Any]", self.inputs[0]).one_each

    def _counted(self, n: int) -> Int64Array:
        counts = np.zeros(len(self.sources), dtype=np.int64)
        for start in range(0, n, _COUNTED_AT_ONCE):
            positions = np.arange(start, min(start + _COUNTED_AT_ONCE, n), dtype=np.int64)
            counts += np.bincount(self.refs(positions).source, minlength=len(counts))
        return counts

    def where(self, position: int, attempt: int = 0) -> str:
        """Where the first sample of the item at `position` lies, for messages."""
        refs = self.refs(np.array([position], dtype=np.int64), attempt)
        if not len(refs):
            return f"item {position}, which is padding"
        return self.sources[int(refs.source[0])].where(int(refs.index[0]))

    def __len__(self) -> int:
        """Items per epoch; `NotIndexedError` (a TypeError) when there is no such number."""
        self._check_indexed("length")
        if self.size == INFINITE:
            raise NotIndexedError(
                f"{type(self).__name__} never ends, so it has no length; cut it with "
                "LimitDataset or EpochizeDataset"
            )
        return self.size

    def __getitem__(self, position: int) -> T_co:
        """Item `position` of the first epoch; IndexError behind it, negative ones from its end."""
        self._check_indexed("random access")
        if position < 0 and self.size != INFINITE:
            position += self.size
        if not 0 <= position < self.size:
            raise IndexError(f"position {position} of a dataset of {self.size} items per epoch")
        return self.at(np.array([position], dtype=np.int64))[0]

    def at(self, positions: npt.ArrayLike, on_failure: OnFailure = log_failure) -> list[T_co]:
        """The items at any positions, of any epochs, with failed samples substituted."""
        self._check_indexed("random access")
        return resolve(self, np.asarray(positions, dtype=np.int64), Attempt(0, on_failure))

    def open(
        self,
        lane: Lane = SINGLE_LANE,
        state: State | None = None,
        on_failure: OnFailure = log_failure,
    ) -> Cursor[T_co]:
        if not self.indexed:
            return self._open_stream(lane, state, on_failure)
        start = 0 if state is None else state_field(state, "position", int)
        return self.cursor(self, lane, start, Attempt(0, on_failure))

    def cursor(
        self, reader: Counted[Any], lane: Lane, start: int, attempt: Attempt
    ) -> Cursor[T_co]:
        """A cursor over this dataset whose items are fetched by `reader`: itself, or workers."""
        return CountingCursor(reader, lane, start, attempt)

    def _open_stream(self, lane: Lane, state: State | None, on_failure: OnFailure) -> Cursor[T_co]:
        """Called when an input is a stream; wrappers that can follow one override it."""
        raise NotIndexedError(
            f"{type(self).__name__} needs random access to its input, and "
            f"{self._streaming_input()} can only be read as a stream"
        )

    def _check_indexed(self, wanted: str) -> None:
        if not self.indexed:
            raise NotIndexedError(
                f"{type(self).__name__} reads from {self._streaming_input()}, a stream, so it has "
                f"no {wanted}; iterate over it instead"
            )

    def _streaming_input(self) -> str:
        node: Dataset[Any] = self
        while True:
            streaming = [each for each in node.inputs if not each.indexed]
            if not streaming:
                return type(node).__name__
            node = streaming[0]


def _common_worker_config(
    kind: str, given: WorkerConfig | None, inputs: Sequence[Dataset[Any]]
) -> WorkerConfig | None:
    """The one worker config that a node and its inputs carry; two different ones are an error."""
    carried = {each.worker_config for each in inputs} | {given}
    carried.discard(None)
    if len(carried) > 1:
        shown = " and ".join(sorted(map(str, carried)))
        raise ConfigError(
            f"{kind} is built from parts with different worker configs: {shown}. Use one for a "
            "whole loader, or give it to the loader alone"
        )
    return next(iter(carried), None)
