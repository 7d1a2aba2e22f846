"""`energize report`, `state` and `checkpoint` on states of real runs."""

from __future__ import annotations

import json
import os
import pickle
import resource
import zipfile
from collections import Counter
from itertools import islice

import pytest
import torch
from typer.testing import CliRunner

from energize import (
    CaptioningSample,
    DefaultTaskEncoder,
    FilterDataset,
    ImageClassificationSample,
    WorkerConfig,
    get_loader,
    get_train_dataset,
)
from energize.cli.main import app
from energize.cli.state import read_states
from energize.errors import StateError
from tests.cli.commands import as_json, refused, run
from tests.support.metadatasets import written
from tests.support.peers import run_energon
from tests.support.prepared import captions
from tests.support.states import evens, mixed, saved

BATCH = 4


# What was delivered


class Folders(DefaultTaskEncoder):
    """A batch is the folders of its samples."""

    def batch(self, samples):
        return [folder_of(getattr(sample, "caption", "")) for sample in samples]


def folder_of(caption):
    number = int(caption.removeprefix("caption ") or -1)
    return "classes" if number < 0 else "books" if number >= 500 else "web"


def delivered(mix, split, steps):
    """The state after so many steps of two ranks, and what was delivered to both, by
    folder."""
    config, seen = WorkerConfig(rank=0, world_size=1, seed_offset=3), Counter()
    encoder = dict.fromkeys((CaptioningSample, ImageClassificationSample), Folders())
    options = {"split_part": split, "worker_config": config, "batch_size": BATCH}
    with get_loader(get_train_dataset(mix, task_encoder=encoder, **options)) as loader:
        for batch in islice(loader, 2 * steps):
            seen.update(batch)
        return loader.state_dict(), seen


@pytest.fixture(scope="module")
def mix(home, tmp_path_factory):
    """The mix of `home`, of folders whose names differ."""
    folder = tmp_path_factory.mktemp("named")
    for name, target in (
        ("web", "web/captions"),
        ("books", "books/captions"),
        ("classes",) * 2,
    ):
        (folder / name).symlink_to(home / target)
    text = (home / "mix.yaml").read_text().replace("/captions", "")
    (folder / "mix.yaml").write_text(text)
    return folder / "mix.yaml"


@pytest.mark.parametrize("split", ["train", "staged", "types"])
def test_a_state_with_its_mix_tells_what_was_delivered(mix, tmp_path, split):
    state, seen = delivered(mix, split, 7)
    file, page = tmp_path / "state.pt", tmp_path / "page.html"
    torch.save({"model": torch.zeros(3), "data": state}, file)
    report = as_json("report", file, mix, "--split", split, "--seed", 3, "--plot", page)
    samples = Counter()
    for row in report["rows"]:
        if row["is_source"]:
            samples[row["path"][-1].partition(" ")[0]] += row["samples"]
    assert +samples == seen
    assert report["title"] == "After 14 items to all ranks"
    assert f"state.pt of {mix}, split {split}" in page.read_text()
    assert "over the steps, delivered" in page.read_text()
    alone = run("report", file)
    assert "a state alone has" in alone
    assert "%" not in alone  # no number is made up
    assert all(name in alone for name in samples)


def test_reports_of_what_does_not_fit(mix, tmp_path):
    file = tmp_path / "state.json"
    file.write_text(json.dumps(delivered(mix, "types", 9)[0]))
    (tmp_path / "empty.json").write_text(json.dumps(delivered(mix, "types", 0)[0]))
    right = ("--seed", 3, "--split", "types")
    plot = ("--plot", tmp_path / "a.html")
    refused(
        [
            (
                [file, mix, "--seed", 4, "--split", "types"],
                1,
                "does not fit",
                "the options of the run",
            ),
            ([file, mix, *right, "--batch-size", 5], 1, "batch_size was 4, is 5"),
            ([tmp_path / "none.pt", mix], 2, "does not exist"),
            ([file, *plot], 2, "Pass the mix too"),
            (
                [tmp_path / "empty.json", mix, *right, *plot],
                2,
                "has delivered nothing",
            ),
        ],
        "report",
    )


# What states hold


@pytest.fixture(scope="module")
def mixes(tmp_path_factory):
    """A mix of cats and dogs, an edited one; and states after 10 and 14 steps."""
    mixes = tmp_path_factory.mktemp("mixes")
    for number, name in enumerate(("cats", "dogs", "birds")):
        captions(mixes / name, 24, shards=2, start=100 * number)
    written(mixes / "mix.yaml", blend("cats", "dogs"))
    written(mixes / "edited.yaml", blend("birds", "dogs", weights=(1, 3)))
    with loader_of(mixes / "mix.yaml") as loader:
        list(islice(loader, 6))
        loader.set_weights({"cats": 3, "dogs": 1})
        list(islice(loader, 4))
        (mixes / "state.json").write_text(json.dumps({"data": loader.state_dict()}))
        list(islice(loader, 4))
        torch.save(loader.state_dict(), mixes / "later.pt")
    return mixes


def blend(*names, weights=(1, 1)):
    parts = zip(names, weights, strict=True)
    return {"blend": [{"path": name, "weight": weight} for name, weight in parts]}


def loader_of(file, rank=0, ranks=1):
    config = WorkerConfig(rank=rank, world_size=ranks)
    return get_loader(get_train_dataset(file, batch_size=BATCH, worker_config=config))


def captions_of(batches):
    return [text for batch in batches for text in batch.caption]


def test_show(mixes, tmp_path):
    shown = run("state", "show", mixes / "state.json")
    assert "position: 10 items delivered" in shown
    assert "weights from slot 24 on: cats 3, dogs 1" in shown
    rows = [line.split() for line in shown.splitlines()]
    assert ["cats", "train", "12", "0", "24"] in rows
    assert ["dogs", "train", "12", "0", "16"] in rows
    state = torch.load(mixes / "later.pt", weights_only=True)
    for rank in range(3):
        torch.save(state, tmp_path / f"rank{rank}.pt")
    shown = run("checkpoint", "info", *sorted(tmp_path.iterdir()))
    assert shown.count("version: 5, fingerprint: ") == 1
    assert "rank0.pt and 2 more, all of them the same" in shown
    (tmp_path / "rank1.pt").write_bytes((mixes / "state.json").read_bytes())
    refused([([tmp_path], 1, "are of different places")], "report")
    samples = get_train_dataset(mixes / "cats", batch_size=None)
    with get_loader(FilterDataset(samples, bool), lanes=12) as loader:
        list(islice(loader, 20))
        (tmp_path / "rank2.pt").write_text(json.dumps(loader.state_dict()))
    shown = run("state", "show", tmp_path)
    assert "position: 20 items of epoch" in shown
    assert "in 12 lanes, delivered" in shown


def test_diff(mixes):
    state = ("state", "diff", mixes / "state.json")
    assert "No differences" in run(*state, mixes / "mix.yaml")
    refused(
        [
            ([mixes / "edited.yaml"], 1, "'birds' is new", "'cats' is gone"),
            ([mixes / "mix.yaml", "--batch-size", 8], 1, "batch_size was 4, is 8"),
            ([mixes / "none.yaml"], 2, "none.yaml"),
        ],
        *state,
    )


def test_remap(mixes, tmp_path):
    new = tmp_path / "new" / "state.json"
    shown = run(
        "state", "remap", mixes / "state.json", mixes / "edited.yaml", "-o", new
    )
    for line in ("dogs: goes on after 16 samples", "birds: added", "cats: dropped after 24",
                 "dogs: share 0.25 -> 0.75", "1 change of weights", f"Wrote {new}"):  # fmt: skip
        assert line in shown
    state = json.loads(new.read_text())["data"]
    with loader_of(mixes / "edited.yaml") as loader:
        loader.load_state_dict(state)
        read = captions_of(islice(loader, 8))
    dogs = [text for text in read if 100 <= int(text.split()[1]) < 200]
    with loader_of(mixes / "dogs") as alone:
        assert dogs == captions_of(islice(alone, 20))[16:][: len(dogs)]
    same = tmp_path / "same.pt"
    later = ("state", "remap", mixes / "later.pt")
    assert "It fits as it is" in run(*later, mixes / "mix.yaml", "--output", same)
    assert torch.load(same, weights_only=True) == torch.load(
        mixes / "later.pt", weights_only=True
    )
    refused(
        [([mixes / "birds", "-o", same], 1, "no source of the saved state")], *later
    )
    edited = mixes / "edited.yaml"
    refused(
        [(["-o", same], 2, "is the state itself"), ([], 2, "--output")],
        *later[:2],
        same,
        edited,
    )


# Files that are none


class Hostile:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


def test_nothing_is_run_by_reading_a_file(tmp_path):
    torch.save({"dataloader_state_dict": Hostile(tmp_path / "ran")}, tmp_path / "a.pt")
    (tmp_path / "b.pt").write_bytes(pickle.dumps(Hostile(tmp_path / "ran")))
    for name in ("a.pt", "b.pt"):
        assert "weights_only" not in run("checkpoint", "info", tmp_path / name, code=1)
    assert not (tmp_path / "ran").exists()


DEEP = '{"a":' * 50_000 + "1" + "}" * 50_000


def _json(content):
    return json.dumps(content).encode()


FILES = {
    "nothing": lambda state: b"",
    "a brace": lambda state: b"{",
    "cut off": lambda state: _json(state)[:-9],
    "deep": lambda state: DEEP.encode(),
    "deep beside it": lambda state: (
        _json(state)[:-1] + b',"more":' + DEEP.encode() + b"}"
    ),
    "digits": lambda state: b'{"version": ' + b"9" * 10**6 + b"}",
    "another": lambda state: b'{"model": [1, 2]}',
    "a pickle": lambda state: pickle.dumps({"state": range(3)}),
    "an old pickle": lambda state: pickle.dumps(state, protocol=0)[:-5],
    "a zip": lambda state: b"PK\x03\x04" + b"\x00" * 99,
}


def test_a_file_that_is_none(home, tmp_path):
    state = saved(mixed((evens(), 1), (evens(20, 100), 2)), 9, lanes=2)
    file = tmp_path / "step.json"
    for what, content in FILES.items():
        file.write_bytes(content(state))
        for command in (["state", "show", file], ["report", file]):
            done = CliRunner().invoke(app, [str(each) for each in command])
            assert isinstance(done.exception, SystemExit), (
                what,
                command,
                done.exception,
            )
            assert done.exit_code in (1, 2), (what, done.output)
            assert "Error: " in done.stderr
            assert "step.json" in done.stderr, what
    refused([([tmp_path / "none.pt"], 2, "does not exist")], "state", "show")


def test_what_is_no_regular_file(tmp_path):
    os.mkfifo(tmp_path / "pipe.pt")
    (tmp_path / "folder.pt").mkdir()
    with pytest.raises(StateError, match=r"pipe\.pt: cannot be read: .*named pipe"):
        read_states([tmp_path / "pipe.pt"])
    with pytest.raises(StateError, match=r"folder\.pt has no files that end in"):
        read_states([tmp_path / "folder.pt"])


def test_nothing_is_unpacked_that_is_too_large(tmp_path):
    """A zip of a few kilobytes that would be gigabytes, and a text of a hundred
    megabytes."""
    with zipfile.ZipFile(tmp_path / "bomb.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb/data.pkl", b"\x00" * 2**26)
    with (tmp_path / "large.json").open("wb") as out:
        out.write(b'{"version": 4, "dataset": "')
        out.truncate(2**28)
    torch.save({"cursor": "9" * 2**26}, tmp_path / "texts.pt")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for name, words in (
        ("bomb.pt", "is compressed, and is not a file of torch.save"),
        ("large.json", "core.limits.JSON_BYTES"),
        ("texts.pt", "core.limits.JSON_BYTES"),
    ):
        with pytest.raises(StateError, match=words):
            read_states([tmp_path / name])
    assert (
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 * 1024
    )  # KiB


@pytest.mark.energon
def test_a_state_of_energon_is_named_as_one_and_not_unpickled(home, tmp_path):
    run_energon(
        home / "web/captions",
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
