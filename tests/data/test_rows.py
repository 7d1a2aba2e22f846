"""Parquet and JSON files: random access, laws, and damaged input."""

from __future__ import annotations

import json
from functools import partial

import pyarrow
import pyarrow.parquet
import pytest

from energize import (
    ConfigError,
    DatasetNotFoundError,
    EmptyDatasetError,
    ShardError,
    ShuffleDataset,
    SubstitutionError,
    get_loader,
)
from energize.core.lanes import WorkerConfig
from energize.data.rows import JsonSource, ParquetSource
from energize.testing import check_exactly_once, check_laws
from tests.support.refusals import check_refusals
from tests.support.rows import texts, write_lines, write_parquet


@pytest.fixture
def parquet(tmp_path):
    write_parquet(tmp_path / "b.parquet", texts("b", 7), row_group_size=3)
    write_parquet(tmp_path / "a.parquet", texts("a", 10), row_group_size=4)
    write_parquet(tmp_path / "c.parquet", [{"text": "c 0", "id": 0}])
    return tmp_path


@pytest.mark.parametrize("kind", ["parquet", "lines", "array", "mixed"])
def test_rows_come_in_the_order_of_the_files_and_keep_the_laws(tmp_path, kind):
    rows = texts("a", 10) + texts("b", 7)
    if kind == "parquet":
        write_parquet(tmp_path / "0.parquet", rows[:10], row_group_size=4)
        write_parquet(tmp_path / "1.parquet", rows[10:], row_group_size=3)
        source = ParquetSource(f"{tmp_path}/*.parquet")
    else:
        first, second = tmp_path / "0.json", tmp_path / "1.json"
        for path, part, as_array in (
            (first, rows[:10], kind != "lines"),
            (second, rows[10:], kind == "array"),
        ):
            if as_array:
                path.write_text(json.dumps(part, indent=1))
            else:
                write_lines(path, part)
        source = JsonSource([first, second])
    assert list(source) == rows
    assert source.at([16, 0, 16, 9, 10]) == [rows[i] for i in (16, 0, 16, 9, 10)]
    check_laws(source)
    check_exactly_once(ShuffleDataset(source, shuffle_buffer_size=5), lambda *_: (1, 1))


def test_a_pattern_is_sorted_and_a_list_keeps_its_order(parquet):
    assert [row["text"] for row in ParquetSource(f"{parquet}/*.parquet").at([0, 10, 17])] == [
        "a 0",
        "b 0",
        "c 0",
    ]
    listed = ParquetSource([parquet / "c.parquet", parquet / "b.parquet"])
    assert listed[0]["text"] == "c 0"
    assert listed.where(3).endswith("b.parquet, row 2")


def test_only_footers_are_read_until_rows_are_asked_for(parquet):
    source = ParquetSource(parquet / "a.parquet")
    assert source.count == 10
    (parquet / "a.parquet").write_bytes(b"gone")
    with pytest.raises(ShardError, match=r"a\.parquet"):
        source[0]


def test_row_groups_are_kept_within_the_bound(parquet):
    source = ParquetSource(f"{parquet}/*.parquet", cache_bytes=1)
    list(source)
    assert len(source._tables._kept) == 1
    generous = ParquetSource(f"{parquet}/*.parquet")
    list(generous)
    assert len(generous._tables._kept) == 7


def test_the_order_does_not_depend_on_the_folder(parquet, tmp_path):
    other = tmp_path / "elsewhere"
    for name in "abc":
        (other / f"{name}.parquet").parent.mkdir(exist_ok=True)
        (other / f"{name}.parquet").write_bytes((parquet / f"{name}.parquet").read_bytes())
    one, two = (ShuffleDataset(ParquetSource(f"{at}/?.parquet")) for at in (parquet, other))
    assert list(one) == list(two) != list(ParquetSource(f"{parquet}/?.parquet"))


@pytest.mark.jobs
def test_workers_read_the_same_rows(parquet):
    source = ShuffleDataset(ParquetSource(f"{parquet}/*.parquet"))
    with get_loader(
        source, worker_config=WorkerConfig(num_workers=2), multiprocessing_context="spawn"
    ) as loader:
        assert list(loader) == list(source)


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
        "gz": (lambda: JsonSource(tmp_path / "x.json.gz"), ShardError, "unpack it"),
        "half": (lambda: len(JsonSource(tmp_path / "half.json")), ShardError,
                 "half.json begins as a JSON array"),
        "empty": (lambda: JsonSource(empty).at([0]), EmptyDatasetError, f"({empty}) has no sam"),
        "bad": (lambda: list(JsonSource(bad)), SubstitutionError, "not JSON"),
    }  # fmt: skip
    for kind in (ParquetSource, JsonSource):
        name = kind.__name__
        rows[f"{name} nothing"] = (
            partial(kind, f"{tmp_path}/nothing*"), DatasetNotFoundError, "nothing*",
        )  # fmt: skip
        rows[f"{name} folder"] = (partial(kind, tmp_path), ConfigError, "is a folder")
        rows[f"{name} none"] = (partial(kind, []), ConfigError, "no files")
        rows[f"{name} number"] = (partial(kind, [3]), ConfigError, "got [3]")
    check_refusals(None, rows)
    assert ParquetSource(parquet / "c.parquet", columns=["id"])[0] == {"id": 0}


def test_pages_with_checksums_are_compared_with_them(tmp_path):
    """Of a page that is packed with no compression only its checksum tells."""
    path = tmp_path / "x.parquet"
    table = pyarrow.table({"text": [f"text {number}" for number in range(99)]})
    options = {"compression": "none", "use_dictionary": False}
    pyarrow.parquet.write_table(table, path, write_page_checksum=True, **options)
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"text 17", b"text 71", 1))
    with pytest.raises(ShardError, match=r"x\.parquet cannot be read as Parquet.*CRC"):
        ParquetSource(path).at([17])


def test_text_that_is_no_utf_8_is_told_by_the_name_of_the_file(tmp_path):
    path = tmp_path / "x.parquet"
    table = pyarrow.table({"text": [f"text {number}" for number in range(9)]})
    pyarrow.parquet.write_table(table, path, compression="none", use_dictionary=False)
    path.write_bytes(path.read_bytes().replace(b"text 7", b"text \xff", 1))
    with pytest.raises(ShardError, match=r"x\.parquet cannot be read as Parquet: row group 0"):
        ParquetSource(path).at([7])


def test_lines_without_rows_are_left_out_and_bad_ones_are_substituted(tmp_path, caplog):
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": 0}\r\n\n\r\n{"a": 1}\n{"a": \n[3]\n{"a": 4}')
    source = JsonSource(path)
    assert source.count == 5
    found = [row["a"] for row in source]
    assert [found[0], found[1], found[4]] == [0, 1, 4]
    assert set(found) == {0, 1, 4}
    assert "row 2: DataError: not JSON" in caplog.text
    assert "row 3: DataError: a row is a JSON object" in caplog.text
    assert found == [row["a"] for row in JsonSource(path)]


def test_rows_of_an_array_are_copies(tmp_path):
    path = tmp_path / "x.json"
    path.write_text('[{"a": [1]}]')
    source = JsonSource(path)
    source[0]["a"].append(2)
    assert source[0] == {"a": [1]}
