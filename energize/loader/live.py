"""Other weights while a run goes on: from which step, agreed on by all ranks, kept in the state.

A change is a slot of a blend and weights. One of a step to come waits for it, as changes before it
may lead that step to another slot; below what finds its items by reading, nothing else tells.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, TypeVar, cast

from energize.core.arrays import Int64Array
from energize.core.blends import (
    Change,
    Edits,
    FoundBlend,
    chosen_blend,
    numbers_by_name,
    replaced,
    slot_after,
    ungrouped,
)
from energize.core.checks import whole_number
from energize.core.dataset import Dataset, PassingDataset
from energize.core.description import digest
from energize.core.lanes import Lane
from energize.core.restoring import without_loops
from energize.core.stream import MOST_COUNTED, Opening, State, Stream
from energize.datasets.order import LimitDataset
from energize.errors import ConfigError, EmptyDatasetError, LoaderError
from energize.loader.agreement import alike
from energize.loader.run import SILENT, Place, Run

if TYPE_CHECKING:
    from energize.loader.loader import Loader

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_log = logging.getLogger("energize")


def set_weights(
    loader: Loader[Any], weights: Mapping[str, float], at_step: int | None, blend: str | None
) -> None:
    """Change the weights of a blend, see `Loader.set_weights`."""
    ranks, place = loader._ranks_now(), loader._next_place()
    now = step_of(loader, place)
    _check_alike(loader, now, weights, at_step, blend)
    numbers = numbers_by_name(weights)
    found = chosen_blend(loader._run.dataset, numbers, blend)
    _check_goes_on(loader._run.dataset, found)
    step = now if at_step is None else whole_number(at_step, 0)
    if step is None:
        raise ConfigError(f"at_step is a whole number, 0 or more, or None; got {at_step!r}")
    if step < now:
        raise ConfigError(
            f"step {step} has been delivered: {now} steps have been made, so a change can act "
            f"from step {now} on, which is the next one (at_step=None)"
        )
    _settle(loader)
    items = loader._run.items_at(place) + (step - now) * ranks.world_size
    if step == now:
        _change(loader, Change(found.name, items, tuple(numbers.items())), loader._run.edits)
        return
    change = Change(found.name, items, tuple(numbers.items()), waits=True)
    found.blend.with_weights_from(MOST_COUNTED, ungrouped(found.blend, numbers, 0))  # may it be so?
    loader._edit(loader._run.edits.with_change(change))
    _tell(loader, found, numbers, step, slot_after(loader._run.dataset, found.way, items))


def before_step(loader: Loader[Any]) -> None:
    """Do what is due before the next step."""
    if loader._watched is not None:
        loader._watched.look(loader)
    _settle(loader)


def _settle(loader: Loader[Any]) -> None:
    """Have each change act whose step has come."""
    for change in loader._run.edits.waiting:
        if change.at <= loader._run.items_at(loader._next_place()):
            _change(loader, change, loader._run.edits.without(change))


def step_of(loader: Loader[Any], place: Place) -> int:
    """Return the number of the step after a place."""
    return -(-loader._run.items_at(place) // loader._ranks_now().world_size)


def _change(loader: Loader[Any], change: Change, edits: Edits) -> None:
    """Have a blend change where an item of the run leads it, by what `edits` are to be kept, and
    say so. Where only reading tells, at the first slot that no lane of any rank has come to.
    """
    place, run = loader._next_place(), loader._run.edited(edits)
    found = chosen_blend(run.dataset, change.by_name, change.blend)
    slot = slot_after(run.dataset, found.way, change.at)
    if slot is None:
        slot = _first_unread_slot(run, place, found)
        if (agreement := loader._agreement()) is not None:
            slot = max(n for (n,) in agreement.numbers([slot], "a change of weights"))
    asked = ungrouped(found.blend, change.by_name, slot)
    loader._edit(edits.with_change(Change(found.name, slot, tuple(asked.items()))))
    _tell(loader, found, asked, step_of(loader, place), slot)


def _check_goes_on(dataset: Any, found: FoundBlend) -> None:
    """Raise `ConfigError` for a blend that ends, or whose first slots come again."""
    if not getattr(found.blend, "_endless", True):
        raise ConfigError(
            f"{found.label} ends (stop={found.blend.stop!r}, or max_epochs), and where its "
            "epochs end goes by its weights: they can change only in one that never ends. Use "
            "stop='restart', and cut epochs with EpochizeDataset or virtual_epoch_length"
        )
    for number in found.way:
        if isinstance(dataset, LimitDataset) or (dataset.indexed and dataset._reached(0) is None):
            raise ConfigError(
                f"the weights of {found.label} cannot change in this run: epochs above it read its "
                "first slots again (LimitDataset, RepeatDataset, ConcatDataset), so none is the "
                "next one; blend what is limited, repeated or concatenated instead"
            )
        dataset = dataset.inputs[number]


def _check_alike(loader: Loader[Any], step: int, *said: Any) -> None:
    """Raise `LoaderError` on all ranks unless all say the same at the same step."""
    agreement = loader._agreement()
    if agreement is None:
        return
    weights, at_step, blend = (str(each)[:200] for each in said)
    text = f"{weights}, at_step={at_step}, blend={blend}, before step {step}"
    told = agreement.trees([text, digest(repr(said))], "set_weights")
    groups = alike([tuple(each) for each in told])
    if len(groups) > 1:
        shown = "\n".join(f"  ranks {who}: {each}" for (each, _), who in groups.items())
        raise LoaderError(
            f"set_weights: all ranks call it after the same number of steps and say the same; "
            f"nothing was changed. They said\n{shown}"
        )


def _tell(
    loader: Loader[Any], found: FoundBlend, asked: Mapping[str, float], step: int, slot: int | None
) -> None:
    if loader._ranks_now().rank or not _log.isEnabledFor(logging.INFO):
        return
    total, shares = sum(asked.values()), found.blend.by_name(found.blend.shares(slot or 0))
    was = {name: f"{share:.4g} -> " for name, share in shares.items()}
    told = ", ".join(f"{name} {was.get(name, '')}{w / total:.4g}" for name, w in asked.items())
    where = "the slot is found then" if slot is None else f"slot {slot} of {found.label}"
    text = "the weights of %s change from step %d on (%s): shares %s; weights %s"
    _log.info(text, found.label, step, where, told, json.dumps(dict(asked)))


def _first_unread_slot(run: Run[Any], lanes: Any, found: FoundBlend) -> int:
    """Return the first slot of a blend that none of the lanes known here has come to.

    Each lane is opened where it stands and reads one item more, so it reads again whatever of a
    round it had read, and perhaps a little more. So no slot that was read lies after it. It is the
    first of a round of as many as there are lanes, of the largest indexed dataset around the blend,
    which is what lanes read, or of the blend.
    """
    node, above = run.dataset, 0
    while not node.indexed and above < len(found.way):
        node, above = node.inputs[found.way[above]], above + 1
    probe: _Probed[Any] = _Probed(node)
    stream = without_loops(replaced(run.dataset, found.way[:above], probe))
    for lane, state in lanes.cursors.items():
        if state is None:
            continue
        reading = run.decisions.reading(SILENT.report)
        cursor = stream._open_lane(Lane(lane, lanes.lanes), state, reading, endless=run.endless)
        with closing(cursor), suppress(StopIteration, EmptyDatasetError):
            next(cursor)
    read = -(-probe.read[0] // lanes.lanes) * lanes.lanes
    return cast("int", slot_after(node, found.way[above:], read))


class _Probed(PassingDataset[T_co]):
    """A dataset that notes, as its only number, up to which position it was `read`."""

    read: list[int]

    def __init__(self, dataset: Dataset[T_co]) -> None:
        self._freeze(inputs=[dataset], read=[0])

    @property
    def _divisible(self) -> bool:
        return self.inputs[0]._divisible

    def _addressed(self, opening: Opening) -> Stream[T_co]:
        return _ProbedStream(self.inputs[0]._addressed(opening), self.read)


class _ProbedStream(Stream[T]):
    def __init__(self, stream: Stream[T], read: list[int]) -> None:
        self._input, self._read = stream, read

    def at(self, position: int, attempt: int = 0) -> T:
        self._read[0] = max(self._read[0], position + 1)  # also where nothing comes
        item: T = self._input.at(position, attempt)
        self.origin = self._input.origin
        return item

    def ahead(self, positions: Int64Array) -> None:
        self._input.ahead(positions)

    def state(self) -> State:
        return cast("State", self._input.state())
