"""What a run asks of object storage, and whether its trainer waits for that, before it
begins.

A stretch of the run is played as its readers read it, turn by turn: they go through
their positions, as far ahead of the trainer as workers may be, and ask for the ranges
of the samples to come, of which sources say where they lie. What the node cache has is
left out, and neighbours are merged, as when they are fetched. The model of the network:
a request takes the latency, and then its bytes go over the link of the node, one
request after another. A process has `IN_FLIGHT` requests in flight. At random some
fail, and are sent again after the pause of fetching. Of a file that a reader has not
seen yet, it knows at its next turn where samples lie; those of its first batch it reads
file by file, as they lie. Readers take no time of their own, but that a worker's
process that fetches has to start, and a step begins when all ranks of the node have
their batch.

One node is played: others read as much. Of a long run two stretches are: the first one,
before which the cache is empty, and one in its middle, by which all is scaled. For that
one it is drawn at random what was there before, so that what is new is as large a part
as in the whole run.
"""

from __future__ import annotations

import math
import random
import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from heapq import heappop, heappush, heapreplace
from itertools import product
from typing import Any

import numpy as np

from energize.core.arrays import Int64Array
from energize.core.checks import raised_as
from energize.core.dataset import IndexedDataset
from energize.core.trace import AHEAD, READY, Ahead, Trace
from energize.data.files import IN_FLIGHT, Ranges, files_at, merged
from energize.data.join import JoinedSource
from energize.data.selection import PropertySource
from energize.data.source import ShardedSource
from energize.errors import ConfigError, nearest
from energize.report.levels import source_names

_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}
_BYTES = {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
_RATES = {f"{unit}/s": size for unit, size in _BYTES.items()} | {
    "Mbit/s": 125e3,
    "Gbit/s": 125e6,
}
_WHOLE = {"": 1.0}
# Of each key its units, what it is by default, and the least and the most that it may
# be.
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

# How many samples of a node, or times its processes, a stretch has at least where the
# run has.
_SAMPLES = 20_000
_OF_PROCESS = 2 * AHEAD

_PROCESSES = 256

# Seconds in which the process that fetches for a worker starts.
_START = 0.3

# The part of a step that is no waiting.
_IDLE = 0.01

# What may limit, what is without it, and what to do.
_LIMITS = {
    "bandwidth": (
        {"bandwidth": math.inf},
        "have fewer ranks on a node, or a larger cache",
    ),
    "errors": ({"errors": 0.0}, "see why requests fail, or use more workers"),
    "requests in flight": (
        {"most": 2.0**12},
        f"use more workers, each has {IN_FLIGHT} in flight",
    ),
    "look-ahead": (
        {"ahead": 4.0 * AHEAD},
        f"use more workers, each looks {AHEAD} samples ahead",
    ),
    "latency": ({"latency": 0.0}, "bring the data nearer, or use more workers"),
}

Network = Mapping[str, float]
Span = tuple[int, int]

# When it is asked, the turn of its process by which it is due, bytes, and latencies
# that it waits.
Request = tuple[float, int, int, int]


@raised_as("--network")
def parsed_network(text: str) -> dict[str, float]:
    """Return what is said as key=value, with commas between, in seconds, bytes and %.

    The keys: the `latency` of a request, the `bandwidth` of a node, how many requests
    fail (`errors`), the size of the node `cache`, how long a `step` of the trainer
    takes but for reading, the `ranks` of the run, those of a `node`, the `workers` of a
    rank. Raise `ConfigError` for others.

    >>> parsed_network("latency=20ms, bandwidth=10Gbit/s, ranks=16")["bandwidth"]
    1250000000.0
    """
    network = {name: each[1] for name, each in _KEYS.items()}
    left = list(_KEYS)
    for part in text.replace(" ", "").split(","):
        name, _, value = part.partition("=")
        if name not in left:
            told = "given twice" if name in _KEYS else f"none of {', '.join(_KEYS)}"
            raise ConfigError(f"{name!r} is {told}{nearest(name, left)}")
        left.remove(name)
        units, _, least, most = _KEYS[name]
        [one] = (unit for unit, size in units.items() if size == 1)
        told = value + one * (value == "0")
        found = re.fullmatch(r"([0-9]{1,18}(?:\.[0-9]{1,18})?)([a-zA-Z/%]*)", told)
        network[name] = (
            float(found[1]) * units.get(found[2], math.nan) if found else math.nan
        )
        if not least <= network[name] <= most or (
            units is _WHOLE and network[name] % 1
        ):
            kind = (
                "a whole number"
                if units is _WHOLE
                else f"a number of {', '.join(units)}"
            )
            raise ConfigError(
                f"{name} is {kind}, from {least:g} to {most:g}{one}; got {value!r}"
            )
    network["node"] = min(network["node"], network["ranks"])
    if (many := network["node"] * max(1, network["workers"])) > _PROCESSES:
        raise ConfigError(
            f"{many:g} processes on a node are more than {_PROCESSES}: use fewer"
        )
    return network


def forecast_network(
    dataset: IndexedDataset[Any], steps: int, network: Network
) -> dict[str, Any]:
    """Return what the first `steps` batches, of all ranks, ask of a network; see
    `parsed_network`.

    The indices of shards are read. All is of one of the `nodes`. `played`: the samples
    that are looked at, those of the `whole` run or not. `requests`: those that fetch;
    `looks`: those that ask what a file is. `wanted_bytes`: of samples, and of indices;
    `cached_part`: which of these the node cache has; `fetched_bytes`: with gaps between
    neighbours. `in_flight`: requests of a process, on average. `fetch_seconds`: of a
    step, if the trainer takes none. `wait_seconds` on average and `wait_p99_seconds` at
    the 99th percentile: of a step in the middle third of the stretch;
    `first_wait_seconds`: on average in the first third of the first one, before which
    the cache is empty. `limit`: what makes most of the waiting, None if that is less
    than 1 % of a step. `unknown`: sources of which only reading tells which bytes their
    samples are, and that count nothing. `verdict`: the whole in a sentence.
    """
    node = int(network["node"])
    ranks = int(network["ranks"])
    readers = node * max(1, int(network["workers"]))
    share = node / ranks
    stride = readers // node * ranks
    counts = np.array([max(1, source.count) for source in dataset.sources])
    shards = np.array(
        [len(getattr(source, "shards", "1")) for source in dataset.sources]
    )

    def new(reads: Any) -> Any:
        """Of so many reads of each source: samples that are new to the node, as in each
        pass all are read, by some node; indices that are, and are to a reader, if
        shards come at random.
        """
        passes, rest = np.divmod(reads / (share * counts), 1)
        samples = counts * (1 - (1 - share) ** passes * (1 - share * rest))
        opened = (-shards * n * np.expm1(-reads / n / shards) for n in (1, readers))
        return np.stack([samples, *opened])

    each = max(1.0, float(dataset.consumed(1).sum()))
    many = (
        math.ceil(max(_SAMPLES, _OF_PROCESS * readers) / each / share / stride) * stride
    )
    whole = many >= steps
    start = (steps - many) // 2 // stride * stride
    until = (max(0, start), start + many, steps)
    before, after, end = (dataset.consumed(n) * share for n in until)
    known = Known(dataset)
    given = {**network, "ahead": AHEAD, "most": IN_FLIGHT, "filled": 0.0}
    play = partial(_Node, known, range(min(many, steps)))
    run = first = play(given)
    if not whole:
        each_wants = first.total["wanted_bytes"] / max(1, first.total["samples"])
        given["filled"] = float(new(before)[0].sum()) * each_wants
        reads = np.maximum(after - before, 1e-9)
        fresh = new(end) / np.maximum(end, 1e-9) / (new(reads) / reads)
        play = partial(_Node, known, range(start, start + many), fresh=fresh.T.tolist())
        run = play(given)
    fetching = play({**given, "step": 0}).between
    limit = None
    if run.wait > _IDLE * network["step"]:
        without = {
            name: play({**given, **other}).wait for name, (other, _) in _LIMITS.items()
        }
        halved = (name for name, wait in without.items() if wait <= run.wait / 2)
        limit = next(halved, min(without, key=lambda name: without[name]))
    scale = 1.0 if whole else float(end.sum()) / max(1, run.total["samples"])
    labels = source_names(dataset)
    # Of a long run in which little is new, that may be in the first stretch alone.
    names = ("requests", "looks", "wanted_bytes", "fetched_bytes")
    total = {
        name: max(first.total[name], round(run.total[name] * scale)) for name in names
    }
    return {
        "verdict": _verdict(network["step"], fetching, run, first, limit),
        "nodes": math.ceil(1 / share),
        "played": run.total["samples"],
        "whole": whole,
        **total,
        "cached_part": run.total["hit"] / max(1, run.total["wanted_bytes"]),
        "in_flight": run.in_flight,
        "fetch_seconds": fetching,
        "wait_seconds": run.wait,
        "wait_p99_seconds": run.p99,
        "first_wait_seconds": first.begin,
        "limit": limit,
        "unknown": [labels[number] for number in sorted(known.unknown)],
    }


def _verdict(
    step: float, fetching: float, run: _Node, first: _Node, limit: str | None
) -> str:
    told = f"a step is fetched in {seconds(fetching)}, and takes {seconds(step)}"
    if limit is None:
        return (
            f"The trainer does not wait, but {seconds(first.begin)} a step at "
            f"first: {told}"
        )
    remedy = f"what limits is {limit}: {_LIMITS[limit][1]}"
    if not step and not fetching:
        return "A rank takes too few steps for a forecast: give more, or fewer ranks"
    if not step:
        return (
            f"A trainer waits if a step takes less than {seconds(fetching)}; {remedy}"
        )
    waits = f"{seconds(run.wait)} a step, {seconds(run.p99)} at the 99th percentile"
    return f"The trainer waits {waits}, as {told}; {remedy}"


def seconds(number: float) -> str:
    """Return a time for people.

    >>> seconds(0.0123), seconds(2.5)
    ('12.3 ms', '2.5 s')
    """
    return f"{number:.3g} s" if number >= 1 else f"{1000 * number:.3g} ms"


class Known:
    """Which ranges samples are, as readers expect them.

    `before`: of files, what is read there and elsewhere until it is known where samples
    lie.
    """

    def __init__(self, dataset: IndexedDataset[Any]) -> None:
        self.unknown = set[int]()
        self.dataset = dataset
        self.size: Callable[[str], int] = cache(lambda path: files_at(path).size(path))
        self.before: dict[str, list[tuple[str, list[Span]]]] = {}
        self.ranges = cache(
            lambda number, index: [*self._of(dataset.sources[number], index)]
        )

    def _of(self, source: Any, index: int) -> Iterator[tuple[str, Span]]:
        if isinstance(source, PropertySource):
            yield from self._of(source.source, int(source.rows[index]))
        elif isinstance(source, JoinedSource):
            for part, at in zip(
                source.parts, source.matches[index].tolist(), strict=True
            ):
                yield from self._of(part, at) if at >= 0 else ()
        elif isinstance(source, ShardedSource):
            shard, number = (int(each[0]) for each in source.locate(np.array([index])))
            ranges = source._ranges_of(shard, [number]) or source._ranges_before(shard)
            for path, spans in _spans(source, ranges).items():
                if path not in self.before:
                    heads = _spans(source, source._ranges_before(shard))
                    self.before[path] = [*({path: []} | heads).items()]
                yield from ((path, span) for span in spans)


def _spans(
    source: ShardedSource[Any], ranges: Sequence[Ranges]
) -> dict[str, list[Span]]:
    found = defaultdict[str, list[Span]](list)
    for path, starts, stops in ranges:
        size = source._files.size(path)
        for start, stop in zip(starts or [0], stops or [0], strict=True):
            first = start + size * (start < 0)
            last = stop + size * (stop <= 0)
            found[path].append((max(0, first), min(size, last)))
    return found


class _Node:
    """The processes of a node, which read positions, on a network.

    `fresh`: of each source how likely a sample, an index, and a file to a process are
    new, when they are first seen here.
    """

    def __init__(  # noqa: PLR0915
        self, known: Known, span: range, network: Network, fresh: Any = ()
    ) -> None:
        self._known = known
        self._network = network
        self._fresh = fresh
        self._drawn = random.Random(0)  # noqa: S311
        self._filled = network["filled"]
        self._seen, self._held = (
            set[tuple[int, str]](),
            defaultdict[str, list[int]](list),
        )
        self._owed, self.total, self._turn = Counter[int](), Counter[str](), 0
        ranks = int(network["ranks"])
        width = max(1, int(network["workers"]))
        places = product(range(int(network["node"])), range(width))
        self._lanes = [
            np.array(span[rank + ranks * n :: ranks * width]) for rank, n in places
        ]
        self._now = [_START if network["workers"] else 0.0] * len(self._lanes)
        self._queues = [deque[Request]() for _ in self._lanes]
        self._unknown = defaultdict[
            int, list[tuple[float, str, dict[Span, int], float]]
        ](list)
        ahead = partial(Ahead, known.dataset, samples=int(network["ahead"]))
        looks = [ahead(partial(self._told, lane)) for lane in range(len(self._lanes))]
        flights = [[0.0] * int(network["most"]) for _ in self._lanes]
        asks = link = flown = 0.0
        starts = list[float]()
        waits = list[float]()
        ends = defaultdict[Span, float](float)

        def next_of(lane: int) -> tuple[float, int]:
            return max(self._queues[lane][0][0], flights[lane][0]), lane

        for turn in range(len(self._lanes[0])):
            self._turn = turn
            lanes = [lane for lane, own in enumerate(self._lanes) if turn < len(own)]
            for lane in lanes:
                taken = (turn - READY) * width + lane % width
                if not network["workers"]:
                    room = asks
                elif taken >= 0:
                    room = starts[taken]
                else:
                    room = 0.0
                self._now[lane] = max(self._now[lane], room)
                looks[lane](turn, partial(_at, self._lanes[lane]))
            coming = sorted(
                next_of(lane) for lane, queue in enumerate(self._queues) if queue
            )
            while self._owed[turn]:
                now, lane = heappop(coming)
                _, due, size, late = self._queues[lane].popleft()
                link = max(link, now + network["latency"]) + size / network["bandwidth"]
                done = link + late * network["latency"]
                pause = 0.2
                while self._drawn.random() * 100 < network["errors"]:
                    done += network["latency"] + self._drawn.uniform(0.5, 1) * pause
                    pause = min(8.0, 2 * pause)
                heapreplace(flights[lane], done)
                flown += done - now
                ends[lane, due] = max(ends[lane, due], done)
                self._owed[due] -= 1
                if self._queues[lane]:
                    heappush(coming, next_of(lane))
            for lane in lanes:
                self._now[lane] = max(self._now[lane], ends[lane, turn])
            for worker in (lane for lane in lanes if lane < width):
                starts.append(
                    max(asks, *(self._now[n] for n in lanes if n % width == worker))
                )
                waits.append(starts[-1] - asks)
                asks = starts[-1] + network["step"]
        # Before and after that, what is ahead is filled, and emptied.
        begin = len(waits) // 3
        end = max(len(waits) // 3 + 1, 2 * len(waits) // 3)
        self.begin = float(np.mean(waits[: max(1, begin)]))
        settled = waits[begin:end]
        self.wait, self.p99 = float(np.mean(settled)), float(np.percentile(settled, 99))
        self.between = (starts[end - 1] - starts[begin]) / max(1, end - 1 - begin)
        self.in_flight = flown / max(starts[-1], 1e-9) / len(looks)

    def _told(self, lane: int, at: Int64Array) -> int:
        """Ask for the samples of positions; return of how many bytes it is known where
        they lie.
        """
        unknown = self._unknown.pop(lane, [])
        of_bytes = 0
        self._now[lane] = max(self._now[lane], *(ready for ready, *_ in unknown), 0)
        for _, path, spans, part in unknown:
            of_bytes += self._ask(lane, path, spans, part)
        refs = Trace(self._known.dataset, at).refs()
        known = self._known
        turns = np.searchsorted(self._lanes[lane], at)[refs.item]
        columns = (each.tolist() for each in (turns, refs.source, refs.index))
        wanted = defaultdict[tuple[int, str], dict[Span, int]](dict)
        late = 1
        for turn, source, index in zip(*columns, strict=True):
            ranges = known.ranges(source, index)
            known.unknown |= set() if ranges else {source}
            for path, span in ranges:
                wanted[source, path].setdefault(span, turn)
        for (source, path), spans in wanted.items():
            sample, index, file = (
                self._fresh[source] if self._fresh else (1.0, 1.0, 1.0)
            )
            opened = (lane, path) in self._seen or self._drawn.random() >= file
            self._seen.add((lane, path))
            if opened:
                of_bytes += self._ask(lane, path, spans, sample)
                continue
            # At the next turn it is known where samples lie; those of this one are
            # waited for.
            now = {span: turn for span, turn in spans.items() if turn == self._turn}
            late = late + bool(now)
            due = self._turn + (not now)
            for head, own in known.before[path]:
                self._send(lane, due, 0, 0)
                self._ask(lane, head, dict.fromkeys(own, due), index, 1)
                self.total["looks"] += 1
            self._ask(lane, path, now, sample, late)
            ready = self._now[lane] + 2 * self._network["latency"]
            self._unknown[lane].append(
                (ready, path, dict(spans.items() - now.items()), sample)
            )
        self.total["samples"] += len(refs)
        return of_bytes

    def _ask(
        self, lane: int, path: str, spans: dict[Span, int], fresh: float, late: int = 0
    ) -> int:
        """Ask for ranges of a file, each of which is due by some turn, after some
        latencies; return how many bytes they have.
        """
        missing = list[Span]()
        held = self._held[path]
        for first, last in sorted(spans):
            there = _holds(held, first, last) or self._drawn.random() >= fresh
            self._filled += 0 if there else last - first
            self.total["wanted_bytes"] += last - first
            # A full cache has as large a part as fits of all that was read.
            if (
                there
                and self._drawn.random() * max(1.0, self._filled)
                < self._network["cache"]
            ):
                self.total["hit"] += last - first
                _hold(held, first, last)
            else:
                missing.append((first, last))
        for begin, end in merged(missing, self._known.size(path)):
            due = min(
                spans[span] for span in missing if span[0] < end and begin < span[1]
            )
            self._send(lane, due, end - begin, late)
            self.total["requests"] += 1
            self.total["fetched_bytes"] += end - begin
            _hold(held, begin, end)
        return sum(last - first for first, last in spans)

    def _send(self, lane: int, due: int, size: int, late: int) -> None:
        self._queues[lane].append((self._now[lane], due, size, late))
        self._owed[due] += 1


def _at(positions: Int64Array, turns: Int64Array) -> Int64Array:
    return positions[turns[turns < len(positions)]]


# Ranges that are held, as the bounds of all of them in ascending order.


def _holds(held: list[int], first: int, last: int) -> bool:
    at = bisect_right(held, first)
    return at % 2 == 1 and last <= held[at]


def _hold(held: list[int], first: int, last: int) -> None:
    begin = bisect_left(held, first)
    end = bisect_right(held, last)
    held[begin:end] = [first] * (begin % 2 == 0) + [last] * (end % 2 == 0)
