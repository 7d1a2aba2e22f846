"""The cache pool on disk: what lies there, for how long, and that nobody ever waits for
room."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energize.core.samples import SourceInfo, TextSample
from energize.core.stores import (
    DecodeFileStore,
    FileStore,
    NoCachePool,
    PrimaryFileStore,
)
from energize.data.stores import SystemFileStore
from energize.errors import ConfigError, DataError, LoaderError
from energize.extras.cache import FileCacheLazy, FileStoreCachePool, MockLazy


class Upper:
    """A decoder whose results tell that it was used."""

    def decode(self, name, data):
        return f"{name}: {data.decode()}"


class Counting(FileStore):
    """A store of given contents that counts its reads, and may be made to wait."""

    def __init__(self, contents, path="counted"):
        self.contents = contents
        self.path = path
        self.reads = []
        self.may_read = threading.Event()
        self.may_read.set()

    def __getitem__(self, key):
        self.may_read.wait()
        self.reads.append(key)
        source = SourceInfo(
            dataset_path=self.path, index=key, shard_name=self.path, file_names=(key,)
        )
        return self.contents[key], source

    def get_path(self):
        return self.path


class Unhashable(Counting):
    __hash__ = None

    def __eq__(self, other):
        return self is other


@pytest.fixture
def make(tmp_path):
    """Pools below one folder, closed at the end."""
    made = []

    def make(**options):
        made.append(FileStoreCachePool(parent_cache_dir=tmp_path / "cache", **options))
        return made[-1]

    yield make
    for pool in made:
        pool.close()
    assert folders(tmp_path) == []


def folders(tmp_path):
    parent = tmp_path / "cache"
    return list(parent.iterdir()) if parent.exists() else []


def threads():
    return [
        each for each in threading.enumerate() if each.name.startswith("energize-cache")
    ]


def fetched(lazy):
    until(lambda: lazy.entry.stored.path is not None)


def until(condition):
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.005)


# What is fetched, and when it is gone.


@pytest.mark.parametrize("method", ["raw", "pickle"])
def test_a_file_is_fetched_once_and_gone_once_used(make, method):
    pool = make(method=method, num_workers=2)
    store = Counting({"a": b"1"})
    decoded = DecodeFileStore(store, decoder=Upper())
    first, second = pool.get_lazy(decoded, "a"), pool.get_lazy(decoded, "a")
    fetched(first)
    (file,) = pool.cache_dir.iterdir()
    assert file.read_bytes() == (b"1" if method == "raw" else pickle.dumps("a: 1", -1))
    assert pool.current_cache_count == 1
    assert first.get() == "a: 1"
    assert list(pool.cache_dir.iterdir()) == [file]
    assert second.get() == "a: 1"
    assert list(pool.cache_dir.iterdir()) == []
    assert (pool.current_cache_count, pool.current_cache_size) == (0, 0)
    assert store.reads == ["a"]
    assert pool.get(decoded, "a") == "a: 1"
    assert store.reads == ["a", "a"]


def test_a_reference_gives_the_same_each_time_and_adds_its_source_once(make):
    for pool in (make(), NoCachePool()):
        lazy = pool.get_lazy(
            DecodeFileStore(Counting({"a": b"1"}), decoder=Upper()), "a"
        )
        own = SourceInfo(
            dataset_path="d", index=0, shard_name="s", file_names=("k.txt",)
        )
        sample = TextSample(__key__="k", text="", __sources__=(own,))
        crude = {"__key__": "k"}
        assert lazy.get(sample) is lazy.get(crude) is lazy.get(sample) is lazy.get()
        assert lazy.get(crude) == "a: 1"
        assert [each.dataset_path for each in sample.__sources__] == ["d", "counted"]
        assert [each.index for each in crude["__sources__"]] == ["a"]
        with pytest.raises(ConfigError, match="a int has no __sources__"):
            lazy.get(3)


def test_limits_hold_and_turns_come_in_order(make):
    pool = make(max_cache_count=2, num_workers=1)
    pool.max_cache_size = 75
    store = Counting({"a": b"a" * 50, "b": b"b" * 50, "c": b"c" * 25, "d": b"d" * 25})
    a, b, b2, c, d = (pool.get_lazy(store, name) for name in "abbcd")
    fetched(a)
    assert (pool.current_cache_count, pool.current_cache_size) == (1, 50)
    # Full: who needs b reads it, and it goes to the end for the other who will.
    assert b.get() == b"b" * 50
    assert store.reads == ["a", "b"]
    assert a.get() == b"a" * 50
    fetched(c)
    assert c.get() == b"c" * 25
    fetched(d)
    assert d.get() == b"d" * 25
    fetched(b2)
    assert (pool.current_cache_count, pool.current_cache_size) == (1, 50)
    assert b2.get() == b"b" * 50
    assert list(pool.cache_dir.iterdir()) == []
    assert store.reads in (
        list("abcdb"),
        list("abcd"),
    )  # where a thread was just reading b
    for lazy in (a, b, b2, c, d):
        assert lazy.entry.send_to_cache_future.done()


@pytest.mark.parametrize(
    "limits", [{"max_cache_count": 0}, {"max_cache_size_gbytes": 0}]
)
def test_without_any_room_everything_is_read_directly(make, limits):
    pool = make(num_workers=2, **limits)
    store = Counting({str(i): str(i).encode() for i in range(50)})
    lazies = [pool.get_lazy(store, str(i)) for i in range(50)]
    assert [lazy.get() for lazy in lazies] == [str(i).encode() for i in range(50)]
    assert pool.to_cache({"n": 1}, "numbers").get() == {"n": 1}
    assert list(pool.cache_dir.iterdir()) == []


def test_to_cache_counts_like_all_files(make):
    pool = make(max_cache_count=2)
    lazies = [pool.to_cache(value, "value") for value in (b"bytes", [1, 2], "third")]
    until(lambda: pool.current_cache_count == 2)
    time.sleep(0.1)  # in which the third would have come
    assert (pool.current_cache_count, len(list(pool.cache_dir.iterdir()))) == (2, 2)
    for _ in range(2):
        assert [lazy.get() for lazy in lazies] == [b"bytes", [1, 2], "third"]
    until(lambda: pool.current_cache_count == 0)
    assert lazies[0] != lazies[1]
    unpicklable = pool.to_cache(f := lambda: None, "function")
    assert unpicklable.get() is f


def test_what_goes_wrong_is_met_where_the_file_is_needed(make, caplog):
    pool = make()
    store = SystemFileStore(Path(__file__).parent)
    lazy = pool.get_lazy(store, "missing.txt")
    for _ in range(2):
        with pytest.raises(DataError, match="does not exist"):
            lazy.get()
    assert pool.get_lazy(store, Path(__file__).name).get()[:3] == b'"""'
    with caplog.at_level(logging.WARNING, logger="energize"):
        lazy = pool.get_lazy(Counting({"a": b"1"}), "a")
        fetched(lazy)
        for file in pool.cache_dir.iterdir():
            file.unlink()
        assert lazy.get() == b"1"
        assert pool.current_cache_count == 0
        assert "without the cache" in caplog.text


# Closing, and the end.


@pytest.mark.parametrize("method", ["raw", "pickle"])
@pytest.mark.parametrize("damage", [b"", b"1", b"0" * 20, b"\x80\x05\x95"])
def test_a_file_that_was_changed_on_the_disk_is_read_from_its_store(
    make, caplog, method, damage
):
    pool = make(method=method)
    texts = DecodeFileStore(Counting({"a": b"2" * 20}), decoder=Upper())
    lazies = [pool.get_lazy(texts, "a"), pool.to_cache([1], "numbers")]
    for lazy in lazies:
        fetched(lazy)
        lazy.cache_path.write_bytes(damage)
    assert lazies[0].get() == f"a: {'2' * 20}"
    assert f"{pool.cache_dir}/" in caplog.text
    assert "was changed or cut off since it was written" in caplog.text
    with pytest.raises(LoaderError, match=r"'numbers' was put .* changed or removed"):
        lazies[1].get()


def test_closing_ends_everything_and_references_go_on(make, tmp_path):
    pool = make(num_workers=3)
    store = Counting({"a": b"1", "b": b"2"})
    lazy, other = pool.get_lazy(store, "a"), pool.get_lazy(store, "b")
    put = pool.to_cache([1], "numbers")
    fetched(lazy)
    fetched(put)
    pool.close()
    pool.close()
    assert folders(tmp_path) == []
    until(lambda: threads() == [])
    assert (lazy.get(), other.get()) == (b"1", b"2")
    with pytest.raises(
        LoaderError, match="'numbers' was put into a cache pool that has been clos"
    ):
        put.get()
    again = pool.get_lazy(store, "a")
    fetched(again)
    assert again.get() == b"1"


def test_a_read_that_hangs_does_not_stop_closing(make, monkeypatch):
    monkeypatch.setattr("energize.extras.cache._CLOSE_SECONDS", 0.2)
    pool = make(num_workers=1)
    store = Counting({"a": b"1", "b": b"2"})
    store.may_read.clear()
    lazies = [pool.get_lazy(store, name) for name in "ab"]
    start = time.monotonic()
    pool.close()
    assert time.monotonic() - start < 5
    store.may_read.set()
    assert [lazy.get() for lazy in lazies] == [b"1", b"2"]


def in_a_process(pool, folder, sender):
    lazy = pool.get_lazy(SystemFileStore(folder), "a.txt")
    fetched(lazy)
    sender.send((str(pool.cache_dir), len(list(pool.cache_dir.iterdir())), lazy.get()))
    pool.close()


@pytest.mark.jobs
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_each_process_has_a_folder_of_its_own(make, tmp_path, method):
    (tmp_path / "a.txt").write_text("hello")
    pool = make()
    lazy = pool.get_lazy(SystemFileStore(tmp_path), "a.txt")
    fetched(lazy)
    context = multiprocessing.get_context(method)
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=in_a_process, args=(pool, tmp_path, sender))
    process.start()
    assert receiver.poll(60)
    folder, files, content = receiver.recv()
    process.join(30)
    assert (process.exitcode, files, content) == (0, 1, b"hello")
    assert folder != str(pool.cache_dir)
    assert folders(tmp_path) == [pool.cache_dir]
    # A fork reads for itself; neither its references nor its end touch its parent's
    # files.
    child = os.fork()
    if child == 0:
        good = lazy.get() == b"hello" and pool.current_cache_count == 0
        del lazy
        gc.collect()
        os._exit(0 if good else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert len(list(pool.cache_dir.iterdir())) == 1
    assert lazy.get() == b"hello"


PROGRAM = """
import sys, time
from energize.energon.cache import FileStoreCachePool, SystemFileStore
pool = FileStoreCachePool(parent_cache_dir=sys.argv[1])
lazy = pool.get_lazy(SystemFileStore(sys.argv[2]), "a.txt")
while lazy.entry.stored.path is None: time.sleep(0.001)
print("ready", flush=True)
if sys.argv[3] == "wait":
    time.sleep(60)
if sys.argv[3] == "raise":
    raise ValueError
"""


def started(tmp_path, how):
    (tmp_path / "a.txt").write_text("hello")
    arguments = [
        sys.executable,
        "-c",
        PROGRAM,
        str(tmp_path / "cache"),
        str(tmp_path),
        how,
    ]
    process = subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout.readline() == b"ready\n"
    process.stdout.close()
    return process


@pytest.mark.jobs
def test_what_processes_leave(make, tmp_path):
    for how in ("end", "raise"):
        started(tmp_path, how).wait(30)
        assert folders(tmp_path) == [], how
    notes = tmp_path / "cache" / "energize-cache-notes"
    notes.mkdir()
    living, killed = started(tmp_path, "wait"), started(tmp_path, "wait")
    killed.send_signal(signal.SIGKILL)
    killed.wait(30)
    assert len(folders(tmp_path)) == 3
    pool = make()
    assert pool.cache_dir.stat().st_mode & 0o777 == 0o700
    assert len(folders(tmp_path)) == 3  # that of the killed process is gone
    living.kill()
    living.wait(30)
    pool.close()
    assert make().cache_dir in folders(tmp_path)
    assert len(folders(tmp_path)) == 2
    notes.rmdir()


# Threads.


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["ask", "ask", "use", "drop", "put", "close"]),
        st.integers(0, 99),
    ),
    max_size=40,
)


@pytest.mark.jobs
@settings(max_examples=15, deadline=None)
@given(OPERATIONS, st.integers(0, 4), st.integers(0, 120), st.integers(1, 3))
def test_whatever_is_done_limits_hold_and_contents_are_right(
    tmp_path_factory, operations, most, size, workers
):
    parent = tmp_path_factory.mktemp("pool")
    pool = FileStoreCachePool(
        parent_cache_dir=parent, num_workers=workers, max_cache_count=most
    )
    pool.max_cache_size = size
    store = Counting({str(i): str(i).encode() * 20 for i in range(6)})
    held = []
    for what, number in operations:
        if what == "ask":
            held.append(
                (pool.get_lazy(store, str(number % 6)), str(number % 6).encode() * 20)
            )
        elif what == "put":
            held.append((pool.to_cache(bytes(number), "put"), bytes(number)))
        elif what == "close":
            held = [each for each in held if each[0].ds is store]
            pool.close()
        elif held:
            lazy, content = held.pop(number % len(held))
            assert what == "drop" or lazy.get() == lazy.get() == content
        assert pool.current_cache_count <= most
        assert pool.current_cache_size <= size
        files = []
        for file in [file for folder in parent.iterdir() for file in folder.iterdir()]:
            with suppress(FileNotFoundError):  # removed by a thread since it was listed
                files.append(file.stat().st_size)
        assert len(files) <= most
        assert sum(files) <= size
    lazy = content = None
    assert all(each.get() == expected for each, expected in held)
    held.clear()
    gc.collect()
    until(lambda: (pool.current_cache_count, pool.current_cache_size) == (0, 0))
    pool.close()
    assert list(parent.iterdir()) == []


# References.


def test_references_share_a_file_by_store_and_name(make):
    pool = make()
    stores = [Unhashable({"a": content}) for content in (b"1", b"2")]
    lazies = [pool.get_lazy(store, "a") for store in [*stores, stores[0]]]
    assert lazies[0].entry is lazies[2].entry
    assert [lazy.get() for lazy in lazies] == [b"1", b"2", b"1"]
    store = DecodeFileStore(Counting({"k.txt": b"1", "l.txt": b"2"}), decoder=Upper())
    lazies = [
        pool.get_lazy(PrimaryFileStore(store, key), ".txt") for key in ("k", "l", "k")
    ]
    assert lazies[0].entry is lazies[2].entry
    assert lazies[0] == lazies[2] != lazies[1]
    assert len(set(lazies)) == 2
    assert [lazy.get() for lazy in lazies] == ["k.txt: 1", "l.txt: 2", "k.txt: 1"]
    mock = MockLazy("a", str.upper)
    assert (mock.get(), mock.get({})) == ("A", "A")
    assert mock == MockLazy("a", str.upper) != MockLazy("b", str.upper)


def test_a_reference_can_share_the_entry_of_another_one(make):
    store = Counting({"a": b"1"})
    pool = make()
    first = pool.get_lazy(store, "a")
    second = FileCacheLazy(ds=store, fname="a", pool=pool, entry=first.entry)
    assert second.entry is first.entry
    assert first.entry.refcount == 2
    assert first.get() == second.get() == b"1"
    assert (store.reads, pool.current_cache_count) == (["a"], 0)


def test_pickled_references_read_for_themselves(make):
    pool = make()
    lazy, put = (
        pool.get_lazy(SystemFileStore(Path(__file__).parent), "__init__.py"),
        pool.to_cache({"n": 1}, "n"),
    )
    copies = pickle.loads(pickle.dumps([lazy, put]))
    pool.close()
    assert [each.get() for each in copies] == [b"", {"n": 1}]
    assert copies[0] == lazy


def test_wrong_arguments(tmp_path):
    for wrong in (
        {"method": "zip"},
        {"num_workers": 0},
        {"max_cache_size_gbytes": float("nan")},
        {"parent_cache_dir": "s3://bucket"},
    ):
        with pytest.raises(
            ConfigError, match="s3" if "s3" in str(wrong) else next(iter(wrong))
        ):
            FileStoreCachePool(**wrong)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot create a cache folder in"):
        _ = FileStoreCachePool(parent_cache_dir=tmp_path / "file").cache_dir
