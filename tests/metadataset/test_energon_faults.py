"""Faults that Megatron-Energon's metadatasets have, with what is right here."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest

from energize import (
    WorkerConfig,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    load_dataset,
)
from energize.metadataset import leaves_with_weights, resolve
from tests.support.joining import keys, texts
from tests.support.metadatasets import written

JOINER = {"__module__": "tests.support.joining", "__class__": "Pair"}
CONFIG = WorkerConfig(rank=0, world_size=1, num_workers=0)


@pytest.fixture
def folder(tmp_path):
    """A folder of two samples, and larger ones of equal size."""
    texts(tmp_path / "tiny", [keys(0, 1)])
    texts(tmp_path / "a", [keys(*range(100, 160))])
    texts(tmp_path / "b", [keys(*range(200, 260))], exclude=["s0.tar/0203", "s0.tar/0204"])
    return tmp_path


def mix(folder, **node):
    return written(folder / "mix.yaml", node, "megatron.energon")


def test_tiny_datasets_keep_their_share_with_many_workers(folder):
    file = mix(folder, blend=[{"path": "tiny", "weight": 1}, {"path": "a", "weight": 1}])
    config = WorkerConfig(rank=0, world_size=1, num_workers=3)
    batches = iter(get_loader(get_train_dataset(file, batch_size=10, worker_config=config)))
    found = Counter(key < "0100" for _ in range(24) for key in next(batches).__key__)
    assert found == {True: 120, False: 120}


def test_a_tiny_dataset_alone_is_read_by_many_workers(folder):
    config = WorkerConfig(rank=0, world_size=1, num_workers=3)
    dataset = get_train_dataset(folder / "tiny", batch_size=1, worker_config=config)
    batches = iter(get_loader(dataset))
    assert Counter(next(batches).__key__[0] for _ in range(8)) == {"0000": 4, "0001": 4}


def test_small_weights_beside_large_ones_are_kept(folder):
    file = mix(folder, blend=[{"path": "a", "weight": 1e9}, {"path": "b", "weight": 10}])
    shares = [share for _, share in leaves_with_weights(resolve(file, "train"))]
    assert shares == [Fraction(10**8, 10**8 + 1), Fraction(1, 10**8 + 1)]
    dataset = get_train_dataset(file, batch_size=None)
    assert dataset.consumed(10 * (10**8 + 1)).tolist() == [10**9, 10]


def test_datasets_of_equal_size_are_read_in_different_orders(folder):
    file = mix(folder, blend=[{"path": "a", "weight": 1}, {"path": "a", "weight": 1,
               "subflavors": {"again": True}}])  # fmt: skip
    dataset = get_train_dataset(file, batch_size=None)
    orders: dict[bool, list[str]] = {False: [], True: []}
    for sample in dataset.at(range(120)):
        orders["again" in sample.__subflavors__].append(sample.__key__)
    assert sorted(orders[False]) == sorted(orders[True]) == keys(*range(100, 160))
    assert orders[False] != orders[True]


def test_subsets_count_in_passes_and_lengths(folder):
    entries = [
        {"path": "a", "subset": {"range": ["0%", "10%"]}, "repetitions": 2},
        {"path": "b", "repetitions": 1},
    ]
    file = mix(folder, blend_epochized=entries)
    dataset = get_train_dataset(file, batch_size=None, repeat=False)
    assert len(dataset) == dataset.size == 12 + 58
    assert dataset.consumed(70).tolist() == [12, 58]
    first_half = dataset.consumed(35).tolist()  # mixed in proportion all the time
    assert 3 <= first_half[0] <= 9
    found = load_dataset(file).get_datasets(training=True, split_part="train", worker_config=CONFIG)
    assert [len(each.dataset) for each in found.datasets] == [6, 58]


def test_lengths_of_joins_are_those_of_their_rows(folder):
    texts(folder / "notes", [keys(*range(130, 150))])
    join = {"join": [{"path": "a"}, {"path": "notes", "nonmatch": "skip"}], "joiner": JOINER}
    file = mix(folder, **join)
    (loaded,) = (
        load_dataset(file)
        .get_datasets(training=False, split_part="train", worker_config=CONFIG)
        .datasets
    )
    assert len(loaded.dataset) == 20
    assert len(get_train_dataset(file, batch_size=1)) == 20
    assert len(list(get_val_dataset(file, split_part="train", batch_size=None))) == 20


def test_validation_over_several_datasets_resumes_where_it_was(folder):
    file = mix(folder, blend=[{"path": "tiny", "weight": 1}, {"path": "a", "weight": 1}])
    dataset = get_val_dataset(file, split_part="train", batch_size=4)
    loader = get_savable_loader(dataset)
    batches = iter(loader)
    seen = [next(batches).__key__ for _ in range(7)]
    state = loader.save_state_rank()
    again = get_savable_loader(dataset)
    again.restore_state_rank(state)
    seen += [batch.__key__ for batch in again]
    assert [key for batch in seen for key in batch] == keys(0, 1, *range(100, 160))


def test_a_state_of_a_join_goes_on_where_the_folders_are_now(tmp_path):
    texts(tmp_path / "old" / "a", [keys(*range(20))], prefix="a ")
    texts(tmp_path / "old" / "notes", [keys(*range(19, -1, -1))], prefix="n ")
    node = {"join": [{"path": "a"}, {"path": "notes"}], "joiner": JOINER}
    file = written(tmp_path / "old" / "mix.yaml", node)
    loader = get_savable_loader(get_train_dataset(file, batch_size=3))
    batches = iter(loader)
    for _ in range(4):
        next(batches)
    state = loader.save_state_rank()
    rest = [next(batches).note for _ in range(5)]
    (tmp_path / "old").rename(tmp_path / "new")
    load_dataset(tmp_path / "new" / "mix.yaml").prepare()
    again = get_savable_loader(get_train_dataset(tmp_path / "new" / "mix.yaml", batch_size=3))
    again.restore_state_rank(state)
    batches = iter(again)
    assert [next(batches).note for _ in range(5)] == rest
