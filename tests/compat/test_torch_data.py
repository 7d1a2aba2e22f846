"""A dataset under torch's DataLoader and torchdata's: epoch after epoch, and resumed."""

from __future__ import annotations

import gc
import json
import logging
from itertools import islice

import pytest
from torch.utils.data import DataLoader, _utils
from torchdata.stateful_dataloader import StatefulDataLoader

from energize import (
    BatchDataset,
    EpochizeDataset,
    FilterDataset,
    LimitDataset,
    MapDataset,
    RepeatDataset,
    WorkerConfig,
    is_padding,
)
from energize.compat.torch_data import as_torch_dataset
from energize.errors import ConfigError, LoaderError, StateError
from tests.support.datasets import INDEXED, is_even, numbers, shuffled
from tests.support.loading import loader_of, prints, with_pid

pytestmark = [
    pytest.mark.jobs,
    pytest.mark.filterwarnings("ignore:This DataLoader will create .* worker processes"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
]


@pytest.fixture(scope="module", autouse=True)
def shutting_down_soon():
    """torch waits 5 seconds for each worker that failed, where its loader is collected."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_utils, "MP_STATUS_CHECK_INTERVAL", 0.5)
        yield
        gc.collect()


INDEXED_ONES = {
    "list": shuffled(23),
    "tower": INDEXED["tower"],
    "batch": BatchDataset(shuffled(23), 2, list),
    "counted": EpochizeDataset(shuffled(9), 5),
}
STREAMS = {
    "finite stream": MapDataset(FilterDataset(shuffled(60), is_even), lambda n: {"number": n}),
    "counted stream": EpochizeDataset(RepeatDataset(FilterDataset(shuffled(40), is_even)), 6),
    "stream of known size": LimitDataset(RepeatDataset(FilterDataset(shuffled(40), is_even)), 24),
}
DATASETS = INDEXED_ONES | STREAMS
ENDLESS = RepeatDataset(shuffled(9))


def as_it_is(item):
    """Instead of what makes lists of tuples."""
    return item


def lanes_of(dataset):
    return None if dataset.indexed else 12


def torch_dataset(dataset, rank=0, ranks=1, **options):
    config = WorkerConfig(rank=rank, world_size=ranks)
    return as_torch_dataset(dataset, worker_config=config, lanes=lanes_of(dataset), **options)


def data_loader(dataset, workers=0, kind=DataLoader, **options):
    return kind(dataset, batch_size=None, num_workers=workers, collate_fn=as_it_is, **options)


def loops_of(dataset, count, rank=0, ranks=1, **options):
    """What `get_loader` delivers in so many loops, without padding."""
    loader = loader_of(dataset, 0, rank, ranks, lanes=lanes_of(dataset), **options)
    loops = [[item for item in loader if not loader.padding] for _ in range(count)]
    return [prints(loop) for loop in loops]


@pytest.mark.parametrize("name", DATASETS)
def test_it_delivers_what_the_loader_does_for_every_number_of_workers(name):
    dataset = DATASETS[name]
    for rank, ranks, workers in ((0, 1, 0), (0, 1, 2), (1, 2, 0), (0, 2, 1), (1, 2, 3)):
        options = {} if dataset.indexed or not workers else {"persistent_workers": True}
        loader = data_loader(torch_dataset(dataset, rank, ranks), workers, **options)
        found = [list(loader) for _ in range(3)]
        got = [prints([item for item in loop if not is_padding(item)]) for loop in found]
        for ours, theirs in zip(got, loops_of(dataset, 3, rank, ranks), strict=True):
            assert ours[: len(theirs)] == theirs, (rank, ranks, workers)
            assert len(ours) <= len(theirs) + 1, "numbers cannot say that they are padding"


@pytest.mark.parametrize("uneven", ["pad", "drop", "repeat", "allow"])
def test_ranks_make_the_loaders_steps_and_padding(uneven):
    dataset = MapDataset(numbers(11), lambda number: {"number": number})
    padding = 0
    for rank in range(3):
        ours = list(data_loader(torch_dataset(dataset, rank, 3, uneven=uneven), 2))
        theirs = loader_of(dataset, 0, rank, 3, uneven=uneven)
        loop = [(item, theirs.padding) for item in theirs]
        assert len(ours) == len(loop)
        assert [item for item in ours if not is_padding(item)] == [
            item for item, pads in loop if not pads
        ]
        padding += sum(map(is_padding, ours))
    assert padding == (uneven == "pad")


@pytest.mark.parametrize("name", INDEXED_ONES)
def test_a_state_after_some_steps_goes_on_anywhere(name):
    dataset = DATASETS[name]
    loops = loops_of(dataset, 3)
    for workers, other, loop, most in ((0, 2, 0, 3), (2, 3, 1, 1), (2, 0, 1, 99)):
        steps = min(most, len(loops[loop]))
        ours = torch_dataset(dataset)
        loader = data_loader(ours, workers)
        for _ in range(loop):
            list(loader)
        taken = prints(list(islice(iter(loader), steps)))
        assert taken == loops[loop][:steps]
        state = json.loads(json.dumps(ours.state_dict(steps)))
        rest = loops[loop][steps:] or loops[loop + 1]
        resumed = torch_dataset(dataset)
        resumed.load_state_dict(state)
        assert prints(list(data_loader(resumed, other))) == rest
        plain = loader_of(dataset)
        plain.load_state_dict(state)
        assert prints(list(plain)) == rest


def test_it_goes_on_from_a_loaders_state():
    plain = loader_of(INDEXED_ONES["counted"])
    taken = list(islice(iter(plain), 3))
    ours = torch_dataset(INDEXED_ONES["counted"])
    ours.load_state_dict(plain.state_dict())
    loader = data_loader(ours, 2)
    both = [prints(taken + list(loader)), prints(list(loader))]
    assert both == loops_of(INDEXED_ONES["counted"], 2)


@pytest.mark.parametrize("name", ["batch", "counted", *STREAMS])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_data_loader_goes_on(name, workers):
    """In the middle of the second loop, at its end, and before the first item."""
    dataset = DATASETS[name]
    options = {"kind": StatefulDataLoader}
    options |= {"persistent_workers": True} if workers else {}
    loader = data_loader(torch_dataset(dataset), workers, **options)
    whole = [prints(list(loader)) for _ in range(4)]
    for steps in (0, 1, 4, len(whole[1])):
        loader = data_loader(torch_dataset(dataset), workers, **options)
        list(loader)
        iterator = iter(loader)
        loop = prints(list(islice(iterator, steps)))
        at_end = steps == len(whole[1])
        assert not (at_end and list(iterator))
        state = loader.state_dict()
        again = data_loader(torch_dataset(dataset), workers, **options)
        again.load_state_dict(state)
        loops = [prints(list(again)) for _ in range(2)]
        assert ([] if at_end else loop) + loops[0] == whole[1 + at_end], steps
        assert loops[1] == whole[2 + at_end], steps


def test_the_loop_after_one_left_early_is_the_next():
    for dataset, options in ((shuffled(23), {}), (STREAMS["counted stream"], {})):
        for workers in (0, 2):
            persistent = {"persistent_workers": True} if workers else {}
            loader = data_loader(torch_dataset(dataset), workers, **persistent, **options)
            next(iter(loader))
            assert prints(list(loader)) == loops_of(dataset, 2)[1]


def test_spawned_workers_are_of_the_same_rank():
    dataset = MapDataset(BatchDataset(shuffled(23), 2, list), with_pid)
    loader = data_loader(torch_dataset(dataset, 1, 2), 2, multiprocessing_context="spawn")
    found = list(loader)
    assert len({pid for pid, _ in found}) == 2
    expected = loops_of(BatchDataset(shuffled(23), 2, list), 1, 1, 2)[0]
    assert prints([item for _, item in found])[: len(expected)] == expected


def test_a_second_loop_over_a_stream_by_new_workers(tmp_path):
    told = logging.FileHandler(tmp_path / "log")
    logging.getLogger("energize").addHandler(told)
    loader = data_loader(torch_dataset(STREAMS["counted stream"]), 2)
    assert [prints(list(loader)) for _ in range(2)] == loops_of(STREAMS["counted stream"], 2)
    logging.getLogger("energize").removeHandler(told)
    assert (tmp_path / "log").read_text().count("persistent_workers=True") == 1


def test_a_second_loop_over_what_never_ends():
    loader = data_loader(torch_dataset(ENDLESS))
    next(iter(loader))
    with pytest.raises(LoaderError, match="virtual_epoch_length"):
        next(iter(loader))


def test_states_that_nobody_knows():
    ours = torch_dataset(shuffled(23))
    next(iter(data_loader(ours, 1)))
    with pytest.raises(StateError, match=r"state_dict\(steps\)"):
        ours.state_dict()
    stream = torch_dataset(STREAMS["finite stream"])
    with pytest.raises(StateError, match="StatefulDataLoader"):
        stream.state_dict(3)
    with pytest.raises(StateError, match="get_loader"):
        stream.load_state_dict(loader_of(STREAMS["finite stream"]).state_dict())


def test_a_workers_state_is_that_worker_s():
    loader = data_loader(torch_dataset(shuffled(23)), 2, StatefulDataLoader)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    other = data_loader(torch_dataset(shuffled(23), 1, 2), 2, StatefulDataLoader)
    other.load_state_dict(state)
    with pytest.raises(StateError, match=r"\[0, 1, ., 2\], this is \[1, 2, ., 2\]"):
        list(other)


def test_a_loop_over_a_stream_that_the_workers_cannot_share():
    with pytest.raises(ConfigError, match="6 steps over a stream cannot be shared out to 4"):
        list(data_loader(torch_dataset(STREAMS["counted stream"]), 4))


def test_length_and_what_is_no_dataset():
    assert len(data_loader(torch_dataset(shuffled(23), 0, 2))) == 12
    with pytest.raises(TypeError):
        len(torch_dataset(STREAMS["finite stream"]))
    with pytest.raises(ConfigError, match="takes an energize Dataset; got list"):
        as_torch_dataset([1, 2])
