"""What becomes of an action that meets hostile input: in a process of its own,
measured."""

from __future__ import annotations

import faulthandler
import gc
import os
import pickle
import resource
import select
import signal
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from energize import EnergizeError

MIB = 1024 * 1024
_MEMORY = 3 * 1024 * MIB
"""What an action may take at most, so that a fault does not end the machine."""


@dataclass(frozen=True)
class Ending:
    """How an action ended: `error` is the class of what it raised, "" for nothing,
    HANG, or how its process ended. `ours`: whether it is an error of energize.
    `seconds` are those of the processor, `mib` the memory that it had at most beyond
    what there was before.
    """

    error: str
    message: str = ""
    ours: bool = False
    seconds: float = 0.0
    mib: float = 0.0
    value: Any = None
    trace: str = ""

    def __str__(self) -> str:
        return f"{self.seconds:6.2f} s {self.mib:6.0f} MiB  {self.error}: {self.message[:150]!r}"


HANG = "it hangs"
_FORKING = threading.Lock()
"""One thread at a time: libraries that look at forks refuse the second."""


def tried(action: Callable[[], Any], patience: float = 30.0) -> Ending:
    """Do `action` in a fork of this process; after `patience` seconds it is killed."""
    reading, writing = os.pipe()
    with _FORKING:
        child = os.fork()
    if not child:
        try:
            gc.freeze()  # to look at all that there is would copy it
            os.close(reading)
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1)
            os.dup2(nowhere, 2)
            faulthandler.disable()
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            ending = _measured(action)
            with open(writing, "wb") as told:
                told.write(pickle.dumps(ending))
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as told:
        ready, _, _ = select.select([told], [], [], patience)
        if not ready:
            os.kill(child, signal.SIGKILL)
        answer = told.read()
    _, status, usage = os.wait4(child, 0)
    if answer:
        return pickle.loads(answer)
    how = f"it ended with status {status}" if ready else HANG
    return Ending(how, seconds=usage.ru_utime + usage.ru_stime)


def _measured(action: Callable[[], Any]) -> Ending:
    resource.setrlimit(
        resource.RLIMIT_AS, (_in_use("VmSize") + _MEMORY, resource.RLIM_INFINITY)
    )
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before, start = _in_use("VmRSS"), time.process_time()
    error, message, ours, value, trace = "", "", True, None, ""
    try:
        value = action()
    except BaseException as reason:
        error, message, ours = (
            type(reason).__name__,
            str(reason),
            isinstance(reason, EnergizeError),
        )
        trace = "".join(traceback.format_exception(reason)[-14:])
    seconds = time.process_time() - start
    mib = (_in_use("VmHWM") - before) / MIB
    return Ending(error, message, ours, seconds, mib, value, trace)


def _in_use(name: str) -> int:
    """Bytes of this process, as the system counts them."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return (
        next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
        * 1024
    )
