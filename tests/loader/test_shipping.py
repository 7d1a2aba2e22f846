"""What packing a reply leaves behind, and what a state's outline must not leave out."""

from __future__ import annotations

import gc
import weakref

import torch

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
