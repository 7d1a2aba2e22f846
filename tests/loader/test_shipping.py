"""What packing a reply leaves behind, and what a state's outline must not leave out."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from energize import ConcatDataset, EpochizeDataset, ListSource, RepeatDataset, get_loader
from energize.errors import StateMismatchError
from energize.loader.shipping import Regions, Reply, dumps


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


def test_the_length_of_an_inner_epoch_is_part_of_a_state():
    def mix(length):
        first = EpochizeDataset(RepeatDataset(ListSource(range(7), name="first")), length)
        return ConcatDataset(first, ListSource(range(100, 103), name="second"))

    state = get_loader(mix(5)).state_dict()
    get_loader(mix(5)).load_state_dict(state)
    with pytest.raises(StateMismatchError, match="length was 5, is 6"):
        get_loader(mix(6)).load_state_dict(state)


def test_the_length_of_the_outermost_epoch_is_not():
    def loops(length):
        return EpochizeDataset(RepeatDataset(ListSource(range(7))), length)

    loader = get_loader(loops(5))
    first = list(loader)
    other = get_loader(loops(6))
    other.load_state_dict(loader.state_dict())
    assert (first + list(other))[:10] == [*range(7), 0, 1, 2]
