"""Columns on disk: what was written is read, and what is damaged is told by name."""

import json
import shutil

import numpy as np
import pytest

from energize import WebdatasetSource, prepare, prepare_columns, write_shards
from energize.data.columns import (
    COLUMNS_FOLDER,
    COLUMNS_NAME,
    check_name,
    read_columns,
    read_values,
)
from energize.errors import ColumnError, DatasetError

WORDS = ["high", "low", None, "low"]


def sample(i):
    word = WORDS[i % 4]
    return {"__key__": f"{i:03d}", "txt": "x" * i, **({} if word is None else {"lang": word})}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("columns") / "texts"
    write_shards((sample(i) for i in range(25)), folder, samples_per_shard=7)
    prepare(folder, split_ratios={"train": 1}, sample_type="TextSample", workers=1)
    prepare_columns(folder, {"tokens": "size:txt", "lang": "text:lang"}, workers=1)
    return folder


@pytest.fixture
def folder(made, tmp_path):
    return shutil.copytree(made, tmp_path / "texts")


def index_of(folder):
    return folder / COLUMNS_FOLDER / COLUMNS_NAME


def changed(folder, change):
    """Rewrite `columns.json`, as anybody may."""
    content = json.loads(index_of(folder).read_text())
    change(content)
    index_of(folder).write_text(json.dumps(content))


def test_values_are_mapped_and_as_they_were_measured(folder):
    index = read_columns(folder)
    assert index.measured == {"tokens": "size:txt", "lang": "text:lang"}
    tokens = read_values(folder, "tokens", index.columns["tokens"], 25)
    assert isinstance(tokens.values, np.memmap)
    assert tokens.values.tolist() == list(range(25))
    lang = WebdatasetSource(folder).column("lang")
    assert lang.categories == ("high", "low")
    assert [lang.categories[v] if v >= 0 else None for v in lang.values] == [
        WORDS[i % 4] for i in range(25)
    ]


def test_one_other_value_is_told_by_the_name_of_the_file(folder):
    stored = read_columns(folder).columns["tokens"]
    file = folder / COLUMNS_FOLDER / stored.file
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(DatasetError, match=f"{file} is named after other content"):
        read_values(folder, "tokens", stored, 25)


def test_another_word_is_told_by_the_name_of_the_file(folder):
    changed(folder, lambda content: content["columns"]["lang"]["categories"].reverse())
    with pytest.raises(DatasetError, match="is named after other content"):
        read_values(folder, "lang", read_columns(folder).columns["lang"], 25)


def test_a_folder_without_columns_says_which_command_measures_them(made, tmp_path):
    folder = shutil.copytree(made, tmp_path / "plain", ignore=shutil.ignore_patterns("columns"))
    assert read_columns(folder) is None
    with pytest.raises(ColumnError) as error:
        WebdatasetSource(folder).column("quality")
    assert "its columns: none" in str(error.value)
    assert f"energize prepare {folder} --column 'quality=json[quality]'" in str(error.value)


def test_a_misspelt_name_gets_the_nearest(folder):
    with pytest.raises(ColumnError, match="no column 'tokn'; did you mean 'tokens'"):
        WebdatasetSource(folder).column("tokn")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda c: c.update(version=2), "(version): expected 1; got 2"),
        (lambda c: c.pop("columns"), "the key 'columns' is missing"),
        (lambda c: c.update(code="x"), "unknown key 'code'"),
        (lambda c: c.update(index=3), "(index): expected text; got 3"),
        (lambda c: c["columns"].update(tokens=[]), "(columns.tokens): expected a mapping"),
        (
            lambda c: c["columns"]["tokens"].update(file="../../x.npy"),
            "(columns.tokens.file): String should match pattern",
        ),
        (
            lambda c: c["columns"]["tokens"].update(file="/etc/passwd"),
            "(columns.tokens.file): String should match pattern",
        ),
        (
            lambda c: c["columns"]["tokens"].update(dtype="object"),
            "(columns.tokens.dtype): expected 'int64', 'float64' or 'int32'; got 'object'",
        ),
        (
            lambda c: c["columns"]["lang"].update(dtype="int64"),
            "categories for int32, and for no other",
        ),
        (lambda c: c["columns"]["lang"].update(categories=["a", "a"]), "list of different words"),
        (
            lambda c: c["columns"]["lang"].update(categories=[1]),
            "(columns.lang.categories[0]): expected text",
        ),
        (lambda c: c["columns"]["lang"].pop("measured"), "the key 'measured' is missing"),
        (lambda c: c["shard_counts"].update({"shard-000000.tar": 6}), "they have 6 samples, and"),
        (
            lambda c: c["shard_counts"].pop("shard-000003.tar"),
            "they have 0 samples, and .info.json says 4",
        ),
        (lambda c: c.update(index="other"), "the folder was prepared again"),
    ],
)
def test_a_damaged_or_foreign_index_is_told(folder, change, told):
    changed(folder, change)
    with pytest.raises(DatasetError) as error:
        WebdatasetSource(folder).column("tokens")
    assert told in str(error.value)
    assert str(index_of(folder)) in str(error.value)


def test_shards_in_another_order_are_others(folder):
    changed(folder, lambda c: c.update(shard_counts=dict(sorted(c["shard_counts"].items())[::-1])))
    with pytest.raises(DatasetError, match="order of the shards"):
        WebdatasetSource(folder).column("tokens")


@pytest.mark.parametrize(
    ("name", "damage", "told"),
    [
        ("tokens", lambda f: f.unlink(), "is missing"),
        ("tokens", lambda f: f.write_bytes(f.read_bytes()[:-8]), "cannot be read as numbers"),
        ("tokens", lambda f: f.write_bytes(b""), "cannot be read as numbers"),
        ("tokens", lambda f: f.write_bytes(b"\x80\x04K\x01."), "cannot be read as numbers"),
        ("tokens", lambda f: np.save(f, np.arange(24)), r"int64 of shape \(24,\)"),
        ("tokens", lambda f: np.save(f, np.arange(25, dtype=np.int32)), "holds int32"),
        ("lang", lambda f: np.save(f, np.full(25, 2, np.int32)), "from 2 to 2, but 2 words"),
        ("lang", lambda f: np.save(f, np.full(25, -2, np.int32)), "from -2 to -2"),
    ],
)
def test_damaged_values_are_told_with_the_command_that_measures_them(folder, name, damage, told):
    damage(folder / COLUMNS_FOLDER / read_columns(folder).columns[name].file)
    how = {"tokens": "size:txt", "lang": "text:lang"}[name]
    with pytest.raises(DatasetError, match=told) as error:
        WebdatasetSource(folder).column(name)
    assert f"energize prepare {folder} --column {name}={how}" in str(error.value)


class Runs:
    """What unpickling would run."""

    def __reduce__(self):
        return exec, ("raise SystemExit('it ran')",)


def test_nothing_is_unpickled(folder):
    file = folder / COLUMNS_FOLDER / read_columns(folder).columns["tokens"].file
    np.save(file, np.array([Runs()], dtype=object), allow_pickle=True)
    with pytest.raises(DatasetError, match="cannot be read as numbers"):
        WebdatasetSource(folder).column("tokens")


@pytest.mark.parametrize("name", ["", "a b", "1st", "a/b", "../x", "a-b", None, "x" * 101])
def test_names_that_could_be_no_parameter_are_refused(name):
    with pytest.raises(ColumnError, match="called as variables are"):
        check_name(name)
