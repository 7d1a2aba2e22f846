"""What stopping and resuming costs a loader, measured in a process of its own.

It needs nothing but the standard library and torch, so that it measures a peer without
importing energize.
"""

from __future__ import annotations

import copy
import gc
import io
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Protocol

import torch

__all__ = ["BATCH", "Asked", "Library", "Place", "Resumption", "main", "read_to"]

BATCH = 32
"""Samples of a batch."""

_AGAIN = 5
_FEWEST = 3

Clock = Callable[[], float]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a process measures: a `kind` of mix of so many `sources`, resumed at
    `positions` in samples. `seconds` is what one position may take beyond three rounds,
    and what may be read to reach it; `data` a folder that is prepared for libraries
    that read files.
    """

    kind: str
    sources: int
    workers: int
    positions: tuple[int, ...]
    rounds: int
    seconds: float
    data: str = ""


@dataclass(frozen=True, kw_only=True)
class Resumption:
    """What was measured at a position; seconds and ratios are medians of the rounds.
    Seconds are CPU time of the process without workers, which others of the machine do
    not change, else time.

    `build`: to describe what is read. `fresh`: from a new loader to its first batch.
    `resumed`: from `load_state_dict` to the first batch. `ratio`: of these two in one
    round; `whole_ratio`: with the description on both sides. `state`: the first
    `state_dict()` of a run, `state_again` later ones. Bytes are those of a state as
    JSON (None where it is no JSON) and by `torch.save`.
    """

    library: str
    kind: str
    sources: int
    workers: int
    position: int
    rounds: int
    build: float
    fresh: float
    resumed: float
    ratio: float
    whole_ratio: float
    state: float
    state_again: float
    json_bytes: int | None
    torch_bytes: int


class Place(NamedTuple):
    """A state, how many samples lie before it, and what the batch after it looks like
    if known.
    """

    position: int
    state: Any
    expected: list[Any] | None


class Library(Protocol):
    """A loader as it is described, opened, saved and resumed; `look` is what a batch
    holds.
    """

    name: str

    def describe(self) -> Any: ...

    def loader(self, described: Any) -> Any: ...

    def state(self, loader: Any) -> Any: ...

    def load(self, loader: Any, state: Any) -> None: ...

    def close(self, loader: Any) -> None: ...

    def look(self, batch: Any) -> list[Any]: ...

    def reach(self, position: int, seconds: float) -> Place: ...


class _Round(NamedTuple):
    build: float
    fresh: float
    resumed: float
    state: float
    state_again: float


def main(open_library: Any) -> None:
    """Measure what the command line asks for, and print a line of JSON for each
    position.
    """
    asked = Asked(**json.loads(sys.argv[1]))
    library: Library = open_library(asked)
    before = -1
    for position in asked.positions:
        place = library.reach(position, asked.seconds)
        if place.position <= before:
            break  # it did not come farther in the time
        before = place.position
        print(json.dumps(asdict(_measured(library, asked, place))), flush=True)


def read_to(library: Library, position: int, seconds: float) -> Place:
    """Where reading comes to within `seconds`, at `position` at most."""
    loader = library.loader(library.describe())
    batches = iter(loader)
    until = time.monotonic() + seconds
    read = 0
    while read < position and time.monotonic() < until:
        next(batches)
        read += BATCH
    state = library.state(loader)
    expected = library.look(next(batches))
    del batches
    library.close(loader)
    return Place(read, state, expected)


def _measured(library: Library, asked: Asked, place: Place) -> Resumption:
    clock = time.perf_counter if asked.workers else time.process_time
    _round(
        library, place, clock, swapped=False
    )  # imports, and what is made once in a process
    rounds: list[_Round] = []
    began = time.monotonic()
    while len(rounds) < asked.rounds:
        rounds.append(_round(library, place, clock, swapped=bool(len(rounds) % 2)))
        if len(rounds) >= _FEWEST and time.monotonic() - began > asked.seconds:
            break
    whole = [(each.build + each.resumed) / (each.build + each.fresh) for each in rounds]
    middle = _Round(
        *(statistics.median(values) for values in zip(*rounds, strict=True))
    )
    return Resumption(
        library=library.name,
        kind=asked.kind,
        sources=asked.sources,
        workers=asked.workers,
        position=place.position,
        rounds=len(rounds),
        **middle._asdict(),
        ratio=statistics.median(each.resumed / each.fresh for each in rounds),
        whole_ratio=statistics.median(whole),
        json_bytes=_json_bytes(place.state),
        torch_bytes=_torch_bytes(place.state),
    )


def _round(library: Library, place: Place, clock: Clock, *, swapped: bool) -> _Round:
    """A fresh start and a resumed one, each of a new description, as in a new
    process.
    """
    if swapped:
        build, resumed = _resumed(library, place, clock)
        _, fresh, *states = _fresh(library, clock)
    else:
        build, fresh, *states = _fresh(library, clock)
        _, resumed = _resumed(library, place, clock)
    return _Round(build, fresh, resumed, *states)


def _fresh(library: Library, clock: Clock) -> tuple[float, float, float, float]:
    build, described = _described(library, clock)
    began = clock()
    loader = library.loader(described)
    batches = iter(loader)
    batch = next(batches)
    fresh = clock() - began
    _check(library, batch, None)
    states = []
    for _ in range(1 + _AGAIN):
        began = clock()
        library.state(loader)
        states.append(clock() - began)
    del batches
    library.close(loader)
    return build, fresh, states[0], statistics.median(states[1:])


def _resumed(library: Library, place: Place, clock: Clock) -> tuple[float, float]:
    build, described = _described(library, clock)
    loader = library.loader(described)
    state = copy.deepcopy(place.state)  # some loaders go on in what they are given
    began = clock()
    library.load(loader, state)
    batches = iter(loader)
    batch = next(batches)
    resumed = clock() - began
    _check(library, batch, place.expected)
    del batches
    library.close(loader)
    return build, resumed


def _described(library: Library, clock: Clock) -> tuple[float, Any]:
    gc.collect()
    began = clock()
    described = library.describe()
    return clock() - began, described


def _check(library: Library, batch: Any, expected: Sequence[Any] | None) -> None:
    found = library.look(batch)
    if len(found) != BATCH or expected not in (None, found):
        raise RuntimeError(
            f"{library.name}: the first batch is {found}, expected {expected}"
        )


def _json_bytes(state: Any) -> int | None:
    try:
        return len(json.dumps(state))
    except TypeError:
        return None


def _torch_bytes(state: Any) -> int:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.tell()
