"""The laws every dataset keeps, as checks to run on your own.

Each check raises `AssertionError` with what differed. They read real items: give small datasets, or
a number of items.

>>> from energize import ListSource, ShuffleDataset
>>> check_laws(ShuffleDataset(ListSource(range(10))), epochs=2)
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

from energize.cursor import State
from energize.dataset import INFINITE, Dataset, IndexedDataset
from energize.testing.items import fingerprint
from energize.topology import Lane

__all__ = [
    "check_determinism",
    "check_exactly_once",
    "check_laws",
    "check_purity",
    "check_resume",
    "check_topology",
    "item_fingerprints",
]


def check_laws(dataset: Dataset[Any], *, epochs: int = 2, items: int = 50) -> None:
    """Resume and, for an indexed dataset, topology and purity, over `epochs` epochs or, where an
    epoch never ends, `items` items.
    """
    check_resume(dataset, epochs=epochs, items=items)
    if isinstance(dataset, IndexedDataset) and dataset.indexed:
        check_topology(dataset, epochs=epochs, items=items)
        check_purity(dataset, items=items)


def check_resume(dataset: Dataset[Any], *, epochs: int = 2, items: int = 50) -> None:
    """After every item the state is JSON, of constant shape, and gives exactly the rest."""
    whole: list[str] = []
    states: list[State] = []
    for item, state in _take(dataset, _some(dataset, items, epochs)):
        whole.append(fingerprint(item))
        states.append(json.loads(json.dumps(state)))
    shapes = {_shape(state) for state in states}
    if len(shapes) > 1:
        raise AssertionError(f"the state changes its shape on the way: {sorted(shapes)[:2]}")
    for taken, state in enumerate(states, 1):
        rest = [fingerprint(item) for item, _ in _take(dataset, len(whole) - taken, state)]
        _compare(rest, whole[taken:], f"resumed after item {taken - 1} from {state}")


def check_topology(
    dataset: IndexedDataset[Any],
    *,
    world_sizes: Sequence[int] = range(1, 9),
    num_workers: Sequence[int] = (0, 1, 2, 3),
    epochs: int = 2,
    items: int = 50,
) -> None:
    """The ranks' streams, taken in turn, are the same for every world size and worker count.

    Worker w of rank r reads lane r + w * world_size of world_size * num_workers.
    """
    size = _some(dataset, items)
    whole = [fingerprint(item) for item in dataset.at(np.arange(epochs * size))]
    for lanes in sorted({w * max(n, 1) for w in world_sizes for n in num_workers}):
        merged: list[str] = []
        state: State | None = None
        while len(merged) < len(whole):
            cursors = [dataset.open(Lane(lane, lanes), state) for lane in range(lanes)]
            turn = len(merged)
            for step in range(size):
                item = next(cursors[step % lanes], None)
                if item is not None:
                    merged.append(fingerprint(item))
            state = {"position": turn + size}
        _compare(merged, whole, f"{lanes} lanes")


def check_purity(dataset: IndexedDataset[Any], *, items: int = 50) -> None:
    """An item is the same whatever was read before, and together with whatever it is read."""
    size = 2 * _some(dataset, items)
    whole = [fingerprint(item) for item in dataset.at(np.arange(size))]
    backwards = [fingerprint(dataset.at([k])[0]) for k in range(size - 1, -1, -1)]
    _compare(backwards[::-1], whole, "read one by one, backwards")
    odd = [fingerprint(item) for item in dataset.at(np.arange(1, size, 2))]
    _compare(odd, whole[1::2], "every second item read alone")


def check_exactly_once(
    dataset: IndexedDataset[Any], promised: Callable[[int, int], tuple[int, int]], *, epoch: int = 0
) -> None:
    """One epoch visits every sample the promised number of times.

    `promised(source, index)` gives the least and the most number of visits of a sample of
    `dataset.sources[source]`.
    """
    positions = np.arange(epoch * dataset.size, (epoch + 1) * dataset.size)
    refs = dataset.refs(positions)
    seen = Counter(zip(refs.source.tolist(), refs.index.tolist(), strict=True))
    for number, source in enumerate(dataset.sources):
        for index in range(source.count):
            least, most = promised(number, index)
            visits = seen[(number, index)]
            if not least <= visits <= most:
                raise AssertionError(
                    f"epoch {epoch} visits {source.name}, sample {index}, {visits} times; "
                    f"promised were {least} to {most}"
                )


def check_determinism(factory: str, *, items: int = 50) -> None:
    """The dataset that `factory` ("module:function") makes gives the same items in another process
    with another PYTHONHASHSEED.
    """
    streams = []
    for hash_seed in ("0", "4711"):
        program = (
            "from energize.testing.laws import item_fingerprints; "
            f"print('\\n'.join(item_fingerprints({factory!r}, {items})))"
        )
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        environment["PYTHONPATH"] = os.pathsep.join(sys.path)
        done = subprocess.run(  # noqa: S603 - the user's own factory, in the same interpreter
            [sys.executable, "-c", program],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise AssertionError(f"{factory} failed in another process:\n{done.stderr}")
        streams.append(done.stdout.split())
    _compare(streams[1], streams[0], "another process with another PYTHONHASHSEED")


def item_fingerprints(factory: str, items: int) -> list[str]:
    """The fingerprints of the first items of the dataset made by "module:function"."""
    module, _, function = factory.partition(":")
    dataset = getattr(importlib.import_module(module), function)()
    return [fingerprint(item) for item in islice(dataset, items)]


def _take(
    dataset: Dataset[Any], items: int, state: State | None = None
) -> Iterator[tuple[Any, State]]:
    """`items` items, over as many epochs as that takes, with the state after each."""
    empty = 0
    while items:
        cursor = dataset.open(state=state)
        before = items
        for item in islice(cursor, items):
            items -= 1
            yield item, cursor.state()
        empty = empty + 1 if items == before else 0
        if empty == 2:  # one may be empty: a stream cannot know that no item is left in its epoch
            raise AssertionError(f"no item comes from {state} on")
        state = cursor.state()


def _some(dataset: Dataset[Any], items: int, epochs: int = 1) -> int:
    """How many items `epochs` epochs have, or `items` where that has no answer."""
    if isinstance(dataset, IndexedDataset) and dataset.indexed and dataset.size != INFINITE:
        return dataset.size * epochs
    return items


def _shape(tree: Any) -> str:
    """Keys and types of a state, without its values."""
    if isinstance(tree, dict):
        return "{" + ",".join(f"{key}:{_shape(value)}" for key, value in sorted(tree.items())) + "}"
    if isinstance(tree, list):
        return "[" + ",".join(map(_shape, tree)) + "]"
    return type(tree).__name__


def _compare(found: Sequence[str], expected: Sequence[str], what: str) -> None:
    for k, (one, other) in enumerate(zip(found, expected, strict=False)):
        if one != other:
            raise AssertionError(f"{what}: item {k} differs from the uninterrupted stream")
    if len(found) != len(expected):
        raise AssertionError(f"{what}: {len(found)} items came, expected {len(expected)}")
