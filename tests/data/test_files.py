"""Reading byte ranges of files, of which a bounded number stays open."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from energize.core import os_errors as module
from energize.data.files import Documents, real_path
from energize.data.local import LocalFiles
from energize.errors import ShardError


def held_open() -> set[str]:
    targets = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            targets.add(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:
            continue
    return targets


@pytest.fixture(scope="module")
def big(tmp_path_factory) -> tuple[str, bytes]:
    data = os.urandom(300_000)
    path = tmp_path_factory.mktemp("files") / "big"
    path.write_bytes(data)
    return str(path), data


@pytest.fixture
def many(tmp_path) -> list[str]:
    paths = [tmp_path / f"{i}" for i in range(20)]
    for path in paths:
        path.write_text(path.name)
    return [str(path) for path in paths]


def test_a_bounded_number_stays_open_and_threads_read_meanwhile(many):
    files, wanted = LocalFiles(most_open=4), [path for path in many for _ in range(300)]
    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(files.read, wanted)) == [
            Path(p).name.encode() for p in wanted
        ]
    assert 0 < len(held_open() & set(many)) <= 4
    copy = pickle.loads(pickle.dumps(files))
    del files
    assert not held_open() & set(many)
    assert copy.read(many[1]) == b"1"


SHORTAGE = """
import resource, sys
from energize.data.files import LocalFiles
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
readers = [LocalFiles() for _ in range(20)]
for turn in range(2):
    for files in readers:
        for path in sys.argv[1:]:
            assert files.size(path)
print("read", len(readers) * len(sys.argv[1:]))
"""


def test_many_readers_share_few_descriptors(many):
    done = subprocess.run(
        [sys.executable, "-c", SHORTAGE, *many],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "read 400\n", done.stderr


def test_a_file_that_changed_is_no_longer_read(tmp_path):
    path, other = str(tmp_path / "shard"), str(tmp_path / "other")
    files = LocalFiles(most_open=1)
    with pytest.raises(FileNotFoundError):  # which is not remembered
        files.size(path)
    for content in (b"b" * 100, b"a" * 100, b"a" * 99):
        Path(path).write_bytes(b"a" * 100)
        Path(other).write_bytes(b"c")
        files = LocalFiles(most_open=1)
        assert files.read(path, 5, 7) == b"aa"
        assert (files.read(other), files.read(path)) == (
            b"c",
            b"a" * 100,
        )  # closed meanwhile
        new = tmp_path / "new"
        new.write_bytes(content)
        new.replace(path)
        files.size(other)
        with pytest.raises(
            ShardError, match="shard has changed since it was first read"
        ):
            files.size(path)  # another file when it is opened again
        copy = pickle.loads(pickle.dumps(files))  # which has not read the old one
        assert copy.read(path) == content
        Path(path).write_bytes(b"longer than it was" * 10)
        with pytest.raises(
            ShardError, match="shard has changed since it was first read"
        ):
            copy.read(path, 5, 7)  # the same file, written to


def test_what_fails_for_a_moment_is_read_again(big, monkeypatch, caplog):
    path, data = big
    pread, fails = os.pread, []

    def failing(*args):
        if fails:
            kind = fails.pop()
            if isinstance(kind, int):
                return pread(*args)[:kind]
            raise OSError(*kind)
        return pread(*args)

    monkeypatch.setattr(os, "pread", failing)
    monkeypatch.setattr(module, "_PAUSE", 0)
    for faults in ([(5, "EIO")], [(116, "ESTALE")], [7, 3, 0, 1], [0]):
        fails[:] = faults
        assert LocalFiles().read(path, 10, 5000) == data[10:5000]
    assert "It is tried again" in caplog.text
    fails[:] = [(5, "EIO")] * 99
    with pytest.raises(OSError, match="EIO") as caught:
        LocalFiles().read(path)
    assert caught.value.filename == path


def test_real_paths_follow_links_at_any_depth_and_resolve_a_folder_once(
    tmp_path, monkeypatch
):
    data = tmp_path / "data"
    (data / "a").mkdir(parents=True)
    (tmp_path / "mount").symlink_to(data)
    (data / "b").symlink_to("a")
    monkeypatch.chdir(data)
    for path in (
        "a",
        "b",
        "../data/a",
        "b/../a",
        tmp_path / "mount/b",
        data,
        "..",
        "/",
    ):
        assert real_path(path) == str(Path(path).resolve())
    resolved = []
    realpath = os.path.realpath
    monkeypatch.setattr(
        os.path, "realpath", lambda path: resolved.append(path) or realpath(path)
    )
    with Documents().used():
        assert real_path(tmp_path / "mount/a") == str(data / "a")
        assert real_path(tmp_path / "mount/c") == str(data / "c")
    assert resolved == [str(tmp_path / "mount")]
    (tmp_path / "mount").unlink()
    (tmp_path / "mount").symlink_to(tmp_path)
    assert real_path(tmp_path / "mount/a") == str(tmp_path / "a")
