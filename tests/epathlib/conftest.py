"""fsspec's thread ends with the tests that have started it: later ones fork this process."""

from __future__ import annotations

import pytest
from fsspec import AbstractFileSystem, asyn


@pytest.fixture(autouse=True, scope="package")
def _no_thread_left():
    yield
    loop, thread = asyn.loop[0], asyn.iothread[0]
    if loop is not None and thread is not None:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        asyn.loop[0] = asyn.iothread[0] = None
    for kind in AbstractFileSystem.__subclasses__():
        kind.clear_instance_cache()
