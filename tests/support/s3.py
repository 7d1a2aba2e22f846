"""A server of S3 on this machine, in a process of its own."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import lazy_loader

s3fs = lazy_loader.load("s3fs")
SECRET = "a-secret-that-is-in-no-pickle"


@contextmanager
def s3_server(*buckets: str) -> Iterator[str]:
    """The URL of an empty store with these buckets."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        _wait_for(port, server)
        url = f"http://127.0.0.1:{port}"
        fs = s3fs.S3FileSystem(
            key="key",
            secret=SECRET,
            client_kwargs={"endpoint_url": url},
            skip_instance_cache=True,
        )
        for bucket in buckets:
            fs.mkdir(bucket)
        yield url
    finally:
        server.terminate()
        server.wait(timeout=10)


def _wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    for _ in range(300):
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            if server.poll() is not None:
                raise RuntimeError(
                    f"the server ended with {server.returncode}"
                ) from None
            time.sleep(0.1)
        else:
            return
    raise TimeoutError("the server of S3 did not start")
