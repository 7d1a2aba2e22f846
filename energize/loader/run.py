"""A dataset as a run reads it: where it begins, what a state says, what became of it
since.
"""

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
from energize.core.reader import Made, flat, open_lane
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
from energize.loader.agreement import Agreement, alike
from energize.loader.epochs import global_items, plan_epoch
from energize.loader.position import LaneState, RunPosition, StreamPosition, items_of
from energize.loader.settings import LoaderSettings
from energize.loader.state import check_place

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_MOST = 8
"""Differences between ranks that are shown."""


class Copy(NamedTuple, Generic[T]):
    """An item that fills missing places, what it is made of, and where it is read."""

    item: T
    made: Made
    before: LaneState


class Run(Generic[T]):
    """The dataset that was `given`, what became of it since (`edits`), and what is the
    same for all loops until it is edited again.
    """

    def __init__(
        self,
        given: Dataset[T],
        settings: LoaderSettings,
        context: ReadContext,
        workers: int,
    ) -> None:
        self.given = given
        self.edits = NOT_EDITED
        self.dataset = given
        self.settings = settings
        self.context = context
        self.workers = workers
        self.loop = tree.steps_per_loop(given)
        self.endless = tree.never_ends(given)
        # Positions of an indexed dataset go on after an epoch. A stream is opened
        # without the cut.
        self.base: Any = given if given.indexed else without_loops(given)
        self.stream = self.base
        self._global_items = global_items(
            given,
            settings.delivery.global_batch_size,
            settings.delivery.micro_batch_size,
        )
        self.filled = (
            None if settings.delivery.global_batch_size is None else self._global_items
        )

    def edited(self, edits: Edits) -> Run[T]:
        """Return the same over a dataset that became another one; raise as
        `Edits.applied`.
        """
        if edits == self.edits:
            return self
        other = copy.copy(self)
        other.dataset = edits.applied(self.given, self.edits, self.dataset)
        other.edits = edits
        other.stream = (
            other.dataset if self.given.indexed else without_loops(other.dataset)
        )
        return other

    def resumed(self, cursor: State) -> tuple[Run[T], RunPosition]:
        """Return the same over the dataset as it was edited when a state was saved, and
        the place in it; raise `StateError` if this dataset cannot go on from it.
        """
        try:
            run = self.edited(Edits.loaded(cursor))
            check_place(run.dataset, cursor)
        except (ConfigError, WeightError) as reason:
            raise StateError(f"the saved state does not fit: {reason}") from reason
        return run, run.loaded_position(cursor)

    def loaded_position(self, state: State) -> RunPosition:
        """Return the position in a saved state, as this run continues it."""
        step = state.get("step", 0)
        step = (
            step if self.loop is None else step % self.loop
        )  # a loop may have had another length
        if not self.dataset.indexed:
            place = StreamPosition.loaded(state)
            asked = self.settings.delivery.lanes
            if asked not in (None, place.lanes):
                raise StateError(
                    f"the saved state is of a run of {place.lanes} lanes, and "
                    f"lanes={asked} is given; their number is fixed when a run starts. "
                    "Leave lanes out"
                )
            for lane, cursor in place.cursors.items():
                self.open_lane(
                    lane, place.lanes, cursor, SILENT
                ).close()  # what is wrong shows here
            return replace(place, step=step)
        dataset = cast("IndexedDataset[T]", self.dataset)
        position = counter_field(state, "position")
        tree.check_state(dataset, state)
        kept = tree.state_at(dataset, position)
        offset = state.get("offset", 0)
        if self.loop is not None:
            return kept | {"step": step}
        kept |= {"begun": state["begun"]} if state.get("begun") else {}
        return kept | {"offset": offset % dataset.size} if offset else kept

    def items_at(self, place: RunPosition) -> int:
        """Return how many items of all ranks come before a place; of a stream whose
        length only reading tells, those of the epoch.
        """
        items = items_of(self.dataset, place)
        return cast("StreamPosition", place).position if items is None else items

    def start(self) -> RunPosition:
        """Return the place before the first item."""
        if self.dataset.indexed:
            state = tree.state_at(self.dataset, 0)
            return state if self.loop is None else state | {"step": 0}
        return StreamPosition(self.settings.delivery.lanes or lanes_of(self.given))

    def saved(self, place: RunPosition, agreement: Agreement | None) -> State:
        """Return a place as plain data, gathered from all ranks if each knows some
        lanes only.
        """
        lanes = place if isinstance(place, StreamPosition) else None
        items = self.items_at(place)
        state = place
        if lanes is not None:
            if (
                agreement is not None
                and lanes.cursors
                and len(lanes.cursors) < lanes.lanes
            ):
                lanes = lanes.gathered(agreement)
            state = lanes.saved()
        kept = saved_part_positions(self.dataset, items, lanes)
        return cast("State", state) | self.edits.saved() | kept

    def check_alike(
        self, place: RunPosition, ranks: Ranks, agreement: Agreement, *, loaded: bool
    ) -> None:
        """Raise on all ranks when they do not begin the same loop of the same run:
        `ConfigError` naming ranks and arguments, `StateError` if they have loaded
        different states.
        """
        config = self.dataset.order_config
        at = place
        if isinstance(place, StreamPosition):
            at = place.saved() if loaded else place.place
        said = {
            "lanes": place.lanes if isinstance(place, StreamPosition) else None,
            "uneven": self.settings.delivery.uneven,
            "global_batch_size, in micro batches": self.filled,
            "steps of a loop": self.loop,
            "the place": at,
        }
        who = "the beginning of a loop"
        number = int(digest([config.fingerprint, said])[:12], 16)
        rows = agreement.numbers([ranks.rank, ranks.world_size, number], who)
        if [row[:2] for row in rows] != [
            [rank, len(rows)] for rank in range(len(rows))
        ]:
            shown = ", ".join(f"{rank} of {size}" for rank, size, _ in rows)
            raise ConfigError(
                f"the {len(rows)} processes of the group call themselves rank {shown}, "
                "so parts would be read twice or never. Leave out rank and world_size "
                "of the WorkerConfig, or give data_parallel_group, the group of the "
                "ranks that read different data"
            )
        if len({number for *_, number in rows}) > 1:
            told = agreement.trees([config.fingerprint, config.text, said], who)
            raise _apart(told, loaded=loaded)

    def plan(
        self, ranks: Ranks, position: int, size: int, offset: int = 0, begun: int = 0
    ) -> EpochPlan:
        """Return what is delivered of an epoch; see `plan_epoch`."""
        return plan_epoch(
            ranks,
            position,
            size,
            uneven=self.settings.delivery.uneven,
            global_items=self.filled,
            offset=offset,
            begun=begun,
        )

    def beginning_loop(self, place: RunPosition) -> RunPosition:
        """Return a place as one where a loop begins: of full length, wherever the one
        before was left.
        """
        if isinstance(place, StreamPosition):
            return replace(place, step=0, offset=0 if self.endless else place.position)
        if self.endless:
            return place if self.loop is None else place | {"step": 0}
        position = counter_field(place, "position")
        offset = position % self.dataset.size if position else 0
        return place | {"offset": offset, "begun": 0}

    def within_loop(self, place: RunPosition) -> bool:
        """Return whether a loop that began at the first item is on its way at a
        place.
        """
        if isinstance(place, StreamPosition):
            return bool(place.position if self.loop is None else place.step)
        if self.loop is not None:
            return bool(place["step"])
        return bool(place.get("begun") or place["position"] % self.dataset.size)

    def steps(self, ranks: Ranks) -> int:
        """Return the steps of a whole loop on this rank, or of one pass if that never
        ends.
        """
        if self.loop is not None:
            return self.loop
        if not self.dataset.sized or self.dataset.size == INFINITE:
            return -(-tree.pass_length(self.dataset) // ranks.world_size)
        return self.plan(ranks, 0, self.dataset.size).steps

    def accumulation_steps(self, ranks: Ranks) -> int:
        """Return the steps that make one global batch."""
        if self._global_items is None:
            return 1
        items = self._global_items
        steps, rest = divmod(items, ranks.world_size)
        if rest:
            fitting = ", ".join(
                str(size) for size in range(1, items + 1) if items % size == 0
            )
            raise ConfigError(
                f"a global batch of {items} micro batches cannot be shared out evenly "
                f"to {ranks.world_size} ranks; world sizes that can have it: "
                f"{fitting}. Change global_batch_size or the batch size"
            )
        return steps

    def first_item(self, lane: int, lanes: int) -> Copy[T]:
        """Return the first item of a lane in the run, or of the next lane that has one;
        raise `EmptyDatasetError` if none has.
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
            f"{label_of(self.dataset)} gave no item in the first epoch that could fill "
            "a step where this rank has none. Use fewer ranks, or uneven='drop' or "
            "'allow'"
        )

    def first_unread_slot(self, place: Any, found: NamedBlend) -> int:
        """Return the first slot of a blend that no lane known here needed for what it
        delivered.

        So the slot depends on what was delivered alone, whatever has been opened or
        read ahead. The innermost dataset on the way to the blend that finds its items
        by reading takes one position of its input in every round of as many positions
        as there are lanes; the slot is the first one of a round that no lane has begun.
        """
        nodes: list[Any] = [self.dataset]
        for number in found.way:
            nodes.append(nodes[-1].inputs[number])
        finders = [
            depth for depth, node in enumerate(nodes[:-1]) if node.reached(0) is None
        ]
        depth = finders[-1] + 1
        above = found.way[:depth]
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
                marked_run.open_lane(lane, place.lanes, state, reading)
            ) as cursor:
                position: int | None = cursor.stream.first_unread(iter(branches))
            return position

        for lane, state in (place.cursors or {0: None}).items():
            position = read_in_window(partial(first_unread, lane, state))
            if position is None:
                raise ConfigError(
                    f"the weights of {found.label} cannot change in this run: which of "
                    "its slots come next is not known below "
                    f"{type(nodes[depth - 1]).__name__}, which is a stream and has no "
                    "`taken`. Give it one (see IndexedDataset.taken)"
                )
            reached = max(reached, position)
        return cast("int", slot_after(nodes[depth], found.way[depth:], reached))

    def open_lane(
        self, lane: int, lanes: int, state: State | None, reading: ReadContext
    ) -> Any:
        """Open a reader of one of `lanes` lanes of the stream, in a state."""
        return open_lane(
            self.stream, Lane(lane, lanes), state, reading, endless=self.endless
        )


class _Marked(PassingDataset[T_co]):
    """A dataset whose stream answers `LaneStream.first_unread`."""

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


def check_goes_on(dataset: Any, found: NamedBlend) -> None:
    """Raise `ConfigError` for a blend that ends, or whose first slots come again."""
    if not getattr(found.blend, "_endless", True):
        raise ConfigError(
            f"{found.label} ends (by stop={found.blend.stop!r} or max_epochs), and "
            "where its epochs end goes by its weights: they can change only in one "
            "that never ends. Use stop='restart' without max_epochs, and cut loops "
            "with virtual_epoch_length"
        )
    for number in found.way:
        if isinstance(dataset, LimitDataset) or (
            dataset.indexed and dataset.reached(0) is None
        ):
            raise ConfigError(
                f"the weights of {found.label} cannot change in this run: epochs above "
                "it read its first slots again (LimitDataset, RepeatDataset, "
                "ConcatDataset), so none is the next one; blend what is limited, "
                "repeated or concatenated instead"
            )
        dataset = dataset.inputs[number]


def check_same_change(agreement: Agreement, step: int, said: str) -> None:
    """Raise `LoaderError` on all ranks unless all say the same of weights at the same
    step.
    """
    told = agreement.trees(
        [f"{said[:400]}, before step {step}", digest(said)], "set_weights"
    )
    groups = alike([tuple(each) for each in told])
    if len(groups) > 1:
        shown = "\n".join(f"  ranks {who}: {each}" for (each, _), who in groups.items())
        raise LoaderError(
            "set_weights: all ranks call it after the same number of steps and say "
            f"the same; nothing was changed. They said\n{shown}"
        )


def _differing_values(
    names: Iterable[str], of_ranks: Sequence[dict[str, Any]]
) -> list[str]:
    """Return the values that differ between ranks, a line for each name."""
    lines = []
    for name in names:
        groups = alike([json.dumps(values[name]) for values in of_ranks])
        if len(groups) > 1:
            texts = [f"{value[:80]} on ranks {who}" for value, who in groups.items()]
            lines.append(f"{name}: {'; '.join(texts)}")
    return lines


def _apart(told: Sequence[Any], *, loaded: bool) -> EnergizeError:
    """Return the error of ranks that do not begin the same loop, by what each of them
    said.
    """
    (mark, text, first) = told[0]
    lines = _differing_values(first, [values for *_, values in told])
    other = next((rank for rank, each in enumerate(told) if each[0] != mark), None)
    if other is not None:
        was = unpacked(text, "config")
        now = unpacked(told[other][1], "config")
        found = islice(dict.fromkeys(differences(was, now)), _MOST)
        lines += [
            f"the mix of rank 0 (was) and of rank {other} (is): {line}"
            for line in found
        ]
    shown = "\n  ".join(lines)
    if loaded and len(lines) == 1 and shown.startswith("the place"):
        return StateError(
            f"the ranks have loaded different states. Load one on all ranks:\n  {shown}"
        )
    return ConfigError(
        "the ranks do not read the same run. Give all of them the same dataset, state "
        f"and arguments:\n  {shown}"
    )
