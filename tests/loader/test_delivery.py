"""What a loader delivers: one stream, in equal steps, whatever the ranks and
workers."""

from __future__ import annotations

import json
import threading
import time
from itertools import islice
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from energize import (
    BatchDataset,
    BlendDataset,
    ConfigError,
    EmptyDatasetError,
    FilterDataset,
    IterableSource,
    LimitDataset,
    MapDataset,
    RepeatDataset,
    ShuffleBufferDataset,
    ShuffleDataset,
    StateError,
    WorkerConfig,
    get_loader,
)
from energize.core.stream import lanes_of
from energize.errors import EncoderError, LoaderError, SubstitutionError
from energize.loader import Loader
from energize.loader.settings import checked_settings
from tests.support.datasets import is_even, numbers, shuffled
from tests.support.loading import loader_of, prints, steps_in_turns, take
from tests.support.trees import build

pytestmark = pytest.mark.usefixtures("gives_up_soon")


def test_threads_take_items_in_turn_and_an_error_is_no_end():
    iterator, taken = iter(loader_of(MapDataset(numbers(200), _slow))), []
    threads = [
        threading.Thread(target=lambda: taken.extend(iterator)) for _ in range(4)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(taken) == list(range(200))
    iterator = iter(loader_of(MapDataset(numbers(9), lambda number: 1 // (number - 3))))
    with pytest.raises(EncoderError):
        list(iterator)
    for _ in range(2):
        with pytest.raises(
            LoaderError, match="has ended, by the EncoderError that it raised"
        ):
            next(iterator)


def _slow(number):
    time.sleep(0)  # so that others get their turn
    return number


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


def ranks_of(dataset, ranks, **options):
    return [
        loader_of(dataset, rank=rank, ranks=ranks, **options) for rank in range(ranks)
    ]


def epoch(loaders):
    """The steps of an epoch: of each the items of all ranks, and which of them are
    padding; the states of all ranks are equal after each.
    """
    iterators, steps, nothing = [iter(each) for each in loaders], [], object()
    while True:
        items = [next(iterator, nothing) for iterator in iterators]
        if nothing in items:
            return steps, items.count(nothing)
        steps.append(
            [(item, each.padding) for item, each in zip(items, loaders, strict=True)]
        )
        assert len({json.dumps(each.state_dict()) for each in loaders}) == 1


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("uneven", ["pad", "drop", "repeat", "allow"])
def test_equal_steps_for_all_epoch_sizes(uneven, ranks):
    for size in (*range(1, 18), 24, 31, 40):
        loaders = ranks_of(numbers(size), ranks, uneven=uneven)
        if size < ranks and uneven in ("drop", "allow"):
            with pytest.raises(
                EmptyDatasetError, match=r"drop|rank . of . would never get"
            ):
                [list(loader) for loader in loaders]
            continue
        whole, rest = divmod(size, ranks)
        if uneven == "allow":
            assert [list(loader) for loader in loaders] == [
                list(range(rank, size, ranks)) for rank in range(ranks)
            ]
            continue
        for _ in range(2):
            steps, ended = epoch(loaders)
            assert ended == ranks
            assert (
                len(steps) == whole + (rest > 0 and uneven != "drop") == len(loaders[0])
            )
            items = [item for step in steps for item, _ in step]
            padding = [pads for step in steps for _, pads in step]
            if uneven == "drop":
                assert items == list(range(whole * ranks))
                assert not any(padding)
            else:
                copies = len(steps) * ranks - size
                assert items == [k % size for k in range(size + copies)]
                assert padding == [False] * size + [uneven == "pad"] * copies


@pytest.mark.parametrize("ranks", [2, 3, 6])
@pytest.mark.parametrize("uneven", ["pad", "drop", "repeat"])
@pytest.mark.parametrize("size", [1, 5, 6, 7, 13])
def test_equal_steps_of_streams_of_known_length(size, uneven, ranks):
    endless = RepeatDataset(FilterDataset(shuffled(40), is_even))
    dataset = LimitDataset(endless, size)
    loaders = ranks_of(dataset, ranks, uneven=uneven, lanes=6)
    if uneven == "drop" and size < ranks:
        with pytest.raises(EmptyDatasetError, match="drop"):
            list(loaders[0])
        return
    whole = list(loader_of(dataset, lanes=6))
    assert len(whole) == size
    for _ in range(2):
        steps, ended = epoch(loaders)
        assert ended == ranks
        assert len(steps) == (size // ranks if uneven == "drop" else -(-size // ranks))
        items = [each for step in steps for each in step]
        assert [item for item, _ in items[:size]] == whole[: len(items)]
        assert all(pads == (uneven == "pad") for _, pads in items[size:])


@pytest.mark.parametrize("standalone", [False, True])
@pytest.mark.parametrize("lanes", [None, 6])
def test_a_stream_is_the_same_on_any_ranks(lanes, standalone, caplog):
    """Of ranks that cannot talk each reads all lanes, unless it is standalone and knows the
    end."""
    dataset = RepeatDataset(FilterDataset(numbers(4500), is_even))
    settings = checked_settings(lanes=lanes, standalone=standalone)
    whole = None
    for ranks in (1, 2, 4, 5, 9):
        loaders = [
            Loader(dataset, WorkerConfig(rank, ranks), settings)
            for rank in range(ranks)
        ]
        steps = zip(*(islice(each, 36 // ranks) for each in loaders), strict=True)
        items = [item for step in steps for item in step]
        whole = whole or items
        assert items == whole[: len(items)]
    told = [each.getMessage() for each in caplog.records]
    assert len(told) == (2 + (lanes is not None)) * standalone
    assert (
        not standalone
        or f"each of the {lanes or 4} lanes of the stream is read by" in told[0]
    )


def test_as_many_lanes_as_what_is_read_is_worth():
    many, few, unknown = numbers(10**6), numbers(1999), IterableSource(range(9))
    table = {
        1: [
            few,
            unknown,
            BlendDataset((many, 1), (unknown, 1)),
            LimitDataset(unknown, 3),
        ],
        2: [BlendDataset((few, 1), (numbers(1), 1))],
        16: [numbers(31_999)],
        64: [many, RepeatDataset(many)],
        8: [BatchDataset(ShuffleBufferDataset(many, 90), 12_000, list)],
        4: [BatchDataset(ShuffleBufferDataset(many, 4000), 12, list)],
    }
    for lanes, below in table.items():
        assert [lanes_of(FilterDataset(each, is_even)) for each in below] == [
            lanes
        ] * len(below)
    with pytest.raises(ConfigError, match=r"lanes.*65536"):
        get_loader(many, lanes=2**16 + 1)


class TestGlobalBatches:
    def batches(self, size=22):
        return BatchDataset(ShuffleDataset(numbers(size)), 2, list)

    def of_world(self, dataset, ranks, **options):
        loaders = ranks_of(dataset, ranks, **options)
        accumulated = loaders[0].accumulation_steps
        micro = [[item for item, _ in step] for step in epoch(loaders)[0]]
        return [
            sorted(
                sample
                for step in micro[at : at + accumulated]
                for batch in step
                for sample in batch
            )
            for at in range(0, len(micro), accumulated)
        ]

    def test_a_world_size_that_does_not_fit(self):
        loader = ranks_of(self.batches(), 3, global_batch_size=8)[0]
        with pytest.raises(
            ConfigError, match=r"3 ranks. Possible world sizes: 1, 2, 4"
        ):
            list(loader)

    def test_resumed_in_the_middle_of_one(self):
        loader = loader_of(self.batches(22), global_batch_size=8)
        take(loader, 9)
        state = loader.state_dict()
        other = ranks_of(self.batches(22), 2, global_batch_size=8)[0]
        other.load_state_dict(state)
        with pytest.raises(StateError, match="middle of a global batch"):
            list(other)


ITEMS = 40


@st.composite
def trees(draw: Any):
    for _ in range(10):
        try:
            return build(draw, draw(st.integers(0, 2)))
        except (
            ConfigError,
            EmptyDatasetError,
        ):  # a batch too large for its input, for example
            continue
    assume(False)
    return None


def run_on(loaders: list[Loader[Any]], steps: int) -> list[str]:
    """So many steps of all ranks, over the ends of epochs; their items in turn, without
    padding."""
    items: list[str] = []
    while steps > 0:
        found, made = steps_in_turns(loaders, steps)
        items += found
        steps -= max(made, 1)  # an epoch may bring nothing to anybody
    return items


def check_one_stream(
    tree, lanes: int, legs: list[tuple[int, int]], uneven: str
) -> None:
    """Resumed after some steps on other numbers of ranks again and again, the ranks'
    items in turn are those of one uninterrupted process, and all ranks have one state.
    Nothing validates: that goes back after each loop, which may have had other items on
    other ranks.
    """
    whole = prints(take(loader_of(tree, lanes=lanes), ITEMS))
    state, got = None, []
    for ranks, steps in legs:
        loaders = [
            loader_of(tree, rank=rank, ranks=ranks, lanes=lanes, uneven=uneven)
            for rank in range(ranks)
        ]
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
        got += run_on(loaders, steps)
        states = [json.dumps(loader.state_dict()) for loader in loaders]
        assert len(set(states)) == 1, "ranks have different states"
        state = json.loads(states[0])
    assert got[:ITEMS] == whole[: len(got)]


LEGS = st.lists(st.tuples(st.integers(1, 6), st.integers(0, 6)), min_size=1, max_size=4)
"""So many ranks, and steps."""


def check(tree, data) -> None:
    lanes = data.draw(st.sampled_from([1, 2, 3, 4, 6]))
    try:
        check_one_stream(tree, lanes, data.draw(LEGS), uneven="pad")
    except (EmptyDatasetError, SubstitutionError):
        assume(
            False
        )  # filters and skips that leave nothing; that this is an error is tested


@given(tree=trees(), data=st.data())
def test_any_tree_is_one_stream_on_any_ranks(tree, data):
    check(tree, data)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@settings(max_examples=2500)
@given(tree=trees(), data=st.data())
def test_thousands_of_trees(tree, data):
    check(tree, data)


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_last_global_batch_of_a_stream_whose_end_is_found_is_filled(ranks):
    batches = BatchDataset(FilterDataset(numbers(50), is_even), 2, list)  # 13 of them
    made, padding = 0, 0
    for rank in range(ranks):
        with loader_of(batches, 0, rank, ranks, lanes=2, global_batch_size=8) as loader:
            steps = [loader.padding for _ in loader]
        assert len(steps) % loader.accumulation_steps == 0
        made, padding = made + len(steps), padding + sum(steps)
    assert (made, padding) == (16, 3)
