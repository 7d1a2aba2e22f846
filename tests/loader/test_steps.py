"""Every rank makes the same steps, whatever does not divide; epochs in steps; global batches."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
import torch

from energize import (
    BatchDataset,
    ComposedDataset,
    ConfigError,
    EmptyDatasetError,
    EpochizeDataset,
    FilterDataset,
    LimitDataset,
    ListSource,
    MapDataset,
    Quota,
    RepeatDataset,
    ShuffleDataset,
    StateError,
    TextSample,
    is_padding,
)
from energize.loader.steps import UNEVEN
from tests.support.datasets import is_even, numbers, shuffled
from tests.support.loading import loader_of, steps_in_turns, take


def ranks_of(dataset, ranks, **options):
    return [loader_of(dataset, rank=rank, ranks=ranks, **options) for rank in range(ranks)]


def epoch(loaders):
    """The steps of an epoch: of each the items of all ranks, and which of them are padding; the
    states of all ranks are equal after each.
    """
    iterators, steps, nothing = [iter(each) for each in loaders], [], object()
    while True:
        items = [next(iterator, nothing) for iterator in iterators]
        if nothing in items:
            return steps, items.count(nothing)
        steps.append([(item, each.padding) for item, each in zip(items, loaders, strict=True)])
        assert len({json.dumps(each.state_dict()) for each in loaders}) == 1


@pytest.mark.parametrize("ranks", range(1, 9))
@pytest.mark.parametrize("uneven", UNEVEN)
def test_equal_steps_for_all_epoch_sizes(uneven, ranks):
    for size in range(1, 41):
        loaders = ranks_of(numbers(size), ranks, uneven=uneven)
        if size < ranks and uneven in ("drop", "allow"):
            with pytest.raises(EmptyDatasetError, match=r"drop|rank . of . would never get"):
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
            assert len(steps) == whole + (rest > 0 and uneven != "drop") == len(loaders[0])
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


@pytest.mark.parametrize("ranks", [2, 3, 6])
@pytest.mark.parametrize("uneven", UNEVEN)
def test_equal_steps_of_streams_of_unknown_length(uneven, ranks):
    dataset = BatchDataset(FilterDataset(shuffled(97), is_even), 3, list)
    whole = [item for batch in loader_of(dataset, lanes=6) for item in batch]
    assert sorted(whole) == list(range(0, 97, 2))
    loaders = ranks_of(dataset, ranks, uneven=uneven, lanes=6)
    for _ in range(2):
        if uneven == "allow":
            batches = [batch for loader in loaders for batch in loader]
        else:
            steps, ended = epoch(loaders)
            assert ended == ranks
            batches = [batch for step in steps for batch, pads in step if not pads]
        items = [item for batch in batches for item in batch]
        if uneven in ("pad", "allow"):
            assert sorted(items) == list(range(0, 97, 2))
        elif uneven == "drop":
            assert len(items) == len(set(items)) > 30
        else:
            assert set(items) == set(range(0, 97, 2))


def test_a_stream_that_gives_nothing_is_an_error_on_all_ranks():
    for loader in ranks_of(FilterDataset(numbers(20), lambda _: False), 2):
        with pytest.raises(EmptyDatasetError, match="no item in a whole epoch"):
            list(loader)


@dataclass
class Plain:
    text: str


@dataclass(slots=True)
class Tight:
    text: str


KINDS = {
    "dict": lambda n: {"n": n},
    "dataclass": lambda n: Plain(str(n)),
    "sample": lambda n: TextSample(__key__=str(n), text=str(n)),
    "tensor": lambda n: torch.tensor([n]),
    "int": lambda n: n,
    "list": lambda n: [n],
    "slots": lambda n: Tight(str(n)),
}


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_padding_says_so(kind, workers):
    source = MapDataset(numbers(3), KINDS[kind])
    loaders = [loader_of(source, workers, rank, 2) for rank in range(2)]
    items = []
    for loader in loaders:
        with loader:
            items.append([(item, loader.padding) for item in loader])
    assert [[pads for _, pads in of_rank] for of_rank in items] == [[False, False], [False, True]]
    carries = kind not in ("int", "list", "slots")
    assert [is_padding(item) for of_rank in items for item, _ in of_rank] == [
        False,
        False,
        False,
        carries,
    ]
    assert "__padding__" not in getattr(items[0][0][0], "__dict__", {})


def test_the_copied_item_itself_is_left_as_it_is():
    rows = [{"n": 0}, {"n": 1}, {"n": 2}]
    (loader,) = ranks_of(ListSource(rows), 2)[1:]
    assert list(loader)[-1] == {"n": 0, "__padding__": True}
    assert rows[0] == {"n": 0}


def test_what_is_padded_is_said_once(caplog):
    caplog.set_level("INFO")
    for loader in ranks_of(numbers(11), 2):
        list(loader), list(loader)
    lines = [each.message for each in caplog.records if "epoch of" in each.message]
    assert len(lines) == 1
    assert "an epoch of 11 items on 2 ranks: 1 more are padding" in lines[0]


class TestSteps:
    """`EpochizeDataset` at the root says where a loop ends, not what is read."""

    def test_each_rank_makes_so_many_steps_and_nothing_is_left_out(self):
        whole = RepeatDataset(shuffled(10))
        loaders = ranks_of(EpochizeDataset(whole, 7), 3)
        assert [len(loader) for loader in loaders] == [7, 7, 7]
        read = []
        for _ in range(3):
            steps, _ = epoch(loaders)
            assert len(steps) == 7
            read += [item for step in steps for item, _ in step]
        assert read == whole.at(range(63))

    def test_streams(self):
        endless = RepeatDataset(FilterDataset(shuffled(30), is_even))
        whole = take(loader_of(endless, lanes=4), 40)
        loaders = ranks_of(EpochizeDataset(endless, 5), 2, lanes=4)
        read = [item for _ in range(4) for step in epoch(loaders)[0] for item, _ in step]
        assert read == whole

    @pytest.mark.parametrize("workers", [0, 2])
    def test_resumed_in_the_middle_on_other_ranks_the_loop_has_the_rest_of_its_steps(self, workers):
        dataset = EpochizeDataset(RepeatDataset(shuffled(10)), 7)
        with loader_of(dataset, workers) as loader:
            first = take(loader, 7 + 3)
            state = loader.state_dict()
        loaders = ranks_of(dataset, 2)
        for each in loaders:
            each.load_state_dict(state)
        steps, _ = epoch(loaders)
        assert len(steps) == 4
        read = [item for step in steps for item, _ in step]
        assert first + read == RepeatDataset(shuffled(10)).at(range(18))
        assert len(epoch(loaders)[0]) == 7


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

    @pytest.mark.parametrize("uneven", ["pad", "drop", "repeat"])
    def test_are_equal_for_every_world_size(self, uneven):
        options = {"global_batch_size": 8, "uneven": uneven}
        one = self.of_world(self.batches(), 1, **options)
        assert len(one) == (2 if uneven == "drop" else 3)
        for ranks in (2, 4):
            assert self.of_world(self.batches(), ranks, **options) == one

    def test_steps_that_fill_one(self):
        loaders = {n: ranks_of(self.batches(), n, global_batch_size=16)[0] for n in (1, 2, 4, 8)}
        assert [each.accumulation_steps for each in loaders.values()] == [8, 4, 2, 1]

    def test_a_world_size_that_does_not_fit(self):
        loader = ranks_of(self.batches(), 3, global_batch_size=8)[0]
        with pytest.raises(ConfigError, match=r"3 ranks; world sizes that can have it: 1, 2, 4"):
            list(loader)

    def test_resumed_in_the_middle_of_one(self):
        loader = loader_of(self.batches(22), global_batch_size=8)
        take(loader, 9)
        state = loader.state_dict()
        other = ranks_of(self.batches(22), 2, global_batch_size=8)[0]
        other.load_state_dict(state)
        with pytest.raises(StateError, match="middle of a global batch"):
            list(other)

    def test_composed_ones(self):
        def composed():
            return ComposedDataset(
                (numbers(20), Quota(proportion=1)),
                (numbers(20, 100), Quota(proportion=2)),
                batch_size=2,
                global_batch_size=8,
                batching_method="stratified",
                shuffle=True,
            )

        one = self.of_world(composed(), 1)
        assert len(one) > 3
        for ranks in (2, 4):
            assert ranks_of(composed(), ranks)[0].accumulation_steps == 4 // ranks
            assert self.of_world(composed(), ranks) == one


def test_states_after_every_step_are_those_of_one_process():
    dataset = EpochizeDataset(RepeatDataset(shuffled(10)), 4)
    one, loaders = loader_of(dataset), ranks_of(dataset, 2)
    for _ in range(6):
        take(one, 2)
        steps_in_turns(loaders, 1)
        states = [json.loads(each.state_dict()["cursor"])["position"] for each in (one, *loaders)]
        assert len(set(states)) == 1
