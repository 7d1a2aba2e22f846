"""The process that fetches from object storage for its parent; see `fetching.py`.

`python -m energize.data.sidecar` has one end of a connection as standard input, and
exits when the other end closes. It stores ranges in the node cache, and returns those
that the cache refuses. Ranges that another process of the node fetches are claimed in
the cache; it waits for these.

A separate process is needed because obstore, the fastest client, deadlocks in processes
forked after its use, and workers are forked.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import random
import re
import sys
import time
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from datetime import timedelta
from functools import lru_cache, partial
from hashlib import blake2b
from multiprocessing.connection import Connection
from operator import itemgetter
from statistics import quantiles
from typing import Any
from urllib.parse import unquote

from energize.data.local import FAR_BLOCK, IN_FLIGHT, merged
from energize.data.nodecache import NodeCache
from energize.errors import ConfigError, nearest

Call = Callable[[], Awaitable[Any]]

_log = logging.getLogger("energize")

# Seconds: for one answer; until something is given up; the same for a store that has
# not given any answer yet, whose name is perhaps wrong; the longest pause; between
# words on what is waited for.
_ANSWER = 30
_DEADLINE = 120
_FIRST = 10
_PAUSE = 8
_WORDS = 5

_OBSTORE = ("s3", "s3a", "gs", "gcs", "az", "azure", "abfs", "abfss", "http", "https")

# Pattern in an error, its number, and the message; the first match counts.
_FAULTS = (
    ("_Elsewhere", errno.EALREADY, "another process of this machine fetches it"),
    ("code: 416|_Changed", errno.ESTALE, "it has changed"),
    ("NoSuchBucket|ContainerNotFound", errno.ENODEV,
     "the bucket does not exist. Correct its name"),
    ("FileNotFound|code: 404", errno.ENOENT, os.strerror(errno.ENOENT)),
    ("ExpiredToken|RequestExpired", errno.EACCES,
     "the credentials have expired. Renew them"),
    ("169.254.|metadata.google|token request|Account must be|Missing \\w+Key",
     errno.ENOKEY,
     "credentials are missing. Set {keys}, or see docs/storage.md for public data"),
    ("without LOCATION|HeaderMalformed|expecting '|code: 400", errno.EACCES,
     "it is refused{code}. On S3, renew expired credentials, or set AWS_REGION if the "
     "bucket is in another region{region}"),
    ("code: 409", errno.EACCES, "it is refused{code}"),
    ("panicked", errno.EACCES,
     "its endpoint is not a URL. Set AWS_ENDPOINT_URL and the like to http://... or "
     "https://..."),
    ("TooManyRedirects", errno.ELOOP, "it redirects forever. Correct the URL"),
    ("code: 40[13]|Permission|Unauthenticated|Forbidden", errno.EACCES,
     "it is forbidden{code}: these credentials may not do that, or it is missing. "
     "Correct them"),
    ("Range request|non-partial|code: 405|code: 501|NotSupported|NotImplemented",
     errno.EOPNOTSUPP,
     "its server cannot do that{code}: it must support ranges, lists of folders that "
     "are not prepared, and PUT for writing"),
    ("code: (429|503)|SlowDown", errno.EAGAIN, "the store throttles requests{code}"),
    ("dns error|Name or service|name resolution", errno.EHOSTUNREACH,
     "its host name cannot be resolved. Correct it, or check the network"),
    ("InvalidCertificate|CERTIFICATE_VERIFY", errno.EACCES,
     "the certificate of its host is not trusted. Set SSL_CERT_FILE to the "
     "certificate of its issuer"),
    ("kind: Connect", errno.ECONNREFUSED,
     "its host cannot be reached. Check the network"),
    ("Timeout", errno.ETIMEDOUT, "no answer"),
)  # fmt: skip
_EXTRAS = ("remote", "hf", "msc")
_KEYS = {
    **dict.fromkeys(("gs", "gc"), "GOOGLE_APPLICATION_CREDENTIALS"),
    **dict.fromkeys(
        ("az", "ab"), "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY"
    ),
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE (with boto3)",
}
_SILENT = (errno.EHOSTUNREACH, errno.ECONNREFUSED, errno.ETIMEDOUT, errno.ENOKEY)
_PASSING = (*_SILENT, errno.EALREADY, errno.EAGAIN, errno.EIO)


class _Changed(Exception):  # noqa: N818
    """The object has another version than requested."""


class _Elsewhere(Exception):  # noqa: N818
    """Another process is fetching the same range."""


def shown(url: str) -> str:
    """Return a URL for messages, logs and names, without passwords and signatures.

    >>> (
    ...     shown("https://me:secret@a.org/b.tar?X-Amz-Signature=secret"),
    ...     shown("s3://bucket/a b"),
    ... )
    ('https://a.org/b.tar', 's3://bucket/a b')
    """
    scheme, separator, rest = url.partition("://")
    host, slash, path = rest.partition("?")[0].partition("/")
    if ":" in host or not scheme.startswith("abfs"):  # Azure puts containers there, too
        host = host.rpartition("@")[2]
    return f"{scheme}{separator}{host}{slash}{path}"


@lru_cache(4096)
def key_of(url: str, size: int, tag: str) -> str:
    """Return the key of an object in the node cache."""
    query = blake2b(url.partition("?")[2].encode(), digest_size=8).hexdigest()
    return f"{shown(url)}\n{query if '?' in url else ''}\n{tag}\n{size}"


class _Obstore:
    """A bucket or a host, accessed by obstore."""

    answered = False

    def __init__(self, scheme: str, bucket: str, query: str) -> None:
        import obstore
        from obstore import store

        options: dict[str, Any] = {
            "client_options": {
                "allow_http": True,
                "timeout": "1h",
                "connect_timeout": "5s",
            },
            "retry_config": {"max_retries": 0, "retry_timeout": timedelta(0)},
        }
        self._http = scheme.startswith("http")
        url = f"{scheme.replace('gcs', 'gs')}://{bucket}{query}"
        profile = "AWS_PROFILE" in os.environ or os.path.exists(
            os.path.expanduser("~/.aws")
        )
        if (
            scheme.startswith("s3")
            and profile
            and "AWS_ACCESS_KEY_ID" not in os.environ
        ):
            with suppress(ImportError, ValueError):  # obstore does not read it
                from obstore.auth.boto3 import Boto3CredentialProvider

                options["credential_provider"] = Boto3CredentialProvider()
        self._all = obstore
        make = store.HTTPStore if self._http else store.from_url
        self._store: Any = make(url, **options)
        parts = False if self._http else None
        self.put = partial(obstore.put_async, self._store, use_multipart=parts)
        self.delete = partial(obstore.delete_async, self._store)

    async def stat(self, path: str) -> tuple[int, str]:
        try:
            meta = await self._all.head_async(self._store, path)
        except Exception as error:
            if not self._http or not re.search("code: 40[35]", str(error)):
                raise
            meta = (
                await self._all.get_async(self._store, path)
            ).meta  # signed for GET only
        return meta["size"], _tag(meta)

    async def get(self, path: str, begin: int, end: int, tag: str) -> Any:
        answer = await self._all.get_async(
            self._store, path, options={"range": (begin, end)}
        )
        if _tag(answer.meta) != tag:
            raise _Changed
        return await answer.bytes_async()

    async def listing(
        self, path: str, recursive: bool, most: int
    ) -> list[tuple[str, Any]]:
        if not recursive:
            listed = await self._all.list_with_delimiter_async(
                self._store, path or None
            )
            folders = [(entry, None) for entry in listed["common_prefixes"]]
            return folders + [
                (entry["path"], entry["size"]) for entry in listed["objects"]
            ]
        names: list[tuple[str, Any]] = []
        async for page in self._all.list(self._store, path or None, chunk_size=1000):
            names += ((entry["path"], entry["size"]) for entry in page)
            if len(names) > most:
                break
        return names

    async def holds(self, path: str) -> bool:
        try:
            async for page in self._all.list(self._store, path or None, chunk_size=1):
                return bool(page)
        except Exception:
            if not self._http:
                raise
            # Most of these servers list nothing; what they have is prepared.
            return bool(await self.stat(f"{path}/.nv-meta/.info.json".lstrip("/")))
        return False


def _upload_seconds(data: Any) -> float:
    """Return how long an upload may take, at 100 KB/s or faster."""
    size = len(data) if isinstance(data, bytes) else data.stat().st_size
    return size / 100_000


def _tag(meta: Any) -> str:
    return str(meta["e_tag"] or meta["version"] or meta["last_modified"].isoformat())


class _Fsspec:
    """A store accessed by fsspec, with the configuration of fsspec.

    Changes of objects are detected by `stat`, not by each request.
    """

    answered = False

    def __init__(self, url: str) -> None:
        from fsspec.core import strip_protocol, url_to_fs

        self._fs, _ = url_to_fs(url, use_listings_cache=False)
        self._options = {"cache_type": "none"} if url.startswith("hf:") else {}
        self.delete = partial(asyncio.to_thread, self._fs.rm_file)
        self.holds = partial(asyncio.to_thread, self._fs.isdir)
        self.path = strip_protocol

    async def stat(self, path: str) -> tuple[int, str]:
        info = await asyncio.to_thread(self._fs.info, path)
        if info["type"] == "directory":
            raise FileNotFoundError
        return info["size"], await asyncio.to_thread(self._fs.ukey, path)

    async def put(self, path: str, data: Any) -> None:
        if isinstance(data, bytes):
            await asyncio.to_thread(self._fs.pipe_file, path, data)
        else:
            await asyncio.to_thread(self._fs.put_file, os.fspath(data), path)

    async def get(self, path: str, begin: int, end: int, tag: str) -> Any:
        # The Hub's files would be read 5 MiB at a time.
        return await asyncio.to_thread(
            self._fs.cat_file, path, begin, end, **self._options
        )

    async def listing(
        self, path: str, recursive: bool, most: int
    ) -> list[tuple[str, Any]]:
        depth = {} if recursive else {"maxdepth": 1, "withdirs": True}
        entries = await asyncio.to_thread(self._fs.find, path, detail=True, **depth)
        return [
            (e["name"], e["size"] if e["type"] == "file" else None)
            for e in entries.values()
        ]


class _Slots:
    """Limits requests in flight: reduced when a store throttles, then raised again.

    Planned requests wait for all others.
    """

    def __init__(self) -> None:
        self.most = float(IN_FLIGHT)
        self._busy = 0
        self._halved = 0.0
        self._waiting: tuple[dict[Any, asyncio.Future[None]], ...] = {}, {}

    async def take(self, name: Any, planned: bool) -> None:
        turn = self._waiting[planned][name] = asyncio.get_running_loop().create_future()
        self._next()
        await turn

    def hurry(self, name: Any) -> None:
        """Move a planned request to the other requests."""
        if turn := self._waiting[1].pop(name, None):
            self._waiting[0][name] = turn

    def release(self, error: int) -> None:
        self._busy -= 1
        if error != errno.EAGAIN:
            self.most = min(IN_FLIGHT, self.most + 1 / self.most)
        elif (
            time.monotonic() - self._halved > 1
        ):  # requests in flight report the same throttling
            self.most, self._halved = max(1.0, self.most / 2), time.monotonic()
        self._next()

    def _next(self) -> None:
        while (waiting := self._waiting[0] or self._waiting[1]) and self._busy < int(
            self.most
        ):
            self._busy += 1
            waiting.pop(next(iter(waiting))).set_result(None)


class Sidecar:
    """Handles requests: `ranges` for byte ranges, `call` for everything else."""

    def __init__(self, cache: Any) -> None:
        self._young = time.monotonic() + 1
        self._cache = cache
        self._open = dict[object, tuple[str, str, int, float]]()
        self._slots, self._stores = _Slots(), dict[tuple[str, ...], Any]()
        self._looked = dict[str, asyncio.Future[Any]]()
        self._flying = dict[
            tuple[str, bool], dict[tuple[int, int], asyncio.Task[Any]]
        ]()
        self._seconds: deque[float] = deque(maxlen=200)
        self._slow = float(_ANSWER)
        self._count = 0
        self._twice = 0

    async def call(self, url: str, method: str, *arguments: Any) -> Any:
        """Call a method of the store of a URL."""
        look = self._looked.pop(url, None)
        if method == "stat" and look is not None:  # planned reads have looked it up
            return await look
        store, path = self._at(url)
        seconds: float = _ANSWER if method in ("stat", "holds", "delete") else _DEADLINE
        if method == "put":
            seconds += _upload_seconds(arguments[0])
        call = partial(getattr(store, method), path, *arguments)
        answer = await self._answer(url, store, call, seconds)
        if method == "listing":
            cut = ((name[len(path) :].strip("/"), size) for name, size in answer)
            return [entry for entry in cut if entry[0]][: arguments[1] + 1]
        return answer if method in ("stat", "holds") else None

    async def plan(
        self,
        url: str,
        object_stat: tuple[int, str] | None,
        spans: list[tuple[int, int]],
    ) -> None:
        """Fetch ranges or a whole object into the cache; see `fetching.plan`."""
        if object_stat is None:
            store, path = self._at(url)
            answer = self._answer(url, store, partial(store.stat, path), _ANSWER)
            look = self._looked[url] = asyncio.ensure_future(answer)
            # Drop an unused result: the object may change before it is read.
            asyncio.get_running_loop().call_later(_ANSWER, self._looked.pop, url, None)
            object_stat = await look
        size = object_stat[0]
        ranges = []
        for start, stop in spans or [(0, 0)]:
            begin = max(0, start + size) if start < 0 else start
            end = min(size, stop if stop > 0 else stop + size)
            ranges += [(begin, end)] if begin < end else []
        await self.ranges(url, object_stat, ranges, "planned")

    async def ranges(  # noqa: C901, PLR0915
        self, url: str, object_stat: Any, spans: list[tuple[int, int]], how: str
    ) -> Any:
        """Fetch ranges, in ascending order, into the cache.

        Args:
            url: The object.
            object_stat: Its size and version.
            spans: The ranges.
            how: `"carried"` bypasses the cache, `"planned"` runs after all others.

        Returns:
            Per range its bytes; None if they are cached.
        """
        key = key_of(url, *object_stat)
        (store, path) = self._at(url)
        carried = how == "carried"
        planned = how == "planned"

        async def piece(name: Any, begin: int, end: int) -> Any:
            """Fetch bytes; return None once they are cached."""
            # Others may have fetched it while this process was starting.
            look = planned or time.monotonic() < self._young
            until = time.monotonic() + _DEADLINE / 2

            async def get(first: int = begin, last: int = end) -> memoryview:
                data = memoryview(await store.get(path, first, last, object_stat[1]))
                if len(data) != last - first:
                    raise EOFError(f"received {len(data)} of {last - first} bytes")
                return data

            async def keep() -> Any:
                nonlocal look
                if carried:
                    return await self._hedged(get)
                if planned and self._cache.failing:
                    return None
                with self._cache.claim(key, begin, end) or nullcontext() as claim:
                    gaps = [(begin, end)]
                    if look:
                        gaps = self._cache.missing(key, begin, end, look=not planned)
                    if not gaps:
                        return None
                    look = True
                    if claim is None and time.monotonic() < until:
                        raise _Elsewhere
                    first = gaps[0][0]
                    last = gaps[-1][1]
                    data = await self._hedged(partial(get, first, last))
                    if self._cache.write(key, first, data) or planned:
                        return None
                    return (
                        data
                        if (first, last) == (begin, end)
                        else await self._hedged(get)
                    )

            return await self._answer(url, store, keep, _DEADLINE, (name, planned))

        flying = self._flying.setdefault((key, carried), {})
        # Without the cache, fetched bytes beyond the request would be lost.
        block = FAR_BLOCK // 64 if self._cache.failing else FAR_BLOCK
        runs = list(merged(spans, object_stat[0], block))
        firsts = sorted(flying)

        def sent(begin: int, end: int) -> tuple[int, asyncio.Task[Any]]:
            """Return the task that fetches these bytes, and its first byte."""
            at = bisect_right(firsts, (begin, sys.maxsize))
            previous = firsts[max(0, at - 1) : at]
            run = previous[0] if previous and end <= previous[0][1] else (begin, end)
            name = key, *run, carried
            if run not in flying:
                flying[run] = asyncio.create_task(piece(name, begin, end))
                flying[run].add_done_callback(lambda _: flying.pop(run))
            elif not planned:
                self._slots.hurry(name)
            return run[0], flying[run]

        tasks = [sent(*run) for run in runs]
        got = await asyncio.gather(*(task for _, task in tasks))
        if planned:
            return None

        def cut(start: int, stop: int) -> bytes | None:
            low = bisect_right(runs, (start, sys.maxsize)) - 1
            high = bisect_left(runs, (stop,))
            parts: list[Any] = [
                None
                if data is None
                else data[max(start, first) - begin : min(stop, end) - begin]
                for (first, end), (begin, _), data in zip(
                    runs[low:high], tasks[low:high], got[low:high], strict=True
                )
            ]
            return None if None in parts else b"".join(parts)

        return [cut(*span) for span in spans]

    async def _answer(
        self,
        url: str,
        store: Any,
        call: Call,
        seconds: float,
        turn: tuple[Any, bool] | None = None,
    ) -> Any:
        """Return the answer of a request; retry temporary failures for a time."""
        start = time.monotonic()
        tries = 0
        message = "no answer yet"
        mark = object()
        while True:
            await self._slots.take(*(turn or (object(), False)))
            number = 0
            self._open[mark] = url, message, tries, start
            try:
                async with asyncio.timeout(seconds):
                    answer = await call()
                store.answered = True
                return answer
            except Exception as error:
                fault = _fault(error, url)
                number = fault.errno or 0
            finally:
                del self._open[mark]
                self._slots.release(number)
            tries = tries + 1
            waited = time.monotonic() - start
            store.answered |= number not in _SILENT
            if number not in _PASSING or (
                number == errno.ENOKEY and not store.answered
            ):
                raise fault
            most = 0.05 if number == errno.EALREADY else _PAUSE
            pause = random.uniform(0.5, 1) * min(most, 0.1 * 2**tries)  # noqa: S311
            if waited + pause > (_DEADLINE if store.answered else _FIRST):
                message = (
                    f"given up at try {tries}, after {waited:.0f} s: {fault.strerror}"
                )
                raise OSError(
                    errno.ETIMEDOUT if store.answered else number, message, shown(url)
                )
            message = fault.strerror or ""
            self._open[mark] = url, message, tries, start
            await asyncio.sleep(pause)

    def word(self) -> str:
        """Describe the request that waits longest; empty if none waits long."""
        none = "", "", 0, time.monotonic()
        url, message, tries, start = min(
            self._open.values(), key=itemgetter(3), default=none
        )
        waited = time.monotonic() - start
        if waited < (1 if tries else _WORDS):
            return ""
        return (
            f"waiting for {shown(url)}: {message}; try {max(1, tries)}, {waited:.0f} s "
            "so far"
        )

    async def _hedged(self, get: Call) -> Any:
        """Return the first answer of a request or of a second, hedging one.

        The second request is sent if the first takes twice as long as 95 % of requests.
        At most one in twenty is repeated, since all are slow when a link is full, and
        none while a store throttles.
        """
        start = time.monotonic()
        tasks: list[asyncio.Future[Any]] = [asyncio.ensure_future(get())]
        try:
            done, rest = await asyncio.wait(tasks, timeout=self._slow)
            calm = self._slots.most > IN_FLIGHT / 2
            if rest and calm and 20 * self._twice <= self._count:
                self._twice += 1
                tasks.append(asyncio.ensure_future(get()))
                rest = set(tasks)
            while rest and all(task.exception() for task in done):
                done, rest = await asyncio.wait(
                    rest, timeout=_ANSWER, return_when=asyncio.FIRST_COMPLETED
                )
                if not done:
                    raise TimeoutError
            data = min(done, key=lambda task: task.exception() is not None).result()
            self._seconds.append(time.monotonic() - start)
            self._count += 1
            if self._count % 20 == 0:
                self._slow = max(0.5, 2 * quantiles(self._seconds, n=20)[-1])
            return data
        finally:
            for task in tasks:
                task.cancel()

    def _at(self, url: str) -> tuple[Any, str]:
        """Return the store of a URL, and the path in the store."""
        scheme, _, rest = url.partition("://")
        rest = rest.rstrip("/")
        query = ""
        is_native = scheme in _OBSTORE
        if scheme.startswith("http"):
            rest, mark, query = rest.partition("#")[0].partition("?")
            query = mark + query
            rest = unquote(rest)
        bucket, _, path = rest.partition("/")
        if is_native and not bucket:
            raise ConfigError(f"{url}: the bucket or host is missing after {scheme}://")
        key = (scheme, bucket, query) if is_native else (scheme,)
        if key not in self._stores:
            try:
                self._stores[key] = _Obstore(*key) if is_native else _Fsspec(url)
            except Exception as error:
                raise _no_store(error, url, scheme) from None
            signed = [old for old in self._stores if old[2:] > ("",)]
            for old in signed[:-100]:  # signed URLs have a store each
                del self._stores[old]
        store = self._stores[key]
        return store, path if is_native else store.path(url)


def _no_store(error: Exception, url: str, scheme: str) -> Exception:
    """Return the error for a failure to open the store of a URL."""
    location = f"{shown(url)}: {scheme}://"
    is_unknown = "rotocol not known" in str(error)
    extra = "remote" if scheme in _OBSTORE else scheme
    # fsspec does not know protocols that an absent library registers.
    if isinstance(error, ImportError) or (is_unknown and extra in _EXTRAS):
        remedy = f': pip install "energize[{extra}]"' if extra in _EXTRAS else ""
        return ConfigError(f"{location} needs a library ({error}){remedy}")
    if not is_unknown:
        return _fault(error, url)
    hint = (
        nearest(scheme, _OBSTORE) or "; supported are s3, gs, az, https, hf and others"
    )
    return ConfigError(f"{location} is not a known scheme{hint}")


def _fault(error: Exception, url: str) -> OSError:
    """Convert an error of a library to an OSError, in one line and without secrets."""
    status = getattr(getattr(error, "response", error), "status_code", None)
    text = f"{type(error).__name__} {error}" + (f" code: {status}" if status else "")
    code = re.search(r"<Code>(\w+)", text) or re.search(r"code: (\d\d\d[^:\n]*)", text)
    region = re.search(r"(?:<Region>|expecting ')([\w-]+)", text)
    code_text = f" ({code[1].strip()})" if code else ""
    region_text = f", {region[1]}" if region else ""
    for pattern, number, reason in _FAULTS:
        if re.search(pattern, text):
            keys = _KEYS.get(url[:2], "what its library needs")
            message = reason.format(code=code_text, region=region_text, keys=keys)
            return OSError(number, message, shown(url))
    noise = r"Generic \w+ error: |HTTP error: |Error performing \w+ \S+ in \S+ - |\?\S+"
    line = re.sub(noise, "", str(error)).split("\n")[0]
    lasting = isinstance(error, ValueError | TypeError | AttributeError) or re.search(
        "code: 4(?!08)|invalid path|offline mode", text
    )
    reason = line[:400].strip() or type(error).__name__
    # Not EINVAL or ENOENT, which mean a bad file name: a fault of the sample.
    return OSError(errno.EACCES if lasting else errno.EIO, reason, shown(url))


async def _serve(connection: Connection) -> None:
    """Handle requests until the other end is closed."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.set_exception_handler(lambda *_: None)  # the slower of two requests may fail
    loop.set_default_executor(ThreadPoolExecutor(IN_FLIGHT))
    tasks: set[asyncio.Task[None]] = set()
    words = logging.Handler()

    def forward(record: logging.LogRecord) -> None:
        connection.send((None, record.getMessage()))

    words.emit = forward  # type: ignore[method-assign]
    _log.addHandler(words)
    sidecar = Sidecar(NodeCache())

    async def answer(number: int | None, method: str, *arguments: Any) -> None:
        result = None
        failed = None
        try:
            result = await getattr(sidecar, method)(*arguments)
        except Exception as error:
            ours = isinstance(error, OSError | ConfigError)
            failed = error if ours else _fault(error, arguments[0])
        if number is not None:
            connection.send((number, result, failed))

    def receive() -> None:
        try:
            task = asyncio.create_task(answer(*connection.recv()))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        except (EOFError, OSError):
            ended.set()

    loop.add_reader(connection.fileno(), receive)
    while not ended.is_set():
        with suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), _WORDS)
        if tasks:  # a heartbeat for waiting threads
            connection.send((None, sidecar.word()))


if __name__ == "__main__":
    with suppress(EOFError, OSError):
        asyncio.run(_serve(Connection(0)))
    os._exit(0)  # without waiting for threads of libraries
