"""Random trees of datasets, streams among them."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from itertools import islice
from typing import Any

from hypothesis import strategies as st

from energize import (
    BatchDataset,
    BlendDataset,
    ConcatDataset,
    Dataset,
    EpochizeDataset,
    FilterDataset,
    GroupBatchDataset,
    ItemCost,
    IterableSource,
    IterMapDataset,
    LimitDataset,
    LogSampleDataset,
    MapDataset,
    MixBatchDataset,
    PackingDataset,
    RepeatDataset,
    Schedule,
    ShuffleBufferDataset,
    ShuffleDataset,
    SkipSample,
    by_property,
)
from energize.data.selection import PropertySource, Selection
from energize.experimental import LevelBufferDataset, Stage, StagedDataset, StagePlan
from tests.support.datasets import labelled, noisy, numbers, shuffled


def fingers(item: Any) -> int:
    return zlib.crc32(repr(item).encode())


def price(item: Any) -> int:
    return fingers(item) + 1


def not_each_third(item: Any) -> bool:
    return fingers(item) % 3 != 0


def one_in_four(item: Any) -> bool:
    return fingers(item) % 4 == 0


def everything(item: Any) -> bool:
    return True


def skips_some(item: Any) -> Any:
    if fingers(item) % 5 == 0:
        raise SkipSample
    return ("kept", item)


def skips_some_batches(items: list[Any]) -> list[Any]:
    if fingers(items) % 7 == 0:
        raise SkipSample
    return items


def spread(item: Any) -> Iterator[Any]:
    for number in range(fingers(item) % 3):
        yield number, noisy(item)


def by_fingers(items: list[Any]) -> list[list[Any]]:
    """Packs of one to three, in the order of their fingers."""
    ordered = sorted(items, key=fingers)
    packs = []
    while ordered:
        size = fingers(ordered[0]) % 3 + 1
        packs.append(ordered[:size])
        ordered = ordered[size:]
    return packs


def one_by_one(items: list[Any]) -> Iterator[Any]:
    for item in items:
        yield noisy(item)


def thirds(item: Any) -> tuple[int, None]:
    return fingers(item) % 3, None


def pairs(items: Iterator[Any]) -> Iterator[list[Any]]:
    for item in items:
        yield [item, *islice(items, 1)]


def letters(count: int, start: int) -> IterableSource[tuple[str, int]]:
    rows = [("row", start + number) for number in range(count)]
    return IterableSource(rows, name=f"rows{start}")


def staged(
    first: Dataset[Any], second: Dataset[Any], steps: int, end: int | None
) -> Dataset[Any]:
    stages = [
        Stage("one", 0, steps, dataset=first),
        Stage("two", steps, end, dataset=second),
    ]
    return StagedDataset(StagePlan(stages), carry_over=False)


def blend(
    datasets: list[Dataset[Any]],
    weights: list[Any],
    scheme: str,
    stop: str,
    max_epochs: int | None,
    mixed: int,
) -> Dataset[Any]:
    gliding = any(isinstance(weight, Schedule) for weight in weights)
    if gliding and scheme in ("round_robin", "uniform"):
        scheme = "block"
    options = {"block_size": 7} if scheme == "block" else {}
    pairs = list(zip(datasets, weights, strict=False))
    settings = {"scheme": scheme, "stop": stop, "max_epochs": max_epochs, **options}
    if mixed:
        return MixBatchDataset(pairs, batch_size=mixed, **settings)
    return BlendDataset(pairs, **settings)


sizes = st.integers(1, 14)
starts = st.integers(0, 9).map(lambda number: number * 1000)
conditions = st.sampled_from([not_each_third, one_in_four, everything])
weights = st.one_of(
    st.integers(1, 9),
    st.floats(0.01, 9, allow_nan=False),
    st.builds(
        lambda a, b: Schedule([(0, a), (20, b)], "linear"),
        st.integers(1, 5),
        st.integers(1, 5),
    ),
)


def part_of(count: int, start: int, value: str | None) -> Dataset[Any]:
    """Those of a value, which the first sample or the second has; or all others."""
    selection = Selection("kind", value, None if value else ("low",))
    return PropertySource(labelled(count + 1, start), selection)


def by_kind(count: int, start: int, other: Any, stop: str) -> Dataset[Any]:
    """Split by what samples are; the first two have both values."""
    weights = {"high": 2, "low": 1}
    return by_property(
        ShuffleDataset(labelled(count + 1, start)),
        "kind",
        weights,
        other=other,
        stop=stop,
    )


leaves = st.one_of(
    st.builds(numbers, sizes, starts),
    st.builds(shuffled, sizes, starts),
    st.builds(letters, sizes, starts),
    st.builds(part_of, sizes, starts, st.sampled_from(["high", "low", None])),
    st.builds(
        by_kind,
        sizes,
        starts,
        st.integers(0, 2),
        st.sampled_from(["restart", "all_exhausted"]),
    ),
)


def wrapped(inner: st.SearchStrategy[Dataset[Any]]) -> st.SearchStrategy[Dataset[Any]]:
    """One dataset over those of `inner`."""
    return st.one_of(
        st.builds(FilterDataset, inner, conditions),
        st.builds(MapDataset, inner, st.sampled_from([noisy, skips_some])),
        st.builds(
            lambda each, size, function, drop: BatchDataset(
                each, size, function, drop_last=drop
            ),
            inner,
            st.integers(1, 4),
            st.sampled_from([list, skips_some_batches]),
            st.booleans(),
        ),
        st.builds(RepeatDataset, inner, st.sampled_from([None, 1, 2, 3])),
        st.builds(LimitDataset, inner, st.integers(1, 9)),
        st.builds(EpochizeDataset, inner, st.integers(1, 9)),
        st.builds(LogSampleDataset, inner),
        st.builds(
            lambda each: ConcatDataset(*each), st.lists(inner, min_size=1, max_size=3)
        ),
        st.builds(
            blend,
            st.lists(inner, min_size=1, max_size=3),
            st.lists(weights, min_size=3, max_size=3),
            st.sampled_from(["block", "exact", "random", "uniform", "round_robin"]),
            st.sampled_from(["restart", "restart", "first_exhausted", "all_exhausted"]),
            st.sampled_from([None, None, 1, 2]),
            st.sampled_from([0, 0, 0, 3]),
        ),
        st.builds(MapDataset, inner, st.just(spread)),
        st.builds(
            lambda each, size, pack, post: PackingDataset(
                each, size, by_fingers, pack, sample_encoder=post
            ),
            inner,
            st.integers(1, 9),
            st.sampled_from([list, one_by_one]),
            st.sampled_from([None, noisy, skips_some]),
        ),
        st.builds(
            lambda each, size, drop: GroupBatchDataset(
                each, size, thirds, list, drop_last=drop
            ),
            inner,
            st.integers(1, 4),
            st.booleans(),
        ),
        st.builds(
            lambda each, size: IterMapDataset(each, pairs, segment_length=size),
            inner,
            st.integers(1, 9),
        ),
        st.builds(ShuffleBufferDataset, inner, st.integers(1, 9)),
        st.builds(
            lambda each, batch, batches: LevelBufferDataset(
                each, batch * batches, batch, price
            ),
            inner,
            st.integers(1, 3),
            st.integers(1, 3),
        ),
        st.builds(
            lambda each, shares, ending: BlendDataset(
                list(zip(each, shares, strict=False)), unit=ItemCost(price), **ending
            ),
            st.lists(inner, min_size=1, max_size=3),
            st.lists(weights, min_size=3, max_size=3),
            st.sampled_from([{}, {}, {"stop": "all_exhausted"}, {"max_epochs": 2}]),
        ),
        st.builds(staged, inner, inner, st.integers(1, 9), st.sampled_from([None, 15])),
    )


def build(draw: Any, depth: int) -> Dataset[Any]:
    """A tree of at most `depth` wrappers on each path."""
    strategy = leaves
    for _ in range(depth):
        strategy = st.one_of(leaves, wrapped(strategy))
    return draw(wrapped(strategy))
