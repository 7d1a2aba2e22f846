"""A small object store on loopback, with the faults of real ones: latency, refusals,
cut bodies.

    python -m tests.support.object_server --port 0 --root DIR --latency 0.03 --errors 0.05

It prints its URL and serves the files below `--root`: GET with ranges and If-Match,
HEAD, PUT, DELETE, and of S3's protocol as much as lists, deletes and uploads in parts
need, with the first part of a path as the bucket; requests need not be signed.
`/__counts__` tells what was asked for, `/__set__?errors=1` changes a fault, and what
lies below `/__loop__/` leads to itself for ever.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import random
import re
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote
from xml.sax.saxutils import escape

PAGE = 1000

# Each may be set while it runs. `answer` is given, "403 AccessDenied" say, to each
# request that has the text `to` in its method and path, "PUT bucket/a.tar"; `mute` is
# whether a connection is taken and nothing said, `seconds` how long a slow answer
# takes; `bandwidth` are the bytes of files in a second, of all answers together, where
# it is not 0.
FAULTS: dict[str, Any] = {
    "latency": 0.0,
    "bandwidth": 0.0,
    "errors": 0.0,
    "truncated": 0.0,
    "slow": 0.0,
    "seconds": 2.0,
    "mute": 0,
    "answer": "",
    "to": "",
}


class Store:
    """The files of a folder, the faults, and what was counted."""

    def __init__(self, root: Path, **faults: Any) -> None:
        self.root, self.faults = root, FAULTS | faults
        self.counts = Counter[str]()
        self.tags: dict[str, tuple[tuple[int, int, int], str]] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.random = random.Random(3)
        self.free = 0.0

    def tag(self, path: Path) -> str:
        found = path.stat()
        signature = found.st_size, found.st_mtime_ns, found.st_ino
        known = self.tags.get(str(path))
        if known is None or known[0] != signature:
            known = signature, hashlib.md5(path.read_bytes()).hexdigest()
            self.tags[str(path)] = known
        return f'"{known[1]}"'

    def answer(
        self, method: str, target: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body; a HEAD's body is what a GET would have."""
        place, _, query = target.partition("?")
        asked = dict(parse_qsl(query, keep_blank_values=True))
        name = unquote(place).strip("/")
        if name == "__counts__":
            return 200, {}, json.dumps(self.counts).encode()
        if name == "__die__":
            os._exit(9)
        if name == "__set__":
            for key, value in asked.items():
                self.faults[key] = type(FAULTS[key])(value)
            return 200, {}, b""
        if name.startswith("__loop__"):
            return 302, {"Location": place}, b""
        self.counts["requests"] += 1
        self.counts[method] += 1
        meant = self.faults["to"] in f"{method} {name}"
        for fault in (
            self.faults["answer"] * meant,
            "503 SlowDown" * self.happens("errors"),
        ):
            if fault:
                return _refused(*fault.split(" ", 1))
        path = self.root / name
        if method == "POST" and "uploads" in asked:
            number = f"upload{len(self.uploads)}"
            self.uploads[number] = {}
            return _xml(f"<R><UploadId>{number}</UploadId></R>")
        if method == "POST" and "uploadId" in asked:
            parts = self.uploads.pop(asked["uploadId"])
            _put(path, b"".join(parts[each] for each in sorted(parts)))
            return _xml(f"<R><ETag>{escape(self.tag(path))}</ETag></R>")
        if method == "POST" and "delete" in asked:
            keys = [
                unquote(each) for each in re.findall("<Key>(.*?)</Key>", body.decode())
            ]
            for key in keys:
                (path / key).unlink(missing_ok=True)
            return _xml(
                "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys),
                1,
            )
        if method == "PUT" and "partNumber" in asked:
            self.uploads[asked["uploadId"]][int(asked["partNumber"])] = body
            return 200, {"ETag": f'"{hashlib.md5(body).hexdigest()}"'}, b""
        if method == "PUT":
            if headers.get("if-none-match") == "*" and path.exists():
                return _refused("412", "PreconditionFailed")
            _put(path, body)
            return 200, {"ETag": self.tag(path)}, b""
        if method == "DELETE":
            path.unlink(missing_ok=True)
            return 204, {}, b""
        if method not in ("GET", "HEAD"):
            return _refused("405", "MethodNotAllowed")
        if "list-type" in asked:
            return (
                self.listing(path, asked)
                if path.is_dir()
                else _refused("404", "NoSuchBucket")
            )
        if not path.is_file():
            return _refused("404", "NoSuchKey")
        return self.file(path, headers, method == "HEAD")

    def file(
        self, path: Path, headers: dict[str, str], head: bool
    ) -> tuple[int, dict[str, str], bytes]:
        found, tag = path.stat(), self.tag(path)
        told = {
            "ETag": tag,
            "Last-Modified": formatdate(found.st_mtime, usegmt=True),
            "Accept-Ranges": "bytes",
        }
        if headers.get("if-match", tag) not in (tag, "*"):
            return _refused("412", "PreconditionFailed")
        span = re.fullmatch(r"bytes=(\d*)-(\d*)", headers.get("range", ""))
        start, stop = 0, found.st_size
        if span and span[1]:
            start, stop = int(span[1]), min(int(span[2] or stop - 1) + 1, stop)
        elif span:
            start = max(0, stop - int(span[2]))
        if span and start >= found.st_size:
            return _refused("416", "InvalidRange")
        if span:
            told["Content-Range"] = f"bytes {start}-{stop - 1}/{found.st_size}"
        if head:
            return 200, told | {"Content-Length": str(stop - start)}, b""
        with path.open("rb") as file:
            body = os.pread(file.fileno(), stop - start, start)
        self.counts["bytes"] += len(body)
        return 206 if span else 200, told, body

    def listing(
        self, bucket: Path, asked: dict[str, str]
    ) -> tuple[int, dict[str, str], bytes]:
        prefix, cut = asked.get("prefix", ""), asked.get("delimiter", "")
        after = asked.get("continuation-token", asked.get("start-after", ""))
        names: dict[str, bool] = {}
        top = bucket / prefix.rpartition("/")[0]
        for each in sorted(top.rglob("*")) if top.is_dir() else ():
            key = each.relative_to(bucket).as_posix()
            if each.is_file() and key.startswith(prefix):
                inside, found, _ = (
                    key[len(prefix) :].partition(cut) if cut else (key, "", "")
                )
                names[prefix + inside + cut if found else key] = bool(found)
        rest = sorted(name for name in names if name > after)
        page = rest[: int(asked.get("max-keys", PAGE))]
        more = len(rest) > len(page)
        text = [f"<IsTruncated>{str(more).lower()}</IsTruncated>"]
        if more:
            text.append(
                f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>"
            )
        for name in page:
            if names[name]:
                text.append(
                    f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"
                )
                continue
            size, tag = (bucket / name).stat().st_size, escape(self.tag(bucket / name))
            text.append(
                f"<Contents><Key>{escape(name)}</Key><Size>{size}</Size><ETag>{tag}</ETag>"
                "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
            )
        return _xml(f"<ListBucketResult>{''.join(text)}</ListBucketResult>")

    def happens(self, fault: str) -> bool:
        found = self.random.random() < self.faults[fault]
        self.counts[fault] += found
        return bool(found)


def _put(path: Path, body: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.new")
    new.write_bytes(body)
    new.replace(path)


def _xml(text: str, results: int = 0) -> tuple[int, dict[str, str], bytes]:
    text = f"<DeleteResult>{text}</DeleteResult>" if results else text
    return (
        200,
        {"Content-Type": "application/xml"},
        f"<?xml version='1.0'?>{text}".encode(),
    )


def _refused(status: str, code: str) -> tuple[int, dict[str, str], bytes]:
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code}</Message></Error>"
    return int(status), {"Content-Type": "application/xml"}, body.encode()


class Connection(asyncio.Protocol):
    """Requests of one connection, one after the other."""

    def __init__(self, store: Store) -> None:
        self.store, self.data = store, b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.store.counts["connections"] += 1

    def data_received(self, data: bytes) -> None:
        self.data += data
        head, found, rest = self.data.partition(b"\r\n\r\n")
        if not found:
            return
        first, *lines = head.decode("latin-1").split("\r\n")
        split = (line.partition(":") for line in lines)
        headers = {name.lower(): value.strip() for name, _, value in split}
        length = int(headers.get("content-length", 0))
        if headers.get("expect") == "100-continue" and not rest:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if len(rest) < length:
            return
        self.data = rest[length:]
        method, target, _ = first.split(" ")
        store, faults = self.store, self.store.faults
        status, told, body = store.answer(method, target, headers, rest[:length])
        own = target.startswith("/__")
        if faults["mute"] and not own:
            return
        wait = 0.0 if own else faults["latency"]
        if method == "GET" and not own and store.happens("slow"):
            wait += faults["seconds"]
        if faults["bandwidth"] and not own:
            now = time.monotonic()
            store.free = max(store.free, now + wait) + len(body) / faults["bandwidth"]
            wait = store.free - now
        told = {"Content-Length": str(len(body))} | told
        text = "".join(f"{name}: {value}\r\n" for name, value in told.items())
        cut = (
            method == "GET"
            and status in (200, 206)
            and not own
            and store.happens("truncated")
        )
        shown = body[: len(body) // 2] if cut else b"" if method == "HEAD" else body
        sent = f"HTTP/1.1 {status} -\r\n{text}\r\n".encode() + shown
        if wait:
            asyncio.get_running_loop().call_later(wait, self.send, sent, cut)
        else:
            self.send(sent, cut)

    def send(self, data: bytes, last: bool) -> None:
        if not self.transport.is_closing():
            self.transport.write(data)
            if last:
                self.transport.close()


async def _serve(store: Store, port: int) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: Connection(store), "127.0.0.1", port, backlog=512
    )
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


@contextmanager
def object_server(
    root: str | os.PathLike[str], port: int = 0, **faults: Any
) -> Iterator[str]:
    """The URL of a server of a folder, in a process of its own."""
    options = [f"--{name}={value}" for name, value in faults.items()]
    command = [sys.executable, "-m", "tests.support.object_server", f"--root={root}"]
    process = subprocess.Popen(
        [*command, f"--port={port}", *options],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().decode().strip()
    finally:
        process.kill()
        process.wait()
        process.communicate()


def counts(url: str) -> dict[str, int]:
    """What a server was asked for: requests, bytes of files, requests of each kind,
    faults."""
    with urllib.request.urlopen(f"{url}/__counts__") as answer:
        return Counter(json.load(answer))


def set_faults(url: str, **faults: Any) -> None:
    """Change the faults of a server that runs."""
    query = "&".join(f"{name}={quote(str(value))}" for name, value in faults.items())
    urllib.request.urlopen(f"{url}/__set__?{query}").close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0)
    for fault, default in FAULTS.items():
        parser.add_argument(f"--{fault}", type=type(default), default=default)
    given = vars(parser.parse_args())
    asyncio.run(_serve(Store(given.pop("root"), **given), given.pop("port")))
