"""JSON, CSV, TSV and XSV shards."""

from __future__ import annotations

import json

import pytest

from energize import ShuffleDataset
from energize.core.reading import Reading
from energize.data.mds import MdsSource
from energize.errors import DatasetError, ShardError
from energize.testing import check_exactly_once, check_laws
from tests.support.mds import COMPRESS, write_rows

COLUMNS = {"caption": "str", "id": "int", "score": "float"}
KINDS = ["json", "csv", "tsv", "xsv"]


def rows(count):
    texts = ['a "quoted" cat', "Zürich 東京", "", " spaces "]
    return [{"caption": texts[i % 4], "id": i - 2, "score": i / 7} for i in range(count)]


@pytest.mark.parametrize("compression", [None, *COMPRESS])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_every_kind(tmp_path, kind, compression):
    folder = write_rows(
        tmp_path / "data", rows(23), COLUMNS, kind, separator="<|>", compression=compression
    )
    source = MdsSource(folder)
    assert list(source) == rows(23)
    assert source.at([22, 3, 17]) == [rows(23)[i] for i in (22, 3, 17)]
    assert [type(value) for value in source[0].values()] == [str, int, float]


@pytest.mark.parametrize("newline", ["\n", "\r\n", "<end>"])
@pytest.mark.parametrize("kind", KINDS)
def test_any_newline(tmp_path, kind, newline):
    folder = write_rows(tmp_path / "data", rows(5), COLUMNS, kind, newline=newline)
    assert list(MdsSource(folder)) == rows(5)


def test_a_comma_is_no_separator_elsewhere(tmp_path):
    samples = [{"caption": "one, two", "id": 1, "score": 2.0}]
    for kind in ("json", "tsv", "xsv"):
        folder = write_rows(tmp_path / kind, samples, COLUMNS, kind, separator="|")
        assert list(MdsSource(folder)) == samples


def test_laws(tmp_path):
    source = MdsSource(write_rows(tmp_path / "data", rows(23), COLUMNS, "tsv", per_shard=4))
    check_laws(ShuffleDataset(source))
    check_exactly_once(ShuffleDataset(source), lambda *_: (1, 1), epoch=2)


DAMAGE = {
    "no number": (
        "csv",
        b"zero,1,0.5\n",
        "column 'id' cannot be decoded as int: 'x'",
        b"zero,x,0.5\n",
    ),
    "a column less": ("csv", b"zero,1,0.5\n", "a line of 3 columns with ','", b"zero,1.0.5\n"),
    "a column more": ("csv", b"zero,1,0.5\n", "it has 4 and begins with", b"ze,o,1,0.5\n"),
    "no end": ("tsv", b"zero\t1\t0.5\n", "a line of 3 columns with '\\\\t'", b"zero\t1\t0.5 "),
    "no UTF-8": ("xsv", b"zero,1,0.5\n", "is no UTF-8", b"\xffero,1,0.5\n"),
    "no JSON": ("json", b'{"caption": "zero"', "is not JSON", b'{"caption": "zero"}'),
    "another field": (
        "json",
        b'"caption"',
        "an object with 'caption', 'id', 'score'",
        b'"Caption"',
    ),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_row_is_substituted_and_named(tmp_path, case):
    kind, whole, message, damaged = DAMAGE[case]
    good = {"caption": "fine", "id": 7, "score": 1.5}
    samples = [{"caption": "zero", "id": 1, "score": 0.5}, good, good]
    folder = write_rows(tmp_path / "data", samples, COLUMNS, kind)
    shard = folder / f"shard.00000.{kind}"
    data = shard.read_bytes()
    at = data.index(whole)
    assert whole in data
    replaced = data[:at] + damaged + data[at + len(damaged) :]
    shard.write_bytes(replaced)
    failed = []
    assert MdsSource(folder).at([0], Reading(report=failed.append)) == [good]
    assert f"{shard}, sample 0" in str(failed[0])
    assert message.replace("\\\\", "\\") in str(failed[0])


def test_damaged_files(tmp_path):
    folder = write_rows(tmp_path / "data", rows(23), COLUMNS, "csv")
    meta, data = folder / "shard.00001.csv.meta", folder / "shard.00000.csv"
    whole = meta.read_bytes()
    meta.write_bytes(whole[:-1])
    with pytest.raises(ShardError, match=r"shard\.00001\.csv\.meta holds \d+ bytes, but the index"):
        MdsSource(folder).at([10])
    meta.write_bytes(whole[:8] + b"\xff\xff\xff\xff" + whole[12:])
    with pytest.raises(ShardError, match="sample 0 would lie at bytes"):
        MdsSource(folder).at([10])
    meta.write_bytes(b"\x07" + whole[1:])
    with pytest.raises(ShardError, match=r"csv\.meta has 7 samples, but the index says 10"):
        MdsSource(folder).at([10])
    meta.unlink()
    with pytest.raises(ShardError, match=r"shard\.00001\.csv\.meta is missing"):
        MdsSource(folder).at([10])
    data.unlink()
    with pytest.raises(ShardError, match=r"shard\.00000\.csv is missing"):
        MdsSource(folder).at([0])


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("csv", {"column_encodings": ["str", "int", "floot"]}, "did you mean 'float'"),
        (
            "json",
            {"columns": {"caption": "pkl"}},
            "has the encoding 'pkl', which is not one of str",
        ),
        ("json", {"columns": ["caption"]}, "expected a list; got 'caption'"),
        ("csv", {"column_names": ["caption"]}, "differ in number"),
        ("csv", {"newline": ""}, "at least 1 character"),
        ("xsv", {"separator": None}, "expected text; got nothing"),
        ("tsv", {"raw_meta": None}, "has its offsets in raw_meta"),
        ("tsv", {"raw_meta": {"basename": "../m", "bytes": 9}}, "is not the name of a file"),
        (
            "tsv",
            {"samples": 1000},
            r"csv|tsv\.meta of \d+ bytes has no room for the offsets of 1000",
        ),
    ],
)
def test_damaged_indexes(tmp_path, kind, changes, message):
    folder = write_rows(tmp_path / "data", rows(3), COLUMNS, kind)
    index = json.loads((folder / "index.json").read_text())
    index["shards"][0] |= changes
    (folder / "index.json").write_text(json.dumps(index))
    with pytest.raises(DatasetError, match=message):
        MdsSource(folder)
