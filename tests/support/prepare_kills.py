"""A program that ends preparing at random moments and looks at what is left.

    python -m tests.support.prepare_kills FOLDER SIGNAL MOMENTS SEED

FOLDER is new, or of one run before. Prints how often the folder was found prepared, and
not.
"""

from __future__ import annotations

import ctypes
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from pathlib import Path

from energize.data.nv_meta import is_prepared
from energize.preparation import prepare
from tests.support.tars import contents, unprepared

_SUBREAPER = 36
OLD, NEW = {"train": 1}, {"train": 3, "val": 1}


def main(folder: Path, number: int, moments: int, seed: int) -> None:
    ctypes.CDLL(None).prctl(_SUBREAPER, 1)  # so that what workers leave is seen here
    shards = unprepared(folder / "shards", (60,) * 40)
    prepare(shards, split_ratios=OLD, workers=1)
    old = files(shards)
    begun = time.monotonic()
    prepare(shards, split_ratios=NEW, workers=3, sqlite=True, overwrite=True)
    took = time.monotonic() - begun
    new = files(shards)
    draw = random.Random(seed)
    found: Counter[str] = Counter()
    for moment in range(moments):
        before = moment % 2 == 1
        reset(shards, old if before else {})
        died = stopped(shards, number, draw.uniform(0, 1.2 * took))
        found["died" if died else "was through"] += 1
        left = [name for name in contents(shards) if name.endswith(".tmp")]
        assert number != signal.SIGTERM or not left, left
        found["left files"] += bool(left)
        if is_prepared(shards):
            here = files(shards)
            assert here in (old, new), sorted(
                name for name in here if here[name] != new.get(name)
            )
            found["prepared as " + ("before" if here == old else "asked")] += 1
        else:
            found["not prepared"] += 1
        prepare(shards, split_ratios=NEW, workers=2, sqlite=True, overwrite=True)
        assert files(shards) == new
        assert not [name for name in contents(shards) if name.endswith(".tmp")]
    print(dict(sorted(found.items())))


def files(folder: Path) -> dict[str, bytes]:
    """What preparing writes, but for what is another each time: databases, and what
    names them."""
    return {
        name: data
        for name, data in contents(folder).items()
        if not name.endswith((".tar", ".tmp", "index.sqlite", "index.uuid"))
    }


def reset(folder: Path, wanted: dict[str, bytes]) -> None:
    shutil.rmtree(folder / ".nv-meta")
    for index in folder.rglob("*.idx"):
        index.unlink()
    for name, data in wanted.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)


def stopped(folder: Path, number: int, after: float) -> bool:
    """Prepare in a process of its own, and end it; whether it had not ended before.

    Raises AssertionError when processes are there five seconds later.
    """
    pid = os.fork()
    if pid == 0:
        os.setsid()
        prepare(folder, split_ratios=NEW, workers=3, sqlite=True, overwrite=True)
        os._exit(0)
    time.sleep(after)
    os.kill(pid, number)
    _, status = os.waitpid(pid, 0)
    assert os.WIFEXITED(status) or os.WTERMSIG(status) == number, status
    deadline = time.monotonic() + 5
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                assert time.monotonic() < deadline, "orphans"
                time.sleep(0.01)
        except ChildProcessError:
            return os.waitstatus_to_exitcode(status) in (-number, 128 + number)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
