"""Folders of MDS and JSON, CSV, TSV and XSV shards: compressed, merged, hashed,
damaged."""

from __future__ import annotations

import json
import pickle
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from energize import ShuffleDataset
from energize.core.trace import ReadContext
from energize.data.mds import MdsSource
from energize.errors import (
    ConfigError,
    DatasetError,
    DatasetNotFoundError,
    EmptyDatasetError,
    ShardError,
    UntrustedCodeError,
)
from energize.testing import check_exactly_once, check_laws
from tests.support.mds import (
    COMPRESS,
    merge_indices,
    numbered_mds,
    write_mds,
    write_rows,
)
from tests.support.mds_samples import COLUMNS, expected, sample, shown
from tests.support.refusals import check_refusals

ROW = {"caption": "str", "id": "int", "score": "float"}
NUMBERS = {"number": "int", "text": "str"}
KINDS = ["json", "csv", "tsv", "xsv"]


def rows(count):
    texts = ['a "quoted" cat', "Zürich 東京", "", " spaces "]
    return [
        {"caption": texts[i % 4], "id": i - 2, "score": i / 7} for i in range(count)
    ]


def numbers(source) -> list[int]:
    return [each["number"] for each in source]


def change(folder: Path, shard: int = 0, **changes) -> Path:
    index = json.loads((folder / "index.json").read_text())
    index["shards"][shard] |= changes
    (folder / "index.json").write_text(json.dumps(index))
    return folder


@pytest.mark.parametrize("compression", [None, *COMPRESS])
def test_columns_of_every_encoding_and_rows_of_every_kind(tmp_path, compression):
    samples = [sample(i) for i in range(23)]
    source = MdsSource(
        write_mds(tmp_path / "data", samples, COLUMNS, compression=compression)
    )
    assert (len(source), source.name) == (23, "data")
    assert [shown(found) for found in source] == [shown(expected(i)) for i in range(23)]
    order = np.random.default_rng(1).permutation(23)
    for found, number in zip(source.at(order), order.tolist(), strict=True):
        assert shown(found) == shown(expected(number))
    arrays = [value for value in source[0].values() if isinstance(value, np.ndarray)]
    assert len(arrays) == 3
    assert all(array.flags.writeable for array in arrays)
    for kind in KINDS:
        for newline in ("\n", "\r\n", "<end>"):
            options = {
                "separator": "<|>",
                "compression": compression,
                "newline": newline,
            }
            folder = write_rows(
                tmp_path / f"{kind} {len(newline)}", rows(23), ROW, kind, **options
            )
            source = MdsSource(folder)
            assert list(source) == rows(23)
            assert source.at([22, 3, 17]) == [rows(23)[i] for i in (22, 3, 17)]
            assert [type(value) for value in source[0].values()] == [str, int, float]
    comma = [{"caption": "one, two", "id": 1, "score": 2.0}]
    for kind in ("json", "tsv", "xsv"):
        folder = write_rows(tmp_path / f"comma {kind}", comma, ROW, kind, separator="|")
        assert list(MdsSource(folder)) == comma


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_laws(tmp_path, compression):
    source = MdsSource(
        numbered_mds(tmp_path / "a", 23, compression=compression, per_shard=4)
    )
    check_laws(ShuffleDataset(source))
    check_exactly_once(ShuffleDataset(source), lambda *_: (1, 1), epoch=3)
    again = pickle.loads(pickle.dumps(source))
    assert (again, again[7]) == (source, {"number": 7, "text": "sample 7"})


def test_unpacked_shards_are_kept_up_to_a_limit(tmp_path, monkeypatch):
    folder = numbered_mds(tmp_path / "data", 40, compression="zstd", per_shard=4)
    for limit, kept in ((1, 1), (2**29, 10)):
        monkeypatch.setattr("energize.data.mds._UNPACKED_BYTES", limit)
        source = MdsSource(folder)
        assert numbers(source) == list(range(40))
        assert len(source._unpacked._values) == kept


def test_a_merged_index_is_of_subfolders(tmp_path):
    root = tmp_path / "data"
    numbered_mds(root / "a", 12, per_shard=5)
    numbered_mds(root / "b", 7, start=12, compression="gz")
    samples = [{"number": 19 + i, "text": f"sample {19 + i}"} for i in range(4)]
    write_rows(root / "c" / "d", samples, NUMBERS, "csv", compression="br")
    source = MdsSource(merge_indices(root, ["a", "b", "c/d"]))
    assert numbers(source) == list(range(23))
    assert source.where(12) == f"{root}/b/shard.00000.mds, sample 0"
    assert source.where(22) == f"{root}/c/d/shard.00000.csv, sample 3"
    for index in range(23):
        place = source.place(index)
        assert source.find(place.shard, place.index) == index
    assert source.find("a/shard.00002.mds", 2) is None
    assert source.find("d/shard.00002.mds", 0) is None


def test_indices_that_cannot_be_read(tmp_path):
    made = {kind: write_rows(tmp_path / kind, rows(3), ROW, kind) for kind in KINDS}
    made["mds"] = numbered_mds(tmp_path / "mds", 3)

    def read(kind, text=None, **changes):
        folder = shutil.copytree(made[kind], tmp_path / "changed")
        try:
            if text is not None:
                (folder / "index.json").write_text(text)
            return MdsSource(change(folder, **changes) if changes else folder)
        finally:
            shutil.rmtree(folder)

    def named(name, size=3):
        return {"basename": name, "bytes": size}

    no_name = "must be the name of a file"
    bad = [
        ("mds", {"column_encodings": ["int", "strr"]}, "did you mean 'str'"),
        ("mds", {"column_encodings": ["int", "ndarray:float33"]}, "ndarray:float33"),
        ("mds", {"format": "parquet"}, "(shards[0].format): ", "got 'parquet'"),
        ("mds", {"version": 1}, "expected 2, got 1"),
        (
            "mds",
            {"samples": 10**15},
            "no room for the offsets of 1000000000000000 samples",
        ),
        ("mds", {"raw_data": named("0.mds", 2**40)}, "got 1099511627776"),
        ("mds", {"zip_data": named("..")}, no_name),
        (
            "json",
            {"columns": {"caption": "pkl"}},
            "the encoding 'pkl', which is not one of str",
        ),
        ("csv", {"newline": ""}, "newline"),
        ("xsv", {"separator": None}, "(shards[0].separator): expected text"),
        ("tsv", {"raw_meta": None}, "raw_meta must be present"),
        (
            "tsv",
            {"samples": 1000},
            "tsv.meta of",
            "no room for the offsets of 1000 samples",
        ),
    ]
    check_refusals(None, {
        f"{kind} {changes}": (partial(read, kind, **changes), DatasetError, *told)
        for kind, changes, *told in bad
    } | {
        "pickles": (partial(read, "mds", column_encodings=["int", "pkl"]), UntrustedCodeError,
                    "column 'text' contains an unsafe type: pickles"),
        "no sample": (partial(read, "mds", samples=0), EmptyDatasetError, "have no samples"),
        "half": (partial(read, "mds", "{"), DatasetError, "index.json is not valid JSON"),
        "deep": (partial(read, "mds", "[" * 100_000), DatasetError, "index.json is not valid"),
        "none": (lambda: MdsSource(tmp_path), DatasetNotFoundError, "it has no index.json", "split",
                 "merge_index"),
        "hash": (lambda: MdsSource(made["mds"], validate_hash="md5").at([0]), DatasetError,
                 "no hashes of"),
        "no hash": (lambda: MdsSource(made["mds"], validate_hash="shake_128"), ConfigError,
                    "validate_hash='shake_128' must be an algorithm"),
    })  # fmt: skip
    root = tmp_path / "data"
    for name in "ab":
        numbered_mds(root / name, 12)
    merge_indices(root, ["a", "b", "a"])
    with pytest.raises(DatasetError, match=r"a/shard.00000.mds is listed twice"):
        MdsSource(root)


def test_damaged_shards(tmp_path):
    whole = {
        kind: write_rows(tmp_path / kind, rows(23), ROW, kind)
        for kind in ("csv", "json")
    }
    whole["mds"] = numbered_mds(tmp_path / "mds", 23)
    for kind in COMPRESS:
        whole[kind] = numbered_mds(tmp_path / kind, 23, compression=kind)

    def read(kind, name, change):
        folder = shutil.copytree(whole[kind], tmp_path / "changed")
        try:
            if change is None:
                (folder / name).unlink()
            else:
                (folder / name).write_bytes(change((folder / name).read_bytes()))
            assert MdsSource(folder)[0] == MdsSource(whole[kind])[0]
            return MdsSource(folder).at([10])
        finally:
            shutil.rmtree(folder)

    first, second, meta = "shard.00000.mds", "shard.00001.mds", "shard.00001.csv.meta"
    assert read("mds", first, lambda d: d)[0]["number"] == 10
    packed = [(kind, f"{second}.{kind}", *row) for kind in COMPRESS for row in (
        (lambda d: d[:-3], "bytes, but the index lists"),
        (lambda d: bytes(len(d)), "cannot be unpacked into the"),
        (None, "No such file"),
    )]  # fmt: skip
    bad = [
        *packed,
        (
            "mds",
            second,
            lambda d: b"\x05" + d[1:],
            "has 5 samples, but the index lists 10",
        ),
        (
            "mds",
            second,
            lambda d: d[:8] + b"\xff" * 4 + d[12:],
            "sample 0 has the offsets",
        ),
        (
            "mds",
            second,
            lambda d: d.replace(b'"column_names"', b'"column_nam~s"'),
            "its header is damaged",
        ),
        (
            "mds",
            second,
            lambda d: d.replace(b'"number"', b'"numbes"'),
            "belongs to other files (it has",
        ),
        ("mds", second, None, "No such file"),
        ("csv", meta, lambda d: d[:-1], "bytes, but the index lists"),
        (
            "csv",
            meta,
            lambda d: b"\x07" + d[1:],
            "has 7 samples, but the index lists 10",
        ),
        (
            "csv",
            meta,
            lambda d: d.replace(b'"score"', b'"scorn"'),
            "belongs to other files (it has",
        ),
        ("csv", "shard.00001.csv", None, "No such file"),
        (
            "json",
            "shard.00001.json.meta",
            lambda d: d.replace(b'"id"', b'"ie"'),
            "belongs to other files (it has",
        ),
    ]
    check_refusals(None, {
        f"{number} {name}": (partial(read, kind, name, change), ShardError, name[:11], *told)
        for number, (kind, name, change, *told) in enumerate(bad)
    })  # fmt: skip
    strange = change(
        numbered_mds(tmp_path / "lz4", 3, compression="gz"), compression="lz4:2"
    )
    with pytest.raises(
        ShardError, match="compressed with 'lz4', which is not one of br, bz2, gz"
    ):
        MdsSource(strange).at([0])
    index = whole["mds"] / "index.json"
    text = index.read_text()
    index.write_text(text.replace('"samples": 10', '"samples": 0', 1))
    with pytest.raises(
        ShardError, match=r"shard\.00000\.mds has 10 samples, but the index lists 0"
    ):
        MdsSource(whole["mds"]).at([0])
    index.write_text(text)
    source = MdsSource(whole["mds"])
    source.at([10])
    (whole["mds"] / second).write_bytes(b"another file")
    with pytest.raises(ShardError, match="has changed since it was first read"):
        source.at([10])


def test_a_damaged_sample_is_substituted_and_named(tmp_path):
    good = {"caption": "fine", "id": 7, "score": 1.5}
    lines = [{"caption": "zero", "id": 1, "score": 0.5}, good, good]
    damage = [
        (
            "csv",
            b"zero,1,0.5\n",
            b"zero,x,0.5\n",
            "column 'id' of 1 bytes cannot be decoded",
        ),
        (
            "csv",
            b"zero,1,0.5\n",
            b"zero,1.0.5\n",
            "a line must have 3 columns separated by ','",
        ),
        (
            "tsv",
            b"zero\t1\t0.5\n",
            b"zero\t1\t0.5 ",
            "a line must have 3 columns separated by '\\t'",
        ),
        ("json", b'{"caption": "zero"', b'{"caption": "zero"}', "JSONDecodeError"),
        ("json", b'"caption"', b'"Caption"', "an object with 'caption', 'id', 'score'"),
        (
            "mds",
            b'{"n": 0}',
            b'{"n": 0)',
            "column 'x' of 8 bytes cannot be decoded: JSONDecode",
        ),
    ]
    for number, (kind, old, new, told) in enumerate(damage):
        if kind == "mds":
            objects = [{"x": {"n": i}} for i in range(3)]
            folder = write_mds(tmp_path / f"{number}", objects, {"x": "json"})
        else:
            folder = write_rows(tmp_path / f"{number}", lines, ROW, kind)
        shard = folder / f"shard.00000.{kind}"
        data = shard.read_bytes()
        at = data.index(old)
        shard.write_bytes(data[:at] + new + data[at + len(new) :])
        failed = []
        (found,) = MdsSource(folder).at([0], ReadContext.reporting(failed.append))
        assert found == good or found["x"]["n"] > 0
        assert f"{shard}, sample 0" in str(failed[0])
        assert told in str(failed[0])


def test_a_raw_image_says_how_large_it_is_before_there_is_memory_for_it(tmp_path):
    image = np.array([2**20, 2**20, 3], "<u4").tobytes() + b"RGB" + bytes(300)
    folder = write_mds(tmp_path / "data", [{"a": image}], {"a": "bytes"})
    for file in (folder / "index.json", folder / "shard.00000.mds"):
        file.write_bytes(file.read_bytes().replace(b'"bytes"]', b'"pil"]  '))
    (failed,) = MdsSource(folder).read(np.array([0]))
    assert f"too large when it is decoded, in bytes, {4 * 2**40}," in str(failed.reason)


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_hashes_are_compared_where_asked(tmp_path, compression):
    names = ["blake2s", "md5", "xxh64"]
    folder = numbered_mds(tmp_path / "data", 30, compression=compression, hashes=names)
    for algorithm in names:
        assert numbers(MdsSource(folder, validate_hash=algorithm)) == list(range(30))
    with pytest.raises(
        DatasetError, match=r"the index has blake2s, md5, xxh64 of shard\.00000"
    ):
        MdsSource(folder, validate_hash="sha1").at([0])
    changed = next(folder.glob("shard.00001.*"))
    data = bytearray(changed.read_bytes())
    data[-1] ^= 1
    changed.write_bytes(data)
    for algorithm in names:
        fresh = MdsSource(folder, validate_hash=algorithm)
        with pytest.raises(
            ShardError, match=f"has the {algorithm} .*, but the index lists"
        ):
            fresh.at([10])
        assert fresh.at([0])[0]["number"] == 0


def test_there_are_no_columns_of_fields(tmp_path):
    with pytest.raises(ConfigError, match="MDS shards would be read"):
        MdsSource(numbered_mds(tmp_path / "mds", 4)).column("n")
