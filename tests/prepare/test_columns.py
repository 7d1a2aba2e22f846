"""Measuring columns: right values on any number of processes, all of them or none."""

import io
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from energize import WebdatasetSource, prepare, prepare_columns, write_shards
from energize.data.columns import COLUMNS_FOLDER, read_columns
from energize.errors import (
    ColumnError,
    ConfigError,
    DatasetError,
    NotPreparedError,
    PrepareError,
)
from energize.preparation.checking_columns import check_columns
from energize.preparation.measures import measure_of
from tests.support.columns import revalued
from tests.support.energon import run_energon
from tests.support.shards import packed


def png(width, height):
    buffer = io.BytesIO()
    Image.new("RGB", (width, height)).save(buffer, "PNG")
    return buffer.getvalue()


def sample(i):
    return {
        "__key__": f"{i:03d}",
        "png": png(8 + i, 4),
        "txt": "ä" * (i % 5 + 1),
        "json": {"meta": {"quality": ["high", "low"][i % 3 == 0]}, "score": i / 4, "caption": "ab"},
        "cls": i,
    }


def prepared(folder, samples, per_shard=7):
    write_shards(samples, folder, samples_per_shard=per_shard)
    prepare(folder, split_ratios={"train": 1}, workers=1)
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return prepared(tmp_path_factory.mktemp("measured") / "f", [sample(i) for i in range(20)])


def words(column):
    return [column.categories[v] if v >= 0 else None for v in column.values]


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("size:txt", [2 * (i % 5 + 1) for i in range(20)]),
        ("size:nothing,txt", [2 * (i % 5 + 1) for i in range(20)]),
        ("len:txt", [i % 5 + 1 for i in range(20)]),
        ("len:json[caption]", [2] * 20),
        ("number:cls", list(range(20))),
        ("json[score]", [i / 4 for i in range(20)]),
        ("image:width", [8 + i for i in range(20)]),
        ("image:height", [4] * 20),
        ("image:pixels", [4 * (8 + i) for i in range(20)]),
        (
            lambda raw: len(raw["txt"]) + raw["__index__"] // 100,
            [2 * (i % 5 + 1) for i in range(20)],
        ),
        (lambda raw: np.float32(0.5), [0.5] * 20),
        (lambda raw: True, [1] * 20),
    ],
)
def test_measures(made, how, expected):
    column = prepare_columns(made, {"x": how}, workers=2).columns["x"]
    assert column.values.tolist() == expected
    whole = all(isinstance(value, int) for value in expected)
    assert column.values.dtype == (np.int64 if whole else np.float64)
    assert WebdatasetSource(made).column("x").values.tolist() == expected


def test_words(made):
    for how in ("json[meta][quality]", lambda raw: json.loads(raw["json"])["meta"]["quality"]):
        found = prepare_columns(made, {"quality": how}, workers=2).columns["quality"]
        assert words(found) == [["high", "low"][i % 3 == 0] for i in range(20)]
    assert words(prepare_columns(made, {"n": "text:cls"}).columns["n"]) == [
        str(i) for i in range(20)
    ]


def test_adding_columns_leaves_the_index_and_other_columns_as_they_are(tmp_path):
    folder = prepared(tmp_path / "f", [sample(i) for i in range(9)])
    prepare_columns(folder, {"a": "size:txt"})
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    prepare_columns(folder, {"b": "len:txt"})
    after = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    changed = {path.name for path in after if after[path] != before.get(path)}
    assert changed == {"columns.json", read_columns(folder).columns["b"].file}
    assert set(before) <= set(after)
    prepare_columns(folder, {"a": "len:txt"})
    files = {path.name for path in (folder / COLUMNS_FOLDER).glob("*.npy")}
    assert files == {column.file for column in read_columns(folder).columns.values()}


def test_what_failed_leaves_what_was_there(tmp_path):
    folder = prepared(tmp_path / "f", [sample(i) for i in range(9)])
    prepare_columns(folder, {"a": "size:txt"})
    before = sorted(path.name for path in folder.rglob("*"))

    def fails(raw):
        return 1 / (raw["__index__"] - 3)

    with pytest.raises(PrepareError) as error:
        prepare_columns(folder, {"a": "len:txt", "b": fails}, workers=2)
    told = str(error.value)
    assert "shard-000000.tar, sample '003'" in told
    assert "column 'b'" in told
    assert "ZeroDivisionError" in told
    assert f"{__file__}:" in told
    assert sorted(path.name for path in folder.rglob("*")) == before
    assert read_columns(folder).measured == {"a": "size:txt"}


def test_missing_words_are_noted_and_missing_numbers_refused(tmp_path):
    def some(i):
        parts = {"lang": "en", "n": "3"} if i % 4 else {}
        return {"__key__": f"{i:03d}", "txt": "x", **parts}

    folder = prepared(tmp_path / "f", [some(i) for i in range(20)])
    report = prepare_columns(folder, {"lang": "text:lang"})
    assert words(report.columns["lang"]) == [None if i % 4 == 0 else "en" for i in range(20)]
    assert "5 of 20 samples have no value" in report.notes[0]
    assert "sample '000': it has no part lang, but txt" in report.notes[0]
    with pytest.raises(PrepareError, match=r"5 of 20 samples have no number.*--column-default n=0"):
        prepare_columns(folder, {"n": "number:n"})
    filled = prepare_columns(folder, {"n": "number:n"}, defaults={"n": "0.5"}).columns["n"]
    assert filled.values.tolist() == [0.5 if i % 4 == 0 else 3.0 for i in range(20)]
    unknown = prepare_columns(folder, {"l": "text:lang"}, defaults={"l": "??"}).columns["l"]
    assert words(unknown) == ["??" if i % 4 == 0 else "en" for i in range(20)]
    with pytest.raises(ConfigError, match="has numbers, and its default is 'none'"):
        prepare_columns(folder, {"n": "number:n"}, defaults={"n": "none"})


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("json[qality]", "none of the 9 samples .* json is an object with the keys 'meta'"),
        ("size:jpg", "none of the 9 samples .* it has no part jpg, but "),
        ("json[meta]", "neither a number nor a word; got dict"),
        ("len:json[score]", "is no text; got float"),
        ("number:txt", "txt is no number; got str"),
        ("txt[a]", "txt is not JSON"),
        ("len:png", "png is no UTF-8"),
        (lambda raw: raw["txt"], "numbers or words; got bytes"),
        (lambda raw: float("nan"), "finite; got float 'nan'"),
        (lambda raw: 2**63, "have 64 bits"),
        (lambda raw: "x" * 201, "201 characters, and a word of a column has 200 at most"),
        (
            lambda raw: "a" if raw["__key__"] > "007" else 1,
            "numbers, or all have words; .* has 'a'",
        ),
        (lambda raw: None, "returned None"),
    ],
)
def test_what_no_column_can_have_is_told_with_the_sample(tmp_path, how, told):
    folder = prepared(tmp_path / "f", [sample(i) for i in range(9)])
    with pytest.raises(PrepareError, match=f"(?s)column 'x'.*{told}") as error:
        prepare_columns(folder, {"x": how}, workers=1)
    assert "sample '0" in str(error.value)


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("", "does not say which part"),
        ("txt", "expected size:PART"),
        ("siz:txt", "expected size:PART.*did you mean 'size'"),
        ("size:json[a]", "size is of parts; of what is in JSON take json"),
        ("image:widht", "did you mean 'width'"),
        (3, "got 3"),
    ],
)
def test_measures_that_cannot_be_read(how, told):
    with pytest.raises(ConfigError, match=told):
        measure_of(how)


def test_wrong_arguments(made, tmp_path):
    with pytest.raises(ConfigError, match="no columns to measure"):
        prepare_columns(made, {})
    with pytest.raises(ConfigError, match="column 'a': expected size:PART"):
        prepare_columns(made, {"a": "siz:txt"})
    with pytest.raises(ColumnError, match="called as variables are"):
        prepare_columns(made, {"a b": "size:txt"})
    with pytest.raises(ConfigError, match="did you mean 'tokens'"):
        prepare_columns(made, {"tokens": "size:txt"}, defaults={"tokn": 1})
    with pytest.raises(NotPreparedError):
        prepare_columns(tmp_path, {"a": "size:txt"})


def test_a_shard_that_was_changed_is_told(tmp_path):
    folder = prepared(tmp_path / "f", [sample(i) for i in range(9)])
    (folder / "shard-000001.tar").write_bytes(packed([("a.txt", b"x")]))
    with pytest.raises(PrepareError, match=r"has 1 samples, and \.info\.json says 2"):
        prepare_columns(folder, {"a": "size:txt"})
    (folder / "shard-000001.tar").unlink()
    with pytest.raises(PrepareError, match=r"shard-000001\.tar"):
        prepare_columns(folder, {"a": "size:txt"}, workers=2)


def killed(raw):
    os._exit(9)


def test_a_process_that_is_killed_is_an_error_not_a_hang(tmp_path):
    folder = prepared(tmp_path / "f", [sample(i) for i in range(9)])
    with pytest.raises(PrepareError, match="was killed"):
        prepare_columns(folder, {"a": killed}, workers=2)
    assert read_columns(folder) is None


def test_prepare_measures_and_what_it_loses_is_noted(tmp_path):
    folder = tmp_path / "f"
    write_shards([sample(i) for i in range(9)], folder, samples_per_shard=4)
    options = {"split_ratios": {"train": 1}, "workers": 1}
    prepare(folder, columns={"a": "size:txt", "b": len}, **options)
    assert WebdatasetSource(folder).column_names == ("a", "b")
    with pytest.raises(ConfigError, match="column 'a': expected"):
        prepare(folder, columns={"a": "txt"}, overwrite=True, **options)
    report = prepare(folder, columns={"b": len}, overwrite=True, **options)
    assert WebdatasetSource(folder).column_names == ("b",)
    [note] = report.notes
    assert "the columns a are gone" in note
    assert f"energize prepare {folder} --column a=size:txt" in note


def test_an_index_that_is_written_again_keeps_columns_of_the_same_shards(tmp_path):
    folder = tmp_path / "f"
    write_shards([sample(i) for i in range(9)], folder, samples_per_shard=4)
    prepare(folder, split_ratios={"train": 1}, columns={"a": "size:txt"}, workers=1)
    for sqlite in (False, True, True):
        assert prepare(folder, tar_index_only=True, sqlite=sqlite, workers=1).notes == ()
        assert len(WebdatasetSource(folder).column("a")) == 9
    packed_anew = [("000.txt", b"x"), ("001.txt", b"x"), ("002.txt", b"x" * 600), ("003.txt", b"")]
    (folder / "shard-000000.tar").write_bytes(packed(packed_anew))
    report = prepare(folder, tar_index_only=True, workers=1)
    assert "the columns a are gone" in report.notes[0]
    assert WebdatasetSource(folder).column_names == ()


def silent(done, total):
    pass


def test_checking_finds_what_is_not_so(tmp_path):
    folder = prepared(tmp_path / "f", [sample(i) for i in range(20)])
    assert check_columns(folder, 1, silent).faults == ()
    prepare_columns(folder, {"a": "size:txt", "q": "json[meta][quality]", "f": len})
    assert check_columns(folder, 2, silent) == check_columns(folder, 1, silent)
    checked = check_columns(folder, 1, silent)
    assert (checked.faults, checked.unchecked) == ((), ("f",))
    revalued(folder, "a", {8: 13, 9: 14})
    [fault] = check_columns(folder, 2, silent).faults
    assert "of 2 of 20 samples" in fault
    assert "shard-000001.tar, sample 1: 13, and now 8" in fault


VALUES = st.one_of(
    st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=20),
    st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=20),
    st.lists(st.none() | st.text("aäz", max_size=3).filter(bool), min_size=1, max_size=20).filter(
        any
    ),
)


@settings(max_examples=8, deadline=None)
@given(VALUES, st.integers(1, 6), st.integers(1, 2))
def test_any_values_come_back_as_they_are(tmp_path_factory, values, per_shard, workers):
    folder = tmp_path_factory.mktemp("any") / "f"
    samples = ({"__key__": f"{i:03d}", "json": {"v": value}} for i, value in enumerate(values))
    prepared(folder, samples, per_shard)
    prepare_columns(folder, {"v": "json[v]"}, workers=workers)
    column = WebdatasetSource(folder).column("v")
    found = words(column) if column.is_text else column.values.tolist()
    assert found == values


READ = """
import sys
from megatron.energon import DefaultTaskEncoder, WorkerConfig, get_loader, get_val_dataset
config = WorkerConfig(rank=0, world_size=1, num_workers=0)
dataset = get_val_dataset(
    sys.argv[1], split_part="train", worker_config=config, batch_size=1,
    task_encoder=DefaultTaskEncoder(),
)
print(*(batch.__key__[0] for batch in get_loader(dataset)))
"""


@pytest.mark.slow
def test_energon_reads_the_folder_and_makes_columns_old_when_it_prepares_it(tmp_path):
    folder = prepared(tmp_path / "f", [sample(i) for i in range(9)])
    prepare(folder, split_ratios={"train": 1}, sample_type="TextSample", workers=1, overwrite=True)
    prepare_columns(folder, {"a": "size:txt"}, workers=1)
    keys = run_energon(folder, program=READ).splitlines()[-1].split()
    assert sorted(keys) == [f"{i:03d}" for i in range(9)]
    options = [
        "--non-interactive",
        "--force-overwrite",
        "--skip-dataset-yaml",
        "--num-workers",
        "1",
    ]
    run_energon("prepare", folder, "--split-ratio", "1,0,0", *options)
    with pytest.raises(DatasetError, match=r"the folder was prepared again\. Measure them again"):
        WebdatasetSource(folder).column("a")


KILLED = """
import os, signal, sys, time
from energize import prepare_columns

def slow(raw):
    if raw["__key__"] == "005":
        print("measuring", flush=True)
        time.sleep(60)
    return 1

prepare_columns(sys.argv[1], {"new": slow}, workers=2)
"""


@pytest.mark.slow
def test_a_run_that_was_killed_leaves_what_was_there_and_the_next_one_works(tmp_path):
    folder = prepared(tmp_path / "f", [sample(i) for i in range(20)])
    prepare_columns(folder, {"old": "size:txt"}, workers=1)
    command = [sys.executable, "-c", KILLED, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as running:
        assert running.stdout.readline() == b"measuring\n"
        running.kill()
        assert running.stdout.read() == b""  # its processes have ended, too
    assert WebdatasetSource(folder).column_names == ("old",)
    prepare_columns(folder, {"new": "len:txt"}, workers=1)
    assert WebdatasetSource(folder).column_names == ("old", "new")
    assert len(list((folder / COLUMNS_FOLDER).iterdir())) == 3
