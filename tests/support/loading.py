"""Reading loaders in tests: a few items, whole topologies, items that misbehave in
workers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from energize import Dataset, FailurePolicy, WorkerConfig
from energize.loader import Loader, get_loader
from energize.testing import fingerprint


def take(loader: Loader[Any], count: int) -> list[Any]:
    """The next `count` items, over the ends of epochs."""
    items: list[Any] = []
    while len(items) < count:
        before = len(items)
        items.extend(islice(iter(loader), count - before))
        assert len(items) > before, "an epoch was empty"
    return items


def prints(items: list[Any]) -> list[str]:
    return [fingerprint(item) for item in items]


def plain(dataset: Dataset[Any], count: int) -> list[str]:
    """Fingerprints of the first `count` items, read without any loader."""
    items: list[Any] = []
    state = None
    while len(items) < count:
        cursor = dataset.open(state=state)
        items.extend(islice(cursor, count - len(items)))
        state = cursor.state()
    return prints(items)


def loader_of(
    dataset: Dataset[Any], workers: int = 0, rank: int = 0, ranks: int = 1, **options
):
    config = WorkerConfig(rank=rank, world_size=ranks, num_workers=workers)
    if "failures" not in options:
        on_error = options.pop("on_error", "raise")
        options["failures"] = FailurePolicy(on_error=on_error, budget=None)
    return get_loader(dataset, worker_config=config, **options)


def steps_in_turns(loaders: list[Loader[Any]], rounds: int) -> tuple[list[str], int]:
    """At most `rounds` steps of one loop of all ranks: their items taken in turn,
    without padding, and how many steps were made. All ranks make the same number.
    """
    iterators: list[Iterator[Any]] = [iter(loader) for loader in loaders]
    items: list[Any] = []
    nothing = object()
    for made in range(rounds):
        step = []
        for loader, iterator in zip(loaders, iterators, strict=True):
            step.append(next(iterator, nothing))
            if step[-1] is not nothing and not loader.padding:
                items.append(step[-1])
        if nothing in step:
            assert step == [nothing] * len(loaders), (
                "ranks made different numbers of steps"
            )
            return prints(items), made
    return prints(items), rounds


def eventually(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def gone(pid: int) -> bool:
    """Whether no such process is left; a zombie is as good as gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def with_pid(item: Any) -> tuple[int, Any]:
    return os.getpid(), item
