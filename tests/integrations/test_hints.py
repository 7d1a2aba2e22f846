"""One log line names an adapter that is missing."""

from __future__ import annotations

import logging
import sys
from types import ModuleType

import pytest

from energize import FilterDataset, get_loader
from energize.core import ignored
from tests.support.datasets import is_even, numbers, shuffled

STREAM = FilterDataset(shuffled(20), is_even)

CALLERS = {
    "Lightning fetches ahead": (
        "pytorch_lightning/loops/fit_loop.py",
        "advance",
        get_loader(STREAM),
        "LightningLoaderState",
    ),
    "the other package of Lightning": (
        "lightning/pytorch/loops/fit_loop.py",
        "advance",
        get_loader(STREAM),
        "LightningLoaderState",
    ),
    "Lightning evaluates": (
        "pytorch_lightning/loops/evaluation_loop.py",
        "advance",
        get_loader(shuffled(4)),
        "role='eval'",
    ),
    "the Trainer evaluates": (
        "transformers/trainer.py",
        "evaluation_loop",
        get_loader(shuffled(4), role="eval"),
        "LoaderTrainer",
    ),
    "Composer resumes": (
        "composer/trainer/trainer.py",
        "_spin_dataloaders_to_cur_epoch",
        get_loader(shuffled(4)),
        "ComposerLoaderState",
    ),
}


def read_by(file: str, function: str, loader) -> None:
    """Read an item in a function of a file with this name."""
    namespace: dict = {}
    source = f"def {function}(loader):\n    next(iter(loader))\n"
    exec(compile(source, f"/site-packages/{file}", "exec"), namespace)
    namespace[function](loader)


@pytest.fixture
def lines(caplog, monkeypatch):
    monkeypatch.setitem(sys.modules, "lightning", ModuleType("lightning"))
    caplog.set_level(logging.INFO, "energize")
    return lambda: [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("name", CALLERS)
def test_a_framework_without_its_adapter_is_named_once(name, lines):
    file, function, loader, adapter = CALLERS[name]
    read_by(file, function, loader)
    read_by(file, function, loader)
    assert [adapter in line for line in lines()] == [True]


def test_a_loader_that_needs_no_adapter_is_not_mentioned(lines):
    loader = get_loader(STREAM)
    loader.require_confirmation()
    read_by("pytorch_lightning/loops/fit_loop.py", "advance", loader)
    read_by("pytorch_lightning/loops/fit_loop.py", "advance", get_loader(shuffled(4)))
    evaluated = get_loader(shuffled(4), role="eval")
    read_by("pytorch_lightning/loops/evaluation_loop.py", "advance", evaluated)
    read_by("energize/integrations/transformers.py", "evaluation_loop", evaluated)
    next(iter(get_loader(shuffled(4))))
    assert lines() == []


def test_an_evaluation_under_accelerate_is_mentioned(lines, monkeypatch):
    state = ModuleType("accelerate.state")
    state.is_initialized = lambda: True
    monkeypatch.setitem(sys.modules, "accelerate.state", state)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    next(iter(get_loader(shuffled(4))))
    next(iter(get_loader(shuffled(4), role="eval")))
    assert ["gather_real" in line for line in lines()] == [True]


def test_a_dataset_that_each_of_several_ranks_reads_whole_is_named_once(
    lines, monkeypatch
):
    monkeypatch.setattr(ignored, "_logged", set())
    assert list(numbers(3)) == [0, 1, 2]
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert list(numbers(3)) == list(numbers(3)) == [0, 1, 2]
    assert ["all of it on each of 2 ranks" in line for line in lines()] == [True]
