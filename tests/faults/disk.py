"""File system calls that fail by a plan, in this test's processes and all that they
start.

A library of C (`disk.c`) is preloaded, so that sqlite, Arrow, numpy and the interpreter
itself meet the same faults, in workers and in commands alike.
"""

from __future__ import annotations

import errno as numbers
import functools
import hashlib
import mmap
import os
import shutil
import struct
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

_SOURCE = Path(__file__).with_suffix(".c")
_RULE = struct.Struct("=512sIIqqqqqQiiqq")
_COUNT = struct.Struct("=q")
_MOST = 32
_CALLS = {
    "open": 1,
    "read": 2,
    "write": 4,
    "sync": 8,
    "rename": 16,
    "stat": 32,
    "list": 64,
    "mmap": 128,
    "mkdir": 256,
    "unlink": 512,
}
_FAIL, _SHORT, _SLOW = 1, 2, 3


@dataclass(frozen=True)
class Fault:
    """What happens to calls (`"read"`, or several, `"open stat"`) on paths that match a
    pattern.

    `error` is the name of an errno; else `short` leaves so many bytes of each read or
    write, -1 half of them, -2 all but one; `slow` waits so many milliseconds first. The
    first `skip` calls are not touched; after these each `every`-th is, or `permille` of
    them drawn by `seed`; `times` of them at most. Calls of all processes are counted
    together.
    """

    pattern: str
    calls: str = "read"
    error: str | None = None
    short: int | None = None
    slow: int = 0
    skip: int = 0
    every: int = 1
    permille: int | None = None
    times: int = -1
    seed: int = 0

    def packed(self) -> bytes:
        if self.error is not None:
            act, value = _FAIL, getattr(numbers, self.error)
        elif self.short is not None:
            act, value = _SHORT, self.short
        else:
            act, value = _SLOW, self.slow
        pattern = os.fsencode(self.pattern)
        assert len(pattern) < 512, pattern
        calls = sum(_CALLS[each] for each in self.calls.split())
        every = 0 if self.permille is not None else self.every
        drawn = self.permille or 0
        return _RULE.pack(
            pattern,
            calls,
            act,
            value,
            self.skip,
            every,
            drawn,
            self.times,
            self.seed,
            1,
            0,
            0,
            0,
        )


class SickDisk:
    """The faults of one test, for processes that are started with `environment`."""

    def __init__(self) -> None:
        self._library = preloaded_library()
        self._folder = Path(tempfile.mkdtemp(prefix="sick_disk_"))
        self._path = self._folder / "plan"
        self._path.write_bytes(bytes(_COUNT.size + _MOST * _RULE.size))

    @property
    def environment(self) -> dict[str, str]:
        """That of processes that meet the faults."""
        return dict(os.environ) | {
            "LD_PRELOAD": str(self._library),
            "SICK_DISK_PLAN": str(self._path),
        }

    def close(self) -> None:
        shutil.rmtree(self._folder)


def planned(*faults: Fault) -> None:
    """Let these faults happen from now on, in the process that calls this and in those
    beside it; without any the disk is well.
    """
    assert len(faults) <= _MOST
    with (
        open(os.environ["SICK_DISK_PLAN"], "r+b") as file,
        mmap.mmap(file.fileno(), 0) as plan,
    ):
        _COUNT.pack_into(plan, 0, 0)
        for number, fault in enumerate(faults):
            at = _COUNT.size + number * _RULE.size
            plan[at : at + _RULE.size] = fault.packed()
        _COUNT.pack_into(plan, 0, len(faults))


def hits(number: int = 0) -> int:
    """How often a fault happened, in a process that meets them."""
    data = Path(os.environ["SICK_DISK_PLAN"]).read_bytes()
    return int(
        struct.unpack_from("=q", data, _COUNT.size + (number + 1) * _RULE.size - 8)[0]
    )


@functools.cache
def preloaded_library() -> Path:
    """The compiled library; the test is skipped where there is no compiler for it."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip(
            "faults of disks need a C compiler (cc), which makes the library of them"
        )
    # One for all test processes of a user, named after what is in it and put there as a
    # whole.
    name = f"energize_sick_disk_{os.getuid()}_{_digest()}.so"
    made = Path(__file__).parent / "__pycache__" / name
    if not made.exists():
        made.parent.mkdir(exist_ok=True)
        being_made = made.with_suffix(f".{os.getpid()}")
        command = [
            compiler,
            "-O1",
            "-shared",
            "-fPIC",
            "-o",
            being_made,
            _SOURCE,
            "-ldl",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(
                f"the library of disk faults cannot be compiled: {done.stderr[-500:]}"
            )
        os.replace(being_made, made)
    return made


def _digest() -> str:
    return hashlib.blake2b(_SOURCE.read_bytes(), digest_size=8).hexdigest()
