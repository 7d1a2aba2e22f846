"""The items of a rank, step by step, up to the end of a loop.

A rank reads lanes. The lanes of a stream are fixed for the run. The items of a rank of
an indexed dataset are divided into one lane for each worker. Each lane is read in order
by one reader, in this process or in a worker. A plan of steps selects the lane of the
next item.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import numpy as np

from energize.core import tree
from energize.core.lanes import Lane, Ranks
from energize.core.padding import UNMARKED, Marks, Padded, with_marks
from energize.core.reader import NOTHING, ItemOrigin
from energize.core.restoring import ITEM, lane_key
from energize.core.stream import State
from energize.core.tree import padding
from energize.datasets.align import check_ranks
from energize.loader.agreement import Agreement
from energize.loader.failures import FailureLog
from energize.loader.pool import WorkerPool
from energize.loader.position import LaneState, RunPosition, StreamPosition
from energize.loader.readers import (
    QueuedReader,
    ReadAhead,
    WorkerReader,
    WorkerRequests,
    local_readers,
)
from energize.loader.run import Copy, Run
from energize.loader.shipping import LaneSet
from energize.loader.steps import IndexedSteps, Step, StepPlan, StreamSteps, host_lanes

T = TypeVar("T")


@dataclass(frozen=True)
class RankContext(Generic[T]):
    """The resources with which a rank reads.

    Attributes:
        ranks: This rank.
        agreement: The agreement with other ranks; None if they cannot communicate.
        workers: Returns the workers and how far they read ahead; None to read in this
            process.
        failures: Counts failed samples.
        warned: The warnings that were logged.
        copies: The items that fill steps of a stream, by lane and number of lanes.
    """

    ranks: Ranks
    agreement: Agreement | None
    workers: Callable[[], tuple[WorkerPool, ReadAhead]] | None
    failures: FailureLog
    warned: set[str]
    copies: dict[tuple[int, int], Copy[T]]

    def readers(
        self, run: Run[T], lanes: LaneSet, states: Mapping[int, State | None]
    ) -> dict[int, QueuedReader[T]]:
        """Begin to read lanes, by workers or in this process.

        Args:
            run: The run.
            lanes: All lanes of its dataset.
            states: The states of the lanes to read, in the order of their turns.

        Returns:
            The reader of each lane.
        """
        if self.workers is None:
            context = run.context.counted_by(
                self.failures.add, self.failures.left_out, self.failures.memory
            )
            return local_readers(run.stream, lanes, states, context)
        pool, ahead = self.workers()
        requests = WorkerRequests(
            pool, ahead, lanes, states, self.failures, run.dataset
        )
        return {lane: WorkerReader(requests, lane) for lane in states}


class Feed(Generic[T]):
    """The items of a rank, up to the end of a loop.

    Args:
        run: The run.
        lanes: All lanes of its dataset.
        steps: The steps to deliver.
        readers: The readers of the lanes of this rank.
        rank: The resources of the rank.

    Attributes:
        steps: The steps to deliver.
        made: The origin of the last item.
        is_copy: Whether the last item is padding as a whole.
        marks: The padding in the last item.
    """

    def __init__(
        self,
        run: Run[T],
        lanes: LaneSet,
        steps: StepPlan,
        readers: Mapping[int, QueuedReader[T]],
        rank: RankContext[T],
    ) -> None:
        self.steps = steps
        self.made: ItemOrigin = NOTHING
        self.is_copy = False
        self.marks: Marks = UNMARKED
        self._run = run
        self._readers = readers
        self._lane_count = lanes.count
        self._copies = rank.copies
        self._before = LaneState(0, None)
        self._is_stream = not run.stream.indexed
        self._parts = [part.dataset for part in run.stream.read_parts]
        self._padded_parts = {
            number for number, part in enumerate(self._parts) if tree.has_padding(part)
        }
        self._watch: Callable[[int], None] | None = None
        if not self._is_stream:
            lane = Lane(rank.ranks.rank, rank.ranks.world_size)
            self._watch = tree.watcher(run.stream, lane)

    def __next__(self) -> T:
        step = self.steps.next_step()
        if not step.delivers:
            step = self._next_delivering_step(step)
        if step.delivered is None:
            self._discard(step.lanes)
            self.steps.complete(step)
            item, self.made, self._before = self._copy_of(step.filler)
        else:
            item = self._take(step, step.delivered)
            self.steps.complete(step)
        origin = self.made
        if self._watch is not None:
            self._watch(cast("int", origin))
        self.is_copy = step.is_copy or (
            bool(self._padded_parts) and self._is_padding(origin)
        )
        self.marks = UNMARKED
        if self.is_copy or type(item) is Padded:
            item, self.marks = with_marks(item, self.is_copy)
        return item

    def _next_delivering_step(self, step: Step) -> Step:
        """Return the next step in which this rank delivers an item."""
        while not step.delivers:
            self._discard(step.lanes)
            self.steps.complete(step)
            step = self.steps.next_step(skipped=True)
        return step

    def _take(self, step: Step, index: int) -> Any:
        """Read the item to deliver in a step, and discard the items of other ranks."""
        lanes = step.lanes
        if len(lanes) > 1:
            self._discard(lanes[:index])
        lane = lanes[index]
        reader = self._readers[lane]
        state = reader.state() if self._is_stream else None
        item = next(reader)
        self.made = reader.made
        if self._is_stream:
            self._before = LaneState(lane, state)
        if len(lanes) > 1:
            self._discard(lanes[index + 1 :])
        return item

    def _discard(self, lanes: Sequence[int]) -> None:
        """Read an item of each lane, which other ranks deliver."""
        for lane in lanes:
            next(self._readers[lane])

    def _copy_of(self, lane: int) -> Copy[T]:
        """Return the first item of a lane in the run."""
        key = lane, self._lane_count
        if key not in self._copies:
            self._copies[key] = self._run.first_item(*key)
        return self._copies[key]

    def _is_padding(self, origin: ItemOrigin) -> bool:
        """Return whether an item consists of padding of its dataset."""
        if isinstance(origin, int):
            return bool(padding(self._parts[0], np.array([origin]))[0])
        parts = origin[::4]
        if not parts or not self._padded_parts.issuperset(parts):
            return False
        positions = zip(parts, origin[1::4], strict=True)
        return all(
            padding(self._parts[part], np.array([position]))[0]
            for part, position in positions
        )

    @property
    def restore_key(self) -> tuple[Any, ...]:
        """The key that restores the last item."""
        if not self._is_stream:
            return ITEM, self.made
        return lane_key(self._before.lane, self._lane_count, self._before.state)

    @property
    def loop_ended(self) -> bool:
        """Whether the loop is known to have no further item."""
        return self.steps.loop_ended

    def state(self) -> RunPosition:
        """Return the position after the last item, that of all ranks."""
        return self.steps.position()

    def close(self) -> None:
        """Release what was read ahead."""
        for reader in self._readers.values():
            reader.close()


def open_feed(run: Run[T], position: RunPosition, rank: RankContext[T]) -> Feed[T]:
    """Open the items of this rank.

    Args:
        run: The run.
        position: The position to begin at.
        rank: The resources of the rank.
    """
    ranks = rank.ranks
    if run.filled is not None:
        run.accumulation_steps(ranks)  # raises if the world size does not fit
    at = 0 if isinstance(position, StreamPosition) else position["position"]
    check_ranks(run.stream, at, ranks.world_size)
    if not isinstance(position, StreamPosition):
        indexed = IndexedSteps(run, position, ranks)
        count = ranks.world_size * len(indexed.lanes)
        lanes = LaneSet(
            count,
            run.edits,
            plan=indexed.plan,
            world_size=ranks.world_size,
            anchored=tree.anchored_of(run.dataset, indexed.plan.start),
        )
        readers = rank.readers(run, lanes, dict.fromkeys(indexed.lanes))
        return Feed(run, lanes, indexed, readers, rank)
    hosted, position = host_lanes(run, position, ranks, rank.agreement, rank.warned)
    lanes = LaneSet(position.lanes, run.edits, run.endless)
    states = {lane: position.cursors.get(lane) for lane in hosted.lanes}
    readers = rank.readers(run, lanes, states)
    try:
        steps = StreamSteps(run, position, hosted, readers, rank.agreement)
    except BaseException:
        for reader in readers.values():
            reader.close()
        raise
    return Feed(run, lanes, steps, readers, rank)
