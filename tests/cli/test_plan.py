"""`energize plan` and `energize simulate` on prepared folders, against what a loader delivers."""

import json
import subprocess
import sys
from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from energize import WorkerConfig, get_loader, get_staged_train_dataset, get_train_dataset
from energize.cli.main import app
from tests.support.prepared import captions, classes
from tests.support.terminal import Terminal

MIX = """\
__module__: energize
__class__: MetadatasetV2
splits:
  train:
    blend:
      - {path: web/captions, weight: 0.6}
      - weight: 0.4
        blend:
          - {path: books/captions, weight: 3}
          - {path: web/captions, weight: 1, subflavors: {again: true}}
          - {path: web/captions, weight: 0, split_part: val}
  ends:
    stop: all_exhausted
    blend:
      - {path: web/captions, split_part: train, weight: 1}
      - {path: books/captions, split_part: train, weight: 1, max_epochs: 2}
  quotas:
    blend:
      - {path: web/captions, split_part: train, repeat: 1.5}
      - {path: books/captions, split_part: train}
  changing:
    blend:
      - {path: web/captions, split_part: train, weight: {points: {0: 0.9, 200: 0.1}}}
      - {path: books/captions, split_part: train, weight: {points: {0: 0.1, 200: 0.9}}}
  nearly_equal:
    blend:
      - {path: web/captions, split_part: train, weight: 1}
      - {path: web/captions, split_part: train, dataset_config: dataset.yaml, weight: 2}
      - {path: books/captions, split_part: train, weight: 1}
  composed:
    composition: {method: stratified, global_batch_size: 8, drop_last: true}
    blend:
      - {path: web/captions, split_part: train, proportion: 3}
      - {path: books/captions, split_part: train, proportion: 1}
  two_schemes:
    blend:
      - {path: web/captions, split_part: train, weight: 1}
      - {path: web/captions, split_part: train, dataset_config: dataset.yaml, weight: 2}
      - weight: 3
        scheme: exact
        blend:
          - {path: web/captions, split_part: train, weight: 1}
          - {path: books/captions, split_part: train, weight: 3}
"""
SPLITS = ("train", "ends", "quotas", "changing", "nearly_equal", "two_schemes")


@pytest.fixture(scope="module")
def mix(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mix")
    captions(folder / "web/captions", 80)
    captions(folder / "books/captions", 30, shards=2, start=500)
    classes(folder / "classes", 40)
    (folder / "mix.yaml").write_text(MIX)
    return folder / "mix.yaml"


def run(*arguments, code=0):
    """What is printed; errors when it fails."""
    done = CliRunner().invoke(app, [str(each) for each in arguments])
    assert done.exit_code == code, done.output
    assert "Traceback" not in done.output
    return done.stdout if code == 0 else done.stderr


def planned(*arguments):
    return [json.loads(line) for line in run("plan", *arguments, "--json").splitlines()]


def keys_of(batches):
    return [[sample["key"] for sample in batch["samples"]] for batch in batches]


def loaded(path, rank, ranks, count, split="train", state=None):
    """The keys of the batches that a rank gets."""
    config = WorkerConfig(rank=rank, world_size=ranks, seed_offset=3)
    dataset = get_train_dataset(path, batch_size=6, split_part=split, worker_config=config)
    loader = get_loader(dataset)
    if state is not None:
        loader.load_state_dict({**loader.state_dict(), **state})
    return [batch.__key__ for batch in islice(loader, count)]


@pytest.mark.parametrize("split", SPLITS)
def test_a_plan_is_what_the_loaders_of_all_ranks_deliver(mix, split):
    options = ("--batch-size", 6, "--seed", 3, "--split", split, "--keys")
    batches = planned(mix, *options, "--steps", 12, "--world-size", 3)
    assert [batch["step"] for batch in batches] == list(range(12))
    for rank in range(3):
        own = [batch for batch in batches if batch["rank"] == rank]
        assert keys_of(own) == loaded(mix, rank, 3, 4, split)


def test_a_narrow_terminal_breaks_lines_and_leaves_nothing_out(mix, monkeypatch):
    for name, value in (("COLUMNS", "40"), ("FORCE_COLOR", "1"), ("NO_COLOR", "1")):
        monkeypatch.setenv(name, value)
    options = ("--batch-size", "6", "--steps")
    for command, steps, titles in (
        ("simulate", "1000000", ("source", "asked %", "planned %", "drawn", "repeats at")),
        ("plan", "2", ("step", "source", "samples", "epoch")),
    ):
        shown = run(command, mix, *options, steps)
        assert all(title in shown for title in titles)
        assert "captions" in shown
        assert "\u2026" not in shown


def test_a_plan_far_away_is_what_is_read_there(mix):
    config = WorkerConfig(seed_offset=3)
    dataset = get_train_dataset(mix, batch_size=6, worker_config=config)
    far = dataset.at(np.arange(10**9, 10**9 + 4))
    got = planned(mix, "--at", 10**9, "--steps", 4, "--batch-size", 6, "--seed", 3, "--keys")
    assert keys_of(got) == [batch.__key__ for batch in far]
    assert got[0]["samples"][0]["epoch"] > 10**6


def test_order_options_of_the_run(mix):
    folder = mix.parent / "classes"
    dataset = get_train_dataset(folder, batch_size=5, max_samples_per_sequence=4)
    got = planned(
        folder, "--steps", 6, "--batch-size", 5, "--max-samples-per-sequence", 4, "--keys"
    )
    assert keys_of(got) == [batch.__key__ for batch in dataset.at(range(6))]
    assert keys_of(got) != keys_of(planned(folder, "--steps", 6, "--batch-size", 5, "--keys"))


def test_the_table_of_a_plan(mix):
    shown = run(
        "plan", mix.parent / "classes", "--at", 10**9, "--steps", 25, "--batch-size", 30,
        "--max-samples-per-sequence", 10, "--world-size", 2,
    )  # fmt: skip
    assert "Steps 1,000,000,000 to 1,000,000,019" in shown
    assert "Steps 1,000,000,020 to 1,000,000,024" in shown
    assert ".tar[0-9]" in shown
    assert "25 steps, 750 samples: classes 750 (100.0 %)" in shown
    assert run("plan", mix.parent / "classes").startswith("Step 0 ")
    mixed = run("plan", mix, "--batch-size", 20, "--keys")
    assert "web/captions [train] #1" in mixed.replace("\n", " ")
    assert "shard-000.tar[0000" in mixed


@pytest.mark.parametrize("split", SPLITS)
def test_a_simulation_is_what_the_plan_adds_up_to(mix, split):
    options = ("--batch-size", 6, "--split", split)
    run_of = json.loads(run("simulate", mix, *options, "--steps", 150, "--json"))
    drawn, seen, repeats = Counter(), set(), {}
    for batch in planned(mix, *options, "--steps", 150):
        for sample in batch["samples"]:
            drawn[sample["source"]] += 1
            place = sample["source"], sample["shard"], sample["index"]
            if place in seen:
                repeats.setdefault(sample["source"], batch["step"])
            seen.add(place)
    assert run_of["samples"] == drawn.total()
    for source in run_of["sources"]:
        assert source["drawn"] == drawn[source["name"]]
        if source["repeats_exact"]:
            assert source["repeats_at"] == repeats.get(source["name"])
        else:
            assert split == "quotas"
            assert repeats[source["name"]] <= source["repeats_at"]


def test_the_table_of_a_simulation(mix):
    shown = run("simulate", mix, "--steps", 10**12, "--batch-size", 10)
    assert "1,000,000,000,000 steps, 10,000,000,000,000 samples" in shown
    rows = {line.split()[0]: line.split() for line in shown.splitlines() if "captions" in line}
    assert rows["books/captions"][1:5] == ["30.000", "30.000", "3.00T", "15"]
    assert "Never reached: web/captions [val]: its weight is 0" in shown
    short = run("simulate", mix, "--steps", 1)
    assert "Never reached: web/captions [train] #2: not in 1 step\n" in short


def test_what_weights_count_is_said(mix):
    assert "7 steps, 14 samples; weights count samples" in run(
        "simulate", mix, "--steps", 7, "--batch-size", 2
    )
    assert "weights count samples" in run("plan", mix)


def test_shares_are_drawn(mix, tmp_path):
    flat, page = tmp_path / "flat.png", tmp_path / "changing.html"
    run("simulate", mix, "--steps", 1000, "--plot", flat)
    with Image.open(flat) as image:
        assert image.format == "PNG"
        assert image.width >= 1000
        assert len(np.unique(np.asarray(image.convert("RGB")).reshape(-1, 3), axis=0)) > 20
    run("simulate", mix, "--steps", 400, "--split", "changing", "--plot", page)
    text = page.read_text()
    assert "books/captions" in text
    assert "dashed: asked" in text


def test_a_picture_that_cannot_be_drawn(mix, tmp_path, monkeypatch):
    options = ("simulate", mix, "--steps", 10, "--plot")
    assert ".png, .svg, .pdf, .html; got '.jpg'" in run(*options, tmp_path / "a.jpg", code=2)
    assert "; got '.pgn'; did you mean '.png'?\n" in run(*options, tmp_path / "a.pgn", code=2)
    assert "; got no suffix\n" in run(*options, tmp_path / "shares", code=2)
    assert "make it first" in run(*options, tmp_path / "none" / "shares.png", code=2)
    (tmp_path / "folder.png").mkdir()
    assert "this is a folder" in run(*options, tmp_path / "folder.png", code=2)
    full = Path("/dev/full")
    if full.exists():
        (tmp_path / "full.html").symlink_to(full)
        assert "cannot be written (No space left" in run(*options, tmp_path / "full.html", code=2)
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "pip install 'energize[plot]'" in run(*options, tmp_path / "s.html", code=2)


def test_steps_may_be_left_out_where_the_mix_ends(mix, stage_file):
    assert "say with --steps how many" in run("simulate", mix, code=2)
    ends = json.loads(run("simulate", mix, "--split", "quotas", "--batch-size", 5, "--json"))
    assert (ends["steps"], ends["samples"]) == (21, 105)
    assert json.loads(run("simulate", stage_file, "--json"))["steps"] == 30
    endless = stage_file.with_name("endless.yaml")
    endless.write_text(STAGES.replace("  steps: 30\n", ""))
    assert "its last stage, 'second', has no end; say with --steps" in run(
        "simulate", endless, code=2
    )
    assert json.loads(run("simulate", endless, "--steps", 50, "--json"))["stages"] == [
        {"name": "first", "start": 0, "stop": 20}, {"name": "second", "start": 20, "stop": 50},
    ]  # fmt: skip


def test_wrong_arguments(mix, tmp_path):
    assert "does not exist" in run("plan", tmp_path / "none", code=2)
    assert "no split 'test'" in run("plan", mix, "--split", "test", code=1)
    assert "--at is a whole number, 0 or more; got -1" in run("plan", mix, "--at", -1, code=2)
    assert "--steps is a whole number, 1 or" in run("simulate", mix, "--steps", 0, code=2)
    assert "too far away" in run("plan", mix, "--at", 2**61, "--batch-size", 8, code=2)
    for option in ("batch-size", "world-size", "shuffle-buffer-size", "max-samples-per-sequence"):
        said = run("plan", mix, f"--{option}", 0, code=2)
        assert said == f"Error: --{option} is a whole number, 1 or more; got 0\n"


def test_as_a_program(mix):
    command = [sys.executable, "-m", "energize.cli", "plan", str(mix), "--at", str(10**9)]
    done = subprocess.run(
        [*command, "--steps", "3", "--batch-size", "4", "--json"],
        capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    got = [json.loads(line) for line in done.stdout.splitlines()]
    assert got == planned(mix, "--at", 10**9, "--steps", 3, "--batch-size", 4)


STAGES = """\
training:
  steps: 30
  data_stages:
    - {name: first, start_step: 0, end_step: 20, seq_len: 8, dataset_type: energize,
       dataset_folders: [one/shards, two/shards], dataset_weights: [0.75, 0.25]}
    - {name: second, start_step: 20, seq_len: 8, dataset_type: energize,
       dataset_folders: [two/shards, three/shards], dataset_weights: [0.5, 0.5],
       dataset_random_seed: 5}
"""


@pytest.fixture(scope="module")
def stage_file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stage_file")
    for name in ("one", "two", "three"):
        captions(folder / name / "shards", 40)
    (folder / "run.yaml").write_text(STAGES)
    return folder / "run.yaml"


def test_a_file_of_stages(stage_file):
    options = ("--batch-size", 4, "--seed", 3, "--keys")
    batches = planned(stage_file, *options, "--steps", 30)
    config = WorkerConfig(seed_offset=3)
    read = get_staged_train_dataset(stage_file, batch_size=4, worker_config=config)
    assert keys_of(batches) == [batch.__key__ for batch in read]
    assert {each["source"] for batch in batches[:20] for each in batch["samples"]} == {
        "one/shards", "two/shards #1",
    }  # fmt: skip
    told = json.loads(run("simulate", stage_file, *options[:4], "--steps", 30, "--json"))
    drawn = Counter(each["source"] for batch in batches for each in batch["samples"])
    assert {each["name"]: each["drawn"] for each in told["sources"]} == drawn
    assert [drawn[name] for name in ("two/shards #2", "three/shards")] != [0, 0]


def test_what_stages_ask_for(stage_file):
    options = ("--steps", 30, "--batch-size", 4)
    sources = json.loads(run("simulate", stage_file, *options, "--json"))["sources"]
    asked = [(s["name"], s["asked"]) for s in sources]
    assert asked == [
        ("one/shards", 0.5),
        ("two/shards #1", 0.166666667),
        ("two/shards #2", 0.166666667),
        ("three/shards", 0.166666667),
    ]
    shown = run("simulate", stage_file, *options)
    rows = {line.split()[0]: line.split() for line in shown.splitlines() if "/shards" in line}
    assert rows["one/shards"][1:3] == ["50.000", "50.000"]
    assert rows["three/shards"][1:3] == ["16.667", "16.667"]


def test_what_the_stages_of_a_split_ask_for(mix):
    staged = mix.parent / "staged.yaml"
    head, _, _ = MIX.partition("  train:")
    staged.write_text(
        f"""{head}
  train:
    stages:
      - name: first
        start_step: 0
        end_step: 5
        blend:
          - {{path: web/captions, weight: {{points: {{0: 0.9, 4: 0.1}}}}}}
          - {{path: books/captions, weight: 0.1}}
      - name: twice
        start_step: 5
        scheme: exact
        blend:
          - {{path: classes, weight: 1}}
          - {{path: classes, weight: 1, dataset_config: dataset.yaml}}
          - {{path: books/captions, weight: 6}}
"""
    )
    sources = json.loads(run("simulate", staged, "--steps", 9, "--json"))["sources"]
    asked = [(s["name"], s["asked"]) for s in sources]
    assert asked == [
        ("web/captions", round((4 * 0.9 + 0.5) / 9, 9)),
        ("books/captions", round((4 * 0.1 + 0.5 + 4 * 0.75) / 9, 9)),
        ("classes", round(4 * 0.25 / 9, 9)),
    ]


# Waiting


def test_somebody_who_waits_sees_that_something_is_done(mix):
    terminal = Terminal("simulate", mix, "--steps", 5, "--batch-size", 6)
    assert terminal.answer([]) == 0
    waiting, _, shown = terminal.shown.partition("5 steps, 30 samples")
    assert "Working out 5 steps" in waiting
    assert "Working out" not in shown
    assert "books/captions" in shown


def test_nothing_is_said_of_waiting_where_nobody_looks(mix, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    done = CliRunner().invoke(app, ["simulate", str(mix), "--steps", "5"])
    assert (done.exit_code, done.stderr) == (0, "")
    assert "Working out" not in done.stdout


def test_a_step_is_a_global_batch_of_a_composed_mix(mix):
    shown = json.loads(run("simulate", mix, "--split", "composed", "--steps", 3, "--json"))
    assert [each["drawn"] for each in shown["sources"]] == [18, 6]
    shown = json.loads(
        run("simulate", mix, "--split", "composed", "--steps", 3, "--batch-size", 2, "--json")
    )
    assert sum(each["drawn"] for each in shown["sources"]) == 6
