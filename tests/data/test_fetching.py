"""Object storage: real servers and processes, the faults that stores have, what users
are told."""

import asyncio
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from energize import get_train_dataset
from energize.core import limits
from energize.core.os_errors import os_error_message
from energize.data import fetching, sidecar
from energize.data.files import path_type
from energize.data.remote import RemoteFiles
from energize.errors import ConfigError, ShardError
from tests.support.object_server import FAULTS, counts, object_server, set_faults
from tests.support.s3 import SECRET, s3_server
from tests.support.trying import tried

pytestmark = pytest.mark.jobs

BODY = np.random.default_rng(3).bytes(3_000_000)
NO_FAULTS = FAULTS | {"seconds": 0.4}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("stored")
    with object_server(root) as url:
        yield root, url


@pytest.fixture
def place(server, monkeypatch, tmp_path):
    """A folder below the server, as `s3://`, its path, and the server's URL; an empty
    cache."""
    root, url = server
    set_faults(url, **NO_FAULTS)
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("ENERGIZE_CACHE", str(tmp_path / "cache"))
    fetching._cache.cache_clear()
    folder = root / "bucket" / tmp_path.name
    folder.mkdir(parents=True)
    (folder / "a.tar").write_bytes(BODY)
    yield f"s3://bucket/{tmp_path.name}", folder, url
    stop()


def stop():
    own = fetching._sidecar()
    fetching._forget(own)
    own.end()
    fetching._cache.cache_clear()


def asked(url):
    return counts(url)["requests"]


def wait_until(condition):
    for _ in range(600):
        if condition():
            return
        time.sleep(0.02)
    raise TimeoutError


spans = st.lists(
    st.tuples(st.integers(0, len(BODY)), st.integers(0, 700_000)),
    min_size=1,
    max_size=20,
).map(
    lambda rows: sorted((start, min(start + size, len(BODY))) for start, size in rows)
)


@pytest.mark.parametrize("cached", [True, False])
def test_ranges_are_those_of_the_object_whatever_the_store_does(
    place, monkeypatch, cached
):
    url, _, server = place
    if not cached:  # a disk that refuses all
        monkeypatch.delenv("ENERGIZE_CACHE")
        monkeypatch.setenv("HOME", "/proc/nowhere")
        monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    set_faults(server, errors=0.05, truncated=0.05, slow=0.05)
    found = fetching.stat(f"{url}/a.tar")
    assert found.size == len(BODY)

    @settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
    @given(spans, spans)
    def law(wanted, planned):
        fetching.plan(f"{url}/a.tar", found, *zip(*planned, strict=True))
        starts, stops = zip(*wanted, strict=True)
        got = fetching.ranges(f"{url}/a.tar", found, starts, stops)
        assert got == [BODY[start:stop] for start, stop in wanted]

    law()


def test_what_is_in_the_cache_is_read_without_a_question(place):
    url, _, server = place
    found = fetching.stat(f"{url}/a.tar")
    fetching.plan(f"{url}/a.tar", found, [0, 5], [5, 100_000])
    fetching.ranges(f"{url}/a.tar", found, [0, 900_000], [70_000, 3_000_000])
    fetching.plan(f"{url}/a.tar", found, [0], [70_000])
    stop()
    before = asked(server)
    for read in (
        lambda: fetching.ranges(f"{url}/a.tar", found, [5, 900_000], [9, 2_900_000]),
    ):
        assert read() == [BODY[5:9], BODY[900_000:2_900_000]]
        assert tried(read).value == [BODY[5:9], BODY[900_000:2_900_000]]
    assert fetching._current is None
    assert asked(server) == before


def test_the_end_of_an_object_is_fetched_ahead_beside_what_is_cached(place):
    url, _, _ = place
    path = f"{url}/a.tar"
    found = fetching.stat(path)
    size = len(BODY)
    assert fetching.ranges(path, found, [0, 9], [9, 20]) == [BODY[:9], BODY[9:20]]
    tail = [(size - 1000, size)]
    assert fetching.missing(path, found, tail) == 1000
    fetching.plan(path, found, [0, 9, -1000], [9, 20, 0])
    wait_until(lambda: fetching.missing(path, found, tail) == 0)
    assert fetching.ranges(path, found, [], []) == []


def test_what_nobody_has_looked_at_is_looked_at_and_fetched_ahead(place):
    url, _, server = place
    before = counts(server)["bytes"]
    fetching.plan(f"{url}/a.tar", None, [], [])
    wait_until(lambda: counts(server)["bytes"] >= len(BODY) + before)
    found = fetching.stat(f"{url}/a.tar")
    requests = asked(server)
    assert fetching.ranges(f"{url}/a.tar", found, [0], [len(BODY)]) == [BODY]
    assert asked(server) == requests


def test_each_byte_is_fetched_once_whoever_asks(place):
    url, _, server = place
    set_faults(server, latency=0.1)
    found = fetching.stat(f"{url}/a.tar")
    before = counts(server)["bytes"]

    def read(_):
        return fetching.ranges(f"{url}/a.tar", found, [0], [len(BODY)]) == [BODY]

    with ThreadPoolExecutor(10) as threads:
        children = [threads.submit(tried, lambda: read(0)) for _ in range(2)]
        assert all(threads.map(read, range(8)))
    assert [child.result().value for child in children] == [True, True]
    assert counts(server)["bytes"] - before == len(BODY)


def test_a_forked_child_has_its_own_sidecar_and_its_parent_keeps_one(place):
    url, *_ = place
    name = f"{url}/a.tar"
    assert RemoteFiles().read(name, 0, 9) == BODY[:9]
    ours = fetching._current._process.pid
    ending = tried(
        lambda: (RemoteFiles().read(name, 10, 19), fetching._current._process.pid)
    )
    assert ending.value[0] == BODY[10:19]
    assert ending.value[1] != ours
    assert RemoteFiles().read(name, 20, 29) == BODY[20:29]
    assert fetching._current._process.pid == ours
    assert os.getsid(ours) != os.getsid(0)
    assert b"energize.data.sidecar" in Path(f"/proc/{ours}/cmdline").read_bytes()


PROGRAM = """
import os, signal, sys
from energize.data import fetching
fetching.stat(sys.argv[1])
child = os.fork()
if not child:
    signal.pause()
print(fetching._current._process.pid, child, flush=True)
signal.pause()
"""


def test_a_sidecar_ends_with_its_process_killed_or_not(place):
    url, *_ = place
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, f"{url}/a.tar"], stdout=subprocess.PIPE
    )
    with program:
        pid, child = map(int, program.stdout.readline().split())
        program.kill()
    wait_until(lambda: not Path(f"/proc/{pid}").exists())
    os.kill(child, signal.SIGKILL)  # it had nothing of its parent's


def test_a_killed_sidecar_is_replaced_and_one_that_is_always_killed_is_told_of(
    place, caplog
):
    url, _, server = place
    fetching.stat(f"{url}/a.tar")
    fetching._current._process.kill()
    assert fetching.stat(f"{url}/a.tar").size == len(BODY)
    assert "ended by signal 9. Starting another one" in caplog.text
    set_faults(server, mute=1)
    done = threading.Event()

    def kill():
        while not done.wait(0.1):
            if fetching._current is not None:
                fetching._current._process.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(
        OSError, match=r"ended 3 times, the last time by signal 9.*Use fewer workers"
    ):
        fetching.stat(f"{url}/a.tar")
    done.set()
    killer.join()


def test_a_cache_is_where_it_was_named_wherever_the_process_goes(
    place, monkeypatch, tmp_path
):
    url, _, server = place
    monkeypatch.setenv("ENERGIZE_CACHE", "cache")
    for name in ("named", "gone"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "named")
    found = fetching.stat(f"{url}/a.tar")

    def read():
        monkeypatch.chdir(tmp_path / "gone")
        return fetching.ranges(f"{url}/a.tar", found, [5], [9])

    assert tried(read).value == [BODY[5:9]]  # by a sidecar of its own
    before = asked(server)
    assert read() == [BODY[5:9]]
    assert asked(server) == before


@pytest.mark.parametrize(
    ("name", "value"),
    [("ENERGIZE_CACHE_BYTES", "1000"), ("ENERGIZE_CACHE", "/proc/nope")],
)
def test_a_cache_that_is_set_wrongly_is_told_by_who_reads(name, value, monkeypatch):
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=name):
        fetching.stat("memory://a/b")


@pytest.mark.parametrize("scheme", ["s3", "http"])
def test_an_object_that_is_another_one_now_is_told_of(place, scheme):
    url, folder, server = place
    name = f"{url}/a.tar" if scheme == "s3" else f"{server}/bucket/{folder.name}/a.tar"
    found = fetching.stat(name)
    for change in (
        lambda: (folder / "a.tar").write_bytes(BODY[::-1]),
        lambda: (folder / "a.tar").write_bytes(BODY[:100]),
        (folder / "a.tar").unlink,
    ):
        change()
        with pytest.raises(
            ShardError, match=r"a\.tar has changed since it was first read"
        ):
            fetching.ranges(name, found, [1_000_000], [1_000_100])


def test_objects_are_written_listed_and_removed(place, monkeypatch):
    url, folder, server = place
    fetching.write(f"{url}/b/new name #1?.json", b"{}")
    fetching.write(f"{url}/b/large", BODY * 4)
    assert RemoteFiles().read(f"{url}/b/new name #1?.json") == b"{}"
    assert (folder / "b" / "large").read_bytes() == BODY * 4
    assert fetching.listing(url) == [("a.tar", len(BODY)), ("b", None)]
    assert fetching.listing(f"{url}/", recursive=True) == [
        ("a.tar", len(BODY)),
        ("b/large", 4 * len(BODY)),
        ("b/new name #1?.json", 2),
    ]
    assert fetching.listing(f"{url}/nowhere") == []
    monkeypatch.setattr(limits, "OBJECTS", 1)
    for recursive in (False, True):
        with pytest.raises(OSError, match=r"too many names.*limits\.OBJECTS"):
            fetching.listing(url, recursive)
    fetching.delete(f"{url}/a.tar")
    assert not (folder / "a.tar").exists()
    fetching.write(f"{server}/bucket/{folder.name}/by%20http", b"x")
    assert (folder / "by http").read_bytes() == b"x"
    fetching.write("memory://all/b", b"hello")
    assert RemoteFiles().read("memory://all/b", 1) == b"ello"


def test_fsspec_serves_what_obstore_does_not(tmp_path, monkeypatch):
    monkeypatch.setenv("ENERGIZE_CACHE", str(tmp_path / "cache"))
    fetching._cache.cache_clear()
    url = f"file://{tmp_path}/data"
    (tmp_path / "data" / "b").mkdir(parents=True)
    fetching.write(f"{url}/a.tar", BODY)
    found = fetching.stat(f"{url}/a.tar")
    assert fetching.ranges(f"{url}/a.tar", found, [3], [2_000_000]) == [
        BODY[3:2_000_000]
    ]
    fetching.write(f"{url}/b/c", b"x")
    assert fetching.listing(url) == [("a.tar", len(BODY)), ("b", None)]
    assert fetching.listing(url, recursive=True) == [("a.tar", len(BODY)), ("b/c", 1)]
    fetching.delete(f"{url}/a.tar")
    with pytest.raises(FileNotFoundError):
        fetching.stat(f"{url}/a.tar")
    stop()


@pytest.mark.parametrize(
    "lacking",
    [
        # Its entry point is not there; or it is, and cannot be imported.
        "from fsspec.registry import known_implementations as known; known.pop('msc', None)",
        "import sys; sys.modules['multistorageclient'] = None",
    ],
)
def test_a_library_that_is_missing_is_named_whatever_its_scheme_is(
    tmp_path, monkeypatch, lacking
):
    (tmp_path / "sitecustomize.py").write_text(lacking)
    monkeypatch.syspath_prepend(tmp_path)  # of the fetching process, too
    monkeypatch.setenv("ENERGIZE_CACHE", str(tmp_path / "cache"))
    stop()
    mix = tmp_path / "mix.yaml"
    mix.write_text(
        "{__module__: energize, __class__: MetadatasetV2, "
        "splits: {train: {path: 'msc://profile/a'}}}"
    )
    words = (
        r'msc://profile/a\S*: msc:// needs a library .*: pip install "energize\[msc\]"'
    )
    with pytest.raises(ConfigError, match=words):
        get_train_dataset(mix, batch_size=1)
    stop()


def test_s3_as_another_server_speaks_it(tmp_path, monkeypatch):
    home = tmp_path / "home" / ".aws"
    home.mkdir(parents=True)
    secrets = f"aws_access_key_id = key\naws_secret_access_key = {SECRET}\n"
    (home / "credentials").write_text(f"[mine]\n{secrets}")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AWS_PROFILE", "mine")
    monkeypatch.setenv("ENERGIZE_CACHE", str(tmp_path / "cache"))
    fetching._cache.cache_clear()
    with s3_server("bucket") as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        fetching.write("s3://bucket/k/large", BODY * 4)
        found = fetching.stat("s3://bucket/k/large")
        got = fetching.ranges(
            "s3://bucket/k/large", found, [7, 9_000_000], [9, 11_000_000]
        )
        assert got == [BODY[7:9], BODY[:2_000_000]]
        for i in range(30):
            fetching.write(f"s3://bucket/many/{i:04d}", b"x")
        assert len(fetching.listing("s3://bucket/many")) == 30
        fetching.write("s3://bucket/many", b"an object with the name of a folder")
        assert fetching.listing("s3://bucket") == [("k", None), ("many", 35)]
        assert [path_type(f"s3://bucket/{each}") for each in ("many", "k/large")] == [
            "folder",
            "file",
        ]
        options = {"key": "key", "secret": SECRET, "endpoint_url": url}
        fsspec.filesystem("s3", **options).pipe("bucket/odd//b.tar", b"b")
        with pytest.raises(
            OSError, match=r"odd//b\.tar.* contained empty path segment"
        ):
            fetching.listing("s3://bucket/odd", recursive=True)
        fetching.write("s3://bucket/k/large", b"other")
        with pytest.raises(ShardError):
            fetching.ranges("s3://bucket/k/large", found, [10], [20])
        fetching.delete("s3://bucket/k/large")
        with pytest.raises(OSError, match="the bucket does not exist"):
            fetching.listing("s3://nowhere")
        stop()


# What a store answers, the number of the error, and what the user reads.
REFUSED = {
    "404 NoSuchKey": (
        errno.ENOENT,
        "No such file or directory",
        "Restore it, or correct the path",
    ),
    "404 NoSuchBucket": (errno.ENODEV, "the bucket does not exist"),
    "403 AccessDenied": (errno.EACCES, "it is forbidden (AccessDenied)"),
    "403 SignatureDoesNotMatch": (
        errno.EACCES,
        "(SignatureDoesNotMatch)",
        "Correct them",
    ),
    "400 ExpiredToken": (errno.EACCES, "the credentials have expired. Renew them"),
    "400 400": (
        errno.EACCES,
        "renew expired credentials",
        "another region",
    ),  # as for HEAD
    "301 PermanentRedirect": (errno.EACCES, "another region", "or set AWS_REGION"),
    "400 AuthorizationHeaderMalformed": (
        errno.EACCES,
        "another region",
        "or set AWS_REGION",
    ),
    "409 409": (errno.EACCES, "it is refused (409)"),
    "405 MethodNotAllowed": (errno.EOPNOTSUPP, "it must support ranges"),
}


def refusal(call):
    with pytest.raises(OSError) as caught:  # noqa: PT011 - the table says which
        call()
    text = os_error_message(caught.value)
    assert "\n" not in text
    assert "Debug" not in text
    return caught.value.errno, text


def test_what_a_store_refuses_is_told_in_words(place, monkeypatch, caplog):
    url, folder, server = place
    for answer, (number, *words) in REFUSED.items():
        set_faults(server, answer=answer)
        found, text = refusal(lambda: fetching.listing(url))
        assert (found, [word for word in words if word not in text]) == (number, []), (
            text
        )
        assert text.startswith(f"{url}: cannot be read")
    set_faults(server, answer="")
    found = fetching.stat(f"{url}/a.tar")
    set_faults(server, answer="200 Welcome")
    read = refusal(lambda: fetching.ranges(f"{url}/a.tar", found, [3], [9]))
    assert (read[0], "it must support ranges" in read[1]) == (errno.EOPNOTSUPP, True)
    set_faults(server, answer="")
    signed = f"{server.replace('//', '//me:hidden@')}/bucket/none?sig=hidden"
    rows = {
        f"{signed}": (errno.ENOENT, "bucket/none"),
        f"{server}/__loop__/a": (errno.ELOOP, "redirects forever"),
        f"{url}//a": (errno.EACCES, "empty path segment"),
    }
    for name, (number, *words) in rows.items():
        found, text = refusal(lambda name=name: RemoteFiles().read(name))
        assert (found, [word for word in words if word not in text]) == (number, []), (
            text
        )
        assert "hidden" not in text + caplog.text
    assert refusal(lambda: fetching.listing(f"{server}/bucket"))[0] == errno.EOPNOTSUPP
    for name, words in {
        "s4://bucket/a": "not a known scheme",
        "htps://a.org/a": "did you mean 'https'",
    }.items():
        with pytest.raises(ConfigError, match=words):
            fetching.stat(name)
    # Where there are no credentials, that is told at once; those that are set then
    # count.
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://169.254.1.1:1")
    stop()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
        found, text = refusal(lambda: fetching.stat(f"{url}/a.tar"))
        assert (found, "Set AWS_ACCESS_KEY_ID" in text) == (errno.ENOKEY, True), text
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    assert fetching.stat(f"{url}/a.tar").size == len(BODY)
    stop()
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.partition("://")[2])
    found, text = refusal(lambda: fetching.stat(f"{url}/a.tar"))
    assert (found, "Set AWS_ENDPOINT_URL and the like to http://" in text) == (
        errno.EACCES,
        True,
    ), text


def test_what_passes_is_waited_for_and_given_up_at_the_deadline(place, caplog):
    url, _, server = place
    set_faults(server, answer="503 SlowDown")
    words = f"waiting for {url}/a.tar: the store throttles requests (503"

    def recover():
        wait_until(lambda: words in caplog.text)
        set_faults(server, answer="")

    recovering = threading.Thread(target=recover)
    recovering.start()
    assert fetching.stat(f"{url}/a.tar").size == len(BODY)
    recovering.join()

    set_faults(server, answer="503 SlowDown")
    for name, kind, *words in (
        (
            f"{url}/a.tar",
            "TimeoutError",
            "given up at try",
            "the store throttles requests (503",
        ),
        (
            "http://127.0.0.1:1/a",
            "ConnectionRefusedError",
            "its host cannot be reached",
        ),
    ):
        ending = tried(lambda name=name: impatient(name))
        assert ending.error == kind
        assert [word for word in words if word not in ending.message] == []


def impatient(url):
    sidecar._DEADLINE = sidecar._FIRST = 1
    return asyncio.run(sidecar.Sidecar(None).call(url, "stat"))


def test_a_store_that_says_nothing_is_told_of_while_it_is_waited_for(place, caplog):
    url, _, server = place
    set_faults(server, mute=1)
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(fetching.stat, f"{url}/a.tar")
        words = f"waiting for {url}/a.tar: no answer yet; try 1, "
        wait_until(lambda: words in caplog.text)
        set_faults(server, mute=0)
        fetching._current._process.kill()  # another one asks again
        assert asked.result().size == len(BODY)


def test_a_slow_request_is_sent_twice(place):
    url, _, server = place
    set_faults(server, slow=0.03, seconds=1)
    found = fetching.stat(f"{url}/a.tar")
    starts = range(0, 3_000_000, 10_000)
    before = asked(server)
    for start in starts:
        got = fetching.ranges(f"{url}/a.tar", found, [start], [start + 9])
        assert got == [BODY[start : start + 9]]
    assert len(starts) < asked(server) - before < 1.2 * len(starts)
