"""Stages in a split of a metadataset: the same run as in a stage file or in Python."""

from __future__ import annotations

import json
import logging
import re
from itertools import islice
from pathlib import Path
from textwrap import indent

import pytest
from typer.testing import CliRunner

from energize import (
    MetadatasetError,
    Stage,
    StagedDataset,
    StagePlan,
    StateMismatchError,
    WorkerConfig,
    build_stage,
    get_loader,
    get_staged_train_dataset,
    read_stages,
)
from energize.cli.main import app
from energize.core.samples import CaptioningSample, ImageClassificationSample
from energize.metadataset import Leaf, Staged, leaves_with_weights, resolve
from energize.testing import check_laws
from tests.support.metadatasets import beside_folders
from tests.support.staged_files import (
    FOLDERS,
    HEAD,
    KEYS,
    LINE,
    Keys,
    build,
    writer_beside,
)

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def examples(tmp_path_factory):
    return beside_folders(tmp_path_factory.mktemp("staged"))


@pytest.fixture
def mix(examples, request):
    return writer_beside(examples, request)


# The same run


DEFAULT = "{blend: [{path: {A}, weight: 1}, {path: {C}, weight: 1}]}"
CLASSES = "{scheme: exact, blend: [{path: {A}, weight: 1}, {path: {C}, weight: 3}]}"
"""What the example `curriculum.yaml` reads in its first two stages."""


@pytest.fixture
def written_otherwise(mix):
    """The stages of `curriculum.yaml` in Python, and in a stage file."""
    default = mix(f"train: {DEFAULT}", "first.yaml")
    classes = mix(f"train: {CLASSES}", "second.yaml")
    stages = [
        {"name": "classes", "start_step": 50, "end_step": 100, "seq_len": 512},
        {"name": "long", "start_step": 100, "seq_len": 2048, "dataset_random_seed": 7,
         "items_per_step": 1, "batch": {"batch_size": 2, "global_batch_size": 4}},
    ]  # fmt: skip
    for stage, path in zip(stages, ("second.yaml", FOLDERS["{B}"]), strict=True):
        stage |= {"dataset_type": "energize", "dataset_path": path}
    data = {"dataset_type": "energize", "dataset_path": "first.yaml", "seq_len": 512}
    training = {"steps": 150, "items_per_step": 2, "data_stages": stages, **data}
    file = default.parent / "same-stages.yaml"
    file.write_text(json.dumps({"training": training}))
    plan = StagePlan(
        [
            Stage("classes", 50, 100, dataset=build(classes), seq_len=512, items_per_step=2),
            Stage(
                "long",
                100,
                dataset=build(default.parent / FOLDERS["{B}"], batch_size=2),
                seq_len=2048,
                seed=7,
                batch={"batch_size": 2, "global_batch_size": 4},
            ),
        ],
        total_steps=150,
        default=Stage("default", dataset=build(default), seq_len=512, items_per_step=2),
    )
    return StagedDataset(plan), file


def test_it_is_the_run_that_python_or_a_stage_file_describes(examples, written_otherwise):
    in_python, file = written_otherwise
    data = build(examples / "curriculum.yaml")
    assert isinstance(data, StagedDataset)
    assert data.describe() == in_python.describe()
    items = list(data)
    assert items == list(in_python)
    assert items == list(get_staged_train_dataset(file, batch_size=4, task_encoder=KEYS))
    assert [len(item) for item in items] == [4] * 200 + [2] * 50
    kinds = [{kind for *_, kind in item} for item in items]
    both = {"CaptioningSample", "ImageClassificationSample"}
    assert set.union(*kinds[:100]) == set.union(*kinds[100:200]) == both
    assert set.union(*kinds[200:]) == {"CaptioningSample"}


def test_the_seed_of_the_run_chooses_the_order(examples):
    file = examples / "curriculum.yaml"
    config = WorkerConfig(seed_offset=5)
    data = build(file, worker_config=config)
    staged = get_staged_train_dataset(file, batch_size=4, task_encoder=KEYS, worker_config=config)
    assert data == staged
    assert data.at(range(9)) == staged.at(range(9)) != build(file).at(range(9))
    assert data.at(range(200, 209)) == build(file).at(
        range(200, 209)
    )  # a stage with a seed of its own


def test_a_function_makes_the_dataset_of_each_stage(examples):
    file = examples / "curriculum.yaml"

    def make(stage):
        return build_stage(stage, task_encoder=Keys(stage.seq_len), batch_size=3)

    data = get_staged_train_dataset(file, build=make)
    marks = [{mark for mark, *_ in item} for item in data]
    assert marks == [{512}] * 200 + [{2048}] * 50
    assert {len(item) for item in data} == {3, 2}


def test_settings_beside_stages_are_those_of_stages_without_their_own(mix):
    own = "{name: b, start_step: 9, path: {A}, seed: 0, seq_len: 4, batch: {x: 2}}"
    around = "path: {A}, seed: 3, seq_len: 8, items_per_step: 2, batch: {x: 1, y: 1}"
    plan = read_stages(
        mix(f"train: {{{around}, stages: [{{name: a, start_step: 5, path: {{A}}}}, {own}]}}")
    )
    settings = [(s.seed, s.seq_len, s.items_per_step, dict(s.batch)) for s in plan.stages]
    assert settings == [(3, 8, 2, {"x": 1, "y": 1})] * 2 + [(0, 4, 2, {"x": 2, "y": 1})]


def test_the_plan_of_a_split(examples):
    plan = read_stages(examples / "curriculum.yaml")
    assert [(s.name, s.start_step, s.end_step, s.seq_len, s.seed) for s in plan.stages] == [
        ("default", 0, 50, 512, None),
        ("classes", 50, 100, 512, None),
        ("long", 100, 150, 2048, 7),
    ]
    assert [s.items_per_step for s in plan.stages] == [2, 2, 1]
    assert [dict(s.batch) for s in plan.stages] == [
        {}, {}, {"batch_size": 2, "global_batch_size": 4},
    ]  # fmt: skip
    assert isinstance(plan.at(149).dataset, Leaf)
    assert plan.stages[1].place.endswith(f"curriculum.yaml:{LINE + 1} (splits.train.stages[0])")
    shares = leaves_with_weights(plan.at(60).dataset)
    assert [float(share) for _, share in shares] == [0.25, 0.75]


def test_stages_alone_and_a_folder_beside_them(mix):
    alone = "train: {stages: [{name: one, start_step: 0, path: {A}}]}"
    assert read_stages(mix(alone)).total_steps is None
    beside = "train: {path: {B}, split_part: val, stages: [{name: one, start_step: 3, path: {A}}]}"
    data = build(mix(beside))
    assert [source.split_part for source in data.sources] == ["val", "train"]
    assert [stage.name for stage in data.plan.stages] == ["default", "one"]


def test_what_is_said_of_the_blend_beside_stages_holds_for_that_blend_alone(mix):
    file = mix(
        """\
        train:
          scheme: exact
          blend: [{path: {A}}, {path: {B}}]
          stages:
            - {name: one, start_step: 9, blend: [{path: {A}}, {path: {B}}]}
        """
    )
    first, second = (stage.dataset.options.get("scheme") for stage in read_stages(file).stages)
    assert (first, second) == ("exact", None)


def test_stages_of_quotas_and_composition(mix):
    file = mix(
        """\
        train:
          steps: 60
          stages:
            - {name: plain, start_step: 0, path: {A}}
            - name: quotas
              start_step: 10
              blend: [{path: {A}, repeat: 0.5}, {path: {B}, choose: 10}]
            - name: composed
              start_step: 20
              epoch_size: 40
              composition: {method: stratified, global_batch_size: 8}
              blend: [{path: {A}, proportion: 3}, {path: {B}, proportion: 1}]
            - {name: ends, start_step: 40, stop: all_exhausted, blend: [{path: {B}}]}
        """
    )
    data = build(file)
    assert len(list(data)) == 60
    check_laws(data, epochs=1)
    for first in range(20, 40, 2):
        refs = data.refs(range(first, first + 2))
        names = [data.sources[number].name for number in refs.source]
        assert (names.count("captions_a"), names.count("captions_b")) == (6, 2)


def test_schedules_count_from_the_start_of_their_stage(mix):
    file = mix(
        """\
        train:
          path: {B}
          stages:
            - name: changes
              start_step: 25
              block_size: 8
              blend: [{path: {A}, weight: {points: {0: 1, 40: 0}}}, {path: {C}, weight: 1}]
        """
    )
    data = build(file)
    kinds = [[kind for *_, kind in item] for item in data.at(range(25, 55))]
    assert all(
        set(item) == {"CaptioningSample", "ImageClassificationSample"} for item in kinds[:10]
    )
    assert all(set(item) == {"ImageClassificationSample"} for item in kinds[10:])


@pytest.mark.parametrize("page", ["stages.md", "metadataset.md"])
def test_what_the_pages_show_is_read(tmp_path, page):
    text = (ROOT / "docs" / page).read_text()
    blocks = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    block = next(block for block in blocks if "stages:" in block).removeprefix("splits:\n")
    file = tmp_path / "mix.yaml"
    file.write_text(HEAD + (block if block[0] == " " else indent(block, "  ")))
    for name in ("web", "maths", "captions", "charts"):
        (tmp_path / "data" / name).mkdir(parents=True)
    plan = read_stages(file)
    assert [stage.steps for stage in plan.stages] == [100, 50]


def test_encoders_by_the_type_of_samples(examples):
    encoders = {CaptioningSample: Keys("caption"), ImageClassificationSample: Keys("class")}
    data = build(examples / "curriculum.yaml", task_encoder=encoders)
    assert all(len({mark for mark, *_ in item}) == 1 for item in data)
    assert {item[0][0] for item in data.at(range(100, 200))} == {"caption", "class"}


def test_a_split_is_chosen_and_may_come_from_another_file(mix):
    mix(
        "tuning: {stages: [{name: one, start_step: 0, path: {A}, split_part: train,"
        " subflavors: {x: 1, y: 1}}]}\n"
        "train: {path: {B}}\n",
        "inner.yaml",
    )
    outer = mix("train: {path: inner.yaml, split_part: tuning, subflavors: {x: 2}}")
    assert isinstance(resolve(outer, "train"), Staged)
    (stage,) = read_stages(outer).stages
    assert stage.dataset.subflavors == {"x": 2, "y": 1}
    inner = outer.parent / "inner.yaml"
    assert build(outer).at(range(5)) == build(inner, split_part="tuning").at(range(5))
    assert not isinstance(build(inner), StagedDataset)
    with pytest.raises(MetadatasetError, match="the split 'train' has no stages"):
        read_stages(inner)


# Running it


def test_the_log_has_the_plan_and_each_transition(examples, caplog):
    caplog.set_level(logging.INFO, logger="energize")
    assert len(list(build(examples / "curriculum.yaml"))) == 250
    assert "data stages: 3, 150 steps" in caplog.text
    assert "step 50: 'default' -> 'classes'" in caplog.text
    assert "step 100: 'classes' -> 'long'" in caplog.text


SHORT = """\
    train:
      path: {A}
      steps: 30
      stages:
        - {name: one, start_step: 10, path: %s}
        - {name: two, start_step: 20, path: %s}
    """


def test_the_laws(mix):
    check_laws(build(mix(SHORT % ("{B}", "{A}"))), epochs=1)


def test_a_state_knows_the_stages_before_it(mix):
    file = mix(SHORT % ("{A}", "{B}"))
    loader = get_loader(build(file))
    whole = list(build(file))
    assert list(islice(loader, 15)) == whole[:15]
    state = loader.state_dict()
    later = get_loader(build(mix(SHORT % ("{A}", "{C}"))))
    later.load_state_dict(state)
    assert list(islice(later, 5)) == whole[15:20]
    with pytest.raises(StateMismatchError, match="captions_b' is new"):
        get_loader(build(mix(SHORT % ("{B}", "{B}")))).load_state_dict(state)


def test_without_carrying_over_each_stage_starts_at_its_beginning(mix):
    file = mix(SHORT % ("{B}", "{A}"))
    whole = list(build(file))
    assert not {key for item in whole[:5] for key in item} & {
        k for item in whole[20:25] for k in item
    }
    anew = get_staged_train_dataset(file, carry_over=False, batch_size=4, task_encoder=KEYS)
    assert list(anew)[20:] == list(anew)[:10] == whole[:10]


def test_plan_and_simulate(examples):
    def run(*arguments):
        done = CliRunner().invoke(app, list(map(str, arguments)))
        assert done.exit_code == 0, done.output
        return done.stdout

    file = examples / "curriculum.yaml"
    lines = run("plan", file, "--at", 199, "--steps", 2, "--batch-size", 4, "--json").splitlines()
    before, after = (json.loads(line)["samples"] for line in lines)
    assert len(before) == 4
    assert [sample["source"] for sample in after] == ["captions_b"] * 2
    told = json.loads(run("simulate", file, "--steps", 250, "--batch-size", 4, "--json"))
    drawn = {each["name"]: each["drawn"] for each in told["sources"]}
    assert sum(drawn.values()) == told["samples"] == 900
    assert drawn["captions_b"] == 100
    assert "captions_b" in run("simulate", file, "--steps", 250)
