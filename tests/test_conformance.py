"""What other mixing systems were seen to do, asked of this one through the public API.

The cases are runs of EasyDeL 0.3, squirrel-core 0.20, nanotron, the data-stages document and
MosaicML Streaming 0.13. Where "improve" is in a name, there it is another value, and the one that
is intended is asked for. What has to be refused is in test_conformance_errors.py.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain, islice

import numpy as np
import pytest

from energize import (
    ComposedDataset,
    Quota,
    QuotaDataset,
    Stage,
    StateMismatchError,
    WeightSchedulePoint,
    WeightScheduler,
    make_scheme,
)
from energize.compat.easydel import MixedShardedSource
from energize.compat.squirrel import Multiplexer, MultiplexingStrategy
from tests.support.datasets import numbers
from tests.support.rows import Stream
from tests.support.stages import staged, two_mixes

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


# Weights, block size, counts of every block; in this order nothing is carried to the next one.
EVERY_BLOCK = [
    ([0.4, 0.5, 0.1], 1000, [400, 500, 100]),
    ([0.5, 0.3, 0.2], 1000, [500, 300, 200]),
    ([0.3, 0.7], 1000, [300, 700]),
    ([1, 1], 1000, [500, 500]),
    ([1, 1, 1], 1000, [334, 333, 333]),
    ([1, 1, 1], 10, [4, 3, 3]),
    ([1] * 7, 10, [4, 1, 1, 1, 1, 1, 1]),
    ([0.15, 0.15, 0.7], 10, [1, 1, 8]),
    ([0.005, 0.995], 100, [0, 100]),
    ([0.4, 0.4, 0.2], 3, [2, 1, 0]),
    ([2, 6], 100, [25, 75]),
    ([0.5, 0.4995, 0.0005], 1000, [501, 499, 0]),
    ([0.5, 0.5], 1, [1, 0]),
]


@pytest.mark.parametrize(("weights", "size", "counts"), EVERY_BLOCK, ids=str)
def test_every_block_of_the_easydel_order(weights, size, counts):
    source = mixed([5] * len(weights), weights, size, order="easydel")
    seen = [row["__source__"] for row in taken(source, 3 * size)]
    blocks = [seen[start : start + size] for start in range(0, 3 * size, size)]
    names = "abcdefg"[: len(weights)]
    assert [[block.count(name) for name in names] for block in blocks] == [counts] * 3


@pytest.mark.parametrize("size", [10, 1000])
def test_the_slot_too_many_of_three_equal_sources_goes_round(size):
    """What is left is carried: the first source has it in the first block, another in the next."""
    scheme = make_scheme("block", [1, 1, 1], block_size=size)
    counts = np.diff([scheme.counts(size * block) for block in range(4)], axis=0)
    assert counts[0].tolist() == [size // 3 + 1, size // 3, size // 3]
    assert counts.max(axis=0).tolist() == [size // 3 + 1] * 3
    assert counts.sum(axis=0).tolist() == [size] * 3


def test_blocks_of_one_alternate():
    source, _ = make_scheme("block", [0.5, 0.5], block_size=1).locate(np.arange(10))
    assert source.tolist() == [0, 1] * 5


def test_how_often_sources_are_opened():
    sources = {"a": Stream(rows(3)), "b": Stream(rows(5))}
    taken(MixedShardedSource(sources, None, 4, 42, order="easydel"), 20)
    assert {name: source.passes for name, source in sources.items()} == {"a": 4, "b": 2}


def test_a_short_source_is_seen_evenly():
    seen = taken(mixed([10, 1000], [1, 1], 100), 1000)
    visits = Counter((row["__source__"], row["i"]) for row in seen)
    assert {visits["a", i] for i in range(10)} == {50}
    assert max(visits["b", i] for i in range(1000)) == 1


@pytest.mark.parametrize("order", ["easydel", "energize"])
def test_stored_order_wraps(order):
    source = mixed([5000, 200], [0.9, 0.1], 1000, order=order, shuffle=False)
    math = [row["i"] for row in taken(source, 3000) if row["__source__"] == "b"]
    assert math == [*range(200), *range(100)]


def test_half_way_between_two_points():
    points = [
        WeightSchedulePoint(step=0, weights={"code": 0.3, "text": 0.7}),
        WeightSchedulePoint(step=10_000, weights={"code": 0.5, "text": 0.5}),
    ]
    scheduler = WeightScheduler(points, interpolation="linear")
    assert scheduler.get_weights(5_000) == pytest.approx({"code": 0.4, "text": 0.6})


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


def test_counts_are_those_of_one_epoch():
    mux = Multiplexer([range(10), range(20)], MultiplexingStrategy.SAMPLING, [0.5, 0.5], seed=1)
    for _ in range(2):
        assert len(list(mux)) == sum(mux.num_samples)
        assert max(mux.reinit_counts) < 10


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


def test_three_stages_of_five_steps():
    names = ("stage_1", "stage_2", "stage_3")
    stages = [Stage(name, 5 * i, dataset=numbers(50, 100 * i)) for i, name in enumerate(names)]
    data = staged(*stages, total=15)
    assert [number // 100 for number in data] == [0] * 5 + [1] * 5 + [2] * 5
    cursor = data.open()
    list(islice(cursor, 7))
    assert cursor.state()["stage_name"] == "stage_2"
    assert list(data.open(state=cursor.state())) == list(data)[7:]


# MosaicML Streaming


def test_sizes_of_epochs_as_text():
    streams = [(numbers(size, 1000 * size), Quota(proportion=1)) for size in (100, 200)]
    assert QuotaDataset(streams, epoch_size="1k").counts() == [500, 500]


# Method, sizes, proportions, epoch_size, device batch, ranks; batches on each rank, samples
# of each stream in an epoch, and how many global batches hold what (None: it varies).
COMPOSED = {
    "random, improve": ("random", (100, 100), None, None, 8, 1, 25, [100, 100], None),
    "random on two devices": ("random", (41, 28), None, None, 4, 2, 9, [41, 28], None),
    "two to three, in fours, improve": (
        *("stratified", (200, 300), None, None, 4, 1, 125, [200, 300]),
        {(2, 2): 75, (1, 3): 50},
    ),
    "two to three, in tens": (
        *("stratified", (200, 300), None, None, 10, 1, 50, [200, 300]),
        {(4, 6): 50},
    ),
    "three alike, improve": (
        *("stratified", (300,) * 3, (1, 1, 1), None, 10, 1, 90, [300] * 3),
        {(4, 3, 3): 30, (3, 4, 3): 30, (3, 3, 4): 30},
    ),
    "nine to one, improve": (
        *("stratified", (1000, 1000), (0.9, 0.1), 1000, 8, 1, 125, [900, 100]),
        {(7, 1): 100, (8, 0): 25},
    ),
    "four to one, improve": (
        *("stratified", (1000, 1000), (0.8, 0.2), 1000, 8, 1, 125, [800, 200]),
        {(6, 2): 75, (7, 1): 50},
    ),
    "eleven to nine, improve": (
        *("stratified", (1000, 1000), (0.55, 0.45), 1000, 2, 1, 500, [550, 450]),
        {(1, 1): 450, (2, 0): 50},
    ),
    "six to three to one": (
        *("stratified", (300,) * 3, (0.6, 0.3, 0.1), None, 10, 1, 90, [540, 270, 90]),
        {(6, 3, 1): 90},
    ),
    "two alike, on four devices, improve": (
        *("stratified", (160, 160), (1, 1), None, 4, 4, 20, [160, 160]),
        {(8, 8): 20},
    ),
    "a stream at a time, in fours": (
        *("per_stream", (200, 300), None, None, 4, 1, 125, [200, 300]),
        {(4, 0): 50, (0, 4): 75},
    ),
    "a stream at a time, in sevens": (
        *("per_stream", (200, 300), None, None, 7, 1, 70, [196, 294]),
        {(7, 0): 28, (0, 7): 42},
    ),
    "a stream at a time, on two devices": (
        *("per_stream", (1000, 8), None, None, 4, 2, 126, [1000, 8]),
        {(8, 0): 125, (0, 8): 1},
    ),
    "a stream per device, improve": (
        "device_per_stream",
        (200, 300),
        None,
        None,
        4,
        4,
        31,
        [200, 296],
        None,
    ),
    "a stream per device, of two, improve": (
        "device_per_stream",
        (40, 28),
        None,
        None,
        4,
        2,
        8,
        [36, 28],
        None,
    ),
    "a stream per device, few samples": (
        "device_per_stream",
        (41, 28),
        None,
        None,
        4,
        4,
        4,
        [40, 24],
        None,
    ),
    "a stream without samples": (
        "random",
        (10, 9),
        (1, 0),
        None,
        2,
        1,
        10,
        [19, 0],
        {(2, 0): 9, (1, 0): 1},
    ),
}


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


def test_every_rank_sees_every_stream():
    batches = ComposedDataset(
        [numbers(160), numbers(160, 10_000)],
        batch_size=4,
        global_batch_size=16,
        batching_method="stratified",
    )
    items = list(batches)
    for rank in range(4):
        first, second = streams_in(items[rank::4], 2)
        assert first + second == 80
        assert abs(first - second) <= 16


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
