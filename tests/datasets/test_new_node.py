"""A new node: what its author states, and what follows from it."""

import pytest

from energize import (
    BatchDataset,
    BlendDataset,
    FilterDataset,
    ListSource,
    RepeatDataset,
    ShuffleDataset,
    get_loader,
)
from energize.core.dataset import IndexedDataset
from energize.core.node import INFINITE, NodeTraits, Routes, Span
from energize.errors import ConfigError, NotIndexedError
from energize.testing import check_resume, check_topology


class TwiceDataset(IndexedDataset):
    """Every item of a dataset, twice in a row."""

    def __init__(self, dataset):
        self.freeze(inputs=[dataset])

    @property
    def size(self):
        inner = self.inputs[0].size
        return INFINITE if inner == INFINITE else 2 * inner

    def route(self, positions):
        return Routes(positions // 2)

    def spans(self, n):
        pairs, rest = divmod(n, 2)
        return [Span(0, 0, pairs, 2), Span(0, pairs, pairs + rest)], n


class SlowlyCounted(TwiceDataset):
    """The same, without the member that makes counting fast."""

    def spans(self, n):
        return (), 0


class Doubled(IndexedDataset):
    """Numbers, doubled."""

    traits = NodeTraits(makes=True)

    def __init__(self, dataset):
        self.freeze(inputs=[dataset])

    def make(self, items, request):
        return [2 * item for item in items]


def numbers(count=5):
    return ListSource(range(count), name="numbers")


def test_every_item_comes_twice_in_every_epoch():
    twice = TwiceDataset(numbers(3))
    assert list(twice) == [0, 0, 1, 1, 2, 2]
    assert twice.at([6, 7, 11]) == [0, 0, 2]
    assert len(twice) == 6


def test_samples_are_counted_alike_with_and_without_spans():
    for n in range(12):
        fast = TwiceDataset(numbers()).consumed(n)
        slow = SlowlyCounted(numbers()).consumed(n)
        assert fast.tolist() == slow.tolist() == [n]


def test_a_new_node_resumes_and_is_read_by_any_number_of_lanes():
    batches = BatchDataset(TwiceDataset(ShuffleDataset(numbers())), 4, list)
    check_resume(batches)
    check_topology(batches)


def test_a_new_node_is_mixed_by_its_weight():
    mix = BlendDataset((TwiceDataset(numbers()), 3), (numbers(7), 1))
    assert mix.consumed(100).tolist() == [75, 25]


def test_a_loader_resumes_in_the_middle_of_a_pair():
    dataset = TwiceDataset(RepeatDataset(numbers()))
    loader = get_loader(dataset)
    steps = iter(loader)
    assert [next(steps) for _ in range(3)] == [0, 0, 1]
    resumed = get_loader(dataset)
    resumed.load_state_dict(loader.state_dict())
    steps = iter(resumed)
    assert [next(steps) for _ in range(3)] == [1, 2, 2]


def test_equal_nodes_are_equal_and_describe_themselves():
    source = numbers()
    assert TwiceDataset(source) == TwiceDataset(source)
    assert TwiceDataset(source) != Doubled(source)
    assert TwiceDataset(numbers()).describe()["kind"] == "TwiceDataset"


def test_over_a_stream_a_node_without_a_stream_of_its_own_says_so():
    evens = FilterDataset(numbers(), lambda number: number % 2 == 0)
    twice = TwiceDataset(evens)
    assert not twice.indexed
    with pytest.raises(NotIndexedError, match="FilterDataset"):
        next(iter(twice))


def test_what_a_node_makes_is_delivered():
    assert list(Doubled(numbers(3))) == [0, 2, 4]


def test_a_class_with_a_make_that_would_not_be_called_is_refused():
    with pytest.raises(ConfigError, match=r"Forgotten has its own make.*makes=True"):

        class Forgotten(IndexedDataset):
            def make(self, items, request):
                return items


def test_a_subclass_of_a_node_that_makes_items_needs_no_trait():
    class Tripled(Doubled):
        def make(self, items, request):
            return [3 * item for item in items]

    assert list(Tripled(numbers(3))) == [0, 3, 6]


def test_a_route_that_returns_to_an_item_of_a_stream_is_refused():
    """A stream delivers its next item at any position: `[0, 0, 2, 2]` is not possible."""
    evens = FilterDataset(numbers(), lambda number: number % 2 == 0)
    twice = TwiceDataset(RepeatDataset(evens))
    reader = twice.open()
    assert next(reader) == 0
    with pytest.raises(
        NotIndexedError, match="item 0 of RepeatDataset is needed after"
    ):
        next(reader)


class SecondDataset(IndexedDataset):
    """Every second item of an endless dataset."""

    def __init__(self, dataset):
        self.freeze(inputs=[dataset])

    def route(self, positions):
        return Routes(2 * positions)


def test_a_route_that_skips_items_of_a_stream_is_refused():
    evens = FilterDataset(ListSource(range(40)), lambda number: number % 2 == 0)
    stream = SecondDataset(RepeatDataset(evens))
    with pytest.raises(NotIndexedError, match="item 1 of RepeatDataset is skipped"):
        next(iter(stream))
    indexed = SecondDataset(RepeatDataset(ListSource(range(40))))
    assert indexed.at(range(3)) == [0, 2, 4]
