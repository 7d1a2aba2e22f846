"""Arguments of Megatron-Energon that have no use here."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

from energize import LimitDataset, ListSource, MapDataset, WorkerConfig
from energize.core.ignored import IGNORED, accepted


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
        assert IGNORED["n_checkpoints"] in said[0]

    @pytest.mark.parametrize("value", [None, False])
    def test_what_was_not_given_is_not_spoken_of(self, caplog, value):
        caplog.set_level(logging.INFO, "energize")
        accepted("LimitDataset", reset_after_epoch=value)
        assert not messages(caplog)

    @pytest.mark.parametrize("name", ["n_checkpoint", "map_fn_confg", "seed"])
    def test_what_energon_does_not_know_either_is_an_error(self, name):
        with pytest.raises(TypeError, match=f"MapDataset.* unexpected keyword argument '{name}'"):
            MapDataset(ListSource([1]), abs, **{name: 1})

    def test_wrappers_and_configs_say_it(self, caplog):
        caplog.set_level(logging.INFO, "energize")
        LimitDataset(ListSource([1, 2]), 1, reset_after_epoch=True)
        MapDataset(ListSource([1]), abs, stateless_map_fn=True, map_fn_config={"a": 1})
        WorkerConfig(rank=0, world_size=1, worker_log_level=1)
        said = " ".join(messages(caplog))
        for owner, name in [
            ("LimitDataset", "reset_after_epoch"),
            ("MapDataset", "stateless_map_fn"),
            ("MapDataset", "map_fn_config"),
            ("WorkerConfig", "worker_log_level"),
        ]:
            assert f"{owner}: {name}=" in said


def test_by_default_nothing_is_printed():
    """Programs that set up no log are not spoken to."""
    program = (
        "from energize import ListSource, MapDataset\n"
        "MapDataset(ListSource([1]), abs, stateless_map_fn=True)"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert not done.stdout
    assert not done.stderr
