"""What to say about workers that ended, or could not start."""

from __future__ import annotations

import pickle
import signal
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from typing import Any

from energize.errors import ConfigError

_CAUSES = {
    signal.SIGKILL: "Most often the kernel does that when memory runs out (see dmesg): fewer "
    "workers, a smaller prefetch_bytes or smaller batches need less",
    signal.SIGBUS: "Most often memory ran out, or a file that is mapped was cut: use fewer "
    "workers, or a smaller prefetch_bytes",
    signal.SIGSEGV: "Native code crashed, in a decoder for example; num_workers=0 with "
    "`python -X faulthandler` shows where",
}

MOST_ENDS = 3
"""How many workers may end in one place without an answer before it is given up."""

_DEEPEST = 6
"""How many attributes deep the culprit is looked for."""


def how_it_ended(process: BaseProcess) -> tuple[str, str]:
    """How a worker ended by itself, and what the cause may be."""
    code = process.exitcode
    if code is None:
        return "closed its channel and runs on", (
            "Some function that it calls closes file descriptors that are not its own"
        )
    if code < 0:
        ended_by = signal.Signals(-code)
        cause = _CAUSES.get(ended_by, "Something outside the loader sent the signal")
        return f"was killed by {ended_by.name}", cause
    return f"ended with exit code {code}", (
        "Its own output says why: something called sys.exit() or closed its file descriptors, or "
        "it could not start. A script that spawns workers keeps its work under "
        '`if __name__ == "__main__":`'
    )


def silent(timeout: float) -> tuple[str, str]:
    """The same of a worker that was silent for `timeout` seconds, and is killed for that."""
    return f"gave no answer within timeout={timeout:g} s", (
        "It was stopped, or hangs: look for a file system that does not answer or an encoder "
        "that waits for a lock, or give a longer timeout"
    )


def garbled(error: Exception) -> tuple[str, str]:
    """The same of a worker that sent what is no message, and is killed for that."""
    return f"sent {error}", (
        "Something writes to file descriptors that are not its own: a function that it calls, or "
        "a process that one has forked"
    )


def unpicklable(task: Any, start_method: str, error: BaseException) -> ConfigError:
    """The error for what cannot be sent to a process started by `start_method`."""
    parts = ((task.dataset, "dataset"), (task.decisions.on_error, "on_error"))
    found = (where for part, name in parts for where in _culprits(part, name, _DEEPEST))
    where = next(found, "")
    at = f" at {where}" if where else ""
    return ConfigError(
        f"the dataset cannot be pickled for a worker started by {start_method!r}{at}: "
        f"{type(error).__name__}: {error}. Define functions at the top of a module instead of "
        "lambdas or inner functions, open files and connections when they are first used, or use "
        "multiprocessing_context='fork'"
    )


def _culprits(value: Any, path: str, depth: int) -> Iterator[str]:
    """The paths of the attributes that cannot be pickled, the innermost ones."""
    try:
        pickle.dumps(value)
    except Exception:  # whatever the classes of the user do
        inner = list(_inside(value, path)) if depth else []
        found = [each for item, name in inner for each in _culprits(item, name, depth - 1)]
        yield from found or [f"{path} ({str(value)[:80]})"]


def _inside(value: Any, path: str) -> Iterator[tuple[Any, str]]:
    if isinstance(value, dict):
        yield from ((item, f"{path}[{key!r}]") for key, item in value.items())
    elif isinstance(value, list | tuple):
        yield from ((item, f"{path}[{number}]") for number, item in enumerate(value))
    elif hasattr(value, "__self__"):
        yield value.__self__, f"{path}.__self__"
    else:
        yield from (
            (item, f"{path}.{name}") for name, item in getattr(value, "__dict__", {}).items()
        )
