"""Batches of level cost, as a program or a metadataset asks for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from energize.costs import ColumnCost, Cost
from energize.dataset import Dataset
from energize.errors import ConfigError
from energize.task_encoder.encoder import TaskEncoder
from energize.task_encoder.hooks import Hook, active_hooks
from energize.task_encoder.pipeline import after_batch
from energize.wrappers.batch import BatchDataset
from energize.wrappers.item_cost import ItemCost
from energize.wrappers.level_buffer import LevelBufferDataset

BATCHES = 64
"""Of so many batches the items are levelled together, where nobody says how many."""


@dataclass(frozen=True)
class Level:
    """What batches of level cost are made by: see `LevelDataset` where `cost` is of columns, and
    `LevelBufferDataset` where it is an `ItemCost`, of what has been encoded and packed.

    Raises `ConfigError` for sizes that do not go with the cost.
    """

    cost: Cost | ColumnCost | ItemCost
    global_batch_size: int | None = None
    buffer_size: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.cost, ItemCost):
            if self.global_batch_size is not None:
                raise ConfigError(
                    "level is told by what encoded items hold, which is known of those that were "
                    f"read, so global_batch_size={self.global_batch_size} cannot be levelled as a "
                    "whole; say how many items are levelled at a time (level_buffer_size, in a "
                    "file buffer_size), or what samples cost by a column"
                )
        elif self.global_batch_size is None:
            raise ConfigError(
                "level says what samples cost, and global_batch_size is missing: among the samples "
                "of how many micro batches those of one are chosen"
            )
        elif self.buffer_size is not None:
            raise ConfigError(
                f"{self.buffer_size} items are to be levelled at a time, and level is told by "
                "columns, which levels whole global batches; leave the buffer size out, or give "
                "an ItemCost (in a file: field)"
            )

    @classmethod
    def asked(
        cls,
        level: Cost | ColumnCost | ItemCost | None,
        global_batch_size: int | None,
        level_buffer_size: int | None,
    ) -> Level | None:
        """What a program asks for; None where it asks for nothing."""
        if level is not None:
            return cls(level, global_batch_size, level_buffer_size)
        if global_batch_size is None and level_buffer_size is None:
            return None
        name = "level_buffer_size" if global_batch_size is None else "global_batch_size"
        raise ConfigError(
            f"{name} is given, and level is not: it says what samples cost, so that the ranks' "
            "batches cost the same. (For gradient accumulation alone, give global_batch_size to "
            "get_loader)"
        )

    def batches(
        self,
        encoder: TaskEncoder[Any, Any, Any, Any],
        samples: Dataset[Any],
        *,
        batch_size: int | None,
        drop_last: bool,
        packing_buffer_size: int | None,
    ) -> Dataset[Any]:
        """Encoded samples through the hooks after that, to batches of level cost."""
        if batch_size is None:
            raise ConfigError("level is about batches, and batch_size is None")
        _check(encoder)
        items = encoder.build_batch(
            samples, batch_size=None, packing_buffer_size=packing_buffer_size
        )
        batch = Hook(encoder, "batch")
        if isinstance(self.cost, ItemCost):
            size = BATCHES * batch_size if self.buffer_size is None else self.buffer_size
            items = LevelBufferDataset(items, size, batch_size, self.cost)
            batches: Dataset[Any] = BatchDataset(items, batch_size, batch, drop_last=drop_last)
        else:
            batches = BatchDataset(
                items,
                batch_size,
                batch,
                drop_last=drop_last,
                level=self.cost,
                global_batch_size=self.global_batch_size,
            )
        return after_batch(encoder, batches)


def _check(encoder: TaskEncoder[Any, Any, Any, Any]) -> None:
    own = type(encoder).__name__
    if "batch_group_criterion" in active_hooks(encoder):
        raise ConfigError(
            f"batch_group_criterion of {own} says which samples share a batch, and so does level; "
            "give one of the two"
        )
    if type(encoder).build_batch is not TaskEncoder.build_batch:
        raise ConfigError(
            f"{own} overrides build_batch, which makes its batches, so level has none to make; "
            "put a LevelDataset below the batches there"
        )
