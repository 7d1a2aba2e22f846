"""What a run asks of object storage, and whether its trainer waits for that, before it begins.

A stretch of the run is played as its readers read it: they go through their positions, as far ahead
of the trainer as workers may be, and tell `Files.plan` of the samples to come, in whose place
something takes notes. What the node cache has is left out, and neighbours are merged, as when they
are fetched. The model of the network: a request takes the latency, and then its bytes go over the
link of the node, one request after another. A process has `IN_FLIGHT` requests in flight. At random
some fail, and are sent again after the pause of fetching. What waits for an index, or for a first
look at what a file is, takes a latency more for each. Readers take no time of their own, and a step
begins when all ranks of the node have their batch.

One node is played: others read as much. Of a long run two stretches are: the first one, before
which the cache is empty, and one in its middle, by which all is scaled. For that one it is drawn at
random what was there before, so that what is new is as large a part as in the whole run.
"""

from __future__ import annotations

import math
import random
import re
from bisect import bisect_left, bisect_right
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from functools import cache, partial
from heapq import heapify, heappop, heappush
from itertools import product
from typing import Any

import numpy as np

from energize.core.arrays import Int64Array
from energize.core.dataset import IndexedDataset
from energize.core.trace import AHEAD, READY, Ahead, Trace
from energize.data.files import IN_FLIGHT, Files, merged
from energize.data.join import JoinedSource
from energize.data.selection import PropertySource, source_labels
from energize.errors import ConfigError, nearest

_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}
_BYTES = {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
_RATES = {f"{unit}/s": size for unit, size in _BYTES.items()} | {"Mbit/s": 125e3, "Gbit/s": 125e6}
_WHOLE = {"": 1.0}
_KEYS: dict[str, tuple[dict[str, float], float, float, float]] = {
    "latency": (_SECONDS, 0.03, 0, 600),
    "bandwidth": (_RATES, 1e9, 1, 1e15),
    "errors": ({"%": 1.0}, 0, 0, 99),
    "cache": (_BYTES, math.inf, 0, 1e18),
    "step": (_SECONDS, 0, 0, 86400),
    "ranks": (_WHOLE, 1, 1, 2**20),
    "node": (_WHOLE, 8, 1, 256),
    "workers": (_WHOLE, 0, 0, 256),
}
"""Of each key its units, what it is by default, and the least and the most that it may be."""

_SAMPLES, _OF_PROCESS = 20_000, 4 * AHEAD
"""How many samples of a node, or times its processes, a stretch has at least where the run has."""

_PROCESSES = 256

_IDLE = 0.01
"""The part of a step that is no waiting."""

_LIMITS = {
    "bandwidth": ({"bandwidth": math.inf}, "have fewer ranks on a node, or a larger cache"),
    "errors": ({"errors": 0.0}, "see why requests fail, or use more workers"),
    "requests in flight": ({"most": math.inf}, f"use more workers, each has {IN_FLIGHT} in flight"),
    "look-ahead": ({"ahead": 4.0 * AHEAD}, f"use more workers, each looks {AHEAD} samples ahead"),
    "latency": ({"latency": 0.0}, "bring the data nearer, or use more workers"),
}
"""What may limit, what is without it, and what to do."""

Network = Mapping[str, float]
Span = tuple[int, int]
Request = tuple[int, int, int]
"""The turn of its process by which it is due, its bytes, and how many latencies it waits."""


def parsed_network(text: str) -> dict[str, float]:
    """Return what is said as key=value, with commas between, in seconds, bytes and %.

    The keys: the `latency` of a request, the `bandwidth` of a node, how many requests fail
    (`errors`), the size of the node `cache`, how long a `step` of the trainer takes but for
    reading, the `ranks` of the run, those of a `node`, the `workers` of a rank. Raise `ConfigError`
    for others.

    >>> parsed_network("latency=20ms, bandwidth=10Gbit/s, ranks=16")["bandwidth"]
    1250000000.0
    """
    network = {name: default for name, (_, default, _, _) in _KEYS.items()}
    for part in text.replace(" ", "").split(","):
        name, _, value = part.partition("=")
        if name not in _KEYS:
            known = f"none of {', '.join(_KEYS)}{nearest(name, list(_KEYS))}"
            raise ConfigError(f"--network: {name!r} is {known}")
        units, _, least, most = _KEYS[name]
        found = re.fullmatch(r"([0-9]{1,18}(?:\.[0-9]{1,18})?)([a-zA-Z/%]*)", value)
        network[name] = float(found[1]) * units.get(found[2], math.nan) if found else math.nan
        if not least <= network[name] <= most or (units is _WHOLE and network[name] % 1):
            kind = "a whole number" if units is _WHOLE else f"a number of {', '.join(units)}"
            [one] = (unit for unit, size in units.items() if size == 1)
            told = f"{name} is {kind}, from {least:g} to {most:g}{one}; got {value!r}"
            raise ConfigError(f"--network: {told}")
    network["node"] = min(network["node"], network["ranks"])
    if (many := network["node"] * max(1, network["workers"])) > _PROCESSES:
        told = f"{many:g} processes on a node are more than {_PROCESSES}: fewer ranks or workers"
        raise ConfigError(f"--network: {told}")
    return network


def forecast_network(dataset: IndexedDataset[Any], steps: int, network: Network) -> dict[str, Any]:
    """Return what the first `steps` batches, of all ranks, ask of a network; see `parsed_network`.

    The indices of shards are read. All is of one of the `nodes`. `played`: the samples that are
    looked at, those of the `whole` run or not. `requests`: those that fetch; `looks`: those that
    ask what a file is. `wanted_bytes`: of samples, and of indices; `cached_part`: which of these
    the node cache has; `fetched_bytes`: with gaps between neighbours. `in_flight`: requests of a
    process, on average. `fetch_seconds`: of a step, if the trainer takes none. `wait_seconds` on
    average and `wait_p99_seconds` at the 99th percentile: of a step in the middle third of the
    stretch; `first_wait_seconds`: on average in the first third of the first one, before which the
    cache is empty. `limit`: what makes most of the waiting, None if that is less than 1 % of a
    step. `unknown`: sources of which only reading tells which bytes their samples are, and that
    count nothing. `verdict`: the whole in a sentence.
    """
    node, ranks = int(network["node"]), int(network["ranks"])
    readers, share = node * max(1, int(network["workers"])), node / ranks
    stride = readers // node * ranks
    counts = np.array([max(1, source.count) for source in dataset.sources])
    shards = np.array([len(getattr(source, "shards", "1")) for source in dataset.sources])

    def new(reads: Any) -> Any:
        """Of so many reads of each source: samples that are new to the node, as in each pass all
        are read, by some node; indices that are, and are to a reader, if shards come at random.
        """
        passes, rest = np.divmod(reads / (share * counts), 1)
        samples = counts * (1 - (1 - share) ** passes * (1 - share * rest))
        opened = (-shards * n * np.expm1(-reads / n / shards) for n in (1, readers))
        return np.stack([samples, *opened])

    each = max(1.0, float(dataset.consumed(1).sum()))
    many = math.ceil(max(_SAMPLES, _OF_PROCESS * readers) / each / share / stride) * stride
    whole = many >= steps
    start = (steps - many) // 2 // stride * stride
    bounds = (max(0, start), start + many, steps // 2, steps)
    before, after, half, end = (dataset.consumed(n) * share for n in bounds)
    known, given = _Known(dataset), {**network, "ahead": AHEAD, "most": IN_FLIGHT, "filled": 0.0}
    play = partial(_Node, known, range(min(many, steps)))
    run = first = play(given)
    if not whole:
        given["filled"] = float(new(half)[0].sum()) * first.wanted / max(1, first.samples)
        reads = np.maximum(after - before, 1e-9)
        fresh = new(end) / np.maximum(end, 1e-9) / (new(reads) / reads)
        play = partial(_Node, known, range(start, start + many), fresh=fresh.T.tolist())
        run = play(given)
    fetching, limit = play({**given, "step": 0}).between, None
    if run.wait > _IDLE * network["step"]:
        without = {name: play({**given, **other}).wait for name, (other, _) in _LIMITS.items()}
        halved = (name for name, wait in without.items() if wait <= run.wait / 2)
        limit = next(halved, min(without, key=lambda name: without[name]))
    scale = 1.0 if whole else float(end.sum()) / max(1, run.samples)
    labels = source_labels(dataset.sources)
    # Of a long run in which little is new, that may be in the first stretch alone.
    names = ("requests", "looks", "wanted", "fetched")
    total = {n: max(getattr(first, n), round(getattr(run, n) * scale)) for n in names}
    return {
        "verdict": _verdict(network["step"], fetching, run, first, limit),
        "nodes": math.ceil(1 / share),
        "played": run.samples,
        "whole": whole,
        "requests": total["requests"],
        "looks": total["looks"],
        "wanted_bytes": total["wanted"],
        "cached_part": run.hit / max(1, run.wanted),
        "fetched_bytes": total["fetched"],
        "in_flight": run.in_flight,
        "fetch_seconds": fetching,
        "wait_seconds": run.wait,
        "wait_p99_seconds": run.p99,
        "first_wait_seconds": first.begin,
        "limit": limit,
        "unknown": [labels[number] for number in sorted(known.unknown)],
    }


def _verdict(step: float, fetching: float, run: _Node, first: _Node, limit: str | None) -> str:
    told = f"a step is fetched in {seconds(fetching)}, and takes {seconds(step)}"
    if limit is None:
        return f"The trainer does not wait, but {seconds(first.begin)} a step at first: {told}"
    remedy = f"what limits is {limit}: {_LIMITS[limit][1]}"
    if not step:
        return f"A trainer waits if a step takes less than {seconds(fetching)}; {remedy}"
    waits = f"{seconds(run.wait)} a step, {seconds(run.p99)} at the 99th percentile"
    return f"The trainer waits {waits}, as {told}; {remedy}"


def seconds(number: float) -> str:
    """Return a time for people.

    >>> seconds(0.0123), seconds(2.5)
    ('12.3 ms', '2.5 s')
    """
    return f"{number:.3g} s" if number >= 1 else f"{1000 * number:.3g} ms"


class _Known:
    """Which ranges samples are, by what is planned when they are expected.

    `before`: of files, what has to be there until it is known where samples lie in them.
    """

    def __init__(self, dataset: IndexedDataset[Any]) -> None:
        self.dataset, self.unknown = dataset, set[int]()
        self.before: dict[str, list[tuple[str, Span]]] = {}
        self._planned: list[tuple[str, Span]] = []
        self._copies: dict[int, Any] = {}
        self.ranges = cache(lambda number, index: self._ranges(dataset.sources[number], index))

    def _ranges(self, source: Any, index: int) -> list[tuple[str, Span]]:
        if isinstance(source, PropertySource):
            return self._ranges(source.source, int(source.rows[index]))
        if isinstance(source, JoinedSource):
            pairs = zip(source.parts, source.matches[index].tolist(), strict=True)
            return [each for part, at in pairs if at >= 0 for each in self._ranges(part, at)]
        if not hasattr(type(source), "_files"):
            return []
        if id(source) not in self._copies:
            self._copies[id(source)], files = source._replace(), type(source._files)()
            vars(files)["plan"] = partial(self._plan, files)
            vars(self._copies[id(source)])["_files"] = files
        found = []
        # Once more, as then it is known where it lies.
        for expected in (np.array([index], dtype=np.int64), np.zeros(0, dtype=np.int64)):
            self._planned = []
            self._copies[id(source)].expect(expected)
            found.append(self._planned)
        self.before.update((path, found[0]) for path, _ in found[1])
        return found[1] or found[0]

    def _plan(self, files: Files, path: str, starts: Sequence[int], stops: Sequence[int]) -> None:
        size = files.size(path)
        for start, stop in zip(starts or [0], stops or [size], strict=True):
            first, last = start + size * (start < 0), stop + size * (stop <= 0)
            self._planned.append((path, (max(0, first), min(size, last))))


class _Node:
    """The processes of a node, which read positions, on a network.

    `fresh`: of each source how likely a sample, an index, and a file to a process are new, when
    they are first seen here.
    """

    def __init__(self, known: _Known, span: range, network: Network, fresh: Any = ()) -> None:
        self._known, self._network, self._fresh = known, network, fresh
        self._filled, self._drawn = network["filled"], random.Random(0)  # noqa: S311
        self.samples = self.requests = self.looks = self.wanted = self.fetched = self.hit = 0
        self._seen, self._held = set[tuple[int, str]](), defaultdict[str, list[int]](list)
        self._ends = defaultdict[Span, float](float)
        ranks, self._width = int(network["ranks"]), max(1, int(network["workers"]))
        places = product(range(int(network["node"])), range(self._width))
        self._lanes = [span[rank + ranks * n :: ranks * self._width] for rank, n in places]
        self._queues = [deque[Request]() for _ in self._lanes]
        self._play()

    def _play(self) -> None:
        network, link, flown, step, asks = self._network, 0.0, 0.0, 0, 0.0
        lanes, dataset = range(len(self._lanes)), self._known.dataset
        looks = [Ahead(dataset, partial(self._told, n), int(network["ahead"])) for n in lanes]
        flights: list[list[float]] = [[] for _ in lanes]
        begun, read, taken = ([0] * len(lanes) for _ in range(3))
        starts, waits = list[float](), list[float]()
        events = [(0.0, lane) for lane in lanes]
        while events:
            now, lane = heappop(events)
            while events and events[0] == (now, lane):
                heappop(events)
            queue, flight, turn = self._queues[lane], flights[lane], read[lane]
            while flight and flight[0] <= now:
                heappop(flight)
            ready = READY if network["workers"] else now >= asks
            if begun[lane] == turn < min(len(self._lanes[lane]), taken[lane] + ready):
                begun[lane] += 1
                looks[lane](turn, partial(self._positions, lane))
            while queue and len(flight) < network["most"]:
                due, size, late = queue.popleft()
                link = max(link, now + network["latency"]) + size / network["bandwidth"]
                done, tries = link + late * network["latency"], 0
                while self._drawn.random() * 100 < network["errors"]:
                    tries += 1
                    pause = self._drawn.uniform(0.5, 1) * min(8.0, 0.1 * 2**tries)
                    done += network["latency"] + pause
                heappush(flight, done)
                flown += done - now
                self._ends[lane, due] = max(self._ends[lane, due], done)
            if queue:
                heappush(events, (flight[0], lane))
            if begun[lane] > turn and not (queue and queue[0][0] <= turn):
                read[lane] += self._ends[lane, turn] <= now
                heappush(events, (max(now, self._ends[lane, turn]), lane))
            turn, worker = divmod(step, self._width)
            takers = [n for n in lanes[worker :: self._width] if turn < len(self._lanes[n])]
            if takers and now >= asks and all(read[each] > turn for each in takers):
                waits.append(now - asks)
                starts.append(now)
                step, asks = step + 1, now + network["step"]
                for each in lanes:
                    taken[each] += each in takers
                    events += [(now, each), (asks, each)]
                heapify(events)
        # Before and after that, what is ahead is filled, and emptied.
        begin, end = len(waits) // 3, max(len(waits) // 3 + 1, 2 * len(waits) // 3)
        self.begin, settled = float(np.mean(waits[: max(1, begin)])), waits[begin:end]
        self.wait, self.p99 = float(np.mean(settled)), float(np.percentile(settled, 99))
        self.between = (starts[end - 1] - starts[begin]) / max(1, end - 1 - begin)
        self.in_flight = flown / max(starts[-1], 1e-9) / len(lanes)

    def _positions(self, lane: int, turns: Int64Array) -> Int64Array:
        positions = self._lanes[lane]
        return positions.start + positions.step * turns[turns < len(positions)]

    def _told(self, lane: int, at: Int64Array) -> int:
        """Ask for the samples of positions; return how many these are."""
        refs, known = Trace(self._known.dataset, at).refs(), self._known
        turns = ((at - self._lanes[lane].start) // self._lanes[lane].step).tolist()
        columns = (each.tolist() for each in (refs.item, refs.source, refs.index))
        wanted: defaultdict[tuple[int, str], dict[Span, int]] = defaultdict(dict)
        for item, source, index in zip(*columns, strict=True):
            ranges = known.ranges(source, index)
            known.unknown |= set() if ranges else {source}
            for path, span in ranges:
                wanted[source, path].setdefault(span, turns[item])
        requests = list[Request]()
        for (source, path), spans in wanted.items():
            sample, index, file = self._fresh[source] if self._fresh else (1.0, 1.0, 1.0)
            late, opened = 0, (lane, path) in self._seen
            self._seen.add((lane, path))
            if not opened and self._drawn.random() < file:
                due = min(spans.values())
                heads: defaultdict[str, dict[Span, int]] = defaultdict(dict, {path: {}})
                for head, span in known.before.get(path, ()):
                    heads[head][span] = due
                self.looks += len(heads)
                asked = [n for head, own in heads.items() for n in self._asked(head, own, index, 1)]
                requests += [(due, 0, 0)] * len(heads) + asked
                late = 2 if asked else 1
            requests += self._asked(path, spans, sample, late)
        self._queues[lane].extend(sorted(requests))
        self.samples += len(refs)
        return len(refs)

    def _asked(self, path: str, spans: dict[Span, int], fresh: float, late: int) -> list[Request]:
        """Return the requests for ranges of a file, each of which is due by some turn."""
        missing, held = list[Span](), self._held[path]
        for first, last in sorted(spans):
            there = _holds(held, first, last) or self._drawn.random() >= fresh
            self._filled += 0 if there else last - first
            self.wanted += last - first
            # A full cache has as large a part as fits of all that was read.
            if there and self._drawn.random() * max(1.0, self._filled) < self._network["cache"]:
                self.hit += last - first
                _hold(held, first, last)
            else:
                missing.append((first, last))
        requests = list[Request]()
        for begin, end in merged(missing):
            due = min(spans[span] for span in missing if span[0] < end and begin < span[1])
            requests.append((due, end - begin, late))
            self.fetched += end - begin
            _hold(held, begin, end)
        self.requests += len(requests)
        return requests


# Ranges that are held, as the bounds of all of them in ascending order.


def _holds(held: list[int], first: int, last: int) -> bool:
    at = bisect_right(held, first)
    return at % 2 == 1 and last <= held[at]


def _hold(held: list[int], first: int, last: int) -> None:
    begin, end = bisect_left(held, first), bisect_right(held, last)
    held[begin:end] = [first] * (begin % 2 == 0) + [last] * (end % 2 == 0)
