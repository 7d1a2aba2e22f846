"""What preparing finds below a folder, and what it says of what it cannot look into."""

import os

import pytest

from energize.errors import DatasetNotFoundError, PrepareError
from energize.preparation import prepare
from tests.support.tars import samples, unprepared, write_tar

ALL = {"train": 1}


@pytest.fixture
def folder(tmp_path):
    return unprepared(tmp_path / "ds")


def prepared(folder, **options):
    return prepare(folder, split_ratios=ALL, workers=1, **options)


def refused(folder, kind=PrepareError, **options):
    """What is said of a folder that cannot be prepared, to which nothing is written."""
    with pytest.raises(kind) as caught:
        prepared(folder, **options)
    assert not list(folder.rglob("*.idx"))
    assert not (folder / ".nv-meta").exists()
    return str(caught.value)


def test_wrong_names_of_shards(folder):
    (folder / "shut.tar").symlink_to("/nowhere")
    for shards, told in (
        ([], "no shard is named"),
        (["parts/d0.tar", "parts/d{0..1}.tar"], "d0.tar is named twice"),
        (["../ds/parts/d0.tar"], "not below the folder"),
        ([f"{folder}/parts/d0.tar"], "not below the folder"),
        (["a\0.tar"], "not below the folder"),
        (["shut.tar"], "shut.tar: cannot be read (No such file"),
        (["parts"], "not a regular file"),
        (["x" * 300 + ".tar"], "name too long"),
        (["parts/d7.tar", "nowhere/x.tar"], "2 of 2 shards"),
    ):
        assert told in refused(folder, shards=shards), shards
    assert "no folder" in refused(folder / "none", DatasetNotFoundError, shards=["a.tar"])


def test_compressed_shards_and_names_that_are_no_text(folder):
    for name, start in (("a.tar.gz", b"\x1f\x8b"), ("sub/a.tar.zst", b"\x28\xb5\x2f\xfd")):
        write_tar(folder / name, []).write_bytes(start + bytes(600))
        told = refused(folder)
        assert name in told
        assert "compressed" in told
        (folder / name).unlink()
    for name in (b"sh\xff.tar", b"a\nb.tar", b"a\x1b[2J.tar"):
        path = os.path.join(os.fsencode(folder), name)
        os.rename(folder / "parts" / "d0.tar", path)
        told = refused(folder)
        assert "Rename" in told, name
        assert told.isascii(), name
        os.rename(path, folder / "parts" / "d0.tar")
    (folder / "parts" / "d0.tar").rename(folder / "a\nb.tar")
    assert list(prepared(folder, exclude="^[^p]").shard_counts) == ["parts/d1.tar", "parts/d2.tar"]


def test_a_link_to_what_is_not_there_is_an_error_unless_passed_over_on_purpose(folder):
    for name in ("z.tar", "parts/d9.tar", "part7", "parts/more"):
        (folder / name).symlink_to("/nowhere/mounted")
        told = refused(folder)
        assert f"{name}: a link to '/nowhere/mounted': No such file" in told
        assert "--skip-unreadable" in told
        (folder / name).unlink()
    (folder / "z.tar").symlink_to("/nowhere")
    report = prepared(folder, skip_unreadable=True)
    assert report.samples == 9
    assert "z.tar: a link to '/nowhere'" in report.notes[0]
    assert prepared(folder, overwrite=True, exclude="^z").notes == ()


def test_other_links_and_what_is_no_file(folder, tmp_path):
    for i in range(13):
        (folder / f"z{i:02d}.tar").symlink_to("/nowhere")
    told = refused(folder)
    assert told.count("a link to '/nowhere'") == 10
    assert "and 3 more" in told
    (folder / "self").symlink_to("self")
    (folder / "self.tar").symlink_to("self.tar")
    os.mkfifo(folder / "pipe.tar")
    told = refused(folder, exclude="^z")
    assert told.count("Too many levels of symbolic links") == 2
    assert "pipe.tar: no regular file" in told
    for name in ("self", "self.tar", "pipe.tar"):
        (folder / name).unlink()
    (folder / "notes.txt").symlink_to("/nowhere")
    (folder / "parts" / "up").symlink_to("..")
    (folder / "again").symlink_to("parts")
    write_tar(tmp_path / "other" / "x.tar", samples(9, 2))
    (folder / "links").symlink_to(tmp_path / "other")
    report = prepared(folder, exclude="^z")
    assert list(report.shard_counts) == ["links/x.tar", *(f"parts/d{i}.tar" for i in range(3))]
    assert sorted(report.notes) == [
        "again is a link to parts, and is not followed",
        "notes.txt is passed over: a link to '/nowhere': No such file or directory",
        "parts/up is a link to ., and is not followed",
    ]
