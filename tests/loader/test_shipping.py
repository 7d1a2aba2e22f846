"""What workers that start from nothing are given lies in memory once, columns and
all."""

from __future__ import annotations

import copy
import os
import pickle
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from energize import BlendDataset, ListSource
from energize.core.arrays import empty
from energize.core.samples import SourceInfo
from energize.data.webdataset import WebdatasetSource
from energize.loader.shipping import (
    SMALL,
    ReceivedRegions,
    Regions,
    Reply,
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
    for descriptor in regions.drain_new():
        received.add(descriptor)
    reply, _ = received.loads(memoryview(sent))
    return reply.items


def packed(items, regions):
    return dumps(Reply(0, 0, items=items), regions)


def test_large_replies_come_in_shared_memory_that_is_free_once_they_are_read():
    regions = Regions()
    received = ReceivedRegions()
    large = torch.arange(SMALL)
    items = [{"jpg": bytes([row]) * SMALL, "mask": torch.arange(9)} for row in range(3)]
    for _ in range(5):
        sent = packed([*items, large], regions)
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
        found = receive(packed([array], regions), regions, received)
        assert (found[0] == array).all()


def test_tensors_that_are_no_plain_memory_are_sent_as_torch_pickles_them():
    regions = Regions()
    leaf = torch.ones(3, requires_grad=True)
    value = receive(
        packed([leaf, torch.ones(2, 2).T], regions), regions, ReceivedRegions()
    )
    assert value[0].requires_grad
    assert torch.equal(value[1], torch.ones(2, 2))


ROWS = SMALL // 2


def lent_batch(regions, value, rows=4):
    memory = empty((rows * ROWS,), np.uint8, regions.lend)
    return torch.from_numpy(memory).view(rows, ROWS).fill_(value)


def test_a_batch_in_lent_memory_is_sent_without_a_copy():
    regions = Regions()
    received = ReceivedRegions()
    for value in range(5):
        sent = packed([{"image": lent_batch(regions, value)}], regions)
        [item] = receive(sent, regions, received)
        assert (item["image"] == value).all()
        item["image"].zero_()
        del item
    assert len(regions._regions) == 1


@pytest.mark.parametrize(
    "part",
    [
        lambda batch: batch,
        lambda batch: batch[1:, ::2].T,
        lambda batch: batch.numpy()[2],
        lambda batch: memoryview(batch.numpy()).cast("B"),
        torch.utils.dlpack.from_dlpack,
    ],
)
def test_a_batch_that_something_in_the_worker_keeps_is_copied(part):
    regions = Regions()
    received = ReceivedRegions()
    batch = lent_batch(regions, 7)
    kept = part(batch)
    items = [batch]
    del batch
    [item] = receive(packed(items, regions), regions, received)
    item.zero_()
    others = [lent_batch(regions, value) for value in range(3)]
    assert (np.asarray(kept) == 7).all()
    before = item.clone()
    np.asarray(kept)[...] = 9
    assert torch.equal(item, before)
    assert [int(other.max()) for other in others] == [0, 1, 2]


def test_items_that_share_lent_memory_are_in_use_until_each_is_gone():
    regions = Regions()
    received = ReceivedRegions()
    batch = lent_batch(regions, 3)
    items = [batch, batch[:3], batch[1:2], batch[3:]]
    del batch
    first, *others = receive(packed(items, regions), regions, received)
    del first
    after = [lent_batch(regions, value) for value in (5, 6)]
    assert [len(other) for other in others] == [3, 1, 1]
    assert all((other == 3).all() for other in others)
    assert [int(batch.max()) for batch in after] == [5, 6]


def test_a_reply_that_cannot_be_pickled_leaves_no_region_in_use():
    regions = Regions()
    received = ReceivedRegions()
    for value in range(3):
        batch = lent_batch(regions, value)
        with pytest.raises((AttributeError, pickle.PicklingError)):
            packed([batch, lambda: None], regions)
        del batch
        [item] = receive(packed([lent_batch(regions, 8)], regions), regions, received)
        assert (item == 8).all()
        del item
    assert len(regions._regions) <= 2


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["make", "make", "keep", "send", "free", "change"]),
        st.integers(0, 5),
    ),
    min_size=20,
    max_size=40,
)


@settings(max_examples=60)
@given(STEPS)
def test_no_array_changes_by_what_the_other_process_does(steps):
    regions = Regions()
    received = ReceivedRegions()
    here, there, value = [], [], 0
    for step, number in steps:
        arrays = there if step in ("free", "change") else here
        if step == "make":
            value += 1
            here.append((lent_batch(regions, value % 251, 3 + number % 3), value % 251))
        elif not arrays:
            continue
        elif step == "keep":
            batch, expected = here[number % len(here)]
            here.append((batch[number % 2 :], expected))
        elif step == "send":
            count = min(1 + number // 4, len(here))
            chosen = [here.pop(number % len(here)) for _ in range(count)]
            items = [batch for batch, _ in chosen]
            expected = [expected for _, expected in chosen]
            del chosen
            sent = packed(items, regions)
            there += zip(receive(sent, regions, received), expected, strict=True)
        elif step == "free":
            there.pop(number % len(there))
        else:
            value += 1
            batch, _ = there[number % len(there)]
            there[number % len(there)] = (batch.fill_(value % 251), value % 251)
        batch = None
        for array, expected in [*here, *there]:
            assert array[0, 0] == array[-1, -1] == expected


def test_threads_that_make_batches_while_others_are_sent_never_share_memory():
    regions = Regions()
    received = ReceivedRegions()
    wrong = []

    def work(value):
        for _ in range(100):
            batch = lent_batch(regions, value)
            if not (batch == value).all():
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(value,)) for value in range(3)]
    for thread in threads:
        thread.start()
    for value in range(10, 110):
        sent = packed([lent_batch(regions, value)], regions)
        [item] = receive(sent, regions, received)
        if not (item == value).all():
            wrong.append(value)
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_origin_of_a_sample_is_pickled_as_it_is():
    source = SourceInfo(
        dataset_path="/data", index=3, shard_name="0.tar", file_names=("a.jpg", "a.txt")
    )
    assert pickle.loads(pickle.dumps(source)) == source
    assert copy.deepcopy(source) == source
