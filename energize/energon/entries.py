"""`get_train_dataset` and related functions, which return views of one rank."""

from __future__ import annotations

from functools import wraps
from typing import Any

from energize.core.dataset import Dataset
from energize.core.lanes import WorkerConfig
from energize.energon.nodes import RankLimitDataset
from energize.energon.ranks import RankView
from energize.metadataset import api
from energize.metadataset.nodes import Leaf


@wraps(api.get_train_dataset, assigned=())
def get_train_dataset(*arguments: Any, **options: Any) -> RankView[Any]:
    """Return what `energize.get_train_dataset` returns, as a view of this rank."""
    return RankView(api.get_train_dataset(*arguments, **options))


@wraps(api.get_val_dataset, assigned=())
def get_val_dataset(
    *arguments: Any, limit: int | None = None, **options: Any
) -> RankView[Any]:
    """Return `energize.get_val_dataset(...)` as a view of this rank.

    Args:
        *arguments: As in `energize.get_val_dataset`.
        limit: Maximum number of batches on each rank; None is unlimited.
        **options: As in `energize.get_val_dataset`.
    """
    dataset = api.get_val_dataset(*arguments, **options)
    return _limited(dataset, limit, options.get("worker_config"))


@wraps(api.get_val_datasets, assigned=())
def get_val_datasets(
    *arguments: Any, limit: int | None = None, **options: Any
) -> list[tuple[RankView[Any], Leaf]]:
    """Return `energize.get_val_datasets(...)` as views of this rank.

    Args:
        *arguments: As in `energize.get_val_datasets`.
        limit: Maximum number of batches on each rank; None is unlimited.
        **options: As in `energize.get_val_datasets`.
    """
    config = options.get("worker_config")
    pairs = api.get_val_datasets(*arguments, **options)
    return [(_limited(dataset, limit, config), leaf) for dataset, leaf in pairs]


def _limited(
    dataset: Dataset[Any], limit: int | None, config: WorkerConfig | None
) -> RankView[Any]:
    if limit is None:
        return RankView(dataset)
    return RankLimitDataset(dataset, limit, worker_config=config)
