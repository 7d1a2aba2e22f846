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
from tests.support.energon import run_energon
from tests.support.prepared import captions
from tests.support.states import resealed
from tests.support.terminal import Terminal


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


@pytest.mark.parametrize("kind", ["indexed", "stream"])
def test_every_rank_of_a_new_world_goes_on_from_what_was_written(folder, tmp_path, kind):
    state, after = saved(folder, kind)
    for rank in range(2):
        torch.save({"dataloader_state_dict": state}, tmp_path / f"loader_rank{rank}.pt")
    given = sorted(tmp_path.glob("*.pt"))
    shown = run("checkpoint", "redist", *given, tmp_path / "out", "--new-world-size", 3)
    assert "Wrote 3 files, from loader_rank0.pt to loader_rank2.pt" in shown
    assert "It was not needed" in shown
    streams = []
    for rank in range(3):
        loader = loader_of(folder, kind, rank, 3)
        content = torch.load(tmp_path / "out" / f"loader_rank{rank}.pt", weights_only=True)
        loader.load_state_dict(content["dataloader_state_dict"])
        streams.append(keys_of(islice(loader, 4)))
    assert [key for step in zip(*streams, strict=True) for key in step] == after


def test_formats_and_names(folder, tmp_path):
    state, _ = saved(folder, "indexed")
    torch.save([state, state], tmp_path / "global.pt")
    run("checkpoint", "redist", tmp_path / "global.pt", tmp_path / "out", "--new-world-size", 5)
    content = torch.load(tmp_path / "out/global.pt", weights_only=True)
    assert content == [state] * 5
    (tmp_path / "step100.json").write_text(json.dumps({"data": {"train": state}}))
    run("checkpoint", "redist", tmp_path / "step100.json", tmp_path / "out", stdin="4\n")
    assert json.loads((tmp_path / "out/step100.json").read_text()) == {"data": {"train": state}}
    (tmp_path / "step7.state").write_text(json.dumps(state))
    run("checkpoint", "redist", tmp_path / "step7.state", tmp_path / "out", stdin="4\n")
    assert json.loads((tmp_path / "out/step7.state").read_text()) == state
    assert sorted(each.name for each in (tmp_path / "out").iterdir()) == [
        "global.pt",
        "step100.json",
        "step7.state",
    ]


def test_the_states_given_are_not_written_over_by_accident(folder, tmp_path):
    state, _ = saved(folder, "indexed")
    file = tmp_path / "rank0.json"
    file.write_text(json.dumps(state))
    options = ("checkpoint", "redist", file, tmp_path, "--new-world-size", 2)
    assert "rank0.json is one of the states given" in run(*options, code=2)
    assert not (tmp_path / "rank1.json").exists()
    other = tmp_path / "other"
    for world_size in (3, 2):
        run("checkpoint", "redist", file, other, "--new-world-size", world_size)
    assert len(list(other.iterdir())) == 3
    run(*options, "--force-overwrite")
    assert json.loads((tmp_path / "rank1.json").read_text()) == state
    assert "is a file" in run("checkpoint", "redist", file, file, "--new-world-size", 2, code=2)


@pytest.mark.jobs
def test_wrong_world_sizes(folder, tmp_path):
    state, _ = saved(folder, "stream")
    file = tmp_path / "state.json"
    file.write_text(json.dumps(state))
    options = ("checkpoint", "redist", file, tmp_path / "out")
    said = run(*options, "--new-world-size", 5, code=2)
    assert "world sizes that can have it: 1, 2, 3, 4, 6, 12" in said
    assert "expected 1 or more" in run(*options, "--new-world-size", 0, code=2)
    assert "--new-world-size" in run(*options, code=2)
    assert not (tmp_path / "out").exists()
    terminal = Terminal(*options)
    assert terminal.answer([("New world size", "6")]) == 0


def test_states_of_several_steps_are_not_mixed(folder, tmp_path):
    for rank, steps in enumerate((7, 8)):
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(saved(folder, "indexed", steps)[0]))
    options = ("redist", tmp_path / "rank0.json", tmp_path / "rank1.json", tmp_path / "out")
    said = run("checkpoint", *options, "--new-world-size", 2, code=1)
    assert "are of different places" in said
    shown = run("checkpoint", "info", tmp_path)
    assert "7 items delivered" in shown
    assert "8 items delivered" in shown
    (tmp_path / "rank1.json").write_text(json.dumps(saved(folder, "stream")[0]))
    said = run("checkpoint", *options, "--new-world-size", 2, code=1)
    assert "are of different datasets" in said


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
    for command in (("info",), ("redist", tmp_path / "out", "--new-world-size", 2)):
        arguments = (command[0], tmp_path / "theirs.pt", *command[1:])
        said = run("checkpoint", *arguments, code=1)
        assert "is a state of Megatron-Energon itself" in said
        assert "Finish the epoch with Megatron-Energon, or start the data anew" in said
