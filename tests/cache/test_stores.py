"""Stores of files: by their names, and never beyond what they are of."""

import json
import os
import pickle
import sqlite3
import tarfile
import threading

import pytest

from energize.core.samples import TextSample
from energize.core.stores import DecodeFileStore, PrimaryFileStore
from energize.data.stores import JsonlFileStore, SystemFileStore, WebdatasetFileStore, open_store
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
from energize.preparation.jsonl import prepare_jsonl
from energize.task.decode import SampleDecoder
from tests.support.shards import packed
from tests.support.tars import unprepared, write_tar

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


def refused(store, key, match, error=DataError):
    with pytest.raises(error, match=match) as caught:
        store[key]
    assert repr(key) in str(caught.value) or error is not DataError
    return str(caught.value)


def test_files_of_shards(shards):
    store = WebdatasetFileStore(shards)
    content, source = store["00200003.txt"]
    assert content == b"txt 2 3"
    assert (source.dataset_path, source.index) == (str(shards), "00200003.txt")
    assert (source.shard_name, source.file_names) == ("parts/d2.tar", ("00200003.txt",))
    sample = TextSample(__key__="k", text="")
    assert store.get("00000001.jpg", sample) == b"jpg 0 1"
    assert sample.__sources__ == (store["00000001.jpg"][1],)
    assert store.get_path() == str(shards)


@pytest.mark.parametrize("kind", ["USTAR", "GNU", "PAX"])
def test_long_and_foreign_names(tmp_path, kind):
    names = ["sub/x.meta.json", "./dot.txt", "plain.txt", f"{'d' * 120}/n.txt"]
    if kind != "USTAR":
        names += [f"{'d' * 120}/{'n' * 90}.txt", "übung/größe.txt"]
    files = [(name, f"content {i}".encode()) for i, name in enumerate(names)]
    write_tar(tmp_path / "0.tar", files, getattr(tarfile, f"{kind}_FORMAT"))
    prepare(tmp_path, split_ratios=RATIOS, sqlite=True, workers=1)
    store = WebdatasetFileStore(tmp_path)
    for name, content in files:
        assert store.get(name) == content


def test_what_is_not_in_the_shards(shards):
    store = WebdatasetFileStore(shards)
    assert "sample '00000001' has only the parts jpg, txt" in refused(store, "00000001.png", "png")
    refused(store, "nothing.txt", "no sample has the key 'nothing'")
    refused(store, "00000001", "no name of a file")
    refused(store, "../../secret.txt", "no sample has the key")
    refused(store, "/etc/passwd.txt", "no sample has the key")
    refused(store, "x' OR '1'='1.txt", "no sample has the key")


def test_a_folder_without_the_database_says_what_makes_it(tmp_path, shards):
    (shards / ".nv-meta" / "index.sqlite").unlink()
    with pytest.raises(NotPreparedError) as caught:
        WebdatasetFileStore(shards)
    command = f"energize prepare --tar-index-only --sqlite {shards}"
    assert command in str(caught.value)
    prepare(shards, tar_index_only=True, sqlite=True, workers=1)
    assert WebdatasetFileStore(shards).get("00000001.jpg") == b"jpg 0 1"
    with pytest.raises(DatasetNotFoundError):
        WebdatasetFileStore(tmp_path / "missing")
    with pytest.raises(NotPreparedError, match="energize prepare"):
        WebdatasetFileStore(tmp_path)


def test_shards_that_were_changed_after_they_were_indexed(shards):
    store = WebdatasetFileStore(shards)
    (shards / "parts/d0.tar").write_bytes(
        packed([(f"0000000{i}.{part}", b"other " * i) for i in range(3) for part in ("jpg", "txt")])
    )
    refused(store, "00000001.txt", "do not belong together", ShardError)
    (shards / "parts/d1.tar").write_bytes(b"short")
    refused(WebdatasetFileStore(shards), "00100001.txt", "do not belong together", ShardError)
    (shards / "parts/d2.tar").unlink()
    refused(WebdatasetFileStore(shards), "00200001.txt", "cannot be read", ShardError)


def test_another_file_of_the_same_size_is_not_taken_for_it(shards):
    store = WebdatasetFileStore(shards)
    path = shards / "parts/d0.tar"
    path.write_bytes(path.read_bytes().replace(b"00000001.jpg", b"00000009.jpg", 1))
    message = refused(store, "00000001.jpg", "do not belong", ShardError)
    assert "do not belong" in message or "no file lies" in message


@pytest.mark.parametrize("damage", ["cut", "text", "empty", "tables", "numbers"])
def test_damaged_databases(shards, damage):
    path = shards / ".nv-meta" / "index.sqlite"
    data = path.read_bytes()
    if damage in ("tables", "numbers"):
        with sqlite3.connect(path) as database:
            if damage == "tables":
                database.execute("DROP TABLE sample_parts")
            else:
                database.execute("UPDATE samples SET tar_file_id = 99")
                database.execute("UPDATE sample_parts SET tar_file_id = 99")
    else:
        damaged = {"cut": data[: len(data) // 3], "text": b"text" * 99, "empty": b""}
        path.write_bytes(damaged[damage])
    store = WebdatasetFileStore(shards)
    with pytest.raises(DatasetError, match="energize prepare --tar-index-only"):
        _ = [store[key] for key in ("00000001.txt", "00200003.jpg")]


def test_a_database_may_not_act(shards):
    """A view in place of a table may not call functions that do anything."""
    path = shards / ".nv-meta" / "index.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("ALTER TABLE samples RENAME TO kept")
        database.execute(
            "CREATE VIEW samples AS SELECT load_extension('x') AS tar_file_id, sample_key, "
            "sample_index FROM kept"
        )
    before = path.read_bytes()
    with pytest.raises(DatasetError):
        WebdatasetFileStore(shards)["00000001.txt"]
    assert path.read_bytes() == before
    assert {each.name for each in path.parent.iterdir()} >= {"index.sqlite"}
    assert not list(path.parent.glob("*-journal"))


def test_files_of_a_folder(plain):
    store = SystemFileStore(plain)
    content, source = store["sub/b.json"]
    assert content == b'{"n": 1}'
    assert (source.dataset_path, source.index) == (str(plain), "sub/b.json")
    assert (source.shard_name, source.file_names) == (str(plain), ("sub/b.json",))
    refused(store, "c.txt", "no such file")
    refused(store, "a.txt/b", "no such file")
    refused(store, "sub", "no regular file")


def test_no_name_leads_out_of_a_folder(plain, tmp_path):
    (plain / "link.txt").symlink_to(tmp_path / "secret.txt")
    (plain / "up").symlink_to(tmp_path)
    (plain / "inside.txt").symlink_to(plain / "a.txt")
    (tmp_path / "plain-too").mkdir()
    (tmp_path / "plain-too" / "x.txt").write_text("beside")
    store = SystemFileStore(plain)
    assert store.get("inside.txt") == b"a"
    outside = ["../secret.txt", "sub/../../secret.txt", str(tmp_path / "secret.txt"), "/etc/passwd"]
    for key in [*outside, "..", "sub/../a.txt"]:
        refused(store, key, "may lead out of the folder")
    for key in ("link.txt", "up/secret.txt", "up/plain/a.txt/../secret.txt"):
        refused(store, key, "lead out of the folder|leads out of the folder")
    (plain / "beside").symlink_to(tmp_path / "plain-too")
    refused(store, "beside/x.txt", "leads out of the folder")
    for key in ("", "a\0.txt"):
        refused(store, key, "no name of a file")


def test_the_folder_itself_may_be_a_link(plain, tmp_path):
    (tmp_path / "linked").symlink_to(plain)
    assert SystemFileStore(tmp_path / "linked").get("a.txt") == b"a"


def test_pipes_and_devices_are_not_read(plain):
    """A pipe without a writer would be waited for without end."""
    os.mkfifo(plain / "pipe")
    refused(SystemFileStore(plain), "pipe", "no regular file")
    with pytest.raises(DataError, match="no regular file"):
        SystemFileStore()["/dev/zero"]


def test_a_store_without_a_folder_reads_any_path(plain, monkeypatch):
    store = SystemFileStore()
    assert store.get(str(plain / "a.txt")) == b"a"
    monkeypatch.chdir(plain)
    assert store.get("../secret.txt") == b"secret"
    assert store.get_path() == ""


def test_lines_by_number(lines):
    """`store["1"]` is sample 1; it used to be the error of an unset variable elsewhere."""
    store = JsonlFileStore(lines)
    assert store["1"] == store["1.json"] == (b'{"n": 1}', store["1"][1])
    source = store["11"][1]
    assert (source.dataset_path, source.index) == (str(lines), 11)
    assert (source.shard_name, source.file_names) == ("lines.jsonl", ("11.json",))
    assert len(store) == 12
    for key in ("12", "-1", "01", "1.txt", "٣", "", "9" * 30, "x"):
        refused(store, key, "its keys are '0' to '11'")
    with pytest.raises(ConfigError, match="keeps no media metadata"):
        store.get_media_metadata("1")


def test_lines_of_a_file_that_was_changed(lines):
    store = JsonlFileStore(lines)
    lines.write_text(lines.read_text().replace('{"n": 1}\n', '{"nn":1}\n '))
    refused(store, "3", "has changed", ShardError)
    with pytest.raises(ShardError, match="energize prepare"):
        JsonlFileStore(lines)
    lines.with_name("lines.jsonl.idx").unlink()
    with pytest.raises(NotPreparedError, match=f"energize prepare {lines}"):
        JsonlFileStore(lines)
    with pytest.raises(DatasetNotFoundError):
        JsonlFileStore(lines.with_name("none.jsonl"))


def test_decoding_by_name(plain, lines):
    decoder = SampleDecoder()
    store = DecodeFileStore(SystemFileStore(plain), decoder=decoder)
    assert (store.get("sub/b.json"), store.get("a.txt")) == ({"n": 1}, "a")
    assert DecodeFileStore(JsonlFileStore(lines), decoder=decoder).get("7.json") == {"n": 7}
    (plain / "bad.json").write_text("{")
    with pytest.raises(DecodeError, match=r"SystemFileStore\(.*plain\): part 'bad.json'"):
        store["bad.json"]
    with pytest.raises(ConfigError, match="has a method decode"):
        DecodeFileStore(SystemFileStore(plain), decoder=len)


def test_parts_of_the_current_sample(shards):
    store = DecodeFileStore(WebdatasetFileStore(shards), decoder=SampleDecoder())
    primary = PrimaryFileStore(store, "00100001")
    assert primary.get(".txt") == "txt 1 1"
    assert primary.get("00000000.txt") == "txt 0 0"
    assert primary.get_path() == str(shards)


def test_stores_travel_to_other_processes_and_threads(shards, plain, lines):
    stores = [
        WebdatasetFileStore(shards),
        SystemFileStore(plain),
        DecodeFileStore(JsonlFileStore(lines), decoder=SampleDecoder()),
    ]
    keys = ["00000001.txt", "a.txt", "3.json"]
    expected = [store.get(key) for store, key in zip(stores, keys, strict=True)]
    copies = pickle.loads(pickle.dumps(stores))
    assert copies == stores
    assert hash(tuple(copies)) == hash(tuple(stores))
    assert [store.get(key) for store, key in zip(copies, keys, strict=True)] == expected
    found = []

    def read():
        found.append([store.get(key) for store, key in zip(stores, keys, strict=True)])

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == [expected] * 4
    child = os.fork()
    if child == 0:
        read()
        os._exit(0 if found[-1] == expected else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_read_only_folder_is_enough(shards):
    meta = shards / ".nv-meta"
    before = {each.name: each.stat().st_mtime_ns for each in meta.iterdir()}
    meta.chmod(0o500)
    try:
        assert WebdatasetFileStore(shards).get("00000001.txt") == b"txt 0 1"
    finally:
        meta.chmod(0o700)
    assert {each.name: each.stat().st_mtime_ns for each in meta.iterdir()} == before


def test_references_of_metadatasets(shards, plain, lines, tmp_path):
    assert open_store("ds", tmp_path) == WebdatasetFileStore(shards)
    assert open_store(str(shards)) == WebdatasetFileStore(shards)
    assert open_store("filesystem://plain", tmp_path).get("a.txt") == b"a"
    assert open_store(f"filesystem://{plain}", "/elsewhere").get("a.txt") == b"a"
    assert open_store("lines.jsonl", tmp_path).get("0") == b'{"n": 0}'
    assert open_store("../ds", plain).get("00000001.txt") == b"txt 0 1"
    for ref in ("s3://bucket/ds", "msc://p/ds", "filesystem+msc://p/ds"):
        with pytest.raises(ConfigError, match="local and mounted file systems only"):
            open_store(ref, tmp_path)
    with pytest.raises(ConfigError, match="not a metadataset"):
        open_store("mix.yaml", tmp_path)
    for ref in ("missing", "filesystem://missing", "missing.jsonl"):
        with pytest.raises(DatasetNotFoundError, match="missing"):
            open_store(ref, tmp_path)
