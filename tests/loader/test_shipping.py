"""What workers that start from nothing are given lies in memory once, columns and
all."""

from __future__ import annotations

import copy
import os
import pickle

import numpy as np
import torch

from energize import BlendDataset, ListSource
from energize.core.samples import SourceInfo
from energize.data.webdataset import WebdatasetSource
from energize.loader.shipping import (
    SMALL,
    ReceivedRegions,
    Regions,
    dumps,
    rebuilt,
    stored,
)
from energize.preparation import prepare_columns
from tests.support.prepared import captions


def test_large_arrays_are_not_pickled_and_no_process_writes_to_those_of_another():
    large = np.arange(SMALL, dtype=np.int64)
    file = stored(
        {"large": large, "view": large[1:], "small": large[:8], "other": [b"x", None]}
    )
    one, other = (rebuilt(os.dup(file.fileno())) for _ in range(2))
    one["large"][0] = -1
    assert other["large"].tolist() == large.tolist()
    assert (one["view"] == large[1:]).all()
    assert (one["small"].tolist(), one["other"]) == (list(range(8)), [b"x", None])
    assert os.fstat(file.fileno()).st_size < 2 * large.nbytes + 4096


def test_columns_that_a_source_has_looked_up_come_along(tmp_path):
    folder = captions(tmp_path / "cats", 6, shards=2)
    prepare_columns(folder, {"n": "size:txt"})
    source = WebdatasetSource(folder, split_part="train")
    before = len(pickle.dumps(source))
    sizes = source.column("n").values.tolist()
    assert len(pickle.dumps(source)) == before
    (folder / ".nv-meta" / "columns" / "columns.json").unlink()
    file = stored(BlendDataset((source, 1), (ListSource(range(3)), 1)))
    found = rebuilt(os.dup(file.fileno())).sources[0]
    assert found == source
    assert found.column("n").values.tolist() == sizes


def receive(sent, regions, received):
    for descriptor in regions.made:
        received.add(descriptor)
    regions.made = []
    value, _ = received.loads(memoryview(sent))
    return value


def test_large_replies_come_in_shared_memory_that_is_free_once_they_are_read():
    regions = Regions()
    received = ReceivedRegions()
    large = torch.arange(SMALL)
    items = [{"jpg": bytes([row]) * SMALL, "mask": torch.arange(9)} for row in range(3)]
    for _ in range(5):
        sent = dumps([*items, large], regions)
        assert len(sent) < 1000
        value = receive(sent, regions, received)
        assert [item["jpg"] for item in value[:3]] == [item["jpg"] for item in items]
        assert torch.equal(value[1]["mask"], torch.arange(9))
        assert torch.equal(value[3], large)
        del value
    assert len(regions._regions) == 2


def test_arrays_of_all_sizes_come_as_they_were():
    """A pickler writes those above a frame of 64 KiB by themselves."""
    for size in (1, 60 << 10, 100 << 10, SMALL, SMALL + 1):
        regions, received = Regions(), ReceivedRegions()
        array = np.arange(size, dtype=np.uint8)
        found = receive(dumps([array], regions), regions, received)
        assert (found[0] == array).all()


def test_tensors_that_are_no_plain_memory_are_sent_as_torch_pickles_them():
    regions = Regions()
    leaf = torch.ones(3, requires_grad=True)
    value = receive(
        dumps([leaf, torch.ones(2, 2).T], regions), regions, ReceivedRegions()
    )
    assert value[0].requires_grad
    assert torch.equal(value[1], torch.ones(2, 2))


def test_the_origin_of_a_sample_is_pickled_as_it_is():
    source = SourceInfo(
        dataset_path="/data", index=3, shard_name="0.tar", file_names=("a.jpg", "a.txt")
    )
    assert pickle.loads(pickle.dumps(source)) == source
    assert copy.deepcopy(source) == source
