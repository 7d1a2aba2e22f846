"""Megatron-Energon's datasets over datasets, as views of one rank.

Each has the name and the arguments of the dataset of energize that it makes, and is a
`RankView` of it.
"""

from __future__ import annotations

import inspect
from typing import Any, ClassVar, TypeVar

from energize.core.checks import checked_whole
from energize.core.dataset import Dataset
from energize.core.lanes import WorkerConfig
from energize.datasets import batch, blend, group, order, packing, transform
from energize.energon.ranks import RankView, viewed

T = TypeVar("T")


class NodeView(RankView[T]):
    """A dataset of the class `node`, made of the arguments of that class.

    Datasets among the arguments may be views; what is read is what they view.
    """

    order_name = "NodeView"

    node: ClassVar[type[Dataset[Any]]]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        inputs = [_without_view(argument) for argument in arguments]
        if "dataset" in options:
            options["dataset"] = viewed(options["dataset"])
        super().__init__(self.node(*inputs, **options))


def _without_view(argument: Any) -> Any:
    """Return an argument, and the first of a pair, without the view."""
    if isinstance(argument, tuple) and argument:
        return (viewed(argument[0]), *argument[1:])
    return viewed(argument)


def _view_of(node: type[Dataset[Any]]) -> type[NodeView[Any]]:
    """Return the view class of a node, with its name, arguments and documentation."""
    return type(
        node.__name__,
        (NodeView,),
        {
            "node": node,
            "order_name": f"{node.order_name}View",
            "__doc__": node.__doc__,
            "__module__": __name__,
            "__signature__": inspect.signature(node),
        },
    )


BatchDataset = _view_of(batch.BatchDataset)
BlendDataset = _view_of(blend.BlendDataset)
ConcatDataset = _view_of(order.ConcatDataset)
EpochizeDataset = _view_of(order.EpochizeDataset)
FilterDataset = _view_of(transform.FilterDataset)
GcDataset = _view_of(transform.GcDataset)
GroupBatchDataset = _view_of(group.GroupBatchDataset)
IterMapDataset = _view_of(transform.IterMapDataset)
LogSampleDataset = _view_of(transform.LogSampleDataset)
MapDataset = _view_of(transform.MapDataset)
MixBatchDataset = _view_of(batch.MixBatchDataset)
PackingDataset = _view_of(packing.PackingDataset)
RepeatDataset = _view_of(order.RepeatDataset)
ShuffleBufferDataset = _view_of(packing.ShuffleBufferDataset)
WatchdogDataset = _view_of(transform.WatchdogDataset)


class RankLimitDataset(RankView[T]):
    """The first `length` items of each rank.

    `energize.LimitDataset` counts the items of all ranks together.

    Args:
        dataset: The dataset to limit.
        length: Items of this rank.
        worker_config: Ranks; by default those that the dataset carries. Without any,
            `length` counts the items of all ranks.
        **ignored: Arguments without a use.

    Example:
        >>> from energize import ListSource
        >>> from energize.energon import LimitDataset, WorkerConfig
        >>> config = WorkerConfig(rank=1, world_size=2)
        >>> list(LimitDataset(ListSource("abcdef"), 2, worker_config=config))
        ['b', 'd']
    """

    order_name = "RankLimitDataset"

    def __init__(
        self,
        dataset: Dataset[T],
        length: int,
        *,
        worker_config: WorkerConfig | None = None,
        **ignored: object,
    ) -> None:
        config = worker_config or getattr(dataset, "worker_config", None)
        ranks = 1 if config is None else config.world_size
        total = checked_whole(length, "LimitDataset: length", 1) * ranks
        super().__init__(
            order.LimitDataset(
                viewed(dataset), total, worker_config=worker_config, **ignored
            )
        )


LimitDataset = RankLimitDataset
