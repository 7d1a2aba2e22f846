"""`energize checkpoint` on states of real runs, of energize and of Megatron-Energon."""

import json
import os
import pickle
from itertools import islice

import pytest
import torch

from energize import (
    FilterDataset,
    WorkerConfig,
    get_loader,
    get_train_dataset,
)
from tests.cli.commands import run
from tests.support.peers import run_energon
from tests.support.prepared import captions
from tests.support.states import resealed


def is_even(sample):
    return int(sample.__key__) % 2 == 0


def loader_of(folder, kind, rank=0, ranks=1):
    config = WorkerConfig(rank=rank, world_size=ranks)
    if kind == "indexed":
        return get_loader(get_train_dataset(folder, batch_size=4, worker_config=config))
    samples = get_train_dataset(folder, batch_size=None, worker_config=config)
    return get_loader(FilterDataset(samples, is_even), lanes=12)


def keys_of(items):
    return [item.__key__ for item in items]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return captions(tmp_path_factory.mktemp("data") / "web", 80)


def saved(folder, kind, steps=7):
    """A state after some steps, and the keys of what comes then."""
    loader = loader_of(folder, kind)
    items = iter(loader)
    for _ in islice(items, steps):
        pass
    state = loader.state_dict()
    return state, keys_of(islice(items, 12))


def test_states_of_several_steps_are_told_apart(folder, tmp_path):
    for rank, steps in enumerate((7, 8)):
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(saved(folder, "indexed", steps)[0]))
    assert "are of different places" in run("report", tmp_path, code=1)
    shown = run("checkpoint", "info", tmp_path)
    assert "7 items delivered" in shown
    assert "8 items delivered" in shown
    (tmp_path / "rank1.json").write_text(json.dumps(saved(folder, "stream")[0]))
    assert "are of different datasets" in run("report", tmp_path, code=1)
    assert "needs none" in run("checkpoint", "redist", tmp_path, "--new-world-size", 2, code=2)


def test_info_says_where_a_run_stood(folder, tmp_path):
    for rank in range(3):
        torch.save(saved(folder, "indexed")[0], tmp_path / f"rank{rank}.pt")
    shown = run("checkpoint", "info", *sorted(tmp_path.iterdir()))
    assert shown.count("version: 5, fingerprint: ") == 1
    assert "rank0.pt and 2 more, all of them the same" in shown
    assert "position: 7 items delivered, those of all ranks" in shown
    assert "dataset: BatchDataset" in shown
    rows = [line.split() for line in shown.splitlines()]
    assert ["web", "train", "60", "0", "28"] in rows


def test_info_of_a_stream_has_a_row_for_each_lane(folder, tmp_path):
    (tmp_path / "state.json").write_text(json.dumps(saved(folder, "stream", 20)[0]))
    shown = run("checkpoint", "info", tmp_path / "state.json")
    assert "position: 20 items of epoch 0 delivered" in shown
    assert "12 lanes" in shown
    rows = [line.split()[:2] for line in shown.splitlines() if '{"epoch"' in line]
    assert rows == [[str(lane), "2" if lane < 8 else "1"] for lane in range(12)]
    (tmp_path / "fresh.json").write_text(json.dumps(loader_of(folder, "stream").state_dict()))
    assert "before its first item" in run("checkpoint", "info", tmp_path / "fresh.json")


class Hostile:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


def test_nothing_is_run_by_reading_a_file(tmp_path):
    torch.save({"dataloader_state_dict": Hostile(tmp_path / "ran")}, tmp_path / "a.pt")
    (tmp_path / "b.pt").write_bytes(pickle.dumps(Hostile(tmp_path / "ran")))
    for name in "ab":
        said = run("checkpoint", "info", tmp_path / f"{name}.pt", code=1)
        assert "Error: " in said
        assert "weights_only" not in said
    assert not (tmp_path / "ran").exists()


def test_files_that_are_no_states(folder, tmp_path):
    state, _ = saved(folder, "indexed")
    torch.save(state, tmp_path / "whole.pt")
    data = (tmp_path / "whole.pt").read_bytes()
    for name, content, words in (
        ("cut.pt", data[: len(data) // 2], "neither whole JSON nor a whole file"),
        ("cut.json", json.dumps(state)[:-20].encode(), "neither whole JSON"),
        ("empty.pt", b"", "neither whole JSON"),
        ("other.json", b'{"model": [1, 2]}', "holds no state of a loader"),
        ("old.json", json.dumps(state | {"version": 2}).encode(), "this energize reads version 5"),
        ("changed.json", json.dumps(state | {"cursor": "x"}).encode(), "changed or damaged"),
        ("bad.json", json.dumps(resealed(state, cursor="x")).encode(), "'cursor' cannot be read"),
    ):
        (tmp_path / name).write_bytes(content)
        assert words in run("checkpoint", "info", tmp_path / name, code=1)
    (tmp_path / "empty").mkdir()
    assert "has no files" in run("checkpoint", "info", tmp_path / "empty", code=1)
    assert "does not exist" in run("checkpoint", "info", tmp_path / "none.pt", code=2)


@pytest.mark.energon
def test_a_state_of_energon_is_named_as_one_and_not_unpickled(folder, tmp_path):
    run_energon(
        folder,
        tmp_path / "theirs.pt",
        program="import sys, torch\nfrom megatron.energon import *\n"
        "config = WorkerConfig(rank=0, world_size=1, num_workers=0)\n"
        "loader = get_savable_loader(get_train_dataset(sys.argv[1], batch_size=2, "
        "worker_config=config, shuffle_buffer_size=None, max_samples_per_sequence=None))\n"
        "next(iter(loader))\n"
        "torch.save(loader.save_state_rank(), sys.argv[2])",
    )
    said = run("checkpoint", "info", tmp_path / "theirs.pt", code=1)
    assert "is a state of Megatron-Energon itself" in said
    assert "Finish the epoch with Megatron-Energon, or start the data anew" in said
