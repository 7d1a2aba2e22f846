"""What workers send: items, errors, shared memory; and what hooks have there."""

from __future__ import annotations

import gc
import os
import resource
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch

from energize import BatchDataset, FilterDataset, MapDataset, WorkerConfig, get_loader
from energize.core.stores import NoCachePool, active_pool
from energize.data.stores import SystemFileStore
from energize.errors import (
    DataError,
    EncoderError,
    FailureBudgetError,
    LoaderError,
    SubstitutionError,
)
from energize.extras.cache import FileStoreCachePool
from energize.loader.shipping import Regions, Reply, dumps
from tests.support.datasets import INDEXED, is_even, numbers
from tests.support.loading import (
    eventually,
    loader_of,
    plain,
    prints,
)


def _bad_encoder(item):
    try:
        return 1 // (item - 5)
    except ZeroDivisionError as error:
        raise _OwnError(item, reason="five") from error


class _OwnError(Exception):
    """Cannot be rebuilt from its message alone."""

    def __init__(self, item, *, reason):
        super().__init__(f"no {item}: {reason}")


@pytest.mark.parametrize("workers", [0, 2])
def test_an_encoders_error_comes_with_the_sample_and_the_users_traceback(workers):
    loader = loader_of(MapDataset(numbers(9), _bad_encoder), workers)
    with loader, pytest.raises(EncoderError, match=r"no 5: five") as caught:
        list(loader)
    assert "sample 5" in str(caught.value)
    causes = [caught.value.__cause__, caught.value.__cause__.__cause__]
    assert "no 5: five" in str(causes[0])
    assert isinstance(causes[1], ZeroDivisionError)
    if workers:
        (note,) = caught.value.__notes__
        assert "in _bad_encoder" in note
        assert "return 1 // (item - 5)" in note


def test_items_of_a_stream_before_an_error_are_delivered():
    def check(item):
        if item == 7:
            raise ValueError("seven")
        return item

    dataset = MapDataset(FilterDataset(numbers(20), lambda _: True), check)
    for workers in (0, 1):
        got = []
        with loader_of(dataset, workers) as loader, pytest.raises(EncoderError, match="seven"):
            got.extend(loader)
        assert got == list(range(7))


def damaged_tens(item):
    if item % 10 == 0:
        raise DataError(f"item {item} is damaged")
    return item


@pytest.mark.parametrize("workers", [0, 2])
def test_failed_samples_are_warned_of_and_counted(workers, caplog):
    dataset = MapDataset(numbers(100), damaged_tens)
    with loader_of(dataset, workers) as loader:
        items = list(loader)
        summary = loader.failures
    assert len(items) == 100
    assert all(item % 10 for item in items)
    assert summary.count >= 10
    told = [each.message for each in caplog.records if "is damaged" in each.message]
    assert len(told) <= 3, "samples that fail alike are told of once"
    assert f"{summary.count} samples failed alike" in told[-1]
    assert list(summary.kinds.values()) == [summary.count]
    assert "numbers0, sample 0" in caplog.text
    assert "DataError: item 0 is damaged" in caplog.text
    assert len(summary.last) == 10


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("budget", [0, 4])
def test_the_failure_budget(workers, budget):
    dataset = MapDataset(numbers(640), damaged_tens)
    config = WorkerConfig(num_workers=workers)
    with get_loader(dataset, worker_config=config, failure_budget=budget) as loader:
        with pytest.raises(FailureBudgetError, match=f"{budget + 1} samples failed") as caught:
            list(loader)
        assert loader.failures.count == budget + 1
    assert "numbers0, sample" in str(caught.value)


@pytest.mark.parametrize("workers", [0, 1])
def test_no_substitute_to_be_found_is_an_error_not_a_loop(workers):
    def damaged(item):
        raise DataError("all of them")

    loader = loader_of(MapDataset(numbers(5), damaged), workers)
    with loader, pytest.raises(SubstitutionError, match="substitutes"):
        list(loader)


def _large_without_room(item):
    # No file may grow beyond a page any more, and shared memory is a file.
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
    return torch.zeros(1_000_000)


def test_full_shared_memory_is_an_error():
    loader = loader_of(MapDataset(numbers(5), _large_without_room), workers=1)
    with loader, pytest.raises(LoaderError, match=r"shared memory.*memory is full"):
        list(loader)


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


def test_many_small_tensors_take_no_file_descriptors():
    dataset = MapDataset(numbers(600), lambda x: [torch.tensor([x]) for _ in range(10)])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with loader_of(dataset, workers=2, prefetch_factor=4) as loader:
        iterator = iter(loader)
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
        try:
            kept = list(iterator)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(kept) == 600


def test_workers_read_ahead_no_more_than_asked(tmp_path):
    def note(item):
        (tmp_path / str(item)).touch()
        return item

    with loader_of(MapDataset(numbers(64 * 50), note), workers=2, prefetch_factor=2) as loader:
        iterator = iter(loader)
        for delivered in range(1, 8):
            next(iterator)
            eventually(lambda done=delivered: len(list(tmp_path.iterdir())) >= done + 2 * 2)
            time.sleep(0.05)
            assert len(list(tmp_path.iterdir())) == delivered + 2 * 2


def _large(item):
    return torch.full((1_000_000,), item, dtype=torch.float32)


def test_workers_read_ahead_no_more_bytes_than_asked(tmp_path):
    def note(item):
        (tmp_path / str(item)).touch()
        return _large(item)

    dataset = MapDataset(numbers(500), note)
    with loader_of(dataset, workers=2, prefetch_bytes=20_000_000) as loader:
        iterator = iter(loader)
        for delivered in range(1, 40):
            next(iterator)
            time.sleep(0.01)
            assert len(list(tmp_path.iterdir())) <= delivered + 5


def test_the_first_item_comes_before_others_are_read():
    def slow(item):
        time.sleep(0.2)
        return item

    for workers in (0, 1):
        with loader_of(MapDataset(numbers(64), slow), workers=workers) as loader:
            iterator = iter(loader)
            began = time.monotonic()
            next(iterator)
            assert time.monotonic() - began < 0.2 * 10


def test_the_trainers_generators_are_left_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    with loader_of(INDEXED["map"], workers=2) as loader:
        list(loader)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="pinning needs a CUDA device")
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("pin", [None, True, False])
def test_tensors_are_pinned_where_there_is_a_gpu(workers, pin):
    dataset = MapDataset(numbers(3), _tensors)
    with loader_of(dataset, workers, pin_memory=pin) as loader:
        items = list(loader)
    assert {items[0]["large"].is_pinned(), items[0]["scalar"].is_pinned()} == {pin is not False}
    assert prints(items) == plain(dataset, 3)


def test_a_loader_iterated_in_another_thread():
    got = []
    with loader_of(FilterDataset(numbers(50), is_even), workers=1) as loader:
        thread = threading.Thread(target=lambda: got.extend(loader))
        thread.start()
        thread.join(20)
    assert got == list(range(0, 50, 2))


def test_a_reply_is_let_go_as_soon_as_it_is_packed():
    gc.disable()  # collecting garbage would hide that something refers to itself
    try:
        batch = torch.zeros(2**20)
        left = weakref.ref(batch)
        reply = Reply(1, 0, items=[{"image": batch}])
        del batch
        dumps(reply, Regions())
        del reply
        assert left() is None
    finally:
        gc.enable()


ELEMENTS = 300_000
"""As bytes enough for shared memory in every dtype with two bytes or more."""


def filled(number):
    return torch.full((3, ELEMENTS // 3), number, dtype=torch.float32)


def twice(number):
    tensor = filled(number)
    return {"a": tensor, "b": tensor, "view": tensor[1]}


def of_dtype(number):
    dtype = (torch.int16, torch.bfloat16, torch.float64, torch.complex64)[number % 4]
    return torch.arange(ELEMENTS).reshape(100, -1).t().to(dtype)


def varied(number):
    return torch.full((ELEMENTS * (1 + number % 10),), number, dtype=torch.float32)


def test_memory_is_used_again_when_batches_are_let_go():
    places = set()
    one_at_a_time = BatchDataset(numbers(200 * 64), 64, lambda batch: filled(batch[0] // 64))
    with loader_of(one_at_a_time, workers=1, prefetch_factor=4) as loader:
        for number, tensor in enumerate(loader):
            assert torch.equal(tensor, filled(number))
            places.add(tensor.data_ptr())
    assert len(places) < 20


@pytest.mark.jobs
@pytest.mark.parametrize("workers", [1, 2])
def test_kept_tensors_are_never_written_again(workers):
    with loader_of(MapDataset(numbers(300), filled), workers=workers) as loader:
        kept = list(loader)
    assert all(torch.equal(tensor, filled(number)) for number, tensor in enumerate(kept))


def test_a_view_keeps_its_memory():
    rows = []
    with loader_of(MapDataset(numbers(300), filled), workers=1) as loader:
        for number, tensor in enumerate(loader):
            if number % 50 == 0:
                rows.append((number, tensor[1], tensor.numpy()[2]))
    assert all((row == n).all() and (array == n).all() for n, row, array in rows)


def test_one_tensor_at_two_places_stays_one():
    with loader_of(MapDataset(numbers(3), twice), workers=1) as loader:
        for number, item in enumerate(loader):
            assert item["a"] is item["b"]
            assert torch.equal(item["view"], filled(number)[1])


def test_every_dtype_and_layout_arrives_unchanged():
    with loader_of(MapDataset(numbers(8), of_dtype), workers=2) as loader:
        for number, tensor in enumerate(loader):
            assert tensor.dtype == of_dtype(number).dtype
            assert torch.equal(tensor, of_dtype(number))


def test_slots_of_many_sizes_are_given_up():
    with loader_of(MapDataset(numbers(120), varied), workers=1) as loader:
        for number, tensor in enumerate(loader):
            assert tensor.numel() == ELEMENTS * (1 + number % 10)
            assert tensor[0] == tensor[-1] == number


class Wrapped:
    """Its tensors exist only while it is pickled."""

    def __init__(self, number):
        self.number = number

    def __reduce__(self):
        return tuple, ([filled(self.number)],)


def wrapped(number):
    return [Wrapped(number * 10 + i) for i in range(10)]


def test_tensors_made_while_pickling_are_not_taken_for_one_another():
    with loader_of(MapDataset(numbers(4), wrapped), workers=1) as loader:
        for number, items in enumerate(loader):
            found = [tensor[0, 0].item() for (tensor,) in items]
            assert found == [number * 10 + i for i in range(10)]


def test_a_forked_process_does_not_free_what_its_parent_holds():
    with loader_of(MapDataset(numbers(300), filled), workers=1) as loader:
        iterator = iter(loader)
        held = next(iterator)
        child = os.fork()
        if child == 0:
            del held
            gc.collect()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        for _ in iterator:
            pass
        assert torch.equal(held, filled(0))


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
