"""Blends: how datasets and weights are given, what is merged, whose order repeats; and weights that
change while a run goes on.

Shares, schedules and stop rules are tested with the schemes.
"""

from __future__ import annotations

import logging

import pytest

from energize import (
    BatchDataset,
    BlendDataset,
    MapDataset,
    MixBatchDataset,
    Schedule,
    ShuffleDataset,
    WorkerConfig,
    get_loader,
)
from energize.errors import ConfigError, EmptyDatasetError, StateMismatchError, WeightError
from energize.order.timeline import make_scheme
from tests.support.datasets import noisy, numbers, shuffled


def test_missing_weights():
    with pytest.raises(WeightError, match="dataset 1 has no weight"):
        BlendDataset((numbers(2), 1), numbers(2, 5))
    with pytest.raises(WeightError, match="no weight"):
        BlendDataset(numbers(2))
    with pytest.raises(WeightError, match="dataset 0 has no weight"):
        BlendDataset(numbers(2), numbers(3))


def test_an_empty_dataset_with_a_weight():
    with pytest.raises(EmptyDatasetError, match="dataset 1 has weight 1"):
        BlendDataset((numbers(2), 1), (numbers(0), 1))


def test_equal_datasets_are_merged_and_said_so(caplog):
    with caplog.at_level(logging.INFO, logger="energize"):
        blend = BlendDataset(
            (numbers(4), 1), (BlendDataset((numbers(4), 1), (numbers(5, 9), 1)), 2)
        )
    source = numbers(4)
    same = BlendDataset((source, 1), (BlendDataset((source, 1), (numbers(5, 9), 1)), 2))
    assert len(same.inputs) == 2
    assert same.shares() == pytest.approx([2 / 3, 1 / 3])
    assert len(blend.inputs) == 3  # lists made apart are not one source


def test_the_same_source_twice_does_not_repeat_its_order():
    source = numbers(60)
    twice = BlendDataset(
        (MapDataset(ShuffleDataset(source), noisy), 1),
        (MapDataset(ShuffleDataset(source), str), 1),
        scheme="exact",
    )
    refs = twice.refs(range(120))
    first, second = (refs.index[refs.source == number].tolist() for number in (0, 1))
    assert sorted(first) == sorted(second) == list(range(60))
    assert first != second


def test_the_same_source_at_other_depths_does_not_repeat_its_order():
    source = shuffled(60)
    inner = MixBatchDataset((source, 1), (shuffled(60, 100), 1), batch_size=1)
    outer = BlendDataset((BatchDataset(source, 1, list), 1), (inner, 2))
    refs = outer.refs(range(1800))
    orders = [refs.index[refs.source == number][:60].tolist() for number in (0, 1)]
    assert orders[0] != orders[1]


@pytest.mark.parametrize("scheme", ["uniform", "round_robin"])
def test_blends_that_treat_all_alike_are_not_opened_up(scheme):
    inner = BlendDataset((numbers(3), 1), (numbers(3, 10), 1), scheme=scheme)
    outer = BlendDataset((inner, 1), (numbers(3, 20), 1), scheme=scheme)
    drawn = outer.consumed(40_000) / 40_000
    assert drawn == pytest.approx([0.25, 0.25, 0.5], abs=0.02)


def test_a_scheme_object_is_part_of_the_state():
    one, other = numbers(2), numbers(2, 5)

    def blend(*weights):
        return BlendDataset((one, 1), (other, 1), scheme=make_scheme("exact", weights))

    assert blend(3, 1) == blend(6, 2) != blend(1, 3)
    with get_loader(blend(3, 1)) as loader:
        state = loader.state_dict()
    with get_loader(blend(6, 2)) as loader:
        loader.load_state_dict(state)
    with get_loader(blend(1, 3)) as loader, pytest.raises(StateMismatchError, match="weights"):
        loader.load_state_dict(state)


def test_a_scheme_of_another_size():
    with pytest.raises(ConfigError, match="3 sources, but there are 2 datasets"):
        BlendDataset((numbers(2), 1), (numbers(2, 5), 1), scheme=make_scheme("block", [1, 1, 1]))


# Weights that change: what came before stays, and states go on.

A, B = shuffled(30), shuffled(40, 100)


def blend(*weights, **options):
    return BlendDataset({"a": A, "b": B}, weights=dict(zip("ab", weights, strict=True)), **options)


def batched(mix):
    return MapDataset(BatchDataset(mix, 4, list), tuple)


def loader_of(dataset, rank=0, ranks=1, workers=0):
    return get_loader(dataset, worker_config=WorkerConfig(rank, ranks, workers))


def taken(loader, steps):
    return [item for _, item in zip(range(steps), loader, strict=False)]


@pytest.mark.parametrize("options", [{}, {"block_size": 30}, {"scheme": "random"}])
def test_a_run_goes_on_with_weights_that_change_at_a_slot_to_come(options, caplog):
    """Saved after 10 steps in one process, resumed on two ranks with two workers each."""
    before, changed = blend(1, 1, **options), blend(1, 1, **options)
    changed = changed.with_weights_from(60, {"a": 9, "b": 1})
    loader = loader_of(batched(before))
    read = taken(loader, 10)
    state = loader.state_dict()
    expected = batched(changed).at(range(10, 40))
    assert read == batched(changed).at(range(10))
    parts = []
    for rank in range(2):
        with loader_of(batched(changed), rank, 2, 2) as resumed:
            resumed.load_state_dict(state)
            parts.append(taken(resumed, 15))
    assert [item for pair in zip(*parts, strict=True) for item in pair] == expected
    assert "changes was" in caplog.text


def test_a_change_of_slots_that_were_delivered_is_refused_and_says_from_where():
    loader = loader_of(batched(blend(1, 1)))
    taken(loader, 10)
    changed = blend(1, 1).with_weights_from(30, [9, 1])
    with pytest.raises(StateMismatchError) as refused:
        loader_of(batched(changed)).load_state_dict(loader.state_dict())
    for said in ("changes was", "40 of its items are read", "may change from there"):
        assert said in str(refused.value)


def test_a_schedule_that_was_edited_goes_on_where_only_later_steps_are_others(caplog):
    points = [(0, 1), (50, 3), (200, 5)]
    loader = loader_of(blend(Schedule(points), 1))
    taken(loader, 120)
    state = loader.state_dict()
    for later in ([(0, 1), (50, 3), (130, 9)], [(0, 1), (50, 3)], [*points, (300, 1)]):
        edited = blend(Schedule(later), 1)
        resumed = loader_of(edited)
        resumed.load_state_dict(state)
        assert taken(resumed, 100) == edited.at(range(120, 220))
    for earlier in ([(0, 1), (60, 3), (200, 5)], [(0, 2), (50, 3), (200, 5)], [(0, 1), (200, 5)]):
        with pytest.raises(StateMismatchError, match="120 of its items are read"):
            loader_of(blend(Schedule(earlier), 1)).load_state_dict(state)


def test_a_blend_inside_a_blend_that_is_not_opened_up():
    def outer(inner):
        return BlendDataset((inner, 1), (numbers(9, 900), 1), scheme="exact")

    loader = loader_of(outer(blend(1, 1)))
    taken(loader, 50)  # 25 of them from the inner one
    state = loader.state_dict()
    loader_of(outer(blend(1, 1).with_weights_from(25, [1, 9]))).load_state_dict(state)
    with pytest.raises(StateMismatchError, match="25 of its items are read"):
        loader_of(outer(blend(1, 1).with_weights_from(24, [1, 9]))).load_state_dict(state)


def test_other_differences_are_refused_all_the_same():
    loader = loader_of(blend(1, 1))
    taken(loader, 10)
    state = loader.state_dict()
    other = BlendDataset({"a": A, "b": B.reseeded(5)}, weights={"a": 1, "b": 1})
    with pytest.raises(StateMismatchError, match="seed"):
        loader_of(other.with_weights_from(60, [9, 1])).load_state_dict(state)
    with pytest.raises(StateMismatchError, match=r"scheme was \"even\", is \"exact\""):
        loader_of(blend(1, 1, scheme="exact")).load_state_dict(state)


def test_names():
    mix = blend(3, 1)
    assert mix.names == ("a", "b")
    assert mix.by_name(mix.shares()) == {"a": 0.75, "b": 0.25}
    assert mix.by_name(mix.taken(100)) == {"a": 75, "b": 25}
    nested = BlendDataset({"texts": mix, "c": numbers(5, 500)}, weights={"texts": 2, "c": 1})
    assert nested.names == ("texts/a", "texts/b", "c")
    assert nested.by_name(nested.taken(300)) == {"texts/a": 150, "texts/b": 50, "c": 100}
    unnamed = BlendDataset((numbers(3), 1), (numbers(4, 100), 1))
    assert unnamed.names == ("numbers0", "numbers100")


@pytest.mark.parametrize(
    ("slot", "weights", "error", "said"),
    [
        (10, {"a": 1, "c": 1}, WeightError, "unknown 'c'"),
        (10, {"a": 1, "b": -1}, WeightError, "BlendDataset: .*not negative, got -1"),
        (10, [1], WeightError, "1 weights are given for 2 sources"),
        ("soon", [1, 1], ConfigError, "a whole number, 0 or more; got 'soon'"),
    ],
)
def test_changes_that_are_none(slot, weights, error, said):
    with pytest.raises(error, match=said):
        blend(1, 1).with_weights_from(slot, weights)
