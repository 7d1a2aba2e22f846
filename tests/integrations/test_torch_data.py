"""A dataset under torch's DataLoader and torchdata's: epoch after epoch, and resumed.

Workers of a DataLoader are played in one process; the tests of `jobs` have real ones.
"""

from __future__ import annotations

import copy
import json
import os
from itertools import count, islice, product
from types import SimpleNamespace

import pytest
from torch.utils.data import DataLoader, _utils

import energize as ez
from energize.errors import ConfigError, LoaderError, StateError
from energize.integrations import torch_data
from energize.integrations.torch_data import as_torch_dataset
from tests.support.datasets import INDEXED, is_even, numbers, shuffled
from tests.support.loading import loader_of, prints, with_pid

StatefulDataLoader = pytest.importorskip(
    "torchdata.stateful_dataloader"
).StatefulDataLoader

pytestmark = [
    pytest.mark.filterwarnings(
        "ignore:This DataLoader will create .* worker processes"
    ),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
]

INDEXED_ONES = {
    "list": shuffled(23),
    "tower": INDEXED["tower"],
    "batch": ez.BatchDataset(shuffled(23), 2, list),
    "counted": ez.EpochizeDataset(shuffled(9), 5),
}
STREAMS = {
    "finite stream": ez.MapDataset(
        ez.FilterDataset(shuffled(60), is_even), lambda n: {"number": n}
    ),
    "counted stream": ez.EpochizeDataset(
        ez.RepeatDataset(ez.FilterDataset(shuffled(40), is_even)), 6
    ),
    "stream of known size": ez.LimitDataset(
        ez.RepeatDataset(ez.FilterDataset(shuffled(40), is_even)), 24
    ),
}
DATASETS = INDEXED_ONES | STREAMS


def as_it_is(item):
    """Instead of what makes lists of tuples."""
    return item


def lanes_of(dataset):
    return None if dataset.indexed else 6


def torch_dataset(dataset, rank=0, ranks=1, **options):
    config = ez.WorkerConfig(rank=rank, world_size=ranks)
    return as_torch_dataset(
        dataset, worker_config=config, lanes=lanes_of(dataset), **options
    )


def data_loader(dataset, workers=0, kind=DataLoader, **options):
    return kind(
        dataset, batch_size=None, num_workers=workers, collate_fn=as_it_is, **options
    )


@pytest.fixture
def started(monkeypatch):
    """Persistent workers of one DataLoader: a function that has worker k read its
    part."""
    seeds = count(0, 100)

    def started(dataset, workers, seed=None):
        seed = next(seeds) if seed is None else seed
        parts = [copy.copy(dataset) for _ in range(workers)]
        for part in parts:
            part.place = copy.copy(dataset.place)  # what it has begun is its own
            part.place._table = dataset.place._table

        def turn(k):
            info = SimpleNamespace(id=k, num_workers=workers, seed=seed + k)
            with monkeypatch.context() as patch:
                patch.setattr(torch_data, "get_worker_info", lambda: info)
                return list(parts[k])

        return turn

    return started


@pytest.fixture
def play(started):
    """Loops over a dataset as a DataLoader gives them."""

    def play(dataset, workers=0, seed=None):
        turn = started(dataset, workers, seed)
        while True:
            given = [turn(k) for k in range(workers)] or [list(dataset)]
            steps = range(len(given[0]))
            yield [each[step] for step in steps for each in given if step < len(each)]

    return play


def loops_of(dataset, count, rank=0, ranks=1):
    """What `get_loader` delivers in so many loops, without padding."""
    loader = loader_of(dataset, 0, rank, ranks, lanes=lanes_of(dataset))
    loops = [[item for item in loader if not loader.padding] for _ in range(count)]
    return [prints(loop) for loop in loops]


@pytest.mark.parametrize("name", DATASETS)
def test_it_delivers_what_the_loader_does_for_every_number_of_workers(name, play):
    dataset = DATASETS[name]
    for rank, ranks, workers in ((0, 1, 0), (0, 1, 2), (1, 2, 0), (1, 2, 3)):
        found = islice(play(torch_dataset(dataset, rank, ranks), workers), 3)
        got = [
            prints([item for item in loop if not ez.is_padding(item)]) for loop in found
        ]
        for ours, theirs in zip(got, loops_of(dataset, 3, rank, ranks), strict=True):
            assert ours[: len(theirs)] == theirs, (rank, ranks, workers)
            assert len(ours) <= len(theirs) + 1, (
                "numbers cannot say that they are padding"
            )


@pytest.mark.parametrize("uneven", ["pad", "drop", "repeat", "allow"])
def test_ranks_make_the_loaders_steps_and_padding(uneven, play):
    dataset = ez.MapDataset(numbers(11), lambda number: {"number": number})
    padding = 0
    for rank in range(3):
        ours = next(play(torch_dataset(dataset, rank, 3, uneven=uneven), 2))
        theirs = loader_of(dataset, 0, rank, 3, uneven=uneven)
        loop = [(item, theirs.padding) for item in theirs]
        assert len(ours) == len(loop)
        known = [item for item, pads in loop if not pads]
        assert [item for item in ours if not ez.is_padding(item)] == known
        padding += sum(map(ez.is_padding, ours))
    assert padding == (uneven == "pad")


@pytest.mark.parametrize("name", INDEXED_ONES)
def test_a_state_after_some_steps_goes_on_anywhere(name, play):
    """Also the next loop is that after the one that was resumed."""
    dataset = DATASETS[name]
    for (rank, ranks), (workers, other, loop, steps) in product(
        [(0, 1), (1, 2)], [(0, 2, 0, 3), (2, 3, 1, 1), (2, 0, 1, 99), (0, 2, 1, 5)]
    ):
        loops = loops_of(dataset, 4, rank, ranks)
        ours, resumed = (torch_dataset(dataset, rank, ranks) for _ in range(2))
        playing = play(ours, workers)
        for _ in range(loop + 1):
            next(playing)
        state = json.loads(json.dumps(ours.state_dict(steps)))
        expected = [loops[loop][steps:], *loops[loop + 1 :]]
        expected = expected if expected[0] else expected[1:]
        resumed.load_state_dict(state)
        assert ours.state_dict(steps) == resumed.state_dict(0)
        found = [prints(each)[:99] for each in islice(play(resumed, other), 2)]
        for known, got in zip(expected, found, strict=False):
            assert got[: len(known)] == known, (rank, workers, loop, steps)
            assert len(got) <= len(known) + 1
        plain = loader_of(dataset, 0, rank, ranks)
        plain.load_state_dict(state)
        assert prints([item for item in plain if not plain.padding]) == expected[0]


@pytest.mark.parametrize("name", ["list", "counted stream"])
def test_loops_are_told_apart(name, started, play):
    """New workers of the same seed are those of the next loop; one that is late gives
    nothing of a loop that was left.
    """
    known = loops_of(DATASETS[name], 3)
    if name == "list":
        dataset = torch_dataset(DATASETS[name])
        assert [prints(next(play(dataset, 2, seed=7))) for _ in range(3)] == known
    turn = started(torch_dataset(DATASETS[name]), 2)
    first, second = turn(0), turn(0)
    assert prints(first) == known[0][::2]
    assert turn(1) == []
    assert prints(second) == known[1][::2]
    assert prints(turn(1))[: len(known[1]) // 2] == known[1][1::2]


def test_what_is_refused(play):
    endless = torch_dataset(ez.RepeatDataset(shuffled(9)))
    next(iter(endless))
    assert endless.state_dict(10**6)
    ours, stream = torch_dataset(shuffled(23)), torch_dataset(STREAMS["finite stream"])
    next(play(ours, 1))
    share, other = torch_dataset(shuffled(23)), torch_dataset(shuffled(23), 1, 2)
    next(iter(share))
    state = share.state_dict()
    other.load_state_dict(
        {**state, "share": [0, 1, 0, 2]}
    )  # as of the first of two workers
    of_a_loader = loader_of(STREAMS["finite stream"]).state_dict()
    for ask, error, told in (
        (lambda: next(iter(endless)), LoaderError, "virtual_epoch_length"),
        (ours.state_dict, StateError, r"state_dict\(steps\)"),
        (lambda: stream.state_dict(3), StateError, "StatefulDataLoader"),
        (lambda: stream.load_state_dict(of_a_loader), StateError, "get_loader"),
        (
            lambda: next(iter(other)),
            StateError,
            r"\[0, 1, 0, 2\], this is \[1, 2, 0, 1\]",
        ),
        (
            lambda: next(play(torch_dataset(STREAMS["counted stream"]), 4)),
            ConfigError,
            "6 steps",
        ),
        (lambda: len(stream), TypeError, "length|items"),
        (
            lambda: as_torch_dataset([1, 2]),
            ConfigError,
            "needs an energize Dataset, got list",
        ),
    ):
        with pytest.raises(error, match=told):
            ask()
    for damage in (
        {"share": [0]},
        {"made": -1},
        {"over": 1},
        {"more": 0},
        {"place": [0, "a"]},
    ):
        with pytest.raises(StateError):
            share.load_state_dict({**state, **damage})
    assert len(data_loader(torch_dataset(shuffled(23), 0, 2))) == 12


# With real workers


@pytest.mark.jobs
@pytest.mark.parametrize("name", ["batch", "counted", *STREAMS])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_data_loader_goes_on(name, workers):
    """In the middle of the second loop, at its end, and before the first item."""
    dataset, options = DATASETS[name], {"kind": StatefulDataLoader}
    options |= {"persistent_workers": True} if workers else {}
    loader = data_loader(torch_dataset(dataset), workers, **options)
    whole = [prints(list(loader)) for _ in range(4)]
    for steps in (0, 4, len(whole[1])):
        loader = data_loader(torch_dataset(dataset), workers, **options)
        list(loader)
        iterator = iter(loader)
        loop = prints(list(islice(iterator, steps)))
        at_end = steps == len(whole[1])
        assert not (at_end and list(iterator))
        again = data_loader(torch_dataset(dataset), workers, **options)
        again.load_state_dict(loader.state_dict())
        loops = [prints(list(again)) for _ in range(2)]
        assert ([] if at_end else loop) + loops[0] == whole[1 + at_end], steps
        assert loops[1] == whole[2 + at_end], steps


@pytest.mark.jobs
def test_real_workers(monkeypatch):
    """Spawned ones are of the same rank; the loop after one left early is the next; new
    workers read a stream again; it is an error if another process made the dataset.
    """
    monkeypatch.setattr(_utils, "MP_STATUS_CHECK_INTERVAL", 0.5)
    batches = ez.BatchDataset(shuffled(23), 2, list)
    spawned = torch_dataset(ez.MapDataset(batches, with_pid), 1, 2)
    found = list(data_loader(spawned, 2, multiprocessing_context="spawn"))
    assert len({pid for pid, _ in found}) == 2
    (expected,) = loops_of(batches, 1, 1, 2)
    assert prints([item for _, item in found])[: len(expected)] == expected
    for dataset in (shuffled(23), STREAMS["counted stream"]):
        loader = data_loader(torch_dataset(dataset), 2, persistent_workers=True)
        next(iter(loader))
        assert prints(list(loader)) == loops_of(dataset, 2)[1]
    stream = data_loader(torch_dataset(STREAMS["counted stream"]), 2)
    assert [prints(list(stream)) for _ in range(2)] == loops_of(
        STREAMS["counted stream"], 2
    )
    of_another = torch_dataset(shuffled(23))
    of_another.place._table[0] = 1
    with pytest.raises(LoaderError, match="in the process of each rank"):
        next(iter(data_loader(of_another, 1)))


def test_a_process_that_is_given_the_number_of_an_ended_one_is_another_one():
    dataset = torch_dataset(INDEXED_ONES["counted"])
    list(dataset)
    of_ended = dataset.place._table
    of_ended[0] = os.getpid()  # which is not all that tells a process from others
    assert prints(list(dataset)) == loops_of(INDEXED_ONES["counted"], 2)[1]
    assert dataset.place._table is not of_ended


def test_nothing_is_said_of_a_state_that_nobody_loaded(caplog):
    loader = DataLoader(
        as_torch_dataset(ez.EpochizeDataset(shuffled(9), 5)), batch_size=None
    )
    assert (len(list(loader)), len(list(loader))) == (5, 5)
    assert not caplog.records
