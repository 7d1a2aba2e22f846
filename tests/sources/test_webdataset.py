"""Raw samples of prepared folders, read at random."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import shutil
import struct
import tarfile
import threading
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from energize.core.reading import Failed, Reading
from energize.data.tar import index_path
from energize.data.webdataset import WebdatasetSource
from energize.errors import (
    DataError,
    DatasetNotFoundError,
    EmptyDatasetError,
    NotPreparedError,
    ShardError,
    SplitError,
)
from tests.support.shards import offsets, packed, payload, prepared, write_meta, write_shard


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return prepared(tmp_path_factory.mktemp("sets") / "cats", counts=(3, 5, 0, 2, 40))


def numbers(samples) -> list[int]:
    return [int(sample["__key__"]) for sample in samples]


def all_of(source: WebdatasetSource) -> list[int]:
    return numbers(source.read(np.arange(source.count)))


def test_a_sample_is_its_parts_and_where_it_is_from(folder):
    source = WebdatasetSource(folder)
    assert len(source) == source.count == 50
    assert list(source[9].items()) == [
        ("__key__", "000009"),
        ("__dataset__", str(folder)),
        ("__shard__", "parts/d3.tar"),
        ("__index__", 1),
        ("jpg", payload(9, "jpg")),
        ("txt", payload(9, "txt")),
    ]


@given(st.lists(st.integers(0, 49), max_size=80))
def test_samples_come_in_the_asked_order(folder, wanted):
    samples = WebdatasetSource(folder).read(np.array(wanted, dtype=np.int64))
    assert numbers(samples) == wanted
    for number, sample in zip(wanted, samples, strict=True):
        assert (sample["jpg"], sample["txt"]) == (payload(number, "jpg"), payload(number, "txt"))
    assert len({id(sample) for sample in samples}) == len(samples)


@pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_folders_and_many_parts(tmp_path, format):  # noqa: A002
    keys = [f"{'深い' * 40}/{'k' * 90}/{i:04d}" for i in range(6)]
    files = [("readme", b"no sample"), ("__meta__/x.json", b"neither")]
    files += [(f"{key}.{part}", f"{key}{part}".encode()) for key in keys for part in ("b.npy", "c")]
    count = write_shard(tmp_path / "a.tar", packed(files, format))
    write_meta(tmp_path, {"a.tar": count}, {"train": ["a.tar"]})
    source = WebdatasetSource(tmp_path)
    samples = source.read(np.arange(6)[::-1])
    assert [sample["__key__"] for sample in samples] == keys[::-1]
    assert [sample["b.npy"] for sample in samples] == [f"{key}b.npy".encode() for key in keys[::-1]]
    assert source.where(0) == f"{tmp_path}/a.tar, sample {keys[0]!r} (index 0)"


def test_split_parts_and_files(folder, tmp_path):
    val = WebdatasetSource(folder, split_part="val")
    assert all_of(val) == list(range(10, 50))
    copy = shutil.copytree(folder, tmp_path / "cats")
    content = {"split_parts": {"tiny": ["parts/d{0,3}.tar"]}}
    (copy / ".nv-meta/mine.json").write_text(json.dumps(content))
    tiny = WebdatasetSource(copy, split_part="tiny", split_config="mine.json")
    assert all_of(tiny) == [0, 1, 2, 8, 9]


def test_excluded_shards_and_samples_do_not_exist(tmp_path):
    exclude = ["parts/d1.tar", "parts/d0.tar/000001", "parts/d2.tar/00000{8,9}", "parts/d3.tar"]
    source = WebdatasetSource(prepared(tmp_path / "x", (3, 5, 4, 1), exclude=exclude))
    assert all_of(source) == [0, 2, 10, 11]
    assert [sample["__index__"] for sample in source.read(np.arange(4))] == [0, 2, 2, 3]
    assert "sample '000010' (index 2)" in source.where(2)


@given(left_out=st.sets(st.integers(0, 9), max_size=9))
def test_any_samples_can_be_excluded(tmp_path_factory, left_out):
    shards = [0, 0, 0, 1, 1, 1, 1, 1, 2, 2]
    exclude = [f"parts/d{shards[number]}.tar/{number:06d}" for number in left_out]
    folder = prepared(tmp_path_factory.mktemp("sets"), (3, 5, 2), exclude=exclude)
    assert all_of(WebdatasetSource(folder)) == sorted(set(range(10)) - left_out)


@pytest.mark.parametrize(
    ("exclude", "splits", "error", "what"),
    [
        ([], {"train": ["a.tar"], "val": []}, EmptyDatasetError, "split part 'val' has no samples"),
        (["a.tar"], {"val": ["a.tar"]}, EmptyDatasetError, "1 shards are listed .* 1 of them"),
        (["a.tar/{0,1,2}"], {"val": ["a.tar"]}, EmptyDatasetError, "3 single samples"),
        ([], {"train": ["a.tar"]}, SplitError, "no split part 'val'; .* has 'train'"),
        ([], {"vals": ["a.tar"]}, SplitError, "did you mean 'vals'"),
        ([], {"val": ["b.tar"]}, SplitError, "'b.tar' is not in .info.json; did you mean 'a.tar'"),
        ([], {"val": ["a.tar", "a.tar"]}, SplitError, "'a.tar' is listed twice"),
        (["b.tar"], {"val": ["a.tar"]}, SplitError, "exclude in split.yaml: 'b.tar' is neither"),
        (["b.tar/1"], {"val": ["a.tar"]}, SplitError, "'b.tar/1' is neither"),
        (["a.tar/9"], {"val": ["a.tar"]}, SplitError, "no sample '9', .* keys look like '0'"),
    ],
)
def test_wrong_splits_are_refused(tmp_path, exclude, splits, error, what):
    count = write_shard(tmp_path / "a.tar", packed([(f"{i}.txt", b"") for i in range(3)]))
    write_meta(tmp_path, {"a.tar": count}, splits, exclude)
    with pytest.raises(error, match=what) as caught:
        WebdatasetSource(tmp_path, split_part="val")
    assert str(tmp_path) in str(caught.value)


def test_folders_that_are_not_prepared_are_refused(tmp_path):
    with pytest.raises(DatasetNotFoundError, match="nowhere"):
        WebdatasetSource(tmp_path / "nowhere")
    with pytest.raises(NotPreparedError, match="energize prepare"):
        WebdatasetSource(tmp_path)


def test_the_identity_does_not_depend_on_the_place(folder, tmp_path, monkeypatch):
    source = WebdatasetSource(folder)
    moved = WebdatasetSource(shutil.copytree(folder, tmp_path / "cats"))
    renamed = WebdatasetSource(shutil.copytree(folder, tmp_path / "dogs"))
    assert source.identity == moved.identity != renamed.identity
    assert source.key == moved.key
    assert source.describe() == moved.describe()
    assert source.identity != WebdatasetSource(folder, split_part="val").identity
    assert source.key != source.reseeded(1).key != source.distinguished(1).key
    monkeypatch.chdir(folder)
    assert WebdatasetSource(".").identity == source.identity
    assert (source.name, source.run_length) == ("cats", 10)
    json.dumps(source.describe())


def test_sources_compare_and_travel_without_what_is_open(folder):
    source = WebdatasetSource(folder)
    fresh = pickle.dumps(source)
    source.read(np.arange(50))
    assert len(pickle.dumps(source)) == len(fresh)
    copy = pickle.loads(fresh)
    assert copy == source == WebdatasetSource(folder)
    assert hash(copy) == hash(source)
    assert copy != source.reseeded(3)
    assert copy != WebdatasetSource(folder, split_part="val")
    assert all_of(copy) == all_of(source.reseeded(3)) == list(range(50))


def read_there(source: WebdatasetSource, results) -> None:
    results.put(all_of(source))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_other_processes_read_the_same(folder, method):
    source = WebdatasetSource(folder)
    source.read(np.arange(50))
    context = multiprocessing.get_context(method)
    results = context.SimpleQueue()
    process = context.Process(target=read_there, args=(source, results))
    process.start()
    assert results.get() == list(range(50))
    process.join()
    assert process.exitcode == 0


def test_threads_share_a_source(folder):
    source = WebdatasetSource(folder)
    wrong: list[object] = []

    def read(seed: int) -> None:
        generator = np.random.default_rng(seed)
        for _ in range(50):
            wanted = generator.integers(0, 50, 20)
            if numbers(source.read(wanted)) != wanted.tolist():
                wrong.append(wanted)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def sparse(path: Path, size: int, places: dict[int, bytes]) -> None:
    with path.open("wb") as file:
        file.truncate(size)
        for offset, data in places.items():
            file.seek(offset)
            file.write(data)


def test_a_billion_samples_cost_what_ten_do(tmp_path):
    count, last = 10**9, packed([("999.jpg", b"picture"), ("999.txt", b"words")])[:2048]
    end = 512 * count
    sparse(tmp_path / "a.tar", end + 1024, {end - 2048: last})
    entries = struct.pack("<2Q", end - 2048, end)
    sparse(tmp_path / "a.tar.idx", 8 * (count + 1), {8 * (count - 1): entries})
    write_meta(tmp_path, {"a.tar": count}, {"train": ["a.tar"]})
    tracemalloc.start()
    started = time.perf_counter()
    sample = WebdatasetSource(tmp_path)[999_999_999]
    taken = time.perf_counter() - started
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (sample["__key__"], sample["jpg"], sample["txt"]) == ("999", b"picture", b"words")
    assert taken < 1
    assert peak < 2_000_000


def test_a_hundred_thousand_shards_open_fast(tmp_path):
    shards = {f"s/{i:06d}.tar": 7 for i in range(100_000)}
    write_shard(tmp_path / "s/012345.tar", packed([(f"{i}.txt", b"%d" % i) for i in range(7)]))
    write_meta(tmp_path, shards, {"train": ["s/{000000..099999}.tar"]})
    started = time.perf_counter()
    sample = WebdatasetSource(tmp_path)[12345 * 7 + 3]
    assert time.perf_counter() - started < 10
    assert (sample["txt"], sample["__shard__"]) == (b"3", "s/012345.tar")


def test_a_damaged_sample_fails_alone(tmp_path):
    folder = prepared(tmp_path / "cats", (8,))
    tar = folder / "parts/d0.tar"
    entries = struct.unpack("<9Q", (folder / "parts/d0.tar.idx").read_bytes())
    data = bytearray(tar.read_bytes())
    data[entries[3] : entries[3] + 512] = bytes(512)
    data[entries[5] + 257 : entries[5] + 265] = b"?" * 8
    tar.write_bytes(data)
    source = WebdatasetSource(folder)
    samples = source.read(np.arange(8))
    assert [i for i, sample in enumerate(samples) if isinstance(sample, Failed)] == [3, 5]
    for failed, number in ((samples[3], 3), (samples[5], 5)):
        assert isinstance(failed.reason, DataError)
        assert "d0.tar, sample " in failed.where
        assert failed.where.endswith(f"(index {number})")
        assert failed.where == source.where(number)
    told: list[Failed] = []
    assert all(sample["jpg"] for sample in source.at(np.arange(16), Reading(report=told.append)))
    assert len(told) >= 4


def test_a_part_that_comes_twice_fails_with_its_name(tmp_path):
    files = [("0.txt", b""), ("1.txt", b"one"), ("1.txt", b"two"), ("2.__key__", b"")]
    count = write_shard(tmp_path / "a.tar", packed(files))
    write_meta(tmp_path, {"a.tar": count}, {"train": ["a.tar"]})
    whole, twice, reserved = WebdatasetSource(tmp_path).read(np.arange(3))
    assert whole["txt"] == b""
    assert "one part twice" in str(twice)
    assert "'1' (index 1)" in str(twice)
    assert "['__key__']" in str(reserved)


def edit_index(folder: Path, change) -> None:
    path = folder / "parts/d0.tar.idx"
    entries = np.fromfile(path, dtype="<u8")
    change(entries).astype("<u8").tofile(path)


def rewrite(folder: Path, change) -> None:
    path = folder / "parts/d0.tar"
    path.write_bytes(change(path.read_bytes()))


def other_shard(data: bytes) -> bytes:
    """As long as the old one, with members in other places."""
    end = offsets(data)[-1]
    return packed([(f"{i}.jpg", b"?" * 1024) for i in range(end)])[:end] + bytes(1024)


def merge_two(entries: np.ndarray) -> np.ndarray:
    """Samples 0 and 1 as one, and sample 2 as two."""
    return np.concatenate([entries[[0, 2]], entries[2:3] + 1024, entries[3:]])


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (lambda f: (f / "parts/d0.tar").unlink(), r"d0\.tar: cannot be read .No such file"),
        (lambda f: (f / "parts/d0.tar.idx").unlink(), r"d0\.tar\.idx: cannot be read"),
        (lambda f: rewrite(f, lambda d: d[:2000]), "was cut off, or is another one"),
        (lambda f: rewrite(f, lambda d: d[:-10240] + d), "do not belong together"),
        (lambda f: rewrite(f, lambda d: b"\x1f\x8b" + d[2:]), "compressed with gzip"),
        (lambda f: rewrite(f, other_shard), "at most places no sample starts"),
        (lambda f: edit_index(f, lambda e: e[:-1]), "do not belong together: the index of 8"),
        (lambda f: edit_index(f, lambda e: e[:0]), "this one has 0"),
        (lambda f: edit_index(f, lambda e: e[[0, 2, 1, *range(3, 9)]]), "sample 1 lies from byte"),
        (lambda f: edit_index(f, merge_two), "has the keys"),
        (lambda f: edit_index(f, lambda e: e * 2), "was cut off, or is another one"),
        (lambda f: edit_index(f, lambda e: e - e // e.max() * 512), "but more follow"),
    ],
)
def test_shards_and_indices_that_disagree_are_fatal(tmp_path, damage, what):
    folder = prepared(tmp_path / "cats", (8, 4))
    damage(folder)
    source = WebdatasetSource(folder)
    assert numbers(source.read(np.arange(8, 12))) == [8, 9, 10, 11]
    with pytest.raises(ShardError, match=what) as caught:
        source.read(np.arange(7, -1, -1))
    assert "d0.tar" in str(caught.value)
    assert "energize prepare" in str(caught.value) or "make it readable" in str(caught.value)
    assert "d0.tar, sample " in source.where(3)


def test_a_shard_cut_off_while_it_is_open_is_fatal(tmp_path):
    folder = prepared(tmp_path / "cats", (8,))
    source = WebdatasetSource(folder)
    source.read(np.arange(2))
    os.truncate(folder / "parts/d0.tar", 4096)
    with pytest.raises(ShardError, match=r"d0\.tar has changed since it was first read"):
        source.read(np.arange(8))


def test_a_stored_first_entry_is_taken_for_zero(tmp_path):
    """Energon stores where the first sample starts, after members that belong to none."""
    tar = packed([("about", b"x" * 900), ("0.txt", b"a"), ("1.txt", b"b")])
    count = write_shard(tmp_path / "a.tar", tar)
    assert np.fromfile(index_path(str(tmp_path / "a.tar")), dtype="<u8")[0] == 1536
    write_meta(tmp_path, {"a.tar": count}, {"train": ["a.tar"]})
    source = WebdatasetSource(tmp_path)
    assert [sample["txt"] for sample in source] == [b"a", b"b"]
