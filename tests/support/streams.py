"""One small example of every wrapper as a stream, beside those of `datasets.STREAMING`."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice
from typing import Any

from energize import (
    BatchDataset,
    BlendDataset,
    ComposedDataset,
    ConcatDataset,
    Dataset,
    EpochizeDataset,
    FilterDataset,
    GroupBatchDataset,
    ItemCost,
    IterableSource,
    IterMapDataset,
    LevelBufferDataset,
    LimitDataset,
    LogSampleDataset,
    MapDataset,
    MixBatchDataset,
    PackingDataset,
    Quota,
    RepeatDataset,
    SampleWeightDataset,
    Schedule,
    ShuffleBufferDataset,
    SkipSample,
)
from energize.datasets.multiplexed import End, MultiplexedDataset, SchemeSlots
from energize.order import make_scheme
from tests.support.datasets import (
    STREAMING,
    boxed,
    heavy,
    is_even,
    noisy,
    numbers,
    shuffled,
    skip_thirds,
)
from tests.support.trees import letters, staged


def evens(count: int = 40, start: int = 0) -> FilterDataset[int]:
    return FilterDataset(shuffled(count, start), is_even)


def rows(count: int = 13, start: int = 0) -> IterableSource[int]:
    return IterableSource(range(start, start + count), name=f"rows{start}")


def few_even(items: list[int]) -> bool:
    return sum(items) % 4 != 0


def spread(item: int) -> Iterator[tuple[int, int, float]]:
    """None to three of an item, with draws that go on from one to the next."""
    for number in range(item % 4):
        yield item, number, random.random()


def threes(items: list[int]) -> list[list[int]]:
    """Packs of three, in a random order."""
    packs = [items[start : start + 3] for start in range(0, len(items), 3)]
    random.shuffle(packs)
    return packs


def noisy_unless_fifth(item: int) -> tuple[int, float]:
    if item % 5 == 0:
        raise SkipSample
    return item, random.random()


def apart(items: list[Any]) -> Iterator[tuple[Any, float]]:
    for item in items:
        yield item, random.random()


def pairs(items: Iterator[Any]) -> Iterator[list[Any]]:
    for item in items:
        yield [item, *islice(items, 1)]


def quarter(item: int) -> tuple[int, None]:
    return item % 4, None


def quarter_sized(item: int) -> tuple[int, int]:
    return item % 4, item % 4 + 1


def first_number(item: Any) -> int:
    """A cost that any item has."""
    return 1 + (item if isinstance(item, int) else first_number(item[0]))


def pack_number(pack: Any) -> int:
    """A cost that any pack has."""
    return 1 + len(repr(pack)) % 7


def not_of_six(item: int) -> int:
    if item % 6 == 0:
        raise SkipSample
    return item


def packed(inner: Dataset[Any]) -> PackingDataset[Any]:
    return PackingDataset(inner, 7, threes, apart, sample_encoder=noisy_unless_fifth)


def mixed(**options: Any) -> BlendDataset[int]:
    return BlendDataset(
        (evens(), 2), (shuffled(9, 100), 1), (FilterDataset(rows(12, 200), is_even), 1), **options
    )


def multiplexed(rule: str, *passes: int | None) -> MultiplexedDataset[int]:
    inputs = (evens(20), rows(7, 100))
    slots = SchemeSlots(make_scheme("block", [1, 2], key=7))
    return MultiplexedDataset(inputs, ["evens", "rows"], slots, End(rule, passes))


GLIDE = Schedule([(0, 0.2), (30, 0.9)], "linear")

PART_OF_WHAT_IS_NAMED = (
    "batcher that yields",
    "batcher that yields, drop last",
    "mix that yields",
    "packs that yield",
    "packs of a blend",
    "packs without end",
    "packs of packs",
    "batches of packs",
    "level batches of packs",
    "blend of packs",
    "blend by what packs cost",
    "repeat of packs",
)
"""Whose items may be made of some of the samples that they name: what a function yields of several
samples names them all."""

STREAMS: dict[str, Dataset] = STREAMING | {
    "filter of filter": FilterDataset(evens(), lambda item: item % 3 > 0),
    "filter of repeat": FilterDataset(RepeatDataset(shuffled(20)), is_even),
    "filter of batches": FilterDataset(BatchDataset(shuffled(30), 3, list), few_even),
    "filter of composed": FilterDataset(
        ComposedDataset(
            (numbers(24), Quota(proportion=1)),
            (numbers(18, 100), Quota(proportion=2)),
            batch_size=2,
            global_batch_size=4,
            batching_method="stratified",
            shuffle=True,
        ),
        few_even,
    ),
    "map of map": MapDataset(MapDataset(evens(), noisy), list),
    "log": LogSampleDataset(evens(), get_keys_fn=str),
    "sample weights": SampleWeightDataset(MapDataset(evens(), boxed), heavy),
    "blend with target weights": BlendDataset(
        (MapDataset(evens(), boxed), GLIDE),
        (MapDataset(shuffled(9, 100), boxed), 0.5),
        target_weights=[1, 2],
    ),
    "batch of batches": BatchDataset(BatchDataset(evens(), 2, list), 3, list),
    "batch of repeat": BatchDataset(RepeatDataset(evens()), 3, list),
    "repeat 3": RepeatDataset(evens(), 3),
    "limit of endless": LimitDataset(RepeatDataset(evens()), 14),
    "limit of limit": LimitDataset(LimitDataset(RepeatDataset(evens()), 14), 9),
    "epochize of blend": EpochizeDataset(mixed(), 11),
    "concat": ConcatDataset(evens(), rows(), evens(20, 100)),
    "concat, endless last": ConcatDataset(evens(), RepeatDataset(evens(20, 100))),
    "blend exact": mixed(scheme="exact"),
    "blend random": mixed(scheme="random"),
    "blend uniform": mixed(scheme="uniform"),
    "blend round robin": mixed(scheme="round_robin"),
    "blend with a linear schedule": BlendDataset(
        (evens(), GLIDE), (shuffled(9, 100), 0.5), block_size=8
    ),
    "blend first exhausted": mixed(stop="first_exhausted"),
    "blend all exhausted": mixed(stop="all_exhausted"),
    "blend max epochs": mixed(max_epochs=[1, 3, 2]),
    "blend of blends": BlendDataset((mixed(scheme="exact"), 1), (evens(20, 300), 1)),
    "skipping map of blend": MapDataset(mixed(), skip_thirds),
    "mix batch": MixBatchDataset((evens(), 2), (rows(9, 100), 1), batch_size=3),
    "mix batch all exhausted": MixBatchDataset(
        (evens(), 2), (rows(9, 100), 1), batch_size=3, stop="all_exhausted"
    ),
    "multiplexed, first": multiplexed("first", 2, 1),
    "multiplexed, leave out": multiplexed("leave_out", 1, 2),
    "multiplexed, all seen": multiplexed("all_seen", None, None),
    "iterable": rows(),
    "map of iterable": MapDataset(letters(13, 0), noisy),
    "skipping map of iterable": MapDataset(rows(30), skip_thirds),
    "batch of iterable": BatchDataset(rows(), 3, list),
    "filter of iterable": FilterDataset(rows(), is_even),
    "limit of iterable": LimitDataset(rows(), 5),
    "repeat of iterable": RepeatDataset(rows(), 2),
    "stages": staged(evens(), rows(9, 100), 7, 15),
    "stages without end": staged(rows(9, 100), evens(), 7, None),
    "generator": MapDataset(shuffled(20), spread),
    "generator over a stream": MapDataset(evens(), spread),
    "generator over an endless one": MapDataset(RepeatDataset(shuffled(20)), spread),
    "generator over an iterable": MapDataset(rows(), spread),
    "batches of a generator": BatchDataset(MapDataset(shuffled(20), spread), 3, list),
    "batcher that yields": BatchDataset(shuffled(20), 3, apart),
    "batcher that yields, drop last": BatchDataset(evens(), 3, apart, drop_last=True),
    "mix that yields": MixBatchDataset(
        (evens(), 2), (rows(9, 100), 1), batch_size=3, batch_mix_fn=apart
    ),
    "packs": PackingDataset(shuffled(31), 7, threes, list),
    "packs that yield": packed(shuffled(31)),
    "packs of a blend": packed(mixed()),
    "packs without end": packed(RepeatDataset(shuffled(31))),
    "packs of packs": PackingDataset(packed(evens()), 4, threes, list),
    "batches of packs": BatchDataset(packed(evens()), 2, list),
    "blend of packs": BlendDataset((packed(evens()), 1), (packed(shuffled(9, 100)), 2)),
    "repeat of packs": RepeatDataset(packed(shuffled(31)), 2),
    "filter of packs": FilterDataset(PackingDataset(shuffled(31), 7, threes, list), few_even),
    "groups": GroupBatchDataset(shuffled(31), 3, quarter, list),
    "groups of their sizes": GroupBatchDataset(evens(), None, quarter_sized, noisy),
    "groups, drop last": GroupBatchDataset(evens(), 3, quarter, list, drop_last=True),
    "groups of a blend": GroupBatchDataset(mixed(), 2, quarter, list),
    "groups without end": GroupBatchDataset(RepeatDataset(shuffled(31)), 4, quarter, list),
    "iter map": IterMapDataset(shuffled(31), pairs, segment_length=5),
    "iter map of a stream": IterMapDataset(evens(), pairs, segment_length=4),
    "shuffle buffer": ShuffleBufferDataset(evens(), 6),
    "level buffer": LevelBufferDataset(evens(), 6, 2, first_number),
    "level buffer that skips": LevelBufferDataset(evens(), 6, 2, not_of_six),
    "level batches of packs": BatchDataset(
        LevelBufferDataset(packed(shuffled(31)), 6, 2, first_number), 2, list
    ),
    "blend by what items cost": mixed(unit=ItemCost(first_number)),
    "blend of indexed ones by what items cost": BlendDataset(
        (shuffled(9), 2), (shuffled(5, 100), 1), unit=ItemCost(first_number)
    ),
    "blend by what items cost, with a linear schedule": BlendDataset(
        (shuffled(9), GLIDE), (evens(20, 100), 0.5), unit=ItemCost(first_number)
    ),
    "blend by what items cost, changed": BlendDataset(
        (shuffled(9), 1), (evens(20, 100), 0), unit=ItemCost(first_number)
    ).with_weights_from(20, [1, 4]),
    "blend by what items cost, first exhausted": mixed(
        unit=ItemCost(first_number), stop="first_exhausted"
    ),
    "blend by what items cost, all exhausted": mixed(
        unit=ItemCost(first_number), stop="all_exhausted"
    ),
    "blend by what items cost, max epochs": mixed(
        unit=ItemCost(first_number), max_epochs=[1, 3, 2]
    ),
    "blend by what packs cost": BlendDataset(
        (packed(evens()), 1), (packed(shuffled(9, 100)), 2), unit=ItemCost(pack_number)
    ),
    "filter of a blend by what items cost": FilterDataset(
        BlendDataset((shuffled(9), 2), (shuffled(5, 101), 1), unit=ItemCost(first_number)),
        is_even,
    ),
    "shuffle buffer of a generator": ShuffleBufferDataset(MapDataset(evens(), spread), 6),
}
