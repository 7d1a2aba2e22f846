"""Indexed datasets as map-style datasets of torch."""

from __future__ import annotations

import pytest
from torch.utils.data import DataLoader

from energize import (
    BatchDataset,
    ConfigError,
    FilterDataset,
    RepeatDataset,
    WorkerConfig,
    is_padding,
)
from energize.integrations.torch import MapView, RankSampler
from tests.support.datasets import is_even, numbers, shuffled
from tests.support.loading import loader_of, take


def as_dict(rows):
    return {"x": list(rows)}


def unchanged(batch):
    return batch


BATCHES = BatchDataset(shuffled(21), 2, as_dict)  # 11 batches


def loaded(rank: int, ranks: int, epochs: int, workers: int = 0) -> list:
    view = MapView(BATCHES)
    sampler = RankSampler(view, WorkerConfig(rank=rank, world_size=ranks))
    options = {"batch_size": None, "num_workers": workers, "collate_fn": unchanged}
    loader = DataLoader(view, sampler=sampler, **options)
    assert len(loader) == len(sampler)
    found = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        found += list(loader)
    return found


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ranks_read_what_loaders_read_with_the_same_padding(ranks):
    for rank in range(ranks):
        with loader_of(BATCHES, rank=rank, ranks=ranks) as loader:
            expected = [
                (is_padding(batch), batch) for _ in range(2) for batch in loader
            ]
        found = [(is_padding(batch), batch) for batch in loaded(rank, ranks, 2)]
        assert [mark for mark, _ in found] == [mark for mark, _ in expected]
        assert [b["x"] for mark, b in found if not mark] == [
            b["x"] for mark, b in expected if not mark
        ]


@pytest.mark.jobs
def test_workers_read_the_same():
    assert loaded(1, 2, 2, workers=2) == loaded(1, 2, 2)


def test_a_sampler_resumes_on_other_ranks():
    view = MapView(shuffled(11))
    first = [RankSampler(view, WorkerConfig(rank, 2)) for rank in range(2)]
    iterators = [iter(sampler) for sampler in first]
    taken = [next(each).position for _ in range(2) for each in iterators]
    states = [each.state_dict() for each in iterators]
    assert taken == [0, 1, 2, 3]
    assert states[0] == states[1]
    rest = []
    for rank in range(3):
        positions = iter(RankSampler(view, WorkerConfig(rank, 3)))
        positions.load_state_dict(states[0])
        rest += [each.position for each in positions if not each.is_padding]
    assert sorted(rest) == list(range(4, 11))


def test_integers_are_positions_of_the_current_epoch():
    dataset = shuffled(9)
    view = MapView(dataset)
    with loader_of(dataset) as loader:
        whole = take(loader, 18)
    assert [view[position] for position in range(9)] == whole[:9]
    view.set_epoch(1)
    assert view.__getitems__(range(9)) == whole[9:]
    assert view[-1] == whole[17]
    with pytest.raises(IndexError, match="position 9 of an epoch of 9 items"):
        view[9]


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (FilterDataset(shuffled(9), is_even), "a stream has no random access"),
        (RepeatDataset(numbers(9)), "the dataset has no end"),
        ([1, 2], "takes an energize Dataset, got list"),
    ],
)
def test_other_datasets_have_no_view(dataset, message):
    with pytest.raises(ConfigError, match=message):
        MapView(dataset)
