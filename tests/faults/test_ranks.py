"""Ranks that train together while a shard cannot be read: for a moment, and for ever."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from energize import WorkerConfig, get_loader, prepare, write_shards
from tests.faults.conftest import ROOT
from tests.support.sick_disk import Fault, SickDisk
from tests.support.sick_ranks import mix

pytestmark = pytest.mark.jobs

STEPS = 20
SECONDS = 120


@pytest.fixture
def folder(tmp_path) -> Path:
    samples = [{"__key__": f"{i:04d}", "txt": "x" * (1 + i % 7)} for i in range(120)]
    write_shards(samples, tmp_path / "shards", samples_per_shard=30)
    prepare(tmp_path / "shards", split_ratios={"train": 1}, workers=1)
    return tmp_path / "shards"


@pytest.fixture
def disk():
    sick = SickDisk()
    yield sick
    sick.close()


def train(disk, folder, out, world, steps, workers, *sick):
    """What each rank has made of its steps, and the exit codes; none may wait for ever."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = []
    for rank in range(world):
        environment = disk.environment | {
            "ENERGIZE_LIMIT_READ_TRIES": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
            "RANK": str(rank),
            "WORLD_SIZE": str(world),
        }
        command = [
            sys.executable,
            "-m",
            "tests.support.sick_ranks",
            folder,
            out,
            steps,
            workers,
            *sick,
        ]
        with (out / f"log{rank}").open("w") as log:
            ranks.append(
                subprocess.Popen(
                    list(map(str, command)), cwd=ROOT, env=environment, stdout=log, stderr=log
                )
            )
    try:
        codes = [each.wait(SECONDS) for each in ranks]
    finally:
        for each in ranks:
            each.kill()
            each.wait()
    files = [out / f"rank{rank}.of{world}.json" for rank in range(world)]
    assert all(each.exists() for each in files), [
        (out / f"log{rank}").read_text()[-2000:] for rank in range(world)
    ]
    return [json.loads(each.read_text()) for each in files], codes


def in_order(told, steps):
    """The batches of all ranks, as one process would have read them."""
    return [rank["steps"][step] for step in range(steps) for rank in told]


def here(folder, count, state=None, workers=0):
    """The batches that one process reads, from a state on."""
    with get_loader(
        mix(folder), worker_config=WorkerConfig(rank=0, world_size=1, num_workers=workers)
    ) as loader:
        if state is not None:
            loader.load_state_dict(state)
        return [[each["__key__"] for each in batch] for batch in islice(loader, count)]


@pytest.mark.timeout(300)
def test_ranks_go_on_or_end_together(disk, folder, tmp_path):
    stream = here(folder, 2 * STEPS)

    disk.plan(Fault(f"{folder}/*2.tar", "read", error="EIO", skip=3, times=1))
    told, codes = train(disk, folder, tmp_path, 2, STEPS, 2)
    assert (codes, disk.hits()) == ([0, 0], 1)
    assert in_order(told, STEPS) == stream

    disk.plan()
    told, codes = train(disk, folder, tmp_path, 2, STEPS, 2, f"{folder}/*2.tar")
    assert disk.hits() > 0
    assert 0 not in codes
    assert any(f"{folder}/shard-000002.tar: cannot be read" in each["error"] for each in told)
    made = min(len(each["steps"]) for each in told)
    assert 6 <= made < STEPS
    assert in_order(told, made) == stream[: 2 * made]

    state = json.loads((tmp_path / "new_state.json").read_text())
    rest = stream[2 * made :]
    assert here(folder, len(rest), state, workers=1) == rest
