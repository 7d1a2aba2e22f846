"""Large tensors on their way from workers: slots are used again, never while someone looks."""

from __future__ import annotations

import gc
import os

import pytest
import torch

from energize import BatchDataset, ListSource, MapDataset
from tests.support.loading import loader_of

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


def numbers(count):
    return ListSource(list(range(count)))


def test_memory_is_used_again_when_batches_are_let_go():
    places = set()
    one_at_a_time = BatchDataset(numbers(200 * 64), 64, lambda batch: filled(batch[0] // 64))
    with loader_of(one_at_a_time, workers=1, prefetch_factor=4) as loader:
        for number, tensor in enumerate(loader):
            assert torch.equal(tensor, filled(number))
            places.add(tensor.data_ptr())
    assert len(places) < 20


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
