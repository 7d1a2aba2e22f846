"""Reading byte ranges of files through a bounded cache of descriptors."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from energize.data import files as module
from energize.data.files import LocalFile, OpenFiles
from energize.errors import ShardError


def open_descriptors() -> set[str]:
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


def test_reads_up_to_the_end_of_the_file(big):
    path, data = big
    file = LocalFile(path)
    assert file.size == len(data)
    assert file.read(10, 20) == data[10:30]
    assert file.read(299_990, 100) == data[299_990:]
    assert file.read(400_000, 5) == b""


@given(
    st.lists(st.tuples(st.integers(0, 299_000), st.integers(0, 1000)), min_size=0, max_size=30).map(
        sorted
    )
)
def test_ranges_hold_the_bytes_that_were_asked_for(big, spans):
    path, data = big
    starts = [start for start, _ in spans]
    stops = [start + size for start, size in spans]
    found = list(LocalFile(path).read_ranges(starts, stops))
    assert [got[at : at + size] for (got, at), (_, size) in zip(found, spans, strict=True)] == [
        data[start:stop] for start, stop in zip(starts, stops, strict=True)
    ]


def test_neighbouring_ranges_share_a_read_of_bounded_size(big, monkeypatch):
    path, _ = big
    found = list(LocalFile(path).read_ranges([0, 100, 200_000], [50, 150, 200_050]))
    assert found[0][0] is found[1][0]
    assert found[1][0] is not found[2][0]
    monkeypatch.setattr(module, "_RUN", 120)
    apart = list(LocalFile(path).read_ranges([0, 100], [50, 150]))
    assert apart[0][0] is not apart[1][0]


def test_keeps_at_most_limit_files_open(many):
    files = OpenFiles(limit=4)
    for path in many * 2:
        assert files.get(path).read(0, 10).decode() == Path(path).name
    assert len(open_descriptors() & set(many)) == 4
    assert files.get(many[-1]) is files.get(many[-1])
    del files
    assert not open_descriptors() & set(many)


def test_an_evicted_file_stays_open_for_who_reads_it(many):
    files = OpenFiles(limit=1)
    first = files.get(many[0])
    files.get(many[1])
    assert first.read(0, 1) == b"0"
    del first
    assert many[0] not in open_descriptors()


def test_threads_read_while_files_are_evicted(many):
    files = OpenFiles(limit=2)
    wrong: list[str] = []

    def read(shift: int) -> None:
        for i in range(2000):
            path = many[(i * (shift + 1)) % len(many)]
            if files.get(path).read(0, 10).decode() != Path(path).name:
                wrong.append(path)

    threads = [threading.Thread(target=read, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(open_descriptors() & set(many)) == 2


def test_a_forked_process_reads_the_same_while_the_parent_does(big):
    path, data = big
    files = OpenFiles()
    files.get(path)
    child = os.fork()
    if child == 0:
        right = all(files.get(path).read(i, 100) == data[i : i + 100] for i in range(5000))
        os._exit(0 if right else 1)
    assert all(files.get(path).read(i, 100) == data[i : i + 100] for i in range(5000, 10_000))
    assert os.waitpid(child, 0)[1] == 0


def test_a_pickled_cache_holds_nothing_open(many):
    files = OpenFiles(limit=3)
    files.get(many[0])
    copy = pickle.loads(pickle.dumps(files))
    del files
    assert not open_descriptors() & set(many)
    assert copy.get(many[1]).read(0, 1) == b"1"


SHORTAGE = """
import resource, sys
from energize.data.files import OpenFiles
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
caches = [OpenFiles() for _ in range(20)]
for turn in range(2):
    for cache in caches:
        for path in sys.argv[1:]:
            assert cache.get(path).size
print("read", len(caches) * len(sys.argv[1:]))
"""


def test_many_caches_share_few_descriptors(many):
    done = subprocess.run(
        [sys.executable, "-c", SHORTAGE, *many], capture_output=True, text=True, check=False
    )
    assert done.stdout == "read 400\n", done.stderr


def test_a_missing_file_is_not_remembered(tmp_path):
    files = OpenFiles()
    path = tmp_path / "late"
    with pytest.raises(FileNotFoundError):
        files.get(str(path))
    path.write_bytes(b"here")
    assert files.get(str(path)).read(0, 4) == b"here"


def test_a_file_that_is_written_to_is_no_longer_read(tmp_path):
    path = tmp_path / "shard"
    path.write_bytes(b"a" * 100)
    file = OpenFiles().get(str(path))
    assert [data[at : at + 2] for data, at in file.read_ranges([5], [7])] == [b"aa"]
    path.write_bytes(b"b" * 100)
    with pytest.raises(ShardError, match="shard has changed since it was first read"):
        list(file.read_ranges([5], [7]))


@pytest.mark.parametrize("content", [b"b" * 100, b"a" * 100, b"a" * 99])
def test_another_file_of_the_same_name_is_told_when_it_is_opened_again(tmp_path, content):
    path, other = tmp_path / "shard", tmp_path / "other"
    path.write_bytes(b"a" * 100)
    other.write_bytes(b"c")
    files = OpenFiles(limit=1)
    files.get(str(path))
    files.get(str(other))
    files.get(str(path))  # unchanged, though it was closed
    files.get(str(other))
    new = tmp_path / "new"
    new.write_bytes(content)
    os.replace(new, path)
    with pytest.raises(ShardError, match="shard has changed since it was first read"):
        files.get(str(path))
    pickle.loads(pickle.dumps(files)).get(str(path))  # another process has not read the old one


def test_what_is_no_regular_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="named pipe"):
        LocalFile(str(tmp_path / "pipe"))
    with pytest.raises(OSError, match="directory"):
        LocalFile(str(tmp_path))
    with pytest.raises(OSError, match="device"):
        LocalFile("/dev/zero")
