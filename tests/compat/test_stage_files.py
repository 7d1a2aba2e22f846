"""Stage files: TOML and YAML to plans, their faults, and the datasets built from
them."""

from __future__ import annotations

import json
import re
import shutil
from itertools import islice
from pathlib import Path

import datasets as hub
import numpy as np
import pytest
import torch
import yaml

import energize as ez
from energize import errors
from energize.compat.stage_files import read_toml
from energize.experimental import get_staged_train_dataset, read_stages
from tests.support.prepared import captions, classes

ROOT = Path(__file__).parents[2]
DOCUMENTS = ROOT / "tests" / "documents" / "data_stages"
FAULTS = yaml.safe_load((Path(__file__).parent / "stage_faults.yaml").read_text())

STAGE = {
    "name": "one",
    "start_step": 0,
    "dataset_type": "nanoset",
    "dataset_folders": ["a", "b"],
    "dataset_weights": [0.5, 0.5],
    "seq_len": 128,
}
TRAINING = {"dataset_type": "energize", "dataset_path": "mix.yaml", "seq_len": 16}


def stage(**changed):
    return {
        key: value for key, value in {**STAGE, **changed}.items() if value is not None
    }


def toml(tables):
    """A TOML file of `training` keys and stages."""
    training = {key: value for key, value in tables.items() if key != "data_stages"}
    lines = [
        "[training]",
        *(f"{key} = {written(value)}" for key, value in training.items()),
    ]
    for each in tables.get("data_stages", []):
        lines += ["", "[[training.data_stages]]"]
        lines += [f"{key} = {written(value)}" for key, value in each.items()]
    return "\n".join(lines)


def written(value):
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{key} = {written(each)}' for key, each in value.items())} }}"
    return json.dumps(value)


def plan_of(tmp_path, stages, name="run.toml", **training):
    file = tmp_path / name
    tables = {**training, "data_stages": stages}
    file.write_text(
        toml(tables) if file.suffix == ".toml" else json.dumps({"training": tables})
    )
    return read_stages(file)


@pytest.mark.parametrize("name", ["run.toml", "run.yaml"])
def test_a_plan(tmp_path, name):
    """Settings of `training` are those of stages that have none; the rest is the
    trainer's."""
    two = stage(name="two", start_step=5, seq_len=512, dataset_random_seed=4)
    plan = plan_of(
        tmp_path,
        [stage(end_step=5, batch={"batch_size": 2}), two],
        name,
        steps=15,
        dataset_random_seed=3,
        global_batch_size=8,
        items_per_step=4,
        optimizer="adam",
    )
    found = [(s.name, s.start_step, s.end_step, s.seq_len, s.seed) for s in plan.stages]
    assert found == [("one", 0, 5, 128, 3), ("two", 5, 15, 512, 4)]
    assert [s.items_per_step for s in plan.stages] == [4, 4]
    assert [dict(s.batch) for s in plan.stages] == [
        {"global_batch_size": 8, "batch_size": 2},
        {"global_batch_size": 8},
    ]
    data = plan.stages[0].dataset
    assert (data.dataset_folders, data.dataset_weights) == (("a", "b"), (0.5, 0.5))
    place = re.fullmatch(
        r"(.*):(\d+) \(training\.data_stages\[1\]\)", plan.stages[1].location
    )
    if name == "run.toml":
        line = (tmp_path / name).read_text().splitlines()[int(place[2]) - 1]
        assert line == "[[training.data_stages]]"


def test_the_stage_of_training(tmp_path):
    """It fills the steps before the first stage; a length and a seed alone are no
    data."""
    gap = plan_of(tmp_path, [stage(start_step=5)], steps=10, **TRAINING)
    assert [(s.name, s.start_step, s.end_step, s.seq_len) for s in gap.stages] == [
        ("default", 0, 5, 16),
        ("one", 5, 10, 128),
    ]
    (alone,) = plan_of(tmp_path, [], steps=10, **TRAINING).stages
    assert (alone.name, alone.end_step, alone.dataset.dataset_path) == (
        "default",
        10,
        "mix.yaml",
    )
    assert (
        len(
            plan_of(
                tmp_path, [stage()], steps=10, seq_len=5, dataset_random_seed=2
            ).stages
        )
        == 1
    )
    documents = [
        read_stages(DOCUMENTS / f"{name}.toml") for name in ("single_stage", "ablation")
    ]
    assert [
        [(s.name, s.start_step, s.end_step) for s in plan.stages] for plan in documents
    ] == [
        [("default", 0, 9000)],
        [("default", 0, 5), ("try_out", 5, 12)],
    ]
    thirds = stage(
        dataset_folders=["a", "b", "c"], dataset_weights=[0.333, 0.333, 0.333]
    )
    assert (
        plan_of(tmp_path, [thirds], steps=5).stages[0].dataset.dataset_weights
        == (0.333,) * 3
    )


def fault(make, *arguments, **options):
    with pytest.raises(errors.MetadatasetError) as caught:
        make(*arguments, **options)
    return str(caught.value)


@pytest.mark.parametrize("kind", ["toml", "yaml"])
def test_faults_of_a_stage(tmp_path, kind):
    file = tmp_path / f"run.{kind}"
    for changed, *told in FAULTS["stages"]:
        found = fault(plan_of, tmp_path, [stage(**changed)], file.name, steps=10)
        assert all(part in found for part in (*told, str(file))), found
    stages = [stage(seq_len=0), stage(name="two", dataset_type=None, extra=1)]
    found = fault(plan_of, tmp_path, stages, file.name, steps="many")
    assert found.startswith("4 errors in ")
    for part in (
        "training.steps",
        "[0].seq_len",
        "'dataset_type' is missing",
        "[1].extra",
    ):
        assert part in found
    for weight in ("nan", "inf"):
        text = toml({"data_stages": [STAGE]}).replace("[0.5, 0.5]", f"[{weight}, 0.5]")
        (tmp_path / "weights.toml").write_text(text)
        assert f", got {weight}" in fault(read_stages, tmp_path / "weights.toml")


def test_faults_of_plans_and_files(tmp_path):
    """Those of a plan name the place of each stage that they are about, once."""
    for changed, training, told in FAULTS["plans"]:
        stages = [stage(**each) for each in changed]
        found = fault(plan_of, tmp_path, stages, steps=10, **training)
        assert told in found
        places = re.findall(r"run\.toml:\d+ \(training[^)]*\)", found)
        assert places, told
        assert len(set(places)) == len(places)
    for name, text, told in FAULTS["files"]:
        (tmp_path / name).write_text(text)
        assert told in fault(read_stages, tmp_path / name), text
    for name in ("run.toml", "run.yaml"):
        with pytest.raises(
            errors.DatasetNotFoundError, match="the file does not exist"
        ):
            read_stages(tmp_path / f"no_{name}")
        plan_of(tmp_path, [stage()], name, steps=5)
        found = fault(ez.get_train_dataset, tmp_path / name, batch_size=2)
        assert "Use get_staged_train_dataset" in found


def test_lines_of_toml(tmp_path):
    (tmp_path / "run.toml").write_text(FAULTS["toml"])
    lines = read_toml(tmp_path / "run.toml", []).lines
    for text, line in FAULTS["lines"].items():
        path = tuple(int(word) if word.isdigit() else word for word in text.split())
        assert lines.get(path) == line, text


# Building datasets


class ListEncoder(ez.TaskEncoder):
    def batch(self, samples):
        return samples


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The documents and the examples beside small prepared folders."""
    root = tmp_path_factory.mktemp("stages")
    for start, name in enumerate(("photos", "charts", "pages")):
        captions(root / "data" / name, 40, shards=2, start=100 * start)
    classes(root / "demo-data" / "classification", 40, shards=2)
    for start, name in enumerate(("captions_a", "captions_b")):
        captions(root / "demo-data" / name, 40, shards=2, start=100 * start)
    shutil.copytree(ROOT / "metadatasets", root / "metadatasets")
    shutil.copytree(DOCUMENTS, root, dirs_exist_ok=True)
    return root


def test_stages_of_prepared_folders(folder):
    data = get_staged_train_dataset(folder / "three_stages.toml", batch_size=2)
    assert len(data) == 100_000
    broad, documents, _ = data.report
    assert [round(each.share, 3) for each in broad.sources] == [0.7, 0.2, 0.1]
    assert [round(each.share, 3) for each in documents.sources] == [0.2, 0.4, 0.4]
    assert [each.before for each in documents.sources] == [84_000, 24_000, 12_000]
    assert broad.tokens == 61_440_000_000
    assert [len(data[k].caption) for k in (0, 99_999)] == [2, 2]
    data = get_staged_train_dataset(folder / "seeds.toml", batch_size=2)
    assert [stage.seed for stage in data.plan.stages] == [11, 12]
    read = [data[k].caption for k in range(16)]
    assert read[:8] != read[8:]


def test_the_ablation_of_a_run_goes_on_from_its_state(folder):
    def staged(name):
        return get_staged_train_dataset(folder / name, build=build)

    def build(stage):
        return ez.ShuffleDataset(ez.ListSource(range(50), name=stage.dataset.dataset))

    whole = list(staged("ablation.toml"))
    text = (folder / "ablation.toml").read_text().split("[[training.data_stages]]")[0]
    (folder / "before.toml").write_text(text)
    before, on = (
        ez.get_loader(staged("before.toml")),
        ez.get_loader(staged("ablation.toml")),
    )
    assert list(islice(before, 5)) == whole[:5]
    on.load_state_dict(before.state_dict())
    assert list(on) == whole[5:]
    list(islice(before, 1))
    with pytest.raises(ez.StateMismatchError, match="try_out"):
        ez.get_loader(staged("ablation.toml")).load_state_dict(before.state_dict())


@pytest.mark.parametrize("name", ["stages.toml", "stages.yaml"])
def test_the_examples(folder, name):
    file = folder / "metadatasets" / name
    data = get_staged_train_dataset(file, batch_size=4, task_encoder=ListEncoder())
    stages = data.plan.stages
    assert data.plan.total_steps == stages[-1].end_step
    for stage, first in zip(stages, data.plan.first_items, strict=True):
        assert len(data[first]) == stage.batch.get("batch_size", 4)
    assert all(report.sources for report in data.report)


def test_what_cannot_be_built(folder, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    (folder / "tokens").mkdir()
    files = {
        "misspelt.toml": stage(dataset_type="energise"),
        "tokens.toml": stage(dataset_folders=["tokens"], dataset_weights=[1.0]),
        "missing.toml": stage(dataset_folders=["gone", "data/photos"]),
    }
    for name, each in files.items():
        (folder / name).write_text(toml({"data_stages": [each]}))
    two, place = (
        {"batch_size": 2},
        r"seeds.toml:\d+ .*: build must return the dataset of the stage",
    )
    unprepared, missing = errors.NotPreparedError, errors.DatasetNotFoundError
    for name, options, error, told in (
        ("misspelt.toml", two, errors.MetadatasetError, "did you mean 'energize'"),
        (
            "single_stage.toml",
            two,
            missing,
            "'default'.* cannot load 'web'.*save_to_disk",
        ),
        (
            "tokens.toml",
            two,
            unprepared,
            "tokens is not a prepared[^$]*requested at .*tokens.toml:3",
        ),
        ("missing.toml", two, missing, "gone' does not exist[^$]*missing.toml:3"),
        ("seeds.toml", {}, ez.ConfigError, "batch_size is missing"),
        (
            "seeds.toml",
            two | {"repeat": False},
            ez.ConfigError,
            "repeat=False.*Remove it",
        ),
        (
            "seeds.toml",
            two | {"build": ez.experimental.build_stage},
            ez.ConfigError,
            "no effect with build",
        ),
        ("seeds.toml", {"build": lambda stage: None}, ez.ConfigError, place),
    ):
        with pytest.raises(error, match=told):
            get_staged_train_dataset(folder / name, **options)


def test_rows_of_other_formats(tmp_path):
    rows = {
        "input_ids": [[i, i + 1] for i in range(12)],
        "text": [f"t{i}" for i in range(12)],
    }
    hub.Dataset.from_dict(rows).save_to_disk(tmp_path / "saved")
    hub.DatasetDict({"train": hub.Dataset.from_dict(rows)}).save_to_disk(
        tmp_path / "parts"
    )
    np.save(tmp_path / "long.npy", np.arange(50, dtype=np.uint16))
    np.save(tmp_path / "rows.npy", np.arange(48, dtype=np.uint16).reshape(12, 4))
    of = {"dataset_folders": None, "dataset_weights": None, "seq_len": 4}
    kinds = [
        {
            "dataset_type": "huggingface",
            "dataset": "some/name",
            "dataset_path": "saved",
        },
        {"dataset_type": "preprocessed", "dataset_path": "parts"},
        {"dataset_type": "packed_memmap", "dataset_path": "long.npy"},
        {"dataset_type": "packed_memmap", "dataset_path": "rows.npy"},
    ]
    stages = [
        stage(name=f"s{n}", start_step=4 * n, **{**of, **each})
        for n, each in enumerate(kinds)
    ]
    (tmp_path / "run.toml").write_text(toml({"steps": 16, "data_stages": stages}))
    config = ez.WorkerConfig(0, 1, num_workers=2)
    loader = ez.get_loader(
        get_staged_train_dataset(
            tmp_path / "run.toml", batch_size=3, worker_config=config
        )
    )
    steps = list(islice(loader, 16))
    loader.close()
    assert sorted(text for batch in steps[:4] for text in batch["text"]) == sorted(
        rows["text"]
    )
    found = torch.cat([batch["input_ids"] for batch in steps[4:8]])
    assert sorted(found.tolist()) == rows["input_ids"]
    for batches in (steps[8:12], steps[12:]):
        found = torch.cat([batch["input_ids"] for batch in batches])
        assert sorted(found.tolist()) == np.arange(48).reshape(12, 4).tolist()
    for name, text in (
        ("a.bin", "reads a .npy file"),
        ("none.npy", "is missing. Set its dataset_path"),
    ):
        (tmp_path / "a.bin").touch()
        wrong = stage(**{**of, "dataset_type": "packed_memmap", "dataset_path": name})
        with pytest.raises(errors.EnergizeError, match=text):
            get_staged_train_dataset(
                written_to(tmp_path / "w.toml", [wrong]), batch_size=2
            )
    np.save(tmp_path / "floats.npy", np.ones((3, 4)))
    wrong = stage(
        **{**of, "dataset_type": "packed_memmap", "dataset_path": "floats.npy"}
    )
    rows = written_to(tmp_path / "r.toml", [stage(name="r", **{**of, **kinds[3]})])
    with pytest.raises(
        ez.ConfigError, match=r"a stage that reads rows: .*'shuffle_buffer_size'"
    ):
        get_staged_train_dataset(rows, batch_size=2, shuffle_buffer_size=9)
    with pytest.raises(errors.DatasetError, match="must be integers"):
        get_staged_train_dataset(written_to(tmp_path / "w.toml", [wrong]), batch_size=2)


def written_to(file, stages):
    file.write_text(toml({"steps": 12, "data_stages": stages}))
    return file


def test_a_plain_run_goes_on_in_stages(folder):
    of = {"dataset_type": "energize", "dataset_folders": None, "dataset_weights": None}
    paths = sorted(each.name for each in (folder / "data").iterdir())[:2]
    stages = [
        stage(name=name, start_step=start, **of, dataset_path=f"data/{path}")
        for name, start, path in (("one", 0, paths[0]), ("two", 8, paths[1]))
    ]
    plain = ez.get_loader(
        ez.get_train_dataset(folder / "data" / paths[0], batch_size=2)
    )
    steps = iter(plain)
    for _ in islice(steps, 5):
        pass
    state = plain.state_dict()
    ahead = [batch.__key__ for batch in islice(steps, 3)]
    file = written_to(folder / "later.toml", stages)
    staged = ez.get_loader(get_staged_train_dataset(file, batch_size=2))
    with pytest.raises(errors.StateMismatchError, match="strict=False"):
        staged.load_state_dict(state)
    staged.load_state_dict(state, strict=False)
    assert [batch.__key__ for batch in islice(staged, 3)] == ahead
