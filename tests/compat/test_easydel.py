"""EasyDeL's mixing: its order where that is a promise, its faults mended everywhere."""

from __future__ import annotations

import copy
from collections import Counter
from itertools import islice

import pytest

from energize import (
    ConfigError,
    EmptyDatasetError,
    NotIndexedError,
    StateMismatchError,
    WeightError,
    get_loader,
)
from energize.compat.easydel import MixedShardedSource, block_mixture_interleave
from energize.core.lanes import WorkerConfig
from energize.order.schedule import WeightSchedulePoint, WeightScheduler
from energize.testing import check_laws, check_resume
from tests.support.rows import Stream


def lists(**sizes):
    return {name: [{"i": i} for i in range(size)] for name, size in sizes.items()}


def streams(**sizes):
    return {name: Stream({"i": i} for i in range(size)) for name, size in sizes.items()}


def taken(mixed, count):
    return list(islice(mixed.open_shard("mixed_shard_0"), count))


def tags(mixed, count):
    return "".join(example["__source__"] for example in taken(mixed, count))


GOLDEN_ORDERS = [
    ({"a": 0.3, "b": 0.7}, 42, "bbabbabbababbbbabbabbaabbabbbb"),
    ({"a": 0.3, "b": 0.7}, 0, "bbabbbbababbbaaabbbbaabbbbbbba"),
    ({"a": 0.3, "b": 0.7}, 43, "abbbbabbabbaabbabbbbbbabbbbaab"),
    ({"a": 0.3, "b": 0.7}, 123, "bbaaabbbbbbaaabbbbbbabbbbbbaba"),
    ({"a": 1.0, "b": 1.0, "c": 1.0}, 42, "bbacaabcacaccbcabbaa"),
    ({"b": 0.7, "a": 0.3}, 42, "bbbabbbababaababbbbbbbbbbbabaa"),
]


@pytest.mark.parametrize("make", [lists, streams])
@pytest.mark.parametrize(("weights", "seed", "order"), GOLDEN_ORDERS)
def test_easydel_order(weights, seed, order, make):
    sources = make(**dict.fromkeys(weights, 50))
    mixed = MixedShardedSource(sources, weights, 10, seed, order="easydel")
    assert tags(mixed, len(order)) == order


@pytest.mark.parametrize("make", [lists, streams])
def test_easydel_order_under_restart(make):
    sources = make(a=3, b=5)
    mixed = MixedShardedSource(sources, None, 4, 42, order="easydel")
    seen = [f"{each['__source__']}{each['i']}" for each in taken(mixed, 20)]
    assert " ".join(seen) == "b0 b1 a0 a1 a2 b2 a0 b3 a1 a2 b4 b0 b1 b2 a0 a1 a2 a0 b3 b4"


@pytest.mark.parametrize("make", [lists, streams])
@pytest.mark.parametrize(("seed", "size"), [(42, 25), (0, 17), (1, 30), (2, 19), (3, 23)])
def test_easydel_end_at_the_first_exhausted(make, seed, size):
    mixed = MixedShardedSource(
        make(a=10, b=1000), None, 1000, seed, "first_exhausted", order="easydel"
    )
    seen = Counter(each["__source__"] for each in mixed.iter_shards())
    assert seen == {"a": 10, "b": size - 10}


SCHEDULE = [
    WeightSchedulePoint(0, {"code": 0.2, "text": 0.8}),
    WeightSchedulePoint(10_000, {"code": 0.5, "text": 0.5}),
    WeightSchedulePoint(50_000, {"code": 0.8, "text": 0.2}),
]


def scheduled(order="energize", **options):
    scheduler = WeightScheduler(SCHEDULE, "linear", **options)
    sources = lists(code=100, text=100)
    return MixedShardedSource(sources, None, 1000, 1, weight_scheduler=scheduler, order=order)


def test_easydel_schedule_per_block():
    mixed = scheduled("easydel").dataset
    counts = {
        block: sum(
            mixed.refs(range(block * 1000, (block + 1) * 1000)).source
            == [s.name for s in mixed.sources].index("code")
        )
        for block in (0, 1, 2, 5, 9, 10, 11, 12, 30, 50, 400)
    }
    expected = {0: 200, 1: 230, 2: 260, 5: 350, 9: 470, 10: 500, 11: 508, 12: 515, 30: 650}
    assert counts == expected | {50: 800, 400: 800}
    assert mixed.consumed(50_000).tolist()[0] == 29_212


def test_a_schedule_gives_its_integral():
    mixed = scheduled().dataset
    code = [source.name for source in mixed.sources].index("code")
    assert mixed.consumed(50_000)[code] == 29_500
    assert mixed.consumed(1_000)[code] == 215


BLOCKS = [
    ({"code": 0.4, "text": 0.5, "math": 0.1}, 1000, {"code": 400, "text": 500, "math": 100}),
    ({"a": 0.3, "b": 0.7}, 1000, {"a": 300, "b": 700}),
    ({"a": 2, "b": 6}, 100, {"a": 25, "b": 75}),
    (dict.fromkeys("abc", 1), 1000, {"a": 334, "b": 333, "c": 333}),
    (dict.fromkeys("abc", 1), 10, {"a": 4, "b": 3, "c": 3}),
    (dict.fromkeys("abcdefg", 1), 10, {**dict.fromkeys("abc", 2), **dict.fromkeys("defg", 1)}),
    ({"a": 0.15, "b": 0.15, "c": 0.7}, 10, {"a": 2, "b": 1, "c": 7}),
    ({"a": 0.4, "b": 0.4, "c": 0.2}, 3, {"a": 1, "b": 1, "c": 1}),
    ({"a": 0.29, "b": 0.71}, 100, {"a": 29, "b": 71}),
]


@pytest.mark.parametrize("make", [lists, streams])
@pytest.mark.parametrize(("weights", "block_size", "first"), BLOCKS)
def test_the_first_block_holds_the_shares_in_whole_examples(weights, block_size, first, make):
    """Shares that are not whole are rounded up or down; which of equal ones is no promise."""
    mixed = MixedShardedSource(make(**dict.fromkeys(weights, 7)), weights, block_size, 5)
    found = Counter(each["__source__"] for each in taken(mixed, block_size))
    assert sorted(found.values()) == sorted(first.values())
    total = sum(weights.values())
    for name, weight in weights.items():
        assert abs(found[name] - block_size * weight / total) < 1 - 1e-9


@pytest.mark.parametrize(
    ("weights", "block_size"),
    [
        ({"a": 0.005, "b": 0.995}, 100),
        ({"a": 0.5, "b": 0.4995, "c": 0.0005}, 1000),
        ({"a": 0.5, "b": 0.5}, 1),
    ],
)
def test_small_shares_are_carried_from_block_to_block(weights, block_size):
    """A source is not starved because it is due less than one slot of a block."""
    mixed = MixedShardedSource(lists(**dict.fromkeys(weights, 7)), weights, block_size, 5)
    n = 200_000
    counts = dict(zip(sorted(weights), mixed.dataset.consumed(n).tolist(), strict=True))
    assert counts == {name: pytest.approx(weights[name] * n, abs=2) for name in weights}


@pytest.mark.parametrize("make", [lists, streams])
@pytest.mark.parametrize("block_size", [1, 2, 3, 4, 1000])
@pytest.mark.parametrize("sizes", [{"a": 10, "b": 30}, {"a": 3, "b": 50, "c": 50}, {"a": 10}])
def test_all_exhausted_gives_each_example_once(make, sizes, block_size):
    """Neither endless nor too early, whatever the block size."""
    mixed = MixedShardedSource(make(**sizes), None, block_size, 0, "all_exhausted")
    seen = Counter((each["__source__"], each["i"]) for each in mixed.iter_shards())
    assert seen == {(name, i): 1 for name, size in sizes.items() for i in range(size)}


@pytest.mark.parametrize("make", [lists, streams])
def test_first_exhausted(make):
    whole = MixedShardedSource(make(a=1000, b=1000), None, 1000, 0, "first_exhausted")
    assert sum(1 for _ in whole.iter_shards()) == 2000
    untouched = MixedShardedSource(make(a=10, b=0), {"a": 1, "b": 0}, 1000, 0, "first_exhausted")
    assert tags(untouched, 99) == "a" * 10


@pytest.mark.parametrize("make", [lists, streams])
def test_restart(make):
    """An empty source is an error that names it; a short one starts again, in every block."""
    mixed = MixedShardedSource(make(a=10, b=1000), None, 100, 0)
    assert [tags(mixed, 1000)[k : k + 100].count("a") for k in range(0, 1000, 100)] == [50] * 10
    with pytest.raises(EmptyDatasetError, match=r"a gave no item|no items \(it reads 'a'\)"):
        taken(MixedShardedSource(make(a=0, b=5), None, 4, 0), 10)


def test_restarted_sources_are_shuffled_anew():
    """And, for who wants it, in the stored order."""
    mixed = MixedShardedSource(lists(a=20), None, 10, 0)
    passes = [[each["i"] for each in mixed.dataset.at(range(20 * k, 20 * k + 20))] for k in (0, 1)]
    assert sorted(passes[0]) == sorted(passes[1]) == list(range(20))
    assert passes[0] != passes[1]
    stored = MixedShardedSource(lists(a=20), None, 10, 0, shuffle=False)
    assert [each["i"] for each in taken(stored, 25)] == [*range(20), *range(5)]


def test_neighbouring_seeds_do_not_share_blocks():
    orders = [
        tags(MixedShardedSource(lists(a=50, b=50), {"a": 0.3, "b": 0.7}, 10, seed), 200)
        for seed in (42, 43)
    ]
    blocks = [{order[k : k + 10] for k in range(0, 200, 10)} for order in orders]
    assert orders[0][10:190] != orders[1][:180]
    assert len(blocks[0] & blocks[1]) < 15


def test_the_order_does_not_depend_on_the_order_of_names():
    one = MixedShardedSource(lists(a=9, b=8), {"a": 0.3, "b": 0.7}, 10, 42)
    other = MixedShardedSource(lists(b=8, a=9), {"b": 0.7, "a": 0.3}, 10, 42)
    assert taken(one, 100) == taken(other, 100)


def test_seeds():
    """The same seed is the same mix; none at all is another one each time; 0 is a seed."""

    def first(seed):
        return tags(MixedShardedSource(lists(a=9, b=9), None, 100, seed), 100)

    assert first(0) == first(0) != first(1)
    assert first(None) != first(None)


def test_without_a_seed_ranks_would_read_different_mixes(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="give all of them the same seed"):
        MixedShardedSource(lists(a=9, b=9))


def test_the_source_is_written_into_a_copy():
    """Two sources may share their examples."""
    shared = [{"i": 0}, {"i": 1}]
    before = copy.deepcopy(shared)
    mixed = MixedShardedSource({"a": shared, "b": shared}, None, 4, 0)
    assert Counter(each["__source__"] for each in taken(mixed, 100)) == {"a": 50, "b": 50}
    assert shared == before


def test_one_source_is_mixed_like_many():
    """It is tagged, and starts again."""
    assert tags(MixedShardedSource(lists(a=3), None, 4, 0), 10) == "a" * 10


@pytest.mark.parametrize("make", [lists, streams])
@pytest.mark.parametrize("stop", ["restart", "first_exhausted", "all_exhausted"])
def test_every_mix_keeps_the_laws(make, stop):
    check_laws(MixedShardedSource(make(a=5, b=12), {"a": 1, "b": 2}, 4, 3, stop).dataset, items=40)


def test_a_stream_under_a_schedule_keeps_the_laws():
    scheduler = WeightScheduler(
        [WeightSchedulePoint(0, {"a": 1, "b": 0}), WeightSchedulePoint(20, {"a": 0, "b": 1})],
        "linear",
    )
    mixed = MixedShardedSource(streams(a=5, b=7), None, 4, 3, weight_scheduler=scheduler)
    check_resume(mixed.dataset, items=40)
    assert tags(mixed, 2) == "aa"
    assert tags(mixed, 40).endswith("b" * 10)


SWITCH = [WeightSchedulePoint(0, {"a": 1, "b": 0}), WeightSchedulePoint(1000, {"a": 0, "b": 1})]


@pytest.mark.parametrize("make", [lists, streams])
@pytest.mark.parametrize("interpolation", ["step", "linear"])
def test_sources_left_without_a_weight_are_read_all_the_same(make, interpolation):
    scheduler = WeightScheduler(SWITCH, interpolation)
    mixed = MixedShardedSource(
        make(a=10, b=7), None, 4, 3, "all_exhausted", weight_scheduler=scheduler
    )
    assert tags(mixed, 99) == "a" * 10 + "b" * 7
    check_resume(mixed.dataset, items=40)


def test_resuming_at_a_row_costs_no_replay():
    """Row 1234 and row 10**9 are one look away."""
    sources = lists(a=700, b=900)
    mixed = MixedShardedSource(sources, {"a": 0.3, "b": 0.7}, 100, 7)
    whole = taken(mixed, 1734)
    resumed = mixed.open_shard_at_row("mixed_shard_0", 1234)
    assert list(islice(resumed, 500)) == whole[1234:]
    assert resumed.state() == {"position": 1734}
    assert next(mixed.open_shard_at_row("mixed_shard_0", 10**9))["__source__"] in "ab"
    again = mixed.open_shard("mixed_shard_0", state=resumed.state())
    assert next(again) == next(resumed)


def test_ranks_read_parts_of_one_mix():
    mixed = MixedShardedSource(lists(a=5, b=12), None, 4, 3, "all_exhausted").dataset
    configs = [WorkerConfig(rank, 3) for rank in range(3)]
    parts = [list(get_loader(mixed, worker_config=c, uneven="allow")) for c in configs]
    assert [part[k] for k in range(6) for part in parts if k < len(part)] == list(mixed)


def test_lengths_are_true():
    assert len(MixedShardedSource(lists(a=5, b=12), None, 4, 3, "all_exhausted")) == 17
    assert len(MixedShardedSource(lists(a=5, b=12), None, 4, 3)) == 17
    with pytest.raises(NotIndexedError, match="have been read"):
        len(MixedShardedSource(streams(a=5, b=12), None, 4, 3, "all_exhausted"))


BAD = [
    ({"weights": {"a": 1}}, WeightError, "missing 'b'"),
    ({"weights": {"a": 1, "b": 1, "bb": 1}}, WeightError, "unknown 'bb'"),
    ({"weights": [1, 1]}, WeightError, r"weights maps names to numbers.*got \[1, 1\]"),
    ({"weights": {"a": -1, "b": 2}}, WeightError, "'a': a weight is .*-1"),
    ({"weights": {"a": float("nan"), "b": 2}}, WeightError, "'a': a weight is .*nan"),
    ({"weights": {"a": 0, "b": 0}}, WeightError, "all 2 weights are 0"),
    ({"block_size": 0}, ConfigError, "block_size.*got 0"),
    ({"stop_strategy": "restrat"}, ConfigError, "did you mean 'restart'"),
    ({"order": "other"}, ConfigError, "order is 'energize' or 'easydel'; got 'other'"),
    ({"seed": -1}, ConfigError, "seed.*-1"),
    ({"stop_strategy": "all_exhausted", "order": "easydel"}, ConfigError, "order='energize'"),
    (
        {"weight_scheduler": WeightScheduler([WeightSchedulePoint(0, {"a": 0.5, "c": 0.5})])},
        WeightError,
        "missing 'b'; unknown 'c'",
    ),
    ({"sources": {}}, ConfigError, "no datasets to mix"),
    ({"sources": [1]}, ConfigError, r"sources is given by name.*got \[1\]"),
    ({"sources": {1: [{"i": 0}]}}, ConfigError, "sources is given by name.*got {1: "),
    ({"weight_scheduler": "linear"}, ConfigError, "is a WeightScheduler.*got 'linear'"),
]


@pytest.mark.parametrize(("given", "error", "message"), BAD)
def test_bad_input_is_refused_where_it_is_given(given, error, message):
    with pytest.raises(error, match=message):
        MixedShardedSource(**{"sources": lists(a=2, b=2), "seed": 0} | given)


def test_the_mixed_shard_has_a_name():
    with pytest.raises(ConfigError, match="mixed_shard_0"):
        MixedShardedSource(lists(a=2), seed=0).open_shard("other")


def test_a_state_of_another_mix_is_refused_with_the_difference():
    def mix(share):
        return block_mixture_interleave(lists(a=9, b=9), {"a": share, "b": 1 - share})

    one, other = mix(0.5), mix(0.25)
    next(iter(one))
    other.load_state_dict(one.state_dict())
    with pytest.raises(StateMismatchError, match=r"weights"):
        next(iter(other))
