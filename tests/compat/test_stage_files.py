"""Stage files: TOML and YAML to plans, their faults, and the datasets built from them."""

from __future__ import annotations

import json
import re
import shutil
from itertools import islice
from pathlib import Path

import pytest

from energize import (
    ConfigError,
    DatasetNotFoundError,
    ListSource,
    MetadatasetError,
    NotPreparedError,
    ShuffleDataset,
    StateMismatchError,
    TaskEncoder,
    build_stage,
    get_loader,
    get_staged_train_dataset,
    get_train_dataset,
    read_stages,
)
from energize.compat.stage_files import read_toml
from tests.support.prepared import captions, classes

ROOT = Path(__file__).parents[2]
DOCUMENTS = ROOT / "tests" / "documents" / "data_stages"

STAGE = {
    "name": "one",
    "start_step": 0,
    "dataset_type": "nanoset",
    "dataset_folders": ["a", "b"],
    "dataset_weights": [0.5, 0.5],
    "seq_len": 128,
}
TRAINING = {"dataset_type": "energize", "dataset_path": "mix.yaml", "seq_len": 16}
GONE = None
"""A key that is left out."""


def stage(**changed):
    return {key: value for key, value in {**STAGE, **changed}.items() if value is not GONE}


def other(**changed):
    """A stage whose data are named otherwise."""
    return stage(dataset_folders=GONE, dataset_weights=GONE, **changed)


def toml(tables):
    """A TOML file of `training` keys and stages."""
    training = {key: value for key, value in tables.items() if key != "data_stages"}
    lines = ["[training]", *(f"{key} = {written(value)}" for key, value in training.items())]
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
    file.write_text(toml(tables) if file.suffix == ".toml" else json.dumps({"training": tables}))
    return read_stages(file)


@pytest.mark.parametrize("name", ["run.toml", "run.yaml"])
def test_a_plan(tmp_path, name):
    """Settings of `training` are those of stages that have none; the rest is the trainer's."""
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
    place = re.fullmatch(r"(.*):(\d+) \(training\.data_stages\[1\]\)", plan.stages[1].place)
    if name == "run.toml":
        line = (tmp_path / name).read_text().splitlines()[int(place[2]) - 1]
        assert line == "[[training.data_stages]]"


def test_the_stage_of_training(tmp_path):
    """It fills the steps before the first stage; a length and a seed alone are no data."""
    gap = plan_of(tmp_path, [stage(start_step=5)], steps=10, **TRAINING)
    assert [(s.name, s.start_step, s.end_step, s.seq_len) for s in gap.stages] == [
        ("default", 0, 5, 16),
        ("one", 5, 10, 128),
    ]
    alone = plan_of(tmp_path, [], steps=10, **TRAINING)
    assert [(s.name, s.end_step, s.dataset.dataset_path) for s in alone.stages] == [
        ("default", 10, "mix.yaml")
    ]
    assert len(plan_of(tmp_path, [stage()], steps=10, seq_len=5, dataset_random_seed=2).stages) == 1
    documents = [read_stages(DOCUMENTS / f"{name}.toml") for name in ("single_stage", "ablation")]
    assert [[(s.name, s.start_step, s.end_step) for s in plan.stages] for plan in documents] == [
        [("default", 0, 9000)],
        [("default", 0, 5), ("try_out", 5, 12)],
    ]
    thirds = stage(dataset_folders=["a", "b", "c"], dataset_weights=[0.333, 0.333, 0.333])
    assert plan_of(tmp_path, [thirds], steps=5).stages[0].dataset.dataset_weights == (0.333,) * 3


# What a stage may not say; the place, and what is told of it.
FAULTS = [
    (stage(dataset_weigths=[1.0]), "[0].dataset_weigths): unknown key", "mean 'dataset_weights'?"),
    (stage(name=GONE), "[0].name): the key 'name' is missing"),
    (stage(name=" "), "[0].name): expected text that is not blank"),
    (stage(start_step=GONE), "the key 'start_step' is missing"),
    (stage(start_step=-1), ".start_step): expected greater than or equal to 0"),
    (stage(start_step="0"), ".start_step): expected an integer"),
    (stage(start_step=5, end_step=5), "end_step is a whole number, 6 or more; got 5"),
    (stage(dataset_type=GONE), "the key 'dataset_type' is missing"),
    (stage(seq_len=GONE), "the key 'seq_len' is missing"),
    (stage(seq_len=0), ".seq_len): expected greater than 0"),
    (stage(dataset_random_seed=-1), ".dataset_random_seed): expected greater"),
    (stage(batch=3), ".batch): expected a mapping; got 3"),
    (other(dataset_type="huggingface"), "a huggingface is read from 'dataset'"),
    (other(dataset_type="huggingface", dataset=" "), ".dataset): expected text", "got ' '"),
    (other(), "a nanoset is read from 'dataset_folders'"),
    (stage(dataset_folders=["a", ""]), "[0].dataset_folders): expected a list of one or more"),
    (stage(dataset_folders=[]), ".dataset_folders): expected a list"),
    (other(dataset_type="energize"), "either 'dataset_path' or 'dataset_folders'; give one"),
    (stage(dataset_type="energize", dataset_path="a"), "either 'dataset_path' or"),
    (stage(dataset_weights=[]), ".dataset_weights): "),
    (stage(dataset_weights=[-0.5, 1.0]), "[0]): expected greater than or equal to 0; got -0.5"),
    (stage(dataset_weights=[2, 0.5]), "less than or equal to 1; got 2"),
    (stage(dataset_weights=[0.5, 0.4]), "these sum to 0.9"),
    (stage(dataset_weights=[1.0]), "there are 1 weights for 2 folders"),
    (stage(dataset_type="tokens", dataset_folders=GONE), "there are 2 weights for 0 folders"),
]


@pytest.mark.parametrize("kind", ["toml", "yaml"])
def test_faults_of_a_stage(tmp_path, kind):
    file = tmp_path / f"run.{kind}"
    for wrong, *told in FAULTS:
        with pytest.raises(MetadatasetError) as caught:
            plan_of(tmp_path, [wrong], file.name, steps=10)
        assert all(part in str(caught.value) for part in (*told, str(file))), caught.value
    for weight in ("nan", "inf"):
        text = toml({"data_stages": [STAGE]}).replace("[0.5, 0.5]", f"[{weight}, 0.5]")
        (tmp_path / "weights.toml").write_text(text)
        with pytest.raises(MetadatasetError, match=f"; got {weight}"):
            read_stages(tmp_path / "weights.toml")
    stages = [stage(seq_len=0), stage(name="two", dataset_type=GONE, extra=1)]
    with pytest.raises(MetadatasetError) as caught:
        plan_of(tmp_path, stages, file.name, steps="many")
    assert str(caught.value).startswith("4 errors in ")
    for part in ("training.steps", "[0].seq_len", "'dataset_type' is missing", "[1].extra"):
        assert part in str(caught.value)


two = stage(name="two", start_step=5)
PLANS = [
    ([stage(end_step=4), two], {}, "steps 4 to 5 belong to no"),
    ([stage(end_step=6), two], {}, "belong to two stages"),
    ([stage(), {**two, "start_step": 100}], {}, "stage 'two' would never run"),
    ([stage(), {**two, "start_step": 0}], {}, "both start at step 0"),
    ([stage(end_step=5), {**two, "name": "one"}], {}, "the name is taken by"),
    ([stage(end_step=5)], {}, "steps 5 to 10 belong to no stage"),
    ([stage(start_step=5)], {}, "steps 0 to 5 belong to no stage"),
    ([], {}, "there are no stages"),
    ([stage()], TRAINING, "stage 'default' would never run"),
    ([{**two, "name": "default"}], TRAINING, "the name is taken by"),
    ([stage()], {"dataset_pth": "mix.yaml"}, "unknown key 'dataset_pth'; did you mean"),
    ([], TRAINING | {"seq_len": GONE}, "'seq_len' is missing, and the stage 'default'"),
]


def test_faults_of_a_plan_name_the_place(tmp_path):
    for stages, training, told in PLANS:
        given = {key: value for key, value in training.items() if value is not GONE}
        with pytest.raises(MetadatasetError) as caught:
            plan_of(tmp_path, stages, steps=10, **given)
        assert told in str(caught.value)
        places = re.findall(r"run\.toml:\d+ \(training[^)]*\)", str(caught.value))
        assert places, told
        assert len(set(places)) == len(places)


def test_files_that_are_no_stage_files(tmp_path):
    for name, text, told in (
        ("a.toml", "[training\n", "invalid TOML"),
        ("a.toml", "x = 1\n", "there is no table 'training'"),
        ("a.yaml", "training: 3\n", "there is no table 'training'"),
        ("a.yaml", "training: {dataset_path: x, steps: 1_000}\n", "integer; got '1_000'"),
        ("a.toml", "[training]\ndata_stages = 3\n", "expected a list; got 3"),
        ("a.toml", "[training]\ndata_stages = [3]\n", "expected a mapping; got 3"),
        ("a.yaml", "training: {data_stages: [!!python/name:os.system x]}\n", "the tag"),
        ("a.json", "{}", "expected a .toml or .yaml file"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(MetadatasetError) as caught:
            read_stages(tmp_path / name)
        assert told in str(caught.value), text
    for name in ("b.toml", "b.yaml"):
        with pytest.raises(DatasetNotFoundError, match="the file does not exist"):
            read_stages(tmp_path / name)
    for name in ("run.toml", "run.yaml"):
        plan_of(tmp_path, [stage()], name, steps=5)
        with pytest.raises(MetadatasetError, match="it is read by get_staged_train_dataset"):
            get_train_dataset(tmp_path / name, batch_size=2)


LINES = '''\
# A comment
title = "x"
[training] # the table
text = """
name = 3
[other]
"""
numbers = [
  1,
]
[[training.data_stages]]
name = "one"
[training.data_stages.batch]
size = {x = 1, y = [{z = 2}]}
[[training.data_stages]]
  name = 'two'
'''


def test_lines_of_toml(tmp_path):
    (tmp_path / "run.toml").write_text(LINES)
    lines = read_toml(tmp_path / "run.toml", []).lines
    expected = {
        "title": 2,
        "training": 3,
        "training text": 4,
        "training numbers": 8,
        "training data_stages 0": 11,
        "training data_stages 0 name": 12,
        "training data_stages 0 batch": 13,
        "training data_stages 0 batch size": 14,
        "training data_stages 1": 15,
        "training data_stages 1 name": 16,
        "training name": None,
        "other": None,
    }
    for text, line in expected.items():
        path = tuple(int(word) if word.isdigit() else word for word in text.split())
        assert lines.get(path) == line, text


# Building datasets


class ListEncoder(TaskEncoder):
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
    def build(stage):
        return ShuffleDataset(ListSource(range(50), name=stage.dataset.dataset))

    def loader(name):
        return get_loader(get_staged_train_dataset(folder / name, build=build))

    whole = list(get_staged_train_dataset(folder / "ablation.toml", build=build))
    text = (folder / "ablation.toml").read_text().split("[[training.data_stages]]")[0]
    (folder / "before.toml").write_text(text)
    before, on = loader("before.toml"), loader("ablation.toml")
    assert list(islice(before, 5)) == whole[:5]
    on.load_state_dict(before.state_dict())
    assert list(on) == whole[5:]
    longer = loader("before.toml")
    list(islice(longer, 6))
    with pytest.raises(StateMismatchError, match="try_out"):
        loader("ablation.toml").load_state_dict(longer.state_dict())


@pytest.mark.parametrize("name", ["stages.toml", "stages.yaml"])
def test_the_examples(folder, name):
    file = folder / "metadatasets" / name
    data = get_staged_train_dataset(file, batch_size=4, task_encoder=ListEncoder())
    stages = data.plan.stages
    assert data.plan.total_steps == stages[-1].end_step
    for stage, first in zip(stages, data.plan.first_items, strict=True):
        assert len(data[first]) == stage.batch.get("batch_size", 4)
    assert all(report.sources for report in data.report)


def test_what_cannot_be_built(folder):
    (folder / "tokens").mkdir()
    files = {
        "misspelt.toml": stage(dataset_type="energise"),
        "tokens.toml": stage(dataset_folders=["tokens"], dataset_weights=[1.0]),
        "missing.toml": stage(dataset_folders=["gone", "data/photos"]),
    }
    for name, each in files.items():
        (folder / name).write_text(toml({"data_stages": [each]}))
    two, place = {"batch_size": 2}, r"seeds.toml:\d+ .*: build returns the dataset of the stage"
    for name, options, error, told in (
        ("misspelt.toml", two, MetadatasetError, "did you mean 'energize'"),
        ("single_stage.toml", two, MetadatasetError, "'default'.*'huggingface'.*pass build="),
        (
            "tokens.toml",
            two,
            NotPreparedError,
            r"tokens is not a prepared dataset[^$]*asked for at .*tokens.toml:3",
        ),
        ("missing.toml", two, DatasetNotFoundError, "gone' does not exist[^$]*missing.toml:3"),
        ("seeds.toml", {}, TypeError, "missing .*'batch_size'"),
        ("seeds.toml", two | {"repeat": False}, ConfigError, "repeat=False.*leave it out"),
        ("seeds.toml", two | {"build": build_stage}, ConfigError, "no effect beside build"),
        ("seeds.toml", {"build": lambda stage: None}, ConfigError, place),
    ):
        with pytest.raises(error, match=told):
            get_staged_train_dataset(folder / name, **options)
