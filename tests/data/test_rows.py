"""Parquet and JSON files: random access, laws, and damaged input."""

from __future__ import annotations

import json
import re
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from energize import (
    ConfigError,
    DatasetNotFoundError,
    EmptyDatasetError,
    get_train_dataset,
)
from energize.data.jsonl import JsonlSource
from energize.data.rows import JsonSource, ParquetSource
from energize.errors import PrepareError, ShardError, SubstitutionError
from energize.preparation.index import prepare_jsonl
from tests.support.refusals import check_refusals
from tests.support.rows import write_lines, write_parquet


@pytest.fixture
def parquet(tmp_path):
    write_parquet(tmp_path / "c.parquet", [{"text": "c 0", "id": 0}])
    return tmp_path


def test_what_cannot_be_read_is_named(parquet, tmp_path):
    lines = write_lines(tmp_path / "x.parquet", [{"a": 1}])
    (tmp_path / "x.json.gz").write_bytes(b"\x1f\x8b")
    (tmp_path / "half.json").write_text('[{"a": 1}, {"a":')
    empty, bad = write_lines(tmp_path / "x.jsonl", []), tmp_path / "no.jsonl"
    bad.write_text("no\n" * 5)
    rows = {
        "columns": (lambda: ParquetSource(f"{parquet}/?.parquet", columns=["txet"]), ConfigError,
                    "no column 'txet'; did you mean 'text'"),
        "parquet": (lambda: ParquetSource(lines), ShardError, "x.parquet cannot be read as Parq"),
        "gz": (lambda: len(JsonSource(tmp_path / "x.json.gz")), ShardError, "Unpack it"),
        "half": (lambda: len(JsonSource(tmp_path / "half.json")), ShardError,
                 "half.json is neither one JSON value"),
        "empty": (lambda: JsonSource(empty).at([0]), EmptyDatasetError, f"({empty}) has no sam"),
        "bad": (lambda: list(JsonSource(bad)), SubstitutionError, "not JSON"),
    }  # fmt: skip
    for kind in (ParquetSource, JsonSource):
        name = kind.__name__
        rows[f"{name} nothing"] = (
            partial(kind, f"{tmp_path}/nothing*"), DatasetNotFoundError, "nothing*",
        )  # fmt: skip
        rows[f"{name} folder"] = (
            partial(kind, tmp_path),
            DatasetNotFoundError,
            "folder/*",
        )
        rows[f"{name} none"] = (partial(kind, []), ConfigError, "got an empty list")
        rows[f"{name} number"] = (partial(kind, [3]), ConfigError, "got [3]")
    check_refusals(None, rows)
    assert ParquetSource(parquet / "c.parquet", columns=["id"])[0] == {"id": 0}


@pytest.mark.parametrize("text", ["null", "3", '"abc"', "true", " null \n"])
def test_a_json_file_of_one_plain_value_is_refused_by_its_name(tmp_path, text):
    path = tmp_path / "a.json"
    path.write_text(text)
    words = f"{path} is the JSON value {text.strip()}, not rows"
    for read in (
        lambda: list(JsonSource(path)),
        lambda: get_train_dataset(path, batch_size=1),
        lambda: get_train_dataset(tmp_path, batch_size=1),
    ):
        with pytest.raises(ShardError, match=re.escape(words)):
            read()


def test_an_object_in_a_json_file_is_one_value_whatever_blank_lines_follow(tmp_path):
    path = tmp_path / "a.json"
    for text in (
        '{"data": [{"a": 1}, {"a": 2}]}\n  \n',
        '{\n "data": [\n {"a": 1}, {"a": 2}]}\n',
    ):
        path.write_text(text)
        assert list(JsonSource(path)) == [{"a": 1}, {"a": 2}]


BLANK = ["", " ", "\t", "   \r", "\r", "\x0b\x0c"]
FULL = ['{"a": 1}', ' {"a": 2}\t', "{}", '\x0c{"a": 3}']


@given(
    lines=st.lists(st.sampled_from(BLANK + FULL), max_size=8),
    end=st.sampled_from(["", "\n"]),
    block=st.sampled_from([1, 2, 3, 5, 1000]),
)
def test_blank_lines_are_no_rows_prepared_or_not(tmp_path_factory, lines, end, block):
    path = tmp_path_factory.mktemp("lines") / "x.jsonl"
    path.write_bytes(("\n".join(lines) + end).encode())
    rows = [json.loads(line.strip()) for line in lines if line.strip()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("energize.data.rows._AT_ONCE", block)
        source = JsonSource(path)
        assert source.count == len(rows)
        assert source.read(np.arange(len(rows))) == rows
    if rows:
        prepare_jsonl(path)
        assert [json.loads(each["json"]) for each in JsonlSource(path)] == rows


def test_a_line_of_one_byte_is_a_row_that_is_no_object(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": 0}\n3\n')
    first, failed = JsonSource(path).read(np.arange(2))
    assert first == {"a": 0}
    assert "line 2: DataError: a row must be a JSON object, got 3" in str(failed)
    with pytest.raises(PrepareError, match="line 2"):
        prepare_jsonl(path)


def test_lines_without_rows_are_left_out_and_bad_ones_are_substituted(tmp_path, caplog):
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": 0}\r\n\n\r\n{"a": 1}\n{"a": \n[3]\n{"a": 4}')
    source = JsonSource(path)
    assert source.count == 5
    found = [row["a"] for row in source]
    assert [found[0], found[1], found[4]] == [0, 1, 4]
    assert set(found) == {0, 1, 4}
    assert "line 5: DataError: not JSON" in caplog.text
    assert "line 6: DataError: a row must be a JSON object" in caplog.text
    assert found == [row["a"] for row in JsonSource(path)]
