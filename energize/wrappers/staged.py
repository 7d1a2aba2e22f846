"""One dataset after another, by the step of training."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar, cast

import numpy as np

from energize.arrays import Int64Array
from energize.cursor import State
from energize.dataset import INFINITE, Dataset, IndexedDataset
from energize.describing import digest
from energize.errors import ConfigError, EmptyDatasetError, NotIndexedError
from energize.order.stages.faults import stage_label
from energize.order.stages.plan import StagePlan
from energize.outline import Outline
from energize.reading import Reading
from energize.refs import Refs
from energize.sources.base import Source
from energize.streaming import Stream
from energize.topology import Lane, WorkerConfig
from energize.wrappers.advanced import carried_over
from energize.wrappers.routed import RoutedDataset
from energize.wrappers.stage_report import StageReport, source_names, source_shares
from energize.wrappers.stage_state import (
    check_stage,
    stage_differences,
    stage_fields,
    with_later_stages_anew,
)
from energize.wrappers.staged_stream import StagedStream, StageLog
from energize.wrappers.streams import RoutedStream

T_co = TypeVar("T_co", covariant=True)

_SHARES_OVER = 10_000
"""Items over which the shares of a stage without end are counted for reports."""


class StagedDataset(RoutedDataset[T_co]):
    """The items of the stages of a plan: those of a step come from the stage it belongs to.

    A step takes `items_per_step` items, counted over all ranks. The epoch is the whole plan; where
    it has an end, reading on gives more of the last stage. A stage whose dataset is exhausted
    before its steps are starts it again, in a new order.

    With `carry_over`, a source that occurs in several stages goes on after what earlier ones took
    of it, so that no sample comes again before its pass has ended, whatever batches, maps or
    weights change around it; other seeds or shuffle settings name another order, which starts at
    its beginning. Without it, each stage starts at the beginning of its dataset.

    The plan is logged when reading begins (logger `energize`, INFO), and every transition with what
    changes. A state names its stage, and is refused when the plan up to its position is another
    one; stages after it may be changed, added or removed. Use it as the outermost dataset.

    `StagePlan` checks the stages. Raises, naming the stage, `ConfigError` for one that reads from
    something else than a dataset, `EmptyDatasetError` for one without items, and `NotIndexedError`
    when a stream should be carried over.

    >>> from energize import ListSource, Stage, StagePlan
    >>> web, maths = ListSource("abcd"), ListSource("12")
    >>> plan = StagePlan([Stage("web", 0, 3, dataset=web), Stage("maths", 3, 4, dataset=maths),
    ...                   Stage("rest", 4, 7, dataset=web)])
    >>> "".join(StagedDataset(plan))
    'abc1dab'
    """

    plan: StagePlan[None]
    carry_over: bool

    def __init__(
        self,
        plan: StagePlan[Dataset[T_co]],
        *,
        carry_over: bool = True,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        if not isinstance(plan, StagePlan):
            raise ConfigError(f"StagedDataset reads a StagePlan; got {type(plan).__name__}")
        for stage in plan.stages:
            if not isinstance(stage.dataset, Dataset):
                raise ConfigError(
                    f"StagedDataset: {stage_label(stage)} reads from a dataset; got "
                    f"{type(stage.dataset).__name__} {str(stage.dataset)[:80]!r}; wrap an object "
                    "that has __len__ and __getitem__ in SequenceSource"
                )
        self._freeze(
            inputs=[stage.dataset for stage in plan.stages],
            worker_config=worker_config,
            plan=plan.with_datasets(_nothing),
            carry_over=carry_over,
        )
        self._check_inputs()

    def _check_inputs(self) -> None:
        for stage, each in zip(self.plan.stages, self.inputs, strict=True):
            if each.indexed and cast("IndexedDataset[Any]", each).size == 0:
                raise EmptyDatasetError(f"StagedDataset: stage {stage.name!r} has no items to read")
            if self.carry_over and not each.indexed:
                raise NotIndexedError(
                    f"StagedDataset: stage {stage.name!r} is a stream, and what a stream takes of "
                    "its sources is not known before it is read; pass carry_over=False to start "
                    "every stage at the beginning of its dataset"
                )

    @cached_property
    def sized(self) -> bool:
        return True

    @cached_property
    def size(self) -> int:
        return INFINITE if self.plan.total_items is None else self.plan.total_items

    def route(self, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        firsts = np.array(self.plan.first_items, dtype=np.int64)
        stage = self.phase_of(positions)
        return stage, positions - firsts[stage] + self._starts[stage]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the stages."""
        return tuple(stage.name for stage in self.plan.stages)

    @property
    def phase_starts(self) -> Sequence[int]:
        """The item that each stage begins with."""
        return self.plan.first_items

    def phase_of(self, positions: Int64Array) -> Int64Array:
        """The number of the stage of each position: int64."""
        firsts = np.array(self.plan.first_items, dtype=np.int64)
        return np.searchsorted(firsts, positions, side="right") - 1

    def reached(self, n: int) -> Sequence[int]:
        """In a stage that is over, its end; in one to come, where it will begin."""
        firsts = np.array([*self.plan.first_items, INFINITE], dtype=np.int64)
        made = np.clip(n - firsts[:-1], 0, np.diff(firsts))
        return [int(each) for each in self._starts + made]

    def consumed(self, n: int) -> Int64Array:
        stage = bisect_right(self.plan.first_items, n) - 1
        counts = self._consumed_before[stage].copy()
        samples = self._consumed_by(stage, n - self.plan.first_items[stage])
        np.add.at(counts, self.numbers_of(stage), samples)
        return counts

    @cached_property
    def _consumed_before(self) -> list[Int64Array]:
        """What the stages before each stage consume."""
        before = [np.zeros(len(self.sources), dtype=np.int64)]
        for stage, items in enumerate(np.diff(self.plan.first_items).tolist()):
            before.append(before[-1].copy())
            np.add.at(before[-1], self.numbers_of(stage), self._consumed_by(stage, items))
        return before

    def refs(self, positions: Int64Array, attempt: int = 0) -> Refs:
        refs = super().refs(positions, attempt)
        return replace(refs, source=self._numbers[refs.source])

    def passes(self, positions: Int64Array) -> Refs:
        return self.refs(positions)

    @cached_property
    def sources(self) -> tuple[Source[Any], ...]:
        """Those of all stages; one that occurs in several with one seed stands there once."""
        by_description = {digest(s.describe()): s for each in self._seeded for s in each.sources}
        return tuple(by_description.values())

    @cached_property
    def _numbers(self) -> Int64Array:
        """The position in `sources` of each source of each stage."""
        known = {digest(source.describe()): i for i, source in enumerate(self.sources)}
        all_sources = (source for each in self._seeded for source in each.sources)
        return np.array([known[digest(s.describe())] for s in all_sources], dtype=np.int64)

    def numbers_of(self, stage: int) -> Int64Array:
        """The position in `sources` of each source that a stage reads."""
        before = self._sources_before
        return self._numbers[before[stage] : before[stage + 1]]

    @cached_property
    def _seeded(self) -> tuple[Dataset[T_co], ...]:
        """The dataset of each stage, in the order that its own seed names, if it has one."""
        return tuple(
            each if stage.seed is None else each.reseeded(stage.seed)
            for each, stage in zip(self.inputs, self.plan.stages, strict=True)
        )

    @cached_property
    def _carried(self) -> list[tuple[IndexedDataset[Any], int]]:
        """What is read for each stage, and from which item on."""
        datasets = cast("tuple[IndexedDataset[Any], ...]", self._seeded)
        if not self.carry_over:
            return [(each, 0) for each in datasets]
        firsts = self.plan.first_items
        return carried_over(datasets, [*np.diff(firsts).tolist(), 0])

    @property
    def routed_to(self) -> tuple[IndexedDataset[Any], ...]:
        return tuple(dataset for dataset, _ in self._carried)

    @cached_property
    def _starts(self) -> Int64Array:
        return np.array([start for _, start in self._carried], dtype=np.int64)

    def _consumed_by(self, stage: int, items: int) -> Int64Array:
        dataset, start = self._carried[stage]
        return dataset.consumed(start + items) - dataset.consumed(start)

    @cached_property
    def report(self) -> tuple[StageReport, ...]:
        """For each stage its planned samples and shares by source; nothing is read."""
        names = source_names(self.sources)
        reports = []
        for number, stage in enumerate(self.plan.stages):
            if not self.indexed:
                reports.append(StageReport(stage, ()))
                continue
            items = _SHARES_OVER if stage.steps is None else stage.steps * stage.items_per_step
            samples, rows = self._consumed_by(number, items), self.numbers_of(number).tolist()
            before = self._consumed_before[number] * self.carry_over
            read = [(names[row], self.sources[row], int(before[row])) for row in rows]
            reports.append(StageReport(stage, source_shares(stage, read, samples.tolist())))
        return tuple(reports)

    def state_at(self, position: int) -> State:
        return super().state_at(position) | stage_fields(self.plan, position)

    def check_state(self, state: State) -> None:
        check_stage(self.plan, state)

    def watcher(self, lane: Lane) -> Callable[[int], None] | None:
        return None if lane.index else StageLog(self.plan, lambda: self.report).note

    def _stream(
        self, lane: Lane, state: State | None, reading: Reading, endless: bool
    ) -> Stream[T_co]:
        if state is not None:
            check_stage(self.plan, state)
            state = with_later_stages_anew(self.plan, state)
        routed: Stream[T_co] = RoutedStream(self.route, self._seeded, lane, state, reading)
        return StagedStream(routed, self.plan, self.watcher(lane), state)

    def mismatches(
        self, saved: Outline, current: Outline, state: State, later: list[str]
    ) -> Iterator[str]:
        if saved.get("kind") != current["kind"]:
            return super().mismatches(saved, current, state, later)
        later.append("those of stages that are others, or begin at another step")
        return stage_differences(saved, current, self.plan, state)


def _nothing(_: object) -> None:
    """No dataset: those of a staged dataset are its inputs."""
