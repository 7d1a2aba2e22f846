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
DOCUMENTS = Path(__file__).parents[1] / "documents" / "data_stages"
EXAMPLES = ROOT / "metadatasets"

STAGE = {
    "name": "one",
    "start_step": 0,
    "dataset_type": "nanoset",
    "dataset_folders": ["a", "b"],
    "dataset_weights": [0.5, 0.5],
    "seq_len": 128,
}


def toml(tables):
    """A TOML file of `training` keys and stages."""
    training = {key: value for key, value in tables.items() if key != "data_stages"}
    lines = ["[training]", *(f"{key} = {written(value)}" for key, value in training.items())]
    for stage in tables.get("data_stages", []):
        lines += ["", "[[training.data_stages]]"]
        lines += [f"{key} = {written(value)}" for key, value in stage.items()]
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


def stage(**changed):
    return {key: value for key, value in {**STAGE, **changed}.items() if value is not ...}


@pytest.mark.parametrize("name", ["run.toml", "run.yaml"])
def test_a_plan_is_the_same_from_toml_and_yaml(tmp_path, name):
    plan = plan_of(
        tmp_path,
        [stage(end_step=5, batch={"batch_size": 2}), stage(name="two", start_step=5, seq_len=512)],
        name,
        steps=15,
        dataset_random_seed=3,
        global_batch_size=8,
        items_per_step=4,
        optimizer="adam",
    )
    one, two = plan.stages
    assert (one.name, one.start_step, one.end_step, one.seq_len, one.seed) == ("one", 0, 5, 128, 3)
    assert (two.name, two.start_step, two.end_step, two.seq_len) == ("two", 5, 15, 512)
    assert one.items_per_step == two.items_per_step == 4
    assert dict(one.batch) == {"global_batch_size": 8, "batch_size": 2}
    assert one.dataset.dataset_folders == ("a", "b")
    assert one.dataset.dataset_weights == (0.5, 0.5)
    assert two.place.endswith("(training.data_stages[1])")


def test_the_place_of_a_stage_has_its_line(tmp_path):
    plan = plan_of(tmp_path, [stage(), stage(name="two", start_step=5)], steps=15)
    lines = (tmp_path / "run.toml").read_text().splitlines()
    header = [i for i, line in enumerate(lines, 1) if line == "[[training.data_stages]]"][1]
    assert plan.stages[1].place == f"{tmp_path / 'run.toml'}:{header} (training.data_stages[1])"


def test_without_stages_training_is_the_only_one():
    plan = read_stages(DOCUMENTS / "single_stage.toml")
    (only,) = plan.stages
    assert (only.name, only.start_step, only.end_step, only.seq_len) == ("default", 0, 9000, 1024)
    assert only.dataset.dataset == "web"


def test_the_gap_before_the_first_stage_is_filled_from_training():
    plan = read_stages(DOCUMENTS / "ablation.toml")
    assert [(s.name, s.start_step, s.end_step, s.seed) for s in plan.stages] == [
        ("default", 0, 5, None),
        ("try_out", 5, 12, 7),
    ]


def test_three_stages():
    plan = read_stages(DOCUMENTS / "three_stages.toml")
    assert [(s.name, s.steps, s.seq_len) for s in plan.stages] == [
        ("broad", 60_000, 2048),
        ("documents", 25_000, 2048),
        ("long", 15_000, 16384),
    ]


FAULTS = {
    "unknown key": (
        stage(dataset_weigths=[1.0]),
        "data_stages[0].dataset_weigths): unknown key 'dataset_weigths'; did you mean "
        "'dataset_weights'?",
    ),
    "no name": (stage(name=...), "data_stages[0].name): the key 'name' is missing"),
    "blank name": (stage(name=" "), "data_stages[0].name): expected text that is not blank"),
    "no start": (stage(start_step=...), "the key 'start_step' is missing"),
    "no type": (stage(dataset_type=...), "the key 'dataset_type' is missing"),
    "no sequence length": (stage(seq_len=...), "the key 'seq_len' is missing"),
    "negative start": (
        stage(start_step=-1),
        ".start_step): expected greater than or equal to 0",
    ),
    "start no number": (
        stage(start_step="0"),
        ".start_step): expected an integer",
    ),
    "sequence length 0": (
        stage(seq_len=0),
        ".seq_len): expected greater than 0",
    ),
    "negative seed": (stage(dataset_random_seed=-1), ".dataset_random_seed): expected greater"),
    "end before start": (
        stage(start_step=5, end_step=5),
        "end_step is a whole number, 6 or more; got 5",
    ),
    "huggingface without dataset": (
        stage(dataset_type="huggingface", dataset_folders=..., dataset_weights=...),
        "a huggingface dataset is named by 'dataset'",
    ),
    "huggingface with blank dataset": (
        stage(dataset_type="huggingface", dataset="  "),
        ".dataset): expected text that is not blank; got '  '",
    ),
    "nanoset without folders": (
        stage(dataset_folders=..., dataset_weights=...),
        "a nanoset is read from 'dataset_folders'",
    ),
    "nanoset with blank folder": (
        stage(dataset_folders=["a", ""]),
        "data_stages[0].dataset_folders): expected a list of one or more folders, relative to this "
        "file; got ['a', '']",
    ),
    "no folders in the list": (stage(dataset_folders=[]), ".dataset_folders): expected a list"),
    "energize without data": (
        stage(dataset_type="energize", dataset_folders=..., dataset_weights=...),
        "energize reads 'dataset_path' or 'dataset_folders'; neither is given",
    ),
    "energize with both": (
        stage(dataset_type="energize", dataset_path="mix.yaml"),
        "energize reads 'dataset_path' or 'dataset_folders'; both are given",
    ),
    "weights empty": (stage(dataset_weights=[]), ".dataset_weights): "),
    "weight negative": (stage(dataset_weights=[-0.5, 1.0]), "[0]): expected greater than or equal"),
    "weight above 1": (stage(dataset_weights=[2, 0.5]), "less than or equal to 1; got 2"),
    "weights do not sum to 1": (stage(dataset_weights=[0.5, 0.4]), "these sum to 0.9"),
    "too few weights": (stage(dataset_weights=[1.0]), "there are 1 weights for 2 folders"),
    "weights without folders": (
        stage(dataset_type="preprocessed", dataset_folders=..., dataset_weights=[1.0]),
        "there are 1 weights for 0 folders in 'dataset_folders'",
    ),
    "batch no table": (stage(batch=3), ".batch): expected a mapping; got 3"),
}


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("kind", ["toml", "yaml"])
def test_faults_of_a_stage(tmp_path, name, kind):
    wrong, message = FAULTS[name]
    with pytest.raises(MetadatasetError) as caught:
        plan_of(tmp_path, [wrong], f"run.{kind}", steps=10)
    assert message in str(caught.value)
    assert str(tmp_path / f"run.{kind}") in str(caught.value)


def test_a_number_is_written_without_underscores_in_yaml(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("training:\n  dataset_path: x\n  steps: 100_000\n")
    with pytest.raises(MetadatasetError, match="expected an integer; got '100_000'"):
        read_stages(file)


@pytest.mark.parametrize("weight", ["nan", "inf"])
def test_a_weight_is_finite(tmp_path, weight):
    file = tmp_path / "run.toml"
    file.write_text(toml({"data_stages": [STAGE]}).replace("[0.5, 0.5]", f"[{weight}, 0.5]"))
    with pytest.raises(MetadatasetError, match=f"equal to [01]; got {weight}"):
        read_stages(file)


def test_rounded_weights_may_sum_to_nearly_1(tmp_path):
    thirds = stage(dataset_folders=["a", "b", "c"], dataset_weights=[0.333, 0.333, 0.333])
    assert plan_of(tmp_path, [thirds], steps=5).stages[0].dataset.dataset_weights == (0.333,) * 3


PLANS = {
    "gap": ([stage(end_step=4), stage(name="two", start_step=5)], "steps 4 to 5 belong to no"),
    "overlap": ([stage(end_step=6), stage(name="two", start_step=5)], "belong to two stages"),
    "never runs": ([stage(), stage(name="two", start_step=100)], "stage 'two' would never run"),
    "one start": ([stage(), stage(name="two")], "both start at step 0"),
    "one name": ([stage(end_step=5), stage(start_step=5)], "the name is taken by"),
    "too short": ([stage(end_step=5)], "steps 5 to 10 belong to no stage"),
    "leading gap": ([stage(start_step=5)], "steps 0 to 5 belong to no stage"),
    "nothing": ([], "there are no stages"),
}


@pytest.mark.parametrize("name", PLANS)
def test_faults_of_the_plan_name_the_place(tmp_path, name):
    stages, message = PLANS[name]
    with pytest.raises(MetadatasetError) as caught:
        plan_of(tmp_path, stages, steps=10)
    assert message in str(caught.value)
    places = re.findall(r"run\.toml:\d+ \(training[^)]*\)", str(caught.value))
    assert places
    assert len(set(places)) == len(places)


TRAINING = {"dataset_type": "energize", "dataset_path": "mix.yaml", "seq_len": 16}


def test_data_in_training_and_in_stages_from_step_0_exclude_each_other(tmp_path):
    with pytest.raises(MetadatasetError, match="stage 'default' would never run"):
        plan_of(tmp_path, [stage()], steps=10, **TRAINING)


def test_the_sequence_length_and_seed_of_training_are_no_data(tmp_path):
    assert len(plan_of(tmp_path, [stage()], steps=10, seq_len=5, dataset_random_seed=2).stages) == 1


def test_a_stage_called_default_after_the_filled_gap(tmp_path):
    with pytest.raises(MetadatasetError, match=r"the name is taken by .*rename yours"):
        plan_of(tmp_path, [stage(name="default", start_step=5)], steps=10, **TRAINING)


def test_a_misspelt_key_in_training_is_not_the_trainers(tmp_path):
    with pytest.raises(MetadatasetError, match="unknown key 'dataset_pth'; did you mean"):
        plan_of(tmp_path, [stage()], steps=10, dataset_pth="mix.yaml")


def test_the_default_stage_needs_a_sequence_length(tmp_path):
    with pytest.raises(MetadatasetError, match="'seq_len' is missing, and the stage 'default'"):
        plan_of(tmp_path, [], steps=10, dataset_type="energize", dataset_path="mix.yaml")


def test_all_faults_of_a_file_are_told(tmp_path):
    stages = [stage(seq_len=0), stage(name="two", dataset_type=..., extra=1)]
    with pytest.raises(MetadatasetError) as caught:
        plan_of(tmp_path, stages, steps="many")
    text = str(caught.value)
    assert text.startswith("4 errors in ")
    for part in ("training.steps", "[0].seq_len", "'dataset_type' is missing", "[1].extra"):
        assert part in text


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.toml", "[training\n", "invalid TOML"),
        ("a.toml", "x = 1\n", "there is no table 'training'"),
        ("a.yaml", "training: 3\n", "there is no table 'training'"),
        ("a.toml", "[training]\ndata_stages = 3\n", "expected a list; got 3"),
        ("a.toml", "[training]\ndata_stages = [3]\n", "expected a mapping; got 3"),
        ("a.yaml", "training: {data_stages: [!!python/name:os.system x]}\n", "the tag"),
        ("a.json", "{}", "expected a .toml or .yaml file"),
    ],
)
def test_files_that_are_no_stage_files(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(MetadatasetError) as caught:
        read_stages(tmp_path / name)
    assert message in str(caught.value)


def test_a_file_that_is_not_there(tmp_path):
    for name in ("a.toml", "a.yaml"):
        with pytest.raises(DatasetNotFoundError, match="the file does not exist"):
            read_stages(tmp_path / name)


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
    shutil.copytree(EXAMPLES, root / "metadatasets")
    shutil.copytree(DOCUMENTS, root, dirs_exist_ok=True)
    return root


def test_three_stages_read_prepared_folders(folder):
    data = get_staged_train_dataset(folder / "three_stages.toml", batch_size=2)
    assert len(data) == 100_000
    broad, documents, _ = data.report
    assert [round(each.share, 3) for each in broad.sources] == [0.7, 0.2, 0.1]
    assert [round(each.share, 3) for each in documents.sources] == [0.2, 0.4, 0.4]
    assert [each.before for each in documents.sources] == [84_000, 24_000, 12_000]
    assert broad.tokens == 61_440_000_000
    first = data[0]
    assert len(first.caption) == 2
    assert len(data[99_999].caption) == 2


def test_seeds_of_stages_change_the_order(folder):
    data = get_staged_train_dataset(folder / "seeds.toml", batch_size=2)
    assert [stage.seed for stage in data.plan.stages] == [11, 12]
    captions_read = [data[k].caption for k in range(16)]
    assert captions_read[:8] != captions_read[8:]


def test_the_ablation_of_a_run_goes_on_from_its_state(folder):
    def build(stage):
        return ShuffleDataset(ListSource(range(50), name=stage.dataset.dataset))

    data = get_staged_train_dataset(folder / "ablation.toml", build=build)
    whole = list(data)
    (folder / "before.toml").write_text(
        (folder / "ablation.toml").read_text().split("[[training.data_stages]]")[0]
    )
    before = get_loader(get_staged_train_dataset(folder / "before.toml", build=build))
    assert list(islice(before, 5)) == whole[:5]
    loader = get_loader(data)
    loader.load_state_dict(before.state_dict())
    assert list(loader) == whole[5:]
    longer = get_loader(get_staged_train_dataset(folder / "before.toml", build=build))
    list(islice(longer, 6))
    with pytest.raises(StateMismatchError, match="try_out"):
        get_loader(data).load_state_dict(longer.state_dict())


@pytest.mark.parametrize("name", ["stages.toml", "stages.yaml"])
def test_the_examples(folder, name):
    file = folder / "metadatasets" / name
    assert file.read_text().startswith("# ")
    data = get_staged_train_dataset(file, batch_size=4, task_encoder=ListEncoder())
    stages = data.plan.stages
    assert data.plan.total_steps == stages[-1].end_step
    for stage, first in zip(stages, data.plan.first_items, strict=True):
        expected = stage.batch.get("batch_size", 4)
        assert len(data[first]) == expected
    assert all(report.sources for report in data.report)


def test_other_types_need_a_function_that_builds_them(folder):
    with pytest.raises(MetadatasetError) as caught:
        get_staged_train_dataset(folder / "single_stage.toml", batch_size=2)
    text = str(caught.value)
    assert "stage 'default'" in text
    assert "dataset_type 'huggingface' is not read by energize" in text
    assert "pass build=" in text


def test_a_misspelt_type(folder):
    file = folder / "misspelt.toml"
    file.write_text(toml({"data_stages": [stage(dataset_type="energise")]}))
    with pytest.raises(MetadatasetError, match="did you mean 'energize'"):
        get_staged_train_dataset(file, batch_size=2)


def test_a_nanoset_of_tokens_is_not_a_prepared_folder(folder):
    (folder / "tokens").mkdir(exist_ok=True)
    file = folder / "tokens.toml"
    tokens = stage(dataset_folders=["tokens"], dataset_weights=[1.0])
    file.write_text(toml({"data_stages": [tokens]}))
    with pytest.raises(MetadatasetError, match=r"tokens has no .nv-meta.*pass build="):
        get_staged_train_dataset(file, batch_size=2)


def test_a_folder_that_is_not_there(folder):
    file = folder / "missing.toml"
    file.write_text(toml({"data_stages": [stage(dataset_folders=["gone", "data/math"])]}))
    with pytest.raises(DatasetNotFoundError, match=r"stage 'one': 'gone' does not exist"):
        get_staged_train_dataset(file, batch_size=2)


def test_options_beside_build_would_have_no_effect(folder):
    with pytest.raises(ConfigError, match="batch_size would have no effect beside build"):
        get_staged_train_dataset(folder / "seeds.toml", build=build_stage, batch_size=2)


def test_a_stage_without_a_batch_size(folder):
    with pytest.raises(ConfigError, match="there is no batch_size"):
        get_staged_train_dataset(folder / "seeds.toml")


@pytest.mark.parametrize(
    ("build", "told"),
    [
        (7, "build is a function of a stage that returns its dataset; got 7"),
        (
            lambda stage: None,
            r"seeds.toml:\d+ .*: build returns the dataset of the stage; got None",
        ),
    ],
)
def test_what_is_no_build(folder, build, told):
    with pytest.raises(ConfigError, match=told):
        get_staged_train_dataset(folder / "seeds.toml", build=build)


@pytest.mark.parametrize("kind", ["toml", "yaml"])
def test_a_stage_file_is_no_metadataset(tmp_path, kind):
    plan_of(tmp_path, [stage()], f"run.{kind}", steps=5)
    with pytest.raises(MetadatasetError, match="it is read by get_staged_train_dataset"):
        get_train_dataset(tmp_path / f"run.{kind}", batch_size=2)


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


def test_lines_of_toml_are_those_of_its_statements(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text(LINES)
    text = read_toml(file, [])
    stages = ("training", "data_stages")
    expected = {
        ("title",): 2,
        ("training",): 3,
        ("training", "text"): 4,
        ("training", "numbers"): 8,
        stages: 11,
        (*stages, 0): 11,
        (*stages, 0, "name"): 12,
        (*stages, 0, "batch"): 13,
        (*stages, 0, "batch", "size"): 14,
        (*stages, 1): 15,
        (*stages, 1, "name"): 16,
    }
    assert {path: text.lines.get(path) for path in expected} == expected
    assert ("training", "name") not in text.lines
    assert ("other",) not in text.lines
