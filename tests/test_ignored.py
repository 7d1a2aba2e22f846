"""Arguments of Megatron-Energon that have no use here."""

from __future__ import annotations

import logging

import pytest

from energize import ListSource, MapDataset
from energize.core.ignored import accepted


def messages(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "energize"]


@pytest.fixture
def said_nothing(monkeypatch):
    monkeypatch.setattr("energize.core.ignored._said", set())


@pytest.mark.usefixtures("said_nothing")
class TestAccepted:
    def test_a_word_for_each_owner_and_argument_and_only_once(self, caplog):
        caplog.set_level(logging.INFO, "energize")
        for _ in range(3):
            accepted("get_loader", n_checkpoints=2, checkpoint_every_sec=60)
            accepted("other", n_checkpoints=2)
        said = messages(caplog)
        assert len(said) == 3
        assert said[0].startswith("get_loader: n_checkpoints=2 has no effect: ")

    @pytest.mark.parametrize("value", [None, False])
    def test_what_was_not_given_is_not_spoken_of(self, caplog, value):
        caplog.set_level(logging.INFO, "energize")
        accepted("LimitDataset", reset_after_epoch=value)
        assert not messages(caplog)

    @pytest.mark.parametrize("name", ["n_checkpoint", "map_fn_confg", "seed"])
    def test_what_energon_does_not_know_either_is_an_error(self, name):
        with pytest.raises(TypeError, match=f"MapDataset.* unexpected keyword argument '{name}'"):
            MapDataset(ListSource([1]), abs, **{name: 1})
