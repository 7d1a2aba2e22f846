"""Ranks that train together while all goes wrong: a changed sample, a shard that cannot be read for
a moment or for ever, workers killed and stopped; over a stream, and over epochs that the ranks do
not divide.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from energize import WorkerConfig, prepare, write_shards
from tests.faults.disk import Fault, SickDisk
from tests.faults.ranks import EPOCH, batches_of, loader_of
from tests.faults.scenes import ROOT

pytestmark = pytest.mark.jobs

STEPS = 20
LONG = 200
SECONDS = 120
CHANGED = "0017"
"""A sample in which one bit is another one than when checksums were written."""


@pytest.fixture
def folder(tmp_path) -> Path:
    shards = tmp_path / "shards"
    samples = [{"__key__": f"{i:04d}", "txt": f"{i}" * (1 + i % 7)} for i in range(2 * EPOCH)]
    write_shards(samples, shards, samples_per_shard=15)
    prepare(shards, split_ratios={"train": 1}, workers=1, checksums=True)
    second = shards / "shard-000001.tar"
    data = bytearray(second.read_bytes())
    data[data.index(b"17171717")] ^= 1
    stat = second.stat()
    second.write_bytes(data)
    os.utime(second, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    return shards


@pytest.fixture
def disk():
    sick = SickDisk()
    yield sick
    sick.close()


def train(disk, kind, folder, out, world, steps, workers, *sick):
    """What each rank has made of its steps, and the exit codes; none may wait for ever."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = []
    for rank in range(world):
        environment = disk.environment | {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
            "RANK": str(rank),
            "WORLD_SIZE": str(world),
        }
        command = [
            sys.executable,
            "-m",
            "tests.faults.ranks",
            kind,
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
    made = [rank["steps"][step] for step in range(steps) for rank in told]
    return [each for each in made if each is not None]


def here(kind, folder, count):
    """The batches that one process reads which nobody disturbs."""
    with loader_of(kind, folder, WorkerConfig(rank=0, world_size=1)) as loader:
        return list(batches_of(loader, count))


@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind", ["epochs", "stream"])
def test_ranks_go_on_or_end_together(disk, folder, tmp_path, kind):
    stream = here(kind, folder, 2 * LONG + 3 * STEPS)
    delivered = {key for batch in stream for key in batch}
    assert len(delivered) > 50
    assert CHANGED not in delivered

    disk.plan(Fault(f"{folder}/*2.tar", "read", error="EIO", skip=1, times=1))
    told, codes = train(disk, kind, folder, tmp_path, 2, STEPS, 2)
    assert (codes, disk.hits()) == ([0, 0], 1)
    assert [each["replaced"] for each in told] == [2, 2]
    padding = [step for rank in told for step in rank["steps"]].count(None)
    assert padding == (1 if kind == "epochs" else 0)
    made = in_order(told, STEPS)
    assert made == stream[: len(made)]
    assert len(made) == 2 * STEPS - padding

    disk.plan()
    told, codes = train(disk, kind, folder, tmp_path, 2, LONG, 2, f"{folder}/*2.tar")
    assert disk.hits() > 0, (codes, told)
    assert 0 not in codes
    assert any(f"{folder}/shard-000002.tar: cannot be read" in each["error"] for each in told)
    steps = min(len(each["steps"]) for each in told)
    assert 6 <= steps < LONG
    made = in_order(told, steps)
    assert made == stream[: len(made)]

    disk.plan()
    (tmp_path / "new_state.json").rename(tmp_path / "state.json")
    told, codes = train(disk, kind, folder, tmp_path, 3, STEPS, 1)
    assert codes == [0, 0, 0]
    more = in_order(told, STEPS)
    assert more == stream[len(made) :][: len(more)]
    assert len(more) >= 3 * STEPS - 4
