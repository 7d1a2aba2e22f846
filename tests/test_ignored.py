"""Arguments of Megatron-Energon that have no use here."""

from __future__ import annotations

import logging

import pytest

from energize import ListSource, MapDataset
from energize.core.ignored import accepted


def test_a_word_for_each_owner_and_argument_that_was_given_and_only_once(caplog, monkeypatch):
    monkeypatch.setattr("energize.core.ignored._said", set())
    caplog.set_level(logging.INFO, "energize")
    for _ in range(3):
        accepted("get_loader", n_checkpoints=2, checkpoint_every_sec=60)
        accepted("other", n_checkpoints=2, restart=None, handler=False)
    said = [each.getMessage() for each in caplog.records if each.name == "energize"]
    assert len(said) == 3
    assert said[0].startswith("get_loader: n_checkpoints=2 has no effect: ")


@pytest.mark.parametrize("name", ["n_checkpoint", "map_fn_confg", "seed"])
def test_what_energon_does_not_know_either_is_an_error(name):
    with pytest.raises(TypeError, match=f"MapDataset.* unexpected keyword argument '{name}'"):
        MapDataset(ListSource([1]), abs, **{name: 1})
