"""`energize state` on states of real runs over folders and metadatasets that are edited."""

from __future__ import annotations

import json
from itertools import islice

import pytest
import torch

from energize import WorkerConfig, get_loader, get_train_dataset
from tests.cli.commands import program, run
from tests.support.metadatasets import written
from tests.support.prepared import captions


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Three folders and a mix of two, which is edited later."""
    home = tmp_path_factory.mktemp("mixes")
    for number, name in enumerate(("cats", "dogs", "birds")):
        captions(home / name, 24, shards=2, start=100 * number)
    written(home / "mix.yaml", blend("cats", "dogs"))
    written(home / "edited.yaml", blend("birds", "dogs", weights=(1, 3)))
    return home


def blend(*names, weights=(1, 1)):
    parts = zip(names, weights, strict=True)
    return {"blend": [{"path": name, "weight": weight} for name, weight in parts]}


def loader_of(file, rank=0, ranks=1):
    config = WorkerConfig(rank=rank, world_size=ranks)
    return get_loader(get_train_dataset(file, batch_size=4, worker_config=config))


def keys(batches):
    return [key for batch in batches for key in batch.__key__]


def captions_of(batches):
    return [text for batch in batches for text in batch.caption]


@pytest.fixture(scope="module")
def saved(home):
    """A state after ten steps, with a change of weights, and what was read."""
    loader = loader_of(home / "mix.yaml")
    read = list(islice(loader, 6))
    loader.set_weights({"cats": 3, "dogs": 1})
    read += list(islice(loader, 4))
    (home / "state.json").write_text(json.dumps({"data": loader.state_dict()}))
    read += list(islice(loader, 4))
    torch.save(loader.state_dict(), home / "later.pt")
    return read


def test_show(home, saved):
    shown, _ = program("state", "show", home / "state.json")
    assert "position: 10 items delivered" in shown
    rows = [line.split() for line in shown.splitlines()]
    assert ["cats", "train", "12", "0", "24"] in rows
    assert ["dogs", "train", "12", "0", "16"] in rows
    assert "weights from slot 24 on: cats 3, dogs 1" in shown


def test_diff_of_states(home, saved):
    assert "No differences" in run("state", "diff", home / "state.json", home / "state.json")
    shown = run("state", "diff", home / "state.json", home / "later.pt", code=1).splitlines()
    assert shown == [
        "position was 10, is 14 (+4)",
        "cats: 24 samples taken, then 36 (+12)",
        "dogs: 16 samples taken, then 20 (+4)",
    ]
    fresh = loader_of(home / "edited.yaml").state_dict()
    (home / "fresh.json").write_text(json.dumps(fresh))
    shown = run("state", "diff", home / "state.json", home / "fresh.json", code=1)
    for line in ("'birds' is new", "'cats' is gone", "position was 10, is 0 (-10)",
                 "only the first: weights from slot 24 on"):  # fmt: skip
        assert line in shown


def test_diff_with_a_mix(home, saved):
    assert "No differences" in run("state", "diff", home / "state.json", home / "mix.yaml")
    shown = run("state", "diff", home / "state.json", home / "edited.yaml", code=1)
    assert "'birds' is new" in shown
    assert "'cats' is gone" in shown
    shown = run("state", "diff", home / "state.json", home / "mix.yaml", "--batch-size", 8, code=1)
    assert "batch_size was 4, is 8" in shown


def test_remap(home, saved, tmp_path):
    new = tmp_path / "new" / "state.json"
    shown = run("state", "remap", home / "state.json", home / "edited.yaml", "-o", new)
    for line in ("dogs: goes on after 16 samples", "birds: added", "cats: dropped after 24",
                 "dogs: share 0.25 -> 0.75", "1 change of weights", f"Wrote {new}"):  # fmt: skip
        assert line in shown
    state = json.loads(new.read_text())["data"]
    with loader_of(home / "edited.yaml") as loader:
        loader.load_state_dict(state)
        read = list(islice(loader, 8))
    dogs = [text for text in captions_of(read) if 100 <= int(text.split()[1]) < 200]
    with loader_of(home / "dogs") as alone:
        expected = captions_of(islice(alone, 20))[16:]
    assert dogs == expected[: len(dogs)]
    assert len(dogs) == 24
    whole = keys(read)
    for rank in range(2):
        with loader_of(home / "edited.yaml", rank, 2) as loader:
            loader.load_state_dict(state)
            mine = keys(islice(loader, 4))
        assert mine == [k for at in range(rank, 8, 2) for k in whole[4 * at : 4 * at + 4]]


def test_remap_of_what_fits_and_of_what_does_not(home, saved, tmp_path):
    same = tmp_path / "same.pt"
    shown = run("state", "remap", home / "later.pt", home / "mix.yaml", "--output", same)
    assert "It fits as it is" in shown
    assert torch.load(same, weights_only=True) == torch.load(home / "later.pt", weights_only=True)
    shown = run("state", "remap", home / "later.pt", home / "birds", "-o", same, code=1)
    assert "no source of the saved state is in this mix" in shown
    shown = run("state", "remap", same, home / "edited.yaml", "-o", same, code=2)
    assert "is the state given" in shown
    shown = run("state", "diff", home / "state.json", home / "none.yaml", code=2)
    assert "none.yaml" in shown
    assert "--output" in run("state", "remap", same, home / "edited.yaml", code=2)
