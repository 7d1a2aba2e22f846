"""Folders of MDS shards as a source."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from energize import ShuffleDataset
from energize.core.reading import Reading
from energize.data.mds import MdsSource
from energize.errors import (
    ConfigError,
    DatasetError,
    DatasetNotFoundError,
    DecodeError,
    EmptyDatasetError,
    ShardError,
)
from energize.testing import check_exactly_once, check_laws
from tests.support.mds import COMPRESS, numbered_mds, write_mds
from tests.support.mds_samples import COLUMNS, expected, sample, shown


@pytest.mark.parametrize("compression", [None, *COMPRESS])
def test_columns_of_every_encoding(tmp_path, compression):
    samples = [sample(i) for i in range(23)]
    folder = write_mds(tmp_path / "data", samples, COLUMNS, compression=compression)
    source = MdsSource(folder)
    assert len(source) == 23
    assert source.name == "data"
    assert [shown(found) for found in source] == [shown(expected(i)) for i in range(23)]
    order = np.random.default_rng(1).permutation(23)
    for found, number in zip(source.at(order), order.tolist(), strict=True):
        assert shown(found) == shown(expected(number))
    arrays = [value for value in source[0].values() if isinstance(value, np.ndarray)]
    assert len(arrays) == 3
    assert all(array.flags.writeable for array in arrays)


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_laws(tmp_path, compression):
    folder = numbered_mds(tmp_path / "data", 23, compression=compression, per_shard=4)
    source = MdsSource(folder)
    check_laws(ShuffleDataset(source))
    check_exactly_once(ShuffleDataset(source), lambda *_: (1, 1), epoch=3)
    assert [each["number"] for each in source] == list(range(23))
    again = pickle.loads(pickle.dumps(source))
    assert again == source
    assert again[7] == {"number": 7, "text": "sample 7"}


def test_unpacked_shards_are_kept_up_to_a_limit(tmp_path):
    folder = numbered_mds(tmp_path / "data", 40, compression="zstd", per_shard=4)
    source = MdsSource(folder, unpacked_bytes=1)
    assert [each["number"] for each in source] == list(range(40))
    assert len(source._unpacked._kept) == 1
    roomy = MdsSource(folder)
    assert len(roomy.at(range(40))) == len(roomy) == 40
    assert len(roomy._unpacked._kept) == 10


def test_images_as_bytes(tmp_path):
    folder = write_mds(tmp_path / "data", [sample(1)], COLUMNS)
    found = MdsSource(folder, decode_images=False)[0]
    starts = {encoding: found[name] for name, encoding in COLUMNS.items()}
    assert starts["jpeg"][:3] == b"\xff\xd8\xff"
    assert starts["png"][:4] == b"\x89PNG"
    assert isinstance(starts["pil"], Image.Image)
    for name in ("jpeg_array", "list[jpeg]", "list[png]"):
        begin = b"\x89PNG" if name == "list[png]" else b"\xff\xd8\xff"
        assert starts[name]
        assert all(each.startswith(begin) for each in starts[name])
    assert isinstance(starts["list[pil]"][0], Image.Image)


def test_splits_are_subfolders(tmp_path):
    numbered_mds(tmp_path / "data" / "val", 3)
    source = MdsSource(tmp_path / "data", split="val")
    assert source.name == "data/val"
    assert source.where(2) == f"{tmp_path}/data/val/shard.00000.mds, sample 2"
    with pytest.raises(DatasetNotFoundError, match=r"no index\.json"):
        MdsSource(tmp_path / "data")


def test_orders_do_not_depend_on_the_place(tmp_path):
    one = MdsSource(numbered_mds(tmp_path / "here" / "data", 20))
    other = MdsSource(numbered_mds(tmp_path / "there" / "data", 20))
    assert list(ShuffleDataset(one)) == list(ShuffleDataset(other))


def test_pickles_are_refused(tmp_path):
    folder = write_mds(tmp_path / "data", [{"x": b"cos\nsystem\n."}], {"x": "pkl"})
    with pytest.raises(DatasetError, match="column 'x' holds pickles"):
        MdsSource(folder)


def change(folder: Path, **changes) -> None:
    index = json.loads((folder / "index.json").read_text())
    index["shards"][0] |= changes
    (folder / "index.json").write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"column_encodings": ["int", "strr"]}, "did you mean 'str'"),
        ({"column_encodings": ["int", "ndarray:float33"]}, "ndarray:float33"),
        ({"format": "parquet"}, "found using 'format'"),
        ({"format": "json"}, "the key 'columns' is missing"),
        ({"version": 1}, "expected 2; got 1"),
        ({"samples": None}, "expected an integer; got nothing"),
        ({"column_sizes": [8]}, "differ in number"),
        ({"column_sizes": [-8, None]}, "greater than or equal to 0; got -8"),
        ({"samples": -1}, "greater than or equal to 0; got -1"),
        ({"samples": 10**15}, r"shard.00000.mds of \d+ bytes has no room for the offsets of 10+ "),
        (
            {"raw_data": {"basename": "0.mds", "bytes": 2**40}},
            "less than or equal to 4294967296; got 1099511627776",
        ),
        ({"raw_data": {"basename": "../0.mds", "bytes": 3}}, "is not the name of a file"),
        ({"raw_data": {"basename": "a/../../0.mds", "bytes": 3}}, "is not the name of a file"),
        ({"raw_data": {"basename": "/etc/passwd", "bytes": 3}}, "is not the name of a file"),
        ({"zip_data": {"basename": "..", "bytes": 3}}, "is not the name of a file"),
    ],
)
def test_damaged_indexes(tmp_path, changes, message):
    folder = numbered_mds(tmp_path / "data", 3)
    change(folder, **changes)
    with pytest.raises(DatasetError, match=message):
        MdsSource(folder)


def test_indexes_that_are_none(tmp_path):
    folder = numbered_mds(tmp_path / "data", 3)
    change(folder, samples=0)
    with pytest.raises(EmptyDatasetError, match="hold no sample"):
        MdsSource(folder)
    (folder / "index.json").write_text("{")
    with pytest.raises(DatasetError, match="is not valid JSON"):
        MdsSource(folder)
    (folder / "index.json").write_text("[]")
    with pytest.raises(DatasetError, match="expected a mapping"):
        MdsSource(folder)


def test_damaged_shards(tmp_path):
    folder = numbered_mds(tmp_path / "data", 12, per_shard=4)
    source = MdsSource(folder)
    shards = sorted(folder.glob("*.mds"))
    shards[0].write_bytes(shards[0].read_bytes()[:-1])
    with pytest.raises(ShardError, match=r"shard\.00000\.mds holds \d+ bytes, but the index says"):
        source.at([0])
    data = bytearray(shards[1].read_bytes())
    shards[1].write_bytes(b"\x05" + data[1:])
    with pytest.raises(ShardError, match="has 5 samples, but the index says 4"):
        source.at([5])
    data[8:12] = b"\xff\xff\xff\xff"
    shards[1].write_bytes(data)
    with pytest.raises(ShardError, match="has changed since it was first read"):
        source.at([5])
    with pytest.raises(ShardError, match="sample 1 would lie at bytes"):
        MdsSource(folder).at([5])
    shards[2].unlink()
    with pytest.raises(ShardError, match="is missing"):
        source.at([8])


def test_a_damaged_sample_is_substituted(tmp_path):
    folder = write_mds(tmp_path / "data", [{"x": {"n": i}} for i in range(5)], {"x": "json"})
    shard = folder / "shard.00000.mds"
    shard.write_bytes(shard.read_bytes().replace(b'{"n": 3}', b'{"n": 3)'))
    failed = []
    found = MdsSource(folder).at([3], Reading(report=failed.append))
    assert found[0]["x"]["n"] != 3
    assert "sample 3" in str(failed[0])
    assert "column 'x' of 8 bytes cannot be decoded: JSONDecodeError" in str(failed[0])


def test_a_raw_image_says_how_large_it_is_before_there_is_memory_for_it(tmp_path):
    image = np.array([2**20, 2**20, 3], "<u4").tobytes() + b"RGB" + bytes(300)
    folder = write_mds(tmp_path / "data", [{"a": image}], {"a": "bytes"})
    shard = folder / "shard.00000.mds"
    for file in (folder / "index.json", shard):
        file.write_bytes(file.read_bytes().replace(b'"bytes"]', b'"pil"]  '))
    with pytest.raises(DecodeError, match="too few for 1048576 x 1048576 pixels"):
        raise MdsSource(folder).fetch(np.array([0]), Reading())[0].reason


def test_limits(tmp_path):
    with pytest.raises(ConfigError, match="unpacked_bytes is a whole number, 0 or more"):
        MdsSource(numbered_mds(tmp_path / "data", 3), unpacked_bytes=-1)
