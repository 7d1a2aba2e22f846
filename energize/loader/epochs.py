"""How many steps a rank makes in an epoch, and which item comes in each."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np

from energize.core.arrays import BoolArray, Int64Array
from energize.core.lanes import Lane, Ranks
from energize.core.stream import INFINITE, epoch_end
from energize.errors import ConfigError, EmptyDatasetError, StateError, nearest

UNEVEN = ("pad", "drop", "repeat", "allow")

_log = logging.getLogger("energize")


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """What a rank delivers from item `start` of an epoch of the items `first` to before `end`.

    In step s it delivers item start + rank + s * world_size. `steps` is `INFINITE` in an epoch
    without end. A position from `end` on is missing: a copy takes its place.
    """

    ranks: Ranks
    start: int
    first: int
    end: int
    steps: int

    @property
    def lane(self) -> Lane:
        """The part of the steps' items that this rank delivers."""
        return Lane(self.ranks.rank, self.ranks.world_size)

    def positions(self, first_step: int, count: int) -> tuple[Int64Array, BoolArray]:
        """For some steps the position of the item that is read, and whether it is a copy.

        The item missing at position p of an epoch of n is a copy of item p mod n.
        """
        stop = min(first_step + count, self.steps)
        steps = np.arange(first_step, max(stop, first_step), dtype=np.int64)
        at = self.start + self.ranks.rank + steps * self.ranks.world_size
        missing = at >= self.end
        if missing.any():
            at = np.where(missing, self.first + (at - self.first) % (self.end - self.first), at)
        return at, missing

    def position_after(self, steps: int) -> int:
        """Where all ranks stand after so many steps: the position that a state keeps."""
        if steps >= self.steps:
            return self.end
        return min(self.start + steps * self.ranks.world_size, self.end)


def plan_epoch(
    ranks: Ranks, position: int, size: int, *, uneven: str, global_items: int | None
) -> EpochPlan:
    """The plan from `position` to the end of its epoch, of `size` items, or `INFINITE`.

    Ranks make equally many steps: what is missing in the last one is padded or repeated, or the
    items of that step are dropped; with "allow" the first ranks make one step more. With
    `global_items` items in a global batch, the last global batch is filled, or dropped, instead of
    the last step, so that it is the same whatever the world size.

    Raises `EmptyDatasetError` when there are no items, or this rank, or with "drop" every rank,
    would never get one; `StateError` when what is left of a global batch cannot be shared out.
    """
    if size == 0:
        raise EmptyDatasetError("the dataset has no items to read")
    world, end = ranks.world_size, epoch_end(position, size)
    if size == INFINITE:
        return EpochPlan(ranks, position, 0, end, INFINITE)
    first = end - size
    unit = world if global_items is None else global_items
    check_that_items_come(ranks, size, unit, uneven)
    if uneven == "allow":
        steps = len(range(position + ranks.rank, end, world))
        return EpochPlan(ranks, position, first, end, steps)
    counted_from = position if global_items is None else first
    units, rest = divmod(end - counted_from, unit)
    if rest and uneven != "drop":
        units += 1
    left = max(counted_from + units * unit - position, 0)
    if left % world:
        raise StateError(
            f"{left} items are left of the epoch's global batches of {unit}, which {world} ranks "
            "cannot share out evenly: the state was saved in the middle of a global batch. Resume "
            "it with a world size that divides them, or from a state after a whole global batch"
        )
    return EpochPlan(ranks, position, first, end, left // world)


def check_that_items_come(ranks: Ranks, size: int, unit: int, uneven: str) -> None:
    """`EmptyDatasetError` when this rank, or with "drop" every rank, would never get an item."""
    if uneven == "allow" and ranks.rank >= size:
        raise EmptyDatasetError(
            f"rank {ranks.rank} of {ranks.world_size} would never get one of the {size} items of "
            "an epoch; use fewer ranks, smaller batches, or uneven='pad'"
        )
    if uneven == "drop" and size < unit:
        what = (
            f"{ranks.world_size} ranks" if unit == ranks.world_size else f"a global batch of {unit}"
        )
        raise EmptyDatasetError(
            f"an epoch of {size} items is too small for {what}, and uneven='drop' would leave out "
            "all of it; use fewer ranks, smaller batches, or uneven='pad'"
        )


def log_uneven(plan: EpochPlan, size: int, uneven: str, unit: int) -> None:
    """Say once how many items of an epoch are padded, repeated or dropped."""
    rest = 0 if size == INFINITE else size % unit
    if not rest or plan.ranks.rank:
        return
    done = {
        "pad": f"{unit - rest} more are padding, copies that say so (energize.is_padding)",
        "repeat": f"{unit - rest} of its first items come a second time",
        "drop": f"{rest} are left out, others in each epoch if it is shuffled",
        "allow": f"the first {rest} ranks make one step more than the others",
    }
    shared = f"{unit} ranks" if unit == plan.ranks.world_size else f"global batches of {unit}"
    _log.info("an epoch of %d items on %s: %s (uneven=%r)", size, shared, done[uneven], uneven)


def log_across(ranks: Ranks, global_items: int | None) -> None:
    """Say once that ranks take items of two global batches in one step."""
    if global_items is None or not global_items % ranks.world_size or ranks.rank:
        return
    _log.warning(
        "a global batch of %d micro batches cannot be shared out evenly to %d ranks, so in some "
        "steps ranks have micro batches of two global batches, which hold other samples and cost "
        "other amounts; world sizes without such steps: %s",
        global_items,
        ranks.world_size,
        divisors(global_items),
    )


def divisors(number: int) -> str:
    """What divides a number, for messages that list world sizes."""
    return ", ".join(str(size) for size in range(1, number + 1) if number % size == 0)


def checked_uneven(value: object) -> str:
    """One of `UNEVEN`; `ConfigError` for anything else."""
    if value not in UNEVEN:
        raise ConfigError(
            f"uneven is one of {', '.join(UNEVEN)}; got {value!r}{nearest(str(value), UNEVEN)}"
        )
    return str(value)
