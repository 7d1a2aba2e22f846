"""What a rank of a job that is going to be killed does; run by torchrun, or forked."""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist

from energize import (
    BatchDataset,
    BlendDataset,
    Dataset,
    FilterDataset,
    GroupBatchDataset,
    ListSource,
    MapDataset,
    PackingDataset,
    RepeatDataset,
    ShuffleDataset,
    WorkerConfig,
    get_loader,
)

LANES = 24
CAPTIONS, DOCUMENTS = 220, 90
SAVE_EVERY = 3
"""Steps from one saved state to the next."""

PHASES = ("starting", "training", "asking for a state", "writing it")


def is_wanted(sample: int) -> bool:
    return sample % 3 != 0


def augmented(sample: int) -> list[int]:
    """Takes a moment, and something from a global generator."""
    time.sleep(random.random() * 0.001)
    return [sample, random.randrange(1 << 30)]


def captions() -> ShuffleDataset:
    return ShuffleDataset(ListSource(range(CAPTIONS), name="captions"))


def documents() -> ShuffleDataset:
    return ShuffleDataset(ListSource(range(CAPTIONS, CAPTIONS + DOCUMENTS), name="documents"))


def batches(dataset: Dataset) -> Dataset:
    return BatchDataset(MapDataset(dataset, augmented), 3, list)


def endless_stream() -> Dataset:
    wanted = RepeatDataset(FilterDataset(captions(), is_wanted))
    return batches(BlendDataset((wanted, 0.6), (RepeatDataset(documents()), 0.4)))


def stream_of_epochs() -> Dataset:
    """Only reading tells where its epochs end."""
    wanted = FilterDataset(captions(), is_wanted)
    return batches(BlendDataset((wanted, 0.6), (documents(), 0.4), stop="all_exhausted"))


def endless_indexed() -> Dataset:
    return batches(BlendDataset((RepeatDataset(captions()), 0.6), (documents(), 0.4)))


def indexed_epochs() -> Dataset:
    """103 batches and one sample more: no world size but 1 divides an epoch."""
    return batches(BlendDataset((captions(), 0.6), (documents(), 0.4), stop="all_exhausted"))


def once_or_twice(sample: int) -> Iterator[list[int]]:
    for _ in range(1 + sample % 2):
        yield augmented(sample)


def in_threes(samples: list[list[int]]) -> list[list[list[int]]]:
    """Packs of three, in a random order."""
    random.shuffle(samples)
    return [samples[start : start + 3] for start in range(0, len(samples), 3)]


def endless_packs() -> Dataset:
    mixed = BlendDataset((RepeatDataset(captions()), 0.6), (documents(), 0.4))
    return PackingDataset(MapDataset(mixed, once_or_twice), 12, in_threes, list)


def third(sample: list[int]) -> tuple[int, None]:
    return sample[0] % 3, None


def epochs_of_groups() -> Dataset:
    """With shorter batches at the end of each lane's part of an epoch."""
    mixed = BlendDataset((captions(), 0.6), (documents(), 0.4), stop="all_exhausted")
    return GroupBatchDataset(MapDataset(mixed, augmented), 4, third, list)


DATASETS = {
    each.__name__: each
    for each in (
        endless_stream,
        stream_of_epochs,
        endless_indexed,
        indexed_epochs,
        endless_packs,
        epochs_of_groups,
    )
}


def counted(trained: list[list]) -> torch.Tensor:
    """The model: how often it was trained on each sample."""
    samples = torch.tensor([sample for batch in trained for sample, _ in batch], dtype=torch.int64)
    return torch.bincount(samples, minlength=CAPTIONS + DOCUMENTS)


def read_state(folder: Path) -> dict | None:
    path = folder / "state.json"
    return json.loads(path.read_text()) if path.exists() else None


def write_state(folder: Path, state: dict) -> None:
    """Whole, or not at all."""
    temporary = folder / "state.tmp"
    with temporary.open("w") as file:
        json.dump(state, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(folder / "state.json")


class Training:
    """One rank of one job."""

    def __init__(
        self, folder: str, job: str, kind: str, workers: str, target: str, method: str
    ) -> None:
        dist.init_process_group("gloo")
        self.folder, self.job, self.target = Path(folder), int(job), int(target)
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.phase_file = os.open(self.folder / "phase", os.O_WRONLY)
        dataset = DATASETS[kind]()
        self.loader = get_loader(
            dataset,
            worker_config=WorkerConfig(num_workers=int(workers)),
            lanes=None if dataset.indexed else LANES,
            timeout=60,
            multiprocessing_context=method,
        )
        self.model = torch.zeros(CAPTIONS + DOCUMENTS, dtype=torch.int64)
        self.batches = torch.zeros(1, dtype=torch.int64)
        self.steps = 0
        saved = read_state(self.folder)
        if saved is not None:
            self.loader.load_state_dict(saved["loader"])
            self.model += torch.tensor(saved["model"])
            self.batches += saved["batches"]

    def run(self) -> None:
        name = f"trained-{self.job}-{self.rank:02}-{self.world}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        trained = os.open(self.folder / name, flags)
        with self.loader:
            while True:
                for batch in self.loader:
                    self.note(1)
                    mine = None if self.loader.padding else batch
                    os.write(trained, json.dumps(mine).encode() + b"\n")
                    self.train([] if mine is None else [mine])
                    if self.target and self.batches >= self.target:
                        self.save()
                        return
                    if self.steps % SAVE_EVERY == 0:
                        self.save()

    def train(self, mine: list[list]) -> None:
        gradient, done = counted(mine), torch.tensor([len(mine)])
        dist.all_reduce(gradient)
        dist.all_reduce(done)
        self.model += gradient
        self.batches += done
        self.steps += 1

    def save(self) -> None:
        self.note(2)
        loader = self.loader.state_dict()
        self.note(3)
        if self.rank == 0:
            state = {"loader": loader, "model": self.model.tolist(), "batches": int(self.batches)}
            write_state(self.folder, state | {"job": self.job, "steps": self.steps})
        self.note(1)

    def note(self, phase: int) -> None:
        if self.rank == 0:
            os.pwrite(self.phase_file, bytes([phase]), 0)


def main(arguments: list[str]) -> None:
    Training(*arguments).run()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
