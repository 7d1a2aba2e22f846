"""Columns on the command line: measuring, showing and checking them."""

import io
import json

import pytest
from PIL import Image

from energize import WebdatasetSource, prepare, write_shards
from energize.data.columns import COLUMNS_FOLDER, read_columns
from energize.preparation.index import prepare_jsonl
from tests.cli.commands import program, run
from tests.support.columns import revalued

MINE = """
def count(raw):
    return len(raw["txt"].split())

no_function = 3
"""


def image(number):
    buffer = io.BytesIO()
    Image.new("RGB", (8 + number, 8)).save(buffer, "PNG")
    return buffer.getvalue()


def sample(i):
    known = {"json": {"quality": ["high", "low"][i % 3 == 0]}} if i != 5 else {}
    return {"__key__": f"{i:03d}", "png": image(i), "txt": "word " * (i % 4 + 1), **known}


@pytest.fixture
def shards(tmp_path):
    write_shards((sample(i) for i in range(20)), tmp_path / "f", samples_per_shard=8)
    return tmp_path / "f"


@pytest.fixture
def folder(shards):
    prepare(shards, split_ratios={"train": 1}, sample_type="CrudeWebdataset", workers=1)
    return shards


def prepared(folder, *options, code=0):
    return run("prepare", folder, *options, "--workers", 2, "--no-progress", code=code)


def test_prepare_measures_columns_of_a_new_folder(shards, tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    given = ["--split-ratio", "1", "--sample-type", "CrudeWebdataset", "--non-interactive"]
    columns = ["tokens=mine:count", "width=image:width", "quality=json[quality]"]
    options = [part for each in columns for part in ("--column", each)]
    out, _ = program("prepare", shards, *given, *options, cwd=tmp_path)
    assert "Measured 3 columns of 20 samples" in out
    assert "1 to 4, mean 2.5" in out
    assert "high: 12, low: 7, no value: 1" in out
    assert "Note: column 'quality': 1 of 20 samples have no value and are without a word" in out
    assert "sample '005'" in out
    source = WebdatasetSource(shards)
    assert source.column_names == ("tokens", "width", "quality")
    assert source.column("tokens").values.tolist() == [i % 4 + 1 for i in range(20)]
    assert source.column("width").values.tolist() == [8 + i for i in range(20)]
    assert read_columns(shards).measured["tokens"] == "mine:count"


def test_columns_are_added_to_a_prepared_folder_without_questions(folder):
    index = (folder / "shard-000000.tar.idx").stat().st_mtime_ns
    out = prepared(folder, "--column", "size=size:txt")
    assert "Measured 1 columns of 20 samples" in out
    assert "5 to 20" in out
    prepared(folder, "--column", "n=number:n", "--column-default", "n=3", code=1)
    assert read_columns(folder).measured == {"size": "size:txt"}
    assert (folder / "shard-000000.tar.idx").stat().st_mtime_ns == index
    out = prepared(folder, "--column", "q=json[quality]", "--column-default", "q=unknown")
    assert "were given 'unknown'" in out
    assert "unknown: 1" in run("info", folder)


def test_preparing_anew_tells_of_columns_that_are_not_measured_again(folder):
    prepared(folder, "--column", "size=size:txt", "--column", "length=len:txt")
    again = ["--split-ratio", "1", "--skip-dataset-yaml", "--force-overwrite", "--non-interactive"]
    out = prepared(folder, *again, "--column", "size=len:txt")
    assert "Note: the columns length are gone with the index they were of" in out
    assert "--column length=len:txt" in out
    assert read_columns(folder).measured == {"size": "len:txt"}
    told = prepared(folder, *again, "--column", "n=json[n]", code=1)
    assert "20 of 20 samples have no value" in told
    assert read_columns(folder).measured == {"size": "len:txt"}


def test_info_shows_columns_and_what_is_wrong_with_them(folder):
    assert "measured as" not in run("info", folder)
    prepared(folder, "--column", "size=size:txt", "--column", "quality=json[quality]")
    out = run("info", folder)
    assert "5 to 20, mean 12.5" in out
    assert "high: 12, low: 7, no value: 1" in out
    assert "json[quality]" in out
    (folder / COLUMNS_FOLDER / read_columns(folder).columns["size"].file).unlink()
    out = run("info", folder)
    assert "Note: the column 'size'" in out
    assert "is missing; measure it again with: energize prepare" in out


def test_lint_compares_columns_with_the_shards(folder, tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    prepared(
        folder, "--column", "size=size:txt", "--column", f"tokens={tmp_path / 'mine.py'}:count"
    )
    out = run("lint", folder, "--parallel", 1)
    assert "No faults in 20 samples" in out
    assert "functions measured the columns tokens; their values are there, and were not" in out
    revalued(folder, "size", {9: 3})
    out = run("lint", folder, "--parallel", 1, code=1)
    assert "the column 'size' says something else of 1 of 20 samples" in out
    assert "shard-000001.tar, sample 1: 3, and now 10" in out
    content = json.loads((folder / COLUMNS_FOLDER / "columns.json").read_text())
    content["shard_counts"]["shard-000001.tar"] = 7
    (folder / COLUMNS_FOLDER / "columns.json").write_text(json.dumps(content))
    assert "not of the shards that the folder has now" in run("lint", folder, code=1)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--column", "size"], "--column: expected NAME=HOW such as tokens=size:txt"),
        (["--column", "a=size:txt", "--column", "a=len:txt"], "'a' is given twice"),
        (["--column", "a b=size:txt"], "called as variables are"),
        (["--column", "n=siz:txt"], "--column n: 'siz' cannot be imported"),
        (["--column", "n=siz:txt"], "did you mean 'size'"),
        (["--column", "n=image:widht"], "did you mean 'width'"),
        (["--column", "n=json[qality]"], "json is an object with the keys 'quality'"),
        (["--column", "n=json:loads_"], "json has no 'loads_'; did you mean 'loads'"),
        (["--column", "n=math:pi"], "math:pi is no function, but 3.14"),
        (["--column", "n=number:txt"], "could not convert string to float: 'word'"),
        (["--column-default", "n=3"], "there is no --column n="),
        (["--column", "n=size:txt", "--column-default", "m=3"], "there is no --column m="),
        (["--column", "n=size:txt", "--column-default", "n"], "expected NAME=VALUE"),
        (["--column", "n=size:txt", "--split-ratio", "1"], "--column only adds columns to it"),
    ],
)
def test_what_is_mistyped_is_told(folder, options, told):
    looked = told in (
        "could not convert string to float: 'word'",
        "json is an object with the keys 'quality'",
    )
    assert told in prepared(folder, *options, code=1 if looked else 2).replace("\n", " ")
    assert read_columns(folder) is None


def test_files_have_columns_already(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"tokens": 3}\n')
    assert "are its columns already" in prepared(file, "--column", "n=size:txt", code=2)
    prepare_jsonl(file)


def test_parts_of_a_mix_are_shown_by_their_values(folder, tmp_path):
    prepared(folder, "--column", "quality=json[quality]")
    mix = tmp_path / "mix.yaml"
    node = "{path: f, by: quality, weights: {high: 3, low: 1}, other: 0}"
    mix.write_text(f"__module__: energize\n__class__: MetadatasetV2\nsplits:\n  train: {node}\n")
    out = run("info", mix)
    for name, share in (("f/high", "75.000"), ("f/low", "25.000"), ("f/other", "0.000")):
        [line] = [line for line in out.splitlines() if name in line]
        assert share in line
    assert "20 samples" in run("lint", mix, "--parallel", 1)
