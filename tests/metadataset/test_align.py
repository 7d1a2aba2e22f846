"""Batches with the same modalities on all ranks, from arguments and from files."""

from __future__ import annotations

from pathlib import Path

import pytest

from energize import (
    DefaultTaskEncoder,
    get_loader,
    get_train_dataset,
    prepare,
    write_shards,
)
from energize.core.costs import level_costs
from energize.core.padding import padding_rows
from energize.errors import ColumnError, ConfigError
from energize.preparation import prepare_columns
from energize.task.planning import BatchBudget

IMAGES = {"text": lambda number: 0, "pictures": lambda number: number % 2}


class Keys(DefaultTaskEncoder):
    decoder = None

    def encode_sample(self, sample):
        return {"__key__": sample.__key__}

    def batch(self, samples):
        return {"__key__": [sample["__key__"] for sample in samples]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("aligned")
    for name, images in IMAGES.items():
        samples = (
            {
                "__key__": f"{name}-{images(number)}-{number}",
                "txt": "word " * (1 + number % 5),
                "json": {"images": images(number)},
            }
            for number in range(60)
        )
        write_shards(samples, root / name, samples_per_shard=30)
        shards = sorted(file.name for file in (root / name).glob("*.tar"))
        patterns = {"train": shards}
        prepare(
            root / name, split_patterns=patterns, sample_type="TextSample", workers=1
        )
        columns = {"images": "json[images]", "tokens": "size:txt"}
        prepare_columns(root / name, columns, workers=1)
    return root


def written(folder, keys):
    text = f"""
__module__: energize
__class__: MetadatasetV2
splits:
  train:
    blend:
    - {{path: {folder / "text"}, weight: 5}}
    - {{path: {folder / "pictures"}, weight: 1}}
    {keys}
"""
    file = folder / "mix.yaml"
    file.write_text(text)
    return file


def batches(dataset, count=48):
    loader = get_loader(dataset)
    return [batch for batch, _ in zip(loader, range(count), strict=False)]


def has_images(batch):
    return any(key.split("-")[1] == "1" for key in batch["__key__"])


FORMS = [
    "images",
    ["images"],
    {"images": "together"},
    {"columns": "images"},
    {"columns": {"images": "together"}, "global_batch_size": 24},
]


@pytest.mark.parametrize("form", FORMS)
def test_all_forms_of_the_argument_are_equal(folder, form):
    dataset = get_train_dataset(
        written(folder, ""),
        batch_size=2,
        task_encoder=Keys(),
        align=form,
        global_batch_size=24,
    )
    expected = get_train_dataset(
        written(folder, "align: {columns: images, global_batch_size: 24}"),
        batch_size=2,
        task_encoder=Keys(),
    )
    assert dataset.fingerprint == expected.fingerprint


@pytest.mark.parametrize(
    "level", ["", "level: {cost: tokens, global_batch_size: 24}\n    "]
)
def test_steps_of_ranks_are_aligned(folder, level):
    keys = "align: {columns: images, global_batch_size: 24, ranks: 4}"
    dataset = get_train_dataset(
        written(folder, level + keys), batch_size=2, task_encoder=Keys()
    )
    read = batches(dataset)
    steps = [read[first : first + 4] for first in range(0, 48, 4)]
    assert all(len({has_images(batch) for batch in step}) == 1 for step in steps)
    assert {has_images(batch) for batch in read} == {True, False}
    for batch in read:
        assert len(batch["__key__"]) - len(padding_rows(batch)) == 2


def test_always(folder):
    keys = "level: {cost: tokens, global_batch_size: 24}\n    align: {images: always}"
    dataset = get_train_dataset(
        written(folder, keys), batch_size=2, task_encoder=Keys()
    )
    assert all(map(has_images, batches(dataset)))


@pytest.mark.parametrize(
    ("level", "options"),
    [
        ("", {}),
        ("level: {cost: tokens}\n    ", {"level": "tokens"}),
        (
            "level: {cost: {tokens: 1, images: 0.5}}\n    ",
            {"level": {"tokens": 1, "images": 0.5}},
        ),
    ],
)
def test_batches_of_a_budget(folder, level, options):
    budget = {"tokens": 100}
    keys = "batch_budget: {tokens: 100}\n    align: {columns: images, ranks: 4}"
    expected = get_train_dataset(
        written(folder, level + keys), batch_size=None, task_encoder=Keys()
    )
    dataset = get_train_dataset(
        written(folder, ""),
        batch_budget=budget,
        task_encoder=Keys(),
        align={"columns": "images", "ranks": 4},
        **options,
    )
    assert dataset.fingerprint == expected.fingerprint
    assert dataset.level == (level_costs(options["level"]) if options else None)
    read = batches(dataset)
    steps = [read[first : first + 4] for first in range(0, 48, 4)]
    assert all(len({has_images(batch) for batch in step}) == 1 for step in steps)
    assert {has_images(batch) for batch in read} == {True, False}


@pytest.mark.parametrize(
    ("keys", "options", "error", "message"),
    [
        (
            "",
            {"align": "images", "batch_budget": {"tokens": 100}, "batch_size": None},
            ConfigError,
            "with batch_budget, set only align: ranks",
        ),
        (
            "",
            {
                "align": {"columns": "images", "ranks": 2},
                "global_batch_size": 8,
                "level": "tokens",
                "batch_budget": {"tokens": 100},
                "batch_size": None,
            },
            ConfigError,
            "remove global_batch_size",
        ),
        (
            "batch_budget: {tokens: 100}\n    level: {cost: tokens, global_batch_size: 8}",
            {"batch_size": None},
            ConfigError,
            "Set align with ranks",
        ),
        (
            "level: {cost: tokens}\n    align: {columns: images, ranks: 2}",
            {},
            ConfigError,
            "global_batch_size is missing",
        ),
        (
            "",
            {
                "align": {"columns": "images", "ranks": 2},
                "level": {"tokens": 1, "patches": 1},
                "batch_budget": {"tokens": 100},
                "batch_size": None,
            },
            ColumnError,
            "no column 'patches'",
        ),
        (
            "",
            {
                "align": {"columns": "images", "ranks": 2},
                "batch_budget": BatchBudget("tokens", 100, keep_order=True),
                "batch_size": None,
            },
            ConfigError,
            "keep_order",
        ),
        ("", {"align": "images"}, ConfigError, "global_batch_size is missing"),
        (
            "",
            {"align": "image", "global_batch_size": 8},
            ColumnError,
            r"(?s)did you mean 'images'.*energize prepare .*--column",
        ),
        (
            "",
            {"align": "images", "global_batch_size": 8, "packing_buffer_size": 9},
            ConfigError,
            "packing_buffer_size",
        ),
        (
            "align: {columns: images, global_batch_size: 8}",
            {"align": "images", "global_batch_size": 8},
            ConfigError,
            "align is set here, and align by the program",
        ),
        (
            "",
            {"align": "images", "global_batch_size": 8, "batch_size": None},
            ConfigError,
            "align needs batches",
        ),
    ],
)
def test_mistakes(folder, keys, options, error, message):
    given = {"batch_size": 2, "task_encoder": Keys()} | options
    with pytest.raises(error, match=message):
        get_train_dataset(written(folder, keys), **given)
