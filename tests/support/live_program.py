"""Run on ranks: weights that change on real ranks that train under DDP, ranks that
differ, and global states, written down as JSON.

`live_program FOLDER first` makes runs, saves states in the middle of them, and is
killed in the middle of the last one; `live_program FOLDER again` goes on from the
states on its own ranks.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import time
import traceback
from functools import partial
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from energize import (
    BatchDataset,
    BlendDataset,
    EpochizeDataset,
    FilterDataset,
    LimitDataset,
    ListSource,
    MapDataset,
    PackingDataset,
    RepeatDataset,
    ShuffleDataset,
    WorkerConfig,
    get_loader,
)
from energize.errors import EnergizeError
from energize.loader.loader import get_savable_loader
from energize.mixing import ExcessLoss
from tests.support.loading import eventually

STEPS, SAVED, KILLED = 20, 12, 10
LANES = 12


def mix(change=None):
    parts = {
        name: ShuffleDataset(
            ListSource([(name, float(n)) for n in range(count)], name=name)
        )
        for name, count in (("web", 50), ("code", 35))
    }
    blend = BlendDataset(parts, weights={"web": 1, "code": 1})
    for slot, weights in change or ():
        blend = blend.with_weights_from(slot, weights)
    return blend


def kept(sample):
    return sample[1] % 4 > 0


def pairs(group):
    return [group[at : at + 2] for at in range(0, len(group), 2)]


def batches(blend):
    return BatchDataset(blend, 3, list)


def packs(blend):
    return PackingDataset(FilterDataset(MapDataset(blend, tuple), kept), 6, pairs, list)


RUNS = {
    "indexed": batches,
    "loops": lambda blend: EpochizeDataset(batches(blend), num_epochs=1),
    "stream": lambda blend: batches(FilterDataset(blend, kept)),
    "packs": lambda blend: EpochizeDataset(packs(blend), 7),
}  # fmt: skip
FIRST, LATER = {"web": 5, "code": 1}, {"web": 1, "code": 5}


def loader_of(kind, workers=2, **options):
    config = WorkerConfig(num_workers=workers)
    lanes = {} if kind in ("indexed", "loops") else {"lanes": LANES}
    return get_loader(RUNS[kind](mix()), worker_config=config, **lanes, **options)


def gathered(value):
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def steps_of(loader, count):
    """The items of some steps, over the ends of loops; None where one is padding."""
    made = 0
    while made < count:
        for item in loader:
            made += 1
            yield None if loader.padding else item
            if made == count:
                break


def trained(model, item):
    """A step under DDP: a rank that makes fewer than the others would hang here."""
    numbers = torch.tensor([n for _, n in item] if item else [0.0])
    (model(numbers[:, None]).mean() * float(item is not None)).backward()


def first_run(folder, kind):
    """Changed after 6 steps, and at step 14; saved after 12."""
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    items = []
    with loader_of(kind) as loader:
        for item in steps_of(loader, STEPS):
            trained(model, item)
            items.append(item)
            if len(items) == 6:
                loader.set_weights(FIRST)
                loader.set_weights(LATER, at_step=14)
            if len(items) == SAVED:
                states = gathered(json.dumps(loader.state_dict()))
                (folder / f"{kind}.json").write_text(states[0])
    return {"items": gathered(items), "states": len(set(states))}


def said(function):
    try:
        function()
    except EnergizeError as error:
        return f"{type(error).__name__}: {error}"
    return None


def ranks_that_differ():
    rank = dist.get_rank()
    with loader_of("indexed", 0) as loader:
        for _ in steps_of(loader, 3):
            pass
        told = [
            said(lambda: loader.set_weights({"web": 1 + rank, "code": 1})),
            said(lambda: loader.set_weights(FIRST, at_step=5 if rank else None)),
            said(lambda: loader.set_weights({"wab": 1, "code": 1})),
            said(lambda: loader.set_weights(FIRST, at_step=2**45)),
            said(lambda: loader.set_weights(FIRST, at_step=2**45 if rank else 5)),
        ]
        items = iter(loader)
        for _ in range(rank):  # a rank is one step ahead of the other
            next(items)
        told.append(said(lambda: loader.set_weights(FIRST)))
        for _ in range(1 - rank):
            next(items)
        after = [next(items) for _ in range(4)]
    return gathered([told, after])


def before_the_first_item():
    """Rank 0 reads in its own process, rank 1 by a worker."""
    found = {}
    for kind in ("stream", "packs"):
        with loader_of(kind, dist.get_rank()) as loader:
            items = iter(loader)
            loader.set_weights(FIRST)
            found[kind] = [item for _, item in zip(range(6), items, strict=False)]
    return gathered(found)


def limited(weight=1.0, count=40, size=2, limit=9):
    parts = (
        (ListSource(range(count), name="a"), weight),
        (ListSource(range(40), name="b"), 1),
    )
    return LimitDataset(BatchDataset(BlendDataset(*parts), size, list), limit)


def given(rank):
    """What each rank has; the first is the same everywhere."""
    numbers = ListSource(range(40), name="numbers")
    alone = WorkerConfig(rank=0, world_size=2)
    return {
        "nothing": lambda: get_loader(limited()),
        "weights": lambda: get_loader(limited(weight=1.0 + rank)),
        "samples": lambda: get_loader(limited(count=40 + rank)),
        "batch size": lambda: get_loader(limited(size=2 + rank)),
        "limit": lambda: get_loader(limited(limit=9 + rank)),
        "uneven": lambda: get_loader(limited(), uneven="drop" if rank else "pad"),
        "lanes": lambda: get_loader(FilterDataset(numbers, bool), lanes=4 + 2 * rank),
        "loop": lambda: get_loader(EpochizeDataset(RepeatDataset(numbers), 4 + rank)),
        "global": lambda: get_loader(limited(limit=8), global_batch_size=4 + 4 * rank),
        "seed": lambda: get_loader(
            numbers, worker_config=WorkerConfig(seed_offset=rank)
        ),
        "dataset": lambda: get_loader(limited() if rank else numbers),
        "rank": lambda: get_loader(limited(), worker_config=alone),
        "order": lambda: get_loader(
            ListSource([*range(1 + rank, 40), *range(1 + rank)], name="n")
        ),
        "state": lambda: get_loader(FilterDataset(numbers, every_other())),
    }


def every_other():
    """A condition that keeps state between calls."""
    turns = itertools.cycle([True, False, False])
    return lambda _: next(turns)


def given_different_things():
    rank, found = dist.get_rank(), {}
    for name, make in given(rank).items():
        began = time.monotonic()
        found[name] = [
            said(lambda make=make: next(iter(make()))),
            time.monotonic() - began,
        ]
        dist.barrier()
    loader = get_loader(mix())
    items = iter(loader)
    next(items)
    call = (lambda: loader.set_weights(FIRST)) if rank else (lambda: iter(loader))
    found["call"] = [said(call), 0.0]
    return gathered(found)


def saved_stream():
    source = ShuffleDataset(ListSource(range(200), name="numbers"))
    kept = FilterDataset(source, lambda number: number % 3 != 0)
    return BatchDataset(RepeatDataset(kept), 2, list)


def saved_indexed():
    source = ShuffleDataset(ListSource(range(200), name="numbers"))
    return RepeatDataset(BatchDataset(source, 3, list))


SAVED_GLOBALLY = {"stream": saved_stream, "indexed": saved_indexed}


def savable(name, workers):
    config = WorkerConfig(num_workers=workers)
    dataset = SAVED_GLOBALLY[name]()
    return get_savable_loader(dataset, worker_config=config, lanes=LANES, timeout=100)


def save_globally(folder):
    """Some steps, a state on rank 1, and some more steps."""
    found = {}
    for name in SAVED_GLOBALLY:
        with savable(name, workers=1) as loader:
            before = list(islice(iter(loader), 5))
            state = loader.save_state_global(global_dst_rank=1)
            if state is not None:
                (folder / f"global-{name}.json").write_text(json.dumps(state))
            found[name] = [before, list(islice(iter(loader), 5)), state is not None]
    return gathered(found)


def restore_globally(folder):
    """The state is read by rank 2 alone."""
    found = {}
    for name in SAVED_GLOBALLY:
        file = folder / f"global-{name}.json"
        state = json.loads(file.read_text()) if dist.get_rank() == 2 else None
        with savable(name, workers=0) as loader:
            loader.restore_state_global(state, src_rank=2)
            found[name] = list(islice(iter(loader), 4))
    found["errors"] = [
        said(partial(loader.restore_state_global, state, src_rank=source))
        for state, source in ((None, 0), (None, 7), (None, None), ({"version": 4}, 1))
    ]
    return gathered(found)


def followed():
    """Ranks see different losses, and go the same way."""
    with loader_of("indexed") as loader:
        follower = loader.follow(ExcessLoss({"web": 0, "code": 0}), every=5)
        answers, items = [], []
        for item in steps_of(loader, STEPS):
            items.append(item)
            bad = 1.0 + dist.get_rank()
            answers.append(
                follower.observe([bad if name == "web" else 0.5 for name, _ in item])
            )
            if len(items) == 8:
                state = follower.state_dict()
    return gathered([answers, items, state])


def from_a_file(folder):
    """The second half: the file is looked at before every second step."""
    file = folder / "weights.yaml"
    with loader_of("indexed") as loader:
        loader.watch_weights(file, every=2)
        items = []
        for item in steps_of(loader, STEPS):
            items.append(item)
            if len(items) == 5 and not dist.get_rank():
                file.write_text("web: 9\ncode: 1\n")
            dist.barrier()
    return gathered(items)


def killed(folder):
    """The end of this program: in the middle of a loop, with workers and something read
    ahead."""
    with loader_of("stream") as loader:
        for made, _ in enumerate(steps_of(loader, STEPS), 1):
            if made == 4:
                loader.set_weights(FIRST)
            if made == 8:
                state = loader.state_dict()
                if not dist.get_rank():
                    (folder / "killed.json").write_text(json.dumps(state))
                dist.barrier()
            if made == KILLED:
                os.kill(os.getpid(), signal.SIGKILL)


def rank_that_does_not_call(folder):
    """What rank 0 is told. Nothing can be agreed on afterwards, so it comes last."""
    if dist.get_rank():
        assert eventually((folder / "told").exists, 60)
        return None
    with loader_of("indexed", 0, timeout=1) as loader:
        told = said(lambda: loader.set_weights(FIRST))
    (folder / "told").touch()
    return told


def go_on(folder, kind, steps):
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    items = []
    with loader_of("stream" if kind == "killed" else kind, 1) as loader:
        loader.load_state_dict(json.loads((folder / f"{kind}.json").read_text()))
        for item in steps_of(loader, steps):
            trained(model, item)
            items.append(item)
    return gathered(items)


def main(folder, part):
    dist.init_process_group("gloo")
    results = {}

    def note(name, function, *arguments):
        try:
            results[name] = function(*arguments)
        except Exception:
            results[name] = traceback.format_exc()
        if not dist.get_rank():
            (folder / f"{part}.json").write_text(json.dumps(results))

    if part == "first":
        for kind in RUNS:
            note(kind, first_run, folder, kind)
        note("differ", ranks_that_differ)
        note("first item", before_the_first_item)
        note("followed", followed)
        note("file", from_a_file, folder)
        note("different", given_different_things)
        note("saved", save_globally, folder)
        killed(folder)
    else:
        for kind in (*RUNS, "killed"):
            note(kind, go_on, folder, kind, 4)
        note("restored", restore_globally, folder)
        note("missing", rank_that_does_not_call, folder)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
