"""States that go on in an edited mix: every source that is still there keeps its place."""

from __future__ import annotations

import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from energize import (
    BatchDataset,
    BlendDataset,
    FilterDataset,
    LevelDataset,
    ListSource,
    MapDataset,
    PackingDataset,
    RepeatDataset,
    ShuffleDataset,
    Stage,
    StagedDataset,
    StagePlan,
    by_property,
)
from energize.errors import ConfigError, StateError, StateMismatchError
from tests.support.loading import loader_of, prints, take
from tests.support.states import resealed

SIZES = {"a": 30, "b": 40, "c": 25, "d": 60}


def source(name, **options):
    count = SIZES[name]
    columns = {"cost": [1 + n % 7 for n in range(count)]}
    samples = ListSource([(name, n) for n in range(count)], name=name, columns=columns)
    return ShuffleDataset(samples, **options)


def mix(weights, **options):
    return BlendDataset({name: source(name) for name in weights}, weights=weights, **options)


def batches(dataset, size=4):
    return BatchDataset(MapDataset(dataset, tuple), size, list)


def flat(batches):
    return [sample for batch in batches for sample in batch]


def of(name, samples):
    return [sample for sample in samples if sample[0] == name]


def in_order(name, count, first=0):
    """What a source gives from an item on, pass after pass."""
    return source(name).at(range(first, first + count))


def saved(loader):
    return json.loads(json.dumps(loader.state_dict()))


def went_on(before, now, state, steps, **options):
    loader = loader_of(now, **options)
    with pytest.raises(StateMismatchError, match='on_mismatch="remap"'):
        loader.load_state_dict(state)
    loader.load_state_dict(state, on_mismatch="remap")
    return loader, take(loader, steps)


def test_sources_keep_their_places_and_the_report_says_what_is_new(caplog):
    before = batches(mix({"a": 1, "b": 2, "c": 1}))
    loader = loader_of(before)
    old = flat(take(loader, 25))  # 25, 50, 25 of 30, 40, 25
    now = batches(mix({"d": 2, "b": 1, "a": 1}))
    caplog.set_level(logging.WARNING, "energize")
    other, read = went_on(before, now, saved(loader), 50)
    read = flat(read)
    for name, first in (("a", 25), ("b", 50), ("d", 0)):
        assert of(name, read) == in_order(name, len(of(name, read)), first)
        assert first == len(of(name, old))
    assert [len(of(name, read)) for name in "abd"] == [50, 50, 100]
    report = other.remapped
    assert report.kept == {"b": 50, "a": 25}
    assert (report.added, report.dropped, report.restarted) == (("d",), {"c": 25}, ())
    assert report.reweighted == {"b": (0.5, 0.25)}
    for line in ("b: goes on after 50 samples", "d: added", "c: dropped after 25 samples",
                 "b: share 0.5 -> 0.25"):  # fmt: skip
        assert line in str(report)
        assert line in caplog.text
    assert other.step == 75


def test_the_same_on_any_ranks_and_remapped_again():
    loader = loader_of(batches(mix({"a": 1, "b": 2})))
    take(loader, 20)
    now = batches(mix({"a": 3, "c": 1}))
    _, whole = went_on(None, now, saved(loader), 60)
    state = saved(loader)
    resumed = None
    for rank in range(3):
        with loader_of(now, 1, rank, 3) as each:
            each.load_state_dict(state, on_mismatch="remap")
            assert prints(take(each, 10)) == prints(whole[rank:30:3])
            resumed = saved(each)
    with loader_of(now, 2) as each:  # the mix is this one now: it fits as it is
        each.load_state_dict(resumed)
        assert each.remapped is None
        assert prints(take(each, 10)) == prints(whole[30:40])
        each.set_weights({"a": 1, "c": 1})
        live = take(each, 20)
        later = saved(each)
    with loader_of(now) as each:
        each.load_state_dict(later)
        counts = [len(of(name, flat(whole[:40] + live))) for name in "ac"]
        more = flat(take(each, 10))
        assert of("c", more) == in_order("c", 20, counts[1])
        assert of("a", more) == in_order("a", 20, 27 + counts[0])
    third, read = went_on(now, batches(mix({"a": 1, "b": 1, "c": 1})), later, 30)
    assert third.remapped.ended == 1
    for name in "abc":
        first = third.remapped.kept.get(name, 0)
        found = of(name, flat(read))
        assert found == in_order(name, len(found), first)
    assert third.remapped.kept["c"] == counts[1]
    assert third.remapped.added == ("b",)  # it was not in the mix between: its place is gone


@given(
    before=st.dictionaries(st.sampled_from("abcd"), st.integers(1, 5), min_size=1),
    now=st.dictionaries(st.sampled_from("abcd"), st.integers(1, 5), min_size=1),
    steps=st.integers(0, 40),
    sizes=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    scheme=st.sampled_from(["even", "exact", "block", "random"]),
)
def test_law_of_places(before, now, steps, sizes, scheme):
    """Whatever the mixes: of each source that is in both, the samples after those it gave."""
    loader = loader_of(batches(mix(before), sizes[0]))
    old = flat(take(loader, steps))
    other = loader_of(batches(mix(now, scheme=scheme), sizes[1]))
    fits = other.dataset == loader.dataset
    if not fits and not set(before) & set(now):
        with pytest.raises(StateError, match="no source of the saved state is in this mix"):
            other.load_state_dict(saved(loader), on_mismatch="remap")
        return
    other.load_state_dict(saved(loader), on_mismatch="remap")
    read = flat(take(other, 30))
    for name in now:
        first = len(of(name, old)) if name in before else 0
        assert of(name, read) == in_order(name, len(of(name, read)), first)
    total = sum(now.values())
    if scheme == "exact":
        for name, weight in now.items():
            assert abs(len(of(name, read)) - 30 * sizes[1] * weight / total) < 4


def kept(item):
    return item[1] % 3 > 0


def streams(weights, **options):
    parts = {name: FilterDataset(RepeatDataset(source(name)), kept) for name in weights}
    return batches(BlendDataset(parts, weights=weights, **options))


@pytest.mark.parametrize("lanes", [1, 4])
def test_streams_keep_the_places_of_their_lanes(lanes):
    before, now = streams({"a": 1, "b": 1, "c": 1}), streams({"d": 1, "b": 1, "c": 1})
    loader = loader_of(before, lanes=lanes)
    old = flat(take(loader, 3))  # 4 of each, of 16 or more that pass
    other, read = went_on(before, now, saved(loader), 3, lanes=lanes)
    samples = old + flat(read)
    assert other.remapped.kept == {"b": 4, "c": 4}
    for name, times in (("b", 8), ("c", 8), ("d", 4), ("a", 4)):
        found = of(name, samples)
        assert len(found) == times
        assert len(set(found)) == times  # nothing came twice, so nobody began anew
    state = saved(loader)
    for rank in range(lanes):
        with loader_of(now, 1, rank, lanes, lanes=lanes) as each:
            each.load_state_dict(state, on_mismatch="remap")
            mine = take(each, 3)
            again = saved(each) if lanes == 1 else None
            whole = loader_of(now, lanes=lanes)
            whole.load_state_dict(state, on_mismatch="remap")
            assert prints(mine) == prints(take(whole, 3 * lanes)[rank::lanes])
    if again:
        with loader_of(now, lanes=1) as each:
            each.load_state_dict(again)
            assert prints(take(each, 3)) == prints(take(whole, 3))


def packs(weights):
    """Packs of two of four samples of a mix, of which a filter leaves out some."""
    found = FilterDataset(mix(weights), kept)
    return PackingDataset(found, 4, lambda group: [group[:2], group[2:]], list)


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("filtered", [False, True])
def test_below_packing_and_filters(lanes, filtered):
    """Lanes begin together after the one that has read most; so a source loses what others had not
    come to, and gives again what was in the packing buffer.
    """

    def built(weights):
        return FilterDataset(mix(weights), kept) if filtered else packs(weights)

    loader = loader_of(built({"a": 1, "b": 2}), lanes=lanes)
    old = take(loader, 40 if filtered else 20)
    now = built({"b": 1, "c": 1})
    other = loader_of(now, lanes=lanes)
    other.load_state_dict(saved(loader), on_mismatch="remap")
    place = other.remapped.kept["b"]
    old, read = (
        each if filtered else flat(each) for each in (old, take(other, 24 if filtered else 12))
    )
    assert abs(place * 2 / 3 - len(of("b", old))) <= 4 * lanes
    if lanes == 1 and filtered:
        following = [item for item in in_order("b", 200, place) if kept(item)]
        assert of("b", read) == following[: len(of("b", read))]
        assert (
            of("b", old + read)
            == [item for item in in_order("b", 200) if kept(item)][: len(of("b", old + read))]
        )
    assert set(of("b", read)) <= set(in_order("b", 34, place))  # of 40
    assert 0.3 < len(of("c", read)) / len(read) < 0.7
    state = saved(other)
    whole = take(other, 20)
    for rank in range(lanes):
        with loader_of(now, 1, rank, lanes) as each:
            each.load_state_dict(state)
            assert prints(take(each, 20 // lanes)) == prints(whole[rank::lanes])


def refused(before, now, steps=7):
    loader = loader_of(before, lanes=2)
    take(loader, steps)
    other = loader_of(now, lanes=2)
    with pytest.raises(StateError) as caught:
        other.load_state_dict(saved(loader), on_mismatch="remap")
    assert other.remapped is None
    assert other.step == 0  # it stays where it is
    return str(caught.value)


def test_what_has_no_place_to_keep():
    two, three = {"a": 1, "b": 1}, {"a": 1, "b": 1, "c": 1}
    assert "packing, a filter or the like" in refused(streams(two), packs(three))
    assert "stream, and this dataset is indexed" in refused(streams(two), batches(mix(three)))
    filters = [FilterDataset(source(name), kept) for name in "ab"]
    assert "no source of the saved state" in refused(*map(RepeatDataset, filters))
    ends = [mix(each, stop="all_exhausted") for each in (two, three)]
    assert "epochs end" in refused(*ends)
    assert "epochs end" in refused(mix(two, stop="all_exhausted"), mix(three))
    assert "ends" in refused(mix(two), mix(three, stop="all_exhausted"))
    plans = [
        StagedDataset(
            StagePlan(
                [
                    Stage("one", 0, 5, dataset=batches(mix(each))),
                    Stage("two", 5, None, dataset=batches(mix(three))),
                ]
            )
        )
        for each in (two, three)
    ]
    assert "stages" in refused(*plans)
    wide = [
        BlendDataset([(ListSource([(n, m)], name=f"s{n}"), 1 + n * m) for n in range(300)])
        for m in range(2)
    ]
    assert "more than 256 sources" in refused(*wide)
    levelled = [
        BatchDataset(LevelDataset(mix(each), 2, global_batch_size=8, cost="cost"), 2, list)
        for each in (two, three)
    ]
    assert "in the middle of a global batch" in refused(*levelled)
    loader = loader_of(levelled[0])
    old = flat(take(loader, 8))
    other = loader_of(levelled[1])
    other.load_state_dict(saved(loader), on_mismatch="remap")
    read = flat(take(other, 12))
    found = of("a", read)
    assert {*found} == {*in_order("a", len(found), len(of("a", old)))}


def test_a_source_in_another_order_begins_anew():
    loader = loader_of(mix({"a": 1, "b": 1}))
    take(loader, 20)
    parts = {"a": source("a").reseeded(5), "b": source("b")}
    other = loader_of(BlendDataset(parts, weights={"a": 1, "b": 1}))
    other.load_state_dict(saved(loader), on_mismatch="remap")
    assert other.remapped.restarted == ("a",)
    assert other.remapped.kept == {"b": 10}
    assert "a: its samples or their order changed" in str(other.remapped)
    assert of("a", take(other, 20)) == parts["a"].at(range(10))


def test_words_of_the_argument():
    loader = loader_of(mix({"a": 1, "b": 1}))
    with pytest.raises(ConfigError, match=r"got 'remapp'; did you mean 'remap'\?"):
        loader.load_state_dict(loader.state_dict(), on_mismatch="remapp")
    with pytest.raises(ConfigError, match="strict=False"):
        loader.load_state_dict(loader.state_dict(), strict=False, on_mismatch="remap")
    state = saved(loader)
    cursor = json.loads(state["cursor"])
    for broken in ({"places": {"x": "y"}}, {"moves": [["x", 1]]}, {"moves": [[1, 1, 1]]}):
        bad = resealed(state, cursor=json.dumps(cursor | broken))
        with pytest.raises(StateError):
            loader_of(mix({"a": 1, "c": 1})).load_state_dict(bad, on_mismatch="remap")


def test_shares_of_costs_and_of_properties_go_on():
    def by_cost(weights):
        return batches(mix(weights, unit="cost"))

    loader = loader_of(by_cost({"a": 1, "b": 1}))
    old = flat(take(loader, 30))
    _, read = went_on(None, by_cost({"a": 1, "d": 3}), saved(loader), 60)
    read = flat(read)
    assert of("a", read) == in_order("a", len(of("a", read)), len(of("a", old)))
    assert of("d", read) == in_order("d", len(of("d", read)))
    costs = [sum(1 + n % 7 for _, n in of(name, read)) for name in "ad"]
    assert costs[1] / sum(costs) == pytest.approx(0.75, abs=0.02)

    far = loader_of(by_cost({"a": 1, "b": 1}))
    far.load_state_dict(resealed(saved(loader), cursor=json.dumps({"position": 10**9})))
    other = loader_of(by_cost({"a": 1, "d": 3}))
    other.load_state_dict(saved(far), on_mismatch="remap")
    read, more = flat(take(other, 40)), other.remapped.left_out
    place = other.remapped.kept["a"] + more
    assert more <= 32
    assert place > 10**9
    assert of("a", read) == in_order("a", len(of("a", read)), place)
    assert of("d", read) == in_order("d", len(of("d", read)), more)

    def by_cents(weights):
        return by_property(source("d"), "cost", weights, other=1)

    loader = loader_of(by_cents({1: 1, 2: 1}))
    take(loader, 30)
    other, read = went_on(None, by_cents({2: 1, 1: 5}), saved(loader), 24)
    assert len([n for _, n in read if n % 7 == 0]) == pytest.approx(24 * 5 / 7, abs=1)
    assert other.remapped.kept == {"d/1": 10, "d/2": 10, "d/other": 10}
    assert set(other.remapped.reweighted) == {"d/1", "d/2", "d/other"}
