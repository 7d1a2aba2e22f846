"""Read one dataset after another, by the steps of a training run."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import starmap
from threading import RLock
from typing import Any, NamedTuple, Self, TypeVar, cast

import numpy as np

from energize.core import tree
from energize.core.arrays import Int64Array
from energize.core.blends import ContinuedDataset
from energize.core.dataset import Dataset, IndexedDataset
from energize.core.description import digest
from energize.core.lanes import WorkerConfig
from energize.core.node import INFINITE, MixTraits, NodeTraits
from energize.core.stream import (
    LaneStream,
    MixStream,
    Opening,
    State,
    counter_field,
    state_field,
)
from energize.core.trace import consumed
from energize.data.source import Source
from energize.datasets.mix import MixDataset, MixOrder
from energize.datasets.stage_plan import (
    SourceShare,
    StagePlan,
    StageReport,
    changes,
    plan_lines,
    source_names,
    stage_label,
)
from energize.datasets.transform import with_equal_weighing
from energize.errors import (
    ConfigError,
    EmptyDatasetError,
    NotIndexedError,
    StateMismatchError,
)
from energize.order.scheme import SuccessionScheme

T = TypeVar("T")

T_co = TypeVar("T_co", covariant=True)

# What is read, and said of it.
_SHARES_OVER = 10_000
"""Items over which the shares of a stage without end are counted for reports."""

_PLANNED_OVER = 1_000
"""The same for planned items."""

_log = logging.getLogger("energize")

_INDEX = "stage_idx"

_NAME = "stage_name"


def _unchanged_child(number: int, child: Any) -> Any:
    return child


class _StageLog:
    """Log of the first lane: the plan at the first item, then every transition."""

    def __init__(self, dataset: StagedDataset[Any]) -> None:
        self._dataset = dataset
        self._stage = -1

    def note(self, position: int) -> None:
        """Log changes at the item at `position`."""
        plan = self._dataset.plan
        stage = plan.index_of_item(position)
        if stage == self._stage or not _log.isEnabledFor(logging.INFO):
            return
        reports = self._dataset.report
        step = f"{plan.step_of_item(position):,}"
        name = plan.stages[stage].name
        if self._stage < 0:
            _log.info("%s", "\n".join(plan_lines(reports)))
            _log.info("data stages: reading begins at step %s, in stage %r", step, name)
        else:
            old = reports[self._stage]
            new = reports[stage]
            changed = "; ".join(changes(old, new)) or "only the name changes"
            _log.info(
                "data stages: step %s: %r -> %r: %s",
                step,
                old.stage.name,
                name,
                changed,
            )
        self._stage = stage


class StagedDataset(MixDataset[T_co]):
    """Read the datasets of a plan one after another, by training steps.

    A step takes `items_per_step` items, over all ranks. The plan is one epoch; reading
    after its end continues the last stage. A dataset that is exhausted before its stage
    ends starts again, in a new order.

    The plan and every transition are logged (logger `energize`, INFO). A state contains
    the stage, and is rejected if the plan before its position differs; later stages can
    be changed, added or removed. Use this as the outermost dataset.

    Args:
        plan: The stages, see `StagePlan`.
        carry_over: Whether a source in several stages continues after the samples of
            earlier stages, so that no sample is repeated within a pass, even if
            batches, maps or weights around it differ. A source with another seed or
            shuffle starts from its beginning. False starts every dataset from its
            beginning.
        worker_config: Seeds the order by its `seed_offset`; passed to `get_loader`.

    Raises:
        ConfigError: If a stage does not read a dataset.
        EmptyDatasetError: If a stage has no items.
        NotIndexedError: If `carry_over` is set and a stage is a stream.

    Example:
        >>> from energize import ListSource
        >>> from energize.experimental import Stage, StagePlan
        >>> web, maths = ListSource("abcd"), ListSource("12")
        >>> plan = StagePlan(
        ...     [
        ...         Stage("web", 0, 3, dataset=web),
        ...         Stage("maths", 3, 4, dataset=maths),
        ...         Stage("rest", 4, 7, dataset=web),
        ...     ]
        ... )
        >>> "".join(StagedDataset(plan))
        'abc1dab'
    """

    order_name = "StagedDataset"

    sized = True

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
            raise ConfigError(
                f"StagedDataset: plan must be a StagePlan, got {type(plan).__name__}"
            )
        for stage in plan.stages:
            if not isinstance(stage.dataset, Dataset):
                raise ConfigError(
                    f"StagedDataset: {stage_label(stage)} must have a dataset, got "
                    f"{type(stage.dataset).__name__} {str(stage.dataset)[:80]!r}. "
                    "Wrap an object with __len__ and __getitem__ in SequenceSource"
                )
        self.freeze(
            inputs=with_equal_weighing(stage.dataset for stage in plan.stages),
            worker_config=worker_config,
            plan=plan.with_datasets(lambda _: None),
            carry_over=carry_over,
        )
        for name, dataset in zip(self.names, self.inputs, strict=True):
            if dataset.indexed and cast("IndexedDataset[Any]", dataset).size == 0:
                raise EmptyDatasetError(
                    f"StagedDataset: stage {name!r} has no items to read"
                )
            if self.carry_over and not dataset.indexed:
                raise NotIndexedError(
                    f"StagedDataset: stage {name!r} is a stream, so its position in "
                    "the sources is unknown in advance. Pass carry_over=False to "
                    "start every stage at the beginning of its dataset"
                )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the stages."""
        return tuple(stage.name for stage in self.plan.stages)

    def phase_of(self, positions: Int64Array) -> Int64Array:
        """Return the number of the stage of each position: int64."""
        stages, _ = self.mix_order.scheme.locate(positions)
        return stages

    @cached_property
    def mix_order(self) -> MixOrder:
        starts = np.array(self._starts, dtype=np.int64)
        first_items = np.array(self.plan.first_items, dtype=np.int64)
        total = self.plan.total_items
        return MixOrder(
            SuccessionScheme(first_items, starts),
            INFINITE if total is None else total,
            starts=starts,
        )

    @cached_property
    def _starts(self) -> list[int]:
        """The first item of each stage in its dataset."""
        numbers = range(len(self.inputs))
        if isinstance(self.children, _CarriedDatasets):
            return list(map(self.children.start_of, numbers))
        return [0 for _ in numbers]

    @cached_property
    def traits(self) -> NodeTraits:
        return NodeTraits(mix=MixTraits(shares_sources=True, phases=_Stages(self)))

    @cached_property
    def sources(self) -> tuple[Source[Any], ...]:
        """The sources of all stages; equal sources with one seed occur once."""
        return tree.distinct_sources(self.stage_datasets)

    @cached_property
    def stage_datasets(self) -> tuple[Dataset[T_co], ...]:
        """The dataset of each stage, reseeded if the stage has a seed."""
        return tuple(
            dataset if stage.seed is None else dataset.reseeded(stage.seed)
            for dataset, stage in zip(self.inputs, self.plan.stages, strict=True)
        )

    @cached_property
    def source_numbers(self) -> list[int | Int64Array]:
        return tree.shared_numbers(self.sources, self.stage_datasets)

    @cached_property
    def children(self) -> Sequence[IndexedDataset[Any]]:
        """The dataset of each stage, made when it is used.

        A stage that continues after others depends on where they end.
        """
        datasets = cast("tuple[IndexedDataset[Any], ...]", self.stage_datasets)
        if not self.carry_over:
            return tuple(starmap(self._child_change, enumerate(datasets)))
        items = [*np.diff(self.plan.first_items).tolist(), 0]
        return _CarriedDatasets(datasets, items, self._child_change)

    _child_change: Callable[[int, Any], Any] = staticmethod(_unchanged_child)

    def with_children(self, change: Callable[[int, Any], Any]) -> Self:
        return self.replace(_child_change=change)

    def anchor_items(self, n: int) -> list[int | None]:
        spans, _ = self.spans(n)
        begun = self.plan.index_of_item(n) + 1
        items = [span.stop for span in spans[:begun]]
        return [*items, *[None] * (len(spans) - begun)]

    def open_pass(self, opening: Opening) -> LaneStream[T_co]:
        if opening.state is not None:
            _check_stage(self.plan, opening.state)
        return _StagedStream(self, opening)

    def settled(
        self, saved: dict[str, Any], now: dict[str, Any], n: int
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Ignore later stages, and the end of the current one."""
        count = _last_stage(self.plan, n) + 1
        return _first_stages(saved, count), _first_stages(now, count)

    def _samples_of(self, number: int, items: int) -> tuple[Int64Array, Int64Array]:
        """Return the samples of a stage, and those of earlier stages, by source.

        Planned items are not counted: that would plan the whole run.
        """
        if self.anchored:
            dataset = cast("IndexedDataset[Any]", self.stage_datasets[number])
            samples = dataset.consumed(min(items, _PLANNED_OVER))
            return samples, np.zeros(len(self.sources), dtype=np.int64)
        child = self.children[number]
        start = self._starts[number]
        samples = consumed(child, start + items) - consumed(child, start)
        return samples, consumed(self, self.plan.first_items[number]) * self.carry_over

    @cached_property
    def report(self) -> tuple[StageReport, ...]:
        """The planned samples and shares of each stage, by source.

        Of planned packs and batches, the shares are those of the first ones.
        """
        names = source_names(self.sources)
        reports = []
        for number, stage in enumerate(self.plan.stages):
            if not self.indexed:
                reports.append(StageReport(stage, ()))
                continue
            items = (
                _SHARES_OVER
                if stage.steps is None
                else stage.steps * stage.items_per_step
            )
            samples, earlier = self._samples_of(number, items)
            numbers = np.asarray(self.source_numbers[number])
            shares = [
                SourceShare(
                    names[row],
                    count / max(int(samples.sum()), 1),
                    None if stage.steps is None or self.anchored else count,
                    int(earlier[row]),
                    self.sources[row].count,
                )
                for row, count in zip(
                    numbers,
                    samples.tolist(),
                    strict=True,
                )
            ]
            reports.append(StageReport(stage, tuple(shares)))
        return tuple(reports)


class _Stages(NamedTuple):
    """The phases of a staged dataset."""

    dataset: StagedDataset[Any]

    def state_fields(self, position: int) -> State:
        return _stage_fields(self.dataset.plan, position)

    def check_state(self, state: State) -> None:
        _check_stage(self.dataset.plan, state)

    def watcher(self, lane: int) -> Callable[[int], None] | None:
        return None if lane else _StageLog(self.dataset).note


class _StagedStream(MixStream[T]):
    """Reads a staged dataset, with the current stage in its state."""

    def __init__(self, dataset: StagedDataset[T], opening: Opening) -> None:
        self._watch = tree.watcher(dataset, opening.lane)
        self._plan = dataset.plan
        self._position = opening.counter("position")
        state = opening.state
        if state is not None:  # stages of which nothing was read may be others
            inputs = state_field(state, "inputs", list)[
                : _last_stage(self._plan, self._position) + 1
            ]
            missing = [None] * (len(dataset.inputs) - len(inputs))
            state = state | {"inputs": [*inputs, *missing]}
        super().__init__(
            dataset.route, dataset.stage_datasets, opening._replace(state=state)
        )

    def at(self, position: int, attempt: int = 0) -> T:
        item = super().at(position, attempt)
        if self._watch is not None:
            self._watch(position)
        self._position = position + 1
        return item

    def state(self) -> State:
        fields = _stage_fields(self._plan, self._position)
        return {"position": self._position, **fields, **super().state()}


def _last_stage(plan: StagePlan[Any], position: int) -> int:
    """Return the number of the stage of the last of `position` items.

    At the first item of a new stage this is the previous stage: nothing of the new one
    was read, so the new stage can still be replaced.
    """
    return plan.index_of_item(max(position - 1, 0))


def _stage_fields(plan: StagePlan[Any], position: int) -> State:
    """Return the number (from 0) and the name of the stage at a position."""
    index = _last_stage(plan, position)
    return {_INDEX: index, _NAME: plan.stages[index].name}


def _check_stage(plan: StagePlan[Any], state: State) -> None:
    """Raise `StateMismatchError` unless the plan has the stage of the state."""
    if isinstance(state, dict) and _NAME not in state:
        return
    position = counter_field(state, "position")
    index = state_field(state, _INDEX, int)
    name = state_field(state, _NAME, str)
    expected_index = _last_stage(plan, position)
    stage = plan.stages[expected_index]
    if (expected_index, stage.name) != (index, name):
        raise StateMismatchError(
            f"the saved state was in stage {name!r}, number {index} of its plan "
            f"counted from 0, after {position} items, but in this plan the item "
            f"before belongs to stage {stage.name!r}, number {expected_index}. "
            "Change only stages after the position of the state"
        )


def _first_stages(tree: dict[str, Any], count: int) -> dict[str, Any]:
    """Return the description of the first stages, the last without its end."""
    plan = tree.get("plan")
    stages = plan.get("stages") if isinstance(plan, dict) else None
    if not isinstance(stages, list) or not all(
        isinstance(stage, dict) for stage in stages
    ):
        return tree
    first = [dict(stage) for stage in stages[:count]]
    for stage in first[-1:]:
        stage["end_step"] = None
    inputs = tree.get("inputs")
    shown = inputs[:count] if isinstance(inputs, list) else inputs
    return {**tree, "plan": {"stages": first}, "inputs": shown}


class _CarriedDatasets(Sequence[IndexedDataset[Any]]):
    """The dataset of each stage, continued after the stages before it.

    A part is a source with the nodes that order it (shuffle, limit, repeat). Parts are
    identified by their descriptions, below batches, mixes and maps. A dataset with the
    same description as its predecessor continues as a whole, so dividing a stage in two
    changes nothing.

    Planned items are counted up to the end of a stage only when a later stage is used.

    Args:
        datasets: The dataset of each stage.
        items: Items that each stage reads.
        change: Returns what is used of a number and a dataset.
    """

    def __init__(
        self,
        datasets: Sequence[IndexedDataset[Any]],
        items: Sequence[int],
        change: Callable[[int, Any], Any],
    ) -> None:
        self._datasets = datasets
        self._items = items
        self._change = change
        self._starts = [0]
        self._continued: list[IndexedDataset[Any]] = []
        # Items of each part in all stages, before the last new dataset, and in it.
        self._read: Counter[str] = Counter()
        self._earlier: Counter[str] = Counter()
        self._begun: Counter[str] = Counter()
        self._lock = RLock()

    def __len__(self) -> int:
        return len(self._datasets)

    def __getitem__(self, number: Any) -> Any:
        with self._lock:  # read and announced by several threads
            while len(self._continued) <= number < len(self):
                self._continue()
        return self._continued[number]

    def start_of(self, number: int) -> int:
        """Return the first item of a stage in its dataset."""
        with self._lock:
            while len(self._starts) <= number:
                last = len(self._starts) - 1
                end = self._starts[last] + self._items[last]
                self._starts.append(end if self._is_same(last, end) else 0)
        return self._starts[number]

    def _is_same(self, number: int, end: int) -> bool:
        """Return whether a dataset and the next one are equal up to an item."""
        pair = self._datasets[number : number + 2]
        if len(set(map(_identity, pair))) == 1:
            return True
        if len({_identity(_without_changes(dataset)) for dataset in pair}) > 1:
            return False
        used = self[number]
        return len({_identity(_without_changes(node, used, end)) for node in pair}) == 1

    def _continue(self) -> None:
        """Add the dataset of the next stage."""
        number = len(self._continued)
        start = self.start_of(number)
        anchored = None
        if number:
            previous = self._continued[-1]
            end = self.start_of(number - 1) + self._items[number - 1]
            ended = _positions(previous, end)
            self._read.subtract(self._begun)
            self._read.update(ended)
            self._begun = ended if start else Counter()
            anchored = tree.anchored_of(previous, start)
        if not start:
            self._earlier = Counter(self._read)
        continued = _continued(self._datasets[number], self._earlier)
        used = self._change(number, tree.anchored_at(continued, anchored))
        if anchored is not None:
            tree.learn_anchors(used, anchored)
        self._continued.append(used)


def _without_changes(dataset: Any, used: Any = None, n: int = 0) -> Any:
    """Return a dataset without the changes of weights after its first `n` items.

    Args:
        dataset: The dataset.
        used: The dataset that is read in its place; None for no items.
        n: Number of items.
    """
    read = dataset if used is None else used
    reached = read.reached(n) if dataset.inputs else None
    if reached is None:
        return dataset
    children = [None] * len(dataset.inputs) if used is None else used.children
    inputs = [
        _without_changes(child, *of_child)
        for child, *of_child in zip(dataset.inputs, children, reached, strict=True)
    ]
    changes = tuple(row for row in getattr(dataset, "changes", ()) if row[0] < n)
    other = {"changes": changes} if hasattr(dataset, "changes") else {}
    return dataset.replace(inputs=tuple(inputs), **other)


def _continued(
    dataset: IndexedDataset[Any], read: Mapping[str, int]
) -> IndexedDataset[Any]:
    """Return a dataset with parts that start after the items that were read."""
    if dataset.inputs and dataset.reached(0) is not None:
        return dataset.with_inputs(
            [_continued(child, read) for child in dataset.children]
        )
    offset = read.get(_identity(dataset), 0)
    return ContinuedDataset(dataset, 0, offset, afresh=True) if offset else dataset


def _positions(dataset: IndexedDataset[Any], n: int) -> Counter[str]:
    """Return how many items of each part the first `n` items take."""
    reached = dataset.reached(n) if dataset.inputs else None
    if reached is None:
        part = dataset.inputs[0] if type(dataset) is ContinuedDataset else dataset
        return Counter({_identity(part): n})
    total: Counter[str] = Counter()
    for child, count in zip(dataset.children, reached, strict=True):
        total.update(_positions(child, count))
    return total


def _identity(part: Any) -> str:
    return digest(part.describe())
