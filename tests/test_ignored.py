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
)
from energize.core.ignored import accepted
from energize.loader.loader import get_savable_loader

LETTERS = ListSource("abc")

TAKING = {  # everything that takes arguments of Megatron-Energon, what else it is given, and one
    BatchDataset: ("batcher_stateless", 2, "".join),
    FilterDataset: ("filter_fn_config", bool),
    GroupBatchDataset: ("batcher_config", 2, lambda each: (each, None), "".join),
    IterMapDataset: ("stateless_iter_fn", iter),
    LimitDataset: ("reset_after_epoch", 2),
    MapDataset: ("stateless_map_fn", str),
    PackingDataset: ("packer_config", 2, lambda samples: [samples], "".join),
    RepeatDataset: ("restart", 2),
    ShuffleBufferDataset: ("worker_rotation_offset", 2),
    get_savable_loader: ("n_checkpoints",),
}


@pytest.fixture
def said(caplog, monkeypatch):
    monkeypatch.setattr("energize.core.ignored._logged", set())
    caplog.set_level(logging.INFO, "energize")
    return lambda: [
        each.getMessage() for each in caplog.records if each.name == "energize"
    ]


def test_a_word_for_each_owner_and_argument_that_was_given_and_only_once(said):
    for _ in range(3):
        accepted("get_loader", n_checkpoints=2, checkpoint_every_sec=60)
        accepted("other", n_checkpoints=2, restart=None, handler=False)
    assert len(said()) == 3
    assert said()[0].startswith("get_loader: n_checkpoints=2 has no effect: ")


@pytest.mark.parametrize("owner", TAKING)
def test_what_has_no_use_is_said_and_what_energon_does_not_know_either_is_an_error(
    owner, said
):
    name, *given = TAKING[owner]
    owner(LETTERS, *given, **{name: 7})
    assert [each for each in said() if f"{name}=7 has no effect" in each]
    for unknown in ("n_checkpoint", "map_fn_confg", "seed"):
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{unknown}'"):
            owner(LETTERS, *given, **{unknown: 1})
