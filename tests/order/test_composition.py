"""What global batches and device batches are made of."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from energize import (
    BlendDataset,
    ConcatDataset,
    EpochizeDataset,
    FilterDataset,
    ListSource,
    MapDataset,
    get_loader,
)
from energize.datasets.quota import ComposedDataset
from energize.errors import ConfigError
from energize.experimental import Stage, StagedDataset, StagePlan
from energize.order.composition import BATCHING_METHODS, BatchComposition
from tests.support.composing import composed, epoch_of
from tests.support.datasets import numbers, skip_thirds
from tests.support.tables import check_faults


def test_batches_that_cannot_be_made():
    def composing(*arguments, **options):
        return lambda: composed(*arguments, **options)

    each = composing((7, 4, 7, 7, 7), "device_per_stream", 4, 4)
    faults = {
        "small": (
            composing((3, 3), "stratified", 8, 1),
            "6 samples of an epoch cannot fill one",
        ),
        "dropped": (
            composing((3, 3), "random", 8, 1, drop_last=True),
            "cannot fill one global",
        ),
        "global": (
            composing((1000, 6), "per_stream", 4, 2),
            "stream 1 gives 6...at most 6",
        ),
        "device": (
            composing((8, 3), "device_per_stream", 4, 1),
            "stream 1 gives 3...at most 3",
        ),
        "fewer": (
            composing((7, 9), "device_per_stream", 4, 4),
            "but gets none of the 0 that 4 devices",
        ),
        "none left": (each, "stream 1 fills 1 of 5 device batches"),
        "nothing": (composing((10, 0), "per_stream", 2, 1), "stream 1 gives 0 samples"),
        "unknown": (
            composing((10, 10), "stratfied", 2, 1),
            "did you mean 'stratified'",
        ),
        "parts": (
            lambda: BatchComposition(np.array([9, 9]), "random", 3, 8, key=1),
            "is not a multiple of batch_size=3",
        ),
    }
    check_faults(ConfigError, faults)


@given(
    method=st.sampled_from(BATCHING_METHODS),
    counts=st.lists(st.integers(60, 200), min_size=1, max_size=5),
    batch_size=st.integers(1, 4),
    ranks=st.integers(1, 4),
    drop_last=st.booleans(),
)
def test_every_rank_makes_the_same_number_of_steps(
    method, counts, batch_size, ranks, drop_last
):
    mixed = composed(counts, method, batch_size, ranks, drop_last=drop_last)
    assert mixed.batches % ranks == 0
    first, end = mixed.bounds(np.arange(mixed.batches))
    assert first[0] == 0
    assert (first[1:] == end[:-1]).all()
    assert end[-1] == mixed.size == mixed.totals.sum() <= sum(counts)
    full = mixed.size // mixed.global_batch_size * ranks
    assert (end - first)[:full].tolist() == [batch_size] * full
    assert np.ptp((end - first)[full:]) <= 1 if full < mixed.batches else True
    assert (end == first)[:full].sum() == 0
    for epoch in (0, 5):
        stream, nth = epoch_of(mixed, epoch)
        for each, total in enumerate(mixed.totals.tolist()):
            assert sorted(nth[stream == each].tolist()) == list(range(total))
            if method in {"stratified", "device_per_stream"}:
                assert (
                    np.arange(total) - nth[stream == each]
                ).max() < mixed.global_batch_size
        unit = {"stratified": 1, "device_per_stream": batch_size}.get(method)
        for n in range(0, mixed.size, mixed.global_batch_size) if unit else ():
            drawn = np.bincount(stream[:n], minlength=len(counts))
            assert (np.abs(drawn - n * mixed.totals / mixed.size) <= 1.68 * unit).all()
        for n in (0, mixed.size // 3, mixed.size):
            drawn = np.bincount(stream[:n], minlength=len(counts))
            assert mixed.counts(epoch, n).tolist() == drawn.tolist()


def padded(**options):
    settings = {"batch_size": 1, "global_batch_size": 4, **options}
    return ComposedDataset(*(numbers(5, start) for start in (0, 10)), **settings)


def test_padding_is_what_came_or_its_substitute_and_counts_nothing():
    options = {"batch_size": 1, "global_batch_size": 4, "shuffle": True}
    thirds = MapDataset(numbers(21), skip_thirds)
    batches = ComposedDataset(thirds, batching_method="in_turn", **options)
    for epoch in range(9):
        positions = np.arange(24 * epoch + 20, 24 * epoch + 24)
        last = batches.at(positions)
        assert last == [last[3]] * 4
        assert batches.padding(positions).tolist() == [True] * 3 + [False]
        assert len(batches.refs(positions)) == 1
    counting = padded(batcher=lambda samples: {"__key__": list(map(str, samples))})
    loader = get_loader(EpochizeDataset(counting, 12))
    weights = [(loader.padding, batch.get("sample_weights")) for batch in loader]
    assert [w is not None and w.tolist() == [0.0] for pads, w in weights if pads] == [
        True
    ] * 2
    assert [w for pads, w in weights if not pads] == [None] * 10


def test_padding_below_other_datasets_says_so():
    few = ComposedDataset(numbers(4), batch_size=1, global_batch_size=3)
    stage = Stage("one", 0, 6, dataset=few), Stage("two", 6, 12, dataset=numbers(9))
    for dataset in (
        ConcatDataset(few, few),
        BlendDataset({"few": few, "more": numbers(9)}, weights={"few": 3, "more": 1}),
        StagedDataset(StagePlan(stage)),
        FilterDataset(few, bool),
        BlendDataset((FilterDataset(few, bool), 1), (numbers(9, 50), 1)),
    ):
        loader = get_loader(dataset)
        steps = [
            (loader.padding, batch) for _, batch in zip(range(12), loader, strict=False)
        ]
        lent, kept = (sum(pads == each for pads, _ in steps) for each in (True, False))
        report = loader.report()
        assert (report.ranks[0].padding, report.total.counts.samples) == (lent, kept)
        assert lent > 0


def test_sizes_of_batches():
    with pytest.raises(
        ConfigError, match="ComposedDataset: batch_size must be a whole"
    ):
        ComposedDataset(ListSource("a"), batch_size=0)
    assert list(map(len, padded(drop_last=True))) == [1] * 8
    assert list(map(len, padded(batch_size=2))) == [2] * 4 + [1] * 2
    joined = ComposedDataset(ListSource("aaab"), batch_size=3, batcher="".join)
    assert ["".join(sorted(batch)) for batch in joined] in (["aaa", "b"], ["aab", "a"])
