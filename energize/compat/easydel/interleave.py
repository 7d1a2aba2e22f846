"""Mixing Hugging Face datasets into one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from energize.compat.easydel.mixed_source import named_datasets
from energize.compat.easydel.mixing import Mixing, mixed
from energize.compat.hugging_face import to_iterable_dataset
from energize.order.schedules.schedule import WeightScheduler

if TYPE_CHECKING:
    import datasets

__all__ = ["block_mixture_interleave"]


def block_mixture_interleave(
    datasets: Mapping[str, Any],
    weights: Mapping[str, float] | None = None,
    block_size: int = 1000,
    seed: int | None = 42,
    stop: str = "restart",
    *,
    weight_scheduler: WeightScheduler | None = None,
    order: str = "energize",
    shuffle: bool | None = None,
) -> datasets.IterableDataset:
    """A `datasets.IterableDataset` that mixes named datasets, map-style and streaming ones.

    The mix is that of `MixedShardedSource` with the same arguments, without `__source__`. Its
    `state_dict()` is exact after any example, and ranks and workers get a part each.

    >>> import datasets
    >>> one = datasets.Dataset.from_dict({"x": [1] * 4})
    >>> two = datasets.Dataset.from_dict({"x": [2] * 4})
    >>> mix = block_mixture_interleave({"one": one, "two": two}, {"one": 0.25, "two": 0.75})
    >>> sum(example["x"] == 1 for example in mix.take(1000))
    250
    """
    owner = "block_mixture_interleave"
    mixing = Mixing(owner, block_size, seed, stop, order, shuffle)
    return to_iterable_dataset(
        mixed(named_datasets(datasets, owner), weights, weight_scheduler, mixing, source_field=None)
    )
