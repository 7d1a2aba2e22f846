"""Blends whose shares count what samples cost, by the index or when they have been read."""

from __future__ import annotations

import json
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from energize import (
    BlendDataset,
    ItemCost,
    Lane,
    ListSource,
    SkipSample,
)
from energize.errors import (
    ColumnError,
    ConfigError,
    EncoderError,
    StateError,
    StateMismatchError,
    SubstitutionError,
)
from tests.support.loading import loader_of, take
from tests.support.texts import (
    LONGEST,
    SHARES,
    batches,
    by_column,
    by_item,
    by_pack,
    shares_of,
    shuffled_texts,
    spent,
    strays,
    texts,
)


def near(shares, apart=0.001):
    return pytest.approx(shares, abs=apart)


# Known from the index


def test_shares_are_those_of_tokens_at_every_slot_and_after_a_million():
    blend = by_column()
    assert strays(blend.at(range(3000)), SHARES) < 2 * LONGEST
    cost = np.array(blend.spent(10**6))
    assert blend.by_name((cost / cost.sum()).tolist()) == near(SHARES, 1e-4)
    assert blend.by_name(blend.shares()) == SHARES
    assert blend.indexed
    assert blend.at([10**12])[0]["tokens"] >= 1


def test_what_is_counted_is_what_is_delivered():
    blend = by_column()
    items = blend.at(range(5000))
    assert blend.by_name(blend.spent(5000)) == spent(items)
    names = [item["__key__"].split("/")[0] for item in items]
    assert blend.by_name(blend.taken(5000)) == {name: names.count(name) for name in SHARES}
    assert blend.consumed(5000).tolist() == list(blend.taken(5000))


def test_a_function_of_columns_and_batches_cost_what_their_samples_cost():
    pairs = list(zip(shuffled_texts().values(), (1, 1, 1), strict=True))
    squared = BlendDataset(pairs, unit=lambda tokens: tokens.astype(float) ** 2)
    cost = np.zeros(3)
    refs = squared.refs(np.arange(20_000))
    for number, source in enumerate(squared.sources):
        own = refs.index[refs.source == number]
        cost[number] = (source.column("tokens").values[own].astype(float) ** 2).sum()
    assert (cost / cost.sum()).tolist() == near([1 / 3] * 3, 0.01)
    assert squared.spent(20_000) == pytest.approx(cost.tolist())

    whole = BlendDataset([(batches(each), weight) for each, weight in pairs], unit="tokens")
    assert shares_of(whole.at(range(5000))) == near(dict.fromkeys(SHARES, 1 / 3), 0.005)


def test_weights_change_from_a_slot_on_and_states_go_on(caplog):
    loader = loader_of(batches(by_column()))
    read = take(loader, 10)
    state = json.loads(json.dumps(loader.state_dict()))
    changed = by_column().with_weights_from(60, {"books": 1, "captions": 1, "chats": 8})
    assert read == batches(changed).at(range(10))
    parts = []
    for rank in range(2):
        with loader_of(batches(changed), 2, rank, 2) as resumed:
            resumed.load_state_dict(state)
            parts.append(take(resumed, 15))
    assert [item for pair in zip(*parts, strict=True) for item in pair] == batches(changed).at(
        range(10, 40)
    )
    assert "changes was" in caplog.text
    late = by_column().with_weights_from(30, {"books": 1, "captions": 1, "chats": 8})
    with pytest.raises(StateMismatchError, match="40 of its items are read"):
        loader_of(batches(late)).load_state_dict(state)
    after = changed.at(range(60, 5060))
    assert shares_of(after) == near({"books": 0.1, "captions": 0.1, "chats": 0.8}, 0.01)


# Known when they have been read


@pytest.mark.parametrize("lanes", [1, 3, 8])
def test_each_lane_has_the_shares_at_every_item(lanes):
    for index in range(lanes):
        cursor = by_item().open(Lane(index, lanes))
        items = list(islice(cursor, 400))
        assert strays(items, SHARES) < 3 * LONGEST
        slots = cursor.state()["input"]["slots"]
        assert dict(zip(SHARES, slots["costs"], strict=True)) == spent(items)
        assert sum(slots["owed"]) == pytest.approx(0, abs=1e-6)


costs = st.lists(st.integers(1, 1000), min_size=1, max_size=12)


@given(st.lists(st.tuples(costs, st.integers(1, 50)), min_size=1, max_size=6))
def test_no_source_is_ever_owed_more_than_cups_hold(mix):
    """Cost by source, at every item, within the bounds that `OwedSlots` states."""
    parts = [
        (ListSource([(i, cost) for cost in column], name=str(i)), weight)
        for i, (column, weight) in enumerate(mix)
    ]
    blend = BlendDataset(parts, unit=ItemCost(lambda item: item[1]))
    longest = max(max(column) for column, _ in mix)
    most = longest * sum(1 / k for k in range(1, len(mix)))
    shares, had = np.array(blend.shares()), np.zeros(len(mix))
    which = {each.name: number for number, each in enumerate(blend.sources)}
    for source, cost in islice(blend.open(), 200):
        had[which[str(source)]] += cost
        owed = shares * had.sum() - had
        assert owed.max() <= most + 1e-6
        assert owed.min() >= -longest - 1e-6


def test_lanes_do_not_move_in_step():
    """The n-th items of all lanes together have the shares too, also where all cost the same."""
    parts = [(ListSource([name] * 50, name=name), share) for name, share in SHARES.items()]
    blend = BlendDataset(parts, unit=ItemCost(len))
    cursors = [blend.open(Lane(index, 60)) for index in range(60)]
    for _ in range(40):
        items = [next(cursor) for cursor in cursors]
        weighed = {name: items.count(name) for name in SHARES}
        assert max(weighed.values()) < 50, "nearly all lanes gave items of one source"


@pytest.mark.parametrize("make", [by_column, by_item, by_pack])
def test_any_topology_has_the_same_batches_and_goes_on_from_any_state(make):
    """Saved on 2 ranks of 2 workers after 20 steps of an epoch, resumed on one rank of 4 and in
    this process.
    """
    lanes = {} if make is by_column else {"lanes": 4}
    with loader_of(batches(make()), **lanes) as one:
        expected = take(one, 80)
    ranks = [loader_of(batches(make()), 2, rank, 2, **lanes) for rank in range(2)]
    parts = [take(each, 20) for each in ranks]
    states = [json.loads(json.dumps(each.state_dict())) for each in ranks]
    for each in ranks:
        each.close()
    assert [item for pair in zip(*parts, strict=True) for item in pair] == expected[:40]
    assert states[0] == states[1]
    for workers in (0, 4):
        with loader_of(batches(make()), workers, **lanes) as resumed:
            resumed.load_state_dict(states[0])
            assert take(resumed, 40) == expected[40:]


def test_states_of_other_shapes_are_refused():
    cursor = by_item().open()
    next(cursor)
    state = cursor.state()
    for name, wrong in (
        ("owed", [1.0]), ("owed", [1.0, 2.0, float("inf")]), ("owed", [1.0, 2.0, "3"]),
        ("costs", [-1.0, 0.0, 0.0]), ("items", -1),
    ):  # fmt: skip
        slots = {**state["input"]["slots"], name: wrong}
        with pytest.raises(StateError, match=name):
            by_item().open(state={**state, "input": {**state["input"], "slots": slots}})


# Errors


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"unit": "tokns"}, ColumnError, "no column 'tokns'; did you mean 'tokens'"),
        ({"unit": 3}, ConfigError, "unit is 'samples', the name of a column"),
        ({"unit": ItemCost}, ConfigError, "unit is 'samples', the name of a column"),
        ({"unit": lambda: 1}, ConfigError, "has no parameters"),
        ({"unit": lambda tokens: tokens - 9}, ColumnError, "costs are numbers above 0"),
        ({"unit": lambda tokens: tokens * np.nan}, ColumnError, "its cost is nan"),
        ({"unit": "tokens", "scheme": "exact"}, ConfigError, "leave either out"),
        ({"unit": "tokens", "block_size": 5}, ConfigError, "block_size says whose slot"),
        ({"unit": ItemCost("tokens"), "scheme": "exact"}, ConfigError, "ItemCost\\('tokens'\\)"),
        ({"unit": "tokens", "stop": "all_exhausted"}, ConfigError, "none does"),
        ({"unit": "tokens", "max_epochs": 2}, ConfigError, "max_epochs=2 ends a blend"),
    ],
)
def test_units_that_cannot_be_used(options, error, says):
    parts = list(zip(shuffled_texts().values(), SHARES.values(), strict=True))
    with pytest.raises(error, match=f"BlendDataset: .*{says}"):
        BlendDataset(parts, **options)


@pytest.mark.parametrize("cost", [0, -1, float("nan"), float("inf"), "seven", None, [3]])
def test_costs_that_are_none_name_the_sample(cost):
    blend = BlendDataset(
        (texts("books"), 1), (texts("chats"), 1), unit=ItemCost(lambda sample: cost)
    )
    with pytest.raises(EncoderError, match=r"(?s)sample 'books/0' costs .*SkipSample"):
        next(blend.open())


def test_a_function_of_items_may_leave_them_out_and_its_errors_name_the_sample():
    def cost(sample):
        if sample["tokens"] > 300:
            raise SkipSample
        return sample["tokens"]

    parts = list(zip(shuffled_texts().values(), SHARES.values(), strict=True))
    items = list(islice(BlendDataset(parts, unit=ItemCost(cost)).open(), 2000))
    assert max(item["tokens"] for item in items) <= 300
    assert shares_of(items) == near(SHARES, 0.01)
    with pytest.raises(EncoderError, match=r"(?s)KeyError: 'toks'.*at sample '"):
        next(BlendDataset(parts, unit=ItemCost(lambda sample: sample["toks"])).open())

    def none(sample):
        raise SkipSample

    with pytest.raises(SubstitutionError, match="256 items in a row were left out"):
        next(BlendDataset(parts, unit=ItemCost(none)).open())
