"""How many steps a rank makes in an epoch, and how many make a global batch."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

from energize.core.dataset import Dataset
from energize.core.lanes import Ranks
from energize.core.stream import INFINITE, epoch_end
from energize.errors import ConfigError, EmptyDatasetError, StateError

UNEVEN = ("pad", "drop", "repeat", "allow")

_log = logging.getLogger("energize")


class EpochPlan(NamedTuple):
    """What a rank delivers from item `start` of an epoch of the items `first` to before `end`.

    In step s it delivers item start + rank + s * world_size. `steps` is `INFINITE` in an epoch
    without end. A position from `end` on is missing: a copy takes its place.
    """

    start: int
    first: int
    end: int
    steps: int


def plan_epoch(
    ranks: Ranks, position: int, size: int, *, uneven: str, global_items: int | None
) -> EpochPlan:
    """Return the plan from `position` to the end of its epoch, of `size` items, or `INFINITE`.

    Ranks make equally many steps: what is missing in the last one is padded or repeated, or the
    items of that step are dropped; with "allow" the first ranks make one step more. With
    `global_items` items in a global batch, the last global batch is filled, or dropped, instead of
    the last step, so that it is the same whatever the world size.

    Raise `EmptyDatasetError` when there are no items, or this rank, or with "drop" every rank,
    would never get one; `StateError` when what is left of a global batch cannot be shared out.
    """
    if size == 0:
        raise EmptyDatasetError("the dataset has no items to read")
    world, end = ranks.world_size, epoch_end(position, size)
    if size == INFINITE:
        return EpochPlan(position, 0, end, INFINITE)
    first = end - size
    unit = world if global_items is None else global_items
    _check_that_items_come(ranks, size, unit, uneven)
    if uneven == "allow":
        steps = len(range(position + ranks.rank, end, world))
        return EpochPlan(position, first, end, steps)
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
    return EpochPlan(position, first, end, left // world)


def _check_that_items_come(ranks: Ranks, size: int, unit: int, uneven: str) -> None:
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


def log_steps(
    ranks: Ranks, size: int, uneven: str, filled: int | None, global_items: int | None
) -> None:
    """Log how many items of an epoch are padded, repeated or dropped, and whether ranks take items
    of two global batches in one step.
    """
    world = ranks.world_size
    unit = filled or world
    rest = 0 if size == INFINITE else size % unit
    if rest and not ranks.rank:
        done = {
            "pad": f"{unit - rest} more are padding, copies that say so (energize.is_padding)",
            "repeat": f"{unit - rest} of its first items come a second time",
            "drop": f"{rest} are left out, others in each epoch if it is shuffled",
            "allow": f"the first {rest} ranks make one step more than the others",
        }
        shared = f"{unit} ranks" if unit == world else f"global batches of {unit}"
        _log.info("an epoch of %d items on %s: %s (uneven=%r)", size, shared, done[uneven], uneven)
    if global_items is not None and global_items % world and not ranks.rank:
        _log.warning(
            "a global batch of %d micro batches cannot be shared out evenly to %d ranks, so in "
            "some steps ranks have micro batches of two global batches, which hold other samples "
            "and cost other amounts; world sizes without such steps: %s",
            global_items,
            world,
            divisors(global_items),
        )


def divisors(number: int) -> str:
    """Return what divides a number, for messages that list world sizes."""
    return ", ".join(str(size) for size in range(1, number + 1) if number % size == 0)


def global_items(
    dataset: Dataset[Any], global_batch_size: int | None, micro_batch_size: int | None
) -> int | None:
    """Return how many items make one global batch; None if nobody says."""
    node = dataset
    while node._passes_on or (node._ends_loops and node._steps_per_epoch is not None):
        node = node.inputs[0]
    micro = micro_batch_size or getattr(node, "batch_size", None)
    own = getattr(node, "global_batch_size", None)
    whole = global_batch_size or own
    if whole is None:
        return None
    if micro is None:
        raise ConfigError(
            f"global_batch_size={whole} is given, and {type(node).__name__} does not say how many "
            "samples a micro batch has; give micro_batch_size too"
        )
    if own is not None and whole % own:
        raise ConfigError(
            f"global_batch_size={whole} is given, and {type(node).__name__} was made for global "
            f"batches of {own} samples; give one number to both"
        )
    items, rest = divmod(whole, micro)
    if rest or not items:
        raise ConfigError(
            f"a global batch of {whole} samples is not a whole number of micro batches of {micro}; "
            "change one of the two"
        )
    return items
