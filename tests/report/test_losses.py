"""Losses that trainers report: by source, across ranks, after a crash, and who is to
blame."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
from itertools import islice
from pathlib import Path

import pytest
import torch

from energize import (
    BatchDataset,
    BlendDataset,
    FilterDataset,
    get_loader,
    get_train_dataset,
)
from energize.data.memory import ListSource
from energize.errors import ConfigError, LoaderError
from energize.loader.waiting import Waiting
from energize.report.blame import blame
from tests.cli.commands import as_json, refused, run
from tests.support import losses_program
from tests.support.launching import launched
from tests.support.prepared import captions

ROOT = Path(__file__).parents[2]


def numbered():
    """Batches of 4 of two sources: 3 of `a`, below 100, and 1 of `b`, from 100 on."""
    parts = {
        "a": ListSource(range(90), name="a"),
        "b": ListSource(range(100, 130), name="b"),
    }
    return BatchDataset(BlendDataset(parts, weights={"a": 3, "b": 1}), 4, list)


def test_the_report_has_the_mean_loss_of_each_source_and_names_what_stands_out(caplog):
    given = {"a": [], "b": []}
    with get_loader(numbered()) as loader:
        for step, batch in enumerate(islice(loader, 40)):
            losses = [number % 7 + 0.5 for number in batch]
            if step == 20:
                losses[batch.index(min(batch))] = 1000.0
            for number, loss in zip(batch, losses, strict=True):
                given["a" if number < 100 else "b"].append(loss)
            losses[0] = math.nan if step == 30 else losses[0]
            loader.record_losses(torch.tensor(losses), step)
            if step == 30:
                given["a" if batch[0] < 100 else "b"].remove(batch[0] % 7 + 0.5)
        loader.record_losses({"b": 3.0})
        given["b"] += [3.0] * sum(number >= 100 for number in batch)
        report = loader.report()
    for name, losses in given.items():
        assert report[name].losses.count == len(losses)
        assert report[name].losses.mean == pytest.approx(sum(losses) / len(losses))
    assert report.total.losses.not_finite == 1
    assert [(each.step, each.source) for each in report.outliers][1:] == [(20, "a")]
    assert math.isnan(report.outliers[0].loss)
    assert "step 30: the loss of " in caplog.text
    assert "loss 1000 of a, sample" in str(report).replace("\n", " ")


def test_losses_that_fit_no_item_are_refused():
    with get_loader(numbered()) as loader:
        with pytest.raises(LoaderError, match="no item"):
            loader.record_losses([1.0])
        next(iter(loader))
        for losses, words in [
            (
                [1.0, 2.0],
                r"step 0\): got 2 losses for an item of 4 samples",
            ),
            (torch.tensor(1.0), "reduction='none'"),
            ("high", "one for each sample"),
            ({"aa": 1.0}, "did you mean 'a'"),
            ({"a": "high"}, "is not a number"),
        ]:
            with pytest.raises(ConfigError, match=words):
                loader.record_losses(losses)


def test_who_waits_is_told_after_half_a_minute_and_each_ten_minutes():
    def told(waited, passed, times):
        waiting = Waiting()
        return [n for n in range(times) if waiting.add(waited, passed, 2)]

    assert told(0.009, 0.1, 20_000) == []
    assert told(0.05, 0.125, 11_000) == [239, 5039, 9839]


def test_a_stream_is_blamed_by_what_was_recorded(tmp_path):
    dataset = BatchDataset(
        FilterDataset(ListSource(range(50), name="a"), bool), 2, list
    )
    with get_loader(dataset, losses=tmp_path / "losses.jsonl") as loader:
        batches = list(islice(loader, 5))
        for _ in range(2):
            loader.record_losses([0.5, math.inf])
        with (tmp_path / "losses.jsonl").open("a") as file:
            file.write('{"step": 4, "ra')  # as a crash leaves it
    [one, other] = blame(dataset, 4, losses=[tmp_path / "losses.jsonl"])
    assert [one.index, other.index] == batches[4]
    assert (one.loss, other.loss) == (0.5, math.inf)
    with pytest.raises(ConfigError, match="known only by reading"):
        blame(dataset, 5)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    captions(home / "web", 80)
    captions(home / "books", 30, start=500)
    (home / "mix.yaml").write_text(
        "__module__: energize\n__class__: MetadatasetV2\nsplits:\n  train:\n    blend:\n"
        "      - {path: web, weight: 3, sample_weight: 0.5}\n      - {path: books, weight: 1}\n"
    )
    return home


def test_a_state_and_a_step_are_enough(home, tmp_path):
    train, losses = (
        get_train_dataset(home / "mix.yaml", batch_size=4),
        tmp_path / "losses.jsonl",
    )
    with get_loader(train, losses=losses) as loader:
        batches = []
        for batch, _ in zip(loader, range(6), strict=False):
            batches.append(batch)
            loader.record_losses([0.5, math.nan, 2.0, 1.0])
        torch.save(loader.state_dict(), home / "own.pt")
    for step in (0, 3, 5):
        page = tmp_path / "page.html"
        options = ("--step", step, "--html", page, "--losses", losses)
        found = as_json("blame", home / "own.pt", *options)
        assert [each["key"] for each in found] == batches[step].__key__
        assert {each["weight"] for each in found} <= {0.5, 1.0}
        shown = page.read_text()
        assert shown.count("<img src=") == shown.count("<article") == len(found)
        assert all(f"{each['key']} {each['shard']}" in shown for each in found)
        assert re.findall("loss ([a-z0-9.]+)<", shown) == ["nan", "2", "1", "0.5"]
    assert "is what would come" in run("blame", home / "own.pt", "--step", 10**9)
    moved = tmp_path / "moved"
    shutil.copytree(home, moved)
    (home / "mix.yaml").rename(home / "gone.yaml")
    try:
        again = as_json(
            "blame", home / "own.pt", "--step", 5, "--mix", moved / "mix.yaml"
        )
        assert [each["key"] for each in again] == batches[5].__key__
        refused(
            [(["--step", 0], 2, "no longer exists. Pass --mix")],
            "blame",
            home / "own.pt",
        )
    finally:
        (home / "gone.yaml").rename(home / "mix.yaml")
    text = (moved / "mix.yaml").read_text()
    (moved / "mix.yaml").write_text(text.replace("weight: 3", "weight: 4"))
    rows = [
        (
            ["--step", 0, "--mix", moved / "mix.yaml"],
            1,
            "does not fit",
            "the mix has changed",
        ),
        (["--step", 0, "--rank", 1], 2, "rank 1 is missing"),
        (["--step", 0, "--losses", "none.jsonl"], 2, "none.jsonl is missing"),
    ]
    refused(rows, "blame", home / "own.pt")


def test_a_file_of_rows_is_named_once(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")  # no path is wrapped
    rows, state = tmp_path / "rows.jsonl", tmp_path / "state.pt"
    rows.write_text("".join(json.dumps({"text": f"row {n}"}) + "\n" for n in range(4)))
    (tmp_path / "mix.yaml").write_text(
        "__module__: energize\n__class__: MetadatasetV2\nsplits:\n  train: {path: rows.jsonl}\n"
    )
    with get_loader(get_train_dataset(tmp_path / "mix.yaml", batch_size=1)) as loader:
        next(iter(loader))
        torch.save(loader.state_dict(), state)
    assert (
        run("blame", state, "--step", 0).count("rows.jsonl") == 2
    )  # as source, and where stored


@pytest.mark.jobs
def test_losses_of_two_ranks_that_are_killed_and_go_on_as_one(home):
    for ranks, how in ((2, "begins"), (1, "resumed")):
        done = launched(
            "tests.support.losses_program", home, how, ranks=ranks, fails=True
        )
        assert done.codes == [-signal.SIGKILL] * ranks, done
    saved, steps = losses_program.SAVED_AT, losses_program.STEPS
    parts = {(0, 0): 0, (0, 1): 0, (1, 0): saved}
    keys = {
        (resumed, rank): [
            json.loads(x) for x in (home / f"keys-{resumed}-{rank}.jsonl").open()
        ]
        for resumed, rank in parts
    }
    for step in range(steps):
        found = as_json(
            "blame",
            home / "state.pt",
            "--step",
            step,
            "--losses",
            home / "losses.jsonl",
        )
        whose = [(1, 0)] if step >= saved else [(0, 0), (0, 1)]
        expected = [key for who in whose for key in keys[who][step - parts[who]]]
        assert [each["key"] for each in found] == expected
        for each in found:
            same = each["loss"] == float(each["key"])
            assert same or (each["key"] == "000017" and each["loss"] == "nan")
    for resumed, whose in ((0, [(0, 0), (0, 1)]), (1, [(1, 0)])):
        numbers = [float(key) for who in whose for batch in keys[who] for key in batch]
        kept = [number for number in numbers if number != 17]
        name, count, loss, others = json.loads(
            (home / f"report-{resumed}.json").read_text()
        )[0]
        assert (name, count, others) == ("all", len(kept), len(numbers) - len(kept))
        assert loss == pytest.approx(sum(kept) / len(kept))


@pytest.mark.jobs
def test_what_limits_a_run_is_measured(home):
    options = (
        "profile",
        home / "mix.yaml",
        "--batch-size",
        4,
        "--seconds",
        2,
        "--workers",
        "0,1",
    )
    encoder = ("--encoder", f"{ROOT}/tests/support/slow_encoder.py:Slow")
    found = as_json(*options, *encoder, "--step-time", "1ms")
    assert found["limit"] == "encode"
    assert found["stages"]["encode"] > 0.6
    assert found["consumes"] == 4000
    assert "slow_encoder.py" in next(iter(found["lines"]))
    assert "make the encoder cheaper" in " ".join(found["verdict"])
    assert as_json(*options, "--consume", "1/s")["num_workers"] == 0
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:  # an encoder that computes is no faster on more workers than cores
        assert as_json(*options[:-1], "0,1,2", *encoder)["num_workers"] == 1
    finally:
        os.sched_setaffinity(0, cores)
    rows = [
        (["--consume", "fast"], 2, "expected 120/s", "'fast'"),
        (["--step-time", "3"], 2, "250ms"),
        (["--workers", "1,-2"], 2, "0,1,2,4"),
    ]
    refused(rows, "profile", home / "mix.yaml")
