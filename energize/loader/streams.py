"""Delivering a stream: lanes taken in turn, each by the rank that hosts it."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from energize.core.config import packed, unpacked
from energize.core.lanes import Ranks
from energize.core.padding import marked
from energize.core.restoring import lane_key
from energize.core.stream import State, counter_field, state_field
from energize.errors import ConfigError, LoaderError, StateError
from energize.ledger.places import NOTHING, Made
from energize.loader.agreement import Agreement
from energize.loader.epochs import divisors
from energize.loader.lanes import HostedLanes

T = TypeVar("T")

_log = logging.getLogger("energize")

_ITEM, _NONE, _OVER = range(3)
"""What a rank has for a step: an item; none, for the lane whose turn it is has ended, but another
lane may go on; none any more, for all its lanes have ended."""

_MISSING = object()

_MARK_EVERY = 32
"""After how many items the state of a lane is noted, where nobody has asked for keys."""


@dataclass(frozen=True, slots=True)
class Before:
    """Where a lane stood before an item: `items` after `state`."""

    lane: int
    state: State | None
    items: int = 0


_MOST_LANES = 2**16
"""Ranks times workers of no run come near it, but a damaged state may."""


def checked_lanes(lanes: int, ranks: Ranks) -> int:
    """A number of lanes that the world size divides; `ConfigError` listing those that do."""
    if lanes > _MOST_LANES:
        raise ConfigError(f"a run of {lanes} lanes is too large; {_MOST_LANES} are the most")
    if lanes % ranks.world_size:
        raise ConfigError(
            f"a run of {lanes} lanes cannot be shared out to world_size {ranks.world_size}; world "
            f"sizes that can have it: {divisors(lanes)}. The number of lanes is fixed when a run "
            "starts: get_loader(lanes=...), a multiple of all world sizes that it shall have"
        )
    return lanes


def lanes_in_turn(state: StreamState, ranks: Ranks, *, hosts_all: bool) -> list[int]:
    """The lanes that a rank hosts, or all of them, in the order in which their turns come."""
    first, every = (0, 1) if hosts_all else (ranks.rank, ranks.world_size)
    return [(state.position + turn) % state.lanes for turn in range(first, state.lanes, every)]


@dataclass(frozen=True, slots=True)
class StreamState:
    """Where all lanes of a stream stand.

    `position`: how many items of the epoch have had their turn, those of all ranks. `cursors`: the
    state of each lane, of those that this rank hosts at least; a lane without one is before its
    first item. `step`: of the loop, where loops count steps.
    """

    lanes: int
    epoch: int = 0
    position: int = 0
    step: int = 0
    cursors: Mapping[int, State | None] = field(default_factory=dict)

    @property
    def place(self) -> list[int]:
        """Where it is, without the states of lanes."""
        return [self.lanes, self.epoch, self.position, self.step]

    def saved(self) -> State:
        """As plain data."""
        cursors = [self.cursors.get(lane) for lane in range(self.lanes if self.cursors else 0)]
        return {
            "lanes": self.lanes,
            "epoch": self.epoch,
            "position": self.position,
            "step": self.step,
            "cursors": packed({"cursors": cursors}),
        }

    def gathered(self, agreement: Agreement) -> StreamState:
        """The same with the states of all lanes, which the ranks tell each other."""
        mine = {str(lane): state for lane, state in self.cursors.items()}
        said = agreement.trees([self.place, mine], "the state of a stream")
        if any(other != self.place for other, _ in said):
            raise LoaderError(
                "the state of a stream is asked for at different steps: lanes, epoch, position and "
                f"step of the ranks are {[other for other, _ in said]}"
            )
        cursors = {int(lane): state for _, part in said for lane, state in part.items()}
        return replace(self, cursors=cursors)

    @classmethod
    def loaded(cls, state: State) -> StreamState:
        """From plain data; `StateError` for what cannot have been saved."""
        lanes = counter_field(state, "lanes")
        if not 1 <= lanes <= _MOST_LANES:
            raise StateError(f"the saved state has {lanes} lanes; there are 1 to {_MOST_LANES}")
        held = unpacked(state_field(state, "cursors", str), "cursors")
        cursors = held.get("cursors")
        whole = isinstance(cursors, list) and len(cursors) in (0, lanes) and len(held) == 1
        if not whole or not all(each is None or isinstance(each, dict) for each in cursors or []):
            raise StateError(f"the saved state does not have the states of its {lanes} lanes")
        epoch, position = counter_field(state, "epoch"), counter_field(state, "position")
        step = counter_field(state, "step")
        return cls(lanes, epoch, position, step, dict(enumerate(cursors or [])))


class StreamFeed(Generic[T]):
    """One epoch of a stream.

    `stop` is where its steps end: beyond its `size` items, where the last steps are filled; None
    where only reading tells. `hosted` has the lanes of this rank; with `hosts_all`, which it is
    where the end has to be found and ranks cannot talk (no `agreement`), it has all lanes, and the
    items of other ranks are read and left out.

    `loop` is how many steps a loop has, or None where it ends with the epoch, and `accumulated` how
    many make a global batch. What is missing is a copy of the last item delivered, which `last`
    has with the place before it, or else of what `spare` gives. `state_at` reads on to a place, for
    keys that are asked for when only a state before it was noted.
    """

    def __init__(
        self,
        hosted: HostedLanes[T],
        ranks: Ranks,
        state: StreamState,
        *,
        size: int,
        stop: int | None,
        uneven: str,
        agreement: Agreement | None,
        hosts_all: bool,
        loop: int | None,
        accumulated: int,
        last: deque[tuple[T, Before]],
        spare: Callable[[], tuple[T, Before]],
        state_at: Callable[[Before], State],
    ) -> None:
        self._hosted, self._ranks, self._agreement = hosted, ranks, agreement
        self._lanes, self._size, self._stop = state.lanes, size, stop
        self._uneven, self._loop, self._accumulated = uneven, loop, accumulated
        self._epoch, self._position, self._step = state.epoch, state.position, state.step
        self._first = state.position % ranks.world_size
        self._over = {
            lane for lane, cursor in state.cursors.items() if _epoch_of(cursor) > state.epoch
        }
        self._played = list(range(ranks.world_size)) if hosts_all else [ranks.rank]
        self._last, self._spare = last, spare
        self._made = self._dropped = 0
        self._came = self._ended = False
        self._before = Before(0, None)
        self._made_of: Made = NOTHING
        self._marks: dict[int, Before] = {}
        self._state_at = state_at
        self._mark_every = 1 if hosted.tells_states else _MARK_EVERY
        self.padding = False

    def begin_loop(self) -> bool:
        """Get ready for another loop; False when the epoch has ended, and it begins elsewhere."""
        self._came = False
        if self._loop is not None:
            self._step %= self._loop
        return not self._stopped and not self._ended

    @property
    def loop_ended(self) -> bool:
        """Whether the loop is known to have no item any more."""
        counted = self._loop is not None and self._step >= self._loop
        return self._ended or self._stopped or counted

    @property
    def _stopped(self) -> bool:
        return self._stop is not None and self._position >= self._stop

    def __next__(self) -> T:
        if self._ended:
            raise StopIteration
        while self._loop is None or self._step < self._loop:
            has = self._turns()
            if has is None:
                if self._fills():
                    return self._delivered(_MISSING)
                self._end_epoch()
                break
            items = {rank: self._take(rank) for rank in self._played if has[rank]}
            self._position += self._ranks.world_size
            self._came = self._came or any(has)
            if self._is_step(has):
                return self._delivered(items.get(self._ranks.rank, _MISSING))
        raise StopIteration

    def _delivered(self, item: Any) -> T:
        """Make a step with an item, or a copy where it is missing."""
        self._made += 1
        self._step += self._loop is not None
        self.padding = item is _MISSING and self._uneven == "pad"
        if item is not _MISSING:
            self._last.append((item, self._before))
        elif not self._last:
            self._last.append(self._spare())
        given, self._before = self._last[-1]
        return marked(given) if self.padding else given

    @property
    def made(self) -> Made:
        """What the last item of this rank is made of."""
        return self._made_of

    @property
    def restore_key(self) -> tuple[Any, ...]:
        """What the last item can be restored by."""
        self._mark_every = 1  # somebody asks
        before = self._before
        state = self._state_at(before) if before.items else before.state
        return lane_key(before.lane, self._lanes, state)

    def _turns(self) -> list[bool] | None:
        """Whether each rank has an item for this step; None at the end of the epoch."""
        ranks = range(self._ranks.world_size)
        if self._stop is not None:
            return None if self._stopped else [self._position + r < self._size for r in ranks]
        mine = [self._look(rank) for rank in self._played]
        if self._agreement is not None:
            mine = [t for (t,) in self._agreement.numbers(mine, "the next step of a stream")]
        if all(turn == _OVER for turn in mine):
            return None
        return [turn == _ITEM for turn in mine]

    def _look(self, rank: int) -> int:
        """What a rank has for this step, as far as reading tells."""
        lane = self._lane(rank)
        if lane not in self._over:
            if self._hosted.has(lane):
                return _ITEM
            self._over.add(lane)
        return _OVER if self._over.issuperset(self._lanes_of(rank)) else _NONE

    def _lane(self, rank: int) -> int:
        return (self._position + rank) % self._lanes

    def _take(self, rank: int) -> T:
        lane = self._lane(rank)
        if rank != self._ranks.rank:
            return self._hosted.take(lane)
        self._note(lane)
        item = self._hosted.take(lane)
        self._made_of = self._hosted.made
        return item

    def _note(self, lane: int) -> None:
        """Note where the lane stands, or how many items it has given since that was noted."""
        mark = self._marks.get(lane)
        if mark is None or mark.items + 1 >= self._mark_every:
            self._before = Before(lane, self._hosted.state(lane))
        else:
            self._before = Before(lane, mark.state, mark.items + 1)
        self._marks[lane] = self._before

    def _is_step(self, has: list[bool]) -> bool:
        """Whether what ranks have makes a step of this one."""
        if self._uneven == "allow":
            return has[self._ranks.rank]
        if self._stop is not None or all(has):
            return True
        if self._uneven == "drop":
            self._dropped += sum(has)
        return self._uneven != "drop" and any(has)

    def _fills(self) -> bool:
        """Whether the last global batch of an epoch whose end was found still lacks steps."""
        filling = self._stop is None and self._uneven in ("pad", "repeat")
        return filling and self._made % self._accumulated != 0

    def _end_epoch(self) -> None:
        for lane in self._hosted_lanes():
            with suppress(StopIteration):
                while lane not in self._over:
                    self._hosted.take(lane)
                    self._dropped += 1
        if self._dropped and not self._ranks.rank:
            text = "%d items of an epoch were left out, which not all ranks had (uneven='drop')"
            _log.info(text, self._dropped)
        self._epoch, self._position, self._ended = self._epoch + 1, 0, True

    def _lanes_of(self, rank: int) -> range:
        world = self._ranks.world_size
        return range((self._first + rank) % world, self._lanes, world)

    def _hosted_lanes(self) -> list[int]:
        return [lane for rank in self._played for lane in self._lanes_of(rank)]

    def state(self) -> StreamState:
        """The state of the lanes that are hosted here."""
        if self._stopped and not self._ended:
            self._end_epoch()
        step = 0 if self._loop is None else self._step % self._loop
        cursors = {lane: self._hosted.state(lane) for lane in self._hosted_lanes()}
        return StreamState(self._lanes, self._epoch, self._position, step, cursors)

    @property
    def reached(self) -> StreamState:
        """How far it has come, without the states of lanes."""
        return StreamState(self._lanes, self._epoch, self._position)

    @property
    def may_be_over(self) -> bool:
        """Whether a loop that gave no rank an item may be the rest of an epoch read before."""
        return self._stop is None and not self._came

    def close(self) -> None:
        """Let go of the lanes."""
        self._hosted.close()


def _epoch_of(cursor: State | None) -> int:
    return counter_field(cursor, "epoch")
