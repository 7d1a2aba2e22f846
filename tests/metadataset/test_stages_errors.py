"""Stages in a split of a metadataset: what is wrong with them, and where."""

from __future__ import annotations

import pytest

from energize import (
    ConfigError,
    MetadatasetError,
    build_stage,
    get_staged_train_dataset,
    get_train_dataset,
    get_val_dataset,
    get_val_datasets,
    read_stages,
)
from energize.metadataset import leaves_with_weights, resolve
from tests.support.metadatasets import beside_folders
from tests.support.staged_files import HEAD, KEYS, LINE, build, writer_beside


@pytest.fixture(scope="module")
def examples(tmp_path_factory):
    return beside_folders(tmp_path_factory.mktemp("staged"))


@pytest.fixture
def mix(examples, request):
    return writer_beside(examples, request)


def fault(file, ask=build, kind=MetadatasetError):
    with pytest.raises(kind) as caught:
        ask(file)
    return str(caught.value).replace(str(file), "mix.yaml")


ONE = "{name: one, start_step: 0, path: {A}}"
FAULTS = {
    "empty": ("train: {stages: []}", "mix.yaml:4 (splits.train.stages): "),
    "no list": ("train: {stages: 3}", "(splits.train.stages): expected a list; got 3"),
    "no stage": ("train: {stages: [3]}", "(splits.train.stages[0]): expected a"),
    "no data": (
        "train:\n  stages:\n    - {name: one, start_step: 0}",
        "mix.yaml:6 (splits.train.stages[0]",
    ),
    "no name": (
        "train:\n  stages:\n    - {start_step: 0, path: {A}}",
        "mix.yaml:6 (splits.train.stages[0].name): the key 'name' is missing",
    ),
    "misspelt": (
        "train:\n  stages:\n    - name: one\n      strat_step: 0\n      path: {A}",
        "mix.yaml:7 (splits.train.stages[0].strat_step): unknown key 'strat_step'; did you mean "
        "'start_step'?",
    ),
    "misspelt stages": (f"train: {{stgaes: [{ONE}]}}", "'stgaes'; did you mean 'stages'?"),
    "misspelt in a blend": (
        "train: {stages: [{name: one, start_step: 0, blend: [{path: {A}, wieght: 1}]}]}",
        "(splits.train.stages[0].blend[0].wieght): unknown key 'wieght'; did you mean 'weight'?",
    ),
    "key of a stage file": (
        "train: {stages: [{name: one, start_step: 0, path: {A}, dataset_random_seed: 3}]}",
        "(splits.train.stages[0].dataset_random_seed): the key 'dataset_random_seed' has no place",
    ),
    "underscores": (
        f"train: {{steps: 10_000, stages: [{ONE}]}}",
        "(splits.train.steps): expected an integer; got '10_000'",
    ),
    "scheme of a folder": (
        "train: {stages: [{name: one, start_step: 0, path: {A}, scheme: exact}]}",
        "stages[0].scheme): the key 'scheme' has no place here",
    ),
    "scheme beside stages alone": (
        f"train: {{scheme: exact, stages: [{ONE}]}}",
        "(splits.train.scheme): the key 'scheme' has no place here",
    ),
    "sequence length without stages": (
        "train: {path: {A}, seq_len: 3}",
        "(splits.train.seq_len): the key 'seq_len' has no place here; it stands beside 'stages'",
    ),
    "steps without stages": (
        "train: {path: {A}, steps: 3}",
        "(splits.train.steps): the key 'steps' has no place here; it stands beside 'stages'",
    ),
    "no steps": (
        f"train: {{steps: 0, stages: [{ONE}]}}",
        "(splits.train.steps): expected greater than 0; got 0",
    ),
    "seed": (
        "train: {stages: [{name: one, start_step: 0, path: {A}, seed: -1}]}",
        "stages[0].seed): expected greater than or equal to 0; got -1",
    ),
    "batch": (
        "train: {stages: [{name: one, start_step: 0, path: {A}, batch: 3}]}",
        "stages[0].batch): expected a mapping; got 3",
    ),
    "path and blend": (
        "train: {stages: [{name: one, start_step: 0, path: {A}, blend: [{path: {A}}]}]}",
        "stages[0].path): 'blend' and 'path' are given",
    ),
    "stages in a stage": (
        f"train: {{stages: [{{name: two, start_step: 0, path: x, stages: [{ONE}]}}]}}",
        "(splits.train.stages[0].stages): the key 'stages' has no place here; stages are parts",
    ),
    "stages in a blend": (
        f"train: {{blend: [{{weight: 1, stages: [{ONE}]}}]}}",
        "(splits.train.blend[0].stages): the key 'stages' has no place here; stages are parts",
    ),
    "gap": (
        "train:\n  stages:\n    - {name: one, start_step: 0, end_step: 4, path: {A}}\n"
        "    - {name: two, start_step: 5, path: {A}}",
        "steps 4 to 5 belong to no stage: mix.yaml:6 (splits.train.stages[0]): stage 'one' ends at "
        "4, and mix.yaml:7 (splits.train.stages[1]): stage 'two' starts at 5",
    ),
    "overlap": (
        "train:\n  stages:\n    - {name: one, start_step: 0, end_step: 6, path: {A}}\n"
        "    - {name: two, start_step: 5, path: {A}}",
        "steps 5 to 6 belong to two stages",
    ),
    "leading gap": (
        "train: {stages: [{name: one, start_step: 5, path: {A}}]}",
        "mix.yaml:4 (splits.train.stages): steps 0 to 5 belong to no stage",
    ),
    "never runs": (
        f"train:\n  steps: 9\n  stages:\n    - {ONE}\n"
        "    - {name: b, start_step: 9, path: {A}}",
        "mix.yaml:8 (splits.train.stages[1]): stage 'b' would never run",
    ),
    "default never runs": (
        f"train: {{path: {{A}}, stages: [{ONE}]}}",
        "mix.yaml:4 (splits.train): stage 'default' would never run",
    ),
    "too short": (
        "train: {steps: 9, stages: [{name: one, start_step: 0, end_step: 5, path: {A}}]}",
        "steps 5 to 9 belong to no stage",
    ),
    "one name": (
        "train: {stages: [{name: one, start_step: 0, path: {A}}, {name: one, start_step: 5,"
        " path: {A}}]}",
        "stage 'one': the name is taken by mix.yaml:4 (splits.train.stages[0])",
    ),
    "name of the default": (
        "train: {path: {A}, stages: [{name: default, start_step: 5, path: {A}}]}",
        "stage 'default': the name is taken by mix.yaml:4 (splits.train); rename",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_have_their_places(mix, name):
    written, message = FAULTS[name]
    told = fault(mix(written))
    assert message in told
    assert told.startswith(("mix.yaml:", "2 errors in mix.yaml:\n  1. mix.yaml:4"))


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (HEAD.replace("energize", "megatron.energon"), "needs `__module__: energize`"),
        (HEAD.replace("MetadatasetV2", "Metadataset"), "it needs `__class__: MetadatasetV2`"),
    ],
)
def test_other_grammars_have_no_stages(mix, head, message):
    told = fault(mix(f"train: {{stages: [{ONE}]}}", head=head))
    assert "(splits.train.stages): " in told
    assert message in told


NESTED = {
    "entry": ("train: {blend: [{path: {A}}, {path: curriculum.yaml}]}", "blend[1].path"),
    "deeper entry": ("train: {blend: [{path: middle.yaml}]}", "blend[0].path"),
    "stage": (
        "train: {stages: [{name: one, start_step: 0, path: curriculum.yaml}]}",
        "stages[0].path",
    ),
    "default": (
        "train: {path: curriculum.yaml, stages: [{name: one, start_step: 3, path: {A}}]}",
        "path",
    ),
}


@pytest.mark.parametrize("name", NESTED)
def test_what_has_stages_is_no_part_of_anything(mix, name):
    mix("train: {path: curriculum.yaml}", "middle.yaml")
    written, place = NESTED[name]
    told = fault(mix(written))
    assert told.startswith(f"mix.yaml:4 (splits.train.{place}): this has stages, at ")
    assert f"curriculum.yaml:{LINE} (splits.train.stages)" in told
    assert "name a split without stages with `split_part`" in told


@pytest.mark.parametrize("ask", [get_val_dataset, get_val_datasets])
def test_validation_has_no_steps(examples, ask):
    file = examples / "curriculum.yaml"

    def validate(file):
        return ask(file, batch_size=2, split_part="train", task_encoder=KEYS)

    told = fault(file, validate)
    assert "and validation reads every sample once; name a split without stages" in told
    assert ask(file, batch_size=2, task_encoder=KEYS)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"repeat": False}, "repeat=False reads once what is there"),
        ({"virtual_epoch_length": 5}, "virtual_epoch_length=5 cuts epochs, and stages are one"),
    ],
)
@pytest.mark.parametrize("ask", [get_train_dataset, get_staged_train_dataset])
def test_stages_are_one_epoch(examples, ask, option, message):
    told = fault(
        examples / "curriculum.yaml", lambda f: ask(f, batch_size=2, **option), ConfigError
    )
    assert told.startswith(f"mix.yaml: {message}")


@pytest.mark.parametrize("size", ["0", "null", "'4'", "true"])
def test_the_batch_size_of_a_stage(mix, size):
    batch = f"batch: {{batch_size: {size}}}"
    file = mix(f"train: {{stages: [{{name: one, start_step: 0, path: {{A}}, {batch}}}]}}")
    for ask in (get_train_dataset, get_staged_train_dataset):
        told = fault(file, lambda f, ask=ask: ask(f, batch_size=2), ConfigError)
        assert told.startswith(
            "mix.yaml:4 (splits.train.stages[0]): stage 'one': batch_size in its"
        )


def test_the_split_is_chosen_where_stages_are_read(examples):
    stage = read_stages(examples / "curriculum.yaml").at(0)
    with pytest.raises(TypeError, match="multiple values for keyword argument 'split_part'"):
        build_stage(stage, batch_size=2, split_part="val")
    with pytest.raises(TypeError, match="'batch_size'"):
        build_stage(stage)


def test_stages_have_no_shares_of_their_own(examples):
    with pytest.raises(ConfigError, match="each stage has shares of its own"):
        leaves_with_weights(resolve(examples / "curriculum.yaml", "train"))
