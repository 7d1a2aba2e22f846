"""Mixes of real Hugging Face datasets, handed to what takes a Hugging Face iterable dataset."""

from __future__ import annotations

import copy
import json
import pickle
from collections import Counter
from itertools import islice

import datasets
import pytest
from datasets.distributed import split_dataset_by_node
from torch.utils.data import DataLoader

from energize import ConfigError, ListSource, ShuffleDataset, StateError
from energize.compat.easydel import MixedShardedSource, block_mixture_interleave
from energize.compat.hugging_face import to_iterable_dataset


def rows(count, start=0):
    return datasets.Dataset.from_dict({"x": list(range(start, start + count))})


def generate(count, start):
    for x in range(start, start + count):
        yield {"x": x}


KINDS = {
    "map-style": lambda: (rows(70), rows(90, 1000)),
    "streaming": lambda: (
        rows(70).to_iterable_dataset(num_shards=3),
        datasets.IterableDataset.from_generator(generate, gen_kwargs={"count": 90, "start": 1000}),
    ),
    "both": lambda: (rows(70), rows(90, 1000).to_iterable_dataset(num_shards=4)),
}


def mix(kind, stop="restart", **options):
    code, text = KINDS[kind]()
    return block_mixture_interleave(
        {"code": code, "text": text}, {"code": 0.3, "text": 0.7}, 100, 7, stop, **options
    )


@pytest.mark.parametrize("kind", KINDS)
def test_the_mix_is_a_hugging_face_dataset_with_exact_shares(kind):
    mixed = mix(kind)
    assert isinstance(mixed, datasets.IterableDataset)
    seen = list(mixed.take(500))
    assert [sum(e["x"] < 1000 for e in seen[k : k + 100]) for k in range(0, 500, 100)] == [30] * 5
    assert {tuple(example) for example in seen} == {("x",)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("at", [1, 20, 334])
def test_its_state_is_exact_and_json(kind, at):
    mixed = mix(kind)
    iterator = iter(mixed)
    for _ in range(at):
        next(iterator)
    state = json.loads(json.dumps(mixed.state_dict()))
    rest = list(islice(iterator, 150))
    fresh = mix(kind)
    fresh.load_state_dict(state)
    assert list(islice(fresh, 150)) == rest


def test_a_state_is_a_moment_and_not_the_running_mix():
    mixed = mix("map-style")
    iterator = iter(mixed)
    next(iterator)
    state = mixed.state_dict()
    before = copy.deepcopy(state)
    next(iterator)
    assert state == before != mixed.state_dict()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", [0, 2])
def test_torch_workers_give_every_example_once(kind, workers):
    """A source that is a Hugging Face stream must not divide itself among the workers again."""
    loader = DataLoader(mix(kind, "all_exhausted"), batch_size=7, num_workers=workers)
    seen = Counter(x for batch in loader for x in batch["x"].tolist())
    assert seen == dict.fromkeys([*range(70), *range(1000, 1090)], 1)


@pytest.mark.parametrize("world_size", [2, 3, 11])
@pytest.mark.parametrize("kind", ["map-style", "both"])
def test_ranks_take_turns_in_one_order(kind, world_size):
    whole = [example["x"] for example in mix(kind, "all_exhausted")]
    for rank in range(world_size):
        part = split_dataset_by_node(mix(kind, "all_exhausted"), rank, world_size)
        assert [example["x"] for example in part] == whole[rank::world_size]


def test_a_stream_is_one_shard():
    assert mix("both").num_shards == 1
    with pytest.raises(ConfigError, match="split_dataset_by_node"):
        mix("both").shard(2, 1)


def test_ranks_times_workers_have_parts_of_their_own():
    seen: Counter[int] = Counter()
    for rank in range(2):
        part = split_dataset_by_node(mix("map-style", "all_exhausted"), rank, 2)
        for batch in DataLoader(part, batch_size=3, num_workers=2):
            seen.update(batch["x"].tolist())
    assert set(seen.values()) == {1}
    assert len(seen) == 160


def test_the_state_of_one_part_does_not_fit_another():
    part = split_dataset_by_node(mix("map-style"), 0, 2)
    next(iter(part))
    other = split_dataset_by_node(mix("map-style"), 1, 2)
    other.load_state_dict(part.state_dict())
    with pytest.raises(StateError, match=r"part \[0, 2\].*part \[1, 2\]"):
        next(iter(other))


def test_its_pipelines_go_on_working():
    doubled = mix("map-style").map(lambda e: {"y": 2 * e["x"]}).filter(lambda e: e["x"] % 2)
    seen = list(doubled.shuffle(seed=1, buffer_size=10).take(20))
    assert all(example["y"] == 2 * example["x"] and example["x"] % 2 for example in seen)
    mapped = mix("map-style").map(lambda e: {"y": 2 * e["x"]})
    iterator = iter(mapped)
    next(iterator)
    again = mix("map-style").map(lambda e: {"y": 2 * e["x"]})
    again.load_state_dict(mapped.state_dict())
    assert next(iter(again)) == next(iterator)


def test_it_can_be_pickled_while_it_runs():
    mixed = mix("map-style")
    iterator = iter(mixed)
    next(iterator)
    assert next(iter(pickle.loads(pickle.dumps(mixed))))["x"] >= 0


def test_setting_the_epoch_leaves_the_order_to_the_mix():
    mixed = mix("map-style", "all_exhausted")
    first = list(mixed)
    mixed.set_epoch(3)
    assert list(mixed) == first


def test_the_mixed_source_gives_the_same_mix_with_its_names():
    code, text = KINDS["map-style"]()
    source = MixedShardedSource(
        {"code": code, "text": text}, {"code": 0.3, "text": 0.7}, 100, 7, shuffle=False
    )
    named = list(source.to_iterable_dataset().take(200))
    plain = list(mix("map-style", shuffle=False).take(200))
    assert Counter(example["__source__"] for example in named) == {"code": 60, "text": 140}
    assert [example["x"] < 1000 for example in named] == [
        example["__source__"] == "code" for example in named
    ]
    assert Counter(e["x"] for e in plain) == Counter(e["x"] for e in named)


@pytest.mark.parametrize("order", ["energize", "easydel"])
@pytest.mark.parametrize("kind", KINDS)
def test_both_ways_to_mix_give_one_order(kind, order):
    code, text = KINDS[kind]()
    source = MixedShardedSource(
        {"code": code, "text": text}, {"code": 0.3, "text": 0.7}, 100, 7, order=order
    )
    named = [example["x"] for example in islice(source.iter_shards(), 400)]
    assert [example["x"] for example in mix(kind, order=order).take(400)] == named


def test_easydel_order_of_hugging_face_datasets_agrees_with_the_mixed_source():
    code, text = KINDS["map-style"]()
    source = MixedShardedSource(
        {"code": code, "text": text}, {"code": 0.3, "text": 0.7}, 100, 7, order="easydel"
    )
    plain = [example["x"] for example in mix("map-style", order="easydel").take(300)]
    streamed = [example["x"] for example in mix("streaming", order="easydel").take(300)]
    assert plain == streamed == [e["x"] for e in islice(source.iter_shards(), 300)]


def test_any_dataset_can_be_handed_on():
    dataset = ShuffleDataset(ListSource([{"x": i} for i in range(30)]))
    assert list(to_iterable_dataset(dataset)) == list(dataset)
