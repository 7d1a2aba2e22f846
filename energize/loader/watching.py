"""Saying that no item comes, where from, and what there is to see; or giving up."""

from __future__ import annotations

import ctypes
import logging
import threading
import time
from dataclasses import dataclass

from energize.errors import LoaderError
from energize.loader.stacks import stack_of

_LOOK = 1.0
"""Seconds between two looks, at most."""

_log = logging.getLogger("energize")


@dataclass(frozen=True)
class Patience:
    """How many seconds nothing may come before that is said, and before the very first item; None
    for any number. With `fails` it is an error.
    """

    seconds: float | None = None
    first: float | None = None
    fails: bool = False

    def limit(self, *, first: bool) -> float | None:
        """For how long to wait; `first` where nothing has come yet."""
        return self.first if first and self.first is not None else self.seconds

    @property
    def endless(self) -> bool:
        """Whether nothing is ever said."""
        return self.seconds is None and self.first is None


class Late(BaseException):
    """Raised in the thread that reads, in the middle of anything; no `except Exception` of users'
    functions holds it up.
    """


class HereWatch:
    """Watches what is read in this process, from a thread of its own, one for a loader.

    In C code a thread cannot be interrupted: with `fails` the error comes as soon as Python runs
    again.
    """

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._turn = 0
        self._waiting = False
        self._reader = 0
        self._text = ""
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def begin(self) -> None:
        """From now on the next item is waited for."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="energize watch", daemon=True)
            self._thread.start()
        self._reader = threading.get_ident()
        self._turn += 1
        self._waiting = True

    def end(self) -> None:
        """No longer."""
        if not self._patience.fails:
            self._waiting = False
            return
        with self._changed:  # so that no error is on its way to what the thread does next
            self._waiting = False

    @property
    def error(self) -> LoaderError:
        """What `Late` stands for."""
        return LoaderError(self._text)

    def close(self) -> None:
        """End the thread."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if thread is not threading.current_thread():
            thread.join()
        self._closed = False

    def _watch(self) -> None:
        turn = said = 0
        began = 0.0
        limits = (self._patience.seconds, self._patience.first)
        look = min([_LOOK, *(each / 8 for each in limits if each is not None)])
        with self._changed:
            while not self._closed:
                now = time.monotonic()
                limit = self._patience.limit(first=self._turn <= 1)
                if not self._waiting or self._turn != turn:
                    turn, began, said = self._turn, now, 0
                elif limit is not None and now - began >= limit * 2**said:
                    said += 1
                    self._speak(now - began)
                self._changed.wait(look)

    def _speak(self, waited: float) -> None:
        what = f"no item came for {waited:.1f} s, and it is read in this process (num_workers=0)"
        stack = stack_of(self._reader)
        if not self._patience.fails:
            _log.warning("%s. It is busy with:\n%s", what, stack)
            return
        self._text = f"{what}, which fail_on_timeout makes an error. It was busy with:\n{stack}"
        self._waiting = False
        late = ctypes.py_object(Late)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._reader), late)
