"""Readers of one lane: in this process, ahead into a queue, and by workers."""

import pytest

from energize import BlendDataset, FilterDataset, ListSource, StateError, get_loader
from energize.core.lanes import Lane
from energize.core.node import Origin
from energize.core.reader import PositionReader, Reader, StreamReader
from energize.core.trace import ReadContext
from energize.loader.readers import LocalReader, WorkerReader
from energize.loader.shipping import LaneSet

LETTERS = ListSource("abcdefg", name="letters")


def is_no_vowel(letter):
    return letter not in "aeiou"


def indexed():
    return LETTERS


def stream():
    return FilterDataset(LETTERS, is_no_vowel)


def test_an_indexed_dataset_is_opened_by_a_position_reader():
    assert isinstance(indexed().open(), PositionReader)


def test_a_stream_is_opened_by_a_stream_reader():
    assert isinstance(stream().open(), StreamReader)


@pytest.mark.parametrize("dataset", [indexed(), stream()], ids=["indexed", "stream"])
def test_a_reader_resumes_after_any_item(dataset):
    items = list(dataset.open())
    for count in range(len(items)):
        reader = dataset.open()
        for _ in range(count):
            next(reader)
        assert list(dataset.open(state=reader.state())) == items[count:]


@pytest.mark.parametrize("dataset", [indexed(), stream()], ids=["indexed", "stream"])
def test_the_state_at_the_end_of_an_epoch_opens_the_next_one(dataset):
    reader = dataset.open()
    first = list(reader)
    assert list(dataset.open(state=reader.state())) == first


def test_the_lanes_of_an_indexed_dataset_complete_an_uneven_last_round():
    states = []
    for index in range(3):
        reader = indexed().open(Lane(index, 3))
        list(reader)
        states.append(reader.state())
    assert states == [{"position": 7}] * 3


@pytest.mark.parametrize("dataset", [indexed(), stream()], ids=["indexed", "stream"])
def test_a_reader_returns_the_origins_of_its_last_item(dataset):
    reader = dataset.open()
    origins = []
    for item in reader:
        refs = dataset.refs_of(reader.origin)
        origins.append(("abcdefg"[refs.index[0]], item))
    assert origins
    assert all(expected == item for expected, item in origins)


@pytest.mark.parametrize("dataset", [indexed(), stream()], ids=["indexed", "stream"])
def test_several_items_are_those_of_single_reads(dataset):
    expected = list(dataset.open())
    reader = dataset.open()
    items = []
    made = []
    while len(items) < len(expected):
        read = reader.several(3, 10.0)
        assert 1 <= len(read.items) <= 3
        assert len(read.origins) == len(read.items)
        assert len(read.states) in (0, len(read.items))
        items += read.items
        made += read.origins
    with pytest.raises(StopIteration):
        reader.several(3, 10.0)
    assert items == expected
    assert len(made) == len(expected)


def local_reader(dataset):
    lanes = LaneSet(1)
    return LocalReader(lanes.open(dataset, 0, 0, None, ReadContext()), None)


def test_a_queued_reader_looks_ahead_and_keeps_its_state():
    reader = local_reader(stream())
    assert reader.has_next(3)
    assert reader.state() is None
    assert next(reader) == "b"
    assert not reader.has_next(4)
    assert reader.state()["taken"] == 1
    assert list(stream().open(state=reader.state())) == ["c", "d", "f", "g"]


def test_a_queued_reader_ends_with_the_state_of_the_next_epoch():
    reader = local_reader(stream())
    assert list(reader) == list("bcdfg")
    assert not reader.has_next()
    assert reader.state()["epoch"] == 1
    assert list(stream().open(state=reader.state())) == list("bcdfg")


def test_a_queued_reader_returns_the_origins_of_its_last_item():
    reader = local_reader(stream())
    next(reader)
    assert reader.origin == (Origin(0, 1),)


def test_an_error_after_items_is_raised_after_these_items():
    def no_d(letter):
        if letter == "d":
            raise RuntimeError("d")
        return True

    reader = FilterDataset(LETTERS, no_d).open()
    assert list(reader.several(10, 10.0).items) == ["a", "b", "c"]
    with pytest.raises(Exception, match="d"):
        reader.several(10, 10.0)


def test_workers_and_this_process_read_by_one_interface():
    assert issubclass(LocalReader, Reader)
    assert issubclass(WorkerReader, Reader)
    mix = BlendDataset((ListSource(range(9)), 1), (ListSource(range(10, 14)), 1))
    with get_loader(mix) as here, get_loader(mix, num_workers=2) as there:
        assert [item for _, item in zip(range(20), here, strict=False)] == [
            item for _, item in zip(range(20), there, strict=False)
        ]


def test_a_position_out_of_range_is_an_error():
    state = {"epoch": 0, "taken": 2**44, "input": {}}
    with pytest.raises(StateError, match="out of range"):
        FilterDataset(BlendDataset((LETTERS, 1)), is_no_vowel).open(
            Lane(0, 2**20), {**state, "taken": 2**45 - 1}
        )
