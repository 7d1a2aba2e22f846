"""Runs in which something happens: what loaders deliver around it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import energize as ez
from energize import FailurePolicy
from tests.golden.adapter import Run, lanes_of
from tests.golden.mixes import (
    Batch,
    Blend,
    Epochize,
    Filter,
    Limit,
    Map,
    by_cost,
    by_name,
    evens,
    is_even,
    mixed,
    noisy,
    of_streams,
    packed,
    staged,
)
from tests.golden.stored import SPLITS, Drawing, Keys, file_of

RUNS: dict[str, Callable[[Path], Any]] = {}
WEB, MORE = {"web": 1, "code": 6, "maths": 1}, {"web": 50, "code": 6, "maths": 0}


def run(function: Callable[..., Any]) -> Callable[..., Any]:
    RUNS[function.__name__.replace("_", " ")] = function
    return function


def batches(inner: Any = None, size: int = 3) -> Any:
    return Batch(by_name() if inner is None else inner, size, list)


@run
def uneven(root: Path) -> Any:
    found = {}
    for rule in ("pad", "drop", "repeat", "allow"):
        three = Run(Limit(batches(), 11), 3, uneven=rule)
        found[rule] = [three.steps(10), three.length()]
        found[f"{rule}, stream"] = Run(batches(evens()), 3, uneven=rule, lanes=6).steps(
            11
        )
    return found


@run
def global_batches(root: Path) -> Any:
    found = {}
    for ranks, rule in [
        (ranks, rule) for ranks in (1, 2, 4) for rule in ("pad", "drop")
    ]:
        made = Run(batches(mixed(37), 2), ranks, uneven=rule, global_batch_size=8)
        found[f"{ranks} {rule}"] = [
            made.known("accumulation_steps"),
            made.steps(24 // ranks),
        ]
    return found


@run
def lanes(root: Path) -> Any:
    named = {"filter": evens(), "packs": packed(of_streams()), "streams": of_streams()}
    return {
        f"{name}, {ranks}": Run(each, ranks, lanes=12).steps(24 // ranks)
        for name, each in named.items()
        for ranks in (1, 3, 4)
    }


@run
def loops(root: Path) -> Any:
    """Loops that count steps, left in the middle, gone on with, rewound; epochs that
    are left."""
    dataset = Epochize(batches(), 5)
    two, left = Run(dataset, 2), Run(Limit(batches(), 9))
    found = [two.steps(3)]
    two.leave()
    found += [
        two.steps(9),
        two.known("step"),
        Run(dataset, 3, state=two.state()).steps(7),
    ]
    two.each("rewind")
    two.leave()
    found += [two.steps(3), left.steps(5)]
    left.leave()
    found.append(left.steps(2))
    return [*found, Run(Limit(batches(), 9), 2, state=left.state()).steps(10)]


@run
def seed_offsets(root: Path) -> Any:
    given = {"batch_size": 4, "worker_config": ez.WorkerConfig(0, 1, seed_offset=5)}
    folder = ez.get_train_dataset(root / "web", task_encoder=Drawing(), **given)
    return [Run(each, 2, seed_offset=5).steps(6) for each in (batches(), folder)]


def changed(dataset: Any, *changes: Any, **options: Any) -> Any:
    """Some steps on two ranks, each change with some more, and then on three or one."""
    two = Run(dataset, 2, **options)
    found = [two.steps(6)]
    for weights, step, blend in changes:
        two.each("set_weights", weights, step, blend=blend)
        found.append(two.steps(6))
    return [
        *found,
        Run(dataset, 1 if options else 3, state=two.state(), **options).steps(6),
    ]


@run
def weights_set(root: Path) -> Any:
    now, two = (WEB, None, None), {"n900": 5, "n800": 1}
    pair = [(mixed(9, 900), 1), (mixed(5, 800), 2)]
    nested = Blend(
        {"texts": by_name(), "rest": mixed(9, 900)}, weights={"texts": 3, "rest": 1}
    )
    typed = {"a": batches(), "b": batches(Blend(pair, scheme="exact"))}
    level = Batch(by_name(), 2, list, level="cost", global_batch_size=8)
    plan = staged(
        ez.experimental.Stage("one", 0, 20, dataset=by_name()),
        ez.experimental.Stage("two", 20, dataset=mixed(9)),
    )
    return {
        "next": changed(batches(), now, (MORE, None, None)),
        "at a step": changed(batches(), (WEB, 9, None), (MORE, 15, None)),
        "blocks": changed(by_name(block_size=8), now, (MORE, 14, None)),
        "nested": changed(nested, ({"texts": 1, "rest": 1}, None, None)),
        "in a blend": changed(
            Blend(typed, weights={"a": 1, "b": 2}), (two, None, "b"), (WEB, None, "a")
        ),
        "costs": changed(Blend(pair, unit="cost"), (two, None, None)),
        "level": changed(level, now),
        "stages": changed(plan, (WEB, None, "one")),
        "below a filter": changed(Filter(by_name(), is_even), now, lanes=4),
        "streams": changed(
            of_streams(), ({"n0": 0, "n100": 1, "rows200": 1}, None, None), lanes=4
        ),
        "packs": changed(packed(by_name()), now, lanes=4),
    }


@run
def followed(root: Path) -> Any:
    """A policy, and a file, that say the weights."""
    one, file, found = Run(batches()), root / "weights.yaml", []
    follower = one.each(
        "follow", ez.mixing.ExcessLoss({"web": 1, "code": 2, "maths": 0.5}), every=5
    )[0]
    for step in range(12):
        rows = one.steps(1)
        losses = [1.0 + number / 100 + 1 / (step + 1) for number in rows[0][0]]
        found.append([rows, follower.observe(losses), *one.known("last_sources")])
    one.each("watch_weights", file, every=4)
    file.write_text("web: 1\ncode: 9\nmaths: 1\nat_step: 20\n")
    return [*found, one.steps(14)]


def parts(weights: dict[str, Any], **options: Any) -> Any:
    named = {
        "a": mixed(17),
        "b": mixed(19, 100),
        "c": mixed(21, 200),
        "d": mixed(23, 300),
    }
    return Blend({name: named[name] for name in weights}, weights=weights, **options)


def went_on(before: Any, now: Any, live: Any = None, **options: Any) -> Any:
    """What two ranks give of a mix, then of an edited one, and one of them of that
    again."""
    two = Run(before, 2, **options)
    begun = two.steps(7)
    if live:
        two.each("set_weights", live)
        begun += two.steps(4)
    on = Run(now, 2, state=two.state(), remap=True, **options)
    return [
        begun,
        on.steps(6),
        on.remapped(),
        Run(now, 1, state=on.state(), **options).steps(6),
    ]


@run
def remapped(root: Path) -> Any:
    old, new = {"a": 1, "b": 2, "c": 1}, {"d": 2, "b": 1, "a": 1}
    line = ez.Schedule([(0, 1), (40, 5)], "linear")
    streams = {"e": evens(), "m": mixed(9, 900), "f": evens(40, 300)}
    first = {name: streams[name] for name in "em"}
    outer = [(mixed(9, 900), 1)]
    return {
        "sources": went_on(batches(parts(old)), batches(parts(new))),
        "weights": went_on(
            parts(old), parts({"a": 5, "b": 1, "c": line}, block_size=8)
        ),
        "batches": went_on(batches(parts(old), 2), batches(parts(new), 5)),
        "after a live change": went_on(
            batches(parts(old)), batches(parts(new)), old | {"a": 9}
        ),
        "costs": went_on(parts(old, unit="cost"), parts(new, unit="cost")),
        "nested": went_on(
            Blend((parts(old, scheme="exact"), 1), *outer),
            Blend((parts(new, scheme="exact"), 3), *outer),
        ),
        "streams": went_on(
            Blend(first, weights=dict.fromkeys(first, 1)),
            Blend(streams, weights=dict.fromkeys(streams, 1)),
            lanes=2,
        ),
        "filter": went_on(
            Filter(parts(old), is_even), Filter(parts(new), is_even), lanes=2
        ),
    }


@run
def later_weights(root: Path) -> Any:
    """States over mixes of which what comes later is another."""
    stage = ez.experimental.Stage("one", 0, 10, dataset=by_name())
    plans = [
        staged(stage, ez.experimental.Stage("two", 10, dataset=each))
        for each in (mixed(9), by_cost(1, 2))
    ]
    pairs = [[by_name(), by_name().with_weights_from(30, WEB)], plans]
    found = []
    for before, now in pairs:
        two = Run(before, 2)
        found.append([two.steps(4), Run(now, 1, state=two.state()).steps(30)])
    return found


@run
def failures(root: Path) -> Any:
    """Functions that raise, and stored samples that are damaged: listed, then left
    out."""

    def fails(item: int) -> int:
        if item % 5 == 0:
            raise ValueError("a fifth")
        return item

    given = {"batch_size": 2, "checksums": True, "task_encoder": Keys()}
    damaged, listed = (
        ez.get_train_dataset(root / "damaged", **given),
        root / "bad.jsonl",
    )
    first = Run(damaged, failures=FailurePolicy(budget=None, quarantine=listed))
    found = [first.steps(12)]
    first.close()
    return {
        "skipped": Run(batches(Map(by_name(), fails)), 2, on_error="skip").steps(8),
        "in a stream": Run(Map(evens(), fails), 2, on_error="skip", lanes=4).steps(8),
        "listed": [
            *found,
            Run(damaged, failures=FailurePolicy(budget=None, skip_listed=listed)).steps(
                12
            ),
        ],
    }


@run
def ledgers(root: Path) -> Any:
    one = Run(batches(Map(by_name(), noisy)), ledger=ez.Ledger("cost"))
    streams = Run(of_streams())
    return [one.steps(40)[-1:], one.report(), streams.steps(40)[-1:], streams.report()]


@run
def workers(root: Path) -> Any:
    """Processes that read, and a state taken from them."""
    folders = ez.get_train_dataset(
        file_of(root, SPLITS["blended"]), batch_size=4, task_encoder=Drawing()
    )
    mixes = {
        "indexed": batches(Map(by_name(), noisy)),
        "packs": packed(of_streams()),
        "folders": folders,
    }
    found = {}
    for name, each in mixes.items():
        given = lanes_of(each, 4)
        busy = Run(each, workers=2, **given)
        rows, state = busy.steps(6), busy.state()
        found[name] = [rows, busy.steps(3), Run(each, 2, state=state, **given).steps(3)]
        busy.close()
    return found
