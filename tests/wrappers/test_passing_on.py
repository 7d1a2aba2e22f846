"""Datasets that pass items on: one collects garbage, one stands for what the loader does."""

from __future__ import annotations

import gc
import logging

import pytest

from energize import ConfigError, GcDataset, ListSource, WorkerConfig, get_loader
from energize.datasets.transform import WatchdogDataset


@pytest.fixture
def collections():
    """How often the garbage collector was run by a call, at the end of its list."""
    seen = []

    def note(phase, info):
        if phase == "start" and info["generation"] == 2:
            seen.append(info)

    gc.callbacks.append(note)
    gc.disable()
    yield seen
    gc.enable()
    gc.callbacks.remove(note)


def test_garbage_is_collected_after_every_so_many_items(collections):
    dataset = GcDataset(ListSource(range(10)), every_n_iter=3)
    assert list(dataset) == list(range(10))
    assert len(collections) == 3


def test_circles_do_not_pile_up():
    class Circle:
        alive = 0

        def __init__(self):
            self.own = self
            Circle.alive += 1

        def __del__(self):
            Circle.alive -= 1

    gc.disable()
    try:
        most = 0
        for _ in GcDataset(ListSource(range(30)), every_n_iter=5):
            Circle()
            most = max(most, Circle.alive)
    finally:
        gc.enable()
    assert most <= 10


@pytest.mark.parametrize("workers", [0, 2])
def test_one_may_be_added_in_the_middle_of_a_run(workers):
    config = WorkerConfig(rank=0, world_size=1, num_workers=workers)
    source = ListSource(range(20))
    first = get_loader(source, worker_config=config)
    items = iter(first)
    head = [next(items) for _ in range(7)]
    again = get_loader(GcDataset(source, every_n_iter=2), worker_config=config)
    again.load_state_dict(first.state_dict())
    assert [*head, *again] == list(range(20))
    assert GcDataset(source, every_n_iter=2) == GcDataset(source, every_n_iter=2)
    assert GcDataset(source, every_n_iter=2) != GcDataset(source, every_n_iter=3)


def test_wrong_arguments():
    with pytest.raises(ConfigError, match="every_n_iter"):
        GcDataset(ListSource([1]), every_n_iter=0)


def test_the_loader_watches(caplog, monkeypatch):
    monkeypatch.setattr("energize.core.ignored._said", set())
    caplog.set_level(logging.INFO, "energize")
    dataset = WatchdogDataset(ListSource("ab"), WorkerConfig(), 5, fail_on_timeout=True)
    assert list(dataset) == ["a", "b"]
    assert "watchdog_timeout_seconds" in caplog.text
