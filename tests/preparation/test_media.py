"""Collecting metadata of folders: what is written, what is damaged, and that nothing hangs."""

import io
import json
import os
import shutil
import signal
import sqlite3
import wave
from fractions import Fraction

import numpy as np
import pytest

from energize.core.stores import DecodeFileStore
from energize.data.media import AVMetadata, ImageMetadata, MediaFilterConfig, MediaFilterStrategy
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
from tests.media.test_metadata import image
from tests.support.energon import run_energon
from tests.support.tars import contents, write_tar


def sound(seconds=0.5, rate=8000):
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(b"\0\0" * 2 * int(seconds * rate))
    return buffer.getvalue()


def video(frames=12, rate=6, size=(32, 16)):
    av = pytest.importorskip("av")
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=Fraction(rate))
        stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
        for i in range(frames):
            pixels = np.full((size[1], size[0], 3), i * 10, dtype=np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels)))
        container.mux(stream.encode())
    return buffer.getvalue()


def rows(folder, table="media_metadata", columns="*"):
    with sqlite3.connect(folder / ".nv-meta" / "index.sqlite") as database:
        return sorted(database.execute(f"SELECT {columns} FROM {table}").fetchall())


def known(folder):
    return {key: (kind, json.loads(text)) for key, kind, text in rows(folder)}


def files():
    return {
        0: [("000.png", image()), ("000.txt", b"text"), ("001.jpg", image("JPEG", (16, 8)))],
        1: [("002.meta.png", image(mode="L")), ("003.wav", sound()), ("004.mp4", video())],
    }


@pytest.fixture
def shards(tmp_path):
    folder = tmp_path / "ds"
    for number, members in files().items():
        write_tar(folder / f"{number}.tar", members)
    prepare(folder, split_ratios={"train": 1}, sqlite=True, workers=1)
    return folder


@pytest.fixture
def plain(tmp_path):
    folder = tmp_path / "plain"
    for members in files().values():
        for name, data in members:
            path = folder / "sub" / name if name.endswith("png") else folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    return folder


IMAGES = {
    "000.png": ("image", {"width": 8, "height": 4, "format": "PNG", "mode": "RGB"}),
    "001.jpg": ("image", {"width": 16, "height": 8, "format": "JPEG", "mode": "RGB"}),
    "002.meta.png": ("image", {"width": 8, "height": 4, "format": "PNG", "mode": "L"}),
}


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("by", ["extension", "header", "*.png,*.jpg,*.wav,*.mp4"])
def test_shards(shards, by, workers):
    samples = rows(shards, "samples"), rows(shards, "sample_parts")
    progress = []
    report = prepare_media(shards, by, workers=workers, on_progress=lambda *n: progress.append(n))
    assert (report.count, report.damaged) == (5, ())
    assert progress == [(0, 2), (1, 2), (2, 2)]
    assert (rows(shards, "samples"), rows(shards, "sample_parts")) == samples
    found = known(shards)
    assert {key: found[key] for key in IMAGES} == IMAGES
    assert found["003.wav"][1]["audio_sample_rate"] == 8000
    assert found["003.wav"][1]["audio_num_samples"] == 4000
    assert found["004.mp4"][1]["video_num_frames"] == 12
    (stored,) = rows(shards, "media_filters", "filter_id, strategy, patterns")
    patterns = by if "*" in by else ""
    assert stored == (1, "GLOB" if patterns else by.upper(), patterns)
    store = DecodeFileStore(WebdatasetFileStore(shards), decoder=SampleDecoder())
    assert store.get_media_metadata("001.jpg") == ImageMetadata(
        width=16, height=8, format="JPEG", mode="RGB"
    )
    assert isinstance(store.get_media_metadata("004.mp4"), AVMetadata)
    with pytest.raises(DataError, match=r"no media metadata of '000\.txt'"):
        store.get_media_metadata("000.txt")


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("by", ["extension", "header", "*.png,*.jpg,*.wav,*.mp4"])
def test_plain_folders(plain, by, workers):
    (plain / ".hidden.png").write_bytes(b"bad")
    assert prepare_media(plain, by, workers=workers).count == 5
    assert set(known(plain)) == {
        "sub/000.png",
        "sub/002.meta.png",
        "001.jpg",
        "003.wav",
        "004.mp4",
    }
    store = SystemFileStore(plain)
    assert store.get_media_metadata("sub/000.png").width == 8
    assert store.get_media_metadata("003.wav").audio_channels == 2


def test_only_what_a_pattern_names(shards):
    assert prepare_media(shards, "*.PNG").count == 2
    assert set(known(shards)) == {"000.png", "002.meta.png"}
    assert prepare_media(shards, "001*").count == 1
    assert set(known(shards)) == set(IMAGES)
    assert [each[1] for each in rows(shards, "media_filters", "filter_id, patterns")] == [
        "*.PNG",
        "001*",
    ]
    prepare_media(shards, "001*")
    assert len(rows(shards, "media_filters")) == 2


def test_a_folder_prepared_without_the_database_gets_one(shards):
    (shards / ".nv-meta" / "index.sqlite").unlink()
    assert prepare_media(shards, "extension", workers=1).count == 5
    assert WebdatasetFileStore(shards).get("000.txt") == b"text"


@pytest.mark.parametrize("workers", [1, 2])
def test_damaged_media_are_reported_with_shard_and_key(tmp_path, workers):
    folder = tmp_path / "ds"
    cut = image("JPEG", (64, 64))
    write_tar(folder / "0.tar", [("a.png", image()), ("b.jpg", cut[: len(cut) // 2])])
    write_tar(folder / "1.tar", [("c.png", b"no image"), ("d.mp4", video()[:40]), ("e.wav", b"x")])
    prepare(folder, split_ratios={"train": 1}, sqlite=True, workers=1)
    report = prepare_media(folder, workers=workers)
    assert report.count == 1
    assert set(known(folder)) == {"a.png"}
    places = [("0.tar", "b"), ("1.tar", "c"), ("1.tar", "d"), ("1.tar", "e")]
    for (shard, key), line in zip(places, report.damaged, strict=True):
        assert line.startswith(f"{folder / shard}, sample {key!r}: ")


def test_damaged_files_are_reported(plain):
    prepare_media(plain)
    (plain / "sub" / "000.png").write_bytes(b"no image")
    report = prepare_media(plain)
    assert report.count == 4
    assert len(report.damaged) == 1
    assert "000.png" in report.damaged[0]
    assert "sub/000.png" not in known(plain)
    with pytest.raises(PrepareError, match=r"1 files are damaged, the metadata of the other 4"):
        prepare_filesystem_dataset(plain, MediaFilterConfig(MediaFilterStrategy.EXTENSION))


def test_links_that_lead_out_of_a_folder_are_not_followed(plain, tmp_path):
    (tmp_path / "secret.png").write_bytes(image())
    (plain / "link.png").symlink_to(tmp_path / "secret.png")
    (plain / "pipe.png").unlink(missing_ok=True)
    os.mkfifo(plain / "pipe.png")
    report = prepare_media(plain, workers=2)
    assert report.count == 5
    assert ["leads out of" in each or "no regular file" in each for each in report.damaged] == [
        True,
        True,
    ]


def test_nothing_to_collect(tmp_path, shards):
    before = contents(shards)
    with pytest.raises(PrepareError, match=r"no files that are images.*by GLOB, \*\.tga"):
        prepare_media(shards, "*.tga")
    assert contents(shards) == before
    with pytest.raises(DatasetNotFoundError):
        prepare_media(tmp_path / "none")
    for by in ("", ","):
        with pytest.raises(ConfigError):
            prepare_media(shards, by)
    with pytest.raises(ConfigError, match="workers"):
        prepare_media(shards, workers=0)


def test_shards_that_are_not_prepared(tmp_path):
    write_tar(tmp_path / "ds" / "0.tar", files()[0])
    with pytest.raises(PrepareError, match=f"energize prepare {tmp_path / 'ds'}"):
        prepare_media(tmp_path / "ds")


def test_stores_without_metadata_say_the_command(shards, plain):
    for store in (WebdatasetFileStore(shards), SystemFileStore(plain)):
        with pytest.raises(NotPreparedError, match="energize prepare-media"):
            store.get_media_metadata("000.png")


@pytest.mark.parametrize("damage", ["cut", "missing"])
def test_damaged_shards_leave_everything_as_it_was(shards, damage):
    path = shards / "1.tar"
    data = path.read_bytes()
    path.unlink() if damage == "missing" else path.write_bytes(data[:700])
    before = contents(shards)
    with pytest.raises(PrepareError, match=r"1\.tar"):
        prepare_media(shards, workers=2)
    assert contents(shards) == before


def test_a_killed_process_is_an_error_and_no_hang(shards, monkeypatch):
    def kill(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr("energize.data.media.image_metadata", kill)
    before = contents(shards)
    with pytest.raises(PrepareError, match=r"\.tar was killed"):
        prepare_media(shards, workers=2)
    assert contents(shards) == before


def test_a_temporary_folder_may_be_given(shards, tmp_path):
    (tmp_path / "tmp").mkdir()
    assert prepare_media(shards, tmp_path=tmp_path / "tmp").count == 5
    assert list((tmp_path / "tmp").iterdir()) == []
    assert not list((shards / ".nv-meta").glob("*.tmp"))


def test_a_temporary_file_may_be_given_as_in_energon(shards, tmp_path):
    (tmp_path / "tmp").mkdir()
    count = BaseWebdatasetFactory.add_media_metadata(
        shards,
        media_filter=MediaFilterConfig.parse(extension=True),
        index_sqlite_tmp_path=tmp_path / "tmp" / "index.sqlite",
    )
    assert count == 5
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_reader_goes_on_with_what_it_opened(shards):
    store = WebdatasetFileStore(shards)
    assert store.get("000.txt") == b"text"
    prepare_media(shards)
    assert store.get("000.txt") == b"text"


PEER = """
import json, sys
from pathlib import Path
from megatron.energon.cache import SystemFileStore
shards, plain = sys.argv[1:]
from megatron.energon.epathlib import EPath
from megatron.energon.cache.file_store import WebdatasetFileStore
for store, keys in (
    (WebdatasetFileStore(EPath(shards)), ["000.png", "001.jpg", "003.wav", "004.mp4"]),
    (SystemFileStore(plain), ["sub/000.png", "003.wav"]),
):
    print("found", json.dumps([store.get_media_metadata(key).to_dict() for key in keys]))
"""


@pytest.mark.energon
def test_energon_writes_and_reads_the_same(shards, plain, tmp_path):
    """The same tables, row for row, of shards and of a plain folder, written by either.

    But for videos and sounds, which it leaves out without a word where it has no PyAV.
    """
    copies = []
    for folder in (shards, plain):
        copy = tmp_path / f"{folder.name}-theirs"
        shutil.copytree(folder, copy)
        copies.append(copy)
        option = "--media-metadata-by-extension"
        run_energon("prepare-media", "--no-progress", "--num-workers", "1", option, str(copy))
        prepare_media(folder)
        for table, columns in (
            ("media_filters", "filter_id, strategy, patterns"),
            ("sqlite_master", "type, name"),
        ):
            assert rows(folder, table, columns) == rows(copy, table, columns), table
        ours, theirs = ([row for row in rows(each) if row[1] == "image"] for each in (folder, copy))
        assert ours == theirs
        assert len(ours) == 3
    printed = run_energon(str(shards), str(plain), program=PEER).splitlines()
    found = [json.loads(line[6:]) for line in printed if line.startswith("found ")]
    assert found == [
        [known(shards)[key][1] for key in ("000.png", "001.jpg", "003.wav", "004.mp4")],
        [known(plain)[key][1] for key in ("sub/000.png", "003.wav")],
    ]
    for copy in copies:
        store = WebdatasetFileStore(copy) if copy.name.startswith("ds") else SystemFileStore(copy)
        assert store.get_media_metadata("001.jpg").width == 16
