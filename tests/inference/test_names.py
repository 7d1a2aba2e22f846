"""What names of files, folders and columns mean: literal names, literal parts."""

from __future__ import annotations

from pathlib import Path

import pytest

from energize.errors import SplitError
from energize.inference.inventory import Inventory, kind_of
from energize.inference.references import MediaIndex, template_of
from energize.inference.sidecars import find_sidecars
from energize.inference.splits import find_splits

PARTS = {
    "folders": (["train/0.jpg", "val/1.jpg"], {"train": 1, "val": 1}),
    "other words": (["training/0.jpg", "validation/1.jpg"], {"train": 1, "val": 1}),
    "capitals": (
        ["Train/0.jpg", "Valid/1.jpg", "TEST/2.jpg"],
        {"train": 1, "val": 1, "test": 1},
    ),
    "with years": (["train2017/0.jpg", "val2017/1.jpg"], {"train": 1, "val": 1}),
    "with a word": (
        ["train_images/0.jpg", "test_images/1.jpg"],
        {"train": 1, "test": 1},
    ),
    "below": (["images/train/0.jpg", "images/val/1.jpg"], {"train": 1, "val": 1}),
    "above": (["train/images/0.jpg", "val/images/1.jpg"], {"train": 1, "val": 1}),
    "in classes": (["cat/train/0.jpg", "cat/val/1.jpg"], {"train": 1, "val": 1}),
    "files": (["train.jsonl", "dev.jsonl"], {"train": 1, "dev": 1}),
    "of the hub": (
        ["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"],
        {"train": 2},
    ),
    "of the hub, by names": (
        [
            "data/train_sft-00000-of-00001-ab12.parquet",
            "data/test_sft-00000-of-00001.parquet",
        ],
        {"train_sft": 1, "test_sft": 1},
    ),
    "testA of the hub": (
        ["data/testA-00000-of-00001.parquet", "data/testB-00000-of-00001.parquet"],
        {"testA": 1, "testB": 1},
    ),
    "at the end": (
        ["my-pairs-train.parquet", "my-pairs-test.parquet"],
        {"train": 1, "test": 1},
    ),
    "in the middle": (
        ["coco_val_captions.json", "coco_train_captions.json"],
        {"train": 1, "val": 1},
    ),
    "of shards": (
        ["imagenet-train-000000.tar", "imagenet-val-000000.tar"],
        {"train": 1, "val": 1},
    ),
    "camels": (["cocoTrain2014.json", "cocoVal2014.json"], {"train": 1, "val": 1}),
    "held out": (["a.jsonl", "a_held_out.jsonl"], {"test": 1}),
    "of a partition": (["list_eval_partition.csv", "0.jpg"], {}),
    "of two words": (["train_test_split.csv", "0.jpg"], {}),
    "inside words": (["contest.jsonl", "latest.jsonl", "trainer.jsonl"], {}),
    "of images": (["train_1.jpg", "test_1.jpg"], {}),
    "of texts of images": (
        ["train_1.jpg", "train_1.txt", "test_1.jpg", "test_1.txt"],
        {},
    ),
    "of many classes": (
        ["bullet_train/0.jpg", "cat/0.jpg", "dog/0.jpg", "emu/0.jpg"],
        {},
    ),
    "beside others": (
        ["train/0.jpg", "test/0.jpg", "extra/0.jpg"],
        {"train": 1, "test": 1},
    ),
    "with annotations": (
        ["train2017/0.jpg", "val2017/1.jpg", "annotations/captions_train2017.json"],
        {"train": 2, "val": 1},
    ),
}


def inventory(*names: str) -> Inventory:
    return Inventory(Path("data"), {name: kind_of(name) or "other" for name in names})


@pytest.mark.parametrize("case", PARTS)
def test_names_say_which_split_part_a_file_is_of(case):
    names, parts = PARTS[case]
    splits = find_splits(inventory(*names))
    assert {part: len(files) for part, files in splits.parts.items()} == parts
    assert not splits.doubt


DOUBTS = {
    "a class or a part": ["train/0.jpg", "bus/0.jpg", "car/0.jpg"],
    "held out or a class": ["test/0.jpg", "images/0.jpg"],
    "configurations": ["en/test.parquet", "cn/test.parquet"],
    "configurations of shards": [
        "ai2d/train-00000-of-00001.parquet",
        "vqav2/train-00000-of-00003.parquet",
    ],
    "two folders of tars": ["web/00000.tar", "books/00000.tar"],
}


@pytest.mark.parametrize("case", DOUBTS)
def test_names_of_several_meanings_are_an_error_that_lists_them(case):
    splits = find_splits(inventory(*DOUBTS[case]))
    with pytest.raises(SplitError, match=r"Write (files: |one of these)"):
        splits.part_named("train", "data")


ASKED = [
    ({"train": 1, "val": 1}, "validation", "val"),
    ({"train": 1, "dev": 1}, "val", "dev"),
    ({"train": 1, "dev": 1, "val": 1}, "val", "val"),
    ({"train": 1, "dev": 1, "val": 1}, "dev", "dev"),
    ({"train": 1, "eval": 1}, "valid", "eval"),
    ({"train_sft": 1, "test_sft": 1}, "train_sft", "train_sft"),
]


@pytest.mark.parametrize(("parts", "asked", "found"), ASKED)
def test_a_split_part_is_found_by_its_other_names(parts, asked, found):
    splits = find_splits(inventory(*(f"{part}.jsonl" for part in parts)))
    splits = type(splits)(dict.fromkeys(parts, ("a",)))
    assert splits.part_named(asked, "data") == found


@pytest.mark.parametrize("asked", ["train", "test", "val"])
def test_parts_of_other_names_are_never_merged(asked):
    splits = find_splits(
        inventory(
            "data/train_sft-00000-of-00001.parquet",
            "data/test_sft-00000-of-00001.parquet",
        )
    )
    with pytest.raises(
        SplitError, match=r"parts are 'train_sft', 'test_sft'\. Write split_part="
    ):
        splits.part_named(asked, "data")


NAMED = {
    "a path": ("images/7.jpg", ["images/7.jpg"], "images/7.jpg"),
    "a path with a dot": ("./7.jpg", ["7.jpg"], "7.jpg"),
    "of Windows": ("images\\7.jpg", ["images/7.jpg"], "images/7.jpg"),
    "a name": ("7.jpg", ["a/7.jpg"], "a/7.jpg"),
    "a name of two": ("7.jpg", ["a/7.jpg", "b/7.jpg"], None),
    "a name of two, with a folder": ("x/b/7.jpg", ["a/7.jpg", "b/7.jpg"], "b/7.jpg"),
    "without extension": ("0a1b", ["train/0a1b.jpg"], "train/0a1b.jpg"),
    "a number": (
        7,
        ["COCO_train_000007.jpg", "COCO_train_000017.jpg"],
        "COCO_train_000007.jpg",
    ),
    "decomposed": ("caf\u00e9.jpg", ["cafe\u0301.jpg"], "cafe\u0301.jpg"),
    "nothing": ("8.jpg", ["7.jpg"], None),
    "a flag": (True, ["1.jpg"], None),
    "a class": ("cat", ["cat/7.jpg"], None),
}


@pytest.mark.parametrize("case", NAMED)
def test_a_value_names_a_file_or_none(case):
    value, files, found = NAMED[case]
    _, paths = MediaIndex(files).find(value)
    assert (paths == [found]) if found else (len(paths) != 1)


TEMPLATES = [
    ("7.jpg", "images/7.jpg", "images/{}"),
    ("0a1b", "train/0a1b.jpg", "train/{}.jpg"),
    (7, "COCO_train2014_000000000007.jpg", "COCO_train2014_{:012d}.jpg"),
    (7, "VG_100K/7.jpg", "VG_100K/{}.jpg"),
    ("a/7.jpg", "b/7.jpg", None),
]


@pytest.mark.parametrize(("value", "path", "template"), TEMPLATES)
def test_a_value_becomes_a_path_by_a_template(value, path, template):
    assert template_of(value, path) == template


SIDECARS = {
    "beside": (["0.jpg"], ["0.txt"], [("0.txt", "txt", ("0.jpg",))]),
    "with the whole name": (
        ["0.jpg"],
        ["0.jpg.txt"],
        [("0.jpg.txt", "txt", ("0.jpg",))],
    ),
    "capitals": (["0.JPG"], ["0.TXT"], [("0.TXT", "txt", ("0.JPG",))]),
    "of two images": (
        ["0.jpg", "0.png"],
        ["0.txt"],
        [("0.txt", "txt", ("0.jpg", "0.png"))],
    ),
    "in a tree": (
        ["images/0.jpg"],
        ["labels/0.txt"],
        [("labels/0.txt", "labels", ("images/0.jpg",))],
    ),
    "in a tree of parts": (
        ["images/train/0.jpg"],
        ["labels/train/0.txt"],
        [("labels/train/0.txt", "labels", ("images/train/0.jpg",))],
    ),
    "in a tree of classes": (
        ["images/cat/0.jpg", "images/dog/0.jpg"],
        ["text/cat/0.txt", "text/dog/0.txt"],
        [
            ("text/cat/0.txt", "text", ("images/cat/0.jpg",)),
            ("text/dog/0.txt", "text", ("images/dog/0.jpg",)),
        ],
    ),
    "lost": (
        ["0.jpg"],
        ["0.txt", "1.txt"],
        [("0.txt", "txt", ("0.jpg",)), ("1.txt", "txt", ())],
    ),
    "a list": (["0.jpg", "1.jpg"], ["train.txt"], []),
    "a table": (["a/0.jpg"], ["b/0.csv"], []),
}


@pytest.mark.parametrize("case", SIDECARS)
def test_files_belong_to_images_by_their_names(case):
    media, others, found = SIDECARS[case]
    sidecars = find_sidecars(
        media, {name: kind_of(name) for name in others}, {"train", "val"}
    )
    assert [(each.name, each.column, each.owners) for each in sidecars] == found


def test_a_missing_part_to_validate_on_is_never_answered_with_held_out_data():
    splits = find_splits(inventory("train/a.jsonl", "test/a.jsonl"))
    with pytest.raises(SplitError, match=r"Write split_part='train', subset=\{'range'"):
        splits.part_named("val", "data")
