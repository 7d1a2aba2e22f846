"""Runs: a dataset with its settings and the edits made since it began."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, Generic, NamedTuple, TypeVar, cast

from energize.core import tree
from energize.core.arrays import Int64Array
from energize.core.blends import (
    NOT_EDITED,
    Edits,
    NamedBlend,
    replaced,
    saved_part_positions,
    slot_after,
)
from energize.core.config import (
    differences,
    unpacked,
)
from energize.core.dataset import Dataset, IndexedDataset, PassingDataset
from energize.core.description import digest, label_of
from energize.core.lanes import Lane, Ranks
from energize.core.node import INFINITE
from energize.core.randomness import read_in_window
from energize.core.reader import ItemOrigin, flat, open_lane
from energize.core.restoring import without_loops
from energize.core.stores import activate
from energize.core.stream import (
    EpochPlan,
    LaneStream,
    Opening,
    State,
    counter_field,
    lanes_of,
    open_stream,
)
from energize.core.trace import SILENT, ReadContext
from energize.datasets.order import LimitDataset
from energize.errors import (
    ConfigError,
    EmptyDatasetError,
    EnergizeError,
    LoaderError,
    StateError,
    WeightError,
)
from energize.loader.agreement import Agreement, ranks_by_value
from energize.loader.epochs import global_items, plan_epoch
from energize.loader.position import LaneState, RunPosition, StreamPosition, items_of
from energize.loader.settings import LoaderSettings
from energize.loader.state import check_place

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_MOST = 8
"""Maximum number of differences between ranks that are shown."""


class Copy(NamedTuple, Generic[T]):
    """An item that fills missing positions.

    Attributes:
        item: The item.
        origin: Its origin.
        before: The state of its lane before it.
    """

    item: T
    origin: ItemOrigin
    before: LaneState


class Run(Generic[T]):
    """A dataset as a run reads it.

    Args:
        original: The dataset that the run began with.
        settings: The settings of the loader.
        context: How samples are read.
        workers: Number of workers.

    Attributes:
        edits: The edits since the run began.
        dataset: The dataset with the edits.
        loop: Number of steps in a loop; None if loops are epochs.
        endless: Whether the epoch never ends.
    """

    def __init__(
        self,
        original: Dataset[T],
        settings: LoaderSettings,
        context: ReadContext,
        workers: int,
    ) -> None:
        self.original = original
        self.edits = NOT_EDITED
        self.dataset = original
        self.settings = settings
        self.context = context
        self.workers = workers
        self.loop = tree.steps_per_loop(original)
        self.endless = tree.never_ends(original)
        # Positions of an indexed dataset go on after an epoch. A stream is opened
        # without the cut.
        self.base: Any = original if original.indexed else without_loops(original)
        self.stream = self.base
        self._global_items = global_items(
            original,
            settings.delivery.global_batch_size,
            settings.delivery.micro_batch_size,
        )
        self.filled = (
            None if settings.delivery.global_batch_size is None else self._global_items
        )

    def edited(self, edits: Edits, items: int) -> Run[T]:
        """Return the run with other edits; raise as `Edits.applied`.

        Args:
            edits: The edits.
            items: Number of items that are delivered, and do not change.
        """
        if edits == self.edits:
            return self
        return self.with_edits(edits, tree.anchored_of(self.dataset, items))

    def _unanchored(self) -> Run[T]:
        """Return the run without edits if its dataset has anchors, else the run."""
        if not (self.original.indexed and self.original.anchored):
            return self
        other = copy.copy(self)
        other.dataset = other.stream = self.original
        other.edits = NOT_EDITED
        return other

    def with_edits(self, edits: Edits, anchored: tree.Anchored | None) -> Run[T]:
        """Return the run with other edits, and the anchors of its position."""
        other = copy.copy(self)
        other.dataset = edits.applied(self.original, self.edits, self.dataset, anchored)
        other.edits = edits
        other.stream = (
            other.dataset if self.original.indexed else without_loops(other.dataset)
        )
        return other

    def resumed(self, cursor: State) -> tuple[Run[T], RunPosition]:
        """Return the run with the edits of a saved state, and the saved position.

        Raises:
            StateError: If this dataset cannot resume from the state.
        """
        try:
            anchored = tree.anchors_in(self.original, cursor)
            edits = Edits.loaded(cursor)
            run = self._unanchored()
            if edits != run.edits or anchored is not None:
                run = run.with_edits(edits, anchored)
            check_place(run.dataset, cursor)
        except (ConfigError, WeightError) as reason:
            raise StateError(f"the saved state does not fit: {reason}") from reason
        return run, run.loaded_position(cursor)

    def loaded_position(self, state: State) -> RunPosition:
        """Return the position in a saved state."""
        step = state.get("step", 0)
        step = (
            step if self.loop is None else step % self.loop
        )  # a loop may have had another length
        if not self.dataset.indexed:
            stream_position = StreamPosition.loaded(state)
            requested = self.settings.delivery.lanes
            if requested not in (None, stream_position.lanes):
                raise StateError(
                    f"the saved run has {stream_position.lanes} lanes, got "
                    f"lanes={requested}. The number is fixed when a run starts: leave "
                    "lanes out"
                )
            for lane, cursor in stream_position.cursors.items():
                self.open_lane(
                    lane, stream_position.lanes, cursor, SILENT
                ).close()  # what is wrong shows here
            return replace(stream_position, step=step)
        dataset = cast("IndexedDataset[T]", self.dataset)
        position = counter_field(state, "position")
        tree.check_state(dataset, state)
        position_state = tree.state_at(dataset, position)
        offset = state.get("offset", 0)
        if self.loop is not None:
            return position_state | {"step": step}
        position_state |= {"begun": state["begun"]} if state.get("begun") else {}
        return (
            position_state | {"offset": offset % dataset.size}
            if offset
            else position_state
        )

    def items_at(self, position: RunPosition) -> int:
        """Return the number of items before a position; of the epoch, if unknown."""
        items = items_of(self.dataset, position)
        return cast("StreamPosition", position).position if items is None else items

    def start(self) -> RunPosition:
        """Return the position before the first item."""
        if self.dataset.indexed:
            state = tree.state_at(self.dataset, 0)
            return state if self.loop is None else state | {"step": 0}
        return StreamPosition(self.settings.delivery.lanes or lanes_of(self.original))

    def saved(self, position: RunPosition, agreement: Agreement | None) -> State:
        """Return a position as plain data, with the lanes of all ranks."""
        lanes = position if isinstance(position, StreamPosition) else None
        items = self.items_at(position)
        state = position
        if lanes is not None:
            if (
                agreement is not None
                and lanes.cursors
                and len(lanes.cursors) < lanes.lanes
            ):
                lanes = lanes.gathered(agreement)
            state = lanes.saved()
        part_counts = saved_part_positions(self.dataset, items, lanes)
        return cast("State", state) | self.edits.saved() | part_counts

    def check_same_loop(
        self, position: RunPosition, ranks: Ranks, agreement: Agreement, *, loaded: bool
    ) -> None:
        """Check that all ranks begin the same loop of the same run.

        Raises:
            ConfigError: Naming ranks and arguments that differ.
            StateError: If the ranks have loaded different states.
        """
        config = self.dataset.order_config
        at = position
        if isinstance(position, StreamPosition):
            at = position.saved() if loaded else position.place
        values = {
            "lanes": position.lanes if isinstance(position, StreamPosition) else None,
            "uneven": self.settings.delivery.uneven,
            "global_batch_size, in micro batches": self.filled,
            "steps of a loop": self.loop,
            "the place": at,
        }
        purpose = "the beginning of a loop"
        number = int(digest([config.fingerprint, values])[:12], 16)
        rows = agreement.numbers([ranks.rank, ranks.world_size, number], purpose)
        if [row[:2] for row in rows] != [
            [rank, len(rows)] for rank in range(len(rows))
        ]:
            shown = ", ".join(f"{rank} of {size}" for rank, size, _ in rows)
            raise ConfigError(
                f"the {len(rows)} processes of the group have rank {shown}, so parts "
                "would be read twice or never. Leave out rank and world_size of the "
                "WorkerConfig, or pass data_parallel_group, the group of the ranks "
                "that read different data"
            )
        if len({number for *_, number in rows}) > 1:
            statements = agreement.trees(
                [config.fingerprint, config.text, values], purpose
            )
            raise _different_runs(statements, loaded=loaded)

    def plan(
        self, ranks: Ranks, position: int, size: int, offset: int = 0, begun: int = 0
    ) -> EpochPlan:
        """Return the plan of an epoch; see `plan_epoch`."""
        return plan_epoch(
            ranks,
            position,
            size,
            uneven=self.settings.delivery.uneven,
            global_items=self.filled,
            offset=offset,
            begun=begun,
        )

    def beginning_loop(self, cursor: RunPosition) -> RunPosition:
        """Return a position where a loop of full length begins."""
        if isinstance(cursor, StreamPosition):
            return replace(
                cursor, step=0, offset=0 if self.endless else cursor.position
            )
        if self.endless:
            return cursor if self.loop is None else cursor | {"step": 0}
        position = counter_field(cursor, "position")
        offset = position % self.dataset.size if position else 0
        return cursor | {"offset": offset, "begun": 0}

    def within_loop(self, position: RunPosition) -> bool:
        """Return whether a position is inside a loop from the first item."""
        if isinstance(position, StreamPosition):
            return bool(position.position if self.loop is None else position.step)
        if self.loop is not None:
            return bool(position["step"])
        return bool(position.get("begun") or position["position"] % self.dataset.size)

    def steps(self, ranks: Ranks) -> int:
        """Return the steps of a loop on this rank; of one pass if it is endless."""
        if self.loop is not None:
            return self.loop
        if not self.dataset.sized or self.dataset.size == INFINITE:
            return -(-tree.pass_length(self.dataset) // ranks.world_size)
        return self.plan(ranks, 0, self.dataset.size).steps

    def accumulation_steps(self, ranks: Ranks) -> int:
        """Return the number of steps in a global batch."""
        if self._global_items is None:
            return 1
        items = self._global_items
        steps, rest = divmod(items, ranks.world_size)
        if rest:
            fitting = ", ".join(
                str(size) for size in range(1, items + 1) if items % size == 0
            )
            raise ConfigError(
                f"a global batch of {items} micro batches cannot be divided evenly "
                f"among {ranks.world_size} ranks. Possible world sizes: {fitting}. "
                "Change global_batch_size or the batch size"
            )
        return steps

    def first_item(self, lane: int, lanes: int) -> Copy[T]:
        """Read the first item of a lane, or of the next lane that has one.

        Raises:
            EmptyDatasetError: If no lane has an item.
        """
        reading = self.context.counted_by(SILENT.sink.report)
        with activate(self.settings.cache_pool):
            for number in (*range(lane, lanes), *range(lane)):
                cursor = self.open_lane(number, lanes, None, reading)
                with closing(cursor), suppress(EmptyDatasetError, StopIteration):
                    return Copy(
                        next(cursor), flat(cursor.origin), LaneState(number, None)
                    )
        raise EmptyDatasetError(
            f"{label_of(self.dataset)} gave no item in the first epoch to pad this "
            "rank with. Use fewer ranks, or uneven='drop' or 'allow'"
        )

    def first_unread_slot(self, run_position: Any, named: NamedBlend) -> int:
        """Return the first slot of a blend that no local lane has needed.

        The slot depends on delivered items only, whatever was opened or read ahead. The
        innermost node above the blend that finds items by reading takes one position
        for each lane in every round; the slot is the first one of a round that no lane
        has begun.
        """
        nodes: list[Any] = [self.dataset]
        for number in named.way:
            nodes.append(nodes[-1].inputs[number])
        finders = [
            depth for depth, node in enumerate(nodes[:-1]) if node.reached(0) is None
        ]
        depth = finders[-1] + 1
        above = named.way[:depth]
        branches = [
            n for n, node in zip(above, nodes, strict=False) if len(node.inputs) > 1
        ]
        marked_run = copy.copy(self)
        marked_run.stream = without_loops(
            replaced(self.dataset, above, _Marked(nodes[depth]))
        )
        reading = self.context.counted_by(SILENT.sink.report)
        reached = 0

        def first_unread(lane: int, state: State | None) -> int | None:
            with closing(
                marked_run.open_lane(lane, run_position.lanes, state, reading)
            ) as cursor:
                position: int | None = cursor.stream.first_unread(iter(branches))
            return position

        for lane, state in (run_position.cursors or {0: None}).items():
            position = read_in_window(partial(first_unread, lane, state))
            if position is None:
                raise ConfigError(
                    f"the weights of {named.label} cannot change in this run: its next "
                    f"slots are unknown below {type(nodes[depth - 1]).__name__}, a "
                    "stream without `taken`. Define it (see IndexedDataset.taken)"
                )
            reached = max(reached, position)
        return cast("int", slot_after(nodes[depth], named.way[depth:], reached))

    def open_lane(
        self, lane: int, lanes: int, state: State | None, reading: ReadContext
    ) -> Any:
        """Open a reader of one of `lanes` lanes of the stream, in a state."""
        return open_lane(
            self.stream, Lane(lane, lanes), state, reading, endless=self.endless
        )


class _Marked(PassingDataset[T_co]):
    """A dataset that marks the end of `LaneStream.first_unread`."""

    order_name = "_Marked"

    def __init__(self, dataset: Dataset[T_co]) -> None:
        self.freeze(inputs=[dataset])

    indexed = False

    def open_pass(self, opening: Opening) -> LaneStream[T_co]:
        return _MarkedStream(open_stream(self.inputs[0], opening))


class _MarkedStream(LaneStream[T]):
    def __init__(self, stream: LaneStream[T]) -> None:
        self._input = stream

    def at(self, position: int, attempt: int = 0) -> T:
        item: T = self._input.at(position, attempt)
        self.origin = self._input.origin
        return item

    def ahead(self, positions: Int64Array) -> None:
        self._input.ahead(positions)

    def first_unread(
        self, branches: Iterator[int], reached: int | None = None
    ) -> int | None:
        return reached

    def state(self) -> State:
        return cast("State", self._input.state())


def check_goes_on(dataset: Any, named: NamedBlend) -> None:
    """Raise `ConfigError` for a blend that ends or repeats its first slots."""
    if named.blend.traits.mix.ends_by_weights:
        raise ConfigError(
            f"{named.label} ends (by stop={named.blend.stop!r} or max_epochs), and the "
            "end of its epochs depends on its weights, so they cannot change. Use "
            "stop='restart' without max_epochs, and cut loops with "
            "virtual_epoch_length"
        )
    for number in named.way:
        if isinstance(dataset, LimitDataset) or (
            dataset.indexed and dataset.reached(0) is None
        ):
            raise ConfigError(
                f"the weights of {named.label} cannot change in this run: epochs above "
                "it (LimitDataset, RepeatDataset, ConcatDataset) read its first slots "
                "again, so its next slot is undefined. Blend limited, repeated or "
                "concatenated datasets instead"
            )
        dataset = dataset.inputs[number]


def check_same_change(agreement: Agreement, step: int, request: str) -> None:
    """Raise `LoaderError` on all ranks unless they request the same weights."""
    requests = agreement.trees(
        [f"{request[:400]}, before step {step}", digest(request)], "set_weights"
    )
    groups = ranks_by_value([tuple(text) for text in requests])
    if len(groups) > 1:
        shown = "\n".join(
            f"  ranks {ranks}: {text}" for (text, _), ranks in groups.items()
        )
        raise LoaderError(
            "set_weights: the calls of the ranks differ, nothing was changed. Call it "
            "on all ranks after the same number of steps with the same arguments. The "
            f"calls are\n{shown}"
        )


def _differing_values(
    names: Iterable[str], of_ranks: Sequence[dict[str, Any]]
) -> list[str]:
    """Return a line for each value that differs between ranks."""
    lines = []
    for name in names:
        groups = ranks_by_value([json.dumps(values[name]) for values in of_ranks])
        if len(groups) > 1:
            texts = [
                f"{value[:80]} on ranks {ranks}" for value, ranks in groups.items()
            ]
            lines.append(f"{name}: {'; '.join(texts)}")
    return lines


def _different_runs(statements: Sequence[Any], *, loaded: bool) -> EnergizeError:
    """Return the error for ranks that do not begin the same loop."""
    (mark, text, first) = statements[0]
    lines = _differing_values(first, [values for *_, values in statements])
    other = next(
        (rank for rank, statement in enumerate(statements) if statement[0] != mark),
        None,
    )
    if other is not None:
        config = unpacked(text, "config")
        other_config = unpacked(statements[other][1], "config")
        lines_of_mix = islice(dict.fromkeys(differences(config, other_config)), _MOST)
        lines += [
            f"the mix of rank 0 (was) and of rank {other} (is): {line}"
            for line in lines_of_mix
        ]
    shown = "\n  ".join(lines)
    if loaded and len(lines) == 1 and shown.startswith("the place"):
        return StateError(
            f"the ranks have loaded different states. Load one on all ranks:\n  {shown}"
        )
    return ConfigError(
        "the ranks do not read the same run. Pass the same dataset, state and "
        f"arguments on all ranks:\n  {shown}"
    )
