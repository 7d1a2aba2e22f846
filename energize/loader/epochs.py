"""The arithmetic of epochs: which items the ranks deliver, in how many steps."""

from __future__ import annotations

import logging
from typing import Any

from energize.core import tree
from energize.core.dataset import Dataset
from energize.core.ignored import log_once
from energize.core.lanes import Ranks
from energize.core.node import INFINITE
from energize.core.stream import (
    EpochPlan,
    epoch_end,
)
from energize.datasets.planned import PlannedDataset
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
    """Plan the items from a position to the end of its epoch.

    All ranks make the same number of steps. The last step is padded, repeated or
    dropped if the ranks do not divide the items. With "allow" the first ranks make one
    step more. With `global_items`, the last global batch is filled or dropped instead
    of the last step, so that it is the same for any world size.

    Args:
        ranks: This rank.
        position: The position, counted from the start of the run.
        size: Items in an epoch, or `INFINITE`.
        uneven: "pad", "drop", "repeat" or "allow".
        global_items: Number of items in a global batch; None without global batches.
        offset: Number of items by which epochs begin later.
        begun: Number of items in the last global batch of an epoch that has ended at
            `position`, if only copies are missing.

    Returns:
        The plan of the epoch.

    Raises:
        EmptyDatasetError: If there is no item, or this rank, or with "drop" every rank,
            would never get one.
        StateError: If the rest of a global batch does not divide evenly.

    Example:
        >>> plan_epoch(Ranks(0, 2), 0, 5, uneven="pad", global_items=None).steps
        3
    """
    if size == 0:
        raise EmptyDatasetError("the dataset has no items")
    if size == INFINITE:
        return EpochPlan(position, 0, INFINITE)
    end = epoch_end(position - offset, size) + offset
    first = max(end - size, 0)
    unit = ranks.world_size if global_items is None else global_items
    if begun:
        end = position
        first = position - size
        position += (begun - size) % unit
    _check_share(ranks, size, unit, uneven)
    if uneven == "allow":
        steps = len(range(position + ranks.rank, end, ranks.world_size))
        return EpochPlan(position, first, end, steps)
    counted_from = position if global_items is None else first
    units, rest = divmod(end - counted_from, unit)
    if rest and uneven != "drop":
        units += 1
    left = max(counted_from + units * unit - position, 0)
    if left % ranks.world_size:
        raise StateError(
            f"{left} items are left of the epoch's global batches of {unit}, not "
            f"divisible by {ranks.world_size} ranks: the state was saved in the middle "
            f"of a global batch. Resume it with a world size that divides {left}, or "
            "from a state after a whole global batch"
        )
    return EpochPlan(position, first, end, left // ranks.world_size)


def _check_share(ranks: Ranks, size: int, unit: int, uneven: str) -> None:
    """Raise `EmptyDatasetError` if this rank would never get an item."""
    world_size = ranks.world_size
    if uneven == "drop" and size < unit:
        consumer = f"{world_size} ranks"
        if unit != world_size:
            consumer = f"a global batch of {unit}"
        raise EmptyDatasetError(
            f"an epoch of {size} items is too small for {consumer}, and uneven='drop' "
            "would drop all of it. Use fewer ranks, smaller batches, or uneven='pad'"
        )
    if uneven == "allow" and ranks.rank >= size:
        raise EmptyDatasetError(
            f"rank {ranks.rank} of {world_size} would never get one of the {size} "
            "items of an epoch. Use fewer ranks, smaller batches, or uneven='pad'"
        )


def global_items(
    dataset: Dataset[Any], global_batch_size: int | None, micro_batch_size: int | None
) -> int | None:
    """Return the number of items in a global batch; None without global batches."""
    node = tree.unwrap(dataset, tree.KEEPS_POSITIONS)
    micro = micro_batch_size or _micro_batch_size(node)
    expected = getattr(node, "global_batch_size", None)
    whole = global_batch_size or expected
    if whole is None:
        return None
    if micro is None:
        raise ConfigError(
            f"global_batch_size={whole} is set, and the micro batch size of "
            f"{type(node).__name__} is unknown. Pass micro_batch_size too"
        )
    if expected is not None and whole % expected:
        raise ConfigError(
            f"global_batch_size={whole} is set, and {type(node).__name__} has global "
            f"batches of {expected} samples. Pass the same number to both"
        )
    items, rest = divmod(whole, micro)
    if rest or not items:
        raise ConfigError(
            f"a global batch of {whole} samples is not a multiple of the micro batch "
            f"size {micro}. Change one of the two"
        )
    _check_window(node, items)
    return items


def _check_window(node: Any, items: int) -> None:
    """Warn once of planned packs with windows smaller than a global batch."""
    while not isinstance(node, PlannedDataset):
        if len(node.inputs) != 1 or node.traits.members is None:
            return
        items *= node.traits.members
        node = node.inputs[0]
    if node.indexed and node.window_end(0, 0) < items:
        log_once(
            type(node).__name__,
            "window",
            f"window={node.window} samples make {node.window_end(0, 0)} items, less "
            f"than the {items} of a global batch, so packs are less full and batches "
            "less alike than they could be. Set a larger window",
            logging.WARNING,
        )


def _micro_batch_size(node: Dataset[Any]) -> int | None:
    """Return the number of samples in an item; None if it is unknown or varies."""
    size: int | None = getattr(node, "batch_size", None)
    if size is not None or node.traits.gives_batches is not None:
        return size
    sizes = {_micro_batch_size(node_input) for node_input in node.inputs}
    return sizes.pop() if len(sizes) == 1 else None
