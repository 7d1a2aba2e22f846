"""Folders of samples, keys of tables, parts that cannot be read, and files in other
folders."""

from __future__ import annotations

import json
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from energize import get_train_dataset, get_val_dataset, infer
from energize.errors import (
    ConfigError,
    DatasetError,
    DatasetNotFoundError,
    EnergizeError,
)
from tests.cli.commands import run
from tests.preparation.test_loose import JPEG, cache, files  # noqa: F401
from tests.support.refusals import check_refusals

read = partial(get_val_dataset, split_part="train", batch_size=None)


def put(path: Path, value: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


# Folders of classes, and folders of samples.


IN_TEN = [*range(10)]
FOLDERS = {
    "letters": (["a/0.jpg", "b/1.jpg", "c/2.jpg"], {}, ("classes", ("a", "b", "c"))),
    "one name": (["cat/0.jpg", "dog/0.jpg"], {}, ("classes", ("cat", "dog"))),
    "one name that is no number": (
        ["cat/face.jpg", "dog/face.jpg"],
        {},
        ("classes", ("cat", "dog")),
    ),
    "one image each": (
        [f"bird {n}/{n}.jpg" for n in range(5)],
        {},
        ("classes", tuple(f"bird {n}" for n in range(5))),
    ),
    "classes of their own in each part": (
        [
            f"{folder}/{n}.jpg"
            for folder in ("train/owl", "train/jay", "val/emu", "val/kea")
            for n in range(3)
        ],
        {},
        ("classes", ("emu", "jay", "kea", "owl")),
    ),
    "a list of classes": (
        [f"{name}/{n}.jpg" for name in ("owl", "jay") for n in range(4)],
        {
            "names.json": [
                {"id": "owl", "text": "an owl"},
                {"id": "jay", "text": "a jay"},
            ]
        },
        ("classes", ("jay", "owl")),
    ),
    "keys of an object": (
        [f"{n}/image.png" for n in IN_TEN],
        {"problems.json": {str(n): {"question": f"What is {n}?"} for n in IN_TEN}},
        "10 folders have 10 images; each has the file 'image.png'; 'key' of problems.json has",
    ),
    "numbers in a table": (
        [f"item{n}/{n}.jpg" for n in IN_TEN],
        {"rows.csv": "item,price\n" + "".join(f"item{n},{n}\n" for n in IN_TEN)},
        "10 folders have 10 images; 'item' of rows.csv has their names",
    ),
    "parts without a common folder": (
        [
            f"{part}/{part[0]}{n}/scan.png"
            for part in ("train", "val")
            for n in range(4)
        ],
        {},
        "each has the file 'scan.png'; split parts have no folder in common",
    ),
    "texts of their own": (
        [f"s{n}/{side}{n}.jpg" for n in range(5) for side in "lr"],
        {f"s{n}/notes{n % 2}.txt": "a note" for n in range(5)},
        ("classes", tuple(f"s{n}" for n in range(5))),
    ),
    "texts of their own, one image each": (
        [f"s{n}/photo{n}.jpg" for n in range(5)],
        {f"s{n}/notes.txt": "a note" for n in range(5)},
        "they have data of their own, such as s0/notes.txt",
    ),
}


@pytest.mark.parametrize("case", FOLDERS)
def test_folders_are_classes_unless_two_signs_speak_for_samples(case, tmp_path):
    names, texts, expected = FOLDERS[case]
    files(tmp_path, names)
    for name, value in texts.items():
        put(tmp_path / name, value)
    if isinstance(expected, str):
        write = "Write format: classes if they are, or format: images"
        check_refusals(
            DatasetError, {case: (partial(infer, tmp_path), expected, write)}
        )
        assert len(infer(tmp_path, format="classes").classes) == len(
            {name.rpartition("/")[0] for name in names}
        )
        assert infer(tmp_path, format="images").sample_type == "ImageSample"
    else:
        spec = infer(tmp_path)
        assert (spec.format, spec.classes) == expected


def test_the_paths_of_images_in_rows_make_folders_of_samples_readable(tmp_path):
    files(tmp_path, [f"{n}/image.png" for n in range(10)])
    rows = {
        str(n): {"image": "image.png", "question": f"{n}?", "answer": f"{n}"}
        for n in IN_TEN
    }
    path = put(tmp_path / "problems.json", rows)
    with pytest.raises(DatasetError, match="write the path of its image into each row"):
        infer(tmp_path)
    put(path, {key: {**row, "image": f"{key}/image.png"} for key, row in rows.items()})
    spec = infer(tmp_path)
    assert (spec.sample_type, spec.splits) == ("VQASample", {"train": 10})


def test_the_data_of_a_sample_in_its_folder_belong_to_its_image(tmp_path):
    for part, start, count in (("train", 0, 6), ("val", 6, 2)):
        for n in range(start, start + count):
            files(tmp_path, [f"{part}/choose/{n}/image.png"])
            row = {"question": f"How many {n}?", "choices": ["1", "2"], "answer": n % 2}
            put(tmp_path / part / "choose" / str(n) / "data.json", row)
    spec = infer(tmp_path)
    assert (spec.format, spec.sample_type) == ("sidecars", "MultiChoiceVQASample")
    assert spec.splits == {"train": 6, "val": 2}
    sample = read(tmp_path)[5]
    assert (sample.context, sample.choices, sample.correct_choice_idx) == (
        "How many 5?",
        ["1", "2"],
        1,
    )


# Keys of any type.


VALUES = {
    "lists": [["a"], ["b"]],
    "objects": [{"a": 1}, {"b": 2}],
    "nulls": [None, None],
    "a null": ["a", None],
    "not a number": [float("nan"), 1.0],
    "flags": [True, False],
    "flags and numbers": [True, 1],
    "numbers and texts": [1, "1"],
    "lists in lists": [[["a"]], [[None]]],
    "empty": [[], {}],
}


@pytest.mark.parametrize("case", VALUES)
def test_columns_of_any_values_are_read_or_refused(case, tmp_path):
    files(tmp_path, ["images/0.jpg", "images/1.jpg"])
    values = VALUES[case]
    for name in ("a", "b"):
        rows = [
            {
                "key": value,
                f"{name}_text": "some words",
                "choices": value,
                "label": value,
            }
            for value in values
        ]
        put(
            tmp_path / f"{name}.json",
            [{**row, "image_id": n} for n, row in enumerate(rows)],
        )
    for told in ({}, {"files": ["a.json", "images/*"]}, {"files": ["*.json"]}):
        with suppress(EnergizeError):  # and nothing else
            assert infer(tmp_path, **told).samples in (2, 4)


def test_a_field_map_may_name_every_field_without_the_sample_type(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.jpg").write_bytes(JPEG)
    rows = [{"image": f"{name}.jpg", "title": name, "text": name} for name in "ab"]
    put(tmp_path / "rows.json", rows)
    field_map = {"image": "image", "caption": "title"}
    spec = infer(tmp_path / "rows.json", field_map=field_map)
    assert spec.sample_type == "CaptioningSample"
    assert spec.field_map == field_map


def test_tables_are_joined_by_keys_that_are_written_alike(tmp_path):
    files(tmp_path, [f"images/{n}.jpg" for n in range(3)])
    questions = [
        {"question_id": n, "image": f"images/{n}.jpg", "question": f"{n}?"}
        for n in range(3)
    ]
    put(tmp_path / "questions.json", questions)
    answers = [{"question_id": f"{n}", "answer": f"answer {n}"} for n in (2, 1, 0)]
    put(tmp_path / "answers.json", answers)
    assert {each.context: each.answers for each in read(tmp_path)} == {
        "0?": ["answer 0"],
        "1?": ["answer 1"],
        "2?": ["answer 2"],
    }


# Lists of questions, and rows without choices.


def test_each_question_with_its_answer_is_a_sample(tmp_path):
    files(tmp_path, ["images/b0.jpg", "images/b1.jpg"])
    books = {
        f"b{n}": {
            "imageURL": f"http://a.example/b{n}.jpg",
            "title": f"Book {n}",
            "questions": [f"Who wrote {n}?", f"What is {n}?"][: 2 - n],
            "answers": [f"Ann {n}", f"Book {n}"][: 2 - n],
        }
        for n in range(2)
    }
    put(tmp_path / "dataset.json", books)
    spec = infer(tmp_path)
    assert spec.override == (
        'sample_type: VQASample, field_map: {"image": "key", "context": "questions", '
        '"answers": "answers"}'
    )
    assert [(each.context, each.answers) for each in read(tmp_path)] == [
        ("Who wrote 0?", ["Ann 0"]),
        ("What is 0?", ["Book 0"]),
        ("Who wrote 1?", ["Ann 1"]),
    ]
    run("init", tmp_path, "-o", tmp_path.parent / "books.yaml")
    assert len(read(tmp_path.parent / "books.yaml")) == 3


def test_lists_of_several_lengths_are_no_pairs(tmp_path, caplog):
    files(tmp_path, ["0.jpg", "1.jpg"])
    row = {"questions": ["a?", "b?"], "title": "Some book"}
    rows = [
        {**row, "image": "0.jpg", "answers": ["a", "b"]},
        {**row, "image": "1.jpg", "answers": ["a"]},
    ]
    put(tmp_path / "rows.json", rows)
    assert infer(tmp_path).sample_type == "CrudeSample"
    told = {"context": "questions", "answers": "answers", "image": "image"}
    asked = read(tmp_path, sample_type="VQASample", field_map=told)
    assert {(each.context, *each.answers) for each in asked} == {
        ("a?", "a"),
        ("b?", "b"),
    }
    assert (
        "columns 'questions' and 'answers' must be lists of one length, got [2, 1]"
        in caplog.text
    )


MIXED = [
    {"image": f"{n}.jpg", "question": f"{n}?", "choices": ["x", "y"] if n % 2 else None}
    for n in range(4)
]


@pytest.mark.parametrize("empty", [None, []])
def test_rows_without_choices_are_questions_if_answers_are_texts(empty, tmp_path):
    files(tmp_path, [row["image"] for row in MIXED])
    rows = [
        {
            **row,
            "choices": row["choices"] or empty,
            "answer": "y" if row["choices"] else "7",
        }
        for row in MIXED
    ]
    put(tmp_path / "rows.json", rows)
    assert [(each.context, each.answers) for each in read(tmp_path)] == [
        ("0?", ["7"]),
        ("1?", ["y"]),
        ("2?", ["7"]),
        ("3?", ["y"]),
    ]


def test_rows_without_choices_beside_letters_are_refused_with_counts(tmp_path):
    files(tmp_path, [row["image"] for row in MIXED])
    rows = [{**row, "answer": "B" if row["choices"] else "7"} for row in MIXED]
    put(tmp_path / "rows.json", rows)
    write = "sample_type: CrudeSample"
    words = "'choices' has choices in 2 of the 4 rows"
    check_refusals(DatasetError, mixed=(partial(infer, tmp_path), words, "'B'", write))
    assert infer(tmp_path, sample_type="CrudeSample").samples == 4


# Split parts that cannot be read.


def test_what_trains_is_inferred_and_written_and_other_parts_are_left_out(
    tmp_path, monkeypatch
):
    for part, count in (("train", 4), ("test_seen", 1), ("test_unseen", 1)):
        rows = [{"text": f"{part} {n}", "n": n} for n in range(count)]
        own = rows if part != "test_unseen" else [{"text": "a"}]
        text = "".join(json.dumps(row) + "\n" for row in own)
        put(tmp_path / "texts" / f"{part}.jsonl", text)
    path = tmp_path / "texts"
    with pytest.raises(DatasetError) as refused:
        get_val_dataset(path, split_part="test", batch_size=None)
    spec = infer(path)
    assert spec.splits == {"train": 4, "test": None}
    [note] = spec.notes
    reason = str(refused.value).partition("\n  requested at")[0]
    assert note == f"split part 'test' is left out: {reason}"
    assert len(get_train_dataset(path, batch_size=None, repeat=False)) == 4
    run("init", path, "-o", tmp_path / "mix.yaml")
    text = (tmp_path / "mix.yaml").read_text()
    assert "# split part 'test' is left out: " in text
    assert len(read(tmp_path / "mix.yaml")) == 4
    with pytest.raises(DatasetError, match="can be read in 2 ways"):
        infer(path, split_part="test")


def test_a_training_part_that_cannot_be_read_is_refused_alike(tmp_path):
    put(tmp_path / "train.jsonl", '{"image": "a/0.jpg", "text": "x"}\n')
    put(tmp_path / "val.jsonl", '{"text": "x"}\n')
    with pytest.raises(DatasetError) as trained:
        get_train_dataset(tmp_path, batch_size=None)
    with pytest.raises(DatasetError) as read_of:
        infer(tmp_path)
    assert str(trained.value).partition("\n  requested at")[0] == str(read_of.value)


def test_parts_without_classes_are_left_out(tmp_path):
    files(
        tmp_path, [f"train/{name}/{n}.jpg" for name in ("cat", "dog") for n in range(2)]
    )
    files(tmp_path, [f"test/{n}.jpg" for n in range(3)])
    spec = infer(tmp_path)
    assert (spec.format, spec.splits) == ("classes", {"train": 4, "test": None})
    assert "test has no data of the format 'classes'" in spec.notes[0]
    assert infer(tmp_path, files=["test/**"]).splits == {"train": 3}


# Files in other folders than rows name.


def questions(root: Path, names: list[str]) -> Path:
    rows = [
        {"image": name, "question": f"{n}?", "answers": [f"{n}"]}
        for n, name in enumerate(names)
    ]
    return put(root / "qas" / "train.json", {"data": rows})


def test_files_are_found_by_their_names_in_another_folder(tmp_path):
    files(tmp_path, ["scans/a.png", "scans/b.png"])
    questions(tmp_path, ["documents/a.png", "documents/b.png"])
    spec = infer(tmp_path)
    assert (spec.sample_type, spec.media_paths) == ("VQASample", ("scans/{:name}",))
    assert spec.notes == (
        "files are found by their names in scans, not in the folders that rows name",
    )
    assert len([*read(tmp_path)]) == 2
    for folder in (tmp_path / "scans", "scans"):
        assert len([*read(tmp_path, image_folder=str(folder))]) == 2
    assert len([*read(tmp_path, media_path="scans/{image:name}")]) == 2


def test_remedies_for_files_that_are_not_found_work(tmp_path, monkeypatch):
    files(
        tmp_path,
        [f"{folder}/{name}.png" for folder in ("large", "small") for name in "ab"],
    )
    questions(tmp_path, ["documents/a.png", "documents/b.png"])
    monkeypatch.chdir(tmp_path.parent)
    lines = "media_path: 'large/{image:name}' or media_path: 'small/{image:name}'"
    check_refusals(
        DatasetNotFoundError,
        two=(partial(infer, tmp_path), "names 'documents/a.png'", lines),
    )
    assert len([*read(tmp_path, media_path="small/{image:name}")]) == 2
    tried = f"(tried {tmp_path.parent}/none, {tmp_path}/none)"
    check_refusals(
        ConfigError,
        folder=(partial(infer, tmp_path, image_folder="none"), tried),
        column=(
            partial(infer, tmp_path, media_path="small/{}.png"),
            "names no column",
            "{COLUMN}",
        ),
    )


def test_two_names_of_one_file_are_no_names_of_it(tmp_path):
    files(tmp_path, ["scans/a.png"])
    questions(tmp_path, ["one/a.png", "two/a.png"])
    with pytest.raises(DatasetNotFoundError, match=r"names 'one/a\.png'"):
        infer(tmp_path)


def test_files_of_another_split_part_are_not_taken(tmp_path):
    files(tmp_path, ["images/train/a.png", "images/train/b.png"])
    questions(tmp_path, ["val/a.png", "val/b.png"])
    with pytest.raises(DatasetError, match=r"rows of qas/train\.json have no media"):
        infer(tmp_path)


def test_files_that_rows_name_are_used_whatever_their_folders_are_called(tmp_path):
    named = ["data/coco/train2017/0.jpg", "data/web/images/1.jpg"]
    files(tmp_path, [*named, "data/web/images/2.jpg"])
    rows = [{"image": name, "text": f"a text of {name}"} for name in named]
    put(tmp_path / "mix.json", rows)
    uses = {
        (use.name, use.status, use.role or use.why, use.count)
        for use in infer(tmp_path).files
    }
    assert ("*.jpg", "used", "named by image", 2) in uses
    assert not any(status == "left out" and count > 1 for _, status, _, count in uses)
