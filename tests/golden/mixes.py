"""Mixes in memory, made with public names only: each a function that makes a
dataset."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch

import energize as ez
from energize.datasets.planned import BudgetBatchDataset, PackDataset
from energize.packing import attention_cost

Batch, Blend, Composed = ez.BatchDataset, ez.BlendDataset, ez.ComposedDataset
Concat, Epochize, Filter = ez.ConcatDataset, ez.EpochizeDataset, ez.FilterDataset
Gc, Group, IterMap = ez.GcDataset, ez.GroupBatchDataset, ez.IterMapDataset
Level, LevelBuffer, Limit = (
    ez.experimental.LevelDataset,
    ez.experimental.LevelBufferDataset,
    ez.LimitDataset,
)
Log, Map, Mix = ez.LogSampleDataset, ez.MapDataset, ez.MixBatchDataset
Packs, Quotas, Repeat = ez.PackingDataset, ez.QuotaDataset, ez.RepeatDataset
Weighed, Shuffle, ShuffleBuffer = (
    ez.SampleWeightDataset,
    ez.ShuffleDataset,
    ez.ShuffleBufferDataset,
)
Staged, DataError, SkipSample = (
    ez.experimental.StagedDataset,
    ez.DataError,
    ez.SkipSample,
)
ListSource, SequenceSource, IterableSource = (
    ez.ListSource,
    ez.SequenceSource,
    ez.IterableSource,
)
ItemCost, Quota, Schedule = ez.ItemCost, ez.Quota, ez.Schedule
Stage, by_property = ez.experimental.Stage, ez.by_property

KINDS = ("high", "low", "low", None, "high")


def given(
    count: int, start: int = 0, name: str = "", **options: Any
) -> ListSource[int]:
    """Numbers, of which columns say a word, a place and a cost."""
    columns = {
        "kind": [KINDS[i % len(KINDS)] for i in range(count)],
        "place": range(count),
        "cost": [1 + (7 * i) % 11 ** (1 + i % 3) for i in range(count)],
    }
    numbers = range(start, start + count)
    return ListSource(numbers, name=name or f"n{start}", columns=columns, **options)


def mixed(count: int, start: int = 0, seed: int = 0, **options: Any) -> Any:
    return Shuffle(given(count, start, seed=seed), **options)


def evens(count: int = 40, start: int = 0) -> Filter[int]:
    return Filter(mixed(count, start), is_even)


def rows(count: int = 13, start: int = 0) -> IterableSource[int]:
    return IterableSource(range(start, start + count), name=f"rows{start}")


# What users' functions do


def is_even(item: int) -> bool:
    return item % 2 == 0


def few_even(items: Any) -> bool:
    return sum(items) % 4 != 0


def noisy(item: Any) -> tuple[Any, ...]:
    """Draws from every global generator."""
    return item, random.random(), float(np.random.rand()), float(torch.rand(()))


def jitter(item: Any, rng: np.random.Generator) -> tuple[Any, ...]:
    return item, int(rng.integers(10**9)), round(float(rng.normal()), 9)


def skipping(item: int) -> int:
    if item % 3 == 0:
        raise SkipSample
    if item % 7 == 0:
        raise DataError(f"{item} is damaged")
    return item


def skipping_batches(items: list[int]) -> list[int]:
    if sum(items) % 4 == 0:
        raise SkipSample
    return items


def noisy_unless_fifth(item: int) -> tuple[int, float]:
    if item % 5 == 0:
        raise SkipSample
    return item, random.random()


def spread(item: int) -> Any:
    """None to three of an item, with draws that go on from one to the next."""
    for number in range(item % 4):
        yield item, number, random.random()


def spread_by(item: int, rng: np.random.Generator) -> Any:
    for number in range(item % 3):
        yield item, number, int(rng.integers(1000))


def apart(items: list[Any]) -> Any:
    for item in items:
        yield item, random.random()


def threes(items: list[int]) -> list[list[int]]:
    packs = [items[start : start + 3] for start in range(0, len(items), 3)]
    random.shuffle(packs)
    return packs


def pairs(items: Any) -> Any:
    for item in items:
        yield [item, *islice(items, 1)]


def quarter(item: int) -> tuple[int, None]:
    return item % 4, None


def quarter_sized(item: int) -> tuple[int, int]:
    return item % 4, item % 4 + 1


def boxed(item: int) -> dict[str, Any]:
    return {"__key__": str(item), "item": item, "ids": [item] * (item % 9 + 1)}


def tensors(item: int) -> dict[str, Any]:
    return {
        "ids": torch.full((item % 9 + 1,), item),
        "tiles": item % 3,
        "names": [str(item)],
    }


def heavy(box: dict[str, Any]) -> float:
    return box["item"] / 4


def price(item: Any) -> int:
    return zlib.crc32(repr(item).encode()) % 97 + 1


def squared(cost: np.ndarray) -> np.ndarray:
    return cost**2


# Mixes of the same shape


def blend(*weights: Any, sizes: tuple[int, ...] = (5, 3, 9, 14), **options: Any) -> Any:
    """Sources of small sizes by these weights."""
    inputs = [mixed(size, 100 * i) for i, size in enumerate(sizes)]
    return Blend(list(zip(inputs, weights, strict=False)), **options)


def wide(count: int, **options: Any) -> Blend[int]:
    parts = [(mixed(1 + i * i % 23, 100 * i), 1 + i * 7 % 13) for i in range(count)]
    return Blend(parts, **options)


def by_name(**options: Any) -> Blend[int]:
    parts = {"web": mixed(30, 0), "code": mixed(11, 100), "maths": mixed(7, 200)}
    return Blend(parts, **{"weights": {"web": 5, "maths": 2, "code": 1}} | options)


def of_streams(**options: Any) -> Blend[int]:
    parts = (evens(), 2), (mixed(9, 100), 1), (Filter(rows(12, 200), is_even), 1)
    return Blend(*parts, **options)


def by_cost(*weights: Any, inputs: Any = None, **options: Any) -> Blend[int]:
    inputs = inputs or [mixed(23), mixed(7, 100), mixed(11, 200)]
    return Blend(list(zip(inputs, weights, strict=False)), **{"unit": "cost"} | options)


def composed(method: str, *sizes: int, **options: Any) -> Composed[Any]:
    streams = [
        (given(size, 100 * i), Quota(proportion=i + 1))
        for i, size in enumerate(sizes or (24, 18))
    ]
    settings = {"batch_size": 2, "global_batch_size": 4, "shuffle": True, **options}
    return Composed(*streams, batching_method=method, **settings)


def planned(inner: Any, capacity: int = 280, **options: Any) -> PackDataset[Any]:
    settings = {"window": 16, **options}
    return PackDataset(inner, "cost", capacity, list, **settings)


def packed(inner: Any) -> Packs[Any]:
    return Packs(inner, 7, threes, apart, sample_encoder=noisy_unless_fifth)


def packs(method: str, length: Any = "ids", capacity: Any = 24, **options: Any) -> Any:
    packer = ez.packing.Packer(
        length=length, capacity=capacity, method=method, **options
    )
    final = partial(ez.packing.concat_pack, fields=["ids"], flatten=["names"])
    return Packs(Map(mixed(50), tensors), 20, packer, final)


def staged(*stages: Stage, total: int | None = None, **options: Any) -> Staged[Any]:
    default = options.pop("default", None)
    return Staged(ez.experimental.StagePlan(stages, total, default), **options)


def two_to(first: Any, second: Any, web: int = 17) -> Blend[int]:
    return Blend((mixed(web), first), (mixed(13, 100), second))


class Alternating:
    """A scheme of a user's own: sources in turn, each twice."""

    def counts(self, n: int) -> np.ndarray:
        return np.array(
            [len(range(n)) // 4 * 2 + min(n % 4, 2), n // 4 * 2 + max(n % 4 - 2, 0)]
        )

    def locate(self, ks: Any) -> tuple[np.ndarray, np.ndarray]:
        ks = np.asarray(ks)
        return ks % 4 // 2, ks // 4 * 2 + ks % 2

    def describe(self) -> dict[str, Any]:
        return {"scheme": "alternating"}


STEP = Schedule([(0, 1), (7, 3), (19, 0)])
LINE = Schedule([(0, 0.2), (30, 0.9)], "linear")
WAVE = Schedule([(0, 0.2), (40, 0.9), (90, 0.1)], "cosine")
LONG = Schedule([(0, 0.8), (10_000, 0.5), (10**7, 0.01)], "linear", slots_per_step=16)
STOPS = ("first_exhausted", "all_exhausted")
SCHEMES = ("even", "exact", "block", "random", "uniform", "round_robin")
METHODS = ("random", "in_turn", "stratified", "per_stream", "device_per_stream")

# fmt: off
MIXES: dict[str, Callable[[], Any]] = {
    # Sources and orders
    "list": lambda: given(13),
    "one sample": lambda: given(1),
    "list, seed": lambda: Map(given(13, seed=5), skipping),
    "list, occurrence": lambda: Shuffle(given(13, occurrence=2)),
    "sequence": lambda: SequenceSource(torch.arange(9), name="tensor"),
    "shuffle": lambda: mixed(13),
    "shuffle, large": lambda: mixed(100_003),
    "shuffle, larger": lambda: Shuffle(SequenceSource(range(3_000_017), name="large")),
    "shuffle in windows": lambda: mixed(23, shuffle_buffer_size=4, max_samples_per_sequence=5),
    "shuffle in windows only": lambda: mixed(23, shuffle_buffer_size=6),
    "shuffle over epochs": lambda: mixed(11, over_epochs=3),
    "shuffle with replacement": lambda: mixed(11, over_epochs=-1),
    "shuffle of concat": lambda: Shuffle(Concat(given(7), given(5, 100))),
    "shuffle of batches": lambda: Shuffle(Batch(given(17), 3, list)),
    "shuffle of quotas": lambda: Shuffle(Quotas(given(6), given(4, 100))),
    # Functions
    "map": lambda: Map(mixed(11), noisy),
    "map with rng": lambda: Map(mixed(11), jitter),
    "map that skips": lambda: Map(mixed(20), skipping),
    "map of map": lambda: Map(Map(mixed(11), noisy), jitter),
    "map of batches": lambda: Map(Batch(mixed(11), 3, list), jitter),
    "map of blend": lambda: Map(blend(3, 2, 1), jitter),
    "log": lambda: Log(Gc(mixed(5), every_n_iter=100), get_keys_fn=str),
    "batch": lambda: Batch(mixed(11), 3, list),
    "batch with rng": lambda: Batch(blend(1, 2), 3, jitter),
    "batch, drop last": lambda: Batch(mixed(11), 3, list, drop_last=True),
    "batch of a map that skips": lambda: Batch(Map(mixed(20), skipping), 4, list),
    "batch that skips": lambda: Batch(mixed(20), 3, skipping_batches),
    "batch of batches": lambda: Batch(Batch(mixed(17), 2, list), 3, list),
    "batch of tensors": lambda: Batch(Map(blend(1, 1), tensors), 3, ez.generic_batch),
    # Parts of passes
    "repeat 2.5": lambda: Repeat(mixed(6), 2.5),
    "repeat 0.5": lambda: Repeat(mixed(9), 0.5),
    "repeat 1.25 of batches": lambda: Repeat(Batch(mixed(11), 2, list), 1.25),
    "repeat for ever": lambda: Repeat(mixed(6)),
    "limit": lambda: Limit(mixed(9), 4),
    "limit of endless": lambda: Limit(Repeat(mixed(9)), 14),
    "epochize": lambda: Epochize(mixed(9), 4),
    "epochize, longer": lambda: Epochize(mixed(5), 13),
    "epochs counted": lambda: Epochize(mixed(5), num_epochs=3),
    "concat": lambda: Concat(mixed(5), mixed(1, 100), mixed(7, 200)).with_role("eval"),
    "concat, endless last": lambda: Concat(mixed(5), Repeat(mixed(4, 100))).with_role("eval"),
    "concat of blends": lambda: Concat(blend(3, 1, stop="all_exhausted"), Limit(blend(1, 2), 9)).with_role("eval"),
    "tower": lambda: Epochize(Blend((Batch(Map(Repeat(mixed(9), 1.5), noisy), 2, list), 1), (Batch(Limit(mixed(9, 100), 5), 2, list), 2)), 7),
    # Shares
    "blend of fractions": lambda: blend(Fraction(1, 3), Fraction(1, 7), Decimal("0.125")),
    "blend by name": by_name,
    "blend, weight 0": lambda: blend(1, 0, 2),
    "blend, rare": lambda: blend(1, 1e-06, 0.01),
    "blend, temperature": lambda: blend(90, 9, 1, exponent=0.5, max_share=0.6, min_share=0.1),
    "blend, limits by name": lambda: by_name(min_share={"code": 0.3}, max_share={"web": 0.4}, exponent=2.0),
    "blend of 120": lambda: wide(120),
    "blend of batches": lambda: Blend((Batch(mixed(10), 4, list), 0.6), (Batch(mixed(9, 100), 3, list), 0.4)),
    "blend of blends": lambda: Blend((blend(1, 2), 2), (mixed(4, 900), 1)),
    "blend of blends, other schemes": lambda: Blend((blend(1, 2, scheme="exact"), 2), (Blend((mixed(4, 900), 1), (blend(2, 1, scheme="round_robin"), 3)), 1)),
    "blend of blends by name": lambda: Blend({"texts": by_name(), "rest": blend(1, 3)}, weights={"rest": 1, "texts": 4}),
    "blend, same twice": lambda: Blend((mixed(8), 1), (mixed(9, 100), 1), (mixed(8), 3)),
    "blend, same twice in blends": lambda: Blend((blend(1, 2), 1), (blend(5, 1, 1), 2)),
    "blend, same twice in other maps": lambda: Blend((Map(mixed(8), noisy), 1), (Map(mixed(8), jitter), 1), (mixed(8), 1)),
    "blend, same twice, other seed": lambda: Blend((mixed(8), 1), (mixed(8, seed=3), 1)),
    "blend, reseeded": lambda: Map(blend(3, 2, 1), noisy).reseeded(11),
    "blend, own scheme": lambda: blend(1, 1, scheme=Alternating()),
    "blend, scheme object": lambda: blend(1, 1, scheme=ez.order.make_scheme("block", [3, 1], key=77, block_size=9)),
    "blend, scheduler": lambda: by_name(weights=ez.order.WeightScheduler([ez.order.WeightSchedulePoint(0, {"web": 0.2, "code": 0.8, "maths": 0.0}), ez.order.WeightSchedulePoint(60, {"web": 0.5, "code": 0.3, "maths": 0.2})], "linear")),
    "mix of batches": lambda: Mix((mixed(8), 6), (mixed(8, 100), 4), batch_size=5),
    "mix that ends": lambda: Mix((mixed(8), 6), (mixed(5, 100), 4), batch_size=5, stop="all_exhausted", batch_mix_fn=jitter),
    "mix, drop last": lambda: Mix((mixed(8), 1), (mixed(5, 100), 1), batch_size=3, stop="first_exhausted", drop_last=True),
    **{f"blend, {name}": partial(blend, 0.7, 0.2, 0.1, scheme=name) for name in SCHEMES},
    "blend, small blocks": lambda: blend(2, 1, 4, block_size=5),
    "blend, far windows": lambda: blend(2, 1, 4, scheme="random", sizes=(70_001, 900, 40)),
    # Ends
    **{f"blend, {name}, {stop}": partial(blend, 3, 1, 2, scheme=name, stop=stop) for name in ("even", "exact", "random", "round_robin") for stop in STOPS},
    "blend of 41 that ends": lambda: wide(41, stop="all_exhausted"),
    "blend, maxima": lambda: blend(3, 1, 2, max_epochs=[2, 1, 3], block_size=4),
    "blend, maxima by name": lambda: by_name(max_epochs={"code": 2}, stop="first_exhausted"),
    "blend that ends in one": lambda: Blend((blend(3, 1, stop="all_exhausted"), 2), (mixed(4, 900), 1)),
    "blend that ends, scheduled": lambda: blend(LINE, 0.5, STEP, stop="all_exhausted"),
    # Schedules
    **{f"blend, {called}, {name}": partial(blend, weight, 0.5, 0.25, scheme=name) for called, weight in {"steps": STEP, "line": LINE, "wave": WAVE}.items() for name in ("even", "exact", "block", "random")},
    "blend, long line": lambda: blend(LONG, 0.3),
    "blend, schedules in schedules": lambda: Blend((Blend((mixed(9), LINE), (mixed(4, 200), 1)), STEP), (mixed(7, 100), WAVE)),
    # Changes
    "blend, changed": lambda: blend(3, 1, 1).with_weights_from(20, [1, 1, 8]),
    "blend, changed twice": lambda: blend(3, 1, block_size=8).with_weights_from(20, [1, 5]).with_weights_from(50, [LINE, 0]),
    "blend, changed by name": lambda: by_name().with_weights_from(33, {"web": 1, "code": 7, "maths": 0.5}),
    "blend, changed in one": lambda: Blend((blend(3, 1).with_weights_from(11, [0, 1]), 2), (mixed(4, 900), 1)).with_weights_from(40, [1, 4]),
    # Properties
    "by words": lambda: by_property(mixed(23), "kind", {"high": 3, "low": 1}, other=0.5),
    "by words, of several": lambda: by_property([Map(mixed(23), noisy), mixed(11, 100)], "kind", {"high": Schedule([(0, 1), (20, 3)], "linear"), "low": 1}, other=0, scheme="exact"),
    "by ranges that end": lambda: by_property(Concat(mixed(13), mixed(6, 100)), "place", {"..4": 1, "4..": 3}, stop="all_exhausted"),
    "by ranges in a blend": lambda: Blend((by_property(mixed(13), "place", {"..5": 1, "5..": 2}), 1), (mixed(9, 200), LINE)),
    "by words that skip": lambda: Map(by_property(mixed(40), "kind", {"high": 3, "low": 1}, other=1), skipping),
    # Shares of costs
    "cost": lambda: by_cost(2, 1, 1),
    "cost by columns": lambda: by_cost(2, 1, unit=squared),
    "cost of batches": lambda: by_cost(2, 1, inputs=[Batch(mixed(23), 3, list), Batch(Repeat(mixed(7, 100)), 2, list)]),
    "cost of parts of passes": lambda: by_cost(2, 1, inputs=[Limit(mixed(23), 9), Repeat(mixed(7, 100), 2.5)]),
    "cost, scheduled": lambda: by_cost(STEP, 1),
    "cost, changed": lambda: by_cost(2, 1).with_weights_from(11, [1, 5]),
    "cost in samples in cost": lambda: by_cost(1, 1, inputs=[Blend((by_cost(2, 1), 1), (mixed(8, 900), 1)), mixed(5, 800)]),
    # Loss weights
    "sample weights": lambda: Weighed(Map(mixed(11), boxed), heavy),
    "target weights": lambda: Blend((Map(mixed(5), boxed), 0.7), (Map(mixed(3, 100), boxed), 0.3), target_weights=[1, 1]),
    "target weights, scheduled": lambda: Batch(Blend((Map(mixed(5), boxed), LINE), (Map(mixed(3, 100), boxed), 0.3), target_weights=[1, STEP], max_correction=1.5), 4, ez.generic_batch),
    # Level batches
    "level": lambda: Level(mixed(23), 3, global_batch_size=6, cost="cost"),
    "level, endless": lambda: Level(Map(Repeat(mixed(17)), skipping), 2, global_batch_size=8, cost=squared),
    "level batches": lambda: Batch(Map(mixed(29), noisy), 3, list, level="cost", global_batch_size=12),
    "level batches of a blend": lambda: Batch(blend(2, 1, 1), 2, list, level=lambda cost: attention_cost(cost) + 1, global_batch_size=8),
    "level by two costs": lambda: Batch(Level(Batch(mixed(41), 2, list), 2, global_batch_size=6, cost={"cost": 1, "place": 0.3}), 2, list),
    "level batches of a blend by two costs": lambda: Batch(blend(2, 1, 1), 2, list, level=["cost", lambda place=0: place % 4], global_batch_size=12),
    # Planned packs and batches
    "planned packs": lambda: planned(mixed(37)),
    "planned packs of a list": lambda: planned(Map(given(37), noisy), too_long="cut"),
    "budget, finite": lambda: BudgetBatchDataset(Map(mixed(37), noisy), {"cost": 1400}, list, window=16),
    "budget, in order": lambda: BudgetBatchDataset(given(37), {"cost": 1400}, list, window=16, keep_order=True),
    # Quotas
    "quotas": lambda: Quotas((given(9), Quota(repeat=0.5)), (given(5, 100), Quota(choose=12))),
    "quotas, shuffled": lambda: Quotas((given(9), Quota(repeat=2.5)), (given(5, 100), Quota(choose="7")), given(4, 200), shuffle=True),
    "quotas, fixed": lambda: Quotas((given(9), Quota(proportion=1)), (given(5, 100), Quota(proportion=2)), epoch_size=10, sampling_method="fixed", shuffle=True),
    "quotas, sized": lambda: Quotas((given(90), Quota(proportion=0.7)), (given(50, 100), Quota(proportion=0.3)), epoch_size="1k", shuffle=True),
    "quotas, large": lambda: Quotas((SequenceSource(range(200_003), name="large"), Quota(repeat=0.3)), given(9), shuffle=True),
    "quotas of blends": lambda: Quotas((blend(3, 1, stop="all_exhausted"), Quota(repeat=1.5)), (mixed(4, 900), Quota(choose=3))),
    **{f"composed, {method}": partial(composed, method) for method in METHODS},
    **{f"composed, {method}, lent": partial(composed, method, 9, 5, batch_size=1, epoch_size=14, batcher=noisy) for method in METHODS[:3]},
    "composed, drop last": lambda: composed("stratified", 23, 18, 7, drop_last=True, batcher=list),
    "composed, not shuffled": lambda: composed("in_turn", 12, 8, shuffle=False),
    "composed, skipping, lent": lambda: Composed(Map(given(21), skipping), batch_size=1, global_batch_size=4, shuffle=True),
    # Stages
    "stages": lambda: staged(Stage("one", 0, 9, dataset=two_to(1, 1)), Stage("two", 9, 30, dataset=two_to(1, 3)), Stage("three", 30, dataset=mixed(13, 100), seq_len=8), total=70),
    "stages, carried into batches": lambda: staged(Stage("one", 0, 12, dataset=Batch(two_to(3, 1), 2, list)), Stage("two", 12, dataset=Batch(Map(two_to(1, 3), noisy), 3, list), items_per_step=2), total=40),
    "stages, not carried": lambda: staged(Stage("one", 0, 9, dataset=two_to(1, 1)), Stage("two", 9, dataset=two_to(1, 3)), carry_over=False),
    "stages, equal in a row": lambda: staged(*(Stage(f"s{i}", 10 * i, dataset=two_to(1, 3)) for i in range(3)), Stage("other", 30, dataset=two_to(3, 1))),
    "stages, default": lambda: staged(Stage("late", 25, dataset=two_to(0, 1), items_per_step=3), default=Stage("default", dataset=two_to(1, 1))),
    # Streams
    "filter": evens,
    "filter of filter": lambda: Filter(evens(), lambda item: item % 3 > 0),
    "filter with rng": lambda: Filter(mixed(40), lambda item, rng: rng.random() < 0.5),
    "filter of blend": lambda: Filter(blend(3, 1, 1), is_even),
    "filter of batches": lambda: Filter(Batch(mixed(30), 3, list), few_even),
    "filter of composed": lambda: Filter(composed("stratified"), few_even),
    "map of filter": lambda: Map(evens(), noisy),
    "skipping map of filter": lambda: Map(evens(60), skipping),
    "target weights of streams": lambda: Blend((Map(evens(), boxed), LINE), (Map(mixed(9, 100), boxed), 0.5), target_weights=[1, 2]),
    "batch of filter": lambda: Batch(evens(20), 3, jitter),
    "batch of filter, drop last": lambda: Batch(evens(), 3, list, drop_last=True),
    "repeat of filter": lambda: Repeat(evens(20), 3),
    "limit of filter": lambda: Limit(Repeat(evens(20)), 14),
    "epochize of blended streams": lambda: Epochize(of_streams(), 11),
    "concat of streams": lambda: Concat(evens(), rows(), evens(20, 100)).with_role("eval"),
    **{f"streams, {name}": partial(of_streams, scheme=name) for name in SCHEMES},
    **{f"streams, {stop}": partial(of_streams, stop=stop) for stop in STOPS},
    "streams, maxima": lambda: of_streams(max_epochs=[1, 3, 2]),
    "streams, line": lambda: Blend((evens(), LINE), (mixed(9, 100), 0.5), block_size=8),
    "streams, changed": lambda: of_streams().with_weights_from(15, [1, 1, 6]),
    "streams in streams": lambda: Blend((of_streams(scheme="exact"), 1), (evens(20, 300), 1)),
    "streams by words": lambda: by_property(Filter(mixed(29), is_even), "kind", {"high": 2, "low": 1}, other=1),
    "mix of streams": lambda: Mix((evens(), 2), (rows(9, 100), 1), batch_size=3),
    "mix that yields": lambda: Mix((evens(), 2), (rows(9, 100), 1), batch_size=3, batch_mix_fn=apart),
    "iterable": rows,
    "map of iterable": lambda: Map(rows(30), skipping),
    "batch of iterable": lambda: Batch(rows(), 3, list),
    "limit of iterable": lambda: Limit(rows(), 5),
    "iterables that end": lambda: Blend((rows(20), 1), (rows(7, 100), 2), (rows(3, 200), 1), stop="all_exhausted", scheme="random"),
    "stages of streams": lambda: staged(Stage("one", 0, 7, dataset=evens()), Stage("two", 7, 15, dataset=rows(9, 100)), carry_over=False),
    # What makes any number of items of some
    "generator": lambda: Map(mixed(20), spread),
    "generator with rng": lambda: Map(blend(2, 1), spread_by),
    "generator over a stream": lambda: Map(evens(), spread),
    "batches of a generator": lambda: Batch(Map(mixed(20), spread), 3, list),
    "packs": lambda: Packs(mixed(31), 7, threes, list),
    "packs that yield": lambda: packed(mixed(31)),
    "packs of blended streams": lambda: packed(of_streams()),
    "batches of packs": lambda: Batch(packed(evens()), 2, list),
    "blend of packs": lambda: Blend((packed(evens()), 1), (packed(mixed(9, 100)), 2)),
    **{f"packs, {each}": partial(packs, each) for each in ("first_fit", "best_fit", "balanced")},
    "packs of two lengths": lambda: packs("balanced", ("ids", "tiles"), (24, 3)),
    "packs, too long": lambda: packs("best_fit", capacity=7, too_long="skip"),
    "groups": lambda: Group(mixed(31), 3, quarter, list),
    "groups of their sizes": lambda: Group(evens(), None, quarter_sized, jitter),
    "groups of blended streams": lambda: Group(of_streams(), 2, quarter, list),
    "iter map": lambda: IterMap(mixed(31), pairs, segment_length=5),
    "iter map with draws": lambda: IterMap(evens(), apart, segment_length=4),
    "shuffle buffer": lambda: ShuffleBuffer(evens(), 6),
    "level buffer": lambda: LevelBuffer(evens(), 6, 2, price),
    "level batches of packs": lambda: Batch(LevelBuffer(packed(mixed(31)), 6, 2, ItemCost(price)), 2, list),
    # Shares of what is known when it has been read
    "item cost": lambda: of_streams(unit=ItemCost(price)),
    "item cost by field": lambda: Blend({"a": Map(mixed(9), boxed), "b": Map(mixed(5, 100), boxed)}, weights={"a": 2, "b": 1}, unit=ItemCost("ids")),
    "item cost, changed": lambda: Blend((mixed(9), 1), (evens(20, 100), 0), unit=ItemCost(price)).with_weights_from(20, [1, 4]),
    **{f"item cost, {stop}": partial(of_streams, unit=ItemCost(price), stop=stop) for stop in STOPS},
    "item cost, uneven ends": lambda: Blend([(mixed(3 + 4 * i, 100 * i), 5 - i) for i in range(5)], unit=ItemCost(price), stop="all_exhausted"),
    "item cost of packs": lambda: Blend((packed(evens()), 1), (packed(mixed(9, 100)), 2), unit=ItemCost(price)),
}
# fmt: on


NEAR = {
    "mix, drop last",
    "quotas of blends",
    "repeat 1.25 of batches",
    "cost of parts of passes",
}
NEAR |= {"cost in samples in cost", "blended, first exhausted", "validated, limited"}
"""Mixes whose far positions are found by looking at all before them."""
