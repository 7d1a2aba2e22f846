"""A dataset as a run reads it: where it begins, what a state says, what became of it since."""

from __future__ import annotations

import copy
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any, Generic, TypeVar, cast

from energize.core.blends import NOT_EDITED, Edits
from energize.core.dataset import Dataset, IndexedDataset
from energize.core.description import digest
from energize.core.lanes import Lane, Ranks
from energize.core.restoring import is_endless, without_loops
from energize.core.stream import INFINITE, State, counter_field
from energize.core.trace import Reading, log_failure
from energize.errors import ConfigError, EmptyDatasetError, StateError, WeightError
from energize.loader.agreement import Agreement
from energize.loader.failures import Decisions, FailureLog
from energize.loader.feeds import (
    Before,
    EpochPlan,
    IndexedFeed,
    StreamFeed,
    StreamState,
    ThisRank,
    checked_lanes,
    divisors,
    global_items,
    plan_epoch,
)
from energize.loader.remapping import places_kept
from energize.loader.settings import LoaderSettings

T = TypeVar("T")

Place = State | StreamState
"""Where a loader stands: in an indexed dataset, or in the lanes of a stream."""

Feed = IndexedFeed[T] | StreamFeed[T]
"""Delivers this rank's items up to the end of a loop."""

SILENT = Reading(report=lambda _: None)
"""For what was reported when it was read first."""


class Run(Generic[T]):
    """The dataset that was `given`, what became of it since (`edits`), and what is the same for all
    loops until it is edited again.
    """

    def __init__(
        self, given: Dataset[T], settings: LoaderSettings, decisions: Decisions, workers: int
    ) -> None:
        self.given, self.edits, self.dataset = given, NOT_EDITED, given
        self.settings, self.decisions, self.workers = settings, decisions, workers
        self.loop = given._steps_per_epoch
        self.endless = is_endless(given)
        # Positions of an indexed dataset go on after an epoch. A stream is opened without the cut.
        self.base: Any = given if given.indexed else without_loops(given)
        self.stream = self.base
        self._global_items = global_items(
            given, settings.global_batch_size, settings.micro_batch_size
        )
        self.filled = None if settings.global_batch_size is None else self._global_items

    def edited(self, edits: Edits) -> Run[T]:
        """Return the same over a dataset that became another one; raise as `Edits.applied`."""
        if edits == self.edits:
            return self
        other = copy.copy(self)
        other.edits, other.dataset = edits, edits.applied(self.given)
        other.stream = other.dataset if self.given.indexed else without_loops(other.dataset)
        return other

    def resumed(self, cursor: State) -> tuple[Run[T], Place]:
        """Return the same over the dataset as it was edited when a state was saved, and the place
        in it; raise `StateError` if this dataset cannot go on from it.
        """
        try:
            run = self.edited(Edits.loaded(cursor))
        except (ConfigError, WeightError) as reason:
            raise StateError(f"the saved state does not fit: {reason}") from reason
        return run, run._loaded(cursor)

    def _loaded(self, state: State) -> Place:
        step = counter_field(state, "step") if "step" in state else 0
        step = step if self.loop is None else step % self.loop  # a loop may have had another length
        if not self.dataset.indexed:
            place = StreamState.loaded(state)
            asked = self.settings.lanes
            if asked not in (None, place.lanes):
                raise StateError(
                    f"the saved state is of a run of {place.lanes} lanes, and lanes={asked} is "
                    "given; their number is fixed when a run starts. Leave lanes out"
                )
            for lane, cursor in place.cursors.items():
                self._open(lane, place.lanes, cursor, SILENT).close()  # what is wrong shows here
            return replace(place, step=step)
        dataset = cast("IndexedDataset[T]", self.dataset)
        position = counter_field(state, "position")
        dataset._check_state(state)
        kept = dataset._state_at(position)
        return kept if self.loop is None else kept | {"step": step}

    def items_at(self, place: Place) -> int:
        """Return how many items of all ranks come before a place; of a stream whose length only
        reading tells, those of the epoch.
        """
        if not isinstance(place, StreamState):
            return counter_field(place, "position")
        known = self.stream.sized and self.stream.size != INFINITE and not self.endless
        return place.position + (place.epoch * self.stream.size if known else 0)

    def start(self, ranks: Ranks) -> Place:
        """Return the place before the first item."""
        if self.dataset.indexed:
            state = cast("IndexedDataset[T]", self.dataset)._state_at(0)
            return state if self.loop is None else state | {"step": 0}
        lanes = self.settings.lanes or ranks.world_size * max(1, self.workers)
        return StreamState(checked_lanes(lanes, ranks))

    def saved(self, place: Place, agreement: Agreement | None) -> State:
        """Return a place as plain data, gathered from all ranks if each knows some lanes only."""
        lanes = place if isinstance(place, StreamState) else None
        items, state = self.items_at(place), place
        if lanes is not None:
            if agreement is not None and lanes.cursors and len(lanes.cursors) < lanes.lanes:
                lanes = lanes.gathered(agreement)
            state = lanes.saved()
        kept = places_kept(self.dataset, items, lanes)
        return cast("State", state) | self.edits.saved() | kept

    def check_alike(self, place: Place, agreement: Agreement) -> None:
        """Raise `StateError` on all ranks when they have loaded different states."""
        state = place.saved() if isinstance(place, StreamState) else place
        groups = agreement.groups(digest(state), "reading from a loaded state")
        if len(groups) > 1:
            shown = "; ".join(f"ranks {each}" for each in groups)
            raise StateError(
                f"the ranks have loaded different states: those with equal ones are {shown}. Load "
                "the same state on all ranks"
            )

    def feed(self, place: Place, rank: ThisRank[T]) -> Feed[T]:
        """Begin to read at a place."""
        if self.filled is not None:
            self.accumulation_steps(rank.ranks)
        if isinstance(place, StreamState):
            return StreamFeed(self, place, rank)
        return IndexedFeed(self, place, rank)

    def plan(self, ranks: Ranks, position: int, size: int) -> EpochPlan:
        """Return what is delivered of an epoch."""
        uneven = self.settings.uneven
        return plan_epoch(ranks, position, size, uneven=uneven, global_items=self.filled)

    def steps(self, ranks: Ranks) -> int:
        """Return the steps of a whole loop on this rank, or of one pass if that never ends."""
        if self.loop is not None:
            return self.loop
        if not self.dataset.sized or self.dataset.size == INFINITE:
            return -(-self.dataset._pass_length // ranks.world_size)
        return self.plan(ranks, 0, self.dataset.size).steps

    def accumulation_steps(self, ranks: Ranks) -> int:
        """Return the steps that make one global batch."""
        if self._global_items is None:
            return 1
        steps, rest = divmod(self._global_items, ranks.world_size)
        if rest:
            raise ConfigError(
                f"a global batch of {self._global_items} micro batches cannot be shared out evenly "
                f"to {ranks.world_size} ranks; world sizes that can have it: "
                f"{divisors(self._global_items)}. Change global_batch_size or the batch size"
            )
        return steps

    def reading(self, failures: FailureLog) -> Reading:
        """Return how items are read in this process."""
        return self.decisions.reading(failures.add, failures.left_out)

    def first_item(self, ranks: Ranks, lanes: int) -> tuple[T, Before]:
        """Return the first item of a lane, of one of this rank if they have any; raise
        `EmptyDatasetError` if none has.
        """
        reading = self.decisions.reading(log_failure)
        for number in sorted(range(lanes), key=lambda n: n % ranks.world_size != ranks.rank):
            cursor = self._open(number, lanes, None, reading)
            with closing(cursor), suppress(EmptyDatasetError, StopIteration):
                return next(cursor), Before(number, None)
        raise EmptyDatasetError(
            f"rank {ranks.rank} of {ranks.world_size} has no item for a step that others have one "
            "for, and finds none that padding could be a copy of; use fewer ranks, or "
            "uneven='drop' or 'allow'"
        )

    def state_at(self, lanes: int, before: Before) -> State:
        """Return the state of a lane some items after a known one, by reading these once more."""
        reading = self.decisions.reading(SILENT.report)
        with closing(self._open(before.lane, lanes, before.state, reading)) as cursor:
            for _ in range(before.items):
                next(cursor)
            state: State = cursor.state()
            return state

    def _open(self, lane: int, lanes: int, state: State | None, reading: Reading) -> Any:
        return self.stream._open_lane(Lane(lane, lanes), state, reading, endless=self.endless)
