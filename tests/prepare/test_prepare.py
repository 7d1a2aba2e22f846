"""Preparing folders: what is written, and that nothing is when something is wrong."""

import json
import os
import signal
import sqlite3
import struct
import subprocess
import sys
import tarfile
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from energize.data.nv_meta import read_dataset_yaml, read_info, read_splits
from energize.data.webdataset import WebdatasetSource
from energize.errors import ConfigError, DatasetNotFoundError, PrepareError
from energize.preparation import prepare
from energize.preparation.media import prepare_media
from energize.preparation.parallel import map_in_order
from energize.preparation.splitting import split
from tests.support.shards import offsets
from tests.support.tars import contents, samples, unprepared, write_tar

RATIOS = {"train": 2, "val": 1}

GIF = b"GIF89a\1\0\1\0\x80\0\0\0\0\0\xff\xff\xff,\0\0\0\0\1\0\1\0\0\2\2D\1\0;"
"""An image of one pixel."""


@pytest.fixture
def folder(tmp_path):
    return unprepared(tmp_path / "ds")


def refused(folder, **options):
    """The message of the error, after which the folder is as it was before."""
    before = contents(folder)
    names = sorted(folder.rglob("*"))
    with pytest.raises(PrepareError) as error:
        prepare(folder, **({"split_ratios": RATIOS} | options))
    assert contents(folder) == before
    assert sorted(folder.rglob("*")) == names
    return str(error.value)


@pytest.mark.parametrize("workers", [1, 3])
def test_index_and_metadata(folder, workers):
    report = prepare(folder, split_ratios=RATIOS, sample_type="CaptioningSample", workers=workers)
    for name, count in {"parts/d0.tar": 3, "parts/d1.tar": 2, "parts/d2.tar": 4}.items():
        index = (folder / f"{name}.idx").read_bytes()
        expected = offsets((folder / name).read_bytes())
        assert list(struct.unpack(f"<{count + 1}Q", index)) == expected
        assert report.shard_counts[name] == count
    assert read_info(folder).shard_counts == report.shard_counts
    assert read_splits(folder).parts == {
        "train": ("parts/d0.tar", "parts/d1.tar"),
        "val": ("parts/d2.tar",),
    }
    assert read_dataset_yaml(folder).field_map == {"image": "jpg", "caption": "txt"}
    assert report.samples == 9
    assert report.parts == {"jpg": 9, "txt": 9}
    assert report.notes == ()
    assert not [name for name in contents(folder) if name.endswith(".tmp")]


def test_what_is_prepared_is_read(folder):
    prepare(folder, split_ratios=RATIOS)
    source = WebdatasetSource(folder, split_part="train")
    assert [source[k]["txt"] for k in range(len(source))] == [
        b"txt 0 0", b"txt 0 1", b"txt 0 2", b"txt 1 0", b"txt 1 1",
    ]  # fmt: skip


def test_progress_is_reported_per_shard(folder):
    seen = []
    prepare(folder, split_ratios=RATIOS, on_progress=lambda *counts: seen.append(counts))
    assert seen == [(0, 3), (1, 3), (2, 3), (3, 3)]


def test_shards_are_found_in_the_order_of_energon(tmp_path):
    for name in ("d10.tar", "d2.tar", "a-1/x.tar", "a/x.tar", ".hidden/y.tar", "note.txt"):
        write_tar(tmp_path / name, samples(len(name) * 7 + ord(name[1]), 1))
    report = prepare(tmp_path, split_ratios={"train": 1})
    assert list(report.shard_counts) == ["a/x.tar", "a-1/x.tar", "d10.tar", "d2.tar"]


def test_exclude_leaves_shards_out(folder):
    report = prepare(folder, split_ratios={"train": 1}, exclude=r"d[01]\.tar")
    assert list(report.shard_counts) == ["parts/d2.tar"]
    assert not (folder / "parts/d0.tar.idx").exists()


@pytest.mark.parametrize("name", ["a.tar.gz", "a.tgz", "sub/a.tar.zst"])
def test_compressed_shards_are_named(folder, name):
    write_tar(folder / name, [])
    told = refused(folder)
    assert name in told
    assert "compressed" in told


def damage_cut(path):
    path.write_bytes(path.read_bytes()[:-10300])


def damage_empty_file(path):
    path.write_bytes(b"")


def damage_no_samples(path):
    write_tar(path, [("README", b"no dot, no sample")])


def damage_garbage(path):
    path.write_bytes(b"garbage" * 1000)


def damage_gzip(path):
    path.write_bytes(b"\x1f\x8b\x08" + bytes(600))


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    "damage",
    [damage_cut, damage_empty_file, damage_no_samples, damage_garbage, damage_gzip],
)
def test_a_damaged_shard_is_named_and_nothing_is_written(folder, damage, workers):
    damage(folder / "parts/d1.tar")
    told = refused(folder, workers=workers, sqlite=True)
    assert "parts/d1.tar" in told
    assert "parts/d0.tar" not in told


def test_all_damaged_shards_are_named(folder):
    damage_cut(folder / "parts/d0.tar")
    damage_garbage(folder / "parts/d2.tar")
    told = refused(folder)
    assert "2 of 3 shards" in told
    assert "parts/d0.tar" in told
    assert "parts/d2.tar" in told


def test_keys_must_be_unique(folder):
    write_tar(folder / "parts/d7.tar", samples(0, 2))
    told = refused(folder, sqlite=True)
    assert "2 sample keys" in told
    assert "00000001: in parts/d0.tar, parts/d7.tar" in told


def test_members_of_a_sample_must_be_neighbours(tmp_path):
    write_tar(tmp_path / "a.tar", [("x.jpg", b"1"), ("y.jpg", b"2"), ("x.txt", b"3")])
    told = refused(tmp_path, split_ratios={"train": 1})
    assert "x: 2 times in a.tar" in told


def test_a_prepared_folder_is_prepared_again_only_when_asked(folder):
    prepare(folder, split_ratios=RATIOS, sqlite=True)
    assert "overwrite" in refused(folder)
    (folder / "parts/d0.tar").unlink()
    report = prepare(folder, split_ratios={"train": 1}, overwrite=True)
    assert read_info(folder).shard_counts == report.shard_counts
    assert list(report.shard_counts) == ["parts/d1.tar", "parts/d2.tar"]
    # A database of the shards before would be wrong now.
    assert not (folder / ".nv-meta/index.sqlite").exists()


def test_a_failed_second_run_leaves_the_first(folder):
    prepare(folder, split_ratios=RATIOS)
    damage_cut(folder / "parts/d1.tar")
    assert "d1.tar" in refused(folder, overwrite=True)


def test_the_index_alone_is_written_again(folder):
    prepare(folder, split_ratios=RATIOS, sqlite=True)
    before = contents(folder)
    (folder / "parts/d1.tar.idx").write_bytes(b"")
    prepare(folder, tar_index_only=True)
    after = contents(folder)
    changed = {name for name in after if after[name] != before[name]}
    assert changed <= {".nv-meta/index.uuid", ".nv-meta/index.sqlite"}
    write_tar(folder / "parts/d1.tar", samples(1, 7))
    assert "has 7 samples" in refused(folder, tar_index_only=True)


def test_sqlite(folder):
    prepare(folder, split_ratios=RATIOS, sqlite=True, workers=2)
    database = sqlite3.connect(folder / ".nv-meta/index.sqlite")
    tar = (folder / "parts/d1.tar").read_bytes()
    rows = database.execute(
        "SELECT * FROM samples JOIN sample_parts USING (tar_file_id, sample_index) "
        "WHERE sample_key = '00100001' ORDER BY content_byte_offset"
    ).fetchall()
    database.close()
    assert [row[:5] + row[5:6] for row in rows] == [
        (1, "00100001", 1, 2048, 2048, part) for part in ("jpg", "txt")
    ]
    assert [tar[at : at + size] for *_, at, size in rows] == [b"jpg 1 1", b"txt 1 1"]
    assert len((folder / ".nv-meta/index.uuid").read_text()) == 36


@given(
    st.integers(1, 60),
    st.lists(st.integers(0, 9), min_size=1, max_size=4).filter(any),
    st.none() | st.integers(0, 3),
)
def test_ratios_share_every_shard_out_once(count, ratios, seed):
    names = [f"{i}.tar" for i in range(count)]
    given_ratios = {str(i): ratio / 10 for i, ratio in enumerate(ratios)}
    try:
        parts = split(names, given_ratios, None, seed)
    except PrepareError:
        assert count < sum(ratios)
        return
    assert sorted(name for part in parts.values() for name in part) == sorted(names)
    for i, ratio in enumerate(ratios):
        assert abs(len(parts[str(i)]) - count * ratio / sum(ratios)) < 1


def test_the_last_shard_is_not_lost_to_rounding():
    names = [f"{i}.tar" for i in range(10)]
    parts = split(names, {"train": 7, "val": 2, "test": 1}, None)
    assert [len(part) for part in parts.values()] == [7, 2, 1]


def test_a_split_without_shards_is_an_error_unless_asked_for(folder):
    told = refused(folder, split_ratios={"train": 8, "val": 1, "test": 1})
    assert "3 shards" in told
    assert "left for val" in told
    prepare(folder, split_ratios={"train": 1, "val": 0})
    assert read_splits(folder).parts["val"] == ()


def test_patterns(folder):
    report = prepare(
        folder, split_patterns={"train": [r"parts/d\d\.tar"], "val": ["parts/d{1..2}.tar"]}
    )
    assert report.splits["val"] == ("parts/d1.tar", "parts/d2.tar")
    assert len(report.splits["train"]) == 3
    assert "share samples" in report.notes[0]
    told = refused(
        folder, split_patterns={"train": [".*"], "val": ["d1"]}, split_ratios=None, overwrite=True
    )
    assert "'val': no shard matches d1" in told
    assert "parts/d0.tar" in told


def test_shards_in_no_split_are_noted(folder):
    report = prepare(folder, split_patterns={"train": ["parts/d0"]})
    assert "2 shards in no split" in report.notes[0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "split_ratios"),
        ({"split_ratios": RATIOS, "split_patterns": {"train": ["a"]}}, "both"),
        ({"split_ratios": {"train": -1}}, "-1"),
        ({"split_ratios": {"train": float("nan")}}, "nan"),
        ({"split_ratios": {"train": 0}}, "above 0"),
        ({"split_patterns": {"train": ["("]}}, "'('"),
        ({"split_patterns": {"train": ["a{"]}}, "'a{'"),
        ({"exclude": "[", "split_ratios": RATIOS}, "'['"),
        ({"workers": 0}, "workers"),
        ({"sample_type": "CaptionSample"}, "did you mean 'CaptioningSample'"),
        ({"field_map": {"image": "jpg"}}, "sample_type"),
        (
            {"sample_type": "CaptioningSample", "field_map": {"image": "jpg", "captoin": "txt"}},
            "did you mean 'caption'",
        ),
        ({"sample_type": "CaptioningSample", "field_map": {"image": "jpg"}}, "caption"),
        ({"sample_type": "TextSample", "field_map": {"text": "json["}}, "'json['"),
    ],
)
def test_wrong_parameters(folder, options, words):
    before = contents(folder)
    with pytest.raises(ConfigError) as error:
        prepare(folder, **options)
    assert words in str(error.value)
    assert contents(folder) == before


def test_wrong_folders(tmp_path):
    with pytest.raises(DatasetNotFoundError, match="nowhere"):
        prepare(tmp_path / "nowhere", split_ratios=RATIOS)
    assert "no *.tar files" in refused(tmp_path)
    (tmp_path / "a.tar").touch()
    with pytest.raises(PrepareError, match="is a file"):
        prepare(tmp_path / "a.tar", split_ratios=RATIOS)


def test_a_field_needs_a_part(folder):
    told = refused(
        folder, sample_type="CaptioningSample", field_map={"image": "png,jpeg", "caption": "txt"}
    )
    assert "'image' is to come from 'png,jpeg'" in told
    assert "jpg, txt" in told
    assert "'context' of a VQASample" in refused(folder, sample_type="VQASample")


def test_fields_of_json_are_proposed_where_it_has_such_a_key(tmp_path):
    files = [
        ("0.png", b"image"),
        ("0.json", json.dumps({"question": "why?", "answers": ["so"], "x": 1}).encode()),
    ]
    write_tar(tmp_path / "a.tar", files)
    report = prepare(tmp_path, split_ratios={"train": 1}, sample_type="VQASample")
    assert report.config.field_map == {
        "image": "png",
        "context": "json[question]",
        "answers": "json[answers]",
    }


def test_samples_without_a_part_that_is_needed_are_noted(tmp_path):
    write_tar(tmp_path / "a.tar", [*samples(0, 3), *samples(1, 2, parts=("jpg",))])
    report = prepare(tmp_path, split_ratios={"train": 1}, sample_type="CaptioningSample")
    assert "2 of 5 samples have no part for the field 'caption'" in report.notes[0]


def test_files_are_readable_by_those_who_read_the_shards(folder):
    for shard in folder.rglob("*.tar"):
        shard.chmod(0o664)
    prepare(folder, split_ratios=RATIOS)
    for name in (".nv-meta/.info.json", "parts/d0.tar.idx"):
        assert (folder / name).stat().st_mode & 0o777 == 0o664


def test_a_file_in_place_of_the_folder(folder):
    (folder / ".nv-meta").touch()
    told = refused(folder)
    assert str(folder / ".nv-meta") in told
    assert "cannot be written" in told


def run_prepare(folder, setup="", options=""):
    script = (
        "import resource, signal\nfrom energize.preparation import prepare\n"
        f"{setup}\nprepare({str(folder)!r}, split_ratios={{'train': 1}}{options})\n"
    )
    return subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("options", [", workers=2", ", workers=2, sqlite=True"])
def test_a_full_disk(tmp_path, options):
    folder = unprepared(tmp_path / "ds", counts=(200, 200, 200))
    before = contents(folder)
    # A limit on file sizes makes writing fail as a full disk does.
    limit = 1000 if "sqlite" not in options else 20000
    process = run_prepare(
        folder, f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))", options
    )
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "PrepareError" in errors
    assert "cannot be written" in errors
    assert contents(folder) == before


@pytest.mark.parametrize("workers", [1, 3])
def test_killed_in_the_middle(tmp_path, workers):
    folder = unprepared(tmp_path / "ds", counts=(1500,) * 12)
    process = run_prepare(folder, options=f", workers={workers}")
    deadline = time.monotonic() + 60
    while not list(folder.rglob("*.tar.idx.*.tmp")) and time.monotonic() < deadline:
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    left = [name for name in contents(folder) if not name.endswith((".tar", ".tmp"))]
    assert left == []
    report = prepare_when_free(folder)
    assert report.samples == 18000
    assert not list(folder.rglob("*.tmp"))


def prepare_when_free(folder):
    """Workers of a killed process finish the shard they are at, and hold the folder until then."""
    deadline = time.monotonic() + 30
    while True:
        try:
            return prepare(folder, split_ratios={"train": 1}, workers=2)
        except PrepareError as reason:
            if "another process" not in str(reason) or time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def test_two_processes_do_not_prepare_one_folder(folder):
    def prepare_inside(done, total):
        if done == 1:
            with pytest.raises(PrepareError, match="another process"):
                prepare(folder, split_ratios=RATIOS, overwrite=True)

    prepare(folder, split_ratios=RATIOS, on_progress=prepare_inside)
    assert (folder / ".nv-meta/.info.json").exists()


def name_and_process(name):
    if name == "bad":
        raise ValueError(name)
    if name == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    return name, os.getpid()


def test_processes_share_names_and_keep_their_order():
    names = [f"n{i}" for i in range(20)]
    results = list(map_in_order(name_and_process, names, 3))
    assert [name for name, _ in results] == names
    assert len({process for _, process in results} - {os.getpid()}) == 3


def test_exceptions_come_as_results():
    results = list(map_in_order(name_and_process, ["a", "bad", "c"], 2))
    assert str(results[1]) == "bad"
    assert results[2][0] == "c"


def test_a_killed_worker_is_an_error_that_names_the_shard():
    results = map_in_order(name_and_process, ["a", "b", "c", "dies", "e"], 2)
    assert [next(results)[0] for _ in range(3)] == ["a", "b", "c"]
    with pytest.raises(PrepareError, match="dies"):
        next(results)


@pytest.mark.parametrize("kind", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_and_nested_names(tmp_path, kind):
    files = [
        (f"{'long' * 40}/dir.with.dots/{i:03d}.{part}", f"{i}{part}".encode())
        for i in range(4)
        for part in ("jpg", "seg.txt")
    ]
    write_tar(tmp_path / "a.tar", [("__meta__/x.json", b"{}"), *files], kind)
    prepare(tmp_path, split_ratios={"train": 1})
    entries = offsets((tmp_path / "a.tar").read_bytes())
    assert (tmp_path / "a.tar.idx").read_bytes() == struct.pack("<5Q", *entries)
    source = WebdatasetSource(tmp_path)
    assert [source[k]["seg.txt"] for k in range(4)] == [
        b"0seg.txt",
        b"1seg.txt",
        b"2seg.txt",
        b"3seg.txt",
    ]


@pytest.mark.parametrize("name", ["/etc/passwd.txt", "../up.txt", "a/../../b.txt"])
def test_members_that_lead_out_of_any_folder(folder, name):
    write_tar(folder / "parts" / "d1.tar", [("good.txt", b"x"), (name, b"y")])
    message = refused(folder)
    assert f"d1.tar: the member {name!r} has a name that is absolute or has '..'" in message


def test_media_metadata_that_go_with_the_index_are_told_of(folder):
    prepare(folder, split_ratios=RATIOS, sqlite=True)
    (folder / "parts" / "d0.tar").unlink()
    write_tar(folder / "parts" / "d0.tar", [("a.gif", GIF), ("b.gif", GIF), ("c.gif", GIF)])
    assert prepare(folder, tar_index_only=True, sqlite=True).notes == ()
    prepare_media(folder, "*.gif")
    for options in ({"tar_index_only": True}, {"split_ratios": RATIOS, "overwrite": True}):
        report = prepare(folder, sqlite=True, **options)
        assert f"energize prepare-media {folder}" in report.notes[-1]
        prepare_media(folder, "*.gif")
