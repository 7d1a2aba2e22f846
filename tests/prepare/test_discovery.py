"""What preparing finds below a folder, and what it says of what it cannot look into."""

import gc
import os
import resource
import tarfile

import pytest

from energize.data.nv_meta import is_prepared, read_info
from energize.errors import DatasetNotFoundError, PrepareError
from energize.preparation import prepare
from energize.preparation.parallel import default_workers
from tests.cli.commands import run
from tests.support.apart import apart
from tests.support.tars import contents, samples, unprepared, write_tar

ALL = {"train": 1}


@pytest.fixture
def folder(tmp_path):
    return unprepared(tmp_path / "ds")


def refused(folder, **options):
    """What is said of a folder that cannot be prepared, to which nothing is written."""
    before = contents(folder)
    with pytest.raises(PrepareError) as caught:
        prepare(folder, split_ratios=ALL, workers=1, **options)
    assert contents(folder) == before
    return str(caught.value)


def prepared(folder, **options):
    return prepare(folder, split_ratios=ALL, workers=1, **options)


@pytest.mark.parametrize("name", ["z.tar", "parts/d9.tar", "part7", "parts/more"])
def test_a_link_to_what_is_not_there_is_an_error_unless_passed_over_on_purpose(folder, name):
    (folder / name).symlink_to("/nowhere/mounted")
    told = refused(folder)
    assert f"{name}: a link to '/nowhere/mounted': No such file" in told
    assert "--skip-unreadable" in told
    report = prepared(folder, skip_unreadable=True)
    assert report.samples == 9
    assert f"{name}: a link to '/nowhere/mounted'" in report.notes[0]
    assert prepared(folder, overwrite=True, exclude=f"^{name}").notes == ()


def test_ten_of_many_are_listed(folder):
    for i in range(13):
        (folder / f"z{i:02d}.tar").symlink_to("/nowhere")
    told = refused(folder)
    assert told.count("a link to '/nowhere'") == 10
    assert "and 3 more" in told


def test_a_link_that_leads_to_no_shards_is_noted(folder):
    (folder / "notes.txt").symlink_to("/nowhere")
    [note] = prepared(folder).notes
    assert note.startswith("notes.txt is passed over: a link to '/nowhere'")


def test_the_command_goes_on_when_it_is_told_to(folder):
    (folder / "z.tar").symlink_to("/nowhere")
    options = ["prepare", folder, "--split-ratio", "1,0,0", "--skip-dataset-yaml"]
    assert "z.tar: a link to" in run(*options, "--non-interactive", code=1)
    assert not is_prepared(folder)
    assert "z.tar: a link to" in run(*options, "--non-interactive", "--skip-unreadable")
    assert is_prepared(folder)


def test_folders_are_looked_into_once_by_their_own_names(folder):
    (folder / "parts" / "up").symlink_to("..")
    (folder / "again").symlink_to("parts")
    report = prepared(folder)
    assert list(report.shard_counts) == ["parts/d0.tar", "parts/d1.tar", "parts/d2.tar"]
    assert len(report.notes) == 2
    assert "again is a link to parts" in report.notes[0]
    assert "parts/up is a link to the folder itself" in report.notes[1]


def test_a_link_to_another_folder_is_followed(folder, tmp_path):
    write_tar(tmp_path / "other" / "x.tar", samples(9, 2))
    (folder / "links").symlink_to(tmp_path / "other")
    assert "links/x.tar" in prepared(folder).shard_counts


def test_links_to_themselves_and_pipes(folder):
    (folder / "self").symlink_to("self")
    (folder / "self.tar").symlink_to("self.tar")
    os.mkfifo(folder / "pipe.tar")
    told = refused_without_reading(folder)
    assert "self: Too many levels of symbolic links" in told
    assert "self.tar: Too many levels of symbolic links" in told
    assert "pipe.tar: no regular file" in told


def refused_without_reading(folder):
    with pytest.raises(PrepareError) as caught:
        prepared(folder)
    assert not (folder / ".nv-meta").exists()
    return str(caught.value)


@pytest.mark.parametrize("name", [b"sh\xff.tar", b"a\nb.tar", b"a\x1b[2J.tar"])
def test_names_that_are_no_text_are_errors_before_anything_is_written(folder, name):
    os.rename(folder / "parts" / "d0.tar", os.path.join(os.fsencode(folder), name))
    told = refused_without_reading(folder)
    assert "Rename" in told
    assert "1 shards" in told
    assert told.isascii()
    shown = prepared(folder, exclude="^[^p]").shard_counts
    assert list(shown) == ["parts/d1.tar", "parts/d2.tar"]


@pytest.mark.parametrize("sqlite", [False, True])
@pytest.mark.parametrize("member", ["a\udcff.txt", "a.t\udcffxt"])
def test_members_whose_names_are_no_text(folder, member, sqlite):
    write_tar(folder / "parts" / "d1.tar", [(member, b"x")], tarfile.GNU_FORMAT)
    told = refused(folder, sqlite=sqlite)
    assert "d1.tar: sample " in told
    assert "no UTF-8" in told


def test_paths_that_are_none(folder):
    for path in ("a\0b", folder / "no"):
        with pytest.raises(DatasetNotFoundError, match="does not exist"):
            prepare(path, split_ratios=ALL)
    assert "name too long" in refused(folder, shards=["x" * 300 + ".tar"])
    with pytest.raises(DatasetNotFoundError, match=r"a\\x00\.tar does not exist"):
        prepare(folder, split_ratios=ALL, shards=["a\0.tar"])


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")
def test_what_this_user_may_not_look_into(folder):
    def as_nobody(**options):
        os.setgid(65534)
        os.setuid(65534)
        return prepared(folder, **options).notes

    write_tar(folder / "shut" / "x.tar", samples(8, 2))
    write_tar(folder / "listed" / "y.tar", samples(9, 2))
    for path in (folder, *folder.parents):
        if not path.stat().st_mode & 0o001:  # pytest's own folders are shut for others
            path.chmod(0o755)
    (folder / "parts" / "d1.tar").chmod(0)
    (folder / "shut").chmod(0)
    (folder / "listed").chmod(0o444)
    told = apart(as_nobody)
    assert "shut: Permission denied" in told
    assert "listed/y.tar: Permission denied" in told
    assert "parts/d1.tar: this user may not read it" in told
    assert "shut/x.tar: Permission denied" in apart(lambda: as_nobody(shards=["shut/x.tar"]))
    told = apart(lambda: as_nobody(skip_unreadable=True))
    assert ".nv-meta cannot be written: Permission denied; this user needs permission" in told
    (folder / "parts").chmod(0o777)
    folder.chmod(0o777)
    [note] = apart(lambda: as_nobody(skip_unreadable=True))
    assert "3 that cannot be read are left out" in note
    assert list(read_info(folder).shard_counts) == ["parts/d0.tar", "parts/d2.tar"]


def cut(path, at):
    path.write_bytes(path.read_bytes()[:at])


def test_a_shard_without_its_end_is_noted(folder):
    cut(folder / "parts" / "d2.tar", 4096)
    report = prepared(folder)
    assert report.samples == 7
    [note] = report.notes
    assert "1 of 3 shards end without an end mark, parts/d2.tar for example after 4,096" in note
    [note] = prepare(folder, tar_index_only=True, workers=1).notes
    assert "end mark" in note


@pytest.mark.parametrize("at", [4096 + 100, 4096 + 512])
def test_a_shard_that_is_cut_inside_a_member(folder, at):
    cut(folder / "parts" / "d2.tar", at)
    assert "d2.tar: " in refused(folder)


def test_what_follows_the_end_of_a_shard(folder):
    shard = folder / "parts" / "d2.tar"
    whole = shard.read_bytes()
    shard.write_bytes(whole + bytes(3 << 20) + b"x")
    assert "more data follows" in refused(folder)
    shard.write_bytes(whole + bytes(3 << 20))
    [note] = prepared(folder).notes
    assert "nothing but zeros after their end mark, parts/d2.tar for example 3,1" in note


@pytest.mark.parametrize(
    ("files", "workers", "told"),
    [
        (25, 16, "cannot be started: Too many open files. Try again with fewer processes"),
        (1, 1, "cannot be written: Too many open files; this process may not open more"),
        (2, 1, "d0.tar cannot be read: Too many open files. Nothing is wrong with it"),
    ],
    ids=["many processes", "few for one", "fewer"],
)
def test_few_open_files(tmp_path, files, workers, told):
    folder = unprepared(tmp_path / "ds", (3,) * 20)

    def with_few():
        gc.collect()  # which closes files
        held = [os.open(os.devnull, os.O_RDONLY) for _ in range(100)]
        resource.setrlimit(resource.RLIMIT_NOFILE, (held[-1] + 1,) * 2)
        for each in held[-files:]:
            os.close(each)
        return prepare(folder, split_ratios=ALL, workers=workers, sqlite=True).samples

    assert told in str(apart(with_few))
    assert all(name.endswith(".tar") for name in contents(folder))


def test_there_are_fewer_processes_where_few_files_may_be_open(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(64))

    def with_few():
        resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
        return default_workers()

    assert default_workers() == 16
    assert apart(with_few) == 4
