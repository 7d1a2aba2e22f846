"""States that go on in an edited mix: every source that is still there keeps its
place."""

from __future__ import annotations

import json

import pytest

from energize import (
    BatchDataset,
    BlendDataset,
    FilterDataset,
    ListSource,
    MapDataset,
    PackingDataset,
    RepeatDataset,
    ShuffleDataset,
    by_property,
)
from energize.errors import ConfigError, StateError, StateMismatchError
from energize.experimental import LevelDataset, Stage, StagedDataset, StagePlan
from tests.support.loading import loader_of, take
from tests.support.states import resealed

SIZES = {"a": 30, "b": 40, "c": 25, "d": 60}


def source(name, **options):
    count = SIZES[name]
    columns = {"cost": [1 + n % 7 for n in range(count)]}
    samples = ListSource([(name, n) for n in range(count)], name=name, columns=columns)
    return ShuffleDataset(samples, **options)


def mix(weights, **options):
    return BlendDataset(
        {name: source(name) for name in weights}, weights=weights, **options
    )


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


def kept(item):
    return item[1] % 3 > 0


def streams(weights, **options):
    parts = {name: FilterDataset(RepeatDataset(source(name)), kept) for name in weights}
    return batches(BlendDataset(parts, weights=weights, **options))


def packs(weights):
    """Packs of two of four samples of a mix, of which a filter leaves out some."""
    found = FilterDataset(mix(weights), kept)
    return PackingDataset(found, 4, lambda group: [group[:2], group[2:]], list)


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
    assert "is a stream, the other is indexed" in refused(
        streams(two), batches(mix(three))
    )
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
        BlendDataset(
            [(ListSource([(n, m)], name=f"s{n}"), 1 + n * m) for n in range(300)]
        )
        for m in range(2)
    ]
    assert "more than 256 sources" in refused(*wide)
    levelled = [
        BatchDataset(
            LevelDataset(mix(each), 2, global_batch_size=8, cost="cost"), 2, list
        )
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


@pytest.mark.parametrize("rank", [0, 1])
def test_the_first_rank_says_how_it_goes_on(rank, caplog, monkeypatch):
    loader = loader_of(batches(mix({"a": 1, "b": 1})))
    take(loader, 3)
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", "2")
    other = loader_of(batches(mix({"a": 3, "b": 1})))
    other.load_state_dict(saved(loader), on_mismatch="remap")
    assert ("resumes in an edited mix" in caplog.text) is (rank == 0)


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
    for broken in (
        {"places": {"x": "y"}},
        {"moves": [["x", 1]]},
        {"moves": [[1, 1, 1]]},
    ):
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


def of_many(numbers):
    kinds = {
        f"s{n}": [(f"s{n}", n * i**2 % 97 + 1) for i in range(20 + n)] for n in numbers
    }
    parts = {
        name: ListSource(each, name=name, columns={"cost": [cost for _, cost in each]})
        for name, each in kinds.items()
    }
    weights = {name: 1 + number * 7 % 5 for number, name in enumerate(parts)}
    return batches(BlendDataset(parts, weights=weights, unit="cost")), kinds


def test_shares_of_costs_of_many_sources_go_on_at_every_step():
    before, kinds = of_many(range(1, 21))
    loader, old = loader_of(before), []
    for _ in range(4):
        old += flat(take(loader, 5))
        other, read = went_on(before, of_many(range(2, 22))[0], saved(loader), 9)
        assert not other.remapped.left_out
        for name, each in list(kinds.items())[1:]:
            came, first = of(name, flat(read)), len(of(name, old))
            assert came == [each[(first + at) % len(each)] for at in range(len(came))]
