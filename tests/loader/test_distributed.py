"""A real process group: torchrun, two ranks, gloo."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from energize import BlendDataset, ListSource, RepeatDataset, ShuffleDataset

TRAINER = """
import json
import sys

import torch.distributed as dist

from energize import BlendDataset, ListSource, RepeatDataset, ShuffleDataset, WorkerConfig
from energize.loader import get_loader


def gathered(loader, steps):
    stream = []
    for _, item in zip(range(steps), loader):
        step = [None] * dist.get_world_size()
        dist.all_gather_object(step, item)
        stream += step
    return stream


def main():
    dist.init_process_group("gloo")
    sources = [ListSource(range(30), name="a"), ListSource(range(100, 120), name="b")]
    one, other = (RepeatDataset(ShuffleDataset(source)) for source in sources)
    dataset = BlendDataset((one, 0.7), (other, 0.3))
    config = WorkerConfig.default_worker_config(num_workers=1)
    with get_loader(dataset, worker_config=config) as loader:
        stream = gathered(loader, 40)
        state = [loader.state_dict() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(state, src=0)
    with get_loader(dataset) as loader:
        loader.load_state_dict(state[0])
        stream += gathered(loader, 25)
    if dist.get_rank() == 0:
        with open(sys.argv[1], "w") as file:
            json.dump({"ranks": dist.get_world_size(), "stream": stream}, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
"""


def test_two_ranks_deliver_the_stream_of_one_process_and_resume_from_one_ranks_state(
    tmp_path: Path,
):
    script, out = tmp_path / "trainer.py", tmp_path / "out.json"
    script.write_text(TRAINER)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*launch, script, out], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    got = json.loads(out.read_text())
    sources = [ListSource(range(30), name="a"), ListSource(range(100, 120), name="b")]
    one, other = (RepeatDataset(ShuffleDataset(source)) for source in sources)
    dataset = BlendDataset((one, 0.7), (other, 0.3))
    assert got == {"ranks": 2, "stream": dataset.at(range(130))}
