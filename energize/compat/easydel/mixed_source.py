"""The mixed source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from energize.compat.easydel.mixing import Mixing, mixed
from energize.compat.easydel.sharded import ShardedDataSource
from energize.dataset import Dataset
from energize.errors import ConfigError
from energize.order.schedules.schedule import WeightScheduler
from energize.sources.adapting import as_dataset

__all__ = ["SOURCE_FIELD", "MixedShardedSource", "named_datasets"]

SOURCE_FIELD = "__source__"

_SHARD = "mixed_shard_0"


class MixedShardedSource(ShardedDataSource):
    """Examples of named sources in blocks, one shard called "mixed_shard_0".

    `weights` by name, or none for equal ones; they need not sum to 1. With a `weight_scheduler` the
    weights change; its steps count examples of the mix from 0, by its `slots_per_step` optimizer
    steps. Every block of `block_size` examples holds the shares, rounded by largest remainder with
    the rest carried into the next block, in random order; `__source__` of an example, a copy, names
    its source.

    `stop_strategy`: "restart" never ends, and a source that is over starts again;
    "first_exhausted" ends where a source that is over would be asked for more; "all_exhausted"
    gives every example once, and hands the share of a source that is over to the others.

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
        owner = type(self).__name__
        self._dataset = mixed(
            named_datasets(sources, owner),
            weights,
            weight_scheduler,
            Mixing(owner, block_size, seed, stop_strategy, order, shuffle),
            source_field=SOURCE_FIELD,
        )

    @property
    def shard_names(self) -> Sequence[str]:
        return (_SHARD,)

    @property
    def dataset(self) -> Dataset[dict[str, Any]]:
        return self._dataset

    def shard(self, shard_name: str) -> Dataset[dict[str, Any]]:
        self._number_of(shard_name)
        return self._dataset


def named_datasets(sources: Mapping[str, Any], owner: str) -> dict[str, Dataset[Any]]:
    """Named sources, sharded or of any other kind, as datasets."""
    if not isinstance(sources, Mapping):
        raise ConfigError(
            f"{owner}: sources are given by name, {{'code': ..., 'text': ...}}; got "
            f"{type(sources).__name__}"
        )
    for name in sources:
        if not isinstance(name, str):
            raise ConfigError(f"{owner}: the name of a source is text; got {name!r}")
    return {
        name: source.dataset if isinstance(source, ShardedDataSource) else as_dataset(source, name)
        for name, source in sources.items()
    }
