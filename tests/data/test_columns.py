"""Columns of every kind of source; of prepared folders, what is damaged is told by its
name."""

from __future__ import annotations

import json
import shlex
import shutil
from functools import partial

import numpy as np
import pytest
import yaml

from energize import WebdatasetSource, prepare
from energize.core.costs import ColumnCost
from energize.data.columns import (
    COLUMNS_FOLDER,
    COLUMNS_NAME,
    read_columns,
    values_file,
)
from energize.errors import ColumnError, DatasetError
from energize.preparation import prepare_columns
from energize.preparation.index import prepare_jsonl
from energize.sources import (
    HuggingFaceSource,
    JoinedSource,
    JsonlSource,
    JsonSource,
    ParquetSource,
)
from tests.support.joining import keys
from tests.support.joining import texts as texts_folder
from tests.support.refusals import check_refusals
from tests.support.rows import write_lines, write_parquet
from tests.support.shards import packed

ROWS = [
    {"text": "x" * i, "tokens": i + 1, "lang": ["en", "fr"][i % 3 == 0]}
    for i in range(10)
]
WORDS = ["high", "low", None, "low"]
MEASURED = {"tokens": "size:txt", "lang": "json[lang]"}


def shards(folder, *counts, exclude=()):
    """Sample i of the folder has i + 1 bytes."""
    folder.mkdir()
    number = 0
    for shard, count in enumerate(counts):
        files = []
        for i in range(number, number + count):
            files.append((f"{i:03d}.txt", b"x" * (i + 1)))
            word = WORDS[i % 4]
            files += (
                [(f"{i:03d}.json", json.dumps({"lang": word}).encode())] if word else []
            )
        (folder / f"s{shard}.tar").write_bytes(packed(files))
        number += count
    prepare(folder, split_ratios={"train": 1}, workers=1)
    names = [f"s{shard}.tar" for shard in range(len(counts))]
    parts = {
        "train": names,
        "turned": names[::-1],
        "middle": names[1:3],
        "ends": names[::3],
    }
    split = {"split_parts": parts, "exclude": list(exclude)}
    (folder / ".nv-meta" / "split.yaml").write_text(yaml.safe_dump(split))
    prepare_columns(folder, MEASURED, workers=1)
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return shards(tmp_path_factory.mktemp("columns") / "texts", 4, 3, 4, 2)


@pytest.fixture
def folder(made, tmp_path):
    return shutil.copytree(made, tmp_path / "texts")


def index_of(folder):
    return folder / COLUMNS_FOLDER / COLUMNS_NAME


@pytest.mark.parametrize(
    "exclude", [(), ("s1.tar/005", "s3.tar/012"), ("s1.tar", "s2.tar/009")]
)
def test_splits_parts_and_excluded_samples(tmp_path, exclude):
    folder = shards(tmp_path / "f", 4, 3, 4, 2, exclude=exclude)
    for split in ("train", "turned", "middle", "ends"):
        source = WebdatasetSource(folder, split_part=split)
        end = source.stored_count
        for each in [source, source.part(1, end), source.part(1, end).part(0, end - 2)]:
            stored = [len(sample["txt"]) for sample in each]
            assert each.column("tokens").values.tolist() == stored
            assert (
                ColumnCost("tokens").of(each, np.arange(each.count)).tolist() == stored
            )
            lang = each.column("lang")
            words = [lang.categories[v] if v >= 0 else None for v in lang.values]
            assert words == [WORDS[(size - 1) % 4] for size in stored]


def test_a_folder_that_is_prepared_while_it_is_read_is_told(folder):
    source = WebdatasetSource(folder)
    (folder / "s1.tar").unlink()
    prepare(folder, split_ratios={"train": 1}, workers=1, overwrite=True)
    prepare_columns(folder, {"tokens": "size:txt"}, workers=1)
    with pytest.raises(DatasetError, match="prepared again with other shards while in"):
        source.column("tokens")


def test_a_damaged_or_foreign_index_is_told(folder):
    sound = index_of(folder).read_text()

    def read(change):
        content = json.loads(sound)
        change(content)
        index_of(folder).write_text(json.dumps(content))
        return WebdatasetSource(folder).column("tokens")

    def column(name="tokens", **values):
        return lambda content: content["columns"][name].update(values)

    changes = [
        (lambda c: c.update(version=2), "(version): expected 1, got 2"),
        (
            lambda c: c["columns"].update({"a b": c["columns"]["tokens"]}),
            "columns['a b']",
        ),
        (column(file="../../x.npy"), "(columns.tokens.file)"),
        (column(dtype="object"), "(columns.tokens.dtype): expected 'int64', 'float64'"),
        (
            column("lang", dtype="int64"),
            "categories must be present for int32",
        ),
        (column("lang", categories=["a", "a"]), "list of different words"),
        (lambda c: c["shard_counts"].update({"s0.tar": 6}), "of the folder: 's0.tar'"),
        (lambda c: c["shard_counts"].pop("s3.tar"), "of the folder: 's3.tar'"),
        (lambda c: c.update(index="other"), "the folder was prepared again"),
        (
            lambda c: c.update(shard_counts=dict([*c["shard_counts"].items()][::-1])),
            "their order is",
        ),
    ]
    check_refusals(None, {
        f"{number}: {told}": (partial(read, change), DatasetError, str(index_of(folder)), told)
        for number, (change, told) in enumerate(changes)
    })  # fmt: skip


class Runs:
    """What unpickling would run."""

    def __reduce__(self):
        return exec, ("raise SystemExit('it ran')",)


def test_damaged_values_are_told_with_the_command_that_measures_them(folder):
    stored = {
        name: column.file for name, column in read_columns(folder).columns.items()
    }
    whole = {
        name: (folder / COLUMNS_FOLDER / file).read_bytes()
        for name, file in stored.items()
    }
    sound = index_of(folder).read_text()

    def read(name, damage):
        file = folder / COLUMNS_FOLDER / stored[name]
        file.write_bytes(whole[name])
        index_of(folder).write_text(sound)
        damage(file)
        return WebdatasetSource(folder).column(name)

    def saved(values):
        return lambda file: np.save(file, values, allow_pickle=True)

    def reverse(_):
        content = json.loads(sound)
        content["columns"]["lang"]["categories"].reverse()
        index_of(folder).write_text(json.dumps(content))

    def named(values, words=None):
        """As whoever may write the folder could."""

        def write(file):
            content = json.loads(sound)
            column = content["columns"]["tokens" if words is None else "lang"]
            column["file"] = values_file(file.name.split(".")[0], values, words)
            np.save(file.with_name(column["file"]), values)
            index_of(folder).write_text(json.dumps(content))

        return write

    damages = [
        ("tokens", lambda f: f.unlink(), "No such file"),
        ("tokens", lambda f: f.write_bytes(f.read_bytes()[:-8]), "it has no numbers"),
        ("tokens", saved(np.array([Runs()], dtype=object)), "it has no numbers"),
        ("tokens", named(np.arange(24)), "int64 of shape (24,)"),
        ("tokens", named(np.arange(13, dtype=np.int32)), "has int32"),
        (
            "lang",
            named(np.full(13, 2, np.int32), ["high", "low"]),
            "2 to 2, but 2 words",
        ),
        ("lang", reverse, "its name does not match its content"),
    ]
    again = {name: shlex.quote(f"{name}={how}") for name, how in MEASURED.items()}
    check_refusals(None, {
        f"{number}: {told}": (partial(read, name, damage), DatasetError, told,
                              f"energize prepare {folder} --column {again[name]}")
        for number, (name, damage, told) in enumerate(damages)
    })  # fmt: skip


def test_values_are_what_they_were_whatever_becomes_of_the_file(folder):
    """A mapped file that is cut would end the process."""
    column = WebdatasetSource(folder).column("tokens")
    again = WebdatasetSource(folder).column("tokens").values.tolist()
    (folder / COLUMNS_FOLDER / read_columns(folder).columns["tokens"].file).write_bytes(
        b""
    )
    assert column.values.tolist() == again


def test_fields_of_rows_are_columns(tmp_path):
    datasets = pytest.importorskip("datasets")
    jsonl = write_lines(tmp_path / "rows.jsonl", ROWS)
    prepare_jsonl(jsonl)
    half = [write_lines(tmp_path / f"{i}.json", ROWS[i : i + 5]) for i in (0, 5)]
    tables = [
        write_parquet(tmp_path / f"{i}.parquet", ROWS[i : i + 5], 2) for i in (0, 5)
    ]
    hugging_face = datasets.Dataset.from_list(ROWS)
    for source in (
        JsonlSource(jsonl),
        JsonSource(half),
        ParquetSource(tables),
        ParquetSource(tables, columns=["text"]),  # read or not
        HuggingFaceSource(hugging_face),
        HuggingFaceSource(hugging_face.with_format("numpy")),
    ):
        assert source.column_names == ("text", "tokens", "lang"), source
        assert source.column("tokens").values.tolist() == list(range(1, 11)), source
        lang = source.column("lang")
        assert [lang.categories[v] for v in lang.values] == [
            row["lang"] for row in ROWS
        ], source
        assert source.column("lang") is lang
        with pytest.raises(
            ColumnError, match="no column 'token'; did you mean 'tokens'"
        ):
            source.column("token")
    assert JsonlSource(jsonl).part(3, 7).column("tokens").values.tolist() == [
        4,
        5,
        6,
        7,
    ]


def test_fields_that_are_no_columns_are_told(tmp_path):
    rows = [{"a": 1, "b": "x"}, {"a": "one", "b": "y"}, {"b": ["z"]}]
    large = JsonSource(write_lines(tmp_path / "large.json", [{"a": 1}, {"a": 2**64}]))
    source = JsonSource(write_lines(tmp_path / "rows.json", rows))
    broken = write_lines(tmp_path / "broken.json", rows)
    broken.write_text(broken.read_text() + "{,}\n")
    check_refusals(None, {
        "mixed": (partial(source.column, "a"), ColumnError, "rows: column 'a' must have only numbers or only w"),
        "large": (partial(large.column, "a"), ColumnError, "64 bits, but sample 1, counted from 0, has 184"),
        "lists": (partial(source.column, "b"), ColumnError, "rows: column 'b'"),
        "no JSON": (lambda: JsonSource(broken).column("b"), ColumnError, "json, line 4: not"),
    })  # fmt: skip


def test_a_join_has_the_columns_of_all_its_parts(tmp_path):
    texts_folder(tmp_path / "a", [keys(*range(8))], prefix="a ")
    texts_folder(tmp_path / "b", [keys(*range(2, 12))], prefix="longer ")
    prepare_columns(tmp_path / "a", {"one": "size:txt"}, workers=1)
    prepare_columns(
        tmp_path / "b",
        {"two": "len:txt", "word": lambda raw: raw["txt"].decode()},
        workers=1,
    )
    first, other = WebdatasetSource(tmp_path / "a"), WebdatasetSource(tmp_path / "b")
    joined = JoinedSource(first, other, nonmatch=["skip"])
    assert joined.column_names == ("one", "two", "word")
    for number, name in ((0, "one"), (1, "two")):
        lengths = [len(row[number]["txt"]) for row in joined]
        assert joined.column(name).values.tolist() == lengths
    part = joined.part(1, 4)
    assert (
        part.column("two").values.tolist() == joined.column("two").values.tolist()[1:4]
    )
    alone = JoinedSource(first, other, nonmatch=["none"])
    assert alone.column("word").values.tolist()[:2] == [-1, -1]
    with pytest.raises(ColumnError, match="2 of 8 samples have no partner"):
        alone.column("two")
    with pytest.raises(ColumnError, match=r"a\+b has no column 'tokens'"):
        alone.column("tokens")
