"""Run on ranks: what loaders do on real ranks with a process group, written down as
JSON."""

from __future__ import annotations

import json
import logging
import os
import pickle
import sys
import traceback
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from energize import (
    BatchDataset,
    BlendDataset,
    EpochizeDataset,
    FilterDataset,
    LimitDataset,
    ListSource,
    Loader,
    RepeatDataset,
    ShuffleDataset,
    WorkerConfig,
    by_property,
    get_loader,
)
from energize.errors import EnergizeError
from energize.experimental import LevelBufferDataset
from energize.loader import agreement
from tests.support import texts
from tests.support.loading import eventually

CHECKS = {}


def check(function):
    CHECKS[function.__name__] = function
    return function


def is_even(item):
    return item % 2 == 0


def odd(item):
    return item % 2 == 1


def numbers(count, name="numbers"):
    return ShuffleDataset(ListSource(range(count), name=name))


def filtered():
    return BatchDataset(FilterDataset(numbers(97), is_even), 3, list)


def endless():
    evens = FilterDataset(numbers(40), is_even)
    return BlendDataset((RepeatDataset(evens), 0.6), (numbers(30, "other"), 0.4))


def mixed():
    one, other = numbers(30), numbers(20, "other")
    return BlendDataset((RepeatDataset(one), 0.7), (RepeatDataset(other), 0.3))


def price(item):
    return 1 + item % 7 * (item % 11)


def level():
    costs = [price(number) for number in range(94)]
    source = ListSource(range(94), name="numbers", columns={"cost": costs})
    return BatchDataset(
        ShuffleDataset(source), 2, list, level="cost", global_batch_size=16
    )


def level_stream():
    return BatchDataset(LevelBufferDataset(endless(), 8, 2, price), 2, list)


def by_kind():
    kinds = [("high", "low", "low")[number % 3] for number in range(50)]
    labelled = ListSource(range(50), name="labelled", columns={"kind": kinds})
    mix = by_property(ShuffleDataset(labelled), "kind", {"high": 3, "low": 1})
    return BlendDataset((mix, 2), (numbers(30), 1))


def config(workers=0):
    return WorkerConfig(num_workers=workers)


def gathered(value):
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def in_turn(loader: Loader, steps=None):
    """The items of all ranks in turn, without padding, to the end of the loop or for
    some steps; and how many steps each rank made.
    """
    made = []
    for item in loader:
        made.append((item, loader.padding))
        if len(made) == steps:
            break
    of_ranks = gathered(made)
    turns = zip(*of_ranks, strict=False)
    items = [item for turn in turns for item, pads in turn if not pads]
    return items, [len(each) for each in of_ranks]


@check
def ddp_on_eleven_batches():
    """An epoch that the ranks do not divide, trained on under DDP."""
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    batches = BatchDataset(ListSource([float(n) for n in range(22)]), 2, torch.tensor)
    steps = 0
    with get_loader(batches, worker_config=config(2)) as loader:
        for _ in range(2):
            for batch in loader:
                weight = 0.0 if loader.padding else 1.0
                (weight * model(batch[:, None]).mean()).backward()
                steps += 1
    return {"steps": gathered(steps)}


@check
def a_loader_made_and_pickled_before_the_process_group():
    return in_turn(EARLY, 3)[0], in_turn(pickle.loads(PICKLED), 3)[0]


@check
def an_indexed_mix_resumed():
    with get_loader(mixed(), worker_config=config(1)) as loader:
        stream, _ = in_turn(loader, 20)
        state = loader.state_dict()
    with get_loader(mixed()) as other:
        other.load_state_dict(state)
        return stream + in_turn(other, 10)[0]


@check
def a_mix_by_property_resumed():
    with get_loader(by_kind(), worker_config=config(2)) as loader:
        stream, _ = in_turn(loader, 20)
        state = loader.state_dict()
    with get_loader(by_kind(), worker_config=config(1)) as other:
        other.load_state_dict(state)
        return stream + in_turn(other, 10)[0]


@check
def states_after_every_step():
    """How many different states the ranks have, step by step, to the end of an epoch
    and beyond."""
    found = []
    for dataset, workers in (
        (numbers(10), 1),
        (filtered(), 1),
        (FilterDataset(numbers(9), odd), 0),
    ):
        with get_loader(dataset, worker_config=config(workers), lanes=6) as loader:
            steps = 0
            while steps < 9:
                for _ in loader:
                    found.append(len(set(gathered(json.dumps(loader.state_dict())))))
                    steps += 1
    return found


@check
def a_finite_stream():
    """Lanes on other ranks, whose end only reading tells."""
    with get_loader(filtered(), worker_config=config(2), lanes=6) as loader:
        return [in_turn(loader), in_turn(loader)]


@check
def an_endless_stream_resumed():
    with get_loader(endless(), worker_config=config(1), lanes=12) as loader:
        before, _ = in_turn(loader, 20)
        state = loader.state_dict()
        states = gathered(json.dumps(state))
        again = loader.state_dict() == state
        after, _ = in_turn(loader, 10)
    with get_loader(endless(), lanes=12) as other:
        other.load_state_dict(state)
        unread = other.state_dict() == state
        resumed, _ = in_turn(other, 10)
    return {
        "before": before,
        "after": after,
        "resumed": resumed,
        "one state": len(set(states)) == 1 and again and unread,
        "state": state,
    }


@check
def shares_in_tokens_resumed():
    """Batches of mixes by tokens, of the index and of packs, in a run of 20 steps that
    goes over the end of an epoch of 41; resumed without workers.
    """
    found = {}
    for name, mix in (("column", texts.by_column()), ("packs", texts.by_pack())):
        dataset = LimitDataset(texts.batches(mix, 2), 41)
        with get_loader(dataset, worker_config=config(1)) as loader:
            before, _ = in_turn(loader, 9)
            state = loader.state_dict()
            states = gathered(json.dumps(state))
        with get_loader(dataset) as other:
            other.load_state_dict(state)
            after, steps = [], 0
            while steps < 11:
                items, made = in_turn(other, 11 - steps)
                after, steps = after + items, steps + made[0]
        found[name] = {"read": before + after, "states": len(set(states))}
    return found


@check
def level_batches_resumed():
    """Level batches of an epoch that the ranks do not divide, and of a stream, trained
    on under DDP in runs of 20 steps, saved in the middle of a global batch and resumed
    without workers.
    """
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    found = {}
    for name, dataset in (("level", level()), ("level stream", level_stream())):
        before, states = [], []
        with get_loader(dataset, worker_config=config(2), lanes=8) as loader:
            while len(before) < 20:
                for batch in loader:
                    before.append((batch, loader.padding))
                    weight = 0.0 if loader.padding else 1.0
                    (
                        weight * model(torch.tensor(batch).float()[:, None]).mean()
                    ).backward()
                    if len(before) == 13:
                        states.append(loader.state_dict())
                    if len(before) == 20:
                        break
        with get_loader(dataset, worker_config=config()) as other:
            other.load_state_dict(states[0])
            resumed = []
            while len(resumed) < 7:
                resumed += [
                    (batch, other.padding) for batch in islice(other, 7 - len(resumed))
                ]
        turns = zip(*gathered([before, resumed == before[13:]]), strict=True)
        ranks, same = turns
        found[name] = {
            "items": [
                each
                for turn in zip(*ranks, strict=True)
                for each, pads in turn
                if not pads
            ],
            "resumed": same,
            "state": states[0],
        }
    return found


@check
def a_stream_resumed_between_two_steps():
    """Three ranks have made three steps, which is no whole number of steps of four."""
    alone = get_loader(filtered(), worker_config=WorkerConfig(0, 3), lanes=6)
    for _, _ in zip(range(3), alone, strict=False):
        pass
    with get_loader(filtered(), worker_config=config(1), lanes=6) as loader:
        loader.load_state_dict(alone.state_dict())
        return [in_turn(loader)[0], in_turn(loader)[0]]


@check
def loops_that_count_steps():
    with get_loader(EpochizeDataset(endless(), 5), worker_config=config(1)) as loader:
        return [in_turn(loader)[1] for _ in range(2)]


@check
def weights_that_change():
    """On ranks that say the same, and on some that do not."""
    found = []
    for dataset, options in (
        (mixed(), {}),
        (FilterDataset(mixed(), is_even), {"lanes": 8}),
    ):
        with get_loader(dataset, worker_config=config(1), **options) as loader:
            before, _ = in_turn(loader, 6)
            loader.set_weights({"numbers": 1, "other": 9})
            after, _ = in_turn(loader, 10)
            state = loader.state_dict()
            weights = {"numbers": 1 + dist.get_rank() // 3, "other": 1}
            try:
                loader.set_weights(weights)
            except EnergizeError as error:
                said = gathered(f"{type(error).__name__}: {error}")
            rest, _ = in_turn(loader, 5)
        with get_loader(dataset, **options) as other:
            other.load_state_dict(state)
            resumed, _ = in_turn(other, 5)
        found.append([before + after, resumed == rest, said])
    return found


@check
def different_states():
    loader = get_loader(ListSource(range(100)))
    for _, _ in zip(range(1 + dist.get_rank() % 2), loader, strict=False):
        pass
    state = loader.state_dict()
    other = get_loader(ListSource(range(100)))
    other.load_state_dict(state)
    try:
        next(iter(other))
    except EnergizeError as error:
        return gathered(f"{type(error).__name__}: {error}")
    return None


@check
def a_device_mesh():
    """Ranks of one tensor-parallel group read the same data."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    by_mesh = get_loader(
        ListSource(range(8)), worker_config=WorkerConfig(data_parallel_group=mesh["dp"])
    )
    by_group = get_loader(
        filtered(),
        worker_config=WorkerConfig(data_parallel_group=mesh["dp"].get_group()),
        lanes=4,
    )
    flat = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    by_two = get_loader(
        ListSource(range(8)), worker_config=WorkerConfig(data_parallel_group=flat)
    )
    return gathered([list(by_mesh), list(by_group), list(by_two)])


def on_rank_0_only():
    """What rank 0 is told that saves alone, and then loads alone: what it says while it
    waits, and the errors. Nothing can be agreed on afterwards, so it comes last.
    """
    agreement._PATIENCE = 0.6
    stream = get_loader(filtered(), lanes=6, timeout=1)
    next(iter(stream))
    if dist.get_rank() != 0:
        assert eventually(Path(sys.argv[1]).exists, 60)
        return None
    told = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: told.append(record.getMessage())
    handler.addFilter(lambda record: "waited" in record.getMessage() and not told)
    logging.getLogger("energize").addHandler(handler)
    loader = get_loader(ListSource(range(100)), timeout=1)
    loader.load_state_dict(loader.state_dict())
    for alone in (stream.state_dict, lambda: next(iter(loader))):
        try:
            told.append(alone())
        except EnergizeError as error:
            told.append(f"{type(error).__name__}: {error}")
    return told


EARLY: Loader
PICKLED: bytes


def main() -> None:
    global EARLY, PICKLED  # noqa: PLW0603 - made before there is a process group
    EARLY = get_loader(ListSource(range(100)))
    PICKLED = pickle.dumps(EARLY)
    dist.init_process_group("gloo")
    results = {}
    for name in sys.argv[2:] or CHECKS:
        try:
            results[name] = CHECKS[name]()
        except Exception:
            results[name] = traceback.format_exc()
    dist.barrier()
    results[on_rank_0_only.__name__] = on_rank_0_only()
    if dist.get_rank() == 0:
        Path(sys.argv[1]).write_text(json.dumps(results))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
