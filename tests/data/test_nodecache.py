"""The node cache: bytes come back as they were written or not at all, whatever
happens."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from functools import partial
from itertools import product
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from energize.data import nodecache as module
from energize.data.nodecache import NodeCache
from energize.errors import ConfigError
from tests.cli.commands import run
from tests.support.refusals import check_refusals

SECTION, SIZE, LARGE = 16 * 1024, 60_000, 10**9
OBJECTS = {key: random.Random(key).randbytes(SIZE) for key in ("a", "b")}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Sections, blocks and all that by which they are counted."""
    for name, value in {"SECTION": SECTION, "BLOCK": 1024, "COUNTED": 4096}.items():
        monkeypatch.setattr(module, f"_{name}", value)
    module._warn.cache_clear()


def check_read(cache, key, start, stop):
    """What is read is right, and `missing` agrees; returns whether there was
    something."""
    gaps, found = cache.missing(key, start, stop), cache.read(key, start, stop)
    assert found == (None if gaps else OBJECTS[key][start:stop])
    edges = [start, *(edge for gap in gaps for edge in gap), stop]
    assert edges == sorted(edges)
    assert len(set(edges[1:-1])) == len(edges) - 2  # what could be one gap is one
    for begin, end in zip(edges[::2], edges[1::2], strict=True):
        assert cache.read(key, begin, end) == OBJECTS[key][begin:end]
    for begin, _ in gaps:
        assert cache.read(key, begin, begin + 1) is None
    return found is not None


def damage(path: Path, how: str, at: int) -> None:
    data = bytearray(path.read_bytes())
    at %= len(data) + 1
    if how == "flipped" and at < len(data):
        data[at] ^= 1 << at % 8
    data = {"cut": data[:at], "longer": data + data[:at], "empty": b""}.get(how, data)
    path.unlink() if how == "gone" else path.write_bytes(data)


RANGES = st.tuples(
    st.sampled_from("ab"), st.integers(0, SIZE), st.integers(0, 3 * SECTION)
)
DAMAGES = st.sampled_from(("flipped", "flipped", "cut", "longer", "empty", "gone"))
STEPS = st.one_of(
    st.tuples(st.sampled_from(("write", "write", "read")), st.integers(0, 1), RANGES),
    st.tuples(DAMAGES, st.integers(0, 99), st.integers(0, SIZE)),
    st.tuples(
        st.sampled_from(("evicted", "cleared", "removed", "opened")), st.integers(0, 1)
    ),
)


LOG_GREW_AGAIN = [
    ("write", 0, ("a", 0, 0)),
    ("write", 0, ("a", 1, 1)),
    ("cut", 1, 0),
    ("write", 0, ("a", 0, 1)),
]

FILE_WAS_REMOVED = [
    ("write", 0, ("a", 0, 0)),
    ("write", 0, ("a", 1, 1)),
    ("gone", 0, 0),
    ("write", 0, ("a", 0, 1)),
]


@given(st.lists(STEPS, max_size=15))
@example(LOG_GREW_AGAIN)
@example(FILE_WAS_REMOVED)
def test_bytes_come_back_as_they_were_written_or_not_at_all(steps):
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        caches = [NodeCache(folder, LARGE) for _ in range(2)]
        for name, number, *more in steps:
            if name in ("write", "read"):
                key, start, length = more[0]
                stop = min(start + length, SIZE)
                if name == "write":
                    assert caches[number].write(key, start, OBJECTS[key][start:stop])
                for cache in caches:
                    assert check_read(cache, key, start, stop) or name == "read"
            elif name == "opened":
                caches[number] = NodeCache(folder, LARGE)
            elif name == "removed":
                shutil.rmtree(folder, ignore_errors=True)
            elif name in ("evicted", "cleared"):
                caches[number]._make_room() if name == "evicted" else caches[
                    number
                ].clear()
            elif files := sorted(
                each for each in Path(folder).rglob("*") if each.is_file()
            ):
                damage(files[number % len(files)], name, *more)


def test_every_byte_may_be_damaged(tmp_path):
    def written(start, stop):
        assert cache.write("a", start, OBJECTS["a"][start:stop])

    cache, folder = NodeCache(str(tmp_path), LARGE), tmp_path / "nodecache-v1"
    for name, size in (("*.0", 60), ("*.log", 36)):
        for how, at in product(("flipped", "cut"), range(size)):
            cache.clear()
            written(0, 20)
            written(30, 60)
            damage(next(folder.glob(name)), how, at)
            there = [check_read(cache, "a", *each) for each in ((0, 20), (30, 60))]
            assert there.count(True) == (
                1 if how == "flipped" and not 20 <= at < 30 else sum(there)
            )
            written(10, 50)
            assert check_read(cache, "a", 10, 50)
    written(0, 60)
    written(20, 40)
    damage(next(folder.glob("*.0")), "flipped", 50)
    assert check_read(cache, "a", 25, 35)


def test_few_are_open(tmp_path, monkeypatch):
    cache = NodeCache(str(tmp_path), LARGE)
    for key in "ab":
        assert cache.write(key, 0, OBJECTS[key])
    assert check_read(cache, "a", 0, SIZE)
    assert len(cache._open) == 4
    before, held = resource.getrlimit(resource.RLIMIT_NOFILE), []
    most = max(map(int, os.listdir("/proc/self/fd"))) + 20
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, before[1]))
    try:
        with suppress(OSError):
            while True:
                held.append(os.dup(0))
        assert cache.read("b", 0, 10) == OBJECTS["b"][:10]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for each in held:
            os.close(each)
    monkeypatch.setattr(module, "_MOST_OPEN", 2)
    assert check_read(cache, "a", 0, SIZE)
    assert len(cache._open) == 2


@contextmanager
def forked(function, count=1):
    """Processes that call a function with their number, and are killed in the end."""
    pids = []
    for number in range(count):
        pid = os.fork()
        if pid == 0:
            try:
                function(number)
                os._exit(0)
            finally:
                os._exit(1)
        pids.append(pid)
    try:
        yield pids
    finally:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except (ProcessLookupError, ChildProcessError):
                continue


def drawn(draw, most):
    start = draw.randrange(SIZE)
    return draw.choice("ab"), start, min(SIZE, start + draw.randrange(1, most))


def write_for_ever(folder, limit, number):
    cache, draw = NodeCache(folder, limit), random.Random(number)
    while True:
        key, start, stop = drawn(draw, SECTION)
        claim = cache.claim(key, start, stop)
        cache.write(key, start, OBJECTS[key][start:stop])
        del claim


@pytest.mark.jobs
@pytest.mark.parametrize("kills", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_writers_that_are_killed(tmp_path, kills):
    limit, draw, found = 4 * SECTION, random.Random(kills), 0
    for kill in range(kills):
        with forked(partial(write_for_ever, str(tmp_path), limit), 2) as pids:
            cache, end = (
                NodeCache(str(tmp_path), limit),
                time.monotonic() + draw.uniform(0, 0.1),
            )
            while time.monotonic() < end:
                key, start, stop = drawn(draw, SECTION)
                data = cache.read(key, start, stop)
                assert data is None or data == OBJECTS[key][start:stop]
            os.kill(pids[kill % 2], signal.SIGKILL)
        with (
            cache.claim("a", 0, SIZE),
            cache.claim("b", 0, SIZE),
        ):  # nobody has one any more
            found += sum(check_read(cache, *drawn(draw, 3000)) for _ in range(50))
        cache.write("a", 0, OBJECTS["a"][:SECTION])  # which looks at the limit
        assert cache.status()["used"] <= limit + 2 * SECTION
    assert found > kills


def fetch_once(folder, fetched, number):
    cache, draw = NodeCache(folder, LARGE), random.Random(number)
    for _ in range(150):
        key, start, stop = drawn(draw, 4000)
        while cache.read(key, start, stop) is None:
            with cache.claim(key, start, stop) or open(os.devnull) as claim:
                if claim.name != os.devnull:
                    for begin, end in cache.missing(key, start, stop):
                        os.write(fetched, struct.pack("cqq", key.encode(), begin, end))
                        time.sleep(0.001)
                        assert cache.write(key, begin, OBJECTS[key][begin:end])
        assert cache.read(key, start, stop) == OBJECTS[key][start:stop]


@pytest.mark.jobs
def test_each_byte_is_fetched_once(tmp_path):
    path = tmp_path / "fetched"
    number = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    with forked(partial(fetch_once, str(tmp_path / "cache"), number), 3) as pids:
        assert [os.waitpid(pid, 0)[1] for pid in pids] == [0, 0, 0]
    os.close(number)
    bytes_of = [
        (key, at)
        for key, start, stop in struct.iter_unpack("cqq", path.read_bytes())
        for at in range(start, stop)
    ]
    assert len(bytes_of) == len(set(bytes_of)) > SIZE


def test_a_claim_is_had_by_one(tmp_path):
    cache, other = NodeCache(str(tmp_path)), NodeCache(str(tmp_path))
    with cache.claim("a", 10, 20):
        for each in (cache, other):
            assert each.claim("a", 19, SIZE) is None
        with (
            other.claim("a", 20, 30),
            other.claim("b", 10, 20),
            other.claim("a", 0, 10),
        ):
            pass
    assert other.claim("a", 10, 20) is not None


def test_what_was_read_longest_ago_goes_and_readers_read_on(tmp_path):
    cache, held = NodeCache(str(tmp_path), LARGE), NodeCache(str(tmp_path), LARGE)
    sections = range(0, SIZE, SECTION)
    for age, start in enumerate(sections):
        assert cache.write("a", start, OBJECTS["a"][start : start + 8000])
        for path in tmp_path.glob(f"*/*.{start // SECTION:x}*"):
            os.utime(path, (1, age + 1))
    for start in sections:  # which says that it is read
        assert held.read("a", start, start + 10) is not None
    used = [path.stat().st_mtime for path in sorted(tmp_path.glob("*/*.[0-9]"))]
    assert min(used) > time.time() - 100
    os.utime(sorted(tmp_path.glob("*/*.2"))[0], (1, 1))
    old = tmp_path / "nodecache-v0"
    old.mkdir()
    (old / "x.0").write_bytes(bytes(8192))
    os.utime(old / "x.0", (0, 0))
    before = cache.status()
    assert before["objects"] == 2
    cache._make_room(before["used"] - 8192)  # the older version, and one section
    assert not (old / "x.0").exists()
    fresh = NodeCache(str(tmp_path), LARGE)
    there = [fresh.read("a", start, start + 10) is not None for start in sections]
    assert there == [True, True, False, True]
    cache.clear()
    assert cache.status()["used"] == 0
    for start in sections:
        assert held.read("a", start, start + 8000) == OBJECTS["a"][start : start + 8000]
        assert (
            fresh.read("a", start + 20, start + 30) is not None or start == sections[2]
        )
    assert cache.write("a", 0, OBJECTS["a"][:100])
    assert NodeCache(str(tmp_path)).read("a", 0, 100) == OBJECTS["a"][:100]
    for section in held._open.values():
        section.until = 0  # a minute later
    assert [held.read("a", start, start + 10) for start in sections] == [
        OBJECTS["a"][:10],
        *3 * [None],
    ]


def test_it_keeps_within_its_limit(tmp_path):
    cache = NodeCache(str(tmp_path), 4 * SECTION)
    for number in range(100):
        cache.write(f"object {number}", 0, OBJECTS["a"][: SECTION // 4])
        assert cache.status()["used"] <= cache.limit + SECTION
    assert cache.status()["used"] > cache.limit // 2
    assert os.path.getsize(cache._node) * 4096 <= cache.limit


@pytest.fixture
def disk(tmp_path):
    """A file system of 1 MiB, of memory."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    except OSError as error:
        pytest.skip(f"a small disk cannot be mounted: {error}")
    if done.returncode:
        pytest.skip(f"a small disk cannot be mounted: {done.stderr}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_disks_that_are_full_or_may_not_be_written(disk, monkeypatch, caplog):
    cache = NodeCache(str(disk / "cache"), LARGE)
    for number in range(100):  # more than there is room for: the oldest go
        assert cache.write(f"object {number}", 0, OBJECTS["a"])
    assert cache.read("object 99", 0, SIZE) == OBJECTS["a"]
    assert not caplog.text
    by_default = NodeCache(str(disk / "cache")).limit  # half of what is free or its own
    assert by_default == pytest.approx(512 * 1024, rel=0.1)
    cache.clear()
    assert cache.write("b", 0, OBJECTS["b"][:100])
    free = cache.status()["free"]
    (disk / "other").write_bytes(bytes(free))
    for start in (0, 0, SECTION):
        assert not cache.write("a", start, OBJECTS["a"])
        assert not check_read(cache, "a", start, start + 100)
    [told] = caplog.messages
    for words in (
        str(disk / "cache"),
        "No space left",
        "Free space there",
        "ENERGIZE_CACHE",
    ):
        assert words in told
    (disk / "other").unlink()
    assert not cache.write("a", 0, OBJECTS["a"])  # it waits for a while
    monkeypatch.setattr(module, "_PAUSE", 0)
    assert cache.write("a", 0, OBJECTS["a"])
    cache._open.clear()
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    for each in (cache, NodeCache(str(disk / "cache"))):
        assert not each.write("b", 0, OBJECTS["b"])
        assert check_read(each, "a", 0, SIZE)
        assert each.claim("a", 0, 10) is not None
    monkeypatch.setenv("ENERGIZE_CACHE", str(disk / "cache"))
    assert "nothing could be removed" in run("cache", "clear", code=1)
    assert "Read-only" in caplog.messages[-1]
    assert len(caplog.messages) == 2


def test_no_rights_and_a_file_in_its_place(tmp_path, caplog):
    (tmp_path / "nodecache-v1").write_text("a file")
    cache = NodeCache(str(tmp_path))
    assert not cache.write("a", 0, b"x")
    assert cache.read("a", 0, 1) is None
    assert cache.missing("a", 0, 1) == [(0, 1)]
    assert cache.claim("a", 0, 1) is not None
    (tmp_path / "nodecache-v1").unlink()
    allowed = NodeCache(str(tmp_path))
    assert allowed.write("a", 0, OBJECTS["a"])
    other = NodeCache(tempfile.mkdtemp())
    shutil.rmtree(other._inside)
    Path(other.folder).chmod(0o711)
    tmp_path.chmod(0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        assert not allowed.write("a", 0, b"x")
        assert not other.write("a", 0, b"x")  # what had to be made again
        with pytest.raises(PermissionError):
            other.status()
        assert allowed.read("a", 0, 1) is None
        check_refusals(
            ConfigError, no_rights=(partial(NodeCache, str(tmp_path)), "Permission")
        )
    finally:
        os.seteuid(user)
        tmp_path.chmod(0o700)
        shutil.rmtree(other.folder)
    assert NodeCache(str(tmp_path)).read("a", 0, 10) == OBJECTS["a"][:10]
    assert ["Permission denied" in each for each in caplog.messages] == [
        False,
        True,
        True,
    ]


def test_what_is_refused(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.delenv("ENERGIZE_CACHE_BYTES", raising=False)
    made = ("cannot be made", "ENERGIZE_CACHE")
    limit = ("ENERGIZE_CACHE_BYTES", str(2 * SECTION), "For 500 GB, set 500000000000")
    check_refusals(ConfigError, {
        "a file": (partial(NodeCache, str(tmp_path / "file")), *made, "File exists"),
        "below one": (partial(NodeCache, str(tmp_path / "file" / "a")), *made, "Not a directory"),
        "nowhere": (partial(NodeCache, "/proc/cache"), *made, "/proc/cache"),
        "a NUL": (partial(NodeCache, "a\0b"), *made),
        "a URL": (partial(NodeCache, "s3://bucket"), *made, "s3://bucket", "not a path"),
        "no home": (partial(NodeCache, "~nobody-there/a"), *made, "not a path"),
        "few bytes": (partial(NodeCache, str(tmp_path), 500), *limit, "got 500."),
    })  # fmt: skip
    for text in ("500GB", "-1", "1e12", "0"):
        monkeypatch.setenv("ENERGIZE_CACHE_BYTES", text)
        check_refusals(
            ConfigError, {text: (partial(NodeCache, str(tmp_path)), *limit, repr(text))}
        )


def test_where_it_is_by_default_and_its_commands(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    for name in ("ENERGIZE_CACHE", "ENERGIZE_CACHE_BYTES"):
        monkeypatch.delenv(name, raising=False)
    cache = NodeCache()
    assert cache.folder == str(tmp_path / "user" / "energize")
    assert (tmp_path / "user" / "energize").stat().st_mode & 0o777 == 0o700
    assert cache.limit == pytest.approx(shutil.disk_usage(tmp_path).free // 2, rel=0.1)
    monkeypatch.setenv("ENERGIZE_CACHE", str(tmp_path / "mine"))
    monkeypatch.setenv("ENERGIZE_CACHE_BYTES", "500000000000")
    assert NodeCache().write("a", 0, OBJECTS["a"])
    told = run("cache", "status")
    assert f"{tmp_path / 'mine'}: " in told
    assert "of at most 500.0 GB, 4 sections of 1 object; " in told
    assert f"{tmp_path / 'mine'}: 0 bytes of at most" in run("cache", "clear")


def test_importing_it_loads_nothing_heavy():
    heavy = "{'torch', 'numpy', 'pydantic', 'asyncio'}"
    program = f"import sys, energize.data.nodecache; print({heavy} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", program]) == b"set()\n"
