"""Checks of the laws that every dataset keeps, for tests of your own nodes.

Each check raises `AssertionError` with the difference. Checks read real items: use
small datasets, or limit the number of items.

>>> from energize import ListSource, ShuffleDataset
>>> check_laws(ShuffleDataset(ListSource(range(10))), epochs=2)
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np

from energize.core.dataset import Dataset, IndexedDataset
from energize.core.lanes import SINGLE_LANE, Lane
from energize.core.lazy import torch
from energize.core.node import INFINITE
from energize.core.stream import State
from energize.core.trace import refs_of

__all__ = [
    "check_exactly_once",
    "check_laws",
    "check_purity",
    "check_resume",
    "check_topology",
    "fingerprint",
]

_END: Any = object()

_EMPTY_EPOCHS = 12
"""Empty epochs in a row after which a lane is considered empty."""


def check_laws(dataset: Dataset[Any], *, epochs: int = 2, items: int = 50) -> None:
    """Check resume, topology and, for indexed datasets, purity.

    Args:
        dataset: The dataset.
        epochs: Epochs to read.
        items: Items to read if the length of an epoch is unknown or infinite.

    Raises:
        AssertionError: If a law is violated.

    Example:
        >>> from energize import ListSource
        >>> check_laws(ListSource("abc"))
    """
    check_resume(dataset, epochs=epochs, items=items)
    ranks, workers = (2, 3, 8), (0, 3)
    check_topology(
        dataset, world_sizes=ranks, num_workers=workers, epochs=epochs, items=items
    )
    if isinstance(dataset, IndexedDataset) and dataset.indexed:
        check_purity(dataset, items=items)


def check_resume(
    dataset: Dataset[Any],
    *,
    epochs: int = 2,
    items: int = 50,
    lanes: Sequence[int] = (1,),
) -> None:
    """Check that a run resumes after any item.

    Every state must be JSON of a constant shape, and yield exactly the remaining items.

    Args:
        dataset: The dataset.
        epochs: Epochs to read.
        items: Items to read if the length of an epoch is unknown or infinite.
        lanes: Numbers of lanes to check.

    Raises:
        AssertionError: If a resumed run differs.
    """
    for lane in (Lane(index, count) for count in lanes for index in range(count)):
        steps = list(_take(dataset, _some(dataset, items, epochs, lane), lane=lane))
        whole = [item for item, _ in steps]
        shapes = {_shape(state) for _, state in steps}
        if len(shapes) > 1:
            raise AssertionError(
                f"the state changes its shape on the way: {sorted(shapes)[:2]}"
            )
        for number, (_, state) in enumerate(steps):
            expected = whole[number + 1 :]
            rest = [item for item, _ in _take(dataset, len(expected), state, lane)]
            _compare(
                rest,
                expected,
                f"{_named(lane)}resumed after item {number} from {state}",
            )


def check_topology(
    dataset: Dataset[Any],
    *,
    world_sizes: Sequence[int] = range(1, 9),
    num_workers: Sequence[int] = (0, 1, 2, 3),
    epochs: int = 2,
    items: int = 50,
    lanes: Sequence[int] = (1, 2, 3, 6),
) -> None:
    """Check that the items of all ranks, in turn, do not depend on the topology.

    Worker w of rank r reads lane r + w * world_size of world_size * num_workers. For a
    stream, the order depends on the number of lanes; the check is that each lane
    yields the same alone as in turn with the others.

    Args:
        dataset: The dataset.
        world_sizes: Numbers of ranks to check, for indexed datasets.
        num_workers: Numbers of workers to check, for indexed datasets.
        epochs: Epochs to read.
        items: Items to read if the length of an epoch is unknown or infinite.
        lanes: Numbers of lanes to check, for streams.

    Raises:
        AssertionError: If an order differs.
    """
    if not (isinstance(dataset, IndexedDataset) and dataset.indexed):
        for count in lanes:
            _check_lanes(dataset, count, epochs, items)
        return
    size = _some(dataset, items)
    whole = [fingerprint(item) for item in dataset.at(np.arange(epochs * size))]
    for count in sorted({w * max(n, 1) for w in world_sizes for n in num_workers}):
        merged = _merged_lanes(dataset, count, size, len(whole))
        _compare(merged, whole, f"{count} lanes")


def _merged_lanes(
    dataset: Dataset[Any], count: int, size: int, total: int
) -> list[str]:
    """Read at least `total` items in turn from `count` lanes, `size` items a state."""
    merged: list[str] = []
    state: State | None = None
    while len(merged) < total:
        cursors = [dataset.open(Lane(lane, count), state) for lane in range(count)]
        state = {"position": len(merged) + size}
        items = (next(cursors[step % count], _END) for step in range(size))
        merged += [fingerprint(item) for item in items if item is not _END]
    return merged


def check_purity(dataset: IndexedDataset[Any], *, items: int = 50) -> None:
    """Check that an item does not depend on earlier reads, or on items read with it.

    Args:
        dataset: The dataset.
        items: Items to read if the length of an epoch is unknown or infinite.

    Raises:
        AssertionError: If an item differs.
    """
    size = 2 * _some(dataset, items)
    whole = [fingerprint(item) for item in dataset.at(np.arange(size))]
    backwards = [fingerprint(dataset.at([k])[0]) for k in range(size - 1, -1, -1)]
    _compare(backwards[::-1], whole, "read one by one, backwards")
    odd = [fingerprint(item) for item in dataset.at(np.arange(1, size, 2))]
    _compare(odd, whole[1::2], "every second item read alone")


def check_exactly_once(
    dataset: Dataset[Any],
    promised: Callable[[int, int], tuple[int, int]],
    *,
    epoch: int = 0,
    lanes: Sequence[int] = (1, 2, 3, 6),
) -> None:
    """Check that an epoch visits every sample the promised number of times.

    For a stream, visits of all lanes are added. Samples of sources without random
    access are only expected up to the last sample that a lane has read.

    Args:
        dataset: The dataset.
        promised: Returns the minimum and maximum number of visits of a sample, for the
            number of its source in `dataset.sources` and its index.
        epoch: The epoch to check.
        lanes: Numbers of lanes to check, for streams.

    Raises:
        AssertionError: If a sample is visited more or less often.
    """
    if isinstance(dataset, IndexedDataset) and dataset.indexed:
        positions = np.arange(epoch * dataset.size, (epoch + 1) * dataset.size)
        _check_visits(dataset, [dataset.refs(positions)], promised, str(epoch))
        return
    for count in lanes:
        states: list[State | None] = [None] * count
        for _ in range(epoch + 1):
            read = _read_in_turn(dataset, states, sys.maxsize)
            states = [*read.states]
        refs = [refs_of(dataset, origin) for origin in read.origins]
        _check_visits(dataset, refs, promised, f"{epoch} of {count} lanes")


# Comparing items of any type.


def fingerprint(item: Any) -> str:
    """Return a digest of the types and contents of an item.

    Args:
        item: Tensors, arrays, dataclasses, containers, and other values by their
            `repr`.

    Example:
        >>> fingerprint({"a": torch.zeros(2)}) == fingerprint({"a": torch.zeros(2)})
        True
    """
    digest = hashlib.blake2b(digest_size=12)
    _feed(digest, item)
    return digest.hexdigest()


def _feed(digest: hashlib.blake2b, item: Any) -> None:
    digest.update(f"<{type(item).__name__}".encode())
    members = _members_of(item)
    if members is None:
        _feed_value(digest, item)
    else:
        for member in members:
            _feed(digest, member)
    digest.update(b">")


def _members_of(item: Any) -> Iterable[Any] | None:
    """Return the values in a container; None for other items."""
    if isinstance(item, torch.Tensor | np.ndarray):
        return None
    if dataclasses.is_dataclass(item):
        return [getattr(item, field.name) for field in dataclasses.fields(item)]
    if isinstance(item, Mapping):
        return chain.from_iterable(item.items())
    return item if isinstance(item, list | tuple) else None


def _feed_value(digest: hashlib.blake2b, item: Any) -> None:
    if isinstance(item, torch.Tensor):
        flat = item.detach().cpu().contiguous().reshape(-1)
        digest.update(f"{item.dtype}{tuple(item.shape)}".encode())
        digest.update(flat.view(torch.uint8).numpy().data)
    elif isinstance(item, np.ndarray):
        digest.update(f"{item.dtype}{item.shape}".encode())
        digest.update(np.ascontiguousarray(item).tobytes())
    elif isinstance(item, bytes):
        digest.update(item)
    elif hasattr(item, "tobytes"):  # a Pillow image
        mode = getattr(item, "mode", "")
        size = getattr(item, "size", "")
        digest.update(f"{mode}{size}".encode())
        digest.update(item.tobytes())
    else:
        digest.update(repr(item).encode())


# Reading a few items.


def _take(
    dataset: Dataset[Any],
    items: int,
    state: State | None = None,
    lane: Lane = SINGLE_LANE,
) -> Iterator[tuple[str, State]]:
    """Yield fingerprints of items of a lane, each with the state after it.

    Epochs can be empty: a stream cannot know that no item is left, and some lanes of a
    small stream are always empty.
    """
    empty = 0
    initial_state = state
    while items:
        cursor = dataset.open(lane, state)
        remaining = items
        for item in islice(cursor, items):
            items -= 1
            yield fingerprint(item), json.loads(json.dumps(cursor.state()))
        empty = empty + 1 if items == remaining else 0
        if empty == 2 and lane.count == 1:
            raise AssertionError(f"no item comes from {state} on")
        if empty > _EMPTY_EPOCHS + (
            initial_state is not None
        ):  # the first may be the rest of one
            return
        state = cursor.state()


def _some(
    dataset: Dataset[Any], items: int, epochs: int = 1, lane: Lane = SINGLE_LANE
) -> int:
    """Return the number of items of a lane in some epochs, or its part of `items`."""
    if (
        isinstance(dataset, IndexedDataset)
        and dataset.indexed
        and dataset.size != INFINITE
    ):
        items = dataset.size * epochs
    return -(-items // lane.count)


class _ReadInTurn(NamedTuple):
    """Fingerprints of an epoch that lanes read in turn.

    Attributes:
        of: Fingerprints by lane.
        items: Fingerprints in turn.
        origins: The origin of each item.
        states: The state of each lane after the epoch.
        ended: Whether each lane has ended.
    """

    of: list[list[str]]
    items: list[str]
    origins: list[Any]
    states: list[State]
    ended: list[bool]


def _read_in_turn(
    dataset: Dataset[Any], states: Sequence[State | None], items: int
) -> _ReadInTurn:
    """Read at most `items` items of an epoch, from the states of its lanes."""
    lanes = range(len(states))
    cursors = [dataset.open(Lane(lane, len(states)), states[lane]) for lane in lanes]
    read = _ReadInTurn([[] for _ in lanes], [], [], [], [])
    running = deque(lanes)
    while running and len(read.items) < items:
        lane = running.popleft()
        item = next(cursors[lane], _END)
        if item is not _END:
            read.items.append(fingerprint(item))
            read.of[lane].append(read.items[-1])
            read.origins.append(cursors[lane].origin)
            running.append(lane)
    read.states.extend(cursor.state() for cursor in cursors)
    read.ended.extend(lane not in running for lane in lanes)
    return read


def _check_lanes(dataset: Dataset[Any], count: int, epochs: int, items: int) -> None:
    """Check a stream in `count` lanes."""
    states: list[State | None] = [None] * count
    single: list[State | None] = [None]
    for epoch in range(epochs):
        read = _read_in_turn(dataset, states, items)
        for lane in (Lane(index, count) for index in range(count)):
            _check_lane(dataset, lane, states[lane.index], read, epoch)
        over = all(read.ended)
        if not dataset.traits.stream.divisible:
            alone = _read_in_turn(dataset, single, len(read.items) + over)
            _compare(read.items, alone.items, f"{count} lanes in turn, epoch {epoch}")
            single = [*alone.states]
        if not over:
            return
        states = [*read.states]


def _check_lane(
    dataset: Dataset[Any],
    lane: Lane,
    state: State | None,
    read: _ReadInTurn,
    epoch: int,
) -> None:
    """Check that a lane yields the same alone as in turn with the others."""
    expected = read.of[lane.index]
    ended = read.ended[lane.index]
    label = f"{_named(lane)}epoch {epoch}, read alone"
    cursor = dataset.open(lane, state)
    items = [fingerprint(item) for item in islice(cursor, len(expected))]
    _compare(items, expected, label)
    if ended and next(cursor, _END) is not _END:
        raise AssertionError(f"{label}: it continues after {len(expected)} items")
    if cursor.state() != read.states[lane.index]:
        raise AssertionError(f"{label}: the state differs: {cursor.state()}")
    if not (ended and dataset.sized):
        return
    share = len(range(lane.index, dataset.size, lane.count))
    if len(expected) != share:
        raise AssertionError(
            f"{label}: {len(expected)} items, of {dataset.size} in all lanes"
        )


def _check_visits(
    dataset: Dataset[Any],
    refs: Sequence[Any],
    promised: Callable[[int, int], tuple[int, int]],
    epoch: str,
) -> None:
    rows = (
        zip(part.source.tolist(), part.index.tolist(), strict=True) for part in refs
    )
    seen = Counter(sample for part in rows for sample in part)
    for number, source in enumerate(dataset.sources):
        seen_count = 1 + max(
            (index for source_number, index in seen if source_number == number),
            default=-1,
        )
        for index in range(getattr(source, "count", seen_count)):
            least, most = promised(number, index)
            visits = seen[(number, index)]
            if not least <= visits <= most:
                raise AssertionError(
                    f"epoch {epoch} visits {source.name}, sample {index}, {visits} "
                    f"times, expected {least} to {most}"
                )


def _named(lane: Lane) -> str:
    return "" if lane.count == 1 else f"lane {lane.index} of {lane.count}, "


def _shape(tree: Any) -> str:
    """Return keys and types of a state, without samples that wait for their batch."""
    if isinstance(tree, dict):
        entries = {
            key: None if key == "waiting" else value for key, value in tree.items()
        }
        return (
            "{"
            + ",".join(
                f"{key}:{_shape(value)}" for key, value in sorted(entries.items())
            )
            + "}"
        )
    if isinstance(tree, list):
        return "[" + ",".join(map(_shape, tree)) + "]"
    return type(tree).__name__


def _compare(actual: Sequence[str], expected: Sequence[str], label: str) -> None:
    for k, (item, expected_item) in enumerate(zip(actual, expected, strict=False)):
        if item != expected_item:
            raise AssertionError(
                f"{label}: item {k} differs from the uninterrupted stream"
            )
    if len(actual) != len(expected):
        raise AssertionError(
            f"{label}: {len(actual)} items came, expected {len(expected)}"
        )
