"""Large arrays in reused memory."""

from __future__ import annotations

import multiprocessing
import threading

import numpy as np
import pytest
import torch

from energize.core import arrays
from energize.core.arrays import POOLED, empty
from energize.encoders import batch_stack

SHAPE = (2, POOLED // 8)


@pytest.fixture(autouse=True)
def pool(monkeypatch):
    pool = type(arrays.pool)()
    monkeypatch.setattr(arrays, "pool", pool)
    return pool


def filled(value):
    array = empty(SHAPE, np.float32)
    array[:] = value
    return array


def address(array):
    return array.__array_interface__["data"][0]


def test_memory_is_reused_once_released(pool):
    array = filled(1)
    first = address(array)
    assert pool.free_bytes() == 0
    del array
    assert pool.free_bytes() == POOLED
    slightly_smaller = empty((POOLED - 8,), np.uint8)
    assert address(slightly_smaller) != first  # below the limit
    again = empty((POOLED // 4,), np.int32)
    assert address(again) == first
    assert pool.free_bytes() == 0


@pytest.mark.parametrize(
    "part",
    [
        lambda array: array,
        lambda array: array[1:, ::2].T.view(np.int32),
        memoryview,
        torch.from_numpy,
        lambda array: torch.from_numpy(array)[1].view(torch.int32)[5:],
        lambda array: torch.from_numpy(array).numpy()[0],
        lambda array: torch.utils.dlpack.from_dlpack(torch.from_numpy(array)),
    ],
)
def test_memory_is_not_reused_while_a_part_of_it_is_in_use(pool, part):
    array = filled(7)
    used = part(array)
    before = np.asarray(used).copy()
    del array
    assert pool.free_bytes() == 0
    others = [filled(value) for value in range(3)]
    assert np.array_equal(np.asarray(used), before)
    del used, others
    assert pool.free_bytes() == 4 * POOLED


def test_free_memory_is_limited_and_that_of_other_sizes_leaves_first(pool, monkeypatch):
    monkeypatch.setattr(arrays, "_MOST_FREE", 4 * POOLED)
    small = [filled(value) for value in range(6)]
    del small
    assert pool.free_bytes() == 4 * POOLED
    large = empty((2 * POOLED,), np.uint8)
    first = address(large)
    del large
    assert pool.free_bytes() == 2 * POOLED
    assert address(empty((2 * POOLED,), np.uint8)) == first
    too_large = empty((5 * POOLED,), np.uint8)
    del too_large
    assert pool.free_bytes() == 2 * POOLED


def _changed(kept):
    """Return whether arrays of a forked process changed one that it inherited."""
    others = [filled(value) for value in range(20, 24)]
    sums = [float(other.mean()) for other in others]
    return float(kept.mean()), sums


def test_a_forked_process_uses_its_own_copy_of_free_memory():
    kept = filled(3)
    free = [filled(value) for value in range(4)]
    del free
    with multiprocessing.get_context("fork").Pool(1) as processes:
        result = processes.apply_async(_changed, (kept[:, :8],))
        here = [filled(value) for value in range(10, 14)]
        assert result.get(60) == (3.0, [20.0, 21.0, 22.0, 23.0])
    assert [float(array.mean()) for array in here] == [10.0, 11.0, 12.0, 13.0]


def test_threads_never_share_memory():
    wrong = []

    def work(value):
        for _ in range(200):
            array = filled(value)
            kept = array[0]
            del array
            if not (kept == value).all():
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(value,)) for value in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_kept_batch_does_not_change(pool):
    images = [torch.full(SHAPE, float(value)) for value in range(2)]
    kept = batch_stack(images)[1]
    for value in range(5, 8):
        batch_stack([torch.full(SHAPE, float(value))] * 2)
    assert (kept == 1).all()
    del kept
    assert pool.free_bytes() == 4 * POOLED
