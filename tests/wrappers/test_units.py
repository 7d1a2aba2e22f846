"""Blends whose shares count what samples cost, by the index or when they have been read."""

from __future__ import annotations

import json
import logging
from functools import partial
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from energize import (
    BlendDataset,
    ColumnCost,
    FilterDataset,
    ItemCost,
    Lane,
    LimitDataset,
    ListSource,
    MapDataset,
    MixBatchDataset,
    RepeatDataset,
    Schedule,
    ShuffleDataset,
    SkipSample,
    Stage,
    StagedDataset,
    StagePlan,
)
from energize.core.config import config_of
from energize.core.trace import where
from energize.errors import (
    ColumnError,
    ConfigError,
    EncoderError,
    NotIndexedError,
    StateError,
    StateMismatchError,
    SubstitutionError,
)
from energize.testing import check_determinism
from tests.support.datasets import numbers
from tests.support.loading import loader_of, take
from tests.support.texts import (
    LONGEST,
    SHARES,
    batches,
    by_column,
    by_item,
    by_pack,
    encoded,
    lengths,
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


def test_each_sample_has_its_turn_once_in_every_pass():
    blend = by_column()
    refs = blend.refs(np.arange(2000))
    for number, source in enumerate(blend.sources):
        seen = refs.index[refs.source == number]
        for start in range(0, len(seen) - source.count + 1, source.count):
            assert len(set(seen[start : start + source.count].tolist())) == source.count


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


def test_samples_are_the_unit_that_is_not_said():
    parts = list(zip(shuffled_texts().values(), SHARES.values(), strict=True))
    plain, said = BlendDataset(parts), BlendDataset(parts, unit="samples")
    assert (plain, config_of(plain)) == (said, config_of(said))
    assert "unit" not in plain._settings()
    assert said.spent(1000) == [float(count) for count in said.taken(1000)] == [500, 300, 200]


def test_nested_blends_in_one_unit_are_opened_up_and_others_are_not():
    books, captions, chats = shuffled_texts().values()
    short = BlendDataset((captions, 3), (chats, 1), unit="tokens")
    flat = BlendDataset((books, 1), (short, 1), unit="tokens")
    assert flat.shares() == [0.5, 0.375, 0.125]
    assert flat.inputs == (books, captions, chats)
    by_samples = BlendDataset((books, 1), (short, 1))
    assert len(by_samples.inputs) == 2
    counted = by_samples.consumed(20_000)
    assert counted[0] == 10_000
    tokens = by_samples.inputs[1].spent(10_000)
    assert tokens[0] / sum(tokens) == near(0.75)
    mixed = BlendDataset(
        (books, 1), (BlendDataset((captions, 3), (chats, 1)), 1), unit=ColumnCost("tokens")
    )
    assert len(mixed.inputs) == 2
    cost = spent(mixed.at(range(20_000)))
    assert cost["books"] / sum(cost.values()) == near(0.5, 0.002)
    taken = mixed.consumed(20_000)
    assert taken[1] / (taken[1] + taken[2]) == near(0.75)


def test_parts_of_passes_and_mixes_whose_passes_cost_differently():
    books, captions, _ = shuffled_texts().values()
    blend = BlendDataset(
        (LimitDataset(books, 31), 1), (RepeatDataset(captions, 0.7), 1), unit="tokens"
    )
    cost = spent(blend.at(range(20_000)))
    assert cost["books"] / sum(cost.values()) == near(0.5, 0.002)
    assert blend.by_name(blend.spent(20_000)) == {
        name: each for name, each in cost.items() if name != "chats"
    }


def test_skipped_samples_cost_what_they_would_have():
    def not_long(sample):
        if sample["tokens"] > 300:
            raise SkipSample
        return sample

    parts = {name: MapDataset(each, not_long) for name, each in shuffled_texts().items()}
    blend = BlendDataset(parts, weights=SHARES, unit="tokens")
    assert blend.taken(500) == by_column().taken(500)
    assert max(item["tokens"] for item in blend.at(range(500))) <= 300


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


def test_a_state_does_not_fit_a_column_that_was_measured_anew():
    def blend(factor):
        columns = {"tokens": np.append(lengths("captions")[:-1], factor)}
        rows = [{"__key__": f"captions/{i}", "tokens": 1} for i in range(len(columns["tokens"]))]
        other = ListSource(rows, name="captions", columns=columns)
        return BlendDataset(
            {"books": ShuffleDataset(texts("books")), "captions": ShuffleDataset(other)},
            weights={"books": 1, "captions": 1},
            unit="tokens",
        )

    loader = loader_of(blend(5))
    take(loader, 3)
    loader_of(blend(5)).load_state_dict(loader.state_dict())
    with pytest.raises(
        StateMismatchError, match=r"costs of ShuffleDataset of 'captions' was \"\d+ together"
    ) as refused:
        loader_of(blend(6)).load_state_dict(loader.state_dict())
    assert "costs of ShuffleDataset of 'books'" not in str(refused.value)


def test_mixed_batches_take_the_unit_too():
    parts = [(ShuffleDataset(texts(name)), share) for name, share in SHARES.items()]
    mix = MixBatchDataset(*parts, batch_size=8, unit="tokens")
    assert shares_of([each for batch in mix.at(range(500)) for each in batch]) == near(SHARES, 0.02)


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


def test_packs_count_as_they_come():
    items = list(islice(by_pack().open(), 400))
    assert shares_of(items) == near(SHARES, 0.02)


def test_an_item_costs_what_its_field_or_a_function_says():
    assert ItemCost("tokens").of({"tokens": np.zeros(7)}) == 7
    assert ItemCost("tokens").of({"tokens": np.float32(2.5)}) == 2.5
    assert ItemCost(lambda batch: sum(batch["lengths"])).of({"lengths": [3, 4]}) == 7


def test_a_stream_in_the_blend_and_a_blend_that_ends():
    even = {
        name: FilterDataset(each, lambda sample: int(sample["__key__"].split("/")[1]) % 2 == 0)
        for name, each in shuffled_texts().items()
    }
    endless = BlendDataset(even, weights=SHARES, unit=ItemCost("tokens"))
    assert shares_of(list(islice(endless.open(Lane(1, 2)), 3000))) == near(SHARES, 0.01)
    once = BlendDataset(even, weights=SHARES, unit=ItemCost("tokens"), stop="all_exhausted")
    read = [item["__key__"] for item in once]
    assert len(set(read)) == len(read) == 45 + 200 + 85
    first = list(
        BlendDataset(even, weights=SHARES, unit=ItemCost("tokens"), stop="first_exhausted")
    )
    assert strays(first, SHARES) < 3 * LONGEST


def test_schedules_count_items():
    rising = Schedule([(0, 0), (4000, 1)], "linear")
    falling = Schedule([(0, 1), (4000, 0)], "linear")
    parts = {name: MapDataset(texts(name), encoded) for name in ("books", "captions")}
    blend = BlendDataset(
        parts, weights={"books": rising, "captions": falling}, unit=ItemCost("tokens")
    )
    for lane in (Lane(0, 1), Lane(1, 4)):
        items = list(islice(blend.open(lane), 4000 // lane.count))
        early = shares_of(items[: len(items) // 10])["books"]
        late = shares_of(items[-len(items) // 10 :])["books"]
        assert early < 0.15
        assert late > 0.85


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


def test_a_source_without_the_column_is_named_with_what_gives_it_one():
    with pytest.raises(ColumnError, match=r"numbers0 has no column 'tokens'.*columns="):
        BlendDataset((texts("books"), 1), (numbers(5), 1), unit="tokens")


def test_streams_have_no_columns():
    stream = FilterDataset(texts("captions"), bool)
    with pytest.raises(NotIndexedError, match=r"dataset 1 .FilterDataset.*ItemCost"):
        BlendDataset((texts("books"), 1), (stream, 1), unit="tokens")


@pytest.mark.parametrize("cost", [0, -1, float("nan"), float("inf"), "seven", None, [3]])
def test_costs_that_are_none_name_the_sample(cost):
    blend = BlendDataset(
        (texts("books"), 1), (texts("chats"), 1), unit=ItemCost(lambda sample: cost)
    )
    with pytest.raises(EncoderError, match=r"(?s)sample 'books/0' costs .*SkipSample"):
        next(blend.open())


def test_items_without_a_key_are_told_by_their_source():
    blend = BlendDataset((numbers(5), 1), unit=ItemCost(lambda number: 0))
    with pytest.raises(EncoderError, match=r"(?s)an item costs 0.* at numbers0, sample 0"):
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


def test_a_loader_may_leave_out_what_has_no_cost():
    def dataset():
        parts = list(zip(shuffled_texts().values(), SHARES.values(), strict=True))
        return BlendDataset(parts, unit=ItemCost(lambda sample: sample["tokens"] - 20))

    with loader_of(dataset()) as loader, pytest.raises(EncoderError, match="costs are finite"):
        take(loader, 1000)
    with loader_of(dataset(), on_error="skip") as loader:
        items = take(loader, 1000)
        assert min(item["tokens"] for item in items) > 20
        state = json.loads(json.dumps(loader.state_dict()))
        after = take(loader, 20)
    with loader_of(dataset(), 1, on_error="skip") as loader:
        loader.load_state_dict(state)
        assert take(loader, 20) == after


def test_a_field_that_is_not_there():
    blend = BlendDataset((texts("books"), 1), unit=ItemCost("tokns"))
    with pytest.raises(EncoderError, match=r"'books/0' has no field 'tokns'.*mean 'tokens'"):
        next(blend.open())
    with pytest.raises(ConfigError, match="a function of an item, or the name of a field"):
        ItemCost(3)


def test_counts_of_a_stream_are_not_known_before():
    assert by_item().taken(10) is None
    for ask in (by_item().spent, by_item().consumed, partial(where, by_item())):
        with pytest.raises(NotIndexedError, match="BlendDataset is a stream"):
            ask(10)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["by_column", "by_pack"])
def test_the_same_in_another_process(name):
    check_determinism(f"tests.support.texts:{name}")


def test_equal_datasets_are_one(caplog):
    with caplog.at_level(logging.INFO, "energize"):
        books = texts("books")
        blend = BlendDataset((books, 1), (books, 2), (texts("chats"), 1), unit="tokens")
    assert blend.shares() == [0.75, 0.25]
    assert "listed twice" in caplog.text


def test_target_weights_need_shares_that_are_known_before():
    parts = list(zip(shuffled_texts().values(), SHARES.values(), strict=True))
    blend = BlendDataset(parts, unit="tokens", target_weights=[1, 1, 1])
    assert blend.corrections() == pytest.approx([2 / 3, 10 / 9, 5 / 3])
    with pytest.raises(ConfigError, match="target_weights"):
        BlendDataset(parts, unit=ItemCost("tokens"), target_weights=[1, 1, 1])


def test_a_later_stage_goes_on_in_the_sources_and_looks_at_no_earlier_pass():
    def stages(mix):
        first = BlendDataset(list(zip(parts.values(), SHARES.values(), strict=True)))
        return StagedDataset(
            StagePlan([Stage("samples", 0, 1000, dataset=first), Stage("mix", 1000, dataset=mix)])
        )

    parts = {name: MapDataset(each, encoded) for name, each in shuffled_texts().items()}
    run = stages(BlendDataset(parts, weights=SHARES, unit="tokens"))
    early, late = run.at(range(1000)), run.at(range(1000, 9000))
    assert shares_of(late) == near(SHARES, 0.005)
    assert strays(late, SHARES) < 2 * LONGEST
    keys = [item["__key__"] for item in [*early, *late] if item["__key__"].startswith("books/")]
    for start in range(0, 900, 90):
        assert len(set(keys[start : start + 90])) == 90, "a pass goes on over the border"
    assert run.at([10**12])


@pytest.mark.parametrize("make", [by_column, by_item])
def test_a_running_loader_takes_other_weights_and_replays_them(make):
    options = {} if make is by_column else {"lanes": 4}
    asked = {"books": 1, "captions": 1, "chats": 8}
    with loader_of(batches(make()), **options) as loader:
        take(loader, 10)
        loader.set_weights(asked)
        rest = take(loader, 400)
        assert shares_of(rest[20:]) == near({"books": 0.1, "captions": 0.1, "chats": 0.8}, 0.02)
        state = json.loads(json.dumps(loader.state_dict()))
        after = take(loader, 5)
    with loader_of(batches(make()), 1, **options) as resumed:
        resumed.load_state_dict(state)
        assert take(resumed, 5) == after
