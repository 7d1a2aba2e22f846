"""Arguments of Megatron-Energon that have no use here."""

from __future__ import annotations

import logging

import pytest

from energize import (
    BatchDataset,
    FilterDataset,
    GroupBatchDataset,
    IterMapDataset,
    LimitDataset,
    ListSource,
    MapDataset,
    PackingDataset,
    RepeatDataset,
    ShuffleBufferDataset,
    get_savable_loader,
)
from energize.core.ignored import accepted

LETTERS = ListSource("abc")

TAKING = {  # everything that takes arguments of Megatron-Energon, and one of these
    "BatchDataset": ("batcher_stateless", lambda **x: BatchDataset(LETTERS, 2, "".join, **x)),
    "FilterDataset": ("filter_fn_config", lambda **x: FilterDataset(LETTERS, bool, **x)),
    "GroupBatchDataset": (
        "batcher_config",
        lambda **x: GroupBatchDataset(LETTERS, 2, lambda each: (each, None), "".join, **x),
    ),
    "IterMapDataset": ("stateless_iter_fn", lambda **x: IterMapDataset(LETTERS, iter, **x)),
    "LimitDataset": ("reset_after_epoch", lambda **x: LimitDataset(LETTERS, 2, **x)),
    "MapDataset": ("stateless_map_fn", lambda **x: MapDataset(LETTERS, str, **x)),
    "PackingDataset": (
        "packer_config",
        lambda **x: PackingDataset(LETTERS, 2, lambda samples: [samples], "".join, **x),
    ),
    "RepeatDataset": ("restart", lambda **x: RepeatDataset(LETTERS, 2, **x)),
    "ShuffleBufferDataset": (
        "worker_rotation_offset",
        lambda **x: ShuffleBufferDataset(LETTERS, 2, **x),
    ),
    "get_savable_loader": ("n_checkpoints", lambda **x: get_savable_loader(LETTERS, **x)),
}


@pytest.fixture
def said(caplog, monkeypatch):
    monkeypatch.setattr("energize.core.ignored._said", set())
    caplog.set_level(logging.INFO, "energize")
    return lambda: [each.getMessage() for each in caplog.records if each.name == "energize"]


def test_a_word_for_each_owner_and_argument_that_was_given_and_only_once(said):
    for _ in range(3):
        accepted("get_loader", n_checkpoints=2, checkpoint_every_sec=60)
        accepted("other", n_checkpoints=2, restart=None, handler=False)
    assert len(said()) == 3
    assert said()[0].startswith("get_loader: n_checkpoints=2 has no effect: ")


@pytest.mark.parametrize("owner", TAKING)
def test_what_has_no_use_is_said_and_what_energon_does_not_know_either_is_an_error(owner, said):
    name, make = TAKING[owner]
    make(**{name: 7})
    assert [each for each in said() if f"{name}=7 has no effect" in each]
    for unknown in ("n_checkpoint", "map_fn_confg", "seed"):
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{unknown}'"):
            make(**{unknown: 1})
