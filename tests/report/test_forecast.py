"""Plans and simulations of any dataset, against what is counted and read."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from energize import (
    BatchDataset,
    BlendDataset,
    EpochizeDataset,
    FilterDataset,
    IterableSource,
    LimitDataset,
    ListSource,
    PackingDataset,
    RepeatDataset,
    Schedule,
    SequenceSource,
    ShuffleDataset,
    WebdatasetSource,
)
from energize.core.restoring import loads_of
from energize.data.selection import PropertySource, source_labels
from energize.datasets.stage_plan import Stage
from energize.errors import ConfigError, EmptyDatasetError, NotIndexedError
from energize.experimental import StagedDataset, StagePlan
from energize.packing import Packer
from energize.report import plan, simulate
from energize.report.levels import source_names
from tests.support.datasets import INDEXED, is_even
from tests.support.shards import prepared


def source(count, name="source"):
    return SequenceSource(range(count), name=name)


def shuffled(count, name="source", **options):
    return ShuffleDataset(source(count, name), **options)


def batches(*pairs, size=4, **options):
    return BatchDataset(BlendDataset(*pairs, **options), size, list)


MIXES = {
    "three": batches((shuffled(30, "a"), 5), (shuffled(7, "b"), 2), (source(12, "c"), 0.5)),
    "replacement": batches(
        (shuffled(500, "a", over_epochs=-1), 3), (shuffled(300, "b", over_epochs=3), 2)
    ),
    "longer epochs": BatchDataset(ShuffleDataset(EpochizeDataset(source(9), 13)), 4, list),
    "limit": BatchDataset(LimitDataset(shuffled(20), 13), 4, list),
    "stages": StagedDataset(
        StagePlan([
            Stage("first", 0, 5, dataset=batches((shuffled(30, "a"), 1), (source(9, "b"), 1))),
            Stage("second", 5, 60, dataset=batches((shuffled(30, "a"), 3), (source(8, "c"), 1))),
        ])
    ),
}  # fmt: skip


NOT_EXACT = ("replacement", "limit", "longer epochs")


def counted(dataset, steps):
    """Samples drawn of each source, and the first step of each with one that came
    before."""
    drawn = Counter()
    seen = set()
    repeats = {}
    for step in range(steps):
        refs = dataset.refs(np.array([step]))
        for number, index in zip(
            refs.source.tolist(), refs.index.tolist(), strict=True
        ):
            drawn[number] += 1
            if (number, index) in seen:
                repeats.setdefault(number, step)
            seen.add((number, index))
    return drawn, repeats


def check_against_counting(dataset, steps):
    run = simulate(dataset, steps)
    drawn, repeats = counted(dataset, steps)
    assert run.samples == drawn.total()
    for number, each in enumerate(run.sources):
        assert each.drawn == drawn[number]
        if run.spent is None:
            assert each.share == pytest.approx(drawn[number] / drawn.total())
        assert each.epochs == drawn[number] / dataset.sources[number].count
        if each.repeats_exact:
            assert each.repeats_at == repeats.get(number)
        elif each.repeats_at is not None:
            assert repeats[number] <= each.repeats_at < steps
        else:
            assert each.drawn <= each.count
    return run


@pytest.mark.parametrize("steps", [1, 2, 7, 60, 150])
@pytest.mark.parametrize("name", MIXES)
def test_a_simulation_is_what_counting_gives(name, steps):
    run = check_against_counting(MIXES[name], steps)
    assert all(each.repeats_exact for each in run.sources) or name in NOT_EXACT


@pytest.mark.parametrize("name", INDEXED)
def test_every_indexed_dataset_is_simulated_and_planned(name):
    dataset = INDEXED[name]
    run = check_against_counting(dataset, 40)
    assert run.unit
    known = run.requested[~np.isnan(run.requested).any(axis=1)]
    assert np.allclose(known.sum(axis=1), 1, atol=1e-6)
    assert not (np.nan_to_num(run.requested) < -1e-9).any()
    refs = dataset.refs(np.arange(40))
    labels = source_names(dataset)
    got = [
        (batch.step, sample.source, sample.index, sample.epoch)
        for batch in plan(dataset, 0, 40)
        for sample in batch.samples
    ]
    columns = (refs.item, refs.source, refs.index, refs.epoch)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    assert got == [
        (item, labels[number], stored(dataset.sources[number], index), epoch)
        for item, number, index, epoch in rows
    ]


def stored(source, index):
    """The number of a sample where it lies."""
    return int(source.rows[index]) if isinstance(source, PropertySource) else index


def test_far_steps_cost_what_near_ones_do():
    dataset = batches((shuffled(10**8, "a"), 2), (shuffled(10**6, "b"), 1), size=100)
    list(plan(dataset, 0, 10))
    far = list(plan(dataset, 10**9, 10))
    simulate(dataset, 10**12, intervals=200)
    assert [batch.step for batch in far] == list(range(10**9, 10**9 + 10))
    assert all(len(batch.samples) == 100 for batch in far)


def test_stages_end_where_the_simulation_does():
    told = simulate(MIXES["stages"], 3).stages + simulate(MIXES["stages"], 9).stages
    assert [(e.name, e.start, e.stop) for e in told] == [
        ("first", 0, 3), ("first", 0, 5), ("second", 5, 9),
    ]  # fmt: skip


def test_ranks_take_turns_in_every_epoch():
    finite = BatchDataset(shuffled(10), 4, list)  # 3 batches per epoch
    assert [batch.rank for batch in plan(finite, 1, 6, world_size=2)] == [
        1,
        0,
        0,
        1,
        0,
        0,
    ]
    assert [batch.rank for batch in plan(finite, 0, 3)] == [None] * 3


def test_shards_and_numbers(tmp_path):
    folder = prepared(
        tmp_path / "d", counts=(3, 5, 2), exclude=("parts/d1.tar/000004",)
    )
    data = WebdatasetSource(folder)
    read = data.at(range(9))
    (batch,) = plan(BatchDataset(data, 9, list), 0, 1, keys=True)
    expected = [
        (sample["__shard__"], sample["__index__"], sample["__key__"]) for sample in read
    ]
    assert [
        (sample.shard, sample.index, sample.key) for sample in batch.samples
    ] == expected
    shards, numbers = data.locate(np.arange(9))
    assert [(data.shards[s], n) for s, n in zip(shards, numbers, strict=True)] == [
        (shard, number) for shard, number, _ in expected
    ]
    assert data.keys(np.array([8, 0])) == ["000009", "000000"]


def test_shares_over_time():
    falling = Schedule([(0, 1.0), (8000, 0.0)], "linear")
    dataset = batches((shuffled(200, "a"), falling), (shuffled(90, "b"), 1))
    run = simulate(dataset, 4000, intervals=16)
    assert run.points.tolist() == list(range(0, 4001, 250))
    for row, (first, last) in zip(
        run.shares(), pairwise(run.points.tolist()), strict=True
    ):
        of = np.bincount(dataset.refs(np.arange(first, last)).source, minlength=2)
        assert row.tolist() == (of / of.sum()).tolist()
    assert 0.45 < run.shares()[0, 0] < 0.5
    assert np.all(np.diff(run.shares()[:8, 0]) < 0)
    assert not run.shares()[8:, 0].any()
    assert simulate(dataset, 3, intervals=200).points.tolist() == [0, 1, 2, 3]


def test_labels(tmp_path):
    folders = [
        tmp_path / name for name in ("web/captions", "books/captions", "a/b/x", "c/b/x")
    ]
    web, books, one, other = [WebdatasetSource(prepared(each)) for each in folders]
    val = WebdatasetSource(folders[2], split_part="val")
    assert source_labels([web]) == ["captions"]
    assert source_labels([web, books, one, other]) == [
        "web/captions", "books/captions", "a/b/x", "c/b/x",
    ]  # fmt: skip
    assert source_labels([one, val, web]) == ["x [train]", "x [val]", "captions"]
    assert source_labels([web, one, web]) == ["captions #1", "x", "captions #2"]
    assert source_labels([source(3, "x"), source(4, "x"), source(3, "y")]) == [
        "x #1",
        "x #2",
        "y",
    ]


def test_a_stream_is_estimated_by_what_some_batches_took():
    """A third is left out, and 1,000 samples are packed at a time, of which 20 fit
    together."""
    web, code = shuffled(4000, "web"), shuffled(600, "code")
    blend = BlendDataset((web, 3), (code, 1))
    thirds = FilterDataset(blend, lambda number: number % 3 > 0)
    packs = PackingDataset(thirds, 1000, Packer(length=lambda _: 1, capacity=20), list)
    run = simulate(BatchDataset(packs, 5, list), 1000, intervals=10, read=3)
    assert run.read == 10
    assert run.samples == pytest.approx(150_000, rel=0.01)
    assert [each.requested for each in run.sources] == [0.75, 0.25]
    assert run.sources[1].repeats_at == pytest.approx(600 * 4 / 150, abs=2)
    assert run.shares().shape == (10, 2)
    whole = BlendDataset((RepeatDataset(FilterDataset(web, is_even)), 1), (code, 1))
    assert simulate(whole, 1000, read=500).drawn[-1].tolist() == pytest.approx(
        [1000, 500], rel=0.1
    )
    with pytest.raises(NotIndexedError, match="IterableSource is a stream"):
        simulate(BatchDataset(IterableSource(range(9)), 2, list), 10, read=2)
    with pytest.raises(EmptyDatasetError, match="returned no batch for an estimate"):
        simulate(FilterDataset(web, lambda _: False), 10, read=2)


def test_wrong_arguments():
    dataset = MIXES["three"]
    stream = BatchDataset(FilterDataset(shuffled(9), is_even), 2, list)
    for wrong in (lambda: plan(stream, 0, 1), lambda: simulate(stream, 1)):
        with pytest.raises(NotIndexedError, match="known only by reading"):
            wrong()
    for at, steps in ((-1, 1), (0, 0), (0, -3), (True, 1), (0, 1.5)):
        with pytest.raises(ConfigError, match=r"must be a whole number >= [01], got "):
            plan(dataset, at, steps)
    for wrong, words in (
        (lambda: plan(dataset, 2**62, 1), "too far away"),
        (lambda: simulate(dataset, 0), "steps must be a whole number >= 1, got 0"),
        (
            lambda: plan(dataset, 0, 1, world_size=0),
            "world_size must be a whole number >= 1",
        ),
        (lambda: simulate(dataset, 5, intervals=0), "intervals"),
    ):
        with pytest.raises(ConfigError, match=words):
            wrong()
    assert list(plan(dataset, np.int64(5), np.int32(2))) == list(plan(dataset, 5, 2))


def test_an_interval_begins_where_weights_change():
    weights = Schedule([(0, 3), (150 * 12, 1)]), Schedule([(0, 1), (150 * 12, 2)])
    blend = BlendDataset(*zip(map(ListSource, ("ab", "c")), weights, strict=True))
    run = simulate(BatchDataset(blend, 12, list), 400, intervals=75)
    assert 150 in run.points.tolist()
    assert np.unique(run.requested.round(3), axis=0).tolist() == [
        [0.333, 0.667],
        [0.75, 0.25],
    ]


@pytest.mark.parametrize("stream", [False, True])
def test_a_source_that_two_stages_read_is_one_source(stream):
    firsts = {"a": 0, "b": 100, "c": 200}
    read = [ListSource(range(at, at + 20), name=name) for name, at in firsts.items()]
    read = [FilterDataset(each, lambda _: True) if stream else each for each in read]
    stages = [
        Stage("one", 0, 5, dataset=batches((read[0], 1), (read[1], 1))),
        Stage("two", 5, 10, dataset=batches((read[1], 1), (read[2], 1))),
    ]
    dataset = StagedDataset(StagePlan(stages), carry_over=not stream)
    assert [each.name for each, _ in loads_of(dataset)] == list(firsts)
    found = plan(dataset, 0, 10, read=True)
    assert [
        [firsts[s.source] + s.index for s in each.samples] for each in found
    ] == list(dataset)
