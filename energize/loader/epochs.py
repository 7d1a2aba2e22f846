"""Epochs in steps: which items of an epoch the ranks deliver."""

from __future__ import annotations

from typing import Any

from energize.core import tree
from energize.core.dataset import Dataset
from energize.core.lanes import Ranks
from energize.core.node import INFINITE
from energize.core.stream import (
    EpochPlan,
    epoch_end,
)
from energize.errors import ConfigError, EmptyDatasetError, StateError


def plan_epoch(
    ranks: Ranks,
    position: int,
    size: int,
    *,
    uneven: str,
    global_items: int | None,
    offset: int = 0,
    begun: int = 0,
) -> EpochPlan:
    """Return what comes from `position` to the end of its epoch, of `size` items, or
    `INFINITE`. With an `offset`, epochs begin so many items later. If an epoch has
    ended at `position`, and only copies are missing in its last global batch, `begun`
    is how many items that has.

    Ranks make equally many steps: what is missing in the last one is padded or
    repeated, or the items of that step are dropped; with "allow" the first ranks make
    one step more. With `global_items` items in a global batch, the last global batch is
    filled, or dropped, instead of the last step, so that it is the same whatever the
    world size.

    Raise `EmptyDatasetError` when there are no items, or this rank, or with "drop"
    every rank, would never get one; `StateError` when what is left of a global batch
    cannot be shared out.
    """
    if size == 0:
        raise EmptyDatasetError("the dataset has no items to read")
    world = ranks.world_size
    end = epoch_end(position - offset, size) + offset
    if size == INFINITE:
        return EpochPlan(position, 0, INFINITE)
    first = max(end - size, 0)
    unit = world if global_items is None else global_items
    if begun:
        end = position
        first = position - size
        position += (begun - size) % unit
    if uneven == "drop" and size < unit:
        what = f"{world} ranks" if unit == world else f"a global batch of {unit}"
        raise EmptyDatasetError(
            f"an epoch of {size} items is too small for {what}, and uneven='drop' "
            "would leave out "
            "all of it; use fewer ranks, smaller batches, or uneven='pad'"
        )
    if uneven == "allow":
        if ranks.rank >= size:
            raise EmptyDatasetError(
                f"rank {ranks.rank} of {world} would never get one of the {size} items "
                "of an "
                "epoch; use fewer ranks, smaller batches, or uneven='pad'"
            )
        steps = len(range(position + ranks.rank, end, world))
        return EpochPlan(position, first, end, steps)
    counted_from = position if global_items is None else first
    units, rest = divmod(end - counted_from, unit)
    if rest and uneven != "drop":
        units += 1
    left = max(counted_from + units * unit - position, 0)
    if left % world:
        raise StateError(
            f"{left} items are left of the epoch's global batches of {unit}, which "
            f"{world} ranks "
            "cannot share out evenly: the state was saved in the middle of a global "
            "batch. Resume "
            "it with a world size that divides them, or from a state after a whole "
            "global batch"
        )
    return EpochPlan(position, first, end, left // world)


def global_items(
    dataset: Dataset[Any], global_batch_size: int | None, micro_batch_size: int | None
) -> int | None:
    """Return how many items make one global batch; None if nobody says."""
    node = tree.unwrap(dataset, tree.KEEPS_POSITIONS)
    micro = micro_batch_size or _micro_batch_size(node)
    own = getattr(node, "global_batch_size", None)
    whole = global_batch_size or own
    if whole is None:
        return None
    if micro is None:
        raise ConfigError(
            f"global_batch_size={whole} is given, and {type(node).__name__} does not "
            "say how many "
            "samples a micro batch has; give micro_batch_size too"
        )
    if own is not None and whole % own:
        raise ConfigError(
            f"global_batch_size={whole} is given, and {type(node).__name__} was made "
            "for global "
            f"batches of {own} samples; give one number to both"
        )
    items, rest = divmod(whole, micro)
    if rest or not items:
        raise ConfigError(
            f"a global batch of {whole} samples is not a whole number of micro batches "
            f"of {micro}; "
            "change one of the two"
        )
    return items


def _micro_batch_size(node: Dataset[Any]) -> int | None:
    """Return how many samples an item has: of what only chooses among batches, those of
    its inputs where they are alike.
    """
    own: int | None = getattr(node, "batch_size", None)
    if own is not None or node.traits.gives_batches is not None:
        return own
    sizes = {_micro_batch_size(each) for each in node.inputs}
    return sizes.pop() if len(sizes) == 1 else None
