"""The cache pool on disk: what lies there, for how long, and that nobody ever waits for room."""

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
    activate,
    active_pool,
)
from energize.data.stores import SystemFileStore
from energize.errors import ConfigError, DataError, LoaderError
from energize.extras.cache import FileStoreCachePool, MockLazy


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


def fetched(lazy):
    lazy.entry.send_to_cache_future.result(timeout=10)


def until(condition):
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.005)


@pytest.mark.parametrize("method", ["raw", "pickle"])
def test_a_file_is_fetched_once_and_gone_once_used(make, method):
    pool = make(method=method, num_workers=2)
    store = Counting({"a": b"1"})
    decoded = DecodeFileStore(store, decoder=Upper())
    first, second = pool.get_lazy(decoded, "a"), pool.get_lazy(decoded, "a")
    assert first.entry is second.entry
    assert first.entry.refcount == 2
    fetched(first)
    (file,) = pool.cache_dir.iterdir()
    assert (file.read_bytes() == b"1") == (method == "raw")
    assert pool.current_cache_count == 1
    assert first.get() == "a: 1"
    assert list(pool.cache_dir.iterdir()) == [file]
    assert second.get() == "a: 1"
    assert list(pool.cache_dir.iterdir()) == []
    assert (pool.current_cache_count, pool.current_cache_size) == (0, 0)
    assert store.reads == ["a"]


@pytest.mark.parametrize("pool", ["file", "none"])
def test_get_gives_the_same_thing_every_time(make, pool):
    """Not the content the first time and a pair with its source the second."""
    pool = make() if pool == "file" else NoCachePool()
    store = DecodeFileStore(Counting({"a": b"1"}), decoder=Upper())
    lazy = pool.get_lazy(store, "a")
    assert lazy.get() is lazy.get() is lazy.get({"__key__": "x"})
    assert lazy.get() == "a: 1"


@pytest.mark.parametrize("pool", ["file", "none"])
def test_sources_are_added_to_samples_and_dicts_once(make, pool):
    pool = make() if pool == "file" else NoCachePool()
    lazy = pool.get_lazy(Counting({"a": b"1"}), "a")
    own = SourceInfo(dataset_path="d", index=0, shard_name="s", file_names=("k.txt",))
    sample = TextSample(__key__="k", text="", __sources__=(own,))
    crude = {"__key__": "k"}
    for target in (sample, crude, sample, crude):
        lazy.get(target)
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
    until(lambda: b.entry.held is not None)
    assert (pool.current_cache_count, pool.current_cache_size) == (1, 50)
    # Full: who needs b has it at once, and it goes to the end for the other who will.
    assert b.get() == b"b" * 50
    assert not b2.entry.send_to_cache_future.done()
    fetched(c)
    assert (pool.current_cache_count, pool.current_cache_size) == (2, 75)
    assert not d.entry.send_to_cache_future.done()
    assert a.get() == b"a" * 50
    fetched(d)
    assert (pool.current_cache_count, pool.current_cache_size) == (2, 50)
    until(lambda: b2.entry.held is not None)
    assert not b2.entry.send_to_cache_future.done()
    assert c.get() == b"c" * 25
    fetched(b2)
    assert (pool.current_cache_count, pool.current_cache_size) == (2, 75)
    assert (d.get(), b2.get()) == (b"d" * 25, b"b" * 50)
    assert list(pool.cache_dir.iterdir()) == []


def test_dropped_references_free_their_files(make):
    pool = make()
    store = Counting({"a": b"1", "b": b"2"})
    kept, dropped = pool.get_lazy(store, "a"), pool.get_lazy(store, "a")
    fetched(kept)
    del dropped
    gc.collect()
    assert kept.entry.refcount == 1
    entry = kept.entry
    del kept
    gc.collect()
    assert (entry.refcount, pool.current_cache_count) == (0, 0)
    assert list(pool.cache_dir.iterdir()) == []


def test_a_dropped_reference_in_the_queue_is_not_fetched(make):
    pool = make(num_workers=1)
    store = Counting({"a": b"1", "b": b"2", "c": b"3"})
    store.may_read.clear()
    first = pool.get_lazy(store, "a")
    dropped = pool.get_lazy(store, "b")
    last = pool.get_lazy(store, "c")
    del dropped
    gc.collect()
    store.may_read.set()
    fetched(last)
    assert store.reads == ["a", "c"]
    assert (first.get(), last.get()) == (b"1", b"3")


@pytest.mark.parametrize("limits", [{"max_cache_count": 0}, {"max_cache_size_gbytes": 0}])
def test_without_any_room_everything_is_read_directly(make, limits):
    pool = make(num_workers=2, **limits)
    store = Counting({str(i): str(i).encode() for i in range(50)})
    lazies = [pool.get_lazy(store, str(i)) for i in range(50)]
    assert [lazy.get() for lazy in lazies] == [str(i).encode() for i in range(50)]
    held = pool.to_cache({"n": 1}, "numbers")
    assert held.get() == {"n": 1}
    assert list(pool.cache_dir.iterdir()) == []


def test_to_cache_counts_like_all_files(make):
    pool = make(max_cache_count=2)
    lazies = [pool.to_cache(value, "value") for value in (b"bytes", [1, 2], "third")]
    until(lambda: pool.current_cache_count == 2)
    assert [lazy.get() for lazy in lazies] == [b"bytes", [1, 2], "third"]
    assert [lazy.get() for lazy in lazies] == [b"bytes", [1, 2], "third"]
    assert pool.current_cache_count == 0
    assert lazies[0] != lazies[1]


def test_a_file_that_cannot_be_read_fails_where_it_is_needed(make):
    pool = make()
    store = SystemFileStore(Path(__file__).parent)
    lazy = pool.get_lazy(store, "missing.txt")
    until(lazy.entry.send_to_cache_future.done)
    for _ in range(2):
        with pytest.raises(DataError, match="there is no such file"):
            lazy.get()
    assert pool.get_lazy(store, Path(__file__).name).get()[:3] == b'"""'


def test_a_cache_that_was_emptied_is_survived(make, caplog):
    pool = make()
    store = Counting({"a": b"1"})
    lazy = pool.get_lazy(store, "a")
    fetched(lazy)
    for file in pool.cache_dir.iterdir():
        file.unlink()
    with caplog.at_level(logging.WARNING, logger="energize"):
        assert lazy.get() == b"1"
    assert "without the cache" in caplog.text
    assert pool.current_cache_count == 0


def test_a_full_disk_is_survived(make, caplog):
    """A folder that can be written to no more stands for it: root may write to any other."""
    pool = make()
    folder = pool.cache_dir
    folder.rename(folder.with_name("gone"))
    try:
        with caplog.at_level(logging.WARNING, logger="energize"):
            lazies = [pool.get_lazy(Counting({"a": b"1"}, str(i)), "a") for i in range(5)]
            assert [lazy.get() for lazy in lazies] == [b"1"] * 5
            assert pool.to_cache([1], "numbers").get() == [1]
    finally:
        folder.with_name("gone").rename(folder)
    until(lambda: pool.current_cache_count == 0)
    assert caplog.text.count("cannot be written") <= 1


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
    assert not [each for each in threading.enumerate() if each.name == "energize-cache"]
    assert (lazy.get(), other.get()) == (b"1", b"2")
    with pytest.raises(LoaderError, match="'numbers' was put into a cache pool that has been clos"):
        put.get()
    again = pool.get_lazy(store, "a")
    fetched(again)
    assert again.get() == b"1"


def test_a_pool_that_nobody_refers_to_ends_by_itself(tmp_path):
    pool = FileStoreCachePool(parent_cache_dir=tmp_path / "cache", num_workers=3)
    lazies = [pool.get_lazy(Counting({"a": b"1"}, str(i)), "a") for i in range(9)]
    fetched(lazies[0])
    path = pool.cache_dir
    del pool
    assert lazies[3].get() == b"1"
    assert path.exists()
    del lazies
    gc.collect()
    until(lambda: folders(tmp_path) == [])
    until(lambda: not [each for each in threading.enumerate() if each.name == "energize-cache"])


def test_threads_that_begin_together_share_one_folder(make, tmp_path):
    pool = make()
    barrier = threading.Barrier(8)

    def begin():
        barrier.wait()
        pool.get_lazy(Counting({"a": b"1"}), "a").get()

    threads = [threading.Thread(target=begin) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(folders(tmp_path)) == 1


def test_a_read_that_hangs_stops_neither_closing_nor_the_end(make, monkeypatch):
    monkeypatch.setattr("energize.extras.cache._CLOSE_SECONDS", 0.2)
    pool = make(num_workers=1)
    store = Counting({"a": b"1"})
    store.may_read.clear()
    pool.get_lazy(store, "a")
    start = time.monotonic()
    pool.close()
    assert time.monotonic() - start < 5
    store.may_read.set()


def test_many_threads_share_one_pool(make):
    pool = make(num_workers=4, max_cache_count=5)
    store = Counting({str(i): str(i).encode() for i in range(20)})
    wrong = []

    def use(start):
        for i in range(100):
            name = str((start * 7 + i) % 20)
            lazy, dropped = pool.get_lazy(store, name), pool.get_lazy(store, str(i % 20))
            if i % 3:
                del dropped
            if lazy.get() != name.encode():
                wrong.append(name)

    threads = [threading.Thread(target=use, args=(start,)) for start in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    gc.collect()
    assert wrong == []
    # Those whose last reference was dropped while the lock was held go with the next look.
    until(lambda: pool.to_cache(b"", "look").get() == b"" and pool.current_cache_count == 0)
    assert pool.current_cache_size == 0


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["ask", "ask", "use", "drop", "put", "close"]), st.integers(0, 99)),
    max_size=40,
)


@settings(max_examples=10)
@given(OPERATIONS, st.integers(0, 4), st.integers(0, 120), st.integers(1, 3))
def test_whatever_is_done_limits_hold_and_contents_are_right(
    tmp_path_factory, operations, most, size, threads
):
    parent = tmp_path_factory.mktemp("pool")
    pool = FileStoreCachePool(parent_cache_dir=parent, num_workers=threads, max_cache_count=most)
    pool.max_cache_size = size
    store = Counting({str(i): str(i).encode() * 20 for i in range(6)})
    held = []
    for what, number in operations:
        if what == "ask":
            held.append((pool.get_lazy(store, str(number % 6)), str(number % 6).encode() * 20))
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
        files = [file.stat().st_size for folder in parent.iterdir() for file in folder.iterdir()]
        assert len(files) <= most
        assert sum(files) <= size
    lazy = content = None
    assert all(each.get() == expected for each, expected in held)
    held.clear()
    gc.collect()
    until(lambda: pool.to_cache(b"", "look").get() == b"" and pool.current_cache_count == 0)
    pool.close()
    assert list(parent.iterdir()) == []


class Unhashable(Counting):
    __hash__ = None

    def __eq__(self, other):
        return self is other


def test_stores_without_a_hash(make):
    pool = make()
    stores = [Unhashable({"a": content}) for content in (b"1", b"2")]
    lazies = [pool.get_lazy(store, "a") for store in [*stores, stores[0]]]
    assert lazies[0].entry is lazies[2].entry
    assert [lazy.get() for lazy in lazies] == [b"1", b"2", b"1"]


def test_primary_names_are_resolved_when_they_are_referred_to(make):
    pool = make()
    store = DecodeFileStore(Counting({"k.txt": b"1", "l.txt": b"2"}), decoder=Upper())
    lazies = [pool.get_lazy(PrimaryFileStore(store, key), ".txt") for key in ("k", "l", "k")]
    assert lazies[0].entry is lazies[2].entry
    assert lazies[0] == lazies[2] != lazies[1]
    assert len(set(lazies)) == 2
    assert [lazy.get() for lazy in lazies] == ["k.txt: 1", "l.txt: 2", "k.txt: 1"]


def test_pickled_references_read_for_themselves(make, tmp_path):
    (tmp_path / "a.txt").write_text("hello")
    pool = make()
    lazy = pool.get_lazy(SystemFileStore(tmp_path), "a.txt")
    put = pool.to_cache({"n": 1}, "numbers")
    copies = pickle.loads(pickle.dumps([lazy, put, NoCachePool().to_cache(2, "two")]))
    pool.close()
    assert [each.get() for each in copies] == [b"hello", {"n": 1}, 2]
    assert copies[0] == lazy


def test_mocks_call_their_function():
    lazy = MockLazy("a", str.upper)
    assert (lazy.get(), lazy.get({})) == ("A", "A")
    assert lazy == MockLazy("a", str.upper) != MockLazy("b", str.upper)


def in_a_process(pool, folder, sender):
    lazy = pool.get_lazy(SystemFileStore(folder), "a.txt")
    fetched(lazy)
    own = str(pool.cache_dir)
    sender.send((own, len(list(pool.cache_dir.iterdir())), lazy.get()))
    pool.close()


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
    assert len(list(pool.cache_dir.iterdir())) == 1
    assert lazy.get() == b"hello"


def test_a_fork_uses_the_references_of_its_parent(make, tmp_path):
    """It reads for itself, and neither its references nor its end touch the parent's files."""
    (tmp_path / "a.txt").write_text("hello")
    pool = make()
    lazy = pool.get_lazy(SystemFileStore(tmp_path), "a.txt")
    fetched(lazy)
    child = os.fork()
    if child == 0:
        good = lazy.get() == b"hello" and pool.current_cache_count == 0
        del lazy
        gc.collect()
        os._exit(0 if good else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert lazy.entry.refcount == 1
    assert len(list(pool.cache_dir.iterdir())) == 1


PROGRAM = """
import sys, time
from energize.extras.cache import FileStoreCachePool
from energize.data.stores import SystemFileStore
pool = FileStoreCachePool(parent_cache_dir=sys.argv[1])
lazy = pool.get_lazy(SystemFileStore(sys.argv[2]), "a.txt")
lazy.entry.send_to_cache_future.result(10)
print("ready", flush=True)
if sys.argv[3] == "wait":
    time.sleep(60)
if sys.argv[3] == "raise":
    raise ValueError
"""


def started(tmp_path, how):
    (tmp_path / "a.txt").write_text("hello")
    arguments = [sys.executable, "-c", PROGRAM, str(tmp_path / "cache"), str(tmp_path), how]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout.readline() == b"ready\n"
    return process


@pytest.mark.parametrize("how", ["end", "raise"])
def test_the_end_of_a_process_leaves_nothing(tmp_path, how):
    process = started(tmp_path, how)
    process.wait(30)
    process.stdout.close()
    assert folders(tmp_path) == []


def test_what_a_killed_process_left_goes_with_the_next_pool(make, tmp_path):
    living, killed = started(tmp_path, "wait"), started(tmp_path, "wait")
    assert len(folders(tmp_path)) == 2
    killed.send_signal(signal.SIGKILL)
    killed.wait(30)
    pool = make()
    assert pool.cache_dir in folders(tmp_path)
    assert len(folders(tmp_path)) == 2
    living.kill()
    living.wait(30)
    pool.close()
    assert folders(tmp_path) == []
    for process in (living, killed):
        process.stdout.close()


def test_the_folder_is_private_and_others_are_left_alone(make, tmp_path):
    mine = tmp_path / "cache" / "energize-cache-notes"
    mine.mkdir(parents=True)
    pool = make()
    assert pool.cache_dir.stat().st_mode & 0o777 == 0o700
    pool.close()
    assert mine.exists()
    mine.rmdir()


@pytest.mark.parametrize(
    "wrong",
    [
        {"method": "zip"},
        {"num_workers": 0},
        {"max_cache_count": -1},
        {"max_cache_size_gbytes": float("nan")},
        {"max_cache_size_gbytes": "1"},
        {"parent_cache_dir": "s3://bucket"},
    ],
)
def test_wrong_arguments(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong)) if "s3" not in str(wrong) else "s3"):
        FileStoreCachePool(**wrong)


def test_a_parent_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="no folder for a cache can be made below"):
        _ = FileStoreCachePool(parent_cache_dir=tmp_path / "file").cache_dir


def test_the_active_pool():
    assert isinstance(active_pool(), NoCachePool)
    outer, inner = NoCachePool(), NoCachePool()
    with activate(outer):
        with activate(inner):
            assert active_pool() is inner
        with activate(None):
            assert active_pool() is outer
    assert active_pool() is not outer
