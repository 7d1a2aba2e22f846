"""What a new `for` means: loops that are left early, resumed, or that validate."""

from __future__ import annotations

import json
import pickle
from itertools import islice

import pytest

from energize import (
    BatchDataset,
    ConcatDataset,
    ConfigError,
    EpochizeDataset,
    FilterDataset,
    LimitDataset,
    MapDataset,
    RepeatDataset,
)
from energize.loader import Loader
from tests.support.datasets import evens, is_even, numbers, shuffled
from tests.support.loading import loader_of, take

STREAM = FilterDataset(shuffled(30), is_even)  # 15 items
DATASETS = {
    "indexed": (shuffled(9), 9),
    "batches": (BatchDataset(shuffled(30), 4, list), 8),
    "counted": (EpochizeDataset(shuffled(20), 7), 7),
    "stream": (STREAM, 15),
    "counted stream": (EpochizeDataset(RepeatDataset(STREAM), 7), 7),
    "sized stream": (LimitDataset(RepeatDataset(STREAM), 11), 11),
}


@pytest.mark.parametrize(("left", "workers"), [([1, 1], 0), ([4, 4], 2), ([6], 0)])
@pytest.mark.parametrize("name", DATASETS)
def test_a_loop_that_is_left_goes_on_in_the_stream_and_the_next_is_of_full_length(
    name, left, workers
):
    dataset, length = DATASETS[name]
    with loader_of(dataset, lanes=2) as plain:
        stream = take(plain, 6 * length)
    with loader_of(dataset, workers, lanes=2) as loader:
        loops = [list(islice(loader, count)) for count in left]
        loops += [list(loader), list(loader), list(islice(loader, left[0]))]
    lengths = [*left, length, length, left[0]]
    assert [len(loop) for loop in loops] == lengths
    assert [item for loop in loops for item in loop] == stream[: sum(lengths)]


def in_step(loaders: list[Loader], steps: int | None = None) -> list:
    """A loop of all ranks, or so many steps of it: items in turn, without padding."""
    rows, iterators = [], [iter(each) for each in loaders]
    for _ in range(steps or 1000):
        row = [next(each, None) for each in iterators]
        if None in row:
            assert row == [None] * len(row)
            break
        pads = [each.padding for each in loaders]
        rows += [item for item, padded in zip(row, pads, strict=True) if not padded]
    assert len({json.dumps(each.state_dict()) for each in loaders}) == 1
    return rows


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("name", DATASETS)
def test_after_a_resume_the_loop_ends_where_it_would_have(name, ranks):
    """Left after 4 of one process, gone on with for 3, saved, and resumed on other
    ranks."""
    dataset, length = DATASETS[name]
    with loader_of(dataset, lanes=6) as whole:
        first = list(islice(whole, 4)) + list(islice(whole, 3))
        state = json.loads(json.dumps(whole.state_dict()))
        stream = first + take(whole, 8 * length)
    others = [
        loader_of(dataset, rank=rank, ranks=ranks, lanes=6) for rank in range(ranks)
    ]
    for each in others:
        each.load_state_dict(state)
    rest, again = in_step(others), in_step(others)
    counted = ranks if "counted" in name else 1
    over = (
        ranks if "stream" in name else 1
    )  # a loop over a stream ends with a whole step
    assert 0 <= len(rest) - (length - 3) * counted < over
    assert 0 <= len(again) - length * counted < over
    assert rest + again == stream[7 : 7 + len(rest) + len(again)]


@pytest.mark.parametrize("name", ["concatenated", "limited", "mapped", "loader"])
def test_evaluation_starts_at_the_first_item_each_time(name):
    marked = [numbers(size).with_role("eval") for size in (6, 5)]
    plain = ConcatDataset(*marked)
    dataset = {
        "concatenated": plain,
        "limited": LimitDataset(plain, 9),
        "mapped": MapDataset(plain, lambda n: n),
        "loader": shuffled(11),
    }[name]
    role = "eval" if name == "loader" else None
    with loader_of(dataset, role=role) as loader:
        whole = list(loader)
        assert list(islice(loader, 4)) == whole[:4]
        assert list(loader) == whole
        assert list(islice(loader, 4)) == whole[:4]
        state = loader.state_dict()
    with loader_of(dataset, role=role) as other:
        other.load_state_dict(state)
        assert list(other) == whole[4:]
        assert list(other) == whole


@pytest.mark.parametrize("seen", [True, False])
@pytest.mark.parametrize("name", ["indexed", "stream", "loader"])
def test_evaluation_starts_at_the_first_item_after_a_state_of_its_end(name, seen):
    parts = ConcatDataset(
        shuffled(6), evens(12) if name == "stream" else shuffled(5, 100)
    )
    dataset = LimitDataset(shuffled(9), 4) if name == "loader" else parts
    role = {"role": "eval"}
    with loader_of(dataset, **role) as loader, loader_of(dataset, **role) as other:
        whole = list(loader)
        if not seen:  # as many as there are, and not that there are no more
            list(islice(loader, len(whole)))
        other.load_state_dict(loader.state_dict())
        assert list(other) == list(other) == whole


def test_a_concatenation_trains_unless_it_has_the_role_eval():
    with loader_of(ConcatDataset(shuffled(6), shuffled(5, 100))) as loader:
        first = list(loader)
        assert loader.role == "train"
        assert list(loader) != first


def test_a_dataset_has_the_role_that_all_of_its_inputs_share():
    evaluated = numbers(6).with_role("eval")
    trained = numbers(5).with_role("train")
    assert ConcatDataset(evaluated, evaluated).role == "eval"
    assert MapDataset(trained, lambda n: n).role == "train"
    assert ConcatDataset(evaluated, trained).role is None
    assert ConcatDataset(evaluated, numbers(5)).role is None
    with loader_of(evaluated, role="train") as loader:
        assert loader.role == "train"


def test_a_role_is_in_no_fingerprint_and_no_state():
    plain = BatchDataset(shuffled(9), 2, list)
    marked = plain.with_role("eval").reseeded(3)
    assert pickle.loads(pickle.dumps(marked)).role == "eval"
    assert marked == plain.reseeded(3)
    assert hash(marked) == hash(plain.reseeded(3))
    assert marked.describe() == plain.reseeded(3).describe()
    with loader_of(plain.reseeded(3)) as loader, loader_of(marked) as other:
        whole = list(islice(loader, 5))
        assert list(islice(other, 3)) == whole[:3]
        state = other.state_dict()
    with loader_of(plain.reseeded(3)) as loader, loader_of(marked) as other:
        loader.load_state_dict(state)
        other.load_state_dict(state)
        assert list(loader) == list(other) == whole[3:]
        assert loader.state_dict() == other.state_dict()


def test_a_role_is_train_or_eval():
    with pytest.raises(ConfigError, match="'train' or 'eval', got 'test'"):
        numbers(3).with_role("test")
