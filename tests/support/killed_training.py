"""What a rank of a job that is going to be killed does: it trains, and saves every few
steps.

`torchrun -m tests.support.killed_training FOLDER JOB KIND WORKERS TARGET` goes on from
the state in the folder, notes the batches of each step there, and ends after `TARGET`
batches, or never (0).
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from energize import (
    BatchDataset,
    BlendDataset,
    Dataset,
    FilterDataset,
    ListSource,
    MapDataset,
    PackingDataset,
    RepeatDataset,
    ShuffleDataset,
    WorkerConfig,
    get_loader,
)

LANES = 24
SAVE_EVERY = 3


def is_wanted(sample: int) -> bool:
    return sample % 3 != 0


def augmented(sample: int) -> list[int]:
    """Takes a moment, and something from a global generator."""
    time.sleep(random.random() * 0.001)
    return [sample, random.randrange(1 << 30)]


def in_threes(samples: list[list[int]]) -> list[list[list[int]]]:
    """Packs of three, in a random order."""
    random.shuffle(samples)
    return [samples[start : start + 3] for start in range(0, len(samples), 3)]


def mixed(*, filtered: bool, stop: str) -> Dataset:
    captions: Dataset = ShuffleDataset(ListSource(range(220), name="captions"))
    documents: Dataset = ShuffleDataset(ListSource(range(220, 310), name="documents"))
    captions = FilterDataset(captions, is_wanted) if filtered else captions
    if stop == "restart":
        captions, documents = RepeatDataset(captions), RepeatDataset(documents)
        return MapDataset(BlendDataset((captions, 0.6), (documents, 0.4)), augmented)
    return MapDataset(
        BlendDataset((captions, 0.6), (documents, 0.4), stop=stop), augmented
    )


def dataset_of(kind: str) -> Dataset:
    """One of `KINDS`; epochs of the indexed one are divided by no world size but 1."""
    return KINDS[kind]()


KINDS = {
    "indexed epochs": lambda: BatchDataset(
        mixed(filtered=False, stop="all_exhausted"), 3, list
    ),
    "stream of epochs": lambda: BatchDataset(
        mixed(filtered=True, stop="all_exhausted"), 3, list
    ),
    "endless stream": lambda: BatchDataset(
        mixed(filtered=True, stop="restart"), 3, list
    ),
    "endless packs": lambda: PackingDataset(
        mixed(filtered=False, stop="restart"), 12, in_threes, list
    ),
}


def saved(folder: Path) -> dict | None:
    """The last state of a job: that of the loader, and the steps and batches before
    it."""
    path = folder / "state.json"
    return json.loads(path.read_text()) if path.exists() else None


def main(folder: Path, job: str, kind: str, workers: int, target: int) -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    dataset, state = dataset_of(kind), saved(folder)
    config = WorkerConfig(num_workers=workers)
    lanes = None if dataset.indexed else LANES
    loader = get_loader(dataset, worker_config=config, lanes=lanes, timeout=60)
    done, steps = torch.zeros(1, dtype=torch.int64), 0
    if state is not None:
        loader.load_state_dict(state["loader"])
        done += state["batches"]
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    trained = os.open(folder / f"trained-{job}-{rank:02}-{world}", flags)
    with loader:
        while not target or done < target:
            for batch in loader:
                mine = None if loader.padding else batch
                os.write(trained, json.dumps(mine).encode() + b"\n")
                count = torch.tensor([mine is not None], dtype=torch.int64)
                dist.all_reduce(count)
                done, steps = done + count, steps + 1
                if steps % SAVE_EVERY == 0:
                    held = {
                        "loader": loader.state_dict(),
                        "steps": steps,
                        "batches": int(done),
                    }
                    if rank == 0:
                        (folder / "state.tmp").write_text(
                            json.dumps(held | {"job": job})
                        )
                        (folder / "state.tmp").replace(folder / "state.json")
                if target and done >= target:
                    break
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    at, number, name, many, end = sys.argv[1:]
    main(Path(at), number, name, int(many), int(end))
