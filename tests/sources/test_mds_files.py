"""The files of MDS folders: compressed, merged from several folders, hashed, damaged."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from energize.data.mds import MdsSource, unpacked
from energize.errors import (
    ConfigError,
    DatasetError,
    DatasetNotFoundError,
    ShardError,
)
from tests.support.mds import COMPRESS, merge_indices, numbered_mds, write_rows

NUMBERS = {"number": "int", "text": "str"}


def change(folder: Path, shard: int = 0, **changes) -> None:
    index = json.loads((folder / "index.json").read_text())
    index["shards"][shard] |= changes
    (folder / "index.json").write_text(json.dumps(index))


def numbers(source) -> list[int]:
    return [each["number"] for each in source]


@pytest.mark.parametrize("kind", ["mds", "json", "csv"])
def test_columns_are_compared_with_those_that_each_shard_lists(tmp_path, kind):
    """What an index calls a column, its shard calls it too: a flipped bit is no other column."""
    if kind == "mds":
        folder = numbered_mds(tmp_path / "data", 20)
    else:
        rows = [{"number": n, "text": "x"} for n in range(20)]
        folder = write_rows(tmp_path / "data", rows, NUMBERS, kind)
    index = json.loads((folder / "index.json").read_text())
    entry = index["shards"][1]
    if kind == "json":
        change(folder, 1, columns={"numbes": entry["columns"]["number"], "text": "str"})
    else:
        change(folder, 1, column_names=["numbes", "text"])
    source = MdsSource(folder)
    assert source[9]["number"] == 9
    with pytest.raises(ShardError, match=r"shard\.00001\..*numbes.*number|number.*numbes"):
        source.at([10])


def test_a_shard_whose_own_header_is_damaged(tmp_path):
    folder = numbered_mds(tmp_path / "data", 20)
    shard = folder / "shard.00001.mds"
    shard.write_bytes(shard.read_bytes().replace(b'"column_names"', b'"column_nam~s"'))
    with pytest.raises(ShardError, match=r"shard\.00001\.mds: its header is damaged"):
        MdsSource(folder).at([10])


@pytest.mark.parametrize("compression", COMPRESS)
def test_compressed_files_that_are_damaged(tmp_path, compression):
    folder = numbered_mds(tmp_path / "data", 30, compression=compression)
    packed = folder / f"shard.00001.mds.{compression}"
    whole = packed.read_bytes()
    packed.write_bytes(whole[:-3])
    with pytest.raises(ShardError, match=r"shard\.00001\.mds\..* bytes, but the index says"):
        MdsSource(folder).at([10])
    packed.write_bytes(bytes(len(whole)))
    with pytest.raises(ShardError, match=r"cannot be unpacked into the \d+ bytes|holds 0 bytes"):
        MdsSource(folder).at([10])
    packed.unlink()
    with pytest.raises(ShardError, match=r"neither shard\.00001\.mds nor .*, the compressed one"):
        MdsSource(folder).at([10])
    assert MdsSource(folder)[0]["number"] == 0


def test_a_compression_that_is_not_known(tmp_path):
    folder = numbered_mds(tmp_path / "data", 3, compression="gz")
    change(folder, compression="lz4:2")
    with pytest.raises(ShardError, match="compressed with 'lz4', which is not one of br, bz2, gz"):
        MdsSource(folder).at([0])


UNPACK = """
import resource, sys
from pathlib import Path
from energize.errors import ShardError
from energize.data.mds import unpacked
for compression in sys.argv[2:]:
    bomb = Path(sys.argv[1], compression).read_bytes()
    unpacked(b"\\0", "snappy", 0, "")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        unpacked(bomb, compression, 1000, "bomb")
    except ShardError as error:
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, error)
"""


def test_a_file_that_would_unpack_to_more_is_refused_before_it_does(tmp_path):
    for compression, compress in COMPRESS.items():
        (tmp_path / compression).write_bytes(compress(bytes(2**27)))
    done = subprocess.run(
        [sys.executable, "-c", UNPACK, tmp_path, *COMPRESS],
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == len(COMPRESS), done.stderr
    for line in lines:
        kibibytes, _, error = line.partition(" ")
        assert int(kibibytes) < 2**15, line  # of 2**17 that the file would take
        assert "cannot be unpacked into the 1000 bytes that the index says" in error


@pytest.mark.parametrize("compression", COMPRESS)
def test_a_file_that_unpacks_to_less_is_another_one(compression):
    packed = COMPRESS[compression](bytes(1000))
    with pytest.raises(ShardError, match="holds 1000 bytes, but the index says 1001"):
        unpacked(packed, compression, 1001, "file")
    assert unpacked(packed, compression, 1000, "file") == bytes(1000)


@given(st.sampled_from(sorted(COMPRESS)), st.binary(max_size=200), st.integers(0, 300))
def test_any_bytes_are_unpacked_or_an_error(compression, packed, size):
    found = bytes(size)
    with contextlib.suppress(ShardError):
        found = unpacked(packed, compression, size, "noise")
    assert len(found) == size


def test_without_cramjam_the_remedy_is_named(tmp_path):
    folder = numbered_mds(tmp_path / "data", 3, compression="zstd")
    program = (
        "import sys; sys.modules['cramjam'] = None\n"
        "from energize.data.mds import MdsSource\n"
        f"MdsSource({str(folder)!r})[0]"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert "pip install 'energize[mds]'" in done.stderr


def test_what_is_there_uncompressed_is_read_so(tmp_path):
    folder = numbered_mds(tmp_path / "data", 30, compression="zstd")
    plain = numbered_mds(tmp_path / "plain", 30)
    shutil.copy(plain / "shard.00001.mds", folder)
    (folder / "shard.00001.mds.zstd").write_bytes(b"not looked at")
    source = MdsSource(folder)
    expected = (plain / "shard.00001.mds").stat().st_size
    # The copy of the index that begins a shard names its compression, so sizes differ.
    change(folder, 1, raw_data={"basename": "shard.00001.mds", "bytes": expected, "hashes": {}})
    assert numbers(MdsSource(folder)) == list(range(30))
    with pytest.raises(ShardError, match=rf"shard\.00001\.mds holds {expected} bytes"):
        source.at([10])


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


def test_subfolders_without_a_merged_index_are_named(tmp_path):
    for name in ("a", "b", "c", "d"):
        numbered_mds(tmp_path / name, 3)
    with pytest.raises(
        DatasetNotFoundError, match=r"but 4 of its subfolders do \(a, b, c, \.\.\.\): .*merge_index"
    ):
        MdsSource(tmp_path)


def test_a_shard_that_is_listed_twice(tmp_path):
    root = tmp_path / "data"
    numbered_mds(root / "a", 12)
    numbered_mds(root / "b", 12)
    merge_indices(root, ["a", "b", "a"])
    with pytest.raises(DatasetError, match=r"a/shard.00000.mds is listed twice, as shards 0 and 4"):
        MdsSource(root)


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("algorithm", ["md5", "sha256", "blake2s"])
def test_hashes_are_compared_where_asked(tmp_path, compression, algorithm):
    folder = numbered_mds(
        tmp_path / "data", 30, compression=compression, hashes=["blake2s", "md5", "sha256"]
    )
    source = MdsSource(folder, validate_hash=algorithm)
    assert numbers(source) == list(range(30))
    changed = next(folder.glob("shard.00001.*"))
    data = bytearray(changed.read_bytes())
    data[-1] ^= 1
    changed.write_bytes(data)
    fresh = MdsSource(folder, validate_hash=algorithm)
    expected = hashlib.new(algorithm, data).hexdigest()
    with pytest.raises(ShardError, match=f"has the {algorithm} {expected}, but the index says"):
        fresh.at([10])
    assert fresh.at([0])[0]["number"] == 0


def test_hashes_of_xxhash(tmp_path):
    folder = numbered_mds(tmp_path / "data", 3)
    shard = folder / "shard.00000.mds"
    for digest in (xxhash.xxh64(shard.read_bytes()).hexdigest(), "0" * 16):
        size = shard.stat().st_size
        hashes = {"xxh64": digest}
        change(folder, raw_data={"basename": shard.name, "bytes": size, "hashes": hashes})
        source = MdsSource(folder, validate_hash="xxh64")
        if digest == "0" * 16:
            with pytest.raises(ShardError, match="has the xxh64"):
                source.at([0])
        else:
            assert numbers(source) == [0, 1, 2]


def test_hashes_that_cannot_be_compared(tmp_path):
    folder = numbered_mds(tmp_path / "data", 3, hashes=["md5", "sha1"])
    with pytest.raises(DatasetError, match=r"the index has md5, sha1 of shard\.00000\.mds"):
        MdsSource(folder, validate_hash="sha256")
    with pytest.raises(DatasetError, match="the index has no hashes of"):
        MdsSource(numbered_mds(tmp_path / "none", 3), validate_hash="md5")
    for name in ("sha", "xxh3", "shake_128"):
        with pytest.raises(ConfigError, match=f"validate_hash='{name}' is not one of"):
            MdsSource(folder, validate_hash=name)


def test_a_folder_that_cannot_be_read(tmp_path):
    folder = numbered_mds(tmp_path / "data", 3)
    (folder / "index.json").write_text("[" * 100_000)
    with pytest.raises(DatasetError, match="is not valid JSON"):
        MdsSource(folder)
    os.remove(folder / "index.json")
    (folder / "index.json").mkdir()
    with pytest.raises(DatasetError, match="it is a directory, not a regular file"):
        MdsSource(folder)
