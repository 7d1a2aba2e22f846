"""What a run asks of object storage, against counts byte by byte and what readers
plan."""

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.network_forecast import compared, made
from energize import (
    BatchDataset,
    BlendDataset,
    ListSource,
    ShuffleDataset,
    get_train_dataset,
    prepare,
    write_shards,
)
from energize.core.lanes import Lane
from energize.core.stream import EpochPlan, PositionLane
from energize.core.trace import Reading
from energize.data.files import FAR_BLOCK, merged
from energize.data.jsonl import JsonlSource
from energize.data.source import ShardedSource
from energize.data.tar import END_BYTES
from energize.data.webdataset import WebdatasetSource
from energize.preparation.index import prepare_jsonl
from energize.report import network
from energize.report.network import forecast_network, parsed_network
from tests.cli.commands import as_json, refused, run

SAMPLES = 64


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("network")
    sizes = np.random.default_rng(0).integers(0, 50_000, SAMPLES).tolist()
    samples = (
        {"__key__": f"{i:03d}", "bin": bytes(size)} for i, size in enumerate(sizes)
    )
    write_shards(samples, folder / "web", samples_per_shard=SAMPLES // 4)
    prepare(
        folder / "web",
        split_ratios={"train": 1},
        sample_type="CrudeWebdataset",
        workers=1,
    )
    lines = (json.dumps({"n": "x" * size}) for size in sizes[: SAMPLES // 2])
    (folder / "lines.jsonl").write_text("\n".join(lines))
    prepare_jsonl(folder / "lines.jsonl")
    small = ({"__key__": f"{i:04d}", "txt": "x" * (i % 3000)} for i in range(2000))
    write_shards(small, folder / "small", samples_per_shard=50)
    prepare(
        folder / "small",
        split_ratios={"train": 1},
        sample_type="CrudeWebdataset",
        workers=1,
    )
    return folder


def mix(home, batch=3):
    web, lines = WebdatasetSource(home / "web"), JsonlSource(home / "lines.jsonl")
    blend = BlendDataset((ShuffleDataset(web), 2), (ShuffleDataset(lines), 1))
    return BatchDataset(blend, batch, list)


def ranges_of(source, index):
    """The file of a sample, its range, and those that are read of files before that."""
    if isinstance(source, WebdatasetSource):
        shard, number = (int(each[0]) for each in source.locate(np.array([index])))
        path = source.path / source.shards[shard]
        start, stop = np.fromfile(f"{path}.idx", "<u8")[number : number + 2].tolist()
        size = path.stat().st_size
        ends = [(path, (0, END_BYTES)), (path, (size - END_BYTES, size))]
    else:
        path, ends = source.path, []
        start, stop = np.fromfile(f"{path}.idx", "<u8")[index : index + 2].tolist()
        start = max(0, start - 1)
    file = path.with_name(f"{path.name}.idx")
    return path, (start, stop), [(file, (0, file.stat().st_size)), *ends]


class Counts:
    """What lanes have to ask for, block after block; and what they ask for, byte by
    byte."""

    def __init__(self):
        self.requests = self.looks = self.wanted = self.hit = self.fetched = 0
        self.held, self.opened, self.due = {}, set(), Counter()

    def add(self, dataset, lane, at):
        asked, refs = {}, dataset.refs(at)
        for number, index in zip(
            refs.source.tolist(), refs.index.tolist(), strict=True
        ):
            path, span, before = ranges_of(dataset.sources[number], index)
            asked.setdefault(path, (set(), before))[0].add(span)
        for path, (spans, before) in asked.items():
            if (lane, path) not in self.opened:
                self.opened.add((lane, path))
                self.looks += len({file for file, _ in before} | {path})
                self.due.update(before)
            self.due.update((path, span) for span in spans)

    def fetch(self, path, spans):
        self.due.subtract((path, span) for span in spans)
        held = self.held.setdefault(path, np.zeros(path.stat().st_size, dtype=bool))
        needed, starts = np.zeros_like(held), np.zeros(len(held), dtype=int)
        there = [held[start:stop].all() for start, stop in spans]
        for (start, stop), hit in zip(spans, there, strict=True):
            self.wanted += stop - start
            self.hit += (stop - start) * hit
            needed[start:stop] |= not hit
            starts[start // FAR_BLOCK : -(-stop // FAR_BLOCK)] += not hit
        ends = -FAR_BLOCK, 0
        for block in range(0, len(held), FAR_BLOCK):
            at = np.flatnonzero(needed[block : block + FAR_BLOCK]) + block
            if not len(at):
                continue
            first, last = int(at[0]), int(at[-1]) + 1
            if starts[block // FAR_BLOCK] > 1 and last - first > FAR_BLOCK / 2:
                first, last = block, min(block + FAR_BLOCK, len(held))
            joined = first == ends[1] and last - ends[0] <= FAR_BLOCK
            ends = ends[0] if joined else first, last
            self.requests += not joined
            self.fetched += last - first
            held[first:last] = True


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_requests_and_bytes_are_those_that_are_counted(home, data):
    ranks = data.draw(st.integers(1, 5))
    node, workers = data.draw(st.integers(1, ranks)), data.draw(st.integers(0, 3))
    steps, batch = data.draw(st.integers(1, 60)), data.draw(st.integers(1, 9))
    dataset, blocks, asks = mix(home, batch), [], []
    asked = f"step=60s,ranks={ranks},node={node},workers={workers}"

    class Told(network._Node):
        def _told(self, lane, at):
            blocks.append((self, lane, at.tolist()))
            return super()._told(lane, at)

        def _ask(self, lane, path, spans, *more):
            asks.append((self, path, sorted(spans)))
            return super()._ask(lane, path, spans, *more)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(network, "_Node", Told)
        found = forecast_network(dataset, steps, parsed_network(asked))
    blocks = [each[1:] for each in blocks if each[0] is blocks[0][0]]
    counts = Counts()
    for lane, at in blocks:
        counts.add(dataset, lane, at)
    for node_of, path, spans in asks:
        if node_of is asks[0][0]:
            counts.fetch(Path(path), spans)
    assert not any(counts.due.values())
    width = max(1, workers)
    for lane in range(node * width):
        rank, worker = divmod(lane, width)
        read = [position for each, at in blocks for position in at if each == lane]
        assert read == list(range(rank + ranks * worker, steps, ranks * width))
    assert found["whole"]
    assert found["nodes"] == -(-ranks // node)
    for name, value in (("requests", counts.requests), ("looks", counts.looks)):
        assert found[name] == value
    assert (found["wanted_bytes"], found["fetched_bytes"]) == (
        counts.wanted,
        counts.fetched,
    )
    assert found["cached_part"] == counts.hit / max(1, counts.wanted)


@pytest.mark.parametrize(("ranks", "workers"), [(1, 0), (2, 3)])
def test_what_is_wanted_is_what_readers_plan(home, monkeypatch, ranks, workers):
    monkeypatch.setattr(ShardedSource, "remote", True)
    steps, width, planned = 30, max(1, workers), []

    def plan(size, path, starts, stops):
        planned.extend(
            (stop if stop > 0 else size(path))
            - (start if start >= 0 else size(path) + start)
            for start, stop in zip(starts or [0], stops or [0], strict=True)
        )

    for number in range(ranks * width):
        dataset = mix(home)
        for source in dataset.sources:
            opened = type(source._files)()
            opened.plan = lambda *told, size=opened.size: plan(size, *told)
            vars(source).update(_files=opened)
        span, lane = EpochPlan(0, 0, steps), Lane(number, ranks * width)
        cursor = PositionLane(dataset, span, lane, 0, Reading())
        cursor.left = len(range(number, steps, ranks * width))
        for _ in range(cursor.left):
            next(cursor)
        for source in dataset.sources:
            source.expect(np.zeros(0, dtype=np.int64))
    given = parsed_network(f"ranks={ranks},workers={workers}")
    assert forecast_network(mix(home), steps, given)["wanted_bytes"] == sum(planned)


SIZES = st.one_of(st.integers(1, 9), st.integers(1, 2 * FAR_BLOCK))


@given(st.lists(st.tuples(st.integers(0, 3 * FAR_BLOCK), SIZES), max_size=12))
def test_merged_ranges_have_all_bytes_and_few_that_nobody_wants(ranges):
    spans = sorted((start, start + size) for start, size in ranges)
    size = max((stop for _, stop in spans), default=0)
    runs = list(merged(spans, size))
    assert all(
        0 <= start < stop <= min(size, start + FAR_BLOCK) for start, stop in runs
    )
    assert all(first[1] <= second[0] for first, second in pairwise(runs))
    for start, stop in spans:
        at = start
        for begin, end in runs:
            at = end if begin <= at < end else at
        assert at >= stop
    fetched = sum(stop - start for start, stop in runs)
    assert len(spans) != 1 or fetched == size - spans[0][0]
    assert (
        fetched
        <= size
        - min(start for start, _ in [*spans, (size, 0)]) // FAR_BLOCK * FAR_BLOCK
    )


def small(home, monkeypatch):
    """Samples of which no two are fetched together, by readers that look less far
    ahead."""
    monkeypatch.setattr(network, "AHEAD", 1024)
    monkeypatch.setattr(network, "merged", lambda spans, size: spans)
    return BatchDataset(ShuffleDataset(WebdatasetSource(home / "small")), 8, list)


@pytest.mark.jobs
@pytest.mark.parametrize("more", ["", ",ranks=4,node=2,workers=2", ",cache=1MB"])
def test_long_runs_are_scaled_from_a_part_of_them(home, monkeypatch, more):
    dataset, asked = small(home, monkeypatch), parsed_network(f"step=60s{more}")
    lengths = range(600, 1000, 100)
    whole = [forecast_network(dataset, steps, asked) for steps in lengths]
    monkeypatch.setattr(network, "_SAMPLES", 1200)
    monkeypatch.setattr(network, "_OF_PROCESS", 0)
    part = [forecast_network(dataset, steps, asked) for steps in lengths]
    assert all(a["whole"] and not b["whole"] for a, b in zip(whole, part, strict=True))
    for name in ("requests", "looks", "wanted_bytes", "fetched_bytes", "cached_part"):
        sums = [sum(each[name] for each in found) for found in (part, whole)]
        assert sums[0] == pytest.approx(sums[1], rel=0.45), name


def test_what_limits(home, monkeypatch):
    far = "latency=10s, bandwidth=1TB/s, step=10ms, cache=0B"
    found = {"look-ahead": forecast_network(mix(home, 32), 600, parsed_network(far))}
    dataset = small(home, monkeypatch)
    rows = {
        "bandwidth": "latency=1ms, bandwidth=100kB/s, step=1ms, cache=0B",
        "errors": "latency=0ms, bandwidth=1TB/s, errors=20%, step=1ms, cache=0B",
        "requests in flight": "latency=1s, bandwidth=1TB/s, step=10ms, cache=0B",
        None: "latency=1s, bandwidth=1TB/s, step=1s, cache=0B",
    }
    for limit, asked in rows.items():
        found[limit] = forecast_network(dataset, 450, parsed_network(asked))
    assert [each["limit"] for each in found.values()] == list(found)
    assert (
        "what limits is look-ahead: use more workers" in found["look-ahead"]["verdict"]
    )
    # By a count on paper: what the link takes for all bytes, and 64 requests take a
    # latency.
    link, flight = found["bandwidth"], found["requests in flight"]
    indices = list((home / "small").glob("*.idx"))
    heads = sum(2 * END_BYTES + file.stat().st_size for file in indices)
    fetched = link["fetched_bytes"] - heads
    assert link["fetch_seconds"] * 450 * 1e5 == pytest.approx(fetched, rel=0.1)
    requests = flight["requests"] - 3 * len(indices)
    assert flight["fetch_seconds"] * 450 * 64 == pytest.approx(requests, rel=0.1)
    assert flight["in_flight"] == pytest.approx(64, rel=0.1)


@pytest.mark.jobs
def test_a_forecast_is_what_a_run_does(tmp_path):
    folder = made(tmp_path / "bucket" / "web", 1600)
    for case, waits in (("step=25ms", False), ("step=1ms,bandwidth=40MB/s", True)):
        told, found = compared(folder, case)
        assert found["looks"] == told["looks"]
        # What takes much longer than other requests, as on a link that is full, is
        # asked for twice.
        for name in ("requests", "fetched_bytes"):
            assert found[name] == pytest.approx(told[name], rel=1 if waits else 0.1)
        assert (
            told["first_wait_seconds"] > 0.03
        ) is waits  # an epoch that is ahead at once
        assert found["first_wait_seconds"] > told["first_wait_seconds"] / 2


def test_the_command(home):
    options = ("simulate", home / "web", "--batch-size", 4, "--steps", 200)
    given = "latency=50ms, bandwidth=1GB/s, errors=1%, step=0.5s, ranks=8, node=4, workers=2"
    shown = run(*options, "--network", given)
    assert "each of 2 nodes" in shown
    assert "The trainer does not wait, but" in shown
    told = as_json(*options, "--network", given)["network"]
    assert told == forecast_network(
        get_train_dataset(home / "web", batch_size=4), 200, parsed_network(given)
    )
    assert as_json(*options)["network"] is None
    assert "takes too few steps" in run(*options, "--network", "ranks=100")
    assert parsed_network("latency=0, cache=0, errors=0, step=0")["cache"] == 0
    refused(
        [
            (
                ["--network", "latncy=3s"],
                2,
                "'latncy' is none of",
                "did you mean 'latency'?",
            ),
            (["--network", ""], 2, "'' is none of latency, bandwidth"),
            (
                ["--network", "latency"],
                2,
                "latency is a number of us, ms, s, min,",
                "got ''",
            ),
            (["--network", "cache=1TB,cache=2TB"], 2, "'cache' is given twice"),
            (["--network", "latency=30"], 2, "from 0 to 600s; got '30'"),
            (["--network", "step=-1s"], 2, "step is a number", "got '-1s'"),
            (
                ["--network", "errors=101%"],
                2,
                "errors is a number of %, from 0 to 99%; got '101%'",
            ),
            (
                ["--network", "bandwidth=1GB"],
                2,
                "bandwidth is a number of B/s",
                "Gbit/s",
            ),
            (["--network", "bandwidth=0GB/s"], 2, "from 1 to 1e+15B/s; got '0GB/s'"),
            (["--network", "cache=2tb"], 2, "cache is a number of B, kB, MB, GB, TB"),
            (["--network", "latency=1e3s"], 2, "got '1e3s'"),
            (
                ["--network", "ranks=1.5"],
                2,
                "ranks is a whole number, from 1 to",
                "got '1.5'",
            ),
            (
                ["--network", "workers=64,ranks=8"],
                2,
                "512 processes on a node are more than 256",
            ),
        ],
        *options,
    )


def test_what_is_not_known_is_told(home):
    web = WebdatasetSource(home / "web")
    blend = BlendDataset((ListSource(range(9), name="memory"), 1), (web, 1))
    found = forecast_network(
        BatchDataset(blend, 4, list), 20, parsed_network("step=1s")
    )
    assert found["unknown"] == ["memory"]
    shown = run("simulate", home / "lines.jsonl", "--steps", 9, "--network", "step=1s")
    assert "Not counted" not in shown
