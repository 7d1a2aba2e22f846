"""Stages in a split of a metadataset: what is wrong with them, and where."""

from __future__ import annotations

import pytest

from energize import (
    ConfigError,
    MetadatasetError,
    get_train_dataset,
    get_val_dataset,
    get_val_datasets,
)
from energize.experimental import build_stage, get_staged_train_dataset, read_stages
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


def test_other_grammars_have_no_stages(mix):
    for ours, theirs, words in [
        ("energize", "megatron.energon", "needs `__module__: energize`"),
        ("energize", "energize.energon", "needs `__module__: energize`"),
        ("MetadatasetV2", "Metadataset", "it needs `__class__: MetadatasetV2`"),
    ]:
        told = fault(
            mix(f"train: {{stages: [{ONE}]}}", head=HEAD.replace(ours, theirs))
        )
        assert "(splits.train.stages): " in told
        assert words in told


NESTED = [
    ("train: {blend: [{path: {A}}, {path: curriculum.yaml}]}", "blend[1].path"),
    ("train: {blend: [{path: middle.yaml}]}", "blend[0].path"),
    (
        "train: {stages: [{name: one, start_step: 0, path: curriculum.yaml}]}",
        "stages[0].path",
    ),
    (
        "train: {path: curriculum.yaml, stages: [{name: one, start_step: 3, path: {A}}]}",
        "path",
    ),
]


def test_what_has_stages_is_no_part_of_anything(mix):
    mix("train: {path: curriculum.yaml}", "middle.yaml")
    for written, place in NESTED:
        told = fault(mix(written))
        assert told.startswith(
            f"mix.yaml:4 (splits.train.{place}): this has stages, at "
        )
        assert f"curriculum.yaml:{LINE} (splits.train.stages)" in told
        assert "Set `split_part` to a split without stages" in told


@pytest.mark.parametrize("ask", [get_val_dataset, get_val_datasets])
def test_validation_has_no_steps(examples, ask):
    file = examples / "curriculum.yaml"

    def validate(file):
        return ask(file, batch_size=2, split_part="train", task_encoder=KEYS)

    told = fault(file, validate)
    assert "and validation reads every sample once. Set `split_part` to a split" in told
    assert ask(file, batch_size=2, task_encoder=KEYS)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"repeat": False}, "repeat=False reads once what is there"),
        (
            {"virtual_epoch_length": 5},
            "virtual_epoch_length=5 cuts epochs, but stages are one",
        ),
    ],
)
@pytest.mark.parametrize("ask", [get_train_dataset, get_staged_train_dataset])
def test_stages_are_one_epoch(examples, ask, option, message):
    told = fault(
        examples / "curriculum.yaml",
        lambda f: ask(f, batch_size=2, **option),
        ConfigError,
    )
    assert told.startswith(f"mix.yaml: {message}")


@pytest.mark.parametrize("size", ["0", "null", "'4'", "true"])
def test_the_batch_size_of_a_stage(mix, size):
    batch = f"batch: {{batch_size: {size}}}"
    file = mix(
        f"train: {{stages: [{{name: one, start_step: 0, path: {{A}}, {batch}}}]}}"
    )
    for ask in (get_train_dataset, get_staged_train_dataset):
        told = fault(file, lambda f, ask=ask: ask(f, batch_size=2), ConfigError)
        assert told.startswith(
            "mix.yaml:4 (splits.train.stages[0]): stage 'one': batch_size in its"
        )


def test_the_split_is_chosen_where_stages_are_read(examples):
    stage = read_stages(examples / "curriculum.yaml").at(0)
    with pytest.raises(
        TypeError, match="multiple values for keyword argument 'split_part'"
    ):
        build_stage(stage, batch_size=2, split_part="val")
    with pytest.raises(ConfigError, match="batch_size is missing"):
        build_stage(stage)


def test_stages_have_no_shares_of_their_own(examples):
    with pytest.raises(ConfigError, match="each stage has its own shares"):
        leaves_with_weights(resolve(examples / "curriculum.yaml", "train"))
