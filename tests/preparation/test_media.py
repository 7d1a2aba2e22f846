"""Collecting metadata of folders: what is written, what is damaged, and that nothing
hangs."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3

import pytest

from energize.core.stores import DecodeFileStore
from energize.data.media import AVMetadata
from energize.data.stores import SystemFileStore, WebdatasetFileStore
from energize.energon.factories import BaseWebdatasetFactory
from energize.errors import (
    ConfigError,
    DataError,
    DatasetNotFoundError,
    NotPreparedError,
    PrepareError,
)
from energize.preparation import prepare
from energize.preparation.media import prepare_filesystem_dataset, prepare_media
from energize.task.decode import SampleDecoder
from tests.extras.test_media import EXTENSION, image
from tests.support.peers import run_energon
from tests.support.tars import contents, write_tar
from tests.support.videos import video, wav

PARTS = {
    0: [
        ("000.png", image()),
        ("000.txt", b"text"),
        ("001.jpg", image("JPEG", (16, 8))),
    ],
    1: [
        ("002.meta.png", image(mode="L")),
        ("003.wav", wav(samples=4000)),
        ("004.mp4", video()),
    ],
}
IMAGES = {
    "000.png": ("image", {"width": 8, "height": 4, "format": "PNG", "mode": "RGB"}),
    "001.jpg": ("image", {"width": 16, "height": 8, "format": "JPEG", "mode": "RGB"}),
    "002.meta.png": ("image", {"width": 8, "height": 4, "format": "PNG", "mode": "L"}),
}


def rows(folder, table="media_metadata", columns="*"):
    with sqlite3.connect(folder / ".nv-meta" / "index.sqlite") as database:
        return sorted(database.execute(f"SELECT {columns} FROM {table}").fetchall())


def known(folder):
    return {key: (kind, json.loads(text)) for key, kind, text in rows(folder)}


@pytest.fixture
def shards(tmp_path):
    folder = tmp_path / "ds"
    for number, members in PARTS.items():
        write_tar(folder / f"{number}.tar", members)
    prepare(folder, split_ratios={"train": 1}, sqlite=True, workers=1)
    return folder


@pytest.fixture
def plain(tmp_path):
    folder = tmp_path / "plain"
    for name, data in (each for members in PARTS.values() for each in members):
        path = folder / "sub" / name if name.endswith("png") else folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


@pytest.mark.parametrize(
    ("by", "workers"), [("extension", 1), ("header", 3), ("*.png,*.jpg,*.wav,*.mp4", 1)]
)
def test_shards(shards, by, workers):
    samples = rows(shards, "samples"), rows(shards, "sample_parts")
    store = DecodeFileStore(WebdatasetFileStore(shards), decoder=SampleDecoder())
    assert store.get("000.txt") == "text"
    with pytest.raises(NotPreparedError, match="energize prepare-media"):
        store.get_media_metadata("000.png")
    report = prepare_media(shards, by, workers=workers)
    assert (report.count, report.damaged) == (5, ())
    assert (rows(shards, "samples"), rows(shards, "sample_parts")) == samples
    found = known(shards)
    assert {key: found[key] for key in IMAGES} == IMAGES
    assert found["003.wav"][1]["audio_num_samples"] == 4000
    assert found["004.mp4"][1]["video_num_frames"] == 60
    (stored,) = rows(shards, "media_filters", "filter_id, strategy, patterns")
    assert stored == ((1, "GLOB", by) if "*" in by else (1, by.upper(), ""))
    # A store that was opened before goes on, and has the metadata too.
    assert store.get("000.txt") == "text"
    assert store.get_media_metadata("001.jpg").width == 16
    assert isinstance(store.get_media_metadata("004.mp4"), AVMetadata)
    with pytest.raises(DataError, match=r"no media metadata of '000\.txt'"):
        store.get_media_metadata("000.txt")


def test_a_folder_prepared_without_the_database_gets_one(shards, tmp_path):
    (shards / ".nv-meta" / "index.sqlite").unlink()
    (tmp_path / "tmp").mkdir()
    assert prepare_media(shards, workers=1, tmp_path=tmp_path / "tmp").count == 5
    assert WebdatasetFileStore(shards).get("000.txt") == b"text"
    add = BaseWebdatasetFactory.add_media_metadata
    as_energon = {"index_sqlite_tmp_path": tmp_path / "tmp" / "index.sqlite"}
    assert add(shards, media_filter=EXTENSION, **as_energon) == 5
    assert list((tmp_path / "tmp").iterdir()) == []
    assert not list((shards / ".nv-meta").glob("*.tmp"))


def test_damaged_media_are_reported_with_shard_and_key(tmp_path):
    folder = tmp_path / "ds"
    cut = image("JPEG", (64, 64))
    write_tar(folder / "0.tar", [("a.png", image()), ("b.jpg", cut[: len(cut) // 2])])
    write_tar(
        folder / "1.tar",
        [("c.png", b"no image"), ("d.mp4", video()[:40]), ("e.wav", b"x")],
    )
    prepare(folder, split_ratios={"train": 1}, sqlite=True, workers=1)
    report = prepare_media(folder, workers=2)
    assert (report.count, set(known(folder))) == (1, {"a.png"})
    places = [("0.tar", "b"), ("1.tar", "c"), ("1.tar", "d"), ("1.tar", "e")]
    for (shard, key), line in zip(places, report.damaged, strict=True):
        assert line.startswith(f"{folder / shard}, sample {key!r}: ")


def test_damaged_files_and_links_that_lead_out(plain, tmp_path):
    prepare_media(plain)
    (plain / "sub" / "000.png").write_bytes(b"no image")
    (tmp_path / "secret.png").write_bytes(image())
    (plain / "link.png").symlink_to(tmp_path / "secret.png")
    os.mkfifo(plain / "pipe.png")
    report = prepare_media(plain, workers=2)
    assert report.count == 4
    words = zip(
        ("outside of", "not a regular file", "000.png"), report.damaged, strict=True
    )
    assert all(word in line for word, line in words)
    assert "sub/000.png" not in known(plain)
    with pytest.raises(
        PrepareError, match=r"3 files are damaged, the metadata of the other 4"
    ):
        prepare_filesystem_dataset(plain, EXTENSION)


def test_what_leaves_everything_as_it_was(tmp_path, shards):
    write_tar(tmp_path / "raw" / "0.tar", PARTS[0])
    for folder, by, kind, words in (
        (shards, "*.tga", PrepareError, r"no files that are images.*by GLOB, \*\.tga"),
        (tmp_path / "none", "header", DatasetNotFoundError, "none"),
        (
            tmp_path / "raw",
            "header",
            PrepareError,
            f"energize prepare {tmp_path / 'raw'}",
        ),
        (shards, "", ConfigError, "exactly one"),
        (shards, ",", ConfigError, "patterns must be set for GLOB"),
    ):
        before = contents(shards)
        with pytest.raises(kind, match=words):
            prepare_media(folder, by)
        assert contents(shards) == before, by
    with pytest.raises(ConfigError, match="workers"):
        prepare_media(shards, workers=0)
    path = shards / "1.tar"
    data = path.read_bytes()
    for damage in (lambda: path.write_bytes(data[:700]), path.unlink):
        damage()
        before = contents(shards)
        with pytest.raises(PrepareError, match=r"1\.tar"):
            prepare_media(shards, workers=2)
        assert contents(shards) == before


@pytest.mark.energon
def test_energon_writes_and_reads_the_same(shards, plain, tmp_path):
    """The same tables, row for row, but for videos and sounds, which it leaves out
    without PyAV."""
    for folder, kind in ((shards, WebdatasetFileStore), (plain, SystemFileStore)):
        copy = tmp_path / f"{folder.name}-theirs"
        shutil.copytree(folder, copy)
        option = "--media-metadata-by-extension"
        run_energon(
            "prepare-media", "--no-progress", "--num-workers", "1", option, str(copy)
        )
        prepare_media(folder)
        for table, columns in (
            ("media_filters", "filter_id, strategy, patterns"),
            ("sqlite_master", "type, name"),
        ):
            assert rows(folder, table, columns) == rows(copy, table, columns), table
        ours, theirs = (
            [row for row in rows(each) if row[1] == "image"] for each in (folder, copy)
        )
        assert ours == theirs
        assert len(ours) == 3
        assert kind(copy).get_media_metadata("001.jpg").width == 16
