"""How a loader begins to read: at which place, with which ranks and workers."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, Protocol, TypeVar, cast

from energize.core.dataset import Dataset, IndexedDataset
from energize.core.description import digest
from energize.core.lanes import Lane, Ranks
from energize.core.reading import Failed, Reading, log_failure
from energize.core.restoring import is_endless, without_loops
from energize.core.stream import INFINITE, State, counter_field
from energize.errors import ConfigError, EmptyDatasetError, StateError, WeightError
from energize.ledger.places import Made
from energize.loader.agreement import Agreement
from energize.loader.ahead import ReadAhead
from energize.loader.deciding import Decisions
from energize.loader.edits import NOT_EDITED, Edits
from energize.loader.epochs import EpochPlan, divisors, log_across, log_uneven, plan_epoch
from energize.loader.failures import FailureLog
from energize.loader.indexed import IndexedFeed, in_process, in_workers
from energize.loader.lanes import HereLanes, HostedLanes, WorkerLanes
from energize.loader.pool import WorkerPool
from energize.loader.remapping import places_kept
from energize.loader.settings import LoaderSettings
from energize.loader.streams import Before, StreamFeed, StreamState, checked_lanes, lanes_in_turn
from energize.loader.worker import Task

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Place = State | StreamState
"""Where a loader stands: in an indexed dataset, or in the lanes of a stream."""

PoolFor = Callable[[Task], tuple[WorkerPool, ReadAhead]]


class Feed(Protocol[T_co]):
    """Delivers this rank's items up to the end of a loop."""

    padding: bool

    @property
    def may_be_over(self) -> bool: ...

    @property
    def loop_ended(self) -> bool: ...

    @property
    def made(self) -> Made: ...

    @property
    def reached(self) -> Place: ...

    @property
    def restore_key(self) -> tuple[Any, ...]: ...

    def begin_loop(self) -> bool: ...

    def __next__(self) -> T_co: ...

    def state(self) -> Place: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class ThisRank(Generic[T]):
    """What a rank reads with: who it is, and whether it can talk with the others; its workers, what
    becomes of failures, and the last item delivered of a stream.
    """

    ranks: Ranks
    agreement: Agreement | None
    pool_for: PoolFor
    failures: FailureLog
    last: deque[tuple[T, Before]]


class Opening(Generic[T]):
    """What is the same for all loops of a loader, until its dataset is edited: `edits` is what
    became of the one that was given.
    """

    def __init__(
        self, dataset: Dataset[T], settings: LoaderSettings, decisions: Decisions, workers: int
    ) -> None:
        self.given, self.edits = dataset, NOT_EDITED
        self._dataset = dataset
        self._settings = settings
        self._decisions = decisions
        self._workers = workers
        self._loop = dataset._steps_per_epoch
        self._endless = is_endless(dataset)
        # Positions of an indexed dataset go on after an epoch. A stream is opened without the cut.
        self._stream = dataset if dataset.indexed else without_loops(dataset)
        self._global_items = _global_items(dataset, settings)
        self._filled = None if settings.global_batch_size is None else self._global_items
        self._given_stream = self._stream
        self._logged = False

    @property
    def dataset(self) -> Dataset[T]:
        """What is read."""
        return self._dataset

    def edited(self, edits: Edits) -> Opening[T]:
        """The same, over a dataset that became another one; raises as `Edits.applied`."""
        other = copy.copy(self)
        other.edits = edits
        other._dataset = edits.applied(self.given)
        other._stream = edits.applied(self._given_stream)
        return other

    def as_saved(self, cursor: State) -> Opening[T]:
        """The same over the dataset as it was edited when a state was saved; `StateError` for edits
        that this dataset cannot have.
        """
        edits = Edits.loaded(cursor)
        try:
            return self if edits == self.edits else self.edited(edits)
        except (ConfigError, WeightError) as reason:
            raise StateError(f"the saved state does not fit: {reason}") from reason

    def items_at(self, place: Place) -> int:
        """How many items of all ranks come before a place; of a stream whose length only reading
        tells, those of the epoch.
        """
        if not isinstance(place, StreamState):
            return counter_field(place, "position")
        known = self._stream.sized and self._stream.size != INFINITE and not self._endless
        return place.position + (place.epoch * self._stream.size if known else 0)

    def start(self, ranks: Ranks) -> Place:
        """The place before the first item."""
        if self._dataset.indexed:
            state = cast("IndexedDataset[T]", self._dataset)._state_at(0)
            return state if self._loop is None else state | {"step": 0}
        lanes = self._settings.lanes or ranks.world_size * max(1, self._workers)
        return StreamState(checked_lanes(lanes, ranks))

    def loaded(self, state: State) -> Place:
        """A place from a saved state; `StateError` for one that this dataset cannot go on from."""
        if not self._dataset.indexed:
            place = StreamState.loaded(state)
            asked = self._settings.lanes
            if asked not in (None, place.lanes):
                raise StateError(
                    f"the saved state is of a run of {place.lanes} lanes, and lanes={asked} is "
                    "given; their number is fixed when a run starts. Leave lanes out"
                )
            for lane, cursor in place.cursors.items():
                hosted = HereLanes(
                    self._stream, {lane: cursor}, place.lanes, Reading(), endless=self._endless
                )
                hosted.close()  # what is wrong with its state shows when it is opened
            return replace(place, step=self._within_loop(place.step))
        dataset = cast("IndexedDataset[T]", self._dataset)
        position = counter_field(state, "position")
        dataset._check_state(state)
        step = counter_field(state, "step") if "step" in state else 0
        kept = dataset._state_at(position)
        return kept if self._loop is None else kept | {"step": self._within_loop(step)}

    def _within_loop(self, step: int) -> int:
        """A step of a loop that may have had another length: it is never the end of one."""
        return step if self._loop is None else step % self._loop

    def saved(self, place: Place, agreement: Agreement | None) -> State:
        """A place as plain data, gathered from all ranks where each knows some lanes only."""
        edits, items = self.edits.saved(), self.items_at(place)
        if not isinstance(place, StreamState):
            return place | edits | places_kept(self._dataset, items, None)
        if agreement is not None and place.cursors and len(place.cursors) < place.lanes:
            place = place.gathered(agreement)
        return place.saved() | edits | places_kept(self._dataset, items, place)

    def check_alike(self, place: Place, agreement: Agreement) -> None:
        """Raises `StateError` on all ranks when they have loaded different states."""
        state = place.saved() if isinstance(place, StreamState) else place
        mine = int(digest(state)[:12], 16)
        found = [number for (number,) in agreement.numbers([mine], "reading from a loaded state")]
        if len(set(found)) > 1:
            groups: dict[int, list[int]] = {}
            for rank, number in enumerate(found):
                groups.setdefault(number, []).append(rank)
            shown = "; ".join(f"ranks {each}" for each in groups.values())
            raise StateError(
                f"the ranks have loaded different states: those with equal ones are {shown}. Load "
                "the same state on all ranks"
            )

    def feed(self, place: Place, here: ThisRank[T]) -> Feed[T]:
        """Begin to read at a place."""
        if self._filled is not None:
            self.accumulation_steps(here.ranks)
        if isinstance(place, StreamState):
            return self._stream_feed(place, here)
        return self._indexed_feed(place, here)

    def _indexed_feed(self, place: State, here: ThisRank[T]) -> Feed[T]:
        dataset = cast("IndexedDataset[T]", self._dataset)
        uneven, filled = self._settings.uneven, self._filled
        size = INFINITE if self._loop is not None else dataset.size
        position = counter_field(place, "position")
        plan = plan_epoch(here.ranks, position, size, uneven=uneven, global_items=filled)
        self._log(plan, size)
        if self._workers:
            pool, ahead = here.pool_for(self._task(self.given))
            reader = in_workers(pool, ahead, here.failures)
        else:
            reader = in_process(dataset, self._reading(here.failures))
        step = counter_field(place, "step") if "step" in place else 0
        pads = uneven == "pad"
        return IndexedFeed(dataset, plan, reader, pads=pads, loop=self._loop, step=step)

    def _stream_feed(self, place: StreamState, here: ThisRank[T]) -> Feed[T]:
        lanes, ranks = checked_lanes(place.lanes, here.ranks), here.ranks
        # Ranks that cannot talk each read all lanes, so that they know where epochs end.
        known = self._endless or self._stream.sized
        hosts_all = here.agreement is None and not (self._settings.apart and known)
        order = lanes_in_turn(place, ranks, hosts_all=hosts_all)
        if here.agreement is not None and place.cursors and not place.cursors.keys() >= set(order):
            # A run that goes on from another world size may have begun between two of its steps;
            # with the next epoch, which begins at 0, each rank's lanes are others.
            place = place.gathered(here.agreement)
        if place.cursors and not place.cursors.keys() >= set(order):
            raise StateError(
                f"this loader does not know where lanes {sorted(set(order) - place.cursors.keys())}"
                " of its stream stand: it is a copy of one that shared them with other ranks. Give "
                "it their state_dict(), which knows all lanes"
            )
        states = {lane: place.cursors.get(lane) for lane in order}
        hosted: HostedLanes[T]
        if self._workers:
            task = self._task(self._given_stream, lanes)
            pool, ahead = here.pool_for(task)
            hosted = WorkerLanes(states, order, pool, ahead, here.failures)
        else:
            reading = self._reading(here.failures)
            hosted = HereLanes(self._stream, states, lanes, reading, endless=self._endless)
        size = INFINITE if self._endless else self._stream.size if self._stream.sized else 0
        return StreamFeed(
            hosted,
            ranks,
            place,
            size=size,
            stop=self._stream_stop(place, ranks, size),
            uneven=self._settings.uneven,
            agreement=here.agreement,
            hosts_all=hosts_all,
            loop=self._loop,
            accumulated=1 if self._filled is None else self.accumulation_steps(ranks),
            last=here.last,
            spare=partial(self._first_item, ranks, lanes),
            state_at=partial(self._state_at, lanes),
        )

    def _stream_stop(self, place: StreamState, ranks: Ranks, size: int) -> int | None:
        """Where in its epoch the steps of a stream end; None where only reading tells."""
        uneven, filled = self._settings.uneven, self._filled
        if self._endless:
            return INFINITE
        if not self._stream.sized:
            if filled is not None and uneven == "drop":
                raise ConfigError(
                    "global_batch_size with uneven='drop' needs to know where an epoch ends before "
                    "its last global batch, and only reading tells where this stream ends; use "
                    "uneven='pad', or repeat the stream and count steps (EpochizeDataset)"
                )
            return None
        plan = plan_epoch(ranks, place.position, size, uneven=uneven, global_items=filled)
        self._log(plan, size)
        return size if uneven == "allow" else place.position + plan.steps * ranks.world_size

    def _log(self, plan: EpochPlan, size: int) -> None:
        if not self._logged:
            unit = self._filled or plan.ranks.world_size
            log_uneven(plan, size, self._settings.uneven, unit)
            log_across(plan.ranks, self._global_items)
            self._logged = True

    def _task(self, dataset: Dataset[T], lanes: int = 1) -> Task:
        pool = self._settings.cache_pool
        return Task(dataset, self._decisions, pool, lanes, self._endless, self.edits)

    def _first_item(self, ranks: Ranks, lanes: int) -> tuple[T, Before]:
        """The first item of a lane, of one of this rank if they have any; `EmptyDatasetError` if
        none has.
        """
        reading = self._decisions.reading(log_failure)
        for number in sorted(range(lanes), key=lambda n: n % ranks.world_size != ranks.rank):
            lane = Lane(number, lanes)
            cursor = self._stream._open_lane(lane, None, reading, endless=self._endless)
            with closing(cursor), suppress(EmptyDatasetError):
                for item in cursor:
                    return item, Before(number, None)
        raise EmptyDatasetError(
            f"rank {ranks.rank} of {ranks.world_size} has no item for a step that others have one "
            "for, and finds none that padding could be a copy of; use fewer ranks, or "
            "uneven='drop' or 'allow'"
        )

    def _state_at(self, lanes: int, before: Before) -> State:
        """The state of a lane some items after a known one, by reading these once more."""
        lane, reading = Lane(before.lane, lanes), self._decisions.reading(ignore)
        cursor = self._stream._open_lane(lane, before.state, reading, endless=self._endless)
        with closing(cursor):
            for _ in range(before.items):
                next(cursor)
            return cursor.state()

    def _reading(self, failures: FailureLog) -> Reading:
        return self._decisions.reading(failures.add, failures.left_out)

    def steps(self, ranks: Ranks) -> int:
        """Steps that this rank makes in a whole loop, or in one pass where that never ends."""
        if self._loop is not None:
            return self._loop
        dataset = self._dataset
        if not dataset.sized or dataset.size == INFINITE:
            return -(-len(dataset) // ranks.world_size)
        uneven = self._settings.uneven
        plan = plan_epoch(ranks, 0, dataset.size, uneven=uneven, global_items=self._filled)
        return plan.steps

    def accumulation_steps(self, ranks: Ranks) -> int:
        """Steps that make one global batch."""
        if self._global_items is None:
            return 1
        steps, rest = divmod(self._global_items, ranks.world_size)
        if rest or not steps:
            raise ConfigError(
                f"a global batch of {self._global_items} micro batches cannot be shared out evenly "
                f"to {ranks.world_size} ranks; world sizes that can have it: "
                f"{divisors(self._global_items)}. Change global_batch_size or the batch size"
            )
        return steps


def ignore(failed: Failed) -> None:
    """What was reported when it was read first."""


def _global_items(dataset: Dataset[Any], settings: LoaderSettings) -> int | None:
    """Items, which are micro batches, that make one global batch; None where nobody says."""
    node = dataset
    while node._passes_on or (node._ends_loops and node._steps_per_epoch is not None):
        node = node.inputs[0]
    micro = settings.micro_batch_size or getattr(node, "batch_size", None)
    own = getattr(node, "global_batch_size", None)
    whole = settings.global_batch_size or own
    if whole is None:
        return None
    if micro is None:
        raise ConfigError(
            f"global_batch_size={whole} is given, and {type(node).__name__} does not say how many "
            "samples a micro batch has; give micro_batch_size too"
        )
    if own is not None and whole % own:
        raise ConfigError(
            f"global_batch_size={whole} is given, and {type(node).__name__} was made for global "
            f"batches of {own} samples; give one number to both"
        )
    items, rest = divmod(whole, micro)
    if rest or not items:
        raise ConfigError(
            f"a global batch of {whole} samples is not a whole number of micro batches of {micro}; "
            "change one of the two"
        )
    return items
