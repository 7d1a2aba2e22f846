"""Streams over re-iterables: exact resuming, passes, lanes, and what is refused."""

from __future__ import annotations

from functools import partial

import datasets
import pytest
import webdataset as wds

from energize import ConfigError, ListSource, MapDataset, write_shards
from energize.data.memory import (
    HuggingFaceSource,
    IterableSource,
    SequenceSource,
    as_dataset,
)
from energize.errors import ColumnError, DatasetNotFoundError
from energize.testing import check_resume
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


def test_pipelines_of_webdataset(tmp_path, monkeypatch):
    samples = [
        {"__key__": f"{n:03}", "txt": f"text {n}", "json": {"n": n}} for n in range(11)
    ]
    shards = [
        str(each)
        for each in write_shards(samples, tmp_path / "ds", samples_per_shard=4)
    ]
    whole = {"shardshuffle": False, "nodesplitter": None, "workersplitter": None}
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")

    def of_shard(shard):
        yield from wds.WebDataset(shard, **whole).decode().to_tuple("txt", "json")

    pipeline = wds.WebDataset(shards, **whole).decode().to_tuple("txt", "json")
    by_shard = MapDataset(ListSource(shards), of_shard)
    for source in (IterableSource(pipeline), by_shard):
        assert list(source) == [(each["txt"], each["json"]) for each in samples]
        check_resume(source, items=13, lanes=(1, 2))


def test_what_is_no_collection_or_can_be_read_only_once_is_refused():
    splits = datasets.DatasetDict({"train": ROWS, "test": ROWS})
    once = ("only once", "function that makes it")
    check_refusals(None, {
        "iterator": (partial(IterableSource, iter([1, 2])), ConfigError, *once),
        "generator": (partial(IterableSource, generate(3)), ConfigError, *once),
        "map": (partial(IterableSource, map(str, [1])), ConfigError, *once),
        "number": (partial(IterableSource, 7), ConfigError, "an iterable or a function"),
        "splits": (partial(HuggingFaceSource, splits), ConfigError, "train, test"),
        "stream": (partial(HuggingFaceSource, SHARDED), ConfigError, "IterableSource"),
        "no length": (partial(SequenceSource, iter("a")), ConfigError, "has no __len__"),
        "columns": (partial(SequenceSource, "abc", columns={"n": [1]}), ColumnError, "for 3 sam"),
    } | {
        f"as {given!r:.20}": (partial(as_dataset, given, "mine"), ConfigError, "'mine'")
        for given in ({"train": ROWS}, "path", 7, None)
    })  # fmt: skip


def test_a_dataset_of_the_hub_by_name(tmp_path):
    pytest.importorskip("datasets")
    (tmp_path / "train.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    rows = HuggingFaceSource.from_hub(str(tmp_path), split="train")
    assert [row["text"] for row in rows] == ["one", "two"]
    with pytest.raises(ConfigError, match="streamed rows cannot be read at random"):
        HuggingFaceSource.from_hub(str(tmp_path), split="train", streaming=True)
    with pytest.raises(DatasetNotFoundError, match="split 'dev', cannot be loaded"):
        HuggingFaceSource.from_hub(str(tmp_path), split="dev")
