"""The steps of a loop on one rank: which lane has the item of each step.

A plan of steps reads nothing but what it needs to find the end of a stream. The items
of a step are taken by a `Feed`.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from energize.core import tree
from energize.core.lanes import Ranks
from energize.core.node import INFINITE
from energize.core.stream import State, counter_field
from energize.errors import ConfigError, StateError
from energize.loader.agreement import Agreement
from energize.loader.position import RunPosition, StreamPosition
from energize.loader.readers import QueuedReader
from energize.loader.run import Run

_log = logging.getLogger("energize")

_ITEM = 0
"""The lane of a rank's turn has an item."""

_NO_ITEM = 1
"""The lane of a rank's turn has ended, but another lane of the rank has not."""

_NO_MORE_ITEMS = 2
"""All lanes of a rank have ended."""


class Step(NamedTuple):
    """The reads of a rank in a step.

    Attributes:
        lanes: The lanes to read an item from, in this order.
        delivered: The index in `lanes` of the item to deliver; None if there is none.
        is_copy: Whether the item is padding at the end of an epoch.
        delivers: Whether the rank delivers an item. A step without an item then
            delivers the first item of lane `filler`.
        filler: The lane of the item that fills the step.
        items: Number of items of all ranks in the step; None after the end of an epoch.
    """

    lanes: tuple[int, ...]
    delivered: int | None = None
    is_copy: bool = False
    delivers: bool = True
    filler: int = 0
    items: int | None = None


class StepPlan(ABC):
    """The steps of a loop on one rank, up to its end."""

    @property
    @abstractmethod
    def loop_ended(self) -> bool:
        """Whether the loop is known to have no further item."""

    @property
    def continues(self) -> bool:
        """Whether the loop continues in the next epoch, as this one has ended."""
        return False

    @property
    def may_be_over(self) -> bool:
        """Whether a loop without an item may be the rest of an epoch that was read
        before.
        """
        return False

    @abstractmethod
    def begin_loop(self, *, restarts: bool) -> bool:
        """Prepare another loop.

        Args:
            restarts: Whether the loop has full length, wherever the last one ended.

        Returns:
            Whether this plan has that loop.
        """

    @abstractmethod
    def next_step(self, *, skipped: bool = False) -> Step:
        """Return the next step; raise `StopIteration` at the end of the loop.

        Args:
            skipped: Whether this rank delivered nothing in the step before. It then
                looks for a step with an item, past the offset at which a loop ends.
        """

    @abstractmethod
    def complete(self, step: Step) -> None:
        """Advance, after the items of a step were taken."""

    @abstractmethod
    def position(self) -> RunPosition:
        """Return the position after the last step, that of all ranks."""

    @property
    @abstractmethod
    def reached(self) -> RunPosition:
        """The position, without the states of lanes."""


class IndexedSteps(StepPlan):
    """The steps of an indexed run, all of which are known.

    They are those of an epoch, from the offset of the loop in one epoch to the same
    offset in the next one, or have no end.

    Args:
        run: The run.
        position: Where the run is.
        ranks: This rank.

    Attributes:
        plan: The positions that the ranks deliver.
        lanes: The lanes of this rank, one for each worker, in the order of their turns.
    """

    def __init__(self, run: Run[Any], position: State, ranks: Ranks) -> None:
        self._dataset = run.stream
        self._loop = run.loop
        self._step: int = position.get("step", 0)
        self._offset: int = position.get("offset", 0)
        self._filled = run.filled or 1
        self._world_size = ranks.world_size
        self._done = 0
        self.plan = run.plan(
            ranks,
            counter_field(position, "position"),
            self._dataset.size if run.loop is None else INFINITE,
            self._offset,
            position.get("begun", 0),
        )
        self.lanes = [
            ranks.rank + ranks.world_size * worker for worker in range(run.workers or 1)
        ]
        first = self.plan.start + ranks.rank
        self._not_copied = len(range(first, self.plan.end, ranks.world_size))
        is_copy = run.settings.delivery.uneven == "pad"
        self._steps = [Step((lane,), 0) for lane in self.lanes]
        self._copies = [Step((lane,), 0, is_copy) for lane in self.lanes]

    @property
    def loop_ended(self) -> bool:
        if self._loop is not None:
            return self._step >= self._loop
        return self._done >= self.plan.steps

    def begin_loop(self, *, restarts: bool) -> bool:
        if self._loop is not None:
            self._step = 0 if restarts else self._step % self._loop
        return self.plan.steps == INFINITE if restarts else not self.loop_ended

    def next_step(self, *, skipped: bool = False) -> Step:
        done = self._done
        loop = self._loop
        if done >= self.plan.steps or (loop is not None and self._step >= loop):
            raise StopIteration
        steps = self._steps if done < self._not_copied else self._copies
        return steps[done % len(steps)]

    def complete(self, step: Step) -> None:
        self._done += 1
        self._step += 1

    def position(self) -> State:
        plan = self.plan
        position = plan.end
        reached = plan.start + self._done * self._world_size
        if self._done < plan.steps:
            position = min(reached, position)
        state: State = tree.state_at(self._dataset, position)
        if self._done < plan.steps and reached >= plan.end:
            state |= {"begun": (reached - plan.first) % self._filled}
        if self._loop is not None:
            return state | {"step": self._step % self._loop}
        return state | {"offset": self._offset} if self._offset else state

    @property
    def reached(self) -> State:
        return self.position()


@dataclass(frozen=True)
class HostedLanes:
    """The lanes of a stream that this rank reads.

    If the number of lanes is not a multiple of the number of ranks, several ranks read
    the same lanes: lanes with numbers that differ by a multiple of `shared`. Each rank
    discards the items of the other ranks.

    Attributes:
        count: Number of lanes of the stream.
        ranks: This rank.
        start: The position in the epoch at which reading began.
        reads_all: Whether this rank reads the lanes of all ranks.
    """

    count: int
    ranks: Ranks
    start: int
    reads_all: bool

    @property
    def shared(self) -> int:
        return math.gcd(self.count, self.ranks.world_size)

    @property
    def _first(self) -> int:
        return 0 if self.reads_all else self.ranks.rank % self.shared

    @property
    def _every(self) -> int:
        return 1 if self.reads_all else self.shared

    @property
    def lanes(self) -> list[int]:
        """The lanes to read, in the order of their turns."""
        turns = range(self._first, self.count, self._every)
        return [(self.start + turn) % self.count for turn in turns]

    @property
    def read_ranks(self) -> range:
        """The ranks with items that this rank reads."""
        return range(self._first, self.ranks.world_size, self._every)

    def lanes_of(self, rank: int) -> range:
        """Return the lanes that have the items of a rank."""
        first = (self.start % self.shared + rank) % self.shared
        return range(first, self.count, self.shared)


class StreamSteps(StepPlan):
    """The steps of one epoch of a stream, or of the part of it that is in a loop.

    If the length of the epoch is unknown, ranks agree on each step, and the epoch ends
    when no lane has an item. A loop that began inside the epoch continues in the next
    one, up to the same offset. A missing item is a copy of the first item of the run:
    with "pad" of the whole stream, with "repeat" of the lane of that turn. So it
    depends on the seed and the turn alone, also after a resume.

    Args:
        run: The run.
        position: The position of the run.
        hosted: The lanes that this rank reads.
        readers: Their readers.
        agreement: The agreement with other ranks; None if there is none.
    """

    def __init__(
        self,
        run: Run[Any],
        position: StreamPosition,
        hosted: HostedLanes,
        readers: Mapping[int, QueuedReader[Any]],
        agreement: Agreement | None,
    ) -> None:
        ranks = hosted.ranks
        self._hosted = hosted
        self._readers = readers
        self._agreement = agreement
        self._rank = ranks.rank
        self._world_size = ranks.world_size
        self._read_ranks = hosted.read_ranks
        self._uneven = run.settings.delivery.uneven
        self._loop = run.loop
        self._size = _epoch_size(run)
        self._stop = _end_of_steps(run, ranks, position, self._size)
        self._delivered = 0
        self._accumulation_steps = 1
        if run.filled and self._stop is None and self._uneven in ("pad", "repeat"):
            # The last global batch of an epoch whose end is found may lack steps.
            self._accumulation_steps = run.accumulation_steps(ranks)
            left = run.plan(ranks, position.begun, run.filled).steps
            self._delivered = self._accumulation_steps - left
        self._epoch = position.epoch
        self._position = position.position
        self._step = position.step
        self._offset = position.offset
        self._wraps = 0 < position.offset <= position.position
        self._over = position.lanes_over()
        self._dropped = 0
        self._any_item = False
        self._ended = False

    @property
    def loop_ended(self) -> bool:
        counted = self._loop is not None and self._step >= self._loop
        epoch_ended = self._ended or self._stopped
        return counted or self._at_offset or (epoch_ended and not self._wraps)

    @property
    def continues(self) -> bool:
        return self._ended and self._wraps

    @property
    def may_be_over(self) -> bool:
        return self._stop is None and not self._any_item

    @property
    def _at_offset(self) -> bool:
        """Whether the loop, begun in the epoch before, has ended in this one."""
        return not self._wraps and 0 < self._offset <= self._position

    @property
    def _stopped(self) -> bool:
        return self._stop is not None and self._position >= self._stop

    @property
    def _begun(self) -> int:
        """Number of items of all ranks in a global batch that is not full yet."""
        return self._delivered % self._accumulation_steps * self._world_size

    def begin_loop(self, *, restarts: bool) -> bool:
        self._any_item = False
        if self._loop is not None:
            self._step = 0 if restarts else self._step % self._loop
        if restarts:
            return self._stop == INFINITE and not self._ended
        return not self.loop_ended

    def next_step(self, *, skipped: bool = False) -> Step:
        if self._ended or (self._at_offset and not skipped):
            raise StopIteration
        if self._loop is not None and self._step >= self._loop:
            raise StopIteration
        has_item = self._ranks_with_items()
        if has_item is not None:
            return self._step_of(has_item)
        if self._begun:
            return self._filled_step((), self._begun + self._rank, None)
        self._end_epoch()
        raise StopIteration

    def _ranks_with_items(self) -> Sequence[bool] | None:
        """Return whether each rank has an item for this step; None at the end of the
        epoch.
        """
        if self._stop is None:
            return self._items_by_reading()
        if self._stopped:
            return None
        ranks = range(self._world_size)
        return [self._position + rank < self._size for rank in ranks]

    def _items_by_reading(self) -> Sequence[bool] | None:
        """As `_ranks_with_items`, for a stream of unknown length."""
        turns = [self._look(rank) for rank in self._read_ranks]
        if self._agreement is not None:
            local_turn = turns[self._read_ranks.index(self._rank)]
            rows = self._agreement.numbers([local_turn], "the next step of a stream")
            turns = [turn for (turn,) in rows]
        if all(turn == _NO_MORE_ITEMS for turn in turns):
            return None
        return [turn == _ITEM for turn in turns]

    def _look(self, rank: int) -> int:
        """Return what a rank has for this step, as far as reading finds out."""
        lane = self._lane(rank)
        earlier_ranks = rank // self._hosted.count  # which have turns at the lane
        if lane not in self._over:
            if self._readers[lane].has_next(earlier_ranks):
                return _ITEM
            if earlier_ranks:
                return _NO_ITEM
            self._over.add(lane)
        is_over = self._over.issuperset(self._hosted.lanes_of(rank))
        return _NO_MORE_ITEMS if is_over else _NO_ITEM

    def _lane(self, rank: int) -> int:
        return (self._position + rank) % self._hosted.count

    def _step_of(self, has_item: Sequence[bool]) -> Step:
        ranks = [rank for rank in self._read_ranks if has_item[rank]]
        lanes = tuple(map(self._lane, ranks))
        items = sum(has_item)
        if not self._is_step(has_item):
            return Step(lanes, delivers=False, items=items)
        if has_item[self._rank]:
            return Step(lanes, ranks.index(self._rank), items=items)
        return self._filled_step(lanes, self._position + self._rank, items)

    def _is_step(self, has_item: Sequence[bool]) -> bool:
        """Return whether this rank makes a step of these items."""
        if self._uneven == "allow":
            return has_item[self._rank]
        if self._stop is not None or all(has_item):
            return True
        return self._uneven != "drop" and any(has_item)

    def _filled_step(
        self, lanes: tuple[int, ...], turn: int, items: int | None
    ) -> Step:
        is_copy = self._uneven == "pad"
        filler = 0 if is_copy else turn % self._hosted.count
        return Step(lanes, None, is_copy, filler=filler, items=items)

    def complete(self, step: Step) -> None:
        if step.items is not None:
            self._position += self._world_size
            self._any_item = self._any_item or step.items > 0
        if step.delivers:
            self._delivered += 1
            self._step += self._loop is not None
            if step.items is not None and self._stopped and self._uneven != "drop":
                self._end_epoch()  # no lane has an item left
        elif self._uneven == "drop":
            self._dropped += step.items or 0

    def position(self) -> StreamPosition:
        if self._stopped and not self._ended:
            self._end_epoch()
        return StreamPosition(
            self._hosted.count,
            self._epoch,
            self._position,
            0 if self._loop is None else self._step % self._loop,
            {lane: self._readers[lane].state() for lane in self._hosted.lanes},
            self._position if self._at_offset else self._offset,
            self._begun,
        )

    @property
    def reached(self) -> StreamPosition:
        return StreamPosition(self._hosted.count, self._epoch, self._position)

    def _end_epoch(self) -> None:
        """Read the lanes to their ends, so that their states are of the next epoch."""
        for lane in self._hosted.lanes:
            with suppress(StopIteration):
                while lane not in self._over:
                    next(self._readers[lane])
                    self._dropped += 1
        if self._dropped and not self._rank:
            text = (
                "%d items of an epoch were left out, which not all ranks had "
                "(uneven='drop')"
            )
            _log.info(text, self._dropped)
        self._epoch += 1
        self._position = 0
        self._ended = True


def _epoch_size(run: Run[Any]) -> int:
    """Return the items of an epoch; 0 if only reading finds its end."""
    if run.endless:
        return INFINITE
    size: int = run.stream.size if run.stream.sized else 0
    return size


def _end_of_steps(
    run: Run[Any], ranks: Ranks, position: StreamPosition, size: int
) -> int | None:
    """Return the position in the epoch at which its steps end, None if only reading
    finds it.

    The last steps may be filled, so this may be beyond the items of the epoch.
    """
    uneven = run.settings.delivery.uneven
    if run.endless:
        return INFINITE
    if not run.stream.sized:
        if run.filled is not None and uneven == "drop":
            raise ConfigError(
                "global_batch_size with uneven='drop' needs the length of an epoch in "
                "advance, and that of this stream is unknown. Use uneven='pad', or "
                "repeat the stream and count steps (EpochizeDataset)"
            )
        return None
    begun = position.position if position.position >= size else 0
    plan = run.plan(ranks, min(position.position, size), size, begun=begun)
    if uneven == "allow":
        return size
    return plan.start + plan.steps * ranks.world_size


def host_lanes(
    run: Run[Any],
    position: StreamPosition,
    ranks: Ranks,
    agreement: Agreement | None,
    warned: set[str],
) -> tuple[HostedLanes, StreamPosition]:
    """Select the lanes of a stream that this rank reads.

    Ranks that cannot communicate read all lanes if the end of an epoch is unknown.

    Args:
        run: The run.
        position: The position of the run, with the states of some lanes at least.
        ranks: This rank.
        agreement: The agreement with other ranks; None if there is none.
        warned: The warnings that were logged.

    Returns:
        The lanes, and the position with their states.

    Raises:
        StateError: If the state of a lane is unknown.
    """
    has_fixed_end = run.endless or run.stream.sized
    reads_all = agreement is None and not (
        run.settings.delivery.standalone and has_fixed_end
    )
    hosted = HostedLanes(position.lanes, ranks, position.position, reads_all)
    if agreement is not None and position.lacks(hosted.lanes):
        # A run that resumes from another world size may have begun between two of its
        # steps. With the next epoch, which begins at 0, each rank has other lanes.
        position = position.gathered(agreement)
    missing = position.lacks(hosted.lanes)
    if missing:
        raise StateError(
            f"the states of lanes {missing} are unknown: this loader is a copy of one "
            "that shared them with other ranks. Load their state_dict(), which has all "
            "lanes"
        )
    if hosted.shared < ranks.world_size and not (reads_all or ranks.rank):
        _warn_of_shared_lanes(hosted, run.workers, warned)
    return hosted, position


def _warn_of_shared_lanes(hosted: HostedLanes, workers: int, warned: set[str]) -> None:
    if "lanes" in warned:
        return
    warned.add("lanes")
    world_size = hosted.ranks.world_size
    text = (
        "each of the %d lanes of the stream is read by %d of the %d ranks, which "
        "discard the items of other ranks. The data are correct, but reading is "
        "slower. In a new run use get_loader(lanes=%d)"
    )
    _log.warning(
        text,
        hosted.count,
        world_size // hosted.shared,
        world_size,
        world_size * max(1, workers),
    )
