"""A real browser without a window, told what to do over pipes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from contextlib import contextmanager

import pytest

FOUND = shutil.which("chromium") or shutil.which("chromium-browser")
needs_browser = pytest.mark.skipif(
    FOUND is None, reason="no chromium on PATH; see `make browser`"
)


class Tab:
    """One page, and what it did: `asked` for URLs, and `told` on its console."""

    def __init__(self, reader, writer):
        self._reader, self._writer, self._number, self._session = (
            reader,
            writer,
            0,
            None,
        )
        self.asked, self.told, self._loaded = [], [], 0
        target = self("Target.createTarget", url="about:blank")["targetId"]
        attached = self("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self(f"{domain}.enable")

    def __call__(self, method, **params):
        """The result of a method of the DevTools protocol."""
        self._number += 1
        asked = {"id": self._number, "method": method, "params": params}
        if self._session:
            asked["sessionId"] = self._session
        self._writer.write(json.dumps(asked).encode() + b"\0")
        self._writer.flush()
        while (message := self._next()).get("id") != self._number:
            pass
        assert "error" not in message, (method, message["error"])
        return message["result"]

    def _next(self):
        data = bytearray()
        while (byte := self._reader.read(1)) != b"\0":
            assert byte, "the browser ended"
            data += byte
        message = json.loads(data)
        method, params = message.get("method"), message.get("params")
        if method == "Network.requestWillBeSent":
            self.asked.append(params["request"]["url"][:200])
        elif method in (
            "Runtime.consoleAPICalled",
            "Runtime.exceptionThrown",
            "Log.entryAdded",
        ):
            self.told.append(params)
        elif method == "Page.loadEventFired":
            self._loaded += 1
        return message

    def open(self, url):
        self._loaded = 0
        self("Page.navigate", url=url)
        self.wait()

    def wait(self):
        """Until a page was loaded."""
        while not self._loaded:
            self._next()
        self._loaded = 0

    def js(self, text):
        """What an expression is."""
        return self("Runtime.evaluate", expression=text, returnByValue=True)[
            "result"
        ].get("value")

    def press(self, key):
        for kind in ("keyDown", "keyUp"):
            text = key if len(key) == 1 and kind == "keyDown" else ""
            self("Input.dispatchKeyEvent", type=kind, key=key, text=text)

    def prefers(self, scheme):
        self(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )


@contextmanager
def browser(folder):
    """A tab of a browser whose profile is in a folder."""
    (to_read, to_it), (from_it, to_write) = os.pipe(), os.pipe()
    script = f'exec "$@" 3<&{to_read} 4>&{to_write}'
    options = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--remote-debugging-pipe",
    ]
    process = subprocess.Popen(
        ["bash", "-c", script, "-", FOUND, *options, f"--user-data-dir={folder}"],
        pass_fds=(to_read, to_write),
        stderr=subprocess.DEVNULL,
        env=os.environ | {"HOME": str(folder)},
    )
    os.close(to_read)
    os.close(to_write)
    try:
        with os.fdopen(from_it, "rb") as reader, os.fdopen(to_it, "wb") as writer:
            yield Tab(reader, writer)
    finally:
        process.terminate()
        process.wait(20)
