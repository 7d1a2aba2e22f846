"""The efficiency that `energize plan`, `simulate` and `report` show and draw."""

from __future__ import annotations

import json
import random

import pytest

from energize import WorkerConfig, get_loader, get_train_dataset
from energize.report import measure_efficiency
from tests.cli.commands import as_json, refused, run

MIX = """\
__module__: energize
__class__: MetadatasetV2
splits:
  train:
    blend: [{path: web.jsonl, weight: 3}, {path: code.jsonl, weight: 1}]
    KEYS
"""

KEYS = {
    "budget": "batch_budget: {length: 1000}",
    "packs": "packing: {length: length, capacity: 800, window: 500, fields: [text]}",
    "level": "level: {cost: length, global_batch_size: 64}",
    "plain": "",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A mix of two files, for each of the keys."""
    folder = tmp_path_factory.mktemp("efficiency")
    draws = random.Random(0)
    for name, count in (("web", 2000), ("code", 700)):
        lines = [
            json.dumps({"length": length, "text": "x" * length})
            for length in (draws.randint(1, 200) for _ in range(count))
        ]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
        run("prepare", folder / f"{name}.jsonl")
    for name, text in KEYS.items():
        (folder / f"{name}.yaml").write_text(MIX.replace("KEYS", text))
    return folder


@pytest.mark.parametrize("name", ["budget", "packs", "level"])
def test_plan_and_simulate_show_the_efficiency_of_the_run(folder, name):
    mix = folder / f"{name}.yaml"
    size = [] if name == "budget" else ["--batch-size", 4]
    dataset = get_train_dataset(
        mix,
        batch_size=None if name == "budget" else 4,
        worker_config=WorkerConfig(seed_offset=0),
    )
    used = measure_efficiency(dataset, 0, 160, ranks=8)
    options = ("simulate", mix, *size, "--steps", 160, "--ranks", 8)
    assert as_json(*options)["efficiency"] == used.as_json()
    text = run(*options)
    assert "20 steps of 8 ranks" in text
    for measure in used.measures:
        assert f" {measure.label} " in text
        assert measure.text(measure.mean) in text
    planned = run("plan", mix, *size, "--at", 83, "--steps", 2, "--ranks", 8)
    used = measure_efficiency(dataset, 83, 85, ranks=8)
    assert "1 step of 8 ranks" in planned
    ratio = used["rank_cost_length"]
    assert f"{ratio.mean:.4f}" in planned
    lines = run("plan", mix, *size, "--at", 83, "--steps", 2, "--ranks", 8, "--json")
    *batches, last = map(json.loads, lines.splitlines())
    assert [batch["step"] for batch in batches] == [83, 84]
    assert last == {"efficiency": used.as_json()}


@pytest.mark.parametrize(("steps", "differs"), [(3, True), (1000, False)])
def test_shares_that_differ_within_a_window_are_explained(folder, steps, differs):
    options = ("simulate", folder / "packs.yaml", "--steps", steps)
    shown = as_json(*options)
    far = max(abs(entry["share"] - entry["asked"]) for entry in shown["sources"])
    assert (far > 5e-4) is differs
    text = "shares hold in each window of 500 samples"
    assert (text in (shown["note"] or "")) is differs
    assert (text in run(*options)) is differs
    plain = ("simulate", folder / "plain.yaml", "--steps", 3)
    assert as_json(*plain)["note"] is None


def test_planning_up_to_a_late_step_shows_progress(folder, monkeypatch, capsys):
    monkeypatch.setattr("energize.core.progress._SHORT", 0)
    monkeypatch.setattr("energize.core.progress._ON_TERMINAL", 0)
    dataset = get_train_dataset(folder / "packs.yaml", batch_size=None)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    dataset.refs([600])
    assert "Counting planned items: 0 of 600" in capsys.readouterr().err


def test_columns_of_fixed_batches_are_options(folder):
    mix = folder / "plain.yaml"
    options = ("simulate", mix, "--steps", 600, "--batch-size", 4)
    assert as_json(*options)["efficiency"] is None
    assert "efficiency" not in run(*options)
    columns = ("--length", "length", "--cost", "length", "--micro-batches", 3)
    measures = as_json(*options, *columns, "--ranks", 5)["efficiency"]["measures"]
    assert [measure["kind"] for measure in measures] == [
        "padding",
        "rank_cost",
        "steps_per_epoch",
    ]
    refused([(["--cost", "words"], 2, "has no column 'words'")], *options)


def test_plots_show_what_is_lost(folder, tmp_path):
    pytest.importorskip("matplotlib")
    mix = folder / "budget.yaml"
    run("simulate", mix, "--steps", 500, "--ranks", 4, "--plot", tmp_path / "mix.svg")
    drawn = (tmp_path / "mix.svg").read_text()
    assert "Lost over the steps" in drawn
    assert "padding, length, planned" in drawn
    assert "waiting, length, planned" in drawn
    with get_loader(get_train_dataset(mix, batch_size=None)) as loader:
        for _, _ in zip(range(50), loader, strict=False):
            pass
        (tmp_path / "state.json").write_text(json.dumps(loader.state_dict()))
    run("report", tmp_path / "state.json", mix, "--plot", tmp_path / "state.svg")
    assert "padding, length, delivered" in (tmp_path / "state.svg").read_text()
