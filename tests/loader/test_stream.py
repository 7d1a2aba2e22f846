"""What a loader delivers: the dataset's stream, whatever the ranks and workers."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from energize import (
    BatchDataset,
    FilterDataset,
    Lane,
    MapDataset,
    ShuffleDataset,
)
from energize.core.stream import INFINITE
from energize.core.trace import padding
from energize.errors import LoaderError, NotIndexedError
from tests.support.datasets import INDEXED, STREAMING, is_even, numbers
from tests.support.loading import (
    epoch_in_turns,
    loader_of,
    plain,
    prints,
    take,
    with_pid,
)

FEW_ITEMS = {"batch of filter, drop last", "limit of filter"}
"""Streams of too few items for six ranks."""


def items_of(name: str) -> int:
    size = INDEXED[name].size
    return 45 if size == INFINITE else 2 * size


@pytest.mark.parametrize("name", INDEXED)
def test_ranks_in_turn_give_the_plain_stream_for_world_sizes_1_to_8(name):
    dataset = INDEXED[name]
    rounds = 45 if dataset.size == INFINITE else dataset.size + 1
    for ranks in range(1, 9):
        loaders = [loader_of(dataset, rank=rank, ranks=ranks) for rank in range(ranks)]
        got = epoch_in_turns(loaders, rounds)
        if dataset.size != INFINITE:
            got += epoch_in_turns(loaders, rounds)
        steps = dataset._steps_per_epoch
        count = len(got)
        if dataset.size != INFINITE:
            count = 2 * (dataset.size if steps is None else steps * ranks)
        padded = padding(dataset, np.arange(count)).tolist()
        whole = [each for each, pads in zip(plain(dataset, count), padded, strict=True) if not pads]
        assert got == whole, f"world size {ranks}"


@pytest.mark.parametrize("name", INDEXED)
def test_worker_processes_give_the_plain_stream(name):
    count = items_of(name)
    with loader_of(INDEXED[name], workers=2) as loader:
        assert prints(take(loader, count)) == plain(INDEXED[name], count)


@pytest.mark.parametrize("name", STREAMING)
def test_a_stream_in_one_lane_is_the_plain_one(name):
    for workers in (0, 2):
        with loader_of(STREAMING[name], workers, lanes=1) as loader:
            assert prints(take(loader, 40)) == plain(STREAMING[name], 40)


@pytest.mark.parametrize("name", STREAMING)
def test_a_stream_is_the_same_on_any_number_of_ranks_and_workers(name):
    dataset, lanes = STREAMING[name], 2 if name in FEW_ITEMS else 6
    one = prints(take(loader_of(dataset, lanes=lanes), 60))
    for ranks, workers in ((1, 1), (1, 4), (2, 0), (2, 2), (3, 0), (6, 0)):
        if ranks > lanes:
            continue
        loaders = [loader_of(dataset, workers, rank, ranks, lanes=lanes) for rank in range(ranks)]
        got: list[str] = []
        while len(got) < 60:
            got += epoch_in_turns(loaders, 60)
        for loader in loaders:
            loader.close()
        assert got[:60] == one, f"{ranks} ranks, {workers} workers"


def test_all_workers_read_a_stream():
    dataset = FilterDataset(MapDataset(numbers(1000), with_pid), bool)
    with loader_of(dataset, workers=3) as loader:
        by_process = Counter(pid for pid, _ in loader)
    assert len(by_process) == 3
    assert sum(by_process.values()) == 1000


def test_a_lane_reads_its_own_part_only():
    read: list[int] = []

    def note(item):
        read.append(item)
        return item

    dataset = FilterDataset(MapDataset(numbers(800), note), is_even)
    for lane in range(4):
        before = len(read)
        list(dataset.open(Lane(lane, 4)))
        assert len(read) - before == 200
    assert sorted(read) == list(range(800))


@pytest.mark.parametrize("workers", [0, 8])
def test_one_sample_and_eight_workers(workers):
    with loader_of(numbers(1), workers) as loader:
        assert [list(loader) for _ in range(3)] == [[0]] * 3


@pytest.mark.parametrize("workers", [0, 2])
def test_each_loop_is_the_next_epoch_in_an_order_of_its_own(workers):
    dataset = ShuffleDataset(numbers(30))
    with loader_of(dataset, workers) as loader:
        first, second = list(loader), list(loader)
    assert sorted(first) == sorted(second) == list(range(30))
    assert first != second


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loop_after_a_break_goes_on_after_the_last_item(workers):
    with loader_of(numbers(200), workers) as loader:
        for item in loader:
            if item == 4:
                break
        assert next(iter(loader)) == 5
        assert list(loader) == list(range(6, 200))


@pytest.mark.parametrize("workers", [0, 2])
def test_rewind_goes_back_to_the_first_item(workers):
    with loader_of(ShuffleDataset(numbers(20)), workers) as loader:
        first = take(loader, 25)
        loader.rewind()
        assert take(loader, 25) == first


@pytest.mark.parametrize("end", ["iter", "rewind", "close", "load"])
def test_an_iterator_that_was_replaced_says_so(end):
    loader = loader_of(numbers(9))
    old = iter(loader)
    next(old)
    actions = {
        "iter": lambda: iter(loader),
        "rewind": loader.rewind,
        "close": loader.close,
        "load": lambda: loader.load_state_dict(loader.state_dict()),
    }
    actions[end]()
    with pytest.raises(LoaderError, match="one iterator at a time"):
        next(old)


@pytest.mark.parametrize(("size", "ranks"), [(7, 1), (7, 2), (7, 8), (8, 4)])
def test_length_is_the_number_of_items_of_the_rank(size, ranks):
    loaders = [loader_of(numbers(size), rank=rank, ranks=ranks) for rank in range(ranks)]
    assert [len(loader) for loader in loaders] == [len(list(loader)) for loader in loaders]
    assert {len(loader) for loader in loaders} == {-(-size // ranks)}


def test_length_of_an_endless_dataset_is_a_pass_over_what_it_reads():
    assert len(loader_of(INDEXED["repeat for ever"])) == 6
    assert len(loader_of(INDEXED["blend"])) == 8
    assert len(loader_of(INDEXED["blend"], ranks=3)) == 3
    assert len(loader_of(BatchDataset(INDEXED["blend"], 3, list))) == 3
    assert len(loader_of(STREAMING["epochize of filter"], ranks=3)) == 4


@pytest.mark.parametrize("name", ["filter", "batch of filter", "repeat of filter"])
def test_no_length_where_only_reading_tells(name):
    with pytest.raises(NotIndexedError):
        len(loader_of(STREAMING[name]))
