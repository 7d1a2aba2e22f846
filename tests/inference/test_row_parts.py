"""Which split part a row is of: columns, folders and patterns, from literal rows to
counts."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from energize import get_train_dataset, get_val_dataset, infer
from energize.errors import ConfigError, SplitError
from tests.preparation.test_loose import cache, files, table  # noqa: F401


def labels(root: Path, column: str, values: list, folder: str = "images") -> Path:
    """Write an image and a row for each value of a column."""
    files(root / folder, [f"{n}.jpg" for n in range(len(values))])
    rows = [
        [f"{n}.jpg", f"a picture of thing {n}", value] for n, value in enumerate(values)
    ]
    with open(root / "labels.csv", "w", newline="") as file:
        csv.writer(file).writerows([["filename", "caption", column], *rows])
    return root


ALL = {"train": 1, "val": 1, "test": 1}

COLUMNS = {
    "words": (
        "split",
        ["train", "train", "val", "test"],
        {"train": 2, "val": 1, "test": 1},
    ),
    "other words": ("subset", ["training", "validation", "testing"], ALL),
    "words with others": ("set", ["train_set", "test_set"], {"train": 1, "test": 1}),
    "two held-out parts": (
        "Usage",
        ["Training", "Training", "PublicTest", "PrivateTest"],
        {"train": 2, "PublicTest": 1, "PrivateTest": 1},
    ),
    "words in partition": ("partition", ["train", "dev"], {"train": 1, "dev": 1}),
    "words in fold": ("fold", ["train", "valid"], {"train": 1, "val": 1}),
    "numbers of training": ("is_train", [1, 1, 0], {"train": 2, "test": 1}),
    "truth of training": ("train", ["True", "False", "True"], {"train": 2, "test": 1}),
    "truth of a test": ("is_test", ["false", "true", "false"], {"train": 2, "test": 1}),
    "training only": ("split", ["train", "train"], {"train": 2}),
    "other words of a set": ("subset", ["books", "web", "web"], {"train": 3}),
    "many numbers of a set": ("set", list(range(70001, 70021)), {"train": 20}),
}


@pytest.mark.parametrize("case", COLUMNS)
def test_a_column_states_the_split_part_of_each_row(case, tmp_path):
    column, values, parts = COLUMNS[case]
    assert infer(labels(tmp_path, column, values)).splits == parts


UNCLEAR = {
    "of CelebA": ("partition", [0, 0, 1, 2], "0 (2 rows), 1 (1 row), 2 (1 row)"),
    "of OCR-VQA": ("split", [1, 1, 2, 3], "1 (2 rows), 2 (1 row), 3 (1 row)"),
    "folds": ("fold", [0, 1, 0, 1], "0 (2 rows), 1 (2 rows)"),
    "letters": ("split", ["A", "B", "A"], "A (2 rows), B (1 row)"),
    "valid or validation": (
        "is_valid",
        ["False", "True"],
        "True (1 row), False (1 row)",
    ),
}


@pytest.mark.parametrize("case", UNCLEAR)
def test_values_that_state_no_split_part_are_an_error_whose_lines_work(case, tmp_path):
    column, values, listed = UNCLEAR[case]
    root = labels(tmp_path, column, values)
    with pytest.raises(SplitError) as raised:
        get_train_dataset(root, batch_size=1)
    text = str(raised.value)
    assert listed in text
    assert "or split_by: {} to read all rows as one part" in text
    assert infer(root, split_by={}).splits == {"train": len(values)}
    example = json.loads(
        text.split("split_by: ", 1)[1].split(", or split_by", maxsplit=1)[0]
    )
    parts = infer(root, split_by=example).splits
    assert sum(parts.values()) == len(values)
    assert len(parts) == len({*values})


def test_split_by_gives_the_part_of_each_value_also_in_a_metadataset(tmp_path):
    root = labels(tmp_path / "faces", "partition", [0, 0, 0, 1, 2])
    mapping = {"partition": {0: "train", 1: "val", 2: "test"}}
    assert infer(root, split_by=mapping).splits == {"train": 3, "val": 1, "test": 1}
    mix = tmp_path / "mix.yaml"
    mix.write_text(
        "__module__: energize\n__class__: MetadatasetV2\nsplits:\n  val:\n    path: faces\n"
        "    split_by: {partition: {0: train, 1: val, 2: test}}\n"
    )
    [sample] = get_val_dataset(mix, batch_size=None)
    assert sample.caption == "a picture of thing 3"


@pytest.mark.parametrize(
    ("mapping", "words"),
    [
        (
            {"partition": {0: "train"}},
            r"no split part for these values of 'partition': 1 \(1 row\)",
        ),
        (
            {"partitoin": {0: "train"}},
            "is not a column of the rows.*did you mean 'partition'",
        ),
        ({"partition": {}, "caption": {}}, "split_by must have one column, got 2"),
    ],
)
def test_a_mapping_that_does_not_fit_is_an_error(mapping, words, tmp_path):
    with pytest.raises(ConfigError, match=words):
        infer(labels(tmp_path, "partition", [0, 1]), split_by=mapping)


def test_the_held_out_parts_of_several_flags_are_never_trained_on(tmp_path):
    flags = [(False, False), (False, False), (True, False), (False, True)]
    rows = [
        {"text": f"text {n}", "is_val": v, "is_test": t}
        for n, (v, t) in enumerate(flags)
    ]
    assert infer(table(tmp_path / "a.jsonl", rows)).splits == {
        "train": 2,
        "val": 1,
        "test": 1,
    }


NEAR = {
    "tarin": "'tarin' (1 row, nearly 'train')",
    "vall": "'vall' (1 row, nearly 'val')",
    "tset": "'tset' (1 row, nearly 'test')",
    "restval": "'restval' (1 row, nearly 'val')",
}


@pytest.mark.parametrize("value", NEAR)
def test_values_that_are_nearly_a_split_part_are_a_warning(value, tmp_path, caplog):
    root = labels(tmp_path, "split", ["train", "train", value, "val"])
    caplog.set_level("INFO")
    assert len(get_train_dataset(root, batch_size=1, repeat=False)) == 2
    [record] = [each for each in caplog.records if "2 samples as" in each.getMessage()]
    assert record.levelname == "WARNING"
    assert f"Other split parts: {value} (1 row), val (1 row)" in record.getMessage()
    assert NEAR[value] in record.getMessage()
    assert f"Write split_part: {value!r}" in record.getMessage()


def test_a_summary_lists_the_other_split_parts_of_folders_and_near_names(tmp_path):
    files(tmp_path, ["train/0.jpg", "train/1.jpg", "val/2.jpg", "tset/3.jpg"])
    spec = infer(tmp_path)
    assert spec.other_parts == ("val (1 file)",)
    assert spec.notes == (
        "'tset' is not a split part but is similar to 'test': 1 file. Rename it if it is one",
    )


def test_rows_without_a_value_are_counted(tmp_path):
    spec = infer(labels(tmp_path, "split", ["train", "train", "", "val"]))
    assert spec.splits == {"train": 2, "val": 1}
    assert spec.notes == (
        "1 row left out, which have no value in 'split'. Write the part of each",
    )


# Rows and folders.


def rows_of(root: Path, names: list[str], parts: list[str] | None = None) -> Path:
    """Write images, and a table of JSON that names them, with a column `split` or
    without."""
    files(root, names)
    rows = [
        {"filename": name, "caption": f"a thing {n}"} for n, name in enumerate(names)
    ]
    if parts:
        rows = [{**row, "split": part} for row, part in zip(rows, parts, strict=True)]
    (root / "all.json").write_text(json.dumps(rows))
    return root


@pytest.mark.parametrize(
    "folder", ["train", "train_images", "coco/train2014", "images", "val2014"]
)
def test_rows_decide_where_folders_say_otherwise(folder, tmp_path):
    names = [f"{folder}/{n}.jpg" for n in range(6)]
    parts = ["train", "train", "train", "val", "test", "test"]
    spec = infer(rows_of(tmp_path, names, parts))
    assert spec.splits == {"train": 3, "val": 1, "test": 2}
    against = [note for note in spec.notes if "the rows decide" in note]
    assert len(against) == {"images": 0}.get(folder, 2)


def test_images_of_karpathy_are_of_the_parts_of_their_rows(tmp_path):
    names = [f"train2014/{n}.jpg" for n in range(3)] + [
        f"val2014/{n}.jpg" for n in range(3, 7)
    ]
    parts = ["train", "train", "train", "restval", "restval", "val", "test"]
    spec = infer(rows_of(tmp_path, names, parts))
    assert spec.splits == {"train": 3, "restval": 2, "val": 1, "test": 1}
    assert (
        "1 row of all.json have 'test' in 'split' and name media in folders of 'val': the rows "
        "decide"
    ) in spec.notes


WHOLE = {
    "two parts among others": [
        "coco/train2017/0.jpg",
        "coco/val2017/1.jpg",
        "vg/2.jpg",
    ],
    "a test among others": [
        *("coco/train2017/0.jpg", "gqa/images/1.jpg", "textvqa/train_images/2.jpg"),
        "textvqa/test_images/3.jpg",
    ],
    "training beside others": ["train2017/0.jpg", "vg/1.jpg"],
}


@pytest.mark.parametrize("case", WHOLE)
@pytest.mark.parametrize("suffix", [".json", ".csv"])
def test_folders_of_several_datasets_do_not_divide_a_table(case, suffix, tmp_path):
    names = WHOLE[case]
    rows_of(tmp_path, names)
    if suffix == ".csv":
        (tmp_path / "all.json").unlink()
        rows = [f"{name},a thing {n}" for n, name in enumerate(names)]
        (tmp_path / "all.csv").write_text("\n".join(["filename,caption", *rows]))
    spec = infer(tmp_path)
    assert spec.splits == {"train": len(names)}
    assert any("names media in and outside of" in note for note in spec.notes)


def test_folders_of_split_parts_divide_a_table_if_every_row_is_in_one(tmp_path):
    root = rows_of(tmp_path, ["train/0.jpg", "train/1.jpg", "val/2.jpg", "test/3.jpg"])
    assert infer(root).splits == {"test": 1, "train": 2, "val": 1}


def test_folders_beside_split_parts_are_an_error_that_lists_the_readings(tmp_path):
    root = rows_of(tmp_path, ["train/0.jpg", "test/1.jpg", "extra/2.jpg"])
    with pytest.raises(
        SplitError, match=r"test, train.*1 row in none of them: extra\."
    ):
        infer(root)
    assert infer(root, files=["**"]).splits == {"train": 3}


def test_a_table_of_a_split_part_keeps_rows_whose_images_are_in_other_folders(tmp_path):
    files(tmp_path, ["train_images/0.jpg", "train_images/1.jpg", "val_images/2.jpg"])
    (tmp_path / "train.csv").write_text(
        "filename,caption\ntrain_images/0.jpg,a thing\n"
    )
    (tmp_path / "val.csv").write_text(
        "filename,caption\ntrain_images/1.jpg,b thing\nval_images/2.jpg,c thing\n"
    )
    assert infer(tmp_path).splits == {"train": 1, "val": 2}


def test_a_table_of_names_and_parts_alone_lists_the_parts_of_classes(tmp_path):
    names = ["cat/0.jpg", "dog/1.jpg", "cat/2.jpg", "dog/3.jpg"]
    files(tmp_path, names)
    parts = ("train", "train", "test", "test")
    rows = [f"{name},{part}" for name, part in zip(names, parts, strict=True)]
    (tmp_path / "splits.csv").write_text("\n".join(["filename,split", *rows]))
    spec = infer(tmp_path)
    assert (spec.format, spec.splits) == ("classes", {"train": 2, "test": 2})


def test_rows_against_the_name_of_their_file_are_an_error_whose_lines_work(tmp_path):
    root = labels(tmp_path, "split", ["train", "train", "test"])
    (root / "labels.csv").rename(root / "train.csv")
    with pytest.raises(
        SplitError, match=r"the split part 'train'.*rows of test \(1 row\)"
    ):
        infer(root)
    assert infer(root, split_by={}).splits == {"train": 3}
    by_rows = {"split": {"train": "train", "test": "test"}}
    assert infer(root, split_by=by_rows).splits == {"train": 2, "test": 1}


# What is asked for.


@pytest.mark.parametrize("part", ["test", "testmini"])
def test_held_out_data_alone_are_no_training_data(part, tmp_path):
    rows = [{"text": f"text {n}"} for n in range(3)]
    table(tmp_path / f"{part}-00000-of-00001.jsonl", rows)
    table(tmp_path / "val-00000-of-00001.jsonl", rows)
    with pytest.raises(SplitError, match=r"has only held-out data.*To train on it"):
        get_train_dataset(tmp_path, batch_size=1)


def test_a_file_whose_rows_are_all_held_out_is_no_training_data(tmp_path):
    rows = [{"text": f"text {n}", "split": "validation"} for n in range(3)]
    path = table(tmp_path / "a.jsonl", rows)
    with pytest.raises(
        SplitError, match=r"only held-out data: 'val'.*write split_part='val'"
    ):
        get_train_dataset(path, batch_size=1)
    assert (
        len(get_train_dataset(path, batch_size=1, repeat=False, split_part="val")) == 3
    )
    assert infer(path).splits == {"val": 3}


def test_a_missing_part_names_the_parts_that_exist(tmp_path):
    root = labels(tmp_path, "split", ["train", "test"])
    with pytest.raises(
        SplitError, match=r"no split part 'val'. Its split parts are 'train', 'test'"
    ):
        get_val_dataset(root, batch_size=1)


# Patterns of README.md.


def hub(root: Path, configs: str, *names: str) -> Path:
    """Write a README.md with configurations, and files of two rows."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        table(root / name, [{"text": f"{name} {n}"} for n in range(2)])
    (root / "README.md").write_text(f"---\nconfigs:\n{configs}---\n")
    return root


_TRAIN = "- config_name: default\n  data_files:\n  - split: train\n    path: {}\n"
_VAL = "  - split: validation\n    path: {}\n"


def test_a_pattern_that_takes_held_out_files_for_training_is_an_error(tmp_path):
    configs = _TRAIN.format("data/*.jsonl") + _VAL.format("data/validaton-*")
    root = hub(tmp_path, configs, "data/train-0.jsonl", "data/validation-0.jsonl")
    with pytest.raises(
        SplitError, match=r"held out: 'data/validation-0\.jsonl'\. Write files: \["
    ):
        infer(root)
    assert infer(root, files=["data/train-0.jsonl"]).splits == {"train": 2}
    assert infer(root, files=["data/*.jsonl"]).splits == {"train": 4}


def test_a_pattern_that_matches_no_file_is_a_note(tmp_path):
    configs = _TRAIN.format("data/train-*") + _VAL.format("data/validaton-*")
    root = hub(tmp_path, configs, "data/train-0.jsonl", "data/validation-0.jsonl")
    spec = infer(root)
    assert spec.splits == {"train": 2}
    assert "'val" in spec.notes[0]
    assert "'data/validaton-*', but no file matches it" in spec.notes[0]


def test_a_file_that_readme_names_for_training_is_trained_on(tmp_path):
    root = hub(tmp_path, _TRAIN.format("pairs_test.jsonl"), "pairs_test.jsonl")
    assert infer(root).splits == {"train": 2}


def test_the_default_configuration_is_read_and_the_others_are_listed(tmp_path):
    configs = "".join(
        f"- config_name: {name}\n  default: {str(name == 'fr').lower()}\n"
        f"  data_files: {name}/*.jsonl\n"
        for name in ("en", "fr")
    )
    spec = infer(hub(tmp_path, configs, "en/a.jsonl", "en/b.jsonl", "fr/a.jsonl"))
    assert spec.splits == {"train": 2}
    assert "'fr' is its default" in spec.notes[0]
    assert 'write files: ["en/*.jsonl"]' in spec.notes[0]
