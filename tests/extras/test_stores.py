"""Stores of files: by their names, and never beyond what they are of."""

from __future__ import annotations

import json
import os
import pickle
import sqlite3
import tarfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from energize.core.samples import TextSample
from energize.core.stores import DecodeFileStore, PrimaryFileStore
from energize.data.stores import (
    JsonlFileStore,
    SystemFileStore,
    WebdatasetFileStore,
    open_store,
)
from energize.errors import (
    ConfigError,
    DataError,
    DatasetError,
    DatasetNotFoundError,
    DecodeError,
    NotPreparedError,
    ShardError,
)
from energize.preparation import prepare
from energize.preparation.index import prepare_jsonl
from energize.task.decode import SampleDecoder
from tests.support.shards import packed
from tests.support.tars import unprepared

RATIOS = {"train": 1}


@pytest.fixture
def shards(tmp_path):
    """Three shards with `.jpg` and `.txt` parts, indexed."""
    folder = unprepared(tmp_path / "ds")
    prepare(folder, split_ratios=RATIOS, sqlite=True, workers=1)
    return folder


@pytest.fixture
def plain(tmp_path):
    folder = tmp_path / "plain"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.txt").write_text("a")
    (folder / "sub" / "b.json").write_text('{"n": 1}')
    (tmp_path / "secret.txt").write_text("secret")
    return folder


@pytest.fixture
def lines(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_text("".join(json.dumps({"n": i}) + "\n" for i in range(12)))
    prepare_jsonl(path)
    return path


def refused(store, match, *keys, error=DataError):
    for key in keys:
        with pytest.raises(error, match=match) as caught:
            store[key]
        assert repr(key) in str(caught.value) or error is not DataError


def test_contents_and_sources(shards, plain, lines):
    for store, key, content, index, shard, name in (
        (
            WebdatasetFileStore(shards),
            "00200003.txt",
            b"txt 2 3",
            "00200003.txt",
            "parts/d2.tar",
            0,
        ),
        (
            SystemFileStore(plain),
            "sub/b.json",
            b'{"n": 1}',
            "sub/b.json",
            str(plain),
            0,
        ),
        (JsonlFileStore(lines), "11", b'{"n": 11}', 11, "lines.jsonl", "11.json"),
        (JsonlFileStore(lines), "1.json", b'{"n": 1}', 1, "lines.jsonl", "1.json"),
    ):
        found, source = store[key]
        assert (found, source.index, source.shard_name) == (content, index, shard)
        assert (source.dataset_path, source.file_names) == (
            store.get_path(),
            (name or key,),
        )
        sample = TextSample(__key__="k", text="")
        assert store.get(key, sample) == store.get(key, sample) == content
        assert sample.__sources__ == (source,)
    assert len(JsonlFileStore(lines)) == 12


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize(
    "names", ["ab", ("a" * 120, "b" * 120), "éü", ("é" * 60, "ü" * 60)]
)
def test_entries_of_the_database_that_were_swapped_are_told(tmp_path, names, form):
    files = [
        (f"{name}.{part}", f"{name}{part}".encode())
        for name in names
        for part in ("p", "q")
    ]
    (tmp_path / "0.tar").write_bytes(packed(files, form))
    prepare(tmp_path, split_ratios=RATIOS, sqlite=True, workers=1)
    store = WebdatasetFileStore(tmp_path)
    assert [store[name][0] for name, _ in files] == [data for _, data in files]
    swapped = "UPDATE {} SET {} = CASE {} WHEN {} THEN {} ELSE {} END"
    for change in (
        ("samples", "sample_index", "sample_index", 0, 1, 0),
        ("sample_parts", "part_name", "part_name", "'p'", "'q'", "'p'"),
    ):
        with (
            closing(sqlite3.connect(tmp_path / ".nv-meta/index.sqlite")) as database,
            database,
        ):
            database.execute(swapped.format(*change))
        refused(
            WebdatasetFileStore(tmp_path),
            "do not match",
            files[0][0],
            error=ShardError,
        )


def test_names_that_are_not_there(shards, plain, lines):
    store = WebdatasetFileStore(shards)
    refused(store, "sample '00000001' has only the parts jpg, txt", "00000001.png")
    refused(
        store,
        "no sample has the key",
        "nothing.txt",
        "../../secret.txt",
        "/etc/passwd.txt",
    )
    refused(store, "no sample has the key", "x' OR '1'='1.txt")
    refused(store, "not the name of a file", "00000001")
    store = SystemFileStore(plain)
    refused(store, "does not exist", "c.txt", "a.txt/b")
    refused(store, "not a regular file", "sub")
    refused(store, "not the name of a file", "", "a\0.txt")
    store = JsonlFileStore(lines)
    keys = ("12", "-1", "01", "1.txt", "٣", "", "9" * 30, "x")
    refused(store, "its keys are '0' to '11'", *keys)
    with pytest.raises(ConfigError, match="has no media metadata"):
        store.get_media_metadata("1")


def test_media_metadata_that_are_no_text_are_damage_and_name_the_database(plain):
    path = plain / ".nv-meta" / "index.sqlite"
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(
            "CREATE TABLE media_metadata (entry_key, metadata_type, metadata_json)"
        )
        rows = [("null", "image", None), ("number", "image", 3), ("kind", None, "{}")]
        database.executemany("INSERT INTO media_metadata VALUES (?, ?, ?)", rows)
    for key in ("null", "number", "kind"):
        with pytest.raises(
            DataError, match=f"index.sqlite, '{key}': media metadata (has|is not)"
        ):
            SystemFileStore(plain).get_media_metadata(key)


def test_no_name_leads_out_of_a_folder(plain, tmp_path):
    (plain / "link.txt").symlink_to(tmp_path / "secret.txt")
    (plain / "up").symlink_to(tmp_path)
    (plain / "inside.txt").symlink_to(plain / "a.txt")
    (tmp_path / "plain-too").mkdir()
    (tmp_path / "plain-too" / "x.txt").write_text("beside")
    (plain / "beside").symlink_to(tmp_path / "plain-too")
    (tmp_path / "linked").symlink_to(plain)
    store = SystemFileStore(plain)
    assert store.get("inside.txt") == b"a"
    assert SystemFileStore(tmp_path / "linked").get("a.txt") == b"a"
    outside = (
        "../secret.txt",
        "sub/../../secret.txt",
        str(tmp_path / "secret.txt"),
        "/etc/passwd",
    )
    refused(store, "may lead out of the folder", *outside, "..", "sub/../a.txt")
    refused(store, "outside of the folder", "link.txt", "up/secret.txt", "beside/x.txt")


def test_pipes_and_devices_are_not_read(plain):
    """A pipe without a writer would be waited for without end."""
    os.mkfifo(plain / "pipe")
    refused(SystemFileStore(plain), "not a regular file", "pipe")
    refused(SystemFileStore(), "not a regular file", "/dev/zero")


def test_what_was_changed_after_it_was_indexed(shards, lines):
    path = shards / "parts/d0.tar"
    store = WebdatasetFileStore(shards)
    # Another file of the same size is not taken for it, nor one of another size.
    with tarfile.open(path) as tar:
        files = [(each.name, tar.extractfile(each).read()) for each in tar.getmembers()]
    path.write_bytes(packed([(f"1{name[1:]}", content) for name, content in files]))
    refused(
        store,
        "do not match: found '10000001.jpg'",
        "00000001.jpg",
        error=ShardError,
    )
    (shards / "parts/d1.tar").write_bytes(b"short")
    refused(
        WebdatasetFileStore(shards), "do not match", "00100001.txt", error=ShardError
    )
    (shards / "parts/d2.tar").unlink()
    refused(
        WebdatasetFileStore(shards), "cannot be read", "00200001.txt", error=ShardError
    )
    store = JsonlFileStore(lines)
    lines.write_text(lines.read_text().replace('{"n": 1}\n', '{"nn":1}\n '))
    refused(store, "no line starts where sample 3", "3", error=ShardError)
    with pytest.raises(ShardError, match="energize prepare"):
        JsonlFileStore(lines)


def test_what_is_not_prepared(tmp_path, shards, lines):
    for path, kind in (
        (tmp_path / "missing", DatasetNotFoundError),
        (tmp_path, NotPreparedError),
    ):
        with pytest.raises(kind):
            WebdatasetFileStore(path)
    (shards / ".nv-meta" / "index.sqlite").unlink()
    with pytest.raises(NotPreparedError) as caught:
        WebdatasetFileStore(shards)
    assert f"energize prepare --tar-index-only --sqlite {shards}" in str(caught.value)
    prepare(shards, tar_index_only=True, sqlite=True, workers=1)
    assert WebdatasetFileStore(shards).get("00000001.jpg") == b"jpg 0 1"
    lines.with_name("lines.jsonl.idx").unlink()
    with pytest.raises(NotPreparedError, match=f"energize prepare {lines}"):
        JsonlFileStore(lines)
    with pytest.raises(DatasetNotFoundError):
        JsonlFileStore(tmp_path / "none.jsonl")


def test_damaged_databases(shards):
    path = shards / ".nv-meta" / "index.sqlite"
    data = path.read_bytes()
    changes = (
        "DROP TABLE sample_parts",
        "UPDATE samples SET tar_file_id = 99; UPDATE sample_parts SET tar_file_id = 99",
    )
    for damage in (data[: len(data) // 3], b"text" * 99, b"", *changes):
        path.write_bytes(data if isinstance(damage, str) else damage)
        if isinstance(damage, str):
            with sqlite3.connect(path) as database:
                database.executescript(damage)
        store = WebdatasetFileStore(shards)
        with pytest.raises(DatasetError, match="energize prepare --tar-index-only"):
            _ = [store[key] for key in ("00000001.txt", "00200003.jpg")]


def test_decoding_by_name_and_parts_of_the_current_sample(shards, plain, lines):
    decoder = SampleDecoder()
    store = DecodeFileStore(SystemFileStore(plain), decoder=decoder)
    assert (store.get("sub/b.json"), store.get("a.txt")) == ({"n": 1}, "a")
    assert DecodeFileStore(JsonlFileStore(lines), decoder=decoder).get("7.json") == {
        "n": 7
    }
    (plain / "bad.json").write_text("{")
    with pytest.raises(
        DecodeError, match=r"SystemFileStore\(.*plain\): part 'bad.json'"
    ):
        store["bad.json"]
    inner = DecodeFileStore(WebdatasetFileStore(shards), decoder=decoder)
    primary = PrimaryFileStore(inner, "00100001")
    assert (primary.get(".txt"), primary.get("00000000.txt")) == ("txt 1 1", "txt 0 0")
    assert primary.get_path() == str(shards)


def test_stores_travel_to_other_processes_and_threads(shards, plain, lines):
    stores = [
        WebdatasetFileStore(shards),
        SystemFileStore(plain),
        DecodeFileStore(JsonlFileStore(lines), decoder=SampleDecoder()),
    ]

    def read(those=stores):
        keys = ("00000001.txt", "a.txt", "3.json")
        return [store.get(key) for store, key in zip(those, keys, strict=True)]

    expected = read()
    copies = pickle.loads(pickle.dumps(stores))
    assert copies == stores
    assert hash(tuple(copies)) == hash(tuple(stores))
    assert read(copies) == expected
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda _: read(), range(4))) == [expected] * 4
    child = os.fork()
    if child == 0:
        os._exit(0 if read() == expected else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_references_of_metadatasets(shards, plain, lines, tmp_path):
    assert (
        open_store("ds", tmp_path) == open_store(shards) == WebdatasetFileStore(shards)
    )
    for ref, base, key, content in (
        ("filesystem://plain", tmp_path, "a.txt", b"a"),
        (f"filesystem://{plain}", "/elsewhere", "a.txt", b"a"),
        ("lines.jsonl", tmp_path, "0", b'{"n": 0}'),
        ("../ds", plain, "00000001.txt", b"txt 0 1"),
    ):
        assert open_store(ref, base).get(key) == content
    for ref in ("s4://bucket/ds", "filesystem+mcs://p/ds", "filesystem://s4://a"):
        with pytest.raises(ConfigError, match="is not a known scheme"):
            open_store(ref, tmp_path)
    for ref in ("missing", "missing.yaml", "filesystem://missing", "missing.jsonl"):
        with pytest.raises(DatasetNotFoundError, match="missing"):
            open_store(ref, tmp_path)
