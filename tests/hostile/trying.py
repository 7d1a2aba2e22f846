"""What becomes of an action that meets hostile input: in a process of its own, measured."""

from __future__ import annotations

import os
import pickle
import resource
import select
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from energize import EnergizeError

MIB = 1024 * 1024
_MEMORY = 3 * 1024 * MIB
"""What an action may take at most, so that a fault does not end the machine."""


@dataclass(frozen=True)
class Outcome:
    """How an action ended: `error` is the class of what it raised, "" for nothing, or how its
    process ended. `ours`: whether it is an error of energize. `seconds` are those of the
    processor, `mib` the memory that it had at most beyond what there was before.
    """

    error: str
    message: str
    ours: bool
    seconds: float
    mib: float

    def __str__(self) -> str:
        return f"{self.seconds:6.2f} s {self.mib:6.0f} MiB  {self.error}: {self.message[:150]!r}"


def tried(action: Callable[[], Any], patience: float = 30.0) -> Outcome:
    """Do `action` in a fork of this process; after `patience` seconds it is killed."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(reading)
            with open(writing, "wb") as told:
                told.write(pickle.dumps(_measured(action)))
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
    how = "it hangs" if not ready else f"ended with status {status}"
    return Outcome(how, "", False, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def _measured(action: Callable[[], Any]) -> Outcome:
    resource.setrlimit(resource.RLIMIT_AS, (_in_use("VmSize") + _MEMORY, resource.RLIM_INFINITY))
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before, start = _in_use("VmRSS"), time.process_time()
    error, message, ours = "", "", True
    try:
        made = action()
        message = repr(made)[:200]
    except EnergizeError as reason:
        error, message = type(reason).__name__, str(reason)
    except BaseException as reason:
        error, message, ours = type(reason).__name__, str(reason), False
    seconds = time.process_time() - start
    return Outcome(error, message, ours, seconds, (_in_use("VmHWM") - before) / MIB)


def _in_use(name: str) -> int:
    """Bytes of this process, as the system counts them."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) * 1024
