"""What a rank delivers, step by step: the lanes that it reads, taken in turn, to an
epoch's end.

A rank reads lanes. Those of a stream are parts that are fixed for the run. Of an
indexed dataset a rank's items are dealt out to one lane for each worker, so both are
read alike: each lane by one reader, this process or a worker, from front to back, and
the items of all lanes are taken in turn.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import numpy as np

from energize.core import tree
from energize.core.lanes import Lane, Ranks
from energize.core.node import INFINITE
from energize.core.padded import UNMARKED, Padded, with_marks
from energize.core.restoring import ITEM, lane_key
from energize.core.stream import (
    State,
    counter_field,
)
from energize.core.tree import padding
from energize.errors import ConfigError, StateError
from energize.loader.agreement import Agreement
from energize.loader.failures import FailureLog
from energize.loader.pool import WorkerPool
from energize.loader.position import Before, RunPosition, StreamPosition
from energize.loader.readers import HereLanes, Lanes, ReadAhead, WorkerLanes
from energize.loader.run import Copy, Run
from energize.loader.shipping import LaneSet
from energize.report.levels import NOTHING, Made

T = TypeVar("T")

_log = logging.getLogger("energize")

_ITEM, _NONE, _OVER = range(3)
"""What a rank has for a step: an item; none, for the lane whose turn it is has ended,
but another lane may go on; none any more, for all its lanes have ended."""

_MISSING = object()


@dataclass(frozen=True)
class ThisRank(Generic[T]):
    """What a rank reads with: who it is, and whether it can talk with the others; its
    workers, if there are any, what becomes of failures, what was `warned` of, and the
    `copies` that fill missing places of a stream.
    """

    ranks: Ranks
    agreement: Agreement | None
    workers: Callable[[], tuple[WorkerPool, ReadAhead]] | None
    failures: FailureLog
    warned: set[str]
    copies: dict[tuple[int, int], Copy[T]]

    def read(
        self,
        run: Run[T],
        lanes: LaneSet,
        states: Mapping[int, State | None],
        left: Sequence[int] = (),
    ) -> Lanes[T]:
        """Begin to read lanes, by workers or here; of an indexed dataset `left` items
        in each.
        """
        if self.workers is None:
            most = left[0] if left else INFINITE
            failures = self.failures
            reading = run.context.counted_by(
                failures.add, failures.left_out, failures.memory
            )
            return HereLanes(run.stream, lanes, states, reading, most)
        return WorkerLanes(*self.workers(), lanes, states, self.failures, left=left)


class _Marking(Generic[T]):
    """Marks what is padding.

    Attributes:
        is_copy: Whether the last item fills a step, and was delivered before.
        marks: What is padding of the last item.
    """

    is_copy = False
    marks = UNMARKED

    def _marked(self, item: Any) -> T:
        self.marks = UNMARKED
        if self.is_copy or type(item) is Padded:
            item, self.marks = with_marks(item, self.is_copy)
        return cast("T", item)


class IndexedFeed(_Marking[T]):
    """The steps of a loop over an indexed dataset: those of an epoch, from the loop's
    offset in one to the same in the next, or without end.
    """

    may_be_over = goes_on = False

    def __init__(self, run: Run[T], place: State, rank: ThisRank[T]) -> None:
        self._dataset: Any = run.stream
        self._loop = run.loop
        self._step: int = place.get("step", 0)
        self._offset: int = place.get("offset", 0)
        ranks = rank.ranks
        position = counter_field(place, "position")
        size = self._dataset.size if run.loop is None else INFINITE
        begun = place.get("begun", 0)
        self._plan = plan = run.plan(ranks, position, size, self._offset, begun)
        self._filled = run.filled or 1
        self._world = ranks.world_size
        self._first = plan.start + ranks.rank
        self._pads = run.settings.uneven == "pad"
        self._lends = tree.has_padding(self._dataset)
        many = run.workers or 1
        self._order = [ranks.rank + self._world * turn for turn in range(many)]
        left = [len(range(turn, plan.steps, many)) for turn in range(many)]
        lanes = LaneSet(self._world * many, run.edits, plan=plan)
        self._lanes = rank.read(run, lanes, dict.fromkeys(self._order), left)
        self._watch = tree.watcher(self._dataset, Lane(ranks.rank, self._world))
        self._done = 0
        self.made: Made = 0

    @property
    def loop_ended(self) -> bool:
        """Whether the loop has no item any more."""
        if self._loop is not None:
            return self._step >= self._loop
        return self._done >= self._plan.steps

    def begin_loop(self, *, anew: bool) -> bool:
        """Get ready for another loop, of full length if `anew`; return False if it is
        not here.
        """
        if self._loop is not None:
            self._step = 0 if anew else self._step % self._loop
        return self._plan.steps == INFINITE if anew else not self.loop_ended

    def __next__(self) -> T:
        done = self._done
        plan = self._plan
        if done >= plan.steps or (self._loop is not None and self._step >= self._loop):
            raise StopIteration
        item = self._lanes.take(self._order[done % len(self._order)])
        position = self._first + done * self._world
        copies = position >= plan.end
        position = plan.read_at(position)
        lent = self._lends and bool(padding(self._dataset, np.array([position]))[0])
        self.made = position
        self.is_copy = lent or (copies and self._pads)
        if self._watch is not None:
            self._watch(position)
        self._done = done + 1
        self._step = self._step + 1
        return self._marked(item)

    @property
    def restore_key(self) -> tuple[Any, ...]:
        """What the last item can be restored by."""
        return ITEM, self.made

    def state(self) -> State:
        """Return the state after the last item, that of all ranks."""
        plan = self._plan
        position = self._plan.end
        reached = plan.start + self._done * self._world
        if self._done < plan.steps:
            position = min(reached, position)
        state: State = tree.state_at(self._dataset, position)
        if self._done < plan.steps and reached >= plan.end:
            state |= {"begun": (reached - plan.first) % self._filled}
        if self._loop is not None:
            return state | {"step": self._step % self._loop}
        return state | {"offset": self._offset} if self._offset else state

    reached = property(state)
    """How far it has come."""

    def close(self) -> None:
        """Let go of what has been read ahead."""
        self._lanes.close()


class StreamFeed(_Marking[T]):
    """One epoch of a stream, or the part of one that is in a loop.

    `_stop` is where its steps end: beyond its `_size` items, where the last steps are
    filled; None where only reading tells. A loop that began inside the epoch goes on in
    the next one, up to the same offset. Lanes are those of this rank; where the end has
    to be found and ranks cannot talk, all lanes. Where lanes are no multiple of ranks,
    several ranks read the same ones. The items of other ranks are read then, and left
    out. A missing item is a copy of the first item of the run: with "pad" of the whole
    stream, with "repeat" of the lane whose turn it is. So it depends on the seed and
    the turn alone, and a resumed run fills a step like any other.
    """

    def __init__(self, run: Run[T], place: StreamPosition, rank: ThisRank[T]) -> None:  # noqa: PLR0915
        ranks = rank.ranks
        agreement = rank.agreement
        world = rank.ranks.world_size
        lanes = place.lanes
        shared = math.gcd(
            lanes, world
        )  # ranks that differ by a multiple of it read the same lanes
        # Ranks that cannot talk each read all lanes, so that they know where epochs
        # end.
        known = run.endless or run.stream.sized
        hosts_all = agreement is None and not (run.settings.apart and known)
        first, every = (0, 1) if hosts_all else (ranks.rank % shared, shared)
        order = [(place.position + turn) % lanes for turn in range(first, lanes, every)]
        missing = set(order) - place.cursors.keys() if place.cursors else set()
        if missing and agreement is not None:
            # A run that goes on from another world size may have begun between two of
            # its steps; with the next epoch, which begins at 0, each rank's lanes are
            # others.
            place = place.gathered(agreement)
            missing = set(order) - place.cursors.keys()
        if missing:
            raise StateError(
                f"this loader does not know where lanes {sorted(missing)} of its "
                "stream stand: it "
                "is a copy of one that shared them with other ranks. Give it their "
                "state_dict(), "
                "which knows all lanes"
            )
        if shared < world and not (hosts_all or ranks.rank or "lanes" in rank.warned):
            rank.warned.add("lanes")
            text = (
                "each of the %d lanes of a stream is read by %d of the %d ranks, "
                "which leave out "
            )
            text += (
                "what is others': right, and slower. In a new run "
                "get_loader(lanes=%d), which "
            )
            text += "is another order, has each read once"
            _log.warning(
                text, lanes, world // shared, world, world * max(1, run.workers)
            )
        states = {lane: place.cursors.get(lane) for lane in order}
        self._run = run
        self._ranks = ranks
        self._agreement = agreement
        self._count = lanes
        self._uneven = run.settings.uneven
        self._loop = run.loop
        if run.endless:
            self._size = INFINITE
        elif run.stream.sized:
            self._size = run.stream.size
        else:
            self._size = 0
        self._stop = self._end_of(place)
        self._made = 0
        self._accumulated = 1
        if run.filled and self._stop is None and self._uneven in ("pad", "repeat"):
            # The last global batch of an epoch whose end is found may lack steps.
            self._accumulated = run.accumulation_steps(ranks)
            self._made = (
                self._accumulated - run.plan(ranks, place.begun, run.filled).steps
            )
        self._lanes = rank.read(run, LaneSet(lanes, run.edits, run.endless), states)
        self._epoch = place.epoch
        self._position = place.position
        self._step = place.step
        self._offset = place.offset
        self._wraps = 0 < place.offset <= place.position
        self._first = place.position % shared
        self._shared = shared
        self._hosted = order
        self._over = {
            lane
            for lane, cursor in place.cursors.items()
            if counter_field(cursor, "epoch") > place.epoch
        }
        self._played = range(first, world, every)
        self._copies = rank.copies
        self._dropped = 0
        self._came = self._ended = False
        self._before = Before(0, None)
        self.made: Any = NOTHING
        self._parts: Any = [part.dataset for part in run.stream.read_parts]
        self._lenders = {
            n for n, part in enumerate(self._parts) if tree.has_padding(part)
        }

    def _end_of(self, place: StreamPosition) -> int | None:
        run = self._run
        uneven = self._uneven
        if run.endless:
            return INFINITE
        if not run.stream.sized:
            if run.filled is not None and uneven == "drop":
                raise ConfigError(
                    "global_batch_size with uneven='drop' needs to know where an epoch "
                    "ends before "
                    "its last global batch, and only reading tells where this stream "
                    "ends; use "
                    "uneven='pad', or repeat the stream and count steps "
                    "(EpochizeDataset)"
                )
            return None
        begun = place.position if place.position >= self._size else 0
        first = min(place.position, self._size)
        plan = run.plan(self._ranks, first, self._size, begun=begun)
        if uneven == "allow":
            return self._size
        return plan.start + plan.steps * self._ranks.world_size

    def begin_loop(self, *, anew: bool) -> bool:
        """Get ready for another loop, of full length if `anew`; return False if it is
        not here.
        """
        self._came = False
        if self._loop is not None:
            self._step = 0 if anew else self._step % self._loop
        return (
            self._stop == INFINITE and not self._ended if anew else not self.loop_ended
        )

    @property
    def loop_ended(self) -> bool:
        """Whether the loop is known to have no item any more."""
        counted = self._loop is not None and self._step >= self._loop
        epoch_ended = self._ended or self._stopped
        return counted or self._at_offset or (epoch_ended and not self._wraps)

    @property
    def goes_on(self) -> bool:
        """Whether the loop goes on where the epoch has ended."""
        return self._ended and self._wraps

    @property
    def _at_offset(self) -> bool:
        """Whether the loop, begun in the epoch before, has come to its end in this
        one.
        """
        return not self._wraps and 0 < self._offset <= self._position

    @property
    def _stopped(self) -> bool:
        return self._stop is not None and self._position >= self._stop

    def __next__(self) -> T:
        if self._ended or self._at_offset:
            raise StopIteration
        while self._loop is None or self._step < self._loop:
            turn = self._position + self._ranks.rank
            has = self._turns()
            if has is None:
                if self._begun:
                    return self._delivered(_MISSING, self._begun + self._ranks.rank)
                self._end_epoch()
                break
            items = {rank: self._take(rank) for rank in self._played if has[rank]}
            self._position += self._ranks.world_size
            self._came = self._came or any(has)
            if self._is_step(has):
                item = self._delivered(items.get(self._ranks.rank, _MISSING), turn)
                if self._stopped and self._uneven != "drop":
                    self._end_epoch()  # nothing is left to be read
                return item
        raise StopIteration

    @property
    def _begun(self) -> int:
        """How many items of all ranks were given of a global batch that is not full
        yet.
        """
        return self._made % self._accumulated * self._ranks.world_size

    def _delivered(self, item: Any, turn: int) -> T:
        """Make a step with an item, or a copy where the lane of this turn has none."""
        self._made += 1
        self._step += self._loop is not None
        self.is_copy = item is _MISSING and self._uneven == "pad"
        if item is _MISSING:
            key = 0 if self.is_copy else turn % self._count, self._count
            if key not in self._copies:
                self._copies[key] = self._run.first_item(*key)
            item, self.made, self._before = self._copies[key]
        if self._lenders.issuperset(parts := self.made[::4]):
            of = zip(map(self._parts.__getitem__, parts), self.made[1::4], strict=True)
            lent = bool(parts) and all(
                padding(part, np.array([at]))[0] for part, at in of
            )
            self.is_copy = self.is_copy or lent
        return self._marked(item)

    @property
    def restore_key(self) -> tuple[Any, ...]:
        """What the last item can be restored by."""
        return lane_key(self._before.lane, self._count, self._before.state)

    def _turns(self) -> list[bool] | None:
        """Return whether each rank has an item for this step; None at the end of the
        epoch.
        """
        ranks = range(self._ranks.world_size)
        if self._stop is not None:
            return (
                None
                if self._stopped
                else [self._position + r < self._size for r in ranks]
            )
        turns = [self._look(rank) for rank in self._played]
        if self._agreement is not None:
            mine = [turns[self._played.index(self._ranks.rank)]]
            turns = [
                t for (t,) in self._agreement.numbers(mine, "the next step of a stream")
            ]
        if all(turn == _OVER for turn in turns):
            return None
        return [turn == _ITEM for turn in turns]

    def _look(self, rank: int) -> int:
        """Return what a rank has for this step, as far as reading tells."""
        lane = self._lane(rank)
        before = rank // self._count  # ranks with their turns at the lane
        if lane not in self._over:
            if self._lanes.has(lane, before):
                return _ITEM
            if before:
                return _NONE
            self._over.add(lane)
        return _OVER if self._over.issuperset(self._lanes_of(rank)) else _NONE

    def _lane(self, rank: int) -> int:
        return (self._position + rank) % self._count

    def _take(self, rank: int) -> T:
        lane = self._lane(rank)
        before = Before(lane, self._lanes.state(lane))
        item = self._lanes.take(lane)
        if rank == self._ranks.rank:
            self._before = before
            self.made = self._lanes.made
        return item

    def _is_step(self, has: list[bool]) -> bool:
        """Return whether what ranks have makes a step of this one."""
        if self._uneven == "allow":
            return has[self._ranks.rank]
        if self._stop is not None or all(has):
            return True
        if self._uneven == "drop":
            self._dropped += sum(has)
        return self._uneven != "drop" and any(has)

    def _end_epoch(self) -> None:
        for lane in self._hosted:
            with suppress(StopIteration):
                while lane not in self._over:
                    self._lanes.take(lane)
                    self._dropped += 1
        if self._dropped and not self._ranks.rank:
            text = (
                "%d items of an epoch were left out, which not all ranks had "
                "(uneven='drop')"
            )
            _log.info(text, self._dropped)
        self._epoch = self._epoch + 1
        self._position = 0
        self._ended = True

    def _lanes_of(self, rank: int) -> range:
        return range((self._first + rank) % self._shared, self._count, self._shared)

    def state(self) -> StreamPosition:
        """Return the state of the lanes that are hosted here."""
        if self._stopped and not self._ended:
            self._end_epoch()
        step = 0 if self._loop is None else self._step % self._loop
        cursors = {lane: self._lanes.state(lane) for lane in self._hosted}
        offset = self._position if self._at_offset else self._offset
        place = (self._epoch, self._position, step, cursors, offset, self._begun)
        return StreamPosition(self._count, *place)

    @property
    def reached(self) -> StreamPosition:
        """How far it has come, without the states of lanes."""
        return StreamPosition(self._count, self._epoch, self._position)

    @property
    def may_be_over(self) -> bool:
        """Whether a loop that gave no rank an item may be the rest of an epoch read
        before.
        """
        return self._stop is None and not self._came

    def close(self) -> None:
        """Let go of the lanes."""
        self._lanes.close()


Feed = IndexedFeed[T] | StreamFeed[T]
"""Delivers this rank's items up to the end of a loop."""


def open_feed(run: Run[T], position: RunPosition, rank: ThisRank[T]) -> Feed[T]:
    """Begin to read a run at a position."""
    if run.filled is not None:
        run.accumulation_steps(rank.ranks)
    if isinstance(position, StreamPosition):
        return StreamFeed(run, position, rank)
    return IndexedFeed(run, position, rank)
