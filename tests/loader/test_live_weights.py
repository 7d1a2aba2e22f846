"""Weights that change while a run goes on: by hand, by a policy, by a file."""

from __future__ import annotations

import json
import logging
import os
import random
import re
import signal
import statistics
import time
from collections import Counter
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from energize import (
    BatchDataset,
    BlendDataset,
    ConcatDataset,
    EpochizeDataset,
    FilterDataset,
    GroupBatchDataset,
    ItemCost,
    IterMapDataset,
    LimitDataset,
    ListSource,
    MapDataset,
    PackingDataset,
    RepeatDataset,
    ShuffleBufferDataset,
    ShuffleDataset,
    get_loader,
)
from energize.core import limits
from energize.core.config import unpacked
from energize.core.dataset import IndexedDataset
from energize.core.node import Routes
from energize.core.reader import StreamReader
from energize.errors import ConfigError, StateError, StateMismatchError, WeightError
from energize.experimental import (
    LevelDataset,
    Stage,
    StagedDataset,
    StagePlan,
    WeightsFile,
)
from energize.mixing import ExcessLoss
from tests.support.loading import loader_of, prints, take, with_pid
from tests.support.states import resealed

ITEMS = [("a", 30), ("b", 40), ("c", 25)]


def source(name, count):
    columns = {
        "tokens": [(1 + n % 9) * (5 if name == "b" else 1) for n in range(count)],
        "quality": ["high" if n % 3 else "low" for n in range(count)],
    }
    samples = ListSource([(name, n) for n in range(count)], name=name, columns=columns)
    return ShuffleDataset(samples)


def mix(a=1, b=1, **options):
    parts = {name: source(name, count) for name, count in ITEMS[:2]}
    return BlendDataset(parts, weights={"a": a, "b": b}, **options)


def batches(dataset, size=4):
    return BatchDataset(MapDataset(dataset, tuple), size, list)


def saved(loader):
    return json.loads(json.dumps(loader.state_dict()))


def shares(items, flat=True):
    rows = [each for batch in items for each in batch] if flat else items
    return Counter(name for name, _ in rows)


def kept(item):
    return item[1] % 3 > 0


def packing(dataset):
    found = FilterDataset(dataset, kept)
    return PackingDataset(found, 5, lambda group: [group[:2], group[2:]], list)


def test_changes_that_are_none():
    loader = loader_of(batches(mix()))
    take(loader, 5)
    for weights, options, error, said in (
        (
            {"a": 1, "bb": 1},
            {},
            WeightError,
            r"missing 'b'; unknown 'bb'; did you mean 'b'\?",
        ),
        ({"a": 1}, {}, WeightError, "missing 'b'"),
        ({"a": -1, "b": 1}, {}, WeightError, "the weight of 'a' must be .*got -1"),
        ({"a": float("nan"), "b": 1}, {}, WeightError, "finite"),
        ({"a": 0, "b": 0}, {}, WeightError, "0"),
        (
            {"a": "much", "b": 1},
            {},
            WeightError,
            "the weight of 'a' must be .*got 'much'",
        ),
        ([1, 2], {}, WeightError, "must be a dict {name: number}, got"),
        (
            {"a": 1, "b": 1},
            {"at_step": 4},
            ConfigError,
            "step 4 has been delivered .5 .* at_step to 5",
        ),
        ({"a": 1, "b": 1}, {"at_step": 2.5}, ConfigError, "whole number"),
        (
            {"a": 1, "b": 1},
            {"blend": "mix"},
            ConfigError,
            "this dataset has no blend 'mix'",
        ),
    ):
        with pytest.raises(error, match=said):
            loader.set_weights(weights, **options)
    assert prints(take(loader, 5)) == prints(batches(mix()).at(range(5, 10)))
    with pytest.raises(ConfigError, match="no blend whose weights could change"):
        loader_of(ConcatDataset(*(source(*each) for each in ITEMS))).set_weights(
            {"a": 1}
        )
    with pytest.raises(ConfigError, match="ends"):
        loader_of(mix(stop="all_exhausted")).set_weights({"a": 1, "b": 2})
    again = ConcatDataset(LimitDataset(mix(), 80), source("c", 9))
    found = FilterDataset(MapDataset(mix(), tuple), bool)
    limited = LimitDataset(found, 80), FilterDataset(LimitDataset(mix(), 80), bool)
    for dataset in (again, *limited, RepeatDataset(packing(limited[1]))):
        for at_step in (None, 8):
            with pytest.raises(ConfigError, match="read its first slots again"):
                loader_of(dataset).set_weights({"a": 1, "b": 2}, at_step=at_step)
    with pytest.raises(WeightError, match="0"):  # now, and not when its step has come
        loader_of(found).set_weights({"a": 0, "b": 0}, at_step=8)
    with pytest.raises(
        ConfigError, match=r"'text'; did you mean 'texts'\? There are ''"
    ):
        loader_of(kinds()).set_weights({"a": 1, "b": 1}, blend="text")
    with pytest.raises(
        ConfigError, match="there are 2 blends, and 'c' are the names of none"
    ):
        loader_of(kinds()).set_weights({"c": 1})


def encoded(dataset=None):
    return MapDataset(letters_mix() if dataset is None else dataset, tuple)


def letters_mix():
    return BlendDataset(
        {name: letters(name, 600) for name in "ab"}, weights={"a": 1, "b": 1}
    )


def streams():
    parts = {
        name: FilterDataset(RepeatDataset(letters(name, 600)), kept) for name in "ab"
    }
    return BlendDataset(parts, weights={"a": 1, "b": 1})


def in_stages(dataset):
    ends = [
        ("one", 0, 8),
        ("two", 8, 90),
    ]  # the second goes on where the first has left the mix
    return StagedDataset(StagePlan([Stage(*each, dataset=dataset) for each in ends]))


def kinds(texts=None):
    images = BatchDataset(letters("c", 600), 2, list)
    texts = pairs(encoded() if texts is None else texts, 2)
    return BlendDataset({"texts": texts, "images": images},
                        weights={"texts": 1, "images": 1}, scheme="exact")  # fmt: skip


LIVE = {
    "batches": (lambda: pairs(encoded()), ""),
    "a filter of encoded": (lambda: FilterDataset(encoded(), kept), ""),
    "a filter of batches": (lambda: FilterDataset(pairs(encoded()), bool), ""),
    "packs": (lambda: BatchDataset(packing(encoded()), 2, list), ""),
    "packs of concatenated": (
        lambda: packing(ConcatDataset(letters("c", 9), encoded())),
        "1",
    ),
    "packs of repeated": (lambda: encoded(packing(RepeatDataset(encoded()))), ""),
    "packs in loops": (lambda: EpochizeDataset(packing(encoded()), 7), ""),
    "batches of streams": (lambda: pairs(encoded(streams())), ""),
    "stages": (lambda: in_stages(pairs(encoded())), "two"),
    "stages of types": (lambda: in_stages(kinds()), "two/texts"),
    "types": (kinds, "texts"),
    "a filter of types": (lambda: FilterDataset(kinds(), bool), "texts"),
    "types of filters": (lambda: kinds(FilterDataset(encoded(), kept)), "texts"),
}


def flat(items):
    return [items] if isinstance(items, tuple) and isinstance(items[0], str) else [
        each for item in items for each in flat(item)
    ]  # fmt: skip


def in_turn(loaders, items):
    read = [take(loader, items // len(loaders)) for loader in loaders]
    return [item for step in zip(*read, strict=True) for item in step]


def loses_none(name, at, later, ranks, end=64, workers=0):
    """What is read is the same on any number of ranks, and after a resume before the
    change or after it by so many workers; each sample comes once, and from the change
    on as often as was asked.
    """
    make, blend = LIVE[name]
    whole, states = [], []

    def loaders(count, state=None):
        lanes = {} if make().indexed else {"lanes": 4}
        many = workers if state is not None else 0
        found = [loader_of(make(), many, each, count, **lanes) for each in range(count)]
        for loader in found:
            if state is not None:
                loader.load_state_dict(state)
        return found

    def change(found):
        for loader in found:
            at_step = at // len(found) if later else None
            loader.set_weights({"a": 1, "b": 9}, at_step, blend=blend)
            if (
                later and "types" in name
            ):  # which slot its step leads to changes before it comes
                outer = blend.removesuffix("texts").rstrip("/")
                loader.set_weights({"texts": 3, "images": 1}, blend=outer)

    for count in ranks:
        found = loaders(count)
        read = in_turn(found, 4)
        if later:
            change(found)
        states.append((4, saved(found[0])))
        read += in_turn(found, at - 4)
        if not later:
            change(found)
        states.append((at, saved(found[0])))
        whole.append(read + in_turn(found, end - at))
    assert prints(whole[0]) == prints(whole[-1])
    for place, state in states[-2:]:
        found = loaders(ranks[0], state)
        read = in_turn(found, at - place)
        if place < at and not later:
            change(found)
        assert prints(read + in_turn(found, end - at)) == prints(whole[0][place:])
        for loader in found:
            loader.close()
    samples = flat(whole[0])
    assert max(Counter(samples).values()) == 1
    if make().indexed:
        for each in "ab":
            mine = [n for name, n in samples if name == each]
            assert mine == [n for _, n in letters(each, 600).at(range(len(mine)))]
    told = Counter(
        name for name, _ in flat(whole[0][at + (0 if make().indexed else 16) :])
    )
    assert told["a"] == pytest.approx((told["a"] + told["b"]) / 10, abs=4)


@pytest.mark.parametrize(
    ("name", "later", "workers"),
    [
        ("a filter of encoded", False, 2),
        ("stages", False, 0),
        ("packs in loops", False, 0),
        ("batches of streams", True, 1),
    ],
)
def test_a_change_loses_no_sample(name, later, workers, caplog):
    caplog.set_level(logging.INFO, "energize")
    loses_none(name, at=12, later=later, ranks=[2, 1], end=40, workers=workers)
    assert "from step 6 on" in caplog.text


@pytest.mark.jobs
@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from(sorted(LIVE)),
    st.integers(2, 7),
    st.booleans(),
    st.permutations([1, 2, 4]),
    st.sampled_from([0, 1, 2]),
)
def test_a_change_at_any_step_loses_no_sample_on_any_ranks(
    name, at, later, ranks, workers
):
    loses_none(name, 4 * at, later, ranks, workers=workers)


# The same slot on any ranks and workers


def by_parity(dataset, size=3):
    return GroupBatchDataset(dataset, size, lambda item: (item[1] % 2, None), list)


def repeated(items):
    for item in items:
        if item[1] % 2:
            yield [item, next(items, None)]


def costs(dataset):
    parts = {"texts": dataset, "images": letters("c", 600)}
    unit = ItemCost(lambda item: 1 + item[1] % 7)
    return BlendDataset(parts, weights={"texts": 1, "images": 1}, unit=unit)


INDEXED = {"batches", "stages", "stages of types", "types"}


def in_twos(samples):
    return [samples[i : i + 2] for i in range(0, len(samples), 2)]


def tuple_of_draws(group):
    """Make two items of a pack, which draw random numbers in between."""
    yield tuple(group), random.random()
    yield len(group), random.random()


STREAMS = {name: LIVE[name] for name in LIVE if name not in INDEXED} | {
    "a filter of filters": (
        lambda: FilterDataset(streams(), lambda item: item[1] % 5 > 0),
        "",
    ),
    "packs of filters": (lambda: packing(streams()), ""),
    "packs made one by one": (
        lambda: PackingDataset(streams(), 5, in_twos, tuple_of_draws),
        "",
    ),
    "packs of types": (
        lambda: PackingDataset(kinds(), 3, lambda g: [g[:1], g[1:]], list),
        "texts",
    ),
    "groups": (lambda: by_parity(streams()), ""),
    "groups of packs": (
        lambda: by_parity(MapDataset(packing(encoded()), lambda pack: pack[0]), 2),
        "",
    ),
    "segments": (lambda: IterMapDataset(streams(), repeated, segment_length=7), ""),
    "a buffer": (lambda: ShuffleBufferDataset(FilterDataset(encoded(), kept), 6), ""),
    "a generator": (
        lambda: MapDataset(encoded(), lambda item: (yield from [item] * 2)),
        "",
    ),
    "below costs": (lambda: costs(encoded()), "texts"),
    "after a finite filter": (
        lambda: packing(
            ConcatDataset(FilterDataset(letters("c", 12), kept), encoded())
        ),
        "1",
    ),
}


LOOPS = {"offset": 0, "step": 0}
"""Of a cursor, what says where loops end, which resumes and ranks may change."""


def changed_after(items, name, lanes, workers, *, resumed=False, opened=True, end=20):
    """What ranks of so many workers deliver of a stream whose weights change after some
    items, the slot of the change, and the states at the end.
    """
    make, blend = STREAMS[name]
    ranks = len(workers)

    def loaders(state=None):
        found = []
        for rank, many in enumerate(workers):
            found.append(loader_of(make(), many, rank, ranks, lanes=lanes))
            if state is not None:
                found[-1].load_state_dict(state)
        return found

    found = loaders()
    iterators = [iter(loader) for loader in found if opened]
    read = in_turn(found, items) if items else []
    if resumed:
        state = saved(found[0])
        for loader in found:
            loader.close()
        found = loaders(state)
    for loader in found:
        loader.set_weights({"a": 9, "b": 1}, blend=blend)
    read += in_turn(found, end - items)
    states = [saved(loader) for loader in found]
    for loader in found:
        loader.close()
    del iterators
    cursors = [unpacked(state["cursor"], "cursor") for state in states]
    slots = [cursor["changes"][0][1] for cursor in cursors]
    return prints(read), slots, [cursor | LOOPS for cursor in cursors]


def acts_at_one_slot(name, lanes, items):
    alone = changed_after(items, name, lanes, [0])
    delivered, [slot], [state] = alone
    topologies = [
        ([1], False, True),
        ([2], False, True),
        ([0], True, True),
        ([2], True, False),
    ]
    if items % 2 == 0:
        topologies += [
            ([0, 0], False, True),
            ([0, 1], False, True),
            ([1, 0], True, True),
        ]
    if not items:
        topologies += [([0], False, False), ([1], False, False)]
    for workers, resumed, opened in topologies:
        found = changed_after(
            items, name, lanes, workers, resumed=resumed, opened=opened
        )
        assert found == (delivered, [slot] * len(workers), [state] * len(workers)), (
            workers
        )
    return slot


@pytest.mark.parametrize(
    ("name", "lanes", "items", "slot"),
    [
        ("a filter of encoded", 1, 0, 0),
        ("a filter of encoded", 4, 1, None),
        pytest.param("packs of filters", 4, 2, None, marks=pytest.mark.jobs),
        pytest.param("packs made one by one", 2, 3, None, marks=pytest.mark.jobs),
        ("types of filters", 1, 3, None),
        pytest.param("groups", 2, 0, 0, marks=pytest.mark.jobs),
    ],
)
def test_a_change_acts_at_one_slot_on_any_ranks_and_workers(name, lanes, items, slot):
    found = acts_at_one_slot(name, lanes, items)
    assert found == slot or slot is None


@pytest.mark.jobs
@pytest.mark.timeout(600)
@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from(sorted(STREAMS)), st.sampled_from([1, 2, 3, 4]), st.integers(0, 13)
)
def test_a_change_of_any_stream_acts_at_one_slot_on_any_ranks_and_workers(
    name, lanes, items
):
    acts_at_one_slot(name, lanes, items)


def test_a_change_before_the_first_item_acts_from_the_first_slot_on():
    for name in STREAMS:
        with loader_of(STREAMS[name][0](), lanes=4) as loader:
            _ = iter(loader)
            loader.set_weights({"a": 9, "b": 1}, blend=STREAMS[name][1])
            assert unpacked(saved(loader)["cursor"], "cursor")["changes"][0][1] == 0, (
                name
            )


@pytest.mark.parametrize("lanes", [1, 4])
def test_a_change_acts_after_all_that_was_read_for_what_was_delivered(
    lanes, monkeypatch
):
    """Also where the next item of a lane does not lead to the blend."""
    monkeypatch.setattr(
        StreamReader, "most_at_once", 1
    )  # nothing is read ahead, or noted for it
    seen = []

    def noted(item):
        seen.append(item)
        return kept(item)

    dataset = kinds(FilterDataset(letters_mix(), noted))
    order = letters_mix().at(range(200))
    for items in range(1, 14):
        seen.clear()
        with loader_of(dataset, lanes=lanes) as loader:
            take(loader, items)
            read = max((order.index(item) for item in seen), default=-1)
            loader.set_weights({"a": 9, "b": 1}, blend="texts")
            slot = unpacked(saved(loader)["cursor"], "cursor")["changes"][0][1]
        assert slot == -(-(read + 1) // lanes) * lanes


class Silent(IndexedDataset):
    """A node that does not say how far it leads."""

    def __init__(self, dataset):
        self.freeze(inputs=[dataset])

    def route(self, positions):
        return Routes(positions)


def test_a_stream_that_does_not_tell_how_far_it_leads_is_refused():
    loader = loader_of(Silent(streams()), lanes=2)
    for at_step in (None, 5):
        with pytest.raises(ConfigError, match="below Silent, a stream without"):
            loader.set_weights({"a": 9, "b": 1}, at_step)


# What a state may hold

FAR = 2**45
NAMES = st.lists(
    st.text(st.characters(exclude_categories=()), min_size=1, max_size=3),
    min_size=2,
    max_size=3,
    unique=True,
)
PLAIN = st.one_of(
    st.integers(0, 5), st.floats(0, 1), st.sampled_from([5e-324, 1e-310, 1e300])
)
WEIGHTS = st.one_of(
    PLAIN,
    st.floats(),
    st.sampled_from(
        [1e301, 10**301, 10**400, 10**5000, 2**53 + 1, -0.0, True, None, "3"]
    ),
    st.sampled_from(
        [
            np.int64(3),
            np.uint64(2**63 + 5),
            np.float32(0.1),
            np.longdouble("1e400"),
            np.bool_(1),
        ]
    ),
    st.sampled_from(
        [Fraction(1, 3), Fraction(10) ** 400, Fraction(1, 10**400), Decimal("1e400")]
    ),
)
AT_STEPS = st.one_of(
    st.none(),
    st.integers(0, 9),
    st.sampled_from([2**31, FAR - 1, FAR, 2**62, 2**63 - 1, 2**63, 10**20, 10**5000])
    | st.sampled_from([-1, np.int64(4), np.uint64(2**63), True, np.bool_(1), 2.0, "3"]),
)
KEPT_IN_STATES = {
    "blend": lambda blend: blend,
    "batches": lambda blend: BatchDataset(blend, 7, list),
    "filter": lambda blend: FilterDataset(blend, kept),
    "packs": packing,
}


def resumed_from(dataset, state, ranks):
    loader = loader_of(dataset, 0, 0, ranks, lanes=None if dataset.indexed else 2)
    if state is not None:
        loader.load_state_dict(json.loads(json.dumps(state)))
    return loader


@given(
    NAMES, st.sampled_from(sorted(KEPT_IN_STATES)), st.sampled_from([1, 3]), st.data()
)
def test_what_is_accepted_is_loaded_again_and_what_is_not_changes_nothing(
    names, kind, ranks, data
):
    parts = {name: letters(str(number)) for number, name in enumerate(names)}
    dataset = KEPT_IN_STATES[kind](mix_of(parts))
    loader = resumed_from(dataset, None, ranks)
    take(loader, data.draw(st.integers(1, 3)))
    for _ in range(2):
        state = saved(loader)
        weights = {
            name: data.draw(data.draw(st.sampled_from([WEIGHTS, PLAIN])))
            for name in names
        }
        refused = ""
        try:
            loader.set_weights(weights, data.draw(AT_STEPS))
        except ConfigError as error:
            refused = str(error)
        assert not refused or (
            re.search("weight|step", refused) and saved(loader) == state
        )
    for steps in (3, 6):
        other = resumed_from(dataset, loader.state_dict(), ranks)
        assert prints(take(other, steps)) == prints(take(loader, steps))
        assert saved(other) == saved(loader)


@pytest.mark.parametrize(
    ("weights", "options", "said"),
    [
        (
            {"a": 1e301, "b": 1},
            {},
            r"the weight of 'a' must be .* at most 1e\+300, got 1e\+301",
        ),
        (
            {"a": 10**5000, "b": 1},
            {},
            "the weight of 'a' must be .* got a int that is too large",
        ),
        (
            {"a": Fraction(1, 10**400), "b": 1},
            {},
            r"the weight of 'a' must be .*got Fraction\(1, 1000",
        ),
        ({"a": 0, "b": 0.0}, {}, "all 2 weights are 0"),
        ({"a": 1, "b": 1}, {"at_step": FAR}, f"at_step={FAR} is after the last step"),
        (
            {"a": 1, "b": 1},
            {"at_step": 2**63},
            f"at_step={2**63} is after the last step",
        ),
        (
            {"a": 1, "b": 1},
            {"at_step": 10**5000},
            "at_step=a int that is too large to be shown",
        ),
        (
            {"a": 1, "b": 1},
            {"at_step": FAR // 2},
            f"at_step={FAR // 2} of 2 ranks is item {FAR}",
        ),
        (
            {"a": 1, "b": 1},
            {"at_step": True},
            "at_step must be a whole number .* got True",
        ),
        (
            {"a": 1, "b": 1},
            {"blend": 5},
            "blend must be the name of a blend or None, got 5",
        ),
    ],
)
def test_what_no_state_could_hold_is_refused_at_the_call(weights, options, said):
    for dataset in (batches(mix()), FilterDataset(mix(), kept)):
        loader = loader_of(dataset, 0, 0, 2)
        state = saved(loader)
        with pytest.raises(ConfigError, match=said):
            loader.set_weights(weights, **options)
        assert saved(loader) == state


def test_names_of_any_characters_are_loaded_again():
    parts = {
        name: letters(str(number))
        for number, name in enumerate(["\ud800", "a\x00\n", "/"])
    }
    for dataset in (mix_of(parts), FilterDataset(mix_of(parts), kept)):
        loader = loader_of(dataset)
        take(loader, 3)
        loader.set_weights(dict.fromkeys(parts, 2) | {"\ud800": 9})
        other = loader_of(dataset)
        other.load_state_dict(saved(loader))
        assert prints(take(other, 9)) == prints(take(loader, 9))


def mix_of(parts):
    return BlendDataset(parts, weights=dict.fromkeys(parts, 1))


def test_names_that_are_given_twice():
    with pytest.raises(WeightError, match="weights: '1' is given twice"):
        loader_of(mix()).set_weights({1: 2, "1": 3})


def test_a_change_that_could_not_act_when_its_step_comes_is_refused_at_the_call():
    later = mix().with_weights_from(400, [1, 5])
    for dataset in (later, FilterDataset(later, kept)):
        loader = loader_of(dataset)
        take(loader, 3)
        with pytest.raises(ConfigError, match="weights already change at slot 400"):
            loader.set_weights({"a": 9, "b": 1}, at_step=8)
    far = loader_of(BatchDataset(mix(), 2**19, list))
    with pytest.raises(ConfigError, match="weights cannot change at slot 9223"):
        far.set_weights({"a": 9, "b": 1}, at_step=2**44)


def test_more_changes_than_a_state_holds_are_refused(monkeypatch):
    loader = loader_of(batches(mix()))
    for step in range(4):
        take(loader, 1)
        loader.set_weights({"a": 1 + step, "b": 1})
    state = saved(loader)
    monkeypatch.setattr(limits, "JSON_VALUES", 59)
    take(loader, 1)
    with pytest.raises(
        ConfigError, match=r"5 changes .* 30 of half of .*JSON_VALUES, 29"
    ):
        loader.set_weights({"a": 9, "b": 1})
    loader_of(batches(mix())).load_state_dict(state)


def test_states_of_changes_do_not_fit_another_blend():
    with loader_of(batches(mix())) as loader:
        take(loader, 5)
        loader.set_weights({"a": 9, "b": 1})
        take(loader, 5)
        state = saved(loader)
    with pytest.raises(StateMismatchError, match="weights"):
        loader_of(batches(mix(2, 1))).load_state_dict(state)
    later = loader_of(batches(mix().with_weights_from(400, [1, 5])))
    with pytest.raises(StateError, match=r"changes was \[\], is \[\[400"):
        later.load_state_dict(state)
    cursor = json.loads(state["cursor"])
    good = ["", 3, {"a": 1, "b": 1}, False]
    for broken in (
        *("x", [1], [good[:2]], [[*good, False, 1]]),
        *([["", at, *good[2:]]] for at in (-1, 2.0, True, 2**62)),
        *(
            [["", 3, weights, False]]
            for weights in ({"a": "x"}, {"a": 1e301}, {"a": 0}, {}, [1])
        ),
        *([[5, *good[1:]]], [["", FAR, {"a": 1}, True]], [[*good[:3], 1]]),
    ):
        bad = resealed(state, cursor=json.dumps(cursor | {"changes": broken}))
        with pytest.raises(StateError, match="changes"):
            loader_of(batches(mix())).load_state_dict(bad)


def test_a_change_at_each_step_costs_what_the_first_ones_cost():
    """And the state goes on in the same order, here and in workers."""
    spent, items = [], []
    with loader_of(batches(mix())) as loader:
        for step, item in zip(range(240), loader, strict=False):
            items.append(item)
            begun = time.thread_time()
            loader.set_weights({"a": 1 + step % 5, "b": 2})
            spent.append(time.thread_time() - begun)
            if step == 200:
                state = saved(loader)
    assert statistics.median(spent[-40:]) < 10 * statistics.median(spent[20:60])
    for workers in (0, 2):
        with loader_of(batches(mix()), workers) as again:
            again.load_state_dict(state)
            for step in range(201, 240):
                assert prints(take(again, 1)) == prints(items[step : step + 1])
                again.set_weights({"a": 1 + step % 5, "b": 2})


def test_a_worker_that_dies_after_a_change(caplog):
    dataset = MapDataset(mix(), with_pid)
    with loader_of(dataset, 2) as loader:
        first = take(loader, 50)
        loader.set_weights({"a": 9, "b": 1})
        more = take(loader, 50)
        os.kill(more[-1][0], signal.SIGKILL)
        more += take(loader, 1000)
        assert loader.workers_replaced == 1
        assert {pid for pid, _ in first} >= {
            pid for pid, _ in more[:50]
        }  # no worker was started
    items = [item for _, item in first + more]
    assert prints(items) == prints(mix().with_weights_from(50, [9, 1]).at(range(1100)))


def changed_at(dataset, weights, at, steps):
    """What is read before and after a change of weights, and the report; two ranks of a
    worker go on from there.
    """
    with loader_of(dataset) as loader:
        before = take(loader, at)
        loader.set_weights(weights)
        after = take(loader, steps)
        state, rest = saved(loader), take(loader, 8)
        report = loader.report()
    for rank in range(2):
        with loader_of(dataset, 1, rank, 2) as other:
            other.load_state_dict(state)
            assert prints(take(other, 4)) == prints(rest[rank::2])
    return before, after, report


def test_level_batches_change_with_the_next_global_batch(caplog):
    caplog.set_level(logging.INFO, "energize")
    level = LevelDataset(mix(), 2, global_batch_size=8, cost="tokens")
    before, after, _ = changed_at(BatchDataset(level, 2, list), {"a": 9, "b": 1}, 6, 42)
    assert shares(before + after[:2]) == {"a": 8, "b": 8}
    assert shares(after[2:]) == {"a": 72, "b": 8}
    assert "from step 8 on (slot 16 of the blend)" in caplog.text


def letters(name, count=40):
    return ShuffleDataset(ListSource([(name, n) for n in range(count)], name=name))


def ab(**options):
    return BlendDataset(
        {name: letters(name) for name in "ab"}, weights={"a": 1, "b": 1}, **options
    )


def pairs(dataset=None, size=4):
    return BatchDataset(ab() if dataset is None else dataset, size, list)


def losses_of(batch):
    """What a model that knows `b` already would have."""
    return torch.tensor(
        [2.0 + (number % 5) / 10 if name == "a" else 1.0 for name, number in batch]
    )


def trained(loader, follower, steps):
    """The items of some steps, and the weights that were answered, by step."""
    read, answers = [], {}
    for batch in loader:
        read.append(batch)
        weights = follower.observe(losses_of(batch))
        if weights is not None:
            answers[loader.step] = weights
        if len(read) == steps:
            break
    return read, answers


def policy():
    return ExcessLoss({"a": 1.0, "b": 1.0}, temperature=0.5, memory=0.5)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_policy_is_asked_now_and_then_and_a_resumed_run_is_the_same_run(workers):
    with loader_of(pairs(), workers) as loader:
        follower = loader.follow(policy(), every=10)
        read, answers = trained(loader, follower, 35)
        state = json.loads(json.dumps([loader.state_dict(), follower.state_dict()]))
        rest, more = trained(loader, follower, 35)
    assert list(answers) == [10, 20, 30]
    assert list(more) == [40, 50, 60, 70]
    assert answers[10]["a"] > 0.8
    names = [name for batch in read[10:30] for name, _ in batch]
    assert names.count("a") / len(names) == pytest.approx(answers[10]["a"], abs=0.06)
    with loader_of(pairs()) as other:
        again = other.follow(policy(), every=10)
        other.load_state_dict(state[0])
        again.load_state_dict(state[1])
        resumed, later = trained(other, again, 35)
    assert prints(resumed) == prints(rest)
    assert later == more


def test_a_window_of_a_policy_ends_at_the_same_item_on_other_ranks():
    def asked(loader, follower, steps):
        found = []
        for _, batch in zip(range(steps), loader, strict=False):
            if follower.observe(losses_of(batch)) is not None:
                found.append(loader.step * loader.worker_config.world_size)
        return found

    with loader_of(pairs()) as alone, loader_of(pairs(), 0, 1, 2) as second:
        follower = alone.follow(policy(), every=16)
        assert asked(alone, follower, 22) == [16]
        state = json.loads(json.dumps([alone.state_dict(), follower.state_dict()]))
        again = second.follow(policy(), every=8)
        second.load_state_dict(state[0])
        again.load_state_dict(state[1])
        assert asked(second, again, 21) == asked(alone, follower, 42) == [32, 48, 64]


def test_what_is_observed():
    loader = get_loader(pairs(BlendDataset((letters("a"), 1), (letters("b"), 1))))
    follower = loader.follow(ExcessLoss({"a": 0, "b": 0}), every=3)
    take(loader, 1)
    assert follower.observe([1.0, 2.0], ["a", "b"]) is None
    assert follower.observe({"a": torch.tensor(3.0)}) is None
    assert follower.state_dict()["sums"] == {"a": 4.0, "b": 2.0}
    assert follower.state_dict()["counts"] == {"a": 2, "b": 1}
    with pytest.raises(ConfigError, match="3 losses for 4 samples"):
        follower.observe([1, 2, 3])
    with pytest.raises(ConfigError, match="1 losses for 4 samples"):
        follower.observe(torch.tensor(2.0))
    with pytest.raises(
        WeightError, match=r"'aa' is not a source of .*; did you mean 'a'\?"
    ):
        follower.observe([1.0], ["aa"])
    with pytest.raises(
        ConfigError, match=r"the loss of a sample of 'a' must be .*, got 'high'"
    ):
        follower.observe(["high"], ["a"])
    assert follower.observe({"b": 4.0})["b"] > 0.7
    with pytest.raises(StateError, match="over x, and the blend has a, b"):
        follower.load_state_dict(
            {"policy": {}, "sums": {"x": 1}, "counts": {"x": 1}, "items": 1}
        )
    with pytest.raises(ConfigError, match="str has no observe"):
        loader.follow("excess")
    with pytest.raises(ConfigError, match="no blend"):
        get_loader(letters("a")).follow(policy())
    with pytest.raises(ConfigError, match="every must be a whole number >= 1"):
        loader.follow(policy(), every=0)


def test_blends_in_blends_and_streams():
    texts = BlendDataset({name: letters(name) for name in "ab"}, weights={"a": 1, "b": 1},
                         scheme="exact")  # fmt: skip
    outer = BlendDataset({"texts": pairs(texts), "images": pairs(FilterDataset(
        BlendDataset({"c": letters("c")}, weights={"c": 1}), lambda item: item[1] % 2 == 0))},
        weights={"texts": 1, "images": 1}, scheme="even")  # fmt: skip
    with loader_of(outer, 1, lanes=2) as loader:
        kinds = loader.follow(ExcessLoss({"texts": 0, "images": 0}), every=8)
        inner = loader.follow(ExcessLoss({"a": 0, "b": 0}), every=8, blend="texts")
        for _, batch in zip(range(8), loader, strict=False):
            losses = [{"a": 1.0, "b": 2.0, "c": 5.0}[name] for name, _ in batch]
            first, second = kinds.observe(losses), inner.observe(losses)
        assert first == pytest.approx({"texts": 0.029, "images": 0.971}, abs=1e-3)
        assert second == pytest.approx({"a": 0.2689, "b": 0.7311}, abs=1e-3)
        take(loader, 20)
        state = loader.state_dict()
        rest = take(loader, 10)
    with loader_of(outer, 0, lanes=2) as other:
        other.load_state_dict(state)
        assert prints(take(other, 10)) == prints(rest)


# A file


def test_a_file_that_an_operator_writes(tmp_path, caplog):
    caplog.set_level(logging.INFO, "energize")
    file = tmp_path / "weights.yaml"
    with loader_of(pairs(), 2) as loader:
        loader.watch_weights(file, every=5)
        read = take(loader, 12)
        file.write_text("a: 9\nb: 1\n")
        read += take(loader, 8)  # seen before the 16th step
        assert "from step 15 on" in caplog.text
        file.write_text('{"a": 1, "b": 9, "at_step": 40}')
        read += take(loader, 30)
        state = loader.state_dict()
        caplog.clear()
        rest = take(loader, 10)
    changed = ab().with_weights_from(60, [9, 1]).with_weights_from(160, [1, 9])
    assert prints(read + rest) == prints(pairs(changed).at(range(60)))
    with loader_of(pairs()) as other:
        other.watch_weights(WeightsFile(file, every=3))
        other.load_state_dict(state)
        assert prints(take(other, 10)) == prints(rest)
    assert not caplog.text  # it is the file that the state has already


def test_a_file_that_was_read_before_is_not_read_again_after_a_resume(tmp_path):
    file = tmp_path / "weights.yaml"
    file.write_text("a: 9\nb: 1\n")
    with loader_of(pairs()) as loader:
        loader.watch_weights(file, every=2)
        take(loader, 6)
        loader.set_weights({"a": 1, "b": 2})
        take(loader, 4)
        state = loader.state_dict()
        rest = take(loader, 10)
    for text, same in (("a: 9\nb: 1\n", True), ("a: 4\nb: 1\n", False)):
        file.write_text(text)
        with loader_of(pairs()) as other:
            other.watch_weights(file, every=2)
            other.load_state_dict(state)
            assert (prints(take(other, 10)) == prints(rest)) is same


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 9\nb: [", "not valid YAML in line 2"),
        ("a: 9", "missing 'b'"),
        ("a: 9\nbb: 1", "unknown 'bb'; did you mean 'b'"),
        ("a: -1\nb: 1", "a finite number >= 0"),
        ("a: .nan\nb: 1", "finite"),
        ("a: lots\nb: 1", "got 'lots'"),
        ("- 1\n- 2", "for each source"),
        ("a: 1\nb: 2\nat_step: 1", "step 1 has been delivered"),
        ("a: 1\nb: 2\na: 3", "'a' is set twice, in lines 1 and 3"),
        ("weights: {a: 1, b: 2, 'b': 1}", "'b' is set twice, in lines 1 and 1"),
        (f"a: 1\nb: 2\nat_step: {2**45}", f"at_step={2**45} is after the last step"),
        (f"a: 1\nb: 2\nat_step: 0x{'F' * 9000}", "at_step=a int that is too large"),
        ("a: 1.0e+301\nb: 1", "got 1e+301"),
        ("a: 0\nb: 0", "all 2 weights are 0"),
        ("a: 1\nb: 2\nat_step: soon", "(at_step): expected an integer, got 'soon'"),
        ("a: 1\nb: 2\nblend: texts", "this dataset has no blend 'texts'"),
        ("weights: {a: 1, b: 2}\nstep: 3", "(step)"),
        ("!!python/object/apply:os.system ['touch hacked']", "not valid YAML"),
        ("a: " + "9" * 70000, "at most 65536 characters"),
    ],
)
def test_a_broken_file_is_a_warning_once_and_changes_nothing(
    text, said, tmp_path, caplog
):
    file = tmp_path / "weights.yaml"
    with loader_of(pairs()) as loader:
        loader.watch_weights(file, every=1)
        read = take(loader, 3)
        file.write_text(text)
        read += take(loader, 10)
        assert said in caplog.text
        assert len(caplog.records) == 1
        assert caplog.records[0].levelname == "WARNING"
        assert str(file) in caplog.text
        assert prints(read) == prints(pairs().at(range(13)))
        file.write_text("weights: {a: 9, b: 1}")
        take(loader, 1)
        assert [name for batch in take(loader, 20) for name, _ in batch].count(
            "a"
        ) == 72


def test_files_and_ranks_that_make_different_numbers_of_steps(tmp_path):
    loader = loader_of(pairs(), uneven="allow")
    with pytest.raises(ConfigError, match="uneven='allow'"):
        loader.watch_weights(tmp_path / "weights.yaml")
    with pytest.raises(ConfigError, match="every must be a whole number"):
        loader_of(pairs()).watch_weights("weights.yaml", every=0)
    with pytest.raises(ConfigError, match="must be a path"):
        WeightsFile(3)
    unreadable = loader_of(pairs())
    unreadable.watch_weights(tmp_path)  # a folder
    assert len(take(unreadable, 3)) == 3
