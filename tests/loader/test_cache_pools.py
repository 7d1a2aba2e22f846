"""The cache pool of a loader is there for hooks, in workers and in this process, and only then."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from energize import FilterDataset, MapDataset, WorkerConfig, get_loader
from energize.core.stores import NoCachePool, active_pool
from energize.data.stores import SystemFileStore
from energize.extras.cache import FileStoreCachePool
from tests.support.datasets import numbers
from tests.support.loading import eventually


def everything(number: int) -> bool:
    return True


class Reads:
    """Reads a file for each item by way of the active pool."""

    def __init__(self, folder: Path) -> None:
        self.store = SystemFileStore(folder)

    def __call__(self, number: int) -> tuple[str, bytes, int]:
        pool = active_pool()
        return type(pool).__name__, pool.get_lazy(self.store, f"{number}.txt").get(), os.getpid()


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
            assert [content for _, content, _ in found] == [b"file %d" % n for n in range(8)]
            assert {kind for kind, _, _ in found} == {"FileStoreCachePool"}
            assert (os.getpid() in {pid for _, _, pid in found}) == (workers == 0)
            assert type(active_pool()) is NoCachePool, "the training loop has none"
        kind, content, _ = loader.restore_sample(loader.restore_key)
        assert (kind, content[:5]) == ("FileStoreCachePool", b"file ")
        assert list(caches.iterdir()), "it was used"
    assert eventually(lambda: not list(caches.iterdir())), "what it kept is gone with the loader"


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
