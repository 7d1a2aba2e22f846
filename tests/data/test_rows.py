"""Parquet and JSON files: random access, laws, and damaged input."""

from __future__ import annotations

from functools import partial

import pytest

from energize import (
    ConfigError,
    DatasetNotFoundError,
    EmptyDatasetError,
    ShardError,
    SubstitutionError,
)
from energize.data.rows import JsonSource, ParquetSource
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
        "gz": (lambda: len(JsonSource(tmp_path / "x.json.gz")), ShardError, "unpack it"),
        "half": (lambda: len(JsonSource(tmp_path / "half.json")), ShardError,
                 "half.json is neither JSON nor"),
        "empty": (lambda: JsonSource(empty).at([0]), EmptyDatasetError, f"({empty}) has no sam"),
        "bad": (lambda: list(JsonSource(bad)), SubstitutionError, "not JSON"),
    }  # fmt: skip
    for kind in (ParquetSource, JsonSource):
        name = kind.__name__
        rows[f"{name} nothing"] = (
            partial(kind, f"{tmp_path}/nothing*"), DatasetNotFoundError, "nothing*",
        )  # fmt: skip
        rows[f"{name} folder"] = (partial(kind, tmp_path), DatasetNotFoundError, "folder/*")
        rows[f"{name} none"] = (partial(kind, []), ConfigError, "no files")
        rows[f"{name} number"] = (partial(kind, [3]), ConfigError, "got [3]")
    check_refusals(None, rows)
    assert ParquetSource(parquet / "c.parquet", columns=["id"])[0] == {"id": 0}


def test_lines_without_rows_are_left_out_and_bad_ones_are_substituted(tmp_path, caplog):
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": 0}\r\n\n\r\n{"a": 1}\n{"a": \n[3]\n{"a": 4}')
    source = JsonSource(path)
    assert source.count == 5
    found = [row["a"] for row in source]
    assert [found[0], found[1], found[4]] == [0, 1, 4]
    assert set(found) == {0, 1, 4}
    assert "line 5: DataError: not JSON" in caplog.text
    assert "line 6: DataError: a row is a JSON object" in caplog.text
    assert found == [row["a"] for row in JsonSource(path)]
