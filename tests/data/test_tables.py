"""Tables: names of columns, JSON of every shape, types of Arrow, and files that were
cut off."""

from __future__ import annotations

import io
import logging
import re
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet
import pytest

from energize import get_train_dataset, get_val_dataset, prepare
from energize.data.documents import document_of
from energize.data.rows import ArrowSource, JsonSource
from energize.data.tables import AT, KEY, open_table
from energize.errors import ConfigError, DatasetError, ShardError
from tests.support.images import encoded, picture


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ".cache"))
    monkeypatch.setattr("energize.core.ignored._logged", set())


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [
        {k: v for k, v in row.items() if k not in (KEY, AT)}
        for row in open_table([path])
    ]


DELIMITED = {
    "names": ("text,n\na cat,1\n", [{"text": "a cat", "n": 1}]),
    "padded names": (" text , n \n a cat , 1 \n", [{"text": "a cat", "n": 1}]),
    "a byte order mark": ("\ufefftext,n\na cat,1\n", [{"text": "a cat", "n": 1}]),
    "an index of pandas": (",text\n0,a cat\n", [{"column 1": 0, "text": "a cat"}]),
    "numbers of pandas as names": ("0,1\na cat,b\n", [{"0": "a cat", "1": "b"}]),
    "numbers of pandas and an index": (
        ",0\n0,a cat\n",
        [{"column 1": 0, "0": "a cat"}],
    ),
    "numbers alone": (
        "0,1\n2,3\n",
        [{"column 1": 0, "column 2": 1}, {"column 1": 2, "column 2": 3}],
    ),
    "a file name in the first line": (
        "a.JFIF,cat\n",
        [{"column 1": "a.JFIF", "column 2": "cat"}],
    ),
    "a URL in the first line": (
        "http://a.example/x,cat\n",
        [{"column 1": "http://a.example/x", "column 2": "cat"}],
    ),
    "other values that are like a name in another column": (
        "text,label\nlabel,text\n",
        [{"text": "label", "label": "text"}],
    ),
}


@pytest.mark.parametrize("case", DELIMITED)
def test_a_first_line_has_names_or_is_a_row(case, tmp_path):
    text, rows = DELIMITED[case]
    (tmp_path / "a.csv").write_text(text, encoding="utf-8")
    assert rows_of(tmp_path / "a.csv") == rows


DOUBTFUL = {
    "a class that comes again": (
        "it is good,positive\nit is bad,negative\nfine,positive\n",
        "'positive'",
    ),
    "a sentence": (
        "a small cat sits here\na big dog runs\n",
        "'a small cat sits here'",
    ),
    "a sentence beside a name": (
        "text,a big dog runs away\nx,y\n",
        "'a big dog runs away'",
    ),
    "two columns of one name": ("text,text\na,b\n", "several named 'text'"),
    "two columns of one name but for spaces": (
        "text, text\na,b\n",
        "several named 'text'",
    ),
    "names in the middle": (
        "text,n\na,1\ntext,n\nb,2\n",
        "line 3: the header is repeated",
    ),
}


@pytest.mark.parametrize("case", DOUBTFUL)
def test_names_that_are_in_doubt_are_refused_with_file_and_line(case, tmp_path):
    text, words = DOUBTFUL[case]
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(
        DatasetError, match=f"a.csv, line .*{re.escape(words)}|{words}"
    ) as caught:
        rows_of(tmp_path / "a.csv")
    assert "a.csv, line" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.jsonl", '{"text": "a", "text": "b"}\n'),
        ("a.jsonl", '{"text": "a", "meta": {"x": 1, "x": 2}}\n'),
        ("a.jsonl", '{"text": "a", "turns": [{"from": "x", "from": "y"}]}\n'),
    ],
)
def test_a_line_with_a_key_twice_is_a_row_that_fails(name, text, tmp_path):
    (tmp_path / name).write_text('{"text": "before"}\n' + text)
    first, second = JsonSource(tmp_path / name).read(np.arange(2))
    assert first == {"text": "before"}
    assert "more than once" in str(second.reason)
    assert second.where.endswith("a.jsonl, line 2")


@pytest.mark.parametrize(
    "text", ['[{"a": 1, "a": 2}]', '{"x": {"a": "1"}, "x": {"a": "2"}}']
)
def test_a_whole_file_with_a_key_twice_is_refused(text, tmp_path):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ShardError, match=r"a\.json .* the key '[ax]' more than once"):
        rows_of(tmp_path / "a.json")


SHAPES = {
    "pandas": (
        {"text": {"0": "a", "1": "b"}},
        "columns",
        [{"text": "a"}, {"text": "b"}],
    ),
    "pandas after a filter": (
        {"text": {"5": "a", "7": "b"}, "n": {"5": 1, "7": 2}},
        "columns",
        [{"text": "a", "n": 1}, {"text": "b", "n": 2}],
    ),
    "pandas, split": (
        {"columns": ["text", "n"], "index": [0, 1], "data": [["a", 1], ["b", 2]]},
        "columns",
        [{"text": "a", "n": 1}, {"text": "b", "n": 2}],
    ),
    "pandas, table": ({"schema": {}, "data": [{"text": "a"}]}, "rows", [{"text": "a"}]),
    "records by id": (
        {"x1": {"text": "a"}, "x2": {"text": "b"}},
        "by key",
        [{"key": "x1", "text": "a"}, {"key": "x2", "text": "b"}],
    ),
    "texts by number": ({"7": "a"}, "by key", [{"key": "7", "text": "a"}]),
    "texts by id": (
        {"id_1": "a", "id_2": "b", "id_3": "c"},
        "by key",
        [{"key": f"id_{n}", "text": t} for n, t in ((1, "a"), (2, "b"), (3, "c"))],
    ),
    "two texts": (
        {"text1": "a", "text2": "b"},
        "one row",
        [{"text1": "a", "text2": "b"}],
    ),
    "a row": (
        {"question": "a", "answer1": "b"},
        "one row",
        [{"question": "a", "answer1": "b"}],
    ),
}


@pytest.mark.parametrize("case", SHAPES)
def test_a_json_object_is_read_as_what_it_is(case):
    value, shape, rows = SHAPES[case]
    assert document_of(value) == (shape, rows)


def test_many_texts_in_one_object_are_not_one_row():
    names = [f"{chr(97 + n % 26)}{chr(97 + n // 26)}" for n in range(65)]
    assert document_of(dict.fromkeys(names, "a cat")).shape == "by key"
    assert document_of(dict.fromkeys(names[:64], "a cat")).shape == "one row"


# Arrow and Parquet.


def as_arrow(table: Any, path: Path, *, stream: bool) -> None:
    opened = pyarrow.ipc.new_stream if stream else pyarrow.ipc.new_file
    with opened(str(path), table.schema) as writer:
        writer.write_table(table)


def write(table: Any, path: Path) -> Path:
    if path.suffix in (".parquet", ".pq"):
        pyarrow.parquet.write_table(table, path)
    else:
        as_arrow(table, path, stream=path.suffix == ".arrows")
    return path


TEXTS = {
    "string": pa.string(),
    "large": pa.large_string(),
    "view": pa.string_view(),
    "dictionary": pa.dictionary(pa.int8(), pa.string()),
    "dictionary of large": pa.dictionary(pa.int32(), pa.large_string()),
}
BYTES = {
    "binary": pa.binary(),
    "large": pa.large_binary(),
    "view": pa.binary_view(),
}
LISTS = {
    "list": pa.list_(pa.string()),
    "large": pa.large_list(pa.string()),
    "view": pa.list_view(pa.string()),
    "of views": pa.list_(pa.string_view()),
    "fixed": pa.list_(pa.string(), 2),
}
FILES = ("a.parquet", "a.pq", "a.arrow", "a.arrows", "a.ipc", "a.feather")


def texts(kind: Any) -> Any:
    array = pa.array(["a", None, "b"])
    return (
        array.cast(kind)
        if not pa.types.is_dictionary(kind)
        else array.dictionary_encode().cast(kind)
    )


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("kind", TEXTS)
def test_texts_of_every_type_of_arrow_are_texts(kind, file, tmp_path):
    path = write(pa.table({"text": texts(TEXTS[kind])}), tmp_path / file)
    assert rows_of(path) == [{"text": "a"}, {"text": None}, {"text": "b"}]


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("kind", BYTES)
def test_bytes_of_every_type_of_arrow_are_images_where_they_decode_as_such(
    kind, file, tmp_path
):
    data = [encoded(picture(8, 6), "PNG"), encoded(picture(6, 8), "JPEG")]
    struct = pa.struct({"bytes": BYTES[kind], "path": pa.string()})
    values = [{"bytes": each, "path": None} for each in data]
    path = write(pa.table({"image": pa.array(values, struct)}), tmp_path / file)
    dataset = get_val_dataset(path, split_part="train", batch_size=None)
    assert [tuple(sample.image.shape) for sample in dataset] == [(3, 6, 8), (3, 8, 6)]


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("kind", LISTS)
def test_lists_of_every_type_of_arrow_are_lists(kind, file, tmp_path):
    path = tmp_path / file
    try:
        write(
            pa.table({"texts": pa.array([["a", "b"], ["c", "d"]], LISTS[kind])}), path
        )
    except pa.ArrowNotImplementedError:
        pytest.skip("not written by this version of pyarrow")
    assert rows_of(path) == [{"texts": ["a", "b"]}, {"texts": ["c", "d"]}]


@pytest.mark.parametrize("file", FILES)
def test_a_map_is_an_object_and_no_list_of_questions_and_answers(file, tmp_path):
    kind = pa.map_(pa.string(), pa.string())
    table = pa.table({"meta": pa.array([[("source", "web")]], kind), "text": ["a cat"]})
    path = write(table, tmp_path / file)
    assert rows_of(path) == [{"meta": {"source": "web"}, "text": "a cat"}]
    [sample] = get_val_dataset(path, split_part="train", batch_size=None)
    assert type(sample).__name__ == "TextSample"


@pytest.mark.parametrize("file", FILES)
def test_two_columns_of_one_name_are_refused(file, tmp_path):
    table = pa.Table.from_arrays(
        [pa.array(["a"]), pa.array(["b"])], names=["text", "text"]
    )
    with pytest.raises(ShardError, match=f"{file} has several columns called 'text'"):
        rows_of(write(table, tmp_path / file))


@pytest.mark.parametrize("file", ["a.parquet", "a.arrow", "a.jsonl"])
def test_spaces_around_the_name_of_a_column_are_refused(file, tmp_path):
    if file == "a.jsonl":
        (tmp_path / file).write_text('{" text ": "a cat"}\n')
    else:
        write(pa.table({" text ": ["a cat"]}), tmp_path / file)
    with pytest.raises(
        DatasetError,
        match=f"{file}: .* has spaces around it.*Rename the column to 'text'",
    ):
        get_val_dataset(tmp_path, split_part="train", batch_size=None)


@pytest.mark.parametrize(
    "file", ["a.csv", "b.csv", "a.json", "a.jsonl", "a.parquet", "a.arrow"]
)
def test_a_table_without_rows_is_named(file, tmp_path):
    path = tmp_path / file
    if path.suffix in (".parquet", ".arrow"):
        write(pa.table({"text": pa.array([], pa.string())}), path)
    else:
        path.write_text(
            {"a.csv": "", "b.csv": "text,n\n", "a.json": "[]"}.get(file, "")
        )
    for place in (tmp_path, path):
        with pytest.raises(DatasetError, match=rf"{file} has no row"):
            get_val_dataset(place, split_part="train", batch_size=None)


# Files that were cut off.


def a_stream(*, batches: int = 3) -> tuple[bytes, list[int]]:
    """The bytes of a stream of batches, and where each of these ends."""
    table = pa.table({"text": ["a", "b"]})
    buffer = pa.BufferOutputStream()
    ends = []
    with pyarrow.ipc.new_stream(buffer, table.schema) as writer:
        for _ in range(batches):
            writer.write_table(table)
            ends.append(buffer.tell())
    return buffer.getvalue().to_pybytes(), ends


def test_a_stream_that_was_cut_between_batches_is_reported(tmp_path, caplog):
    data, ends = a_stream()
    path = tmp_path / "a.arrow"
    path.write_bytes(data)
    assert len(ArrowSource(path)) == 6
    assert not caplog.records
    path.write_bytes(data[: ends[1]])
    assert len(ArrowSource(path)) == 4
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert f"{path}: the stream ends without an end mark" in record.getMessage()


@pytest.mark.parametrize("cut", [1, 8, 20])
def test_a_stream_that_was_cut_within_a_batch_is_refused(cut, tmp_path):
    data, ends = a_stream()
    (tmp_path / "a.arrow").write_bytes(data[: ends[1] - cut])
    with pytest.raises(ShardError, match=r"a\.arrow cannot be read as Arrow"):
        len(ArrowSource(tmp_path / "a.arrow"))


def a_tar(folder: Path, *, blocks: int | None = None) -> Path:
    """A tar of ten texts, of which only the first blocks are left."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for number in range(10):
            info = tarfile.TarInfo(f"{number}.txt")
            info.size = 5
            tar.addfile(info, io.BytesIO(b"a cat"))
    folder.mkdir(exist_ok=True)
    (folder / "a.tar").write_bytes(
        buffer.getvalue()[: None if blocks is None else blocks * 512]
    )
    return folder


def read(folder: Path) -> int:
    return len([*get_val_dataset(folder, split_part="train", batch_size=None)])


def end_marks(caplog) -> list[str]:
    return [
        each.getMessage() for each in caplog.records if "end mark" in each.getMessage()
    ]


def test_a_tar_that_was_cut_between_members_is_reported_each_time_it_is_read(
    tmp_path, caplog, monkeypatch
):
    folder = a_tar(tmp_path / "cut", blocks=12)
    for _ in range(2):  # the second time its index is in the cache
        monkeypatch.setattr("energize.core.ignored._logged", set())
        caplog.clear()
        assert read(folder) == 6
        assert any("samples may be missing" in line for line in end_marks(caplog))


def test_a_prepared_tar_that_was_cut_is_reported_where_it_is_read(tmp_path, caplog):
    folder = a_tar(tmp_path / "cut", blocks=12)
    prepare(folder, split_ratios={"train": 1}, sample_type="TextSample", workers=1)
    caplog.clear()
    assert read(folder) == 6
    [line] = end_marks(caplog)
    assert line.startswith(f"{folder}: a.tar")


def test_nothing_is_reported_of_a_whole_tar(tmp_path, caplog):
    assert read(a_tar(tmp_path / "whole")) == 10
    assert not end_marks(caplog)


HEADERLESS = {
    "captions": (
        ["cat", "dog", "red bus", "two"],
        "CaptioningSample",
        {"caption": "cat"},
    ),
    "sentences": (
        ["a cat sits here", "a dog runs there", "a bus is red", "two of them"],
        "CaptioningSample",
        {"caption": "a cat sits here"},
    ),
    "classes": (
        ["cat", "dog", "cat", "dog"],
        "ImageClassificationSample",
        {"label_name": "cat"},
    ),
    "numbers of classes": (
        ["0", "1", "0", "1"],
        "ImageClassificationSample",
        {"label": 0},
    ),
}


@pytest.mark.parametrize("case", HEADERLESS)
@pytest.mark.parametrize("extension", ["jpg", "JFIF", "tga"])
def test_a_table_of_images_without_names_of_columns_loses_no_row(
    case, extension, tmp_path
):
    values, kind, fields = HEADERLESS[case]
    names = [f"{number}.{extension}" for number in range(len(values))]
    for name in names:
        encoding = {"tga": "TGA"}.get(extension, "JPEG")
        (tmp_path / name).write_bytes(encoded(picture(8, 6), encoding))
    lines = [f"{name},{value}" for name, value in zip(names, values, strict=True)]
    (tmp_path / "metadata.csv").write_text("\n".join(lines))
    dataset = get_val_dataset(tmp_path, split_part="train", batch_size=None)
    assert len(dataset) == 4
    assert type(dataset[0]).__name__ == kind
    assert {name: getattr(dataset[0], name) for name in fields} == fields


def test_a_lance_folder_needs_lance(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "lance", None)
    versions = tmp_path / "pairs.lance" / "_versions"
    versions.mkdir(parents=True)
    (versions / "1.manifest").write_bytes(b"")
    for path in (tmp_path / "pairs.lance", tmp_path):
        with pytest.raises(ConfigError, match=r"pip install 'energize\[lance\]'"):
            get_train_dataset(path, batch_size=2)
