"""One small example of every indexed dataset, and of streams, for the laws."""

from __future__ import annotations

import random

import numpy as np
import torch

from energize import (
    BatchDataset,
    BlendDataset,
    ComposedDataset,
    ConcatDataset,
    Dataset,
    EpochizeDataset,
    FilterDataset,
    LevelDataset,
    LimitDataset,
    ListSource,
    LogSampleDataset,
    MapDataset,
    MixBatchDataset,
    Quota,
    QuotaDataset,
    RepeatDataset,
    SampleWeightDataset,
    Schedule,
    SequenceSource,
    ShuffleDataset,
    SkipSample,
    Stage,
    StagedDataset,
    StagePlan,
    by_property,
    generic_batch,
)
from energize.data.selection import PropertySource, Selection
from energize.errors import DataError


def numbers(count: int, start: int = 0, name: str = "numbers") -> ListSource:
    return ListSource(range(start, start + count), name=f"{name}{start}")


def shuffled(count: int, start: int = 0, **options) -> ShuffleDataset:
    return ShuffleDataset(numbers(count, start), **options)


def costly(count: int, start: int = 0) -> ListSource:
    """Numbers with a column `cost`, of which a few are dear."""
    costs = [1 + (7 * number) % 11 ** (1 + number % 3) for number in range(count)]
    return ListSource(range(start, start + count), name=f"costly{start}", columns={"cost": costs})


def squared(cost: np.ndarray) -> np.ndarray:
    return cost**2


KINDS = ("high", "low", "low", None, "high")


def labelled(count: int, start: int = 0) -> ListSource:
    """Numbers with a word each, or none, and their place among them."""
    kinds = [KINDS[i % len(KINDS)] for i in range(count)]
    columns = {"kind": kinds, "place": range(count)}
    return ListSource(range(start, start + count), name=f"labelled{start}", columns=columns)


def noisy(item: int) -> tuple[int, float, float, float]:
    """An augmentation that draws from every global generator."""
    return item, random.random(), float(np.random.rand()), float(torch.rand(()))


def skip_thirds(item: int) -> int:
    if item % 3 == 0:
        raise SkipSample
    if item % 7 == 0:
        raise DataError(f"{item} is damaged")
    return item


def skip_batches(items: list[int]) -> list[int]:
    if sum(items) % 4 == 0:
        raise SkipSample
    return items


def negative(item: int) -> int:
    return -item


def boxed(item: int) -> dict[str, int]:
    """What has a place for a weight."""
    return {"item": item}


def heavy(box: dict[str, int]) -> float:
    return box["item"] / 4


def is_even(item: int) -> bool:
    return item % 2 == 0


INDEXED: dict[str, Dataset] = {
    "list": numbers(13),
    "one sample": numbers(1),
    "sequence": SequenceSource(torch.arange(9), name="tensor"),
    "shuffle": shuffled(13),
    "shuffle runs": shuffled(23, max_samples_per_sequence=5),
    "shuffle window": shuffled(23, shuffle_buffer_size=4, max_samples_per_sequence=5),
    "map": MapDataset(shuffled(11), noisy),
    "map skips": MapDataset(shuffled(20), skip_thirds),
    "batch": BatchDataset(shuffled(11), 3, list),
    "batch drop last": BatchDataset(shuffled(11), 3, list, drop_last=True),
    "batch of repeat": BatchDataset(RepeatDataset(shuffled(7)), 3, list),
    "batch of skipping map": BatchDataset(MapDataset(shuffled(20), skip_thirds), 4, list),
    "skipping batches": BatchDataset(shuffled(20), 3, skip_batches),
    "batch of batches": BatchDataset(BatchDataset(shuffled(17), 2, list), 3, list),
    "repeat 2.5": RepeatDataset(shuffled(6), 2.5),
    "repeat 0.5": RepeatDataset(shuffled(9), 0.5),
    "repeat for ever": RepeatDataset(shuffled(6)),
    "limit": LimitDataset(shuffled(9), 4),
    "limit endless": LimitDataset(RepeatDataset(shuffled(9)), 14),
    "epochize": EpochizeDataset(shuffled(9), 4),
    "epochize longer": EpochizeDataset(shuffled(5), 13),
    "epochs counted": EpochizeDataset(shuffled(5), num_epochs=3),
    "concat": ConcatDataset(shuffled(5), shuffled(1, 100), shuffled(7, 200)),
    "concat, endless last": ConcatDataset(shuffled(5), RepeatDataset(shuffled(4, 100))),
    "blend": BlendDataset((shuffled(5), 0.7), (shuffled(3, 100), 0.3)),
    "blend of batches": BlendDataset(
        (BatchDataset(shuffled(10), 4, list), 0.6), (BatchDataset(shuffled(9, 100), 3, list), 0.4)
    ),
    "blend of blends": BlendDataset(
        (BlendDataset((shuffled(5), 1), (shuffled(6, 100), 2)), 2), (shuffled(4, 200), 1)
    ),
    "blend, same twice": BlendDataset(
        (MapDataset(shuffled(8), noisy), 1), (MapDataset(shuffled(8), skip_thirds), 1)
    ),
    "blend, weight 0": BlendDataset((shuffled(5), 1), (shuffled(5, 100), 0)),
    "mix batch": MixBatchDataset((shuffled(8), 6), (shuffled(8, 100), 4), batch_size=5),
    "log": LogSampleDataset(shuffled(5), "test", get_keys_fn=str),
    "sample weights": SampleWeightDataset(MapDataset(shuffled(11), boxed), 0.5),
    "batch of sample weights": BatchDataset(
        SampleWeightDataset(MapDataset(shuffled(11), boxed), heavy), 3, generic_batch
    ),
    "blend with target weights": BlendDataset(
        (MapDataset(shuffled(5), boxed), 0.7),
        (MapDataset(shuffled(3, 100), boxed), 0.3),
        target_weights=[1, 1],
    ),
    "tower": EpochizeDataset(
        BlendDataset(
            (BatchDataset(MapDataset(RepeatDataset(shuffled(9), 1.5), noisy), 2, list), 1),
            (BatchDataset(LimitDataset(shuffled(9, 100), 5), 2, list), 2),
        ),
        7,
    ),
}

RISING = Schedule([(0, 0.2), (30, 0.9)], "linear")
STEPS = Schedule([(0, 1), (7, 3), (19, 0)], "step")

for scheme in ("exact", "random", "uniform", "round_robin"):
    INDEXED[f"blend {scheme}"] = BlendDataset(
        (shuffled(5), 0.7), (shuffled(3, 100), 0.3), scheme=scheme
    )
INDEXED |= {
    "blend small blocks": BlendDataset((shuffled(5), 2), (shuffled(3, 100), 1), block_size=4),
    "blend scheduled": BlendDataset((shuffled(9), RISING), (shuffled(7, 100), 0.5), block_size=8),
    "blend scheduled exactly": BlendDataset(
        (shuffled(9), STEPS), (shuffled(7, 100), 1), scheme="exact"
    ),
    "blend with a linear schedule, exact": BlendDataset(
        (shuffled(9), RISING), (shuffled(7, 100), 0.5), scheme="exact"
    ),
    "blend with a linear schedule, random": BlendDataset(
        (shuffled(9), RISING), (shuffled(7, 100), 0.5), scheme="random"
    ),
    "blend scheduled in scheduled": BlendDataset(
        (BlendDataset((shuffled(9), RISING), (shuffled(4, 200), 1)), STEPS),
        (shuffled(7, 100), 1),
        block_size=8,
    ),
    "blend first exhausted": BlendDataset(
        (shuffled(9), 1), (shuffled(20, 100), 1), stop="first_exhausted"
    ),
    "blend all exhausted": BlendDataset(
        (shuffled(4), 3), (shuffled(13, 100), 1), (shuffled(2, 200), 1), stop="all_exhausted"
    ),
    "blend max epochs": BlendDataset((shuffled(4), 1), (shuffled(13, 100), 1), max_epochs=[2, 1]),
    "blend temperature": BlendDataset(
        (shuffled(4), 9), (shuffled(13, 100), 1), temperature=0.5, max_share=0.6
    ),
    "quota": QuotaDataset((numbers(9), Quota(repeat=0.5)), (numbers(5, 100), Quota(choose=12))),
    "quota fixed": QuotaDataset(
        (numbers(9), Quota(proportion=1)),
        (numbers(5, 100), Quota(proportion=2)),
        epoch_size=10,
        sampling_method="fixed",
        shuffle=True,
    ),
    "stages": StagedDataset(
        StagePlan(
            [
                Stage("one", 0, 9, dataset=BlendDataset((shuffled(5), 1), (shuffled(6, 100), 1))),
                Stage("two", 9, 20, dataset=BlendDataset((shuffled(5), 1), (shuffled(6, 100), 3))),
            ],
            total_steps=20,
        )
    ),
}
for method in ("random", "stratified", "per_stream", "device_per_stream"):
    INDEXED[f"composed {method}"] = ComposedDataset(
        (numbers(24), Quota(proportion=1)),
        (numbers(18, 100), Quota(proportion=2)),
        batch_size=2,
        global_batch_size=4,
        batching_method=method,
        shuffle=True,
    )
for method in ("random", "in_turn", "stratified"):
    INDEXED[f"composed {method}, padded"] = ComposedDataset(
        (numbers(9), Quota(proportion=1)),
        (numbers(5, 100), Quota(proportion=2)),
        batch_size=1,
        global_batch_size=4,
        batching_method=method,
        batcher=skip_batches,
        epoch_size=14,
        shuffle=True,
        pad=negative,
    )
INDEXED |= {
    "composed of skipping map, padded": ComposedDataset(
        MapDataset(numbers(21), skip_thirds),
        batch_size=1,
        global_batch_size=4,
        shuffle=True,
        pad=noisy,
    ),
    "composed, padding skips": ComposedDataset(
        numbers(21), batch_size=1, global_batch_size=4, shuffle=True, pad=skip_thirds
    ),
}

INDEXED |= {
    "level": LevelDataset(costly(23), 3, global_batch_size=6, cost="cost"),
    "level, endless": LevelDataset(
        MapDataset(RepeatDataset(ShuffleDataset(costly(17))), skip_thirds),
        2,
        global_batch_size=8,
        cost=squared,
    ),
    "level batches": BatchDataset(
        MapDataset(ShuffleDataset(costly(29)), noisy), 3, list, level="cost", global_batch_size=12
    ),
    "level batches of a blend": BatchDataset(
        BlendDataset((ShuffleDataset(costly(20)), 2), (ShuffleDataset(costly(9, 100)), 1)),
        2,
        list,
        level="cost",
        global_batch_size=8,
    ),
    "level batches, drop last": BatchDataset(
        LevelDataset(
            ShuffleDataset(costly(23)), 3, global_batch_size=6, cost=lambda cost: 2 * cost
        ),
        3,
        list,
        drop_last=True,
    ),
}


def by_cost(first: Dataset, second: Dataset, *weights, **options) -> BlendDataset:
    return BlendDataset(
        *zip((first, second), weights or (2, 1), strict=True), **{"unit": "cost", **options}
    )


INDEXED |= {
    "blend by a column": by_cost(ShuffleDataset(costly(23)), ShuffleDataset(costly(7, 100))),
    "blend by columns": by_cost(
        MapDataset(RepeatDataset(ShuffleDataset(costly(9))), noisy),
        MapDataset(costly(12, 100), skip_thirds),
        unit=squared,
    ),
    "blend by a column, of batches": by_cost(
        BatchDataset(ShuffleDataset(costly(23)), 3, list),
        BatchDataset(RepeatDataset(ShuffleDataset(costly(7, 100))), 2, list),
    ),
    "blend by a column, of parts of passes": by_cost(
        LimitDataset(ShuffleDataset(costly(23)), 9), RepeatDataset(ShuffleDataset(costly(7)), 2.5)
    ),
    "blend by a column, scheduled": by_cost(
        ShuffleDataset(costly(9)), ShuffleDataset(costly(7, 100)), STEPS, 1
    ),
    "blend by a column, with a linear schedule": by_cost(
        ShuffleDataset(costly(9)), ShuffleDataset(costly(7, 100)), RISING, 0.5
    ),
    "blend by a column, changed": by_cost(
        ShuffleDataset(costly(9)), ShuffleDataset(costly(7, 100))
    ).with_weights_from(11, [1, 5]),
    "blend by a column, in one of samples, in one by columns": by_cost(
        BlendDataset(
            (by_cost(ShuffleDataset(costly(9)), ShuffleDataset(costly(7, 100))), 1),
            (ShuffleDataset(costly(8, 200)), 1),
        ),
        ShuffleDataset(costly(5, 300)),
        unit=squared,
    ),
}

INDEXED |= {
    "property": PropertySource(labelled(23), Selection("kind", "low")),
    "property, others": PropertySource(labelled(23), Selection("kind", other_than=("low",))),
    "by property": by_property(
        ShuffleDataset(labelled(23)), "kind", {"high": 3, "low": 1}, other=0.5
    ),
    "by property, several": by_property(
        [MapDataset(ShuffleDataset(labelled(23)), noisy), ShuffleDataset(labelled(11, 100))],
        "kind",
        {"high": Schedule([(0, 1), (20, 3)], "linear"), "low": 1},
        other=0,
        scheme="exact",
    ),
    "by property, all exhausted": by_property(
        ConcatDataset(ShuffleDataset(labelled(13)), ShuffleDataset(labelled(6, 100))),
        "place",
        {"..4": 1, "4..": 3},
        stop="all_exhausted",
    ),
    "by property in a blend": BlendDataset(
        (by_property(ShuffleDataset(labelled(13)), "place", {"..5": 1, "5..": 2}), 1),
        (shuffled(9, 200), RISING),
        block_size=8,
    ),
}

STREAMING: dict[str, Dataset] = {
    "by property of filter": by_property(
        FilterDataset(ShuffleDataset(labelled(29)), is_even), "kind", {"high": 2, "low": 1}, other=1
    ),
    "filter": FilterDataset(shuffled(20), is_even),
    "map of filter": MapDataset(FilterDataset(shuffled(20), is_even), noisy),
    "skipping map of filter": MapDataset(FilterDataset(shuffled(30), is_even), skip_thirds),
    "batch of filter": BatchDataset(FilterDataset(shuffled(20), is_even), 3, list),
    "batch of filter, drop last": BatchDataset(
        FilterDataset(shuffled(20), is_even), 3, list, drop_last=True
    ),
    "repeat of filter": RepeatDataset(FilterDataset(shuffled(20), is_even)),
    "limit of filter": LimitDataset(FilterDataset(shuffled(20), is_even), 4),
    "epochize of filter": EpochizeDataset(FilterDataset(shuffled(20), is_even), 4),
    "concat of filter": ConcatDataset(FilterDataset(shuffled(20), is_even), shuffled(3, 100)),
    "blend of filter": BlendDataset(
        (FilterDataset(shuffled(20), is_even), 1), (shuffled(5, 100), 2)
    ),
    "mix batch of filter": MixBatchDataset(
        (FilterDataset(shuffled(20), is_even), 1), (shuffled(5, 100), 2), batch_size=3
    ),
    "filter of blend": FilterDataset(INDEXED["blend"], is_even),
}


def tower() -> Dataset:
    """The tallest example, made anew: for other processes."""
    return INDEXED["tower"]


def streaming_blend() -> Dataset:
    return STREAMING["blend of filter"]
