"""Streams over re-iterables: exact resuming, passes, lanes, and what is refused."""

from __future__ import annotations

import copy
from functools import partial

import datasets
import pytest

from energize import (
    BlendDataset,
    ConfigError,
    EmptyDatasetError,
    ListSource,
    get_loader,
)
from energize.core.lanes import Lane
from energize.data.memory import HuggingFaceSource, IterableSource, SequenceSource, as_dataset
from energize.errors import ColumnError
from energize.testing import check_laws, check_resume
from tests.support.refusals import check_refusals
from tests.support.rows import Stream

ROWS = datasets.Dataset.from_dict({"x": list(range(9))})


def generate(n):
    for i in range(n):
        yield {"x": i}


def twice(example):
    return {"x": 2 * example["x"]}


def odd(example):
    return example["x"] % 2 == 1


def in_batches(batch):
    return {"x": [x for x in batch["x"] if x % 4]}


GENERATED = datasets.IterableDataset.from_generator(generate, gen_kwargs={"n": 7})
SHARDED = ROWS.to_iterable_dataset(num_shards=3)

SOURCES = {
    "list": [{"x": i} for i in range(7)],
    "object": Stream({"x": i} for i in range(5)),
    "function": lambda: generate(6),
    "generated": GENERATED,
    "mapped": GENERATED.map(twice),
    "filtered": GENERATED.filter(odd),
    "sharded": SHARDED,
    "in batches": SHARDED.map(in_batches, batched=True, batch_size=4),
    "shuffled with a buffer": SHARDED.shuffle(seed=1, buffer_size=4),
    "two interleaved": datasets.interleave_datasets([GENERATED, GENERATED.map(twice)]),
}


@pytest.mark.parametrize("name", SOURCES)
def test_resumes_exactly(name):
    source = IterableSource(SOURCES[name], name=name)
    check_resume(source, items=3 * len(list(source)) - 1)


@pytest.mark.parametrize("name", ["function", "generated", "shuffled with a buffer"])
def test_resumes_exactly_in_a_blend(name):
    source = IterableSource(SOURCES[name], name=name)
    check_resume(BlendDataset((source, 2), (ListSource([{"x": -1}]), 1)), items=40)


def test_a_hugging_face_dataset_goes_on_from_its_own_state():
    rows = datasets.Dataset.from_dict({"x": list(range(4000))}).to_iterable_dataset(num_shards=40)
    source = IterableSource(rows, name="sharded")
    cursor = source.open()
    for _ in range(3950):
        next(cursor)
    state = cursor.state()
    assert '"shard_idx": 39' in state["input"]["inner"]
    for _ in range(10):
        next(cursor)
    later = cursor.state()
    # Only what the inner state says counts: nothing is skipped by number.
    other = state | {"input": state["input"] | {"inner": later["input"]["inner"]}}
    assert next(source.open(state=other)) == {"x": 3960}


def test_the_users_dataset_is_left_alone():
    before = copy.deepcopy(GENERATED.state_dict())
    cursor = IterableSource(GENERATED, name="g").open()
    other = IterableSource(GENERATED, name="g").open()
    assert [next(cursor)["x"], next(cursor)["x"], next(other)["x"], next(cursor)["x"]] == [
        0,
        1,
        0,
        2,
    ]
    assert GENERATED.state_dict() == before
    assert GENERATED.epoch == 0


def test_every_pass_of_a_shuffled_stream_is_in_another_order():
    source = IterableSource(SOURCES["shuffled with a buffer"], name="s")
    cursor = source.open()
    first = [each["x"] for each in cursor]
    second = [each["x"] for each in source.open(state=cursor.state())]
    assert sorted(first) == sorted(second) == list(range(9))
    assert first != second


def test_lanes_are_parts_of_the_whole():
    source = IterableSource(range(11), name="numbers")
    parts = [list(source.open(Lane(i, 3))) for i in range(3)]
    assert parts == [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8]]
    cursor = source.open(Lane(1, 3))
    assert [next(cursor), next(cursor)] == [1, 4]
    assert list(source.open(Lane(1, 3), cursor.state())) == [7, 10]


def test_after_the_end_a_cursor_stays_at_the_end():
    cursor = IterableSource([1], name="one").open()
    assert list(cursor) == [1]
    assert list(cursor) == []
    stream = {"pass": 1, "read": 0, "inner": ""}
    assert cursor.state() == {"epoch": 1, "taken": 0, "input": stream}


def test_the_loader_delivers_pass_after_pass():
    loader = get_loader(IterableSource(lambda: generate(3), name="three"))
    assert [[x["x"] for x in loader] for _ in range(2)] == [[0, 1, 2], [0, 1, 2]]


def test_a_function_that_gives_an_exhausted_iterator_is_found_out():
    once = iter([1, 2])
    blend = BlendDataset((IterableSource(lambda: once, name="once"), 1))
    cursor = blend.open()
    assert [next(cursor), next(cursor)] == [1, 2]
    with pytest.raises(EmptyDatasetError, match="no item in a whole epoch"):
        next(cursor)


def test_as_dataset_keeps_random_access():
    assert isinstance(as_dataset(ROWS, "rows"), HuggingFaceSource)
    assert isinstance(as_dataset([1, 2], "list"), SequenceSource)
    assert isinstance(as_dataset(SHARDED, "stream"), IterableSource)
    assert isinstance(as_dataset(lambda: generate(2), "function"), IterableSource)
    blend = ListSource([1])
    assert as_dataset(blend, "kept") is blend


def test_map_style_rows_keep_the_laws_and_are_read_in_bulk():
    source = HuggingFaceSource(ROWS, name="rows")
    check_laws(source)
    assert [row["x"] for row in source.at([8, 0, 8, 3])] == [8, 0, 8, 3]


def test_what_is_no_collection_or_can_be_read_only_once_is_refused():
    splits = datasets.DatasetDict({"train": ROWS, "test": ROWS})
    once = ("only once", "function that makes it")
    check_refusals(None, {
        "iterator": (partial(IterableSource, iter([1, 2])), ConfigError, *once),
        "generator": (partial(IterableSource, generate(3)), ConfigError, *once),
        "map": (partial(IterableSource, map(str, [1])), ConfigError, *once),
        "number": (partial(IterableSource, 7), ConfigError, "nor can it be iterated over"),
        "splits": (partial(HuggingFaceSource, splits), ConfigError, "train, test"),
        "stream": (partial(HuggingFaceSource, SHARDED), ConfigError, "IterableSource"),
        "no length": (partial(SequenceSource, iter("a")), ConfigError, "has no __len__"),
        "columns": (partial(SequenceSource, "abc", columns={"n": [1]}), ColumnError, "for 3 sam"),
    } | {
        f"as {given!r:.20}": (partial(as_dataset, given, "mine"), ConfigError, "'mine'")
        for given in ({"train": ROWS}, "path", 7, None)
    })  # fmt: skip
