"""What preparing finds below a folder, and what it says of what it cannot look into."""

import os

import pytest

from energize.errors import DatasetNotFoundError, PrepareError
from energize.preparation import prepare
from tests.support.tars import samples, unprepared, write_tar


@pytest.fixture
def folder(tmp_path):
    return unprepared(tmp_path / "ds")


def prepared(folder, **options):
    return prepare(folder, split_ratios={"train": 1}, workers=1, **options)


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
        (["shut.tar"], "shut.tar: cannot be read (No such file"),
        (["parts"], "not a regular file"),
        (["parts/d7.tar", "nowhere/x.tar"], "2 of 2 shards"),
    ):
        assert told in refused(folder, shards=shards), shards
    assert "no folder" in refused(
        folder / "none", DatasetNotFoundError, shards=["a.tar"]
    )


def test_compressed_shards_and_names_that_are_no_text(folder):
    for name, start in (
        ("a.tar.gz", b"\x1f\x8b"),
        ("sub/a.tar.zst", b"\x28\xb5\x2f\xfd"),
    ):
        write_tar(folder / name, []).write_bytes(start + bytes(600))
        told = refused(folder)
        assert f"{name}: " in told
        assert "compressed" in told, name
        (folder / name).unlink()
    for name in (b"sh\xff.tar", b"a\nb.tar"):
        path = os.path.join(os.fsencode(folder), name)
        os.rename(folder / "parts" / "d0.tar", path)
        assert "Rename" in refused(folder), name
        os.rename(path, folder / "parts" / "d0.tar")
    (folder / "parts" / "d0.tar").rename(folder / "a\nb.tar")
    assert list(prepared(folder, exclude="^[^p]").shard_counts) == [
        "parts/d1.tar",
        "parts/d2.tar",
    ]


def test_what_cannot_be_looked_into_is_an_error_unless_excluded(folder):
    for name in (
        "parts/d9.tar",
        "part7",
        "parts/more",
    ):  # these two may have been folders
        (folder / name).symlink_to("/nowhere/mounted")
        assert f"{name}: a link to '/nowhere/mounted': No such file" in refused(folder)
        (folder / name).unlink()
    for i in range(13):
        (folder / f"z{i:02d}.tar").symlink_to("/nowhere")
    told = refused(folder)
    assert told.count("a link to '/nowhere'") == 10
    assert "and 3 more" in told
    (folder / "self").symlink_to("self")
    os.mkfifo(folder / "pipe.tar")
    told = refused(folder, exclude="^z")
    assert "Too many levels of symbolic links" in told
    assert "pipe.tar: no regular file" in told
    assert prepared(folder, exclude="^[zs]|pipe").samples == 9


def test_links_are_followed_once(folder, tmp_path):
    (folder / "notes.txt").symlink_to("/nowhere")
    (folder / "parts" / "up").symlink_to("..")
    (folder / "again").symlink_to("parts")
    write_tar(folder / ".hidden" / "x.tar", samples(8, 2))
    write_tar(tmp_path / "other" / "x.tar", samples(9, 2))
    (folder / "parts-more").symlink_to(tmp_path / "other")
    report = prepared(folder)
    # Energon's order compares folder by folder, not letter by letter.
    assert list(report.shard_counts) == [
        *(f"parts/d{i}.tar" for i in range(3)),
        "parts-more/x.tar",
    ]
    assert sorted(report.notes) == [
        "again is a link to parts, and is not followed",
        "parts/up is a link to ., and is not followed",
    ]
