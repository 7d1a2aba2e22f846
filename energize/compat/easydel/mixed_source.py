"""Named sources of examples mixed into one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from energize.compat.easydel.mixing import mixed
from energize.compat.easydel.sharded import ShardedDataSource
from energize.compat.hugging_face import to_iterable_dataset
from energize.order import WeightScheduler

if TYPE_CHECKING:
    import datasets

SOURCE_FIELD = "__source__"


class MixedShardedSource(ShardedDataSource):
    """Examples of named sources in blocks, one shard called "mixed_shard_0".

    `weights` by name, or none for equal ones; they need not sum to 1. With a `weight_scheduler` the
    weights change; its steps count examples of the mix from 0, by its `slots_per_step` optimizer
    steps. Every block of `block_size` examples holds the shares in whole examples, in random order;
    what a source is owed is carried into the next block. `__source__` of an example, a copy, names
    its source.

    `stop_strategy`: "restart" never ends, and a source that is exhausted starts again;
    "first_exhausted" ends where an exhausted source would be asked for more; "all_exhausted" gives
    every example once, and hands the share of an exhausted source to the others.

    Sources with random access are visited in random order, a new one in each pass, unless
    `shuffle=False`; streams come as they come. `order="easydel"` repeats the order of EasyDeL 0.3,
    sources in their stored order. `seed=None` draws a seed, which the log tells.

    `dataset` is the mix for `energize.get_loader`; `to_iterable_dataset()` the same for trainers.
    Either gives ranks and workers a part each of one and the same order; with a stream among the
    sources, only the second can divide it among ranks. The source itself goes into a torch
    DataLoader, whose workers get a part each.

    Raises `WeightError` listing names that do not match, `ConfigError` for other values,
    `EmptyDatasetError` naming a source that is to start again and has no examples.

    >>> sources = {"code": [{"x": 1}] * 5, "text": [{"x": 2}] * 5}
    >>> mixed = MixedShardedSource(sources, weights={"code": 0.3, "text": 0.7}, seed=42)
    >>> block = [row["__source__"] for row in mixed.dataset.at(range(1000))]
    >>> block.count("code"), block.count("text")
    (300, 700)
    """

    def __init__(  # noqa: PLR0917 - the order of arguments that users know
        self,
        sources: Mapping[str, Any],
        weights: Mapping[str, float] | None = None,
        block_size: int = 1000,
        seed: int | None = None,
        stop_strategy: str = "restart",
        weight_scheduler: WeightScheduler | None = None,
        *,
        order: str = "energize",
        shuffle: bool | None = None,
    ) -> None:
        rules = (weights, block_size, seed, stop_strategy, weight_scheduler, order, shuffle)
        mix = mixed(type(self).__name__, SOURCE_FIELD, sources, *rules)
        super().__init__(mix, {"mixed_shard_0": mix})


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
    rules = (weights, block_size, seed, stop, weight_scheduler, order, shuffle)
    return to_iterable_dataset(mixed("block_mixture_interleave", None, datasets, *rules))
