"""One rank of a run that saves or restores a global state; see tests/loader/test_rank_groups.py.

Arguments: what to do, a folder.
"""

from __future__ import annotations

import json
import sys
from itertools import islice
from pathlib import Path

import torch.distributed as dist

from energize import (
    BatchDataset,
    FilterDataset,
    ListSource,
    RepeatDataset,
    ShuffleDataset,
    WorkerConfig,
    get_savable_loader,
)
from energize.errors import EnergizeError

LANES = 6


def not_third(item: int) -> bool:
    return item % 3 != 0


def stream():
    source = ShuffleDataset(ListSource(list(range(200)), name="numbers"))
    return BatchDataset(RepeatDataset(FilterDataset(source, not_third)), 2, list)


def indexed():
    source = ShuffleDataset(ListSource(list(range(200)), name="numbers"))
    return RepeatDataset(BatchDataset(source, 3, list))


DATASETS = {"stream": stream, "indexed": indexed}


def loader_of(name: str, workers: int):
    config = WorkerConfig(num_workers=workers)
    return get_savable_loader(DATASETS[name](), worker_config=config, lanes=LANES, timeout=100)


def save(rank: int, folder: Path) -> dict:
    """Some steps, a state on rank 1, and some more steps."""
    found: dict = {}
    for name in DATASETS:
        with loader_of(name, workers=1) as loader:
            before = list(islice(iter(loader), 5))
            state = loader.save_state_global(global_dst_rank=1)
            if state is not None:
                (folder / f"{name}.json").write_text(json.dumps(state))
            found[name] = [before, list(islice(iter(loader), 5)), state is not None]
    return found


def restore(rank: int, folder: Path) -> dict:
    """The state is read by rank 2 alone."""
    found: dict = {}
    for name in DATASETS:
        state = json.loads((folder / f"{name}.json").read_text()) if rank == 2 else None
        with loader_of(name, workers=0) as loader:
            loader.restore_state_global(state, src_rank=2)
            found[name] = list(islice(iter(loader), 4))
    errors = []
    for state, source in ((None, 0), (None, 7), (None, None), ({"version": 4}, 1)):
        try:
            loader.restore_state_global(state, src_rank=source)
        except EnergizeError as error:
            errors.append(f"{type(error).__name__}: {error}")
    return {**found, "errors": errors}


if __name__ == "__main__":
    what, place = sys.argv[1], Path(sys.argv[2])
    dist.init_process_group("gloo")
    own = dist.get_rank()
    result = {"save": save, "restore": restore}[what](own, place)
    (place / f"{what}.{own}.out").write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()
