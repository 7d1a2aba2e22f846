"""What other mixing systems were seen to do, asked of this one through the public API.

The cases are runs of EasyDeL 0.3, squirrel-core 0.20, nanotron, the data-stages document and
MosaicML Streaming 0.13. Where "improve" is in a name, there it is another value, and the one that
is intended is asked for.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain, islice

import numpy as np
import pytest

from energize import (
    ComposedDataset,
    ConfigError,
    Quota,
    StateMismatchError,
)
from energize.compat.easydel import MixedShardedSource
from energize.compat.squirrel import Multiplexer, MultiplexingStrategy
from tests.support.datasets import numbers
from tests.support.stages import two_mixes

# EasyDeL


def rows(count):
    return [{"i": i} for i in range(count)]


def mixed(sizes, weights, block_size, seed=42, **options):
    sources = {name: rows(size) for name, size in zip("abcdefg", sizes, strict=False)}
    return MixedShardedSource(
        sources, dict(zip(sources, weights, strict=True)), block_size, seed, **options
    )


def taken(source, count):
    return list(islice(source.iter_shards(), count))


def test_a_short_source_is_seen_evenly():
    seen = taken(mixed([10, 1000], [1, 1], 100), 1000)
    visits = Counter((row["__source__"], row["i"]) for row in seen)
    assert {visits["a", i] for i in range(10)} == {50}
    assert max(visits["b", i] for i in range(1000)) == 1


def test_stored_order_wraps():
    source = mixed([5000, 200], [0.9, 0.1], 1000, shuffle=False)
    math = [row["i"] for row in taken(source, 3000) if row["__source__"] == "b"]
    assert math == [*range(200), *range(100)]


# squirrel


def test_the_probabilities_of_those_that_are_left():
    probas = [0.001, 0.5, 0.499]
    mux = Multiplexer([range(9)] * 3, MultiplexingStrategy.SAMPLING, probas, seed=0)
    assert mux.dropped == ("0",)
    slots = mux.dataset.describe()["slots"]
    left = dict(zip(slots["names"], slots["weights"][0][1], strict=True))
    shares = {name: weight / sum(left.values()) for name, weight in left.items()}
    assert shares == pytest.approx({"1": 0.5005005, "2": 0.4994995}, abs=1e-7)
    list(islice(iter(mux), 20))
    assert len(mux.num_samples) == 2


# Stages


@pytest.mark.parametrize(
    "changed",
    [{"position": 39}, {"stage_idx": 0}, {"stage_name": "general"}, {"stage_idx": 7}],
    ids=str,
)
def test_a_state_that_contradicts_itself(changed):
    data = two_mixes()
    cursor = data.open()
    list(islice(cursor, 45))
    with pytest.raises(StateMismatchError, match="in this plan the item before belongs to stage"):
        data.open(state={**cursor.state(), **changed})


# MosaicML Streaming


STRATIFIED = "stratified"
# Method, sizes, proportions, epoch_size, device batch, ranks; batches on each rank, samples
# of each stream in an epoch, and how many global batches hold what (None: it varies).
COMPOSED = {
    "random, improve": ("random", (100, 100), None, None, 8, 1, 25, [100, 100], None),
    "random on two devices": ("random", (41, 28), None, None, 4, 2, 9, [41, 28], None),
    "two to three, in fours, improve":
        (STRATIFIED, (200, 300), None, None, 4, 1, 125, [200, 300], {(2, 2): 75, (1, 3): 50}),
    "two to three, in tens":
        (STRATIFIED, (200, 300), None, None, 10, 1, 50, [200, 300], {(4, 6): 50}),
    "three alike, improve":
        (STRATIFIED, (300,) * 3, (1, 1, 1), None, 10, 1, 90, [300] * 3,
         {(4, 3, 3): 30, (3, 4, 3): 30, (3, 3, 4): 30}),
    "nine to one, improve":
        (STRATIFIED, (1000, 1000), (0.9, 0.1), 1000, 8, 1, 125, [900, 100],
         {(7, 1): 100, (8, 0): 25}),
    "eleven to nine, improve":
        (STRATIFIED, (1000, 1000), (0.55, 0.45), 1000, 2, 1, 500, [550, 450],
         {(1, 1): 450, (2, 0): 50}),
    "six to three to one":
        (STRATIFIED, (300,) * 3, (0.6, 0.3, 0.1), None, 10, 1, 90, [540, 270, 90],
         {(6, 3, 1): 90}),
    "two alike, on four devices, improve":
        (STRATIFIED, (160, 160), (1, 1), None, 4, 4, 20, [160, 160], {(8, 8): 20}),
    "a stream at a time, in sevens":
        ("per_stream", (200, 300), None, None, 7, 1, 70, [196, 294], {(7, 0): 28, (0, 7): 42}),
    "a stream at a time, on two devices":
        ("per_stream", (1000, 8), None, None, 4, 2, 126, [1000, 8], {(8, 0): 125, (0, 8): 1}),
    "a stream per device, improve":
        ("device_per_stream", (200, 300), None, None, 4, 4, 31, [200, 296], None),
    "a stream per device, of two, improve":
        ("device_per_stream", (40, 28), None, None, 4, 2, 8, [36, 28], None),
    "a stream per device, few samples":
        ("device_per_stream", (41, 28), None, None, 4, 4, 4, [40, 24], None),
    "a stream without samples":
        ("random", (10, 9), (1, 0), None, 2, 1, 10, [19, 0], {(2, 0): 9, (1, 0): 1}),
}  # fmt: skip


def streams_in(batches, streams):
    samples = np.fromiter(chain.from_iterable(batches), dtype=np.int64)
    return tuple(np.bincount(samples // 10_000, minlength=streams).tolist())


@pytest.mark.parametrize("case", COMPOSED)
def test_batches_of_an_epoch(case):
    method, sizes, shares, epoch_size, batch_size, ranks, steps, drawn, held = COMPOSED[case]
    quotas = [Quota(proportion=share) for share in shares or [None] * len(sizes)]
    data = [numbers(size, 10_000 * i) for i, size in enumerate(sizes)]
    batches = ComposedDataset(
        zip(data, quotas, strict=True),
        batch_size=batch_size,
        global_batch_size=batch_size * ranks,
        batching_method=method,
        epoch_size=epoch_size,
    )
    items = list(batches)
    assert len(batches) == len(items) == steps * ranks
    assert batches.counts() == drawn
    assert streams_in(items, len(sizes)) == tuple(drawn)
    found = [
        streams_in(items[first : first + ranks], len(sizes))
        for first in range(0, len(items), ranks)
    ]
    assert held is None or Counter(found) == held


def test_ten_samples_in_global_batches_of_four():
    """There 12 come, two of them twice."""
    settings = {"batch_size": 1, "global_batch_size": 4, "batching_method": "random"}
    data = [numbers(5), numbers(5, 10_000)]
    full = ComposedDataset(data, drop_last=True, **settings)
    assert full.counts() == [4, 4]
    padded = ComposedDataset(data, pad=str, **settings)
    assert padded.counts() == [5, 5]
    assert [len(list(full)) // 4, len(list(padded)) // 4] == [2, 3]
    for epoch in range(3):
        samples = list(chain.from_iterable(padded.at(range(12 * epoch, 12 * epoch + 12))))
        drawn = [each for each in samples if not isinstance(each, str)]
        assert sorted(drawn) == [*range(5), *range(10_000, 10_005)]
        assert len(samples) - len(drawn) == 2


@pytest.mark.parametrize("least", [1, 2, 33, 65, 66])
def test_a_stream_too_small_for_every_batch_comes_as_often_as_asked(least, caplog):
    data = [numbers(1000), numbers(least, 10_000)]
    batches = ComposedDataset(data, batch_size=8, batching_method="stratified")
    smallest = int(caplog.messages[0].split("Batches of ")[1].split(" ")[0])
    assert streams_in(list(batches), 2) == (1000, least)
    caplog.clear()
    whole = ComposedDataset(data, batch_size=smallest, batching_method="stratified")
    assert whole.counts() == [1000, least]
    assert not caplog.records
    ComposedDataset(data, batch_size=smallest - 1, batching_method="stratified")
    assert f"Batches of {smallest} would hold all" in caplog.text


@pytest.mark.parametrize(
    ("sizes", "method", "batch", "whole", "told"),
    [
        ((5, 5), "random", 1, 4, r"10 samples leaves 2 .* too few for 4 devices. Use drop_last"),
        ((3, 3), "stratified", 8, 8, "cannot fill one global batch of 8; use .* of at most 6"),
        ((1000, 6), "per_stream", 4, 8, r"stream 1 \(.*\) gives 6 samples .* 8.* at most 6"),
        ((8, 3), "device_per_stream", 4, None, r"stream 1 \(.*\) gives 3 samples .* at most 3"),
    ],
)
def test_batches_that_cannot_be_filled(sizes, method, batch, whole, told):
    """MosaicML Streaming ends some of these without a message."""
    data = [numbers(size, 10_000 * i) for i, size in enumerate(sizes)]
    options = {"batch_size": batch, "global_batch_size": whole, "batching_method": method}
    with pytest.raises(ConfigError, match=told):
        ComposedDataset(data, **options)
