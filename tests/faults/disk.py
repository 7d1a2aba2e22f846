"""File system calls that fail by a plan, in this test's processes and all that they start.

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
from collections.abc import Sequence
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
_FAIL, _SHORT, _SLOW, _FLIP = 1, 2, 3, 4


@dataclass(frozen=True)
class Fault:
    """What happens to calls (`"read"`, or several, `"open stat"`) on paths that match a pattern.

    `error` is the name of an errno; else `short` leaves so many bytes of each read or write, -1
    half of them, -2 all but one; `slow` waits so many milliseconds first; `flip` changes one byte
    that is read. The first `skip` calls are not touched; after these each `every`-th is, or
    `permille` of them drawn by `seed`; `times` of them at most. Calls of all processes are counted
    together.
    """

    pattern: str
    calls: str = "read"
    error: str | None = None
    short: int | None = None
    slow: int | None = None
    flip: bool = False
    skip: int = 0
    every: int = 1
    permille: int | None = None
    times: int = -1
    seed: int = 0

    def packed(self) -> bytes:
        act, value = _FLIP, 0
        if self.error is not None:
            act, value = _FAIL, getattr(numbers, self.error)
        elif self.short is not None:
            act, value = _SHORT, self.short
        elif self.slow is not None:
            act, value = _SLOW, self.slow
        elif not self.flip:
            raise ValueError(f"{self} does nothing")
        pattern = os.fsencode(self.pattern)
        assert len(pattern) < 512, pattern
        calls = sum(_CALLS[each] for each in self.calls.split())
        every = 0 if self.permille is not None else self.every
        drawn = self.permille or 0
        return _RULE.pack(
            pattern, calls, act, value, self.skip, every, drawn, self.times, self.seed, 1, 0, 0, 0
        )


class SickDisk:
    """The faults of one test, for processes that are started with `environment`."""

    def __init__(self, faults: Sequence[Fault] = ()) -> None:
        self._library = preloaded_library()
        self._folder = Path(tempfile.mkdtemp(prefix="sick_disk_"))
        self._path = self._folder / "plan"
        size = _COUNT.size + _MOST * _RULE.size
        self._path.write_bytes(bytes(size))
        with self._path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), size)
        self.plan(*faults)

    @property
    def environment(self) -> dict[str, str]:
        """That of processes that meet the faults."""
        return dict(os.environ) | {
            "LD_PRELOAD": str(self._library),
            "SICK_DISK_PLAN": str(self._path),
        }

    @property
    def path(self) -> Path:
        """The plan, which programs may change by `planned`."""
        return self._path

    def plan(self, *faults: Fault) -> None:
        """These faults from now on, instead of those before; without any the disk is well."""
        written(self._map, faults)

    def hits(self, number: int = 0) -> int:
        """How often the fault of this number happened since it was planned."""
        at = _COUNT.size + (number + 1) * _RULE.size - 8
        return int(struct.unpack_from("=q", self._map, at)[0])

    def close(self) -> None:
        self._map.close()
        shutil.rmtree(self._folder)


def written(plan: mmap.mmap, faults: Sequence[Fault]) -> None:
    """Put faults into a plan that processes have mapped."""
    assert len(faults) <= _MOST
    _COUNT.pack_into(plan, 0, 0)
    for number, fault in enumerate(faults):
        at = _COUNT.size + number * _RULE.size
        plan[at : at + _RULE.size] = fault.packed()
    _COUNT.pack_into(plan, 0, len(faults))


def planned(*faults: Fault) -> None:
    """Change the plan of the process that calls this, and of those beside it."""
    with open(os.environ["SICK_DISK_PLAN"], "r+b") as file, mmap.mmap(file.fileno(), 0) as plan:
        written(plan, faults)


def hits(number: int = 0) -> int:
    """How often a fault happened, in a process that meets them."""
    data = Path(os.environ["SICK_DISK_PLAN"]).read_bytes()
    return int(struct.unpack_from("=q", data, _COUNT.size + (number + 1) * _RULE.size - 8)[0])


@functools.cache
def preloaded_library() -> Path:
    """The compiled library; the test is skipped where there is no compiler for it."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("faults of disks need a C compiler (cc), which makes the library of them")
    # One for all test processes of a user, named after what is in it and put there as a whole.
    name = f"energize_sick_disk_{os.getuid()}_{_digest()}.so"
    made = Path(__file__).parent / "__pycache__" / name
    if not made.exists():
        made.parent.mkdir(exist_ok=True)
        being_made = made.with_suffix(f".{os.getpid()}")
        command = [compiler, "-O1", "-shared", "-fPIC", "-o", being_made, _SOURCE, "-ldl"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"the library of disk faults cannot be compiled: {done.stderr[-500:]}")
        os.replace(being_made, made)
    return made


def _digest() -> str:
    return hashlib.blake2b(_SOURCE.read_bytes(), digest_size=8).hexdigest()
