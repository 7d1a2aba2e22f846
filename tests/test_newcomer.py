"""What somebody types who has not read the docs: it works, or the error says what to
write."""

from __future__ import annotations

import logging
import os
import re
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

import energize
from energize import (
    BlendDataset,
    ListSource,
    TextSample,
    get_loader,
    get_train_dataset,
    get_val_dataset,
    prepare,
    write_shards,
)
from energize.core import progress

N = 8


def photos(
    folder: Path, rows: str | None = None, count: int = N, head: str = "file_name,text"
):
    folder.mkdir(parents=True)
    for number in range(count):
        Image.new("RGB", (8, 6)).save(folder / f"{number}.jpg")
    if rows is not None:
        (folder / "metadata.csv").write_text("\n".join([head, *rows.split()]))
    return folder


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    root = tmp_path_factory.mktemp("newcomer")
    for name in ("photos", "more"):
        photos(root / name, " ".join(f"{i}.jpg,words" for i in range(N)))
    (root / "notes.docx").write_text("hello")
    write_shards(
        [{"__key__": f"{i:03}", "txt": f"t{i}"} for i in range(20)], root / "shards"
    )
    return root


@pytest.fixture(autouse=True)
def inside(here, monkeypatch):
    monkeypatch.chdir(here)


def train(path="photos", batch_size=4, **options):
    return get_train_dataset(path, batch_size=batch_size, **options)


def torchs(dataset, **options):
    return next(iter(torch.utils.data.DataLoader(dataset, **options)))


ASKED = {  # what is typed, and what the error says
    "a path": (lambda: get_loader("photos"), "energize Dataset, got str"),
    "a field": (
        lambda: train(field_map={"captoin": "text"}),
        "mean 'caption'?.*set sample_type",
    ),
    "a type": (
        lambda: train(sample_type=dict),
        "sample_type must be a dataclass that extends Sample",
    ),
    "no size": (
        lambda: get_train_dataset("photos"),
        "batch_size is missing.*batch_size=32",
    ),
    "size 0": (lambda: train(batch_size=0), ">= 1, got 0"),
    "a word": (lambda: train(batch_size="32"), ">= 1, got '32'"),
    "a config": (
        lambda: train(worker_config=4),
        "such as WorkerConfig(num_workers=4), got 4",
    ),
    "another config": (
        lambda: get_loader(train(), worker_config=4),
        "num_workers=4), got 4",
    ),
    "next": (lambda: next(get_loader(train())), "batches = iter(loader)"),
    "of torch": (lambda: torchs(train()), "default_collate.*CaptioningSample"),
    "of torch, 4": (lambda: torchs(train(), batch_size=4), "default_collate"),
    "samples": (
        lambda: torchs(ListSource([TextSample(__key__="a", text="b")])),
        "default_collate.*TextSample",
    ),
    "ratios": (lambda: prepare("shards", split_ratios=[8, "x"]), "like 8,1,1"),
    "home": (lambda: train("~/nowhere"), f"looked for {Path.home()}/nowhere"),
    "near": (lambda: train("photo"), "did you mean 'photos'?"),
    "near, of two": (lambda: train(["photos", "moer"]), "did you mean 'more'?"),
    "negative": (lambda: train({"photos": -1}), "0 or more.*got -1"),
    "nothing": (lambda: train(None), "expected the path of a folder"),
    "other files": (lambda: train("notes.docx"), "expected a folder, .parquet"),
    "an image": (lambda: train("photos/0.jpg"), "folder of the file, photos"),
    "split": (lambda: get_val_dataset("photos", batch_size=4), "split_part='train'"),
    "names": (lambda: energize.get_train_dataste, "did you mean 'get_train_dataset'?"),
    "no weights": (
        lambda: BlendDataset(train(), train()),
        "not a pair (dataset, weight)",
    ),
    "a file of a state": (
        lambda: get_loader(train()).load_state_dict("x.pt"),
        "torch.load(",
    ),
}


@pytest.mark.parametrize("name", ASKED)
def test_what_cannot_be_done_is_answered_by_what_to_write(name):
    typed, words = ASKED[name]
    with pytest.raises((energize.EnergizeError, TypeError, AttributeError)) as told:
        typed()
    assert re.search(".*".join(map(re.escape, words.split(".*"))), str(told.value)), (
        told.value
    )


WORKS = {  # what is typed, and a repr
    "a path": (lambda: train(Path("photos")), "LooseSource('photos', 8 samples)"),
    "a table": (
        lambda: train("photos/metadata.csv"),
        "LooseSource('metadata.csv', 8 samples)",
    ),
    "weights": (
        lambda: train({"photos": 0.6, "more": 0.4}),
        "'photos'.*0.6), .*'more'.*0.4)",
    ),
    "a list": (lambda: train(["photos", Path("more")]), "'photos'.*0.5), .*'more'"),
    "splits": (
        lambda: train({"train": "photos", "val": "more"}),
        "LooseSource('photos'",
    ),
    "loader": (
        lambda: get_loader(train(), num_workers=2),
        "batch_size=4), num_workers=2)",
    ),
    "length": (lambda: len(get_loader(train())), "2"),
    "a loop": (
        lambda: next(iter(train())),
        "image=Tensor(shape=torch.Size([4, 3, 6, 8])",
    ),
    "of torch": (
        lambda: torchs(train(), batch_size=None),
        "CaptioningSample(__key__=[",
    ),
    "a sample": (lambda: train(batch_size=None)[0], "caption='words')"),
    "crude": (
        lambda: train(sample_type="CrudeSample", batch_size=None)[0],
        "CrudeSample({",
    ),
    "ratios": (
        lambda: prepare("shards", split_ratios=[8, 1, 1]).splits,
        "'train': .*'test': ",
    ),
    "no config": (lambda: get_loader(train()), "num_workers=0"),
}


@pytest.mark.parametrize("name", WORKS)
def test_what_is_natural_works_and_says_what_it_is(name):
    typed, words = WORKS[name]
    text = repr(typed())
    assert re.search(".*".join(map(re.escape, words.split(".*"))), text), text
    assert len(text) < 600


def test_a_file_says_paths_from_itself_on(here, tmp_path, monkeypatch):
    (here / "mix.yaml").write_text(
        "{__module__: energize, __class__: MetadatasetV2, splits: {train: {path: photos}}}"
    )
    monkeypatch.chdir(tmp_path)
    assert len(train(here / "mix.yaml")[0].caption) == 4
    with pytest.raises(
        energize.DatasetNotFoundError, match=re.escape(str(tmp_path / "photos"))
    ):
        train("photos")


LIBRARIES = {  # what is missing, what is asked for, what installs it
    "av": (lambda root: train(root / "videos"), "energize[av]"),
    "pyarrow": (lambda root: train(root / "t.parquet"), "energize[hf]"),
}


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_library_that_is_missing_is_named_with_what_installs_it(
    name, tmp_path, monkeypatch
):
    (tmp_path / "videos").mkdir()
    (tmp_path / "videos" / "a.mp4").write_bytes(b"\0\0\0\x18ftypmp42")
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    for each in [name, *(each for each in sys.modules if each.startswith(f"{name}."))]:
        monkeypatch.setitem(sys.modules, each, None)
    asked, install = LIBRARIES[name]
    with pytest.raises(
        energize.ConfigError, match=re.escape(f"pip install '{install}'")
    ):
        asked(tmp_path)


BAD = {  # what lies there, what is said in the log, or as an error
    "no image": (
        lambda at: photos(at, "0.jpg,a 8.jpg,b"),
        "1 row left out, whose file is not in this folder: 8.jpg (metadata.csv, line 3)",
    ),
    "no caption": (
        lambda at: photos(at, "0.jpg,a"),
        "left out: 7 *.jpg (1.jpg, 2.jpg, 3.jpg, ...): no row names it",
    ),
    "one name": (
        lambda at: photos(at, "0.jpg,a 0.jpg,b"),
        "of the file of another sample: 1 sample, 0.jpg (metadata.csv",
    ),
    "a table": (
        lambda at: (photos(at) / "captions.csv").write_text("a"),
        "captions.csv has no rows: it is empty.*read the images alone",
    ),
    "columns": (
        lambda at: photos(at, "0,a", head="id,words"),
        'rows of metadata.csv have no media: files: ["metadata.csv"].*8 images: format: images',
    ),
    "empty": (lambda at: at.mkdir(), "its files are none"),
    "only a table": (
        lambda at: photos(at, "0.jpg,a", count=0),
        "'file_name' of metadata.csv names '0.jpg', but",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_folders_are_told_and_nothing_is_lost_in_silence(name, tmp_path, caplog):
    make, words = BAD[name]
    make(tmp_path / "photos")
    seen, told = re.compile("(?s)" + ".*".join(map(re.escape, words.split(".*")))), ""
    try:
        assert len(train(tmp_path / "photos")[0].__key__) == 4
    except energize.DatasetError as error:
        told = str(error)
    assert seen.search(told or caplog.text)
    with pytest.raises(energize.DatasetError, match=seen):
        train(tmp_path / "photos", strict=True)


def test_rows_and_tars_that_cannot_be_read_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "bad.jsonl").write_text('{"a": 1\n')
    (tmp_path / "tars").mkdir()
    (tmp_path / "tars" / "a.tar").write_bytes(b"x" * 3000)
    for name, words in (
        ("empty.jsonl", "no row"),
        ("bad.jsonl", "bad.jsonl, line 1: not JSON"),
        ("tars", f"{tmp_path}/tars/a.tar: the file is not a tar"),
    ):
        with pytest.raises(energize.DatasetError, match=re.escape(words)):
            train(tmp_path / name)


def test_long_work_says_how_far_it_has_come(monkeypatch, caplog):
    monkeypatch.setattr(progress, "_IN_LOG", 0)
    caplog.set_level(logging.WARNING, "energize")
    assert list(progress.counting("ab", "Letters", 2)) == ["a", "b"]
    assert "Letters: 1 of 2, about" in caplog.text
    terminal, other = os.openpty()
    with open(other, "w") as screen:
        monkeypatch.setattr(sys, "stderr", screen)
        monkeypatch.setattr(progress, "_SHORT", 0)
        monkeypatch.setattr(progress, "_ON_TERMINAL", 0)
        list(progress.counting("ab", "Letters", 2))
        shown = ""
        while (
            "\n" not in shown
        ):  # a terminal gives what has reached it, which may be a part
            shown += os.read(terminal, 1000).decode()
    os.close(terminal)
    assert shown.count("Letters: 2 of 2") == 1
    assert shown.endswith("\n")
