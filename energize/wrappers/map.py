"""A function of each item."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from itertools import islice
from typing import Any, ClassVar, Self, TypeVar, cast

import numpy as np

from energize.arrays import Int64Array
from energize.cursor import State, counter_field, state_field
from energize.dataset import Dataset, IndexedDataset
from energize.errors import ConfigError, SubstitutionError
from energize.ignored import accepted
from energize.passing import PassingDataset
from energize.reading import Failed, Reading
from energize.refs import Refs
from energize.rng import derive, hash_positions
from energize.sample_weights import carried, carried_one_by_one
from energize.streaming import Stream
from energize.topology import Lane, WorkerConfig
from energize.wrappers.calling import (
    Seeding,
    function_name,
    generates,
    index_of_call,
    keyed_calls,
    keyed_items,
    sample_keys_of,
    seeding_of,
)
from energize.wrappers.rounds import Origins, RoundsDataset, Step, Taken, keyed_by, most_in_vain
from energize.wrappers.routed import indexed_inputs

T = TypeVar("T")
T_in = TypeVar("T_in")
T_out_co = TypeVar("T_out_co", covariant=True)


_CALLS = "calls"
"""How often each map on top of one another has called its function, the innermost first."""


class MapDataset(PassingDataset[T_out_co], IndexedDataset[T_out_co]):
    """`map_fn(item)` for each item; order and number stay as they are.

    The function may raise `SkipSample` to leave an item out and `DataError` for bad bytes; a
    substitute from the same source comes in its place, from a stream the next item. Any other
    exception is raised as `EncoderError` with the sample's source.

    A function that is written with `yield` gives any number of items of each: the result is then a
    `FlatMapDataset`, a stream, which resumes between any two of them.

    A function with a parameter `rng` is given a `numpy.random.Generator` keyed by (seed, position).
    For others the global generators of random, numpy and torch are seeded so for each call, and put
    back afterwards; `seeded=False` saves these microseconds for functions that draw nothing. Random
    augmentations are therefore the same for any number of workers and after a resume.

    >>> from energize import ListSource
    >>> list(MapDataset(ListSource([1, 2, 3]), lambda x: x * x))
    [1, 4, 9]
    """

    passes_on = True
    draws: ClassVar[bool] = True
    """Whether the function may draw random numbers, for which its calls are told apart."""

    map_fn: Callable[[Any], Any]
    seeded: bool

    def __new__(cls, *inputs: Any, **options: Any) -> Self:
        """A `FlatMapDataset` where the function is a generator function."""
        map_fn = inputs[1] if len(inputs) > 1 else options.get("map_fn")
        if cls is MapDataset and generates(map_fn):
            return cast("Self", super().__new__(FlatMapDataset))
        return super().__new__(cls)

    def __init__(
        self,
        dataset: Dataset[T_in],
        map_fn: Callable[[T_in], T_out_co | Iterator[T_out_co]],
        *,
        seeded: bool = True,
        worker_config: WorkerConfig | None = None,
        **ignored: Any,
    ) -> None:
        accepted("MapDataset", **ignored)
        if not callable(map_fn):
            raise ConfigError(f"MapDataset: map_fn is a function of an item; got {map_fn!r}")
        self._freeze(inputs=[dataset], worker_config=worker_config, map_fn=map_fn, seeded=seeded)

    @cached_property
    def seed_key(self) -> int:
        """What the draws of the function are keyed by; maps on top of one another draw apart."""
        below = self.inputs[0]
        key = below.seed_key if isinstance(below, MapDataset) else self.key
        return derive(key, "map") if self.draws else key

    @cached_property
    def seeding(self) -> Seeding:
        """Where the function draws its random numbers from."""
        return seeding_of(self.map_fn, seeded=self.seeded)

    def fetch(self, positions: Int64Array, reading: Reading) -> list[T_out_co | Failed]:
        items = indexed_inputs(self)[0].fetch(positions, reading)
        words = hash_positions(self.seed_key, positions, reading.attempt).tolist()
        made: list[T_out_co | Failed] = []
        with keyed_calls(self.map_fn, reading, self.seeding, carried) as call:
            for item, word, position in zip(items, words, positions.tolist(), strict=True):
                if type(item) is Failed:
                    made.append(item)
                    continue
                index_of_call.set(position)
                made.append(call(item, word, partial(self.where, position, reading.attempt)))
        return made

    def taken(self, n: int) -> Sequence[int] | None:
        return [n]

    @property
    def one_each(self) -> bool:
        return indexed_inputs(self)[0].one_each

    def refs(self, positions: Int64Array, attempt: int = 0) -> Refs:
        return indexed_inputs(self)[0].refs(positions, attempt)

    def passes(self, positions: Int64Array) -> Refs:
        return indexed_inputs(self)[0].passes(positions)

    def _stream(
        self, lane: Lane, state: State | None, reading: Reading, endless: bool
    ) -> Stream[T_out_co]:
        return _MapStream(self, lane, state, reading, endless)


class _MapStream(Stream[T]):
    """The function's results; an item that fails or is skipped is asked for once more."""

    def __init__(
        self,
        dataset: MapDataset[T],
        lane: Lane,
        state: State | None,
        reading: Reading,
        endless: bool,
    ) -> None:
        self._dataset = dataset
        self._lane = lane
        self._reading = reading
        self._most = most_in_vain(dataset.inputs[0], lane)
        # Beside the state of the input, not around it: a run may go on with maps added, or without.
        calls = [] if state is None else state_field({_CALLS: [], **state}, _CALLS, list)
        own, below = (calls[-1:], calls[:-1]) if dataset.draws else ([], calls)
        self._called = counter_field({_CALLS: own[0]}, _CALLS) if own else 0
        inner = None if state is None else {**state, _CALLS: below}
        self._input = dataset.inputs[0].stream(lane, inner, reading, endless=endless)

    def ahead(self, positions: Int64Array) -> None:
        self._input.ahead(positions)

    def at(self, position: int, attempt: int = 0) -> T:
        tries, in_vain = attempt, 0
        while in_vain < self._most:
            item = self._input.at(position, tries)
            tries, in_vain = tries + 1, in_vain + max(1, len(self._input.origin))
            called = self._lane.index + self._lane.count * self._called
            word = int(hash_positions(self._dataset.seed_key, np.array([called]))[0])
            self._called += 1
            index_of_call.set(called)
            map_fn, seeding = self._dataset.map_fn, self._dataset.seeding
            with keyed_calls(map_fn, self._reading, seeding, carried) as call:
                made = call(item, word, partial(sample_keys_of, item))
            if type(made) is not Failed:
                self.origin = self._input.origin
                return cast("T", made)
            self._reading.leave_out(made, self._dataset, self._input.origin)
        raise SubstitutionError(
            f"MapDataset: {function_name(self._dataset.map_fn)} left out what was made of "
            f"{in_vain} samples in a row; check its condition"
        )

    def check_after(self, last: int | None, *, exact: bool) -> None:
        self._input.check_after(last, exact=False)

    def state(self) -> State:
        state = self._input.state()
        own = [self._called] if self._dataset.draws else []
        return {**state, _CALLS: [*state.get(_CALLS, []), *own]}

    def close(self) -> None:
        self._input.close()


class FlatMapDataset(RoundsDataset[T_out_co], MapDataset[T_out_co]):
    """What a generator function yields of each item: any number of items.

    How many come depends on the data, so this is a stream. In a loader each lane reads its own part
    of the input. A run resumes after any item: the function is called again for the same item, with
    the same random numbers, and what it has given already is left out. `MapDataset` makes it of
    such a function.

    >>> from energize import ListSource
    >>> list(MapDataset(ListSource(["ab", "", "c"]), lambda text: (yield from text)))
    ['a', 'b', 'c']
    """

    passes_on = False
    gives_batches: ClassVar[bool] = False

    def round(self, items: Iterator[Taken], reading: Reading) -> Iterator[Step[T_out_co]]:
        for taken in islice(items, 1):
            yield partial(self._yielded, taken, reading)

    def _yielded(self, taken: Taken, reading: Reading) -> Iterator[tuple[T_out_co, Origins]]:
        word, where = keyed_by(self, "map", *taken.origin), partial(sample_keys_of, taken.item)
        made = keyed_items(
            self.map_fn,
            taken.item,
            word,
            where,
            reading,
            index=taken.number,
            seeded=self.seeded,
            keep=carried_one_by_one,
        )
        for item in made:
            yield item, taken.origin
