"""What workers send: items, errors, shared memory; and what hooks have there."""

from __future__ import annotations

import gc
import os
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch

from energize import (
    BatchDataset,
    FailurePolicy,
    FilterDataset,
    MapDataset,
    WorkerConfig,
    get_loader,
)
from energize.core.stores import NoCachePool, active_pool
from energize.data.stores import SystemFileStore
from energize.encoders import batch_stack
from energize.errors import DataError, FailureBudgetError
from energize.extras.cache import FileStoreCachePool
from energize.loader.shipping import Regions, Reply, dumps
from tests.support.datasets import numbers
from tests.support.loading import eventually, loader_of, plain, prints


def damaged_tens(item):
    if item % 10 == 0:
        raise DataError(f"item {item} is damaged")
    return item


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("budget", [0, 4])
def test_the_failure_budget(workers, budget):
    dataset = MapDataset(numbers(640), damaged_tens)
    config = WorkerConfig(num_workers=workers)
    policy = FailurePolicy(budget=budget)
    with get_loader(dataset, worker_config=config, failures=policy) as loader:
        with pytest.raises(
            FailureBudgetError, match=f"{budget + 1} samples failed"
        ) as caught:
            list(loader)
        assert loader.failures.count == budget + 1
    assert "numbers0, sample" in str(caught.value)


def _tensors(item):
    return {
        "scalar": torch.tensor(item),
        "empty": torch.zeros(0, 3),
        "half": torch.full((3, 2), item, dtype=torch.bfloat16),
        "view": torch.arange(12).reshape(3, 4).T,
        "mask": torch.tensor([True, False]),
        "large": torch.arange(400_000).reshape(2, 200_000),
        "array": np.full((2, 3), item, dtype=np.float32),
        "bytes": bytes(300),
    }


def test_tensors_of_all_kinds_travel_unchanged():
    dataset = MapDataset(numbers(6), _tensors)
    with loader_of(dataset, workers=1) as loader:
        items = list(loader)
    assert prints(items) == plain(dataset, 6)
    items[0]["half"][0] = 5  # what arrives can be written to
    items[0]["large"][0] = 5


@pytest.mark.skipif(not torch.cuda.is_available(), reason="pinning needs a CUDA device")
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("pin", [None, True, False])
def test_tensors_are_pinned_where_there_is_a_gpu(workers, pin):
    dataset = MapDataset(numbers(3), _tensors)
    with loader_of(dataset, workers, pin_memory=pin) as loader:
        items = list(loader)
    assert {items[0]["large"].is_pinned(), items[0]["scalar"].is_pinned()} == {
        pin is not False
    }
    assert prints(items) == plain(dataset, 3)


@pytest.mark.parametrize("kind", ["map", "filter", "generator"])
def test_functions_compute_in_as_many_threads_everywhere(kind):
    seen = []

    def threads(item):
        seen.append(torch.get_num_threads())
        return [item, seen[-1]]

    def several(item):
        yield threads(item)

    function = several if kind == "generator" else threads
    made = (FilterDataset if kind == "filter" else MapDataset)(numbers(4), function)
    outside = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        here, there = list(made), list(loader_of(made, encoder_threads=2))
        with loader_of(made, workers=1) as loader:
            assert list(loader) == here
        assert len(here) == len(there) == 4
        assert (set(seen), seen[0], seen[-1]) == ({1, 2}, 1, 2)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(outside)


def test_a_reply_is_let_go_as_soon_as_it_is_packed():
    gc.disable()  # collecting garbage would hide that something refers to itself
    try:
        batch = torch.zeros(2**20)
        left = weakref.ref(batch)
        reply = Reply(1, 0, items=[{"image": batch}])
        del batch
        dumps(reply, Regions())
        assert left() is None
    finally:
        gc.enable()


ELEMENTS = 300_000
"""As bytes enough for shared memory in every dtype with two bytes or more."""


def filled(number):
    return torch.full((3, ELEMENTS // 3), number, dtype=torch.float32)


def varied(number):
    return torch.full((ELEMENTS * (1 + number % 10),), number, dtype=torch.float32)


@pytest.mark.jobs
@pytest.mark.parametrize("workers", [1, 2])
def test_kept_tensors_are_never_written_again(workers):
    with loader_of(MapDataset(numbers(300), filled), workers=workers) as loader:
        kept = list(loader)
    assert all(
        torch.equal(tensor, filled(number)) for number, tensor in enumerate(kept)
    )


def test_slots_of_many_sizes_are_given_up():
    with loader_of(MapDataset(numbers(120), varied), workers=1) as loader:
        for number, tensor in enumerate(loader):
            assert tensor.numel() == ELEMENTS * (1 + number % 10)
            assert tensor[0] == tensor[-1] == number


class KeepsBatches:
    """Makes batches, some of which it keeps, and raises an error if one changes."""

    def __init__(self) -> None:
        self.kept: list[tuple[int, torch.Tensor]] = []

    def __call__(self, numbers: list[int]) -> torch.Tensor:
        for number, kept in self.kept:
            if not torch.equal(kept, filled(number)):
                raise AssertionError(f"batch {number} has changed")
        batch = batch_stack([filled(number) for number in numbers])
        if numbers[0] % 3 == 0:
            self.kept = [*self.kept[-4:], (numbers[0], batch[0])]
        return batch


@pytest.mark.jobs
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_that_a_worker_keeps_are_not_shared_with_the_training(workers):
    dataset = BatchDataset(numbers(120), 2, KeepsBatches())
    with loader_of(dataset, workers=workers) as loader:
        for batch in loader:
            assert torch.equal(batch[1], batch[0] + 1)
            if workers:
                batch.zero_()


def everything(number: int) -> bool:
    return True


class Reads:
    """Reads a file for each item by way of the active pool."""

    def __init__(self, folder: Path) -> None:
        self.store = SystemFileStore(folder)

    def __call__(self, number: int) -> tuple[str, bytes, int]:
        pool = active_pool()
        return (
            type(pool).__name__,
            pool.get_lazy(self.store, f"{number}.txt").get(),
            os.getpid(),
        )


@pytest.fixture
def folder(tmp_path) -> Path:
    place = tmp_path / "files"
    place.mkdir()
    for number in range(8):
        (place / f"{number}.txt").write_text(f"file {number}")
    return place


@pytest.fixture
def caches(tmp_path) -> Path:
    place = tmp_path / "caches"
    place.mkdir()
    return place


@pytest.mark.jobs
@pytest.mark.parametrize(("workers", "method"), [(0, None), (2, "fork"), (1, "spawn")])
@pytest.mark.parametrize("streams", [False, True])
def test_hooks_have_the_pool(workers, method, streams, folder, caches):
    source = FilterDataset(numbers(8), everything) if streams else numbers(8)
    pool = FileStoreCachePool(parent_cache_dir=caches, num_workers=1)
    dataset = MapDataset(source, Reads(folder))
    config = WorkerConfig(0, 1, workers)
    with get_loader(
        dataset, worker_config=config, cache_pool=pool, multiprocessing_context=method
    ) as loader:
        for _ in range(2):
            found = sorted(loader)
            assert [content for _, content, _ in found] == [
                b"file %d" % n for n in range(8)
            ]
            assert {kind for kind, _, _ in found} == {"FileStoreCachePool"}
            assert (os.getpid() in {pid for _, _, pid in found}) == (workers == 0)
            assert type(active_pool()) is NoCachePool, "the training loop has none"
        kind, content, _ = loader.restore_sample(loader.restore_key)
        assert (kind, content[:5]) == ("FileStoreCachePool", b"file ")
        assert list(caches.iterdir()), "it was used"
    assert eventually(lambda: not list(caches.iterdir())), (
        "what it kept is gone with the loader"
    )


def test_loaders_with_pools_of_their_own_side_by_side(folder, caches):
    one, other = (
        get_loader(
            MapDataset(numbers(4), lambda n: active_pool()),
            cache_pool=FileStoreCachePool(parent_cache_dir=caches),
        )
        for _ in range(2)
    )
    first, second = list(one), list(other)
    for mine, theirs in zip(first, second, strict=True):
        assert mine is first[0]
        assert theirs is second[0]
        assert mine is not theirs
