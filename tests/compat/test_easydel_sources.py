"""EasyDeL's sources of examples in named shards."""

from __future__ import annotations

from itertools import islice

import datasets
import pytest
from torch.utils.data import DataLoader

from energize import ConfigError
from energize.compat.easydel import (
    CompositeShardedSource,
    HFDatasetShardedSource,
    JsonShardedSource,
    MixedShardedSource,
    ParquetShardedSource,
)
from tests.support.rows import Stream, texts, write_lines, write_parquet


def lists(**sizes):
    return {name: [{"i": i} for i in range(size)] for name, size in sizes.items()}


def streams(**sizes):
    return {name: Stream({"i": i} for i in range(size)) for name, size in sizes.items()}


def test_shards(tmp_path):
    for name in ("x", "y"):
        write_parquet(tmp_path / f"{name}.parquet", texts(name, 3))
        write_lines(tmp_path / f"{name}.jsonl", texts(name, 3))
    for source in (
        ParquetShardedSource(f"{tmp_path}/*.parquet"),
        JsonShardedSource(f"{tmp_path}/*.jsonl"),
    ):
        assert source.num_shards() == 2
        assert len(source) == 6
        assert [row["text"] for row in source.open_shard(source.shard_names[1])] == [
            f"y {i}" for i in range(3)
        ]
        assert list(source) == list(source.dataset) == texts("x", 3) + texts("y", 3)
        assert next(source.open_shard_at_row(source.shard_names[0], 2)) == texts("x", 3)[2]
        with pytest.raises(ConfigError, match="has no shard 'z'"):
            source.open_shard("z")


def test_combined_shards_of_equal_names_are_told_apart():
    one, two = (datasets.Dataset.from_dict({"x": [v]}) for v in (1, 2))
    combined = CompositeShardedSource([HFDatasetShardedSource(one), HFDatasetShardedSource(two)])
    assert list(combined.shard_names) == ["hf_dataset:0@0", "hf_dataset:0@1"]
    assert [list(combined.open_shard(name)) for name in combined.shard_names] == [
        [{"x": 1}],
        [{"x": 2}],
    ]
    assert len(combined) == 2
    assert list(combined) == list(combined.dataset) == [{"x": 1}, {"x": 2}]
    nested = CompositeShardedSource([combined, HFDatasetShardedSource(one, "third")])
    assert len(set(nested.shard_names)) == nested.num_shards() == 3


@pytest.mark.parametrize(
    "given", [HFDatasetShardedSource([{"x": 1}]), [[{"x": 1}]], "data.parquet"]
)
def test_what_is_combined_are_sources(given):
    with pytest.raises(
        ConfigError,
        match=r"CompositeShardedSource: sources(\[0\])? is a (list|ShardedDataSource); got",
    ):
        CompositeShardedSource(given)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("make", [lists, streams])
def test_sources_go_into_torch_loaders(make, workers):
    parts = make(a=13, b=8)
    combined = CompositeShardedSource([HFDatasetShardedSource(each) for each in parts.values()])
    mixed = MixedShardedSource(parts, {"a": 3, "b": 1}, 4, 3, "all_exhausted")
    for source in (combined, mixed):
        batches = DataLoader(source, batch_size=4, num_workers=workers)
        seen = [number for batch in batches for number in batch["i"].tolist()]
        assert sorted(seen) == sorted([*range(13), *range(8)])
    endless = DataLoader(MixedShardedSource(parts, None, 4, 3), batch_size=4, num_workers=workers)
    assert len(list(islice(endless, 30))) == 30


def test_files_that_are_none():
    with pytest.raises(ConfigError, match=r"ParquetSource: files are a path.*got None"):
        ParquetShardedSource(None)
