"""Loaders of every kind, opened and closed for an hour, and what that leaves behind.

`python -m tests.support.soak_program --minutes 60` reads each kind again and again, here and in
workers that start in every way, goes on from saved states on other numbers of workers, ends loaders
in every way, kills and stops workers, and compares all items with those of the first time. Two
loaders with workers live through all of it. Each minute it prints what it holds; at the end it
fails if any of that rose beyond its tolerance (`soak_measures.TOLERANCES`) after the warm-up.

`--leak descriptors` (or another word of the tolerances, or `all`) loses some of it in each round,
to see that it is found.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import logging
import mmap
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

from energize import Loader, WorkerConfig, get_loader
from tests.support import soak_kinds
from tests.support.loading import gone
from tests.support.soak_kinds import Kind, digest, kinds_in
from tests.support.soak_measures import TOLERANCES, WORDS, grown, measured

WARM_UP = 0.2
"""Of the time, in which nothing is compared: what is imported and cached comes then."""

FROM_NOTHING = 25
"""Of so many rounds one starts workers by spawn and one by forkserver, which takes seconds."""

LONGEST = 300
"""Seconds after which a round that hangs ends the program, with its stacks."""

SILENCE = 1.5
"""Seconds after which a stopped worker is replaced."""


class Difference(Exception):
    """Items are not those of the first time."""


@dataclass
class Soak:
    """Rounds of loaders, and what they have read."""

    kinds: dict[str, Kind]
    rng: random.Random
    samples: int = 0
    loaders: int = 0
    rounds: int = 0
    attacks: dict[str, int] = field(default_factory=dict)
    first: dict[str, list[bytes]] = field(default_factory=dict)

    def round(self) -> None:
        """One kind, read in two parts by two loaders."""
        name = list(self.kinds)[self.rounds % len(self.kinds)]
        kind, number = self.kinds[name], self.rounds
        self.rounds += 1
        if name not in self.first:
            self.first[name] = self._read(kind, (0, None), (0, None), attack=None)
        method = {15: "spawn", 23: "forkserver"}.get(number % FROM_NOTHING, "fork")
        before, after = self.rng.choice([(2, 2), (2, 0), (0, 2), (1, 3), (0, 0)])
        attack = self.rng.choice([None, None, signal.SIGKILL, signal.SIGSTOP])
        if method != "fork" and attack is signal.SIGSTOP:
            attack = signal.SIGKILL  # such a worker may need longer to start than one may be silent
        read = self._read(kind, (before, method), (after, "fork"), attack=attack)
        if read != self.first[name]:
            pairs = zip(read, self.first[name], strict=True)
            at = next(n for n, (item, wanted) in enumerate(pairs) if item != wanted)
            raise Difference(f"{name}, {before} {method} and {after} workers, {attack}: item {at}")

    def _read(
        self,
        kind: Kind,
        first: tuple[int, str | None],
        second: tuple[int, str | None],
        attack: signal.Signals | None,
    ) -> list[bytes]:
        half = kind.items // 2
        loader = self.opened(kind, *first, timeout=SILENCE if attack is signal.SIGSTOP else 120)
        got = []
        others = set(multiprocessing.active_children())
        for item in islice(iter(loader), half):
            got.append(digest(item))
            if attack is not None and first[0] and len(got) == half // 2:
                self._attack(attack, set(multiprocessing.active_children()) - others)
        if kind.change is not None:
            kind.change(loader)
        state = json.loads(json.dumps(loader.state_dict()))
        self._let_go(loader)
        del loader
        other = self.opened(kind, *second)
        other.load_state_dict(state)
        got += [digest(item) for item in islice(iter(other), kind.items - half)]
        self._let_go(other)
        self.samples += kind.items * kind.samples
        return got

    def opened(
        self, kind: Kind, workers: int, method: str | None, timeout: float = 120
    ) -> Loader[Any]:
        self.loaders += 1
        return get_loader(
            kind.dataset,
            worker_config=WorkerConfig(rank=0, world_size=1, num_workers=workers),
            lanes=kind.lanes,
            timeout=timeout,
            multiprocessing_context=method,
            **kind.options(),
        )

    def _attack(self, how: signal.Signals, workers: set[Any]) -> None:
        if workers:
            victim = self.rng.choice(sorted(each.pid for each in workers))
            os.kill(victim, how)
            self.attacks[how.name] = self.attacks.get(how.name, 0) + 1

    def _let_go(self, loader: Loader[Any]) -> None:
        """End a loader in one of the ways in which loaders end; the last is by forgetting it."""
        how = self.rng.randrange(3)
        if how == 0:
            loader.close()
        elif how == 1:
            with loader:
                next(iter(loader))


def leaks(kept: list[Any]) -> dict[str, Callable[[], None]]:
    """Ways to lose what the measures are of."""

    def files() -> None:
        descriptor, _ = tempfile.mkstemp()
        os.close(descriptor)

    def shared() -> None:
        descriptor = os.memfd_create("leak")
        os.ftruncate(descriptor, 2**20)
        kept.append(mmap.mmap(descriptor, 2**20))
        os.close(descriptor)

    def named() -> None:
        path = Path(f"/dev/shm/energize-leak-{os.getpid()}-{len(kept)}")
        path.write_bytes(b"0")
        kept.append(path)

    def thread() -> None:
        threading.Thread(target=threading.Event().wait, daemon=True).start()

    return {
        "workers MB": lambda: None,  # they lose it, see `soak_kinds.LOST_IN_WORKERS`
        "trainer MB": lambda: kept.append(bytearray(os.urandom(1)) * 2**23),
        "shared MB": shared,
        "mappings": lambda: kept.extend(mmap.mmap(-1, 2**12 * (2 + n % 2)) for n in range(20)),
        "descriptors": lambda: kept.append(os.open("/dev/null", os.O_RDONLY)),
        "threads": thread,
        "children": lambda: kept.append(subprocess.Popen(["sleep", "600"])),
        "files": files,
        "/dev/shm": named,
        "objects": lambda: kept.extend([] for _ in range(1000)),
    }


def forgotten(kept: list[Any]) -> None:
    """What was lost, and would outlive the program."""
    for each in kept:
        if isinstance(each, subprocess.Popen):
            each.kill()
            each.wait()
        elif isinstance(each, Path):
            each.unlink()


def temporary_files() -> Path:
    """A folder in which everything temporary is from now on, that of workers too; it goes after
    what multiprocessing has in it.
    """
    folder = tempfile.mkdtemp(prefix="energize-soak-")
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    Finalize(None, shutil.rmtree, args=(folder,), exitpriority=-1000)
    return Path(folder)


def soaked(
    soak: Soak, seconds: float, rounds: int, every: float, leak: Callable[[], None]
) -> list[dict]:
    """Read for so long, or so many rounds, and measure each so often."""
    series: list[dict] = []
    lasting = [soak.opened(soak.kinds[name], 2, "fork") for name in ("large items", "stream")]
    with ExitStack() as ended:
        reading = [iter(ended.enter_context(loader)) for loader in lasting]
        workers = [each.pid or 0 for each in multiprocessing.active_children()]
        for items, count in zip(reading, (150, 500), strict=True):
            soak.samples += sum(1 for _ in islice(items, count))
            for _ in range(4):  # meanwhile all is read ahead that may be, in as much memory
                time.sleep(0.5)
                soak.samples += sum(1 for _ in islice(items, 10))
        began = time.monotonic()
        while (passed := time.monotonic() - began) < seconds and soak.rounds < rounds:
            faulthandler.dump_traceback_later(LONGEST, exit=True)
            soak.round()
            for items, count in zip(reading, (10, 200), strict=True):
                soak.samples += sum(1 for _ in islice(items, count))
            leak()
            if passed >= every * (len(series) + 1):
                series.append(_line(soak, passed, workers))
        faulthandler.cancel_dump_traceback_later()
        if any(gone(each) for each in workers):
            raise Difference("a worker that nobody attacked has ended")
    return series


def _line(soak: Soak, passed: float, workers: list[int]) -> dict:
    """What is held between two rounds, with no loader but the lasting ones."""
    counts = dict(zip(WORDS, (soak.samples, soak.loaders), strict=True))
    line = {"minutes": round(passed / 60, 2), **counts, **measured(workers)}
    print(json.dumps({name: round(value, 2) for name, value in line.items()}), flush=True)
    return line


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--minutes", type=float, default=60)
    options.add_argument("--rounds", type=int, default=10**9, help="end after so many")
    options.add_argument("--every", type=float, default=60, help="seconds from line to line")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--leak", choices=["all", *TOLERANCES])
    given = options.parse_args()
    logging.getLogger("energize").setLevel(logging.ERROR)  # each worker that is replaced is told
    kept: list[Any] = []
    ways = leaks(kept)
    chosen = list(ways) if given.leak == "all" else [given.leak] if given.leak else []

    def leak() -> None:
        for name in chosen:
            ways[name]()

    soak_kinds.LOST_IN_WORKERS = 2**20 if "workers MB" in chosen else 0
    try:
        soak = Soak(dict(kinds_in(temporary_files())), random.Random(given.seed))
        series = soaked(soak, given.minutes * 60, given.rounds, given.every, leak)
    finally:
        forgotten(kept)
    after = series[int(WARM_UP * len(series)) :]
    rises = {name: round(rise, 2) for name, rise in grown(after).items()}
    told = {"samples": soak.samples, "loaders": soak.loaders, "attacks": soak.attacks}
    print(json.dumps({**told, "lines": len(after), "tolerances": TOLERANCES, "grown": rises}))
    return 1 if rises or len(after) < 3 else 0


if __name__ == "__main__":
    sys.exit(main())
